//! Children as tokio tasks, and sweeps on tokio's workers.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Sleep;

use crate::runtime::{Spawn, Timer};
use crate::stop::Sweep;

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

impl Timer for Tokio {
    type Sleep = Sleep;

    fn sleep(&self, duration: Duration) -> Sleep {
        let _inside = self.0.enter();
        tokio::time::sleep(duration)
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

impl<F> Spawn<F> for Tokio
where
    F: Future<Output: Send> + Send + 'static,
{
    type Handle = JoinHandle<F::Output>;

    fn spawn(&self, future: F) -> Self::Handle {
        self.0.spawn(future)
    }
}
