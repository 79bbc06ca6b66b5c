//! A future under supervision, and the child's own view of its supervisor.

use std::any::Any;
use std::fmt::Debug;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll, Waker, ready};

use pin_project_lite::pin_project;

use crate::hub::Hub;
use crate::shard::Chunk;
use crate::slot::{Signal, Slot, Standing, Tag};
use crate::span::ChildSpan;
use crate::sync::{Mutex, lock};
use crate::{Completion, Exit};

/// Names one child for good: the slot it sits in, and which occupant of it.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    chunk: Arc<Chunk>,
    tag: Tag,
}

impl Member {
    pub(crate) fn new(chunk: Arc<Chunk>, tag: Tag) -> Self {
        Self { chunk, tag }
    }

    fn slot(&self) -> &Slot {
        &self.chunk.slots[self.tag.place()]
    }

    fn standing(&self) -> Standing {
        self.slot().standing(self.tag)
    }

    fn signal(&self, signal: Signal) {
        let told = self.slot().signal_tagged(signal, self.tag);
        if told.watched {
            self.chunk.home.wake_watchers(&self.chunk, self.tag.place());
        }
        if let Some(task) = told.task {
            task.wake();
        }
    }

    pub(crate) fn handle(&self) -> Child {
        Child(self.clone())
    }

    pub(crate) fn ctx(&self) -> Ctx {
        Ctx { chunk: Arc::clone(&self.chunk), tag: self.tag, watch: AtomicU32::new(0) }
    }
}

impl PartialEq for Member {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.chunk, &other.chunk) && self.tag == other.tag
    }
}

/// A place in the books that is given back exactly once, however the child ends.
#[derive(Debug)]
pub(crate) struct Seat {
    member: Option<Member>,
    span: ChildSpan,
}

impl Seat {
    pub(crate) fn new<K: Debug>(member: Member, label: Option<&K>) -> Self {
        let hub = member.chunk.home.hub();
        hub.observe(|observer, scope| observer.started(scope));
        let span = ChildSpan::open(&hub.path, label);
        Self { member: Some(member), span }
    }

    pub(crate) fn member(&self) -> &Member {
        self.member.as_ref().expect("a supervised future is not polled after it has ended")
    }

    /// Drops the child's future; a panic in there is how the child ended then.
    fn end<F>(&self, inner: &mut Pin<&mut Option<F>>, exit: Exit) -> (Exit, Option<Box<dyn Any + Send>>) {
        match catch_unwind(AssertUnwindSafe(|| self.span.inside(|| inner.set(None)))) {
            Ok(()) => (exit, None),
            Err(panic) => (Exit::Panicked, Some(panic)),
        }
    }

    fn leave(&mut self, exit: Exit, panic: Option<Box<dyn Any + Send>>) {
        let Some(Member { chunk, tag }) = self.member.take() else { return };
        chunk.home.hub().observe_exit(exit, panic.as_deref().and_then(message));
        self.span.close(exit);
        chunk.home.exit(&chunk, tag, exit);
        // A payload is a foreign value, and its drop may panic as well.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave(Exit::Dropped, None);
    }
}

pub(crate) fn message(payload: &(dyn Any + Send)) -> Option<&str> {
    payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str))
}

pin_project! {
    /// A child's future, ready to be spawned on any executor; it need not be `Send`.
    ///
    /// It resolves to what the child returned, or to the [`Exit`] that kept it from returning. A panic of the child ends
    /// here: it does not reach the executor. Dropping it ends the child as [`Exit::Dropped`].
    ///
    /// # Panics
    /// When polled after it has resolved.
    #[must_use = "a child runs only when its future is spawned or polled; dropped, it has ended"]
    pub struct Supervised<F> {
        seat: Seat,
        #[pin]
        inner: Option<F>,
    }

    impl<F> PinnedDrop for Supervised<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            if this.seat.member.is_some() {
                let (exit, panic) = this.seat.end(&mut this.inner, Exit::Dropped);
                this.seat.leave(exit, panic);
            }
        }
    }
}

impl<F> Supervised<F> {
    pub(crate) fn new(seat: Seat, inner: F) -> Self {
        Self { seat, inner: Some(inner) }
    }

