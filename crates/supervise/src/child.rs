//! A supervised future, and the child's context.

use std::any::Any;
use std::fmt::Debug;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::exit_watch::ExitWatch;
use crate::hub::Hub;
use crate::shard::{ChildChunk, Member};
use crate::slot::{ChildState, StopSignal, Tag};
use crate::span::ChildSpan;
use crate::sync::lock;
use crate::{ChildOutput, Exit};

impl Member {
    pub(crate) fn handle(&self) -> Child {
        Child(self.clone())
    }

    pub(crate) fn ctx(&self) -> Ctx {
        Ctx { chunk: Arc::clone(&self.chunk), tag: self.tag, watch: AtomicU32::new(0) }
    }
}

/// Guard of a child's slot: frees the slot exactly once, however the child ends.
#[derive(Debug)]
pub(crate) struct ChildGuard {
    member: Option<Member>,
    span: ChildSpan,
}

impl ChildGuard {
    pub(crate) fn new<K: Debug>(member: Member, label: Option<&K>) -> Self {
        let hub = member.chunk.shard.hub();
        hub.observe(|observer, scope| observer.started(scope));
        let span = ChildSpan::open(&hub.path, label);
        Self { member: Some(member), span }
    }

    pub(crate) fn member(&self) -> &Member {
        self.member.as_ref().expect("`Supervised` is not polled after completion")
    }

    /// Drops the child's future; a panic in that drop changes the exit to `Panicked`.
    fn end<F>(&self, inner: &mut Pin<&mut Option<F>>, exit: Exit) -> (Exit, Option<Box<dyn Any + Send>>) {
        match catch_unwind(AssertUnwindSafe(|| self.span.inside(|| inner.set(None)))) {
            Ok(()) => (exit, None),
            Err(panic) => (Exit::Panicked, Some(panic)),
        }
    }

    fn leave(&mut self, exit: Exit, panic: Option<Box<dyn Any + Send>>) {
        let Some(Member { chunk, tag }) = self.member.take() else { return };
        chunk.shard.hub().observe_exit(exit, panic.as_deref().and_then(message));
        self.span.close(exit);
        chunk.shard.exit(&chunk, tag, exit);
        // A payload is a foreign value whose drop may panic as well.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
    }
}

impl Drop for ChildGuard {
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
    /// Resolves to the child's output, or to the [`Exit`] that prevented one. A panic of the child is caught here and does
    /// not reach the executor. Dropping the future ends the child as [`Exit::Dropped`].
    ///
    /// # Panics
    /// If polled after it has resolved.
    #[must_use = "a child runs only when its future is spawned or polled; dropping the future ends the child"]
    pub struct Supervised<F> {
        guard: ChildGuard,
        #[pin]
        inner: Option<F>,
    }

    impl<F> PinnedDrop for Supervised<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            if this.guard.member.is_some() {
                let (exit, panic) = this.guard.end(&mut this.inner, Exit::Dropped);
                this.guard.leave(exit, panic);
            }
        }
    }
}

impl<F> Supervised<F> {
    pub(crate) fn new(guard: ChildGuard, inner: F) -> Self {
        Self { guard, inner: Some(inner) }
    }

    /// Returns a handle to the child.
    ///
    /// # Panics
    /// If the future has resolved.
    pub fn child(&self) -> Child {
        self.guard.member().handle()
    }
}

impl<F> Future for Supervised<F>
where
    F: Future<Output: ChildOutput>,
{
    type Output = Result<F::Output, Exit>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let member = this.guard.member();
        member.slot().register(cx.waker());
        if member.child_state() == ChildState::Aborting {
            let (exit, panic) = this.guard.end(&mut this.inner, Exit::Aborted);
            this.guard.leave(exit, panic);
            return Poll::Ready(Err(exit));
        }
        let inner = this.inner.as_mut().as_pin_mut().expect("the future exists while its guard holds the slot");
        let polled = catch_unwind(AssertUnwindSafe(|| this.guard.span.inside(|| inner.poll(cx))));
        let ended = ready!(polled.map_or_else(|panic| Poll::Ready(Err(panic)), |poll| poll.map(Ok)));
        Poll::Ready(conclude(this.guard, &mut this.inner, ended))
    }
}

fn conclude<F>(
    guard: &mut ChildGuard,
    inner: &mut Pin<&mut Option<F>>,
    ended: Result<F::Output, Box<dyn Any + Send>>,
) -> Result<F::Output, Exit>
where
    F: Future<Output: ChildOutput>,
{
    let exit = match &ended {
        Ok(value) if value.is_failure() => Exit::Failed,
        Ok(_) => Exit::Returned,
        Err(_) => Exit::Panicked,
    };
    let (exit, dropping) = guard.end(inner, exit);
    let returned = ended.and_then(|value| dropping.map_or(Ok(value), Err));
    match returned {
        Ok(value) => {
            guard.leave(exit, None);
            Ok(value)
        }
        Err(panic) => {
            guard.leave(exit, Some(panic));
            Err(exit)
        }
    }
}

