//! A child that restarts when it ends.
//!
//! A restarting child keeps one slot and one key through all its runs. Its own budget and its scope's budget both limit the
//! restarts. Every run that is followed by another counts as an exit and a start; the last run is the child's own exit.

use std::any::Any;
use std::fmt::{self, Debug};
use std::future::Future;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use pin_project_lite::pin_project;
use tidegate_backoff::RetryState;

use crate::child::{Ctx, message};
use crate::restart::RestartPolicy;
use crate::runtime::Timer;
use crate::{ChildOutput, Exit};

/// A class of children: factory and restart policy. Clones share the factory.
pub struct ChildClass<M>(Arc<(RestartPolicy, M)>);

impl<M> ChildClass<M> {
    /// Creates a class whose children `make` creates from their key.
    pub fn new(policy: RestartPolicy, make: M) -> Self {
        Self(Arc::new((policy, make)))
    }
}

impl<M> Clone for ChildClass<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M> Debug for ChildClass<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildClass").field("policy", &self.0.0).finish_non_exhaustive()
    }
}

pin_project! {
    /// All runs of one restarting child, one after another.
    pub struct RestartLoop<K, M, F, T>
    where
        T: Timer,
        F: Future,
    {
        key: K,
        class: ChildClass<M>,
        ctx: Ctx,
        timer: T,
        retries: RetryState,
        began: Instant,
        #[pin]
        stage: Stage<F, T::Sleep, F::Output>,
    }
}

pin_project! {
    #[project = StageProject]
    #[project_replace = StageReplaced]
    enum Stage<F, S, O> {
        Start,
        Run { #[pin] future: F },
        Pause { #[pin] sleep: S, ended: RunOutcome<O> },
    }
}

type Payload = Box<dyn Any + Send>;
type RunOutcome<O> = Result<O, Payload>;

fn exit_of<O: ChildOutput>(ended: &RunOutcome<O>) -> Exit {
    match ended {
        Ok(output) if output.is_failure() => Exit::Failed,
        Ok(_) => Exit::Returned,
        Err(_) => Exit::Panicked,
    }
}

impl<K, M, F: Future, T: Timer> RestartLoop<K, M, F, T> {
    pub(crate) fn new(key: K, class: ChildClass<M>, ctx: Ctx, timer: T) -> Self {
        let retries = class.0.0.retry.start();
        let began = timer.now();
        Self { key, class, ctx, timer, retries, began, stage: Stage::Start }
    }
}

impl<K, M, F, T> RestartLoop<K, M, F, T>
where
    K: Debug,
    M: Fn(&K, Ctx) -> F,
    F: Future<Output: ChildOutput>,
    T: Timer,
{
    fn start_run(self: Pin<&mut Self>) -> Result<(), Payload> {
        let mut this = self.project();
        *this.began = this.timer.now();
        let make = &this.class.0.1;
        let future = catch_unwind(AssertUnwindSafe(|| make(this.key, this.ctx.clone())))?;
        this.stage.set(Stage::Run { future });
        Ok(())
    }

    /// Handles the end of a run: the child pauses before the next run, or ends for good.
    fn end_run(self: Pin<&mut Self>, ended: RunOutcome<F::Output>) -> ControlFlow<F::Output> {
        let mut this = self.project();
        let dropped = catch_unwind(AssertUnwindSafe(|| this.stage.set(Stage::Start)));
        let ended = ended.and_then(|output| dropped.map(|()| output));
        let exit = exit_of(&ended);
        if this.ctx.is_stopping() || !this.class.0.0.restart.applies_to(exit) {
            return finish(ended);
        }
        let (retry, now) = (&this.class.0.0.retry, this.timer.now());
        let ran = now.saturating_duration_since(*this.began);
        let Some(wait) = this
            .retries
            .next_delay(retry, now, ran, fastrand::f64())
            .and_then(|wait| Some(wait.max(this.ctx.hub().restart_turn(now)?)))
        else {
            this.ctx.hub().observe(|observer, scope| observer.gave_up(scope, this.key, exit));
            return finish(ended);
        };
        let panic = ended.as_ref().err().and_then(|payload| message(payload.as_ref()));
        this.ctx.hub().observe(|observer, scope| observer.restarting(scope, this.key, exit, panic, wait));
        this.stage.set(Stage::Pause { sleep: this.timer.sleep(wait), ended });
        ControlFlow::Continue(())
    }

    /// Handles the end of the pause: the next run begins, unless the child was stopped meanwhile.
    fn resume(self: Pin<&mut Self>, stopped: bool) -> ControlFlow<F::Output> {
        let mut this = self.project();
        let StageReplaced::Pause { ended, .. } = this.stage.as_mut().project_replace(Stage::Start) else {
            unreachable!("`resume` is called in a pause only");
        };
        if stopped {
            return finish(ended);
        }
        this.ctx.record_restart(exit_of(&ended));
        ControlFlow::Continue(())
    }
}

/// The last exit is the child's own: a panic is passed on to the supervising wrapper.
fn finish<O>(ended: RunOutcome<O>) -> ControlFlow<O> {
    ControlFlow::Break(ended.unwrap_or_else(|panic| resume_unwind(panic)))
}

impl<K, M, F, T> Future for RestartLoop<K, M, F, T>
where
    K: Debug,
    M: Fn(&K, Ctx) -> F,
    F: Future<Output: ChildOutput>,
    T: Timer,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        loop {
            let this = self.as_mut().project();
            let ended = match this.stage.project() {
                StageProject::Start => match self.as_mut().start_run() {
                    Ok(()) => continue,
                    Err(panic) => Err(panic),
                },
                StageProject::Run { future } => {
                    let polled = catch_unwind(AssertUnwindSafe(|| future.poll(cx)));
                    ready!(polled.map_or_else(|panic| Poll::Ready(Err(panic)), |poll| poll.map(Ok)))
                }
                StageProject::Pause { sleep, .. } => {
                    let stopped = this.ctx.poll_cancelled(cx).is_ready();
                    if !stopped {
                        ready!(sleep.poll(cx));
                    }
                    match self.as_mut().resume(stopped) {
                        ControlFlow::Continue(()) => continue,
                        ControlFlow::Break(output) => return Poll::Ready(output),
                    }
                }
            };
            if let ControlFlow::Break(output) = self.as_mut().end_run(ended) {
                return Poll::Ready(output);
            }
            // A run may end in its first poll: without this yield, a crash loop would starve other tasks.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
    }
}