    /// A handle to the child, to look at it or end it from elsewhere.
    ///
    /// # Panics
    /// After the future has resolved.
    pub fn child(&self) -> Child {
        self.seat.member().handle()
    }
}

impl<F> Future for Supervised<F>
where
    F: Future<Output: Completion>,
{
    type Output = Result<F::Output, Exit>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let member = this.seat.member();
        member.slot().register(cx.waker());
        if member.standing() == Standing::Aborting {
            let (exit, panic) = this.seat.end(&mut this.inner, Exit::Aborted);
            this.seat.leave(exit, panic);
            return Poll::Ready(Err(exit));
        }
        let inner = this.inner.as_mut().as_pin_mut().expect("the future is there as long as its seat is taken");
        let polled = catch_unwind(AssertUnwindSafe(|| this.seat.span.inside(|| inner.poll(cx))));
        let ended = ready!(polled.map_or_else(|panic| Poll::Ready(Err(panic)), |poll| poll.map(Ok)));
        Poll::Ready(conclude(this.seat, &mut this.inner, ended))
    }
}

fn conclude<F>(
    seat: &mut Seat,
    inner: &mut Pin<&mut Option<F>>,
    ended: Result<F::Output, Box<dyn Any + Send>>,
) -> Result<F::Output, Exit>
where
    F: Future<Output: Completion>,
{
    let exit = match &ended {
        Ok(value) if value.is_failure() => Exit::Failed,
        Ok(_) => Exit::Returned,
        Err(_) => Exit::Panicked,
    };
    let (exit, dropping) = seat.end(inner, exit);
    let returned = ended.and_then(|value| dropping.map_or(Ok(value), Err));
    match returned {
        Ok(value) => {
            seat.leave(exit, None);
            Ok(value)
        }
        Err(panic) => {
            seat.leave(exit, Some(panic));
            Err(exit)
        }
    }
}

/// A child that is a thing and not a task; made by [`Scope::hold`](crate::Scope::hold). Dropped, it has ended, as
/// [`Exit::Returned`]; when its thread panics at that moment, as [`Exit::Panicked`].
#[derive(Debug)]
#[must_use = "dropped, it has ended"]
pub struct Held(Seat);

impl Held {
    pub(crate) fn new(seat: Seat) -> Self {
        Self(seat)
    }

    /// The child's own view: is it to go?
    pub fn ctx(&self) -> Ctx {
        self.0.member().ctx()
    }

    /// A handle to the child, to look at it or to tell it to stop from elsewhere.
    pub fn child(&self) -> Child {
        self.0.member().handle()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.leave(if std::thread::panicking() { Exit::Panicked } else { Exit::Returned }, None);
    }
}

/// A handle to one child. It keeps nothing alive but the memory of the child's slot, and may outlive the child.
#[derive(Clone, PartialEq, Debug)]
pub struct Child(Member);

impl Child {
    /// Tells this child alone to stop; its [`Ctx::cancelled`] resolves.
    pub fn stop(&self) {
        self.0.signal(Signal::Stop);
    }

    /// Has this child's future dropped at its next poll, which is made to come soon.
    pub fn abort(&self) {
        self.0.signal(Signal::Abort);
    }

    /// Whether the child has not ended yet.
    pub fn is_alive(&self) -> bool {
        self.0.standing() != Standing::Gone
    }

    /// Resolves when the child ends, to how it ended; to `None` if it had ended before this call.
    ///
    /// # Cancel safety
    /// May be polled by reference and dropped; a further call sees only an end that is yet to come.
    pub fn ended(&self) -> Ended {
        let watch = Arc::new(ExitWatch::default());
        let Member { chunk, tag } = &self.0;
        match chunk.home.await_exit(chunk, *tag, &watch) {
            true => Ended(Some(watch)),
            false => Ended(None),
        }
    }
}

/// Where the end of a child is left for one who waits.
#[derive(Debug, Default)]
pub(crate) struct ExitWatch(Mutex<(Option<Exit>, Option<Waker>)>);

