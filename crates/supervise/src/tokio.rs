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

use crate::child::Ctx;
use crate::deadline::DeadlineThread;
use crate::runtime::{Spawn, Timer};
use crate::scope::Key;
use crate::stop::Sweep;
use crate::supervisor::Supervisor;
use crate::{ChildOutput, Exit, Refused};

/// A tokio runtime that runs children, sweeps and timers.
///
/// Sweeps run as tasks on the workers, one per worker: a wake from outside would take the lock of the runtime's shared queue
/// for every child. Any thread may stop a scope, including threads outside the runtime.
#[derive(Clone, Debug)]
pub struct Tokio(Handle);

impl Tokio {
    /// The runtime of the calling task or thread.
    ///
    /// # Panics
    /// If called outside a tokio runtime.
    pub fn current() -> Self {
        Self(Handle::current())
    }

    /// The runtime of `handle`.
    pub fn new(handle: Handle) -> Self {
        Self(handle)
    }
}

pin_project! {
    /// A sleep on the timer of a tokio runtime. Resolves early if the runtime shuts down, because nothing is left to wait
    /// for.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct TokioSleep {
        #[pin]
        sleep: Sleep,
        // Fires the deadline even if all workers are blocked; started at the first poll.
        deadline_thread: Option<DeadlineThread>,
        deadline: Option<Duration>,
    }
}

impl Future for TokioSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        // The timer panics when its runtime has shut down; tokio has no other way to detect this.
        if catch_unwind(AssertUnwindSafe(|| this.sleep.poll(cx))).map_or(true, |polled| polled.is_ready()) {
            return Poll::Ready(());
        }
        if let Some(deadline) = this.deadline.take() {
            *this.deadline_thread = DeadlineThread::start(deadline);
        }
        this.deadline_thread.as_ref().map_or(Poll::Pending, |deadline_thread| deadline_thread.poll(cx))
    }
}

impl Timer for Tokio {
    type Sleep = TokioSleep;

    fn sleep(&self, duration: Duration) -> TokioSleep {
        let _inside = self.0.enter();
        TokioSleep { sleep: tokio::time::sleep(duration), deadline_thread: None, deadline: None }
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
    /// Starts a child that is a blocking function, on a blocking thread of the runtime. `key` identifies the child from now,
    /// including the wait for a thread, until the function has returned.
    ///
    /// An abort ends the child only while it waits for a thread. A running function can end only by itself; if it does not
    /// return, a stop reports the child as stuck.
    ///
    /// # Errors
    /// [`Refused`] if the scope accepts no more children, or has a live child with this key.
    #[track_caller]
    pub fn spawn_blocking_as<T>(
        &self,
        key: K,
        work: impl FnOnce(Ctx) -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T, Exit>>, Refused>
    where
        T: ChildOutput + Send + 'static,
    {
        let child = self.scope().wrap_as(key, |ctx| async move { work(ctx) })?;
        Ok(self.runtime().0.spawn_blocking(move || {
            let child = std::pin::pin!(child);
            match child.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(ended) => ended,
                // Unreachable: the future has no await.
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
