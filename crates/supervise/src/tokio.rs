//! Children as tokio tasks, and sweeps on tokio's workers.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Sleep;

use crate::bell::Bell;
use crate::child::Ctx;
use crate::runtime::{Spawn, Timer};
use crate::scope::Key;
use crate::stop::Sweep;
use crate::supervisor::Supervisor;
use crate::{Completion, Exit, Refused};

/// A tokio runtime that runs children, sweeps and timers.
///
/// Sweeps run as tasks on the workers, one for each: a wake from outside would take the lock of the runtime's shared
/// queue for every child. Scopes may be stopped from any thread, also one outside the runtime.
#[derive(Clone, Debug)]
pub struct Tokio(Handle);

impl Tokio {
    /// The runtime of the calling task or thread.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn current() -> Self {
        Self(Handle::current())
    }

    /// The runtime of `handle`.
    pub fn new(handle: Handle) -> Self {
        Self(handle)
    }
}

pin_project! {
    /// A sleep by the clock of a tokio runtime. It is over when its runtime is: there is nothing left to wait for.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct TokioSleep {
        #[pin]
        sleep: Sleep,
        // A deadline rings though all workers are blocked; hung when it is first waited for.
        bell: Option<Bell>,
        deadline: Option<Duration>,
    }
}

impl Future for TokioSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        // Of a runtime that has gone it panics, and there is no other way to ask.
        if catch_unwind(AssertUnwindSafe(|| this.sleep.poll(cx))).map_or(true, |polled| polled.is_ready()) {
            return Poll::Ready(());
        }
        if let Some(deadline) = this.deadline.take() {
            *this.bell = Bell::hang(deadline);
        }
        this.bell.as_ref().map_or(Poll::Pending, |bell| bell.poll(cx))
    }
}

impl Timer for Tokio {
    type Sleep = TokioSleep;

    fn sleep(&self, duration: Duration) -> TokioSleep {
        let _inside = self.0.enter();
        TokioSleep { sleep: tokio::time::sleep(duration), bell: None, deadline: None }
    }

    fn deadline(&self, duration: Duration) -> TokioSleep {
        TokioSleep { deadline: Some(duration), ..self.sleep(duration) }
    }

    fn now(&self) -> Instant {
        let _inside = self.0.enter();
        tokio::time::Instant::now().into_std()
    }

    fn lend(&self, sweep: Sweep) -> Option<Sweep> {
        drop(self.0.spawn(sweep));
        None
    }

    fn workers(&self) -> usize {
        self.0.metrics().num_workers()
    }
}

impl<K: Key> Supervisor<Tokio, K> {
    /// Starts a child that is a function which may block, on a thread of the runtime's for such work. It is known as `key`
    /// from now, while it waits for a thread, until it has returned.
    ///
    /// An abort ends it while it waits. Once it runs, nothing but itself can end it; one that does not return is what a
    /// stop reports as stuck.
    ///
    /// # Errors
    /// [`Refused`] if the scope takes no more children, or has one of this key.
    #[track_caller]
    pub fn spawn_blocking_as<T>(
        &self,
        key: K,
        work: impl FnOnce(Ctx) -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T, Exit>>, Refused>
    where
        T: Completion + Send + 'static,
    {
        let child = self.scope().wrap_as(key, |ctx| async move { work(ctx) })?;
        Ok(self.runtime().0.spawn_blocking(move || {
            let child = std::pin::pin!(child);
            match child.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(ended) => ended,
                // It awaits nothing.
                Poll::Pending => Err(Exit::Dropped),
            }
        }))
    }
}

impl<F> Spawn<F> for Tokio
where
    F: Future<Output: Send> + Send + 'static,
{
    type Handle = JoinHandle<F::Output>;

    fn spawn(&self, future: F) -> Self::Handle {
        self.0.spawn(future)
    }
}