/// A child without a task; created by [`Scope::hold`](crate::Scope::hold). Dropping it ends the child as [`Exit::Returned`],
/// or as [`Exit::Panicked`] if the thread is panicking.
#[derive(Debug)]
#[must_use = "dropping it ends the child"]
pub struct HeldChild(ChildGuard);

impl HeldChild {
    pub(crate) fn new(guard: ChildGuard) -> Self {
        Self(guard)
    }

    /// Returns the child's context, to check for a stop.
    pub fn ctx(&self) -> Ctx {
        self.0.member().ctx()
    }

    /// Returns a handle to the child.
    pub fn child(&self) -> Child {
        self.0.member().handle()
    }
}

impl Drop for HeldChild {
    fn drop(&mut self) {
        self.0.leave(if std::thread::panicking() { Exit::Panicked } else { Exit::Returned }, None);
    }
}

/// A handle to one child. The handle keeps only the memory of the child's slot alive, and may outlive the child.
#[derive(Clone, PartialEq, Debug)]
pub struct Child(Member);

impl Child {
    /// Signals this child alone to stop; its [`Ctx::cancelled`] resolves.
    pub fn stop(&self) {
        self.0.signal(StopSignal::Stop);
    }

    /// Wakes the child and drops its future at the next poll.
    pub fn abort(&self) {
        self.0.signal(StopSignal::Abort);
    }

    /// Returns whether the child has not ended.
    pub fn is_alive(&self) -> bool {
        self.0.child_state() != ChildState::Gone
    }

    /// Resolves to the child's exit when the child ends, or to `None` if it ended before this call.
    ///
    /// # Cancel safety
    /// May be polled by reference and dropped; a further call sees only a later exit.
    pub fn ended(&self) -> Ended {
        let watch = Arc::new(ExitWatch::default());
        let Member { chunk, tag } = &self.0;
        match chunk.shard.await_exit(chunk, *tag, &watch) {
            true => Ended(Some(watch)),
            false => Ended(None),
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

/// Context of a child: reports when the child must stop.
///
/// A check reads the child's own cache line and writes nothing, so it is cheap in an inner loop. A child may clone the
/// context for parts that wait with their own wakers, such as the arms of a `FuturesUnordered`, or for other tasks; such a
/// wait takes a short lock of the shard.
#[derive(Debug)]
pub struct Ctx {
    chunk: Arc<ChildChunk>,
    tag: Tag,
    /// Id of the waker that the shard stores for this context; 0 for none.
    watch: AtomicU32,
}

impl Ctx {
    pub(crate) fn hub(&self) -> &Hub {
        self.chunk.shard.hub()
    }

    /// Records a restart of this child.
    pub(crate) fn record_restart(&self, exit: Exit) {
        self.chunk.shard.record_restart(exit);
        self.hub().observe(|observer, scope| observer.restarted(scope, exit));
        self.hub().observe(|observer, scope| observer.started(scope));
    }

    /// Records this child as a replacement of an ended child.
    pub(crate) fn record_replacement(&self) {
        self.chunk.shard.record_replacement();
    }

    fn child_state(&self) -> ChildState {
        self.chunk.slots[self.tag.place()].child_state(self.tag)
    }

    /// Returns whether the child is stopping or aborting, or has ended.
    pub fn is_stopping(&self) -> bool {
        self.child_state() != ChildState::Running
    }

    /// Resolves when the child must stop.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub fn cancelled(&self) -> Cancelled<'_> {
        Cancelled(self)
    }

    /// Returns the output of `future`, or drops `future` and returns `None` if the child must stop first.
    ///
    /// Use only with cancel-safe futures; otherwise poll `cancelled()` in the future itself. If the child is already
    /// stopping, `future` is not polled.
    ///
    /// # Cancel safety
    /// Same as `future`.
    pub fn run_until_cancelled<F: Future>(&self, future: F) -> UntilCancelled<'_, F> {
        UntilCancelled { ctx: self, future }
    }

    /// Ready when the child must stop; for a hand-written `poll`.
    ///
    /// A `Ctx` stores one waker: if two tasks poll the same value, only the later one is woken. Clone the context for the
    /// second task.
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
        match self.chunk.shard.watch(&self.chunk, self.tag, self.watch.load(Relaxed), cx.waker()) {
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
            self.chunk.shard.unwatch(&self.chunk, self.tag, id);
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
    /// The future of [`Ctx::run_until_cancelled`]; larger than the inner future by one reference.
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
