//! A child that is started again when it ends.
//!
//! A kept child sits in one slot under one key through all its lives. What it may cost is bounded twice: by its own
//! budget, and by its scope's. Every life that is followed by another counts as an exit and a start; the last one is
//! the child's own exit.

use std::any::Any;
use std::fmt::{self, Debug};
use std::future::Future;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;

use crate::budget::{Backoff, Bucket, Budget};
use crate::child::{Ctx, message};
use crate::runtime::Timer;
use crate::{Completion, Exit};

/// After which ends a child is started again. A child that was told to stop or abort never is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Restart {
    /// After every end.
    #[default]
    Permanent,
    /// After a failure or a panic.
    Transient,
    /// Never.
    Temporary,
}

impl Restart {
    /// Whether a child that ended in `exit` is started again.
    pub fn wants(self, exit: Exit) -> bool {
        match (self, exit) {
            (_, Exit::Aborted | Exit::Dropped) | (Self::Temporary, _) => false,
            (Self::Permanent, _) => true,
            (Self::Transient, exit) => exit != Exit::Returned,
        }
    }
}

/// When and how often children of a class are started again.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Policy {
    /// After which ends.
    pub restart: Restart,
    /// How often, each child for itself.
    pub budget: Budget,
    /// After what wait.
    pub backoff: Backoff,
}

impl Policy {
    /// `restart` with the default budget and back-off.
    pub fn new(restart: Restart) -> Self {
        Self { restart, ..Self::default() }
    }

    /// With this budget for each child.
    #[must_use]
    pub fn budget(self, budget: Budget) -> Self {
        Self { budget, ..self }
    }

    /// With this back-off.
    #[must_use]
    pub fn backoff(self, backoff: Backoff) -> Self {
        Self { backoff, ..self }
    }
}

/// A kind of children: how one of them is made from its key, and when it is made again. Clones share the factory.
pub struct Class<M>(Arc<(Policy, M)>);

impl<M> Class<M> {
    /// Children that `make` makes out of their key.
    pub fn new(policy: Policy, make: M) -> Self {
        Self(Arc::new((policy, make)))
    }
}

impl<M> Clone for Class<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M> Debug for Class<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Class").field("policy", &self.0.0).finish_non_exhaustive()
    }
}

pin_project! {
    /// All lives of one kept child, one after another.
    pub struct Kept<K, M, F, T>
    where
        T: Timer,
        F: Future,
    {
        key: K,
        class: Class<M>,
        ctx: Ctx,
        timer: T,
        bucket: Bucket,
        attempt: u32,
        began: Instant,
        #[pin]
        stage: Stage<F, T::Sleep, F::Output>,
    }
}