impl ExitWatch {
    pub(crate) fn tell(&self, exit: Exit) {
        let waker = {
            let mut watch = lock(&self.0);
            watch.0 = Some(exit);
            watch.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The future of [`Child::ended`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Ended(Option<Arc<ExitWatch>>);

impl Future for Ended {
    type Output = Option<Exit>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Exit>> {
        let Some(watch) = &self.0 else { return Poll::Ready(None) };
        let mut watch = lock(&watch.0);
        if watch.0.is_some() {
            return Poll::Ready(watch.0);
        }
        watch.1 = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// The child's own view: was it told to stop?
///
/// Asking reads the child's own cache line and writes nothing, so it may stand in the innermost loop. A child may hand
/// clones to parts of itself that wait under wakers of their own, such as the arms of a `FuturesUnordered`, or on other
/// tasks; such a wait costs a short lock of the shard.
#[derive(Debug)]
pub struct Ctx {
    chunk: Arc<Chunk>,
    tag: Tag,
    /// Under what number the shard keeps a waker for this value; 0 for none.
    watch: AtomicU32,
}

impl Ctx {
    pub(crate) fn hub(&self) -> &Hub {
        self.chunk.home.hub()
    }

    /// Counts one more life of this child.
    pub(crate) fn again(&self, exit: Exit) {
        self.chunk.home.again(exit);
        self.hub().observe(|observer, scope| observer.restarted(scope, exit));
        self.hub().observe(|observer, scope| observer.started(scope));
    }

    /// Counts this child as a restart of one that ended.
    pub(crate) fn replaces(&self) {
        self.chunk.home.replaced();
    }

    fn standing(&self) -> Standing {
        self.chunk.slots[self.tag.place()].standing(self.tag)
    }

    /// Whether the child was told to stop or abort, or has ended.
    pub fn is_stopping(&self) -> bool {
        self.standing() != Standing::Running
    }

    /// Resolves when the child is told to stop.
    ///
    /// # Cancel safety
    /// May be dropped and called again; nothing is lost.
    pub fn cancelled(&self) -> Cancelled<'_> {
        Cancelled(self)
    }

    /// The output of `future`, or `None` if the child is told to stop before that; `future` is dropped then.
    ///
    /// For what may be left off at any await. What must be ended in order listens itself. A child that was told already
    /// does not begin.
    ///
    /// # Cancel safety
    /// That of `future`.
    pub fn run_until_cancelled<F: Future>(&self, future: F) -> UntilCancelled<'_, F> {
        UntilCancelled { ctx: self, future }
    }

    /// Ready when the child is told to stop, for use in a hand-written `poll`.
    ///
    /// One `Ctx` remembers one waker: of two tasks that poll the same value, only the later is woken. Clone it for the
    /// other.
    pub fn poll_cancelled(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_stopping() {
            return Poll::Ready(());
        }
        if self.chunk.slots[self.tag.place()].is_registered(cx.waker()) {
            return Poll::Pending;
        }
        self.poll_watched(cx)
    }

    #[cold]
    fn poll_watched(&self, cx: &Context<'_>) -> Poll<()> {
        match self.chunk.home.watch(&self.chunk, self.tag, self.watch.load(Relaxed), cx.waker()) {
            Some(id) => {
                self.watch.store(id, Relaxed);
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Clone for Ctx {
    fn clone(&self) -> Self {
        Self { chunk: Arc::clone(&self.chunk), tag: self.tag, watch: AtomicU32::new(0) }
    }
}

impl Drop for Ctx {
    fn drop(&mut self) {
        let id = *self.watch.get_mut();
        if id != 0 {
            self.chunk.home.unwatch(&self.chunk, self.tag, id);
        }
    }
}

/// The future of [`Ctx::cancelled`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Cancelled<'a>(&'a Ctx);

impl Future for Cancelled<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_cancelled(cx)
    }
}

pin_project! {
    /// The future of [`Ctx::run_until_cancelled`]; larger than the one inside by a reference.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct UntilCancelled<'a, F> {
        ctx: &'a Ctx,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for UntilCancelled<'_, F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match this.ctx.poll_cancelled(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => this.future.poll(cx).map(Some),
        }
    }
}
