//! What a sink works with, of which it has so many at most: connections, processes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_lanes::RecordFailure;
use tokio::sync::{Semaphore, SemaphorePermit};

pub(super) struct Hands<T> {
    pub(super) max: usize,
    permits: Semaphore,
    /// Those that wait for work. Locked for a push or a pop.
    idle: Mutex<Vec<T>>,
}

impl<T> Hands<T> {
    pub(super) fn new(max: usize) -> Self {
        Self { max, permits: Semaphore::new(max), idle: Mutex::default() }
    }

    /// Waits until there is one to spare: the permit to use one, and one that waits for work, if one does that still lives.
    ///
    /// # Cancel safety
    /// Dropped, it takes none.
    pub(super) async fn take(
        &self,
        mut lives: impl FnMut(&mut T) -> bool,
    ) -> Result<(SemaphorePermit<'_>, Option<T>), RecordFailure> {
        let permit = self.permits.acquire().await.map_err(|_| RecordFailure::new("the stream ends"))?;
        let mut idle = self.idle();
        let found = std::iter::from_fn(|| idle.pop()).find_map(|mut hand| lives(&mut hand).then_some(hand));
        Ok((permit, found))
    }

    pub(super) fn put_back(&self, hand: T) {
        self.idle().push(hand);
    }

    /// Those that wait for work.
    pub(super) fn take_all(&self) -> Vec<T> {
        std::mem::take(&mut *self.idle())
    }

    fn idle(&self) -> MutexGuard<'_, Vec<T>> {
        // A holder that panicked left a sound list.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