pin_project! {
    #[project = StageNow]
    #[project_replace = StageWas]
    enum Stage<F, S, O> {
        Start,
        Life { #[pin] future: F },
        Pause { #[pin] sleep: S, ended: Ended<O> },
    }
}

type Payload = Box<dyn Any + Send>;
type Ended<O> = Result<O, Payload>;

fn exit_of<O: Completion>(ended: &Ended<O>) -> Exit {
    match ended {
        Ok(output) if output.is_failure() => Exit::Failed,
        Ok(_) => Exit::Returned,
        Err(_) => Exit::Panicked,
    }
}

impl<K, M, F: Future, T: Timer> Kept<K, M, F, T> {
    pub(crate) fn new(key: K, class: Class<M>, ctx: Ctx, timer: T) -> Self {
        let bucket = class.0.0.budget.bucket();
        let began = timer.now();
        Self { key, class, ctx, timer, bucket, attempt: 0, began, stage: Stage::Start }
    }
}

impl<K, M, F, T> Kept<K, M, F, T>
where
    K: Debug,
    M: Fn(&K, Ctx) -> F,
    F: Future<Output: Completion>,
    T: Timer,
{
    fn begin(self: Pin<&mut Self>) -> Result<(), Payload> {
        let mut this = self.project();
        *this.began = this.timer.now();
        let make = &this.class.0.1;
        let future = catch_unwind(AssertUnwindSafe(|| make(this.key, this.ctx.clone())))?;
        this.stage.set(Stage::Life { future });
        Ok(())
    }

    /// A life has ended: the child pauses before the next, or ends for good.
    fn after(self: Pin<&mut Self>, ended: Ended<F::Output>) -> ControlFlow<F::Output> {
        let mut this = self.project();
        let dropped = catch_unwind(AssertUnwindSafe(|| this.stage.set(Stage::Start)));
        let ended = ended.and_then(|output| dropped.map(|()| output));
        let exit = exit_of(&ended);
        if this.ctx.is_stopping() || !this.class.0.0.restart.wants(exit) {
            return finish(ended);
        }
        let Some(wait) = next_wait(&this.class.0.0, this.bucket, this.attempt, this.timer.now(), *this.began)
            .and_then(|wait| Some(wait.max(this.ctx.hub().restart_turn(this.timer.now())?)))
        else {
            this.ctx.hub().observe(|observer, scope| observer.gave_up(scope, this.key, exit));
            return finish(ended);
        };
        let panic = ended.as_ref().err().and_then(|payload| message(payload.as_ref()));
        this.ctx.hub().observe(|observer, scope| observer.restarting(scope, this.key, exit, panic, wait));
        this.stage.set(Stage::Pause { sleep: this.timer.sleep(wait), ended });
        ControlFlow::Continue(())
    }

    /// The pause is over: the next life begins, or the child was told to stop meanwhile.
    fn rise(self: Pin<&mut Self>, stopped: bool) -> ControlFlow<F::Output> {
        let mut this = self.project();
        let StageWas::Pause { ended, .. } = this.stage.as_mut().project_replace(Stage::Start) else {
            unreachable!("only a pause ends in a rise");
        };
        if stopped {
            return finish(ended);
        }
        this.ctx.again(exit_of(&ended));
        ControlFlow::Continue(())
    }
}

/// The child's own wait before its next life; `None` if its budget is used up.
fn next_wait(
    policy: &Policy,
    bucket: &mut Bucket,
    attempt: &mut u32,
    now: Instant,
    began: Instant,
) -> Option<Duration> {
    if policy.backoff.is_recovered(now.saturating_duration_since(began)) {
        *attempt = 0;
    }
    bucket.try_take(now).ok()?;
    let wait = policy.backoff.delay(*attempt, fastrand::f64());
    *attempt = attempt.saturating_add(1);
    Some(wait)
}

/// The child's last end is its own: a panic goes on to whoever supervises it.
fn finish<O>(ended: Ended<O>) -> ControlFlow<O> {
    ControlFlow::Break(ended.unwrap_or_else(|panic| resume_unwind(panic)))
}

impl<K, M, F, T> Future for Kept<K, M, F, T>
where
    K: Debug,
    M: Fn(&K, Ctx) -> F,
    F: Future<Output: Completion>,
    T: Timer,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        loop {
            let this = self.as_mut().project();
            let ended = match this.stage.project() {
                StageNow::Start => match self.as_mut().begin() {
                    Ok(()) => continue,
                    Err(panic) => Err(panic),
                },
                StageNow::Life { future } => {
                    let polled = catch_unwind(AssertUnwindSafe(|| future.poll(cx)));
                    ready!(polled.map_or_else(|panic| Poll::Ready(Err(panic)), |poll| poll.map(Ok)))
                }
                StageNow::Pause { sleep, .. } => {
                    let stopped = this.ctx.poll_cancelled(cx).is_ready();
                    if !stopped {
                        ready!(sleep.poll(cx));
                    }
                    match self.as_mut().rise(stopped) {
                        ControlFlow::Continue(()) => continue,
                        ControlFlow::Break(output) => return Poll::Ready(output),
                    }
                }
            };
            if let ControlFlow::Break(output) = self.as_mut().after(ended) {
                return Poll::Ready(output);
            }
            // A life may end in its first poll: without this, a crash loop would never let others run.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
    }
}
