//! A bounded pool of connections or processes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_lanes::RecordFailure;
use tokio::sync::{Semaphore, SemaphorePermit};

pub(super) struct SinkWorkerPool<T> {
    permits: Semaphore,
    /// Idle workers. Locked for a push or a pop.
    idle: Mutex<Vec<T>>,
}

impl<T> SinkWorkerPool<T> {
    pub(super) fn new(max: usize) -> Self {
        Self { permits: Semaphore::new(max), idle: Mutex::default() }
    }

    /// Waits for a permit. Returns it with an idle worker that is still alive, if there is one.
    ///
    /// # Cancel safety
    /// Safe: dropping the future takes nothing.
    pub(super) async fn acquire(
        &self,
        mut is_alive: impl FnMut(&mut T) -> bool,
    ) -> Result<(SemaphorePermit<'_>, Option<T>), RecordFailure> {
        let permit = self.permits.acquire().await.map_err(|_| RecordFailure::new("the stream is stopping"))?;
        let mut idle = self.idle();
        let found = std::iter::from_fn(|| idle.pop()).find_map(|mut worker| is_alive(&mut worker).then_some(worker));
        Ok((permit, found))
    }

    pub(super) fn put_back(&self, worker: T) {
        self.idle().push(worker);
    }

    /// Takes all idle workers.
    pub(super) fn take_all(&self) -> Vec<T> {
        std::mem::take(&mut *self.idle())
    }

    fn idle(&self) -> MutexGuard<'_, Vec<T>> {
        // A holder that panicked left a consistent list.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
