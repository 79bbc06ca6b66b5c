//! The number of leases of an endpoint and whether it drains, in one atomic word.
//!
//! A lease enters by adding one to the word that also holds the draining flag, and leaves by subtracting one. The last lease
//! that leaves a draining endpoint sees both in the word it changed, and wakes the drain. A lease that enters too late sees
//! the flag, and leaves again.
//!
//! Invariant: a closed endpoint has no leases, unless it was forced to close.

use std::task::{Context, Poll, Waker};

use crate::sync::{AtomicU64, Mutex, Ordering, lock};

const DRAINING: u64 = 1 << 63;
const CLOSED: u64 = 1 << 62;
const COUNT: u64 = (1 << 32) - 1;

#[derive(Debug)]
pub(crate) struct InFlightCount {
    word: AtomicU64,
    drain: Mutex<Option<Waker>>,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainOutcome {
    /// The endpoint has no leases and gets none: close it.
    Empty,
    /// The endpoint was added to the set again and is in use: do not close it.
    Revived,
}

impl InFlightCount {
    pub(crate) fn new() -> Self {
        Self { word: AtomicU64::new(0), drain: Mutex::new(None) }
    }

    /// Counts a lease. Returns false if the endpoint drains.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        let before = self.word.fetch_add(1, Ordering::AcqRel);
        if before & (DRAINING | CLOSED) == 0 {
            return true;
        }
        self.leave();
        false
    }

    #[inline]
    pub(crate) fn leave(&self) {
        let before = self.word.fetch_sub(1, Ordering::AcqRel);
        if before & DRAINING != 0 && before & COUNT == 1 {
            self.wake_drain();
        }
    }

    #[inline]
    pub(crate) fn count(&self) -> u32 {
        (self.word.load(Ordering::Relaxed) & COUNT) as u32
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.word.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Refuses new leases from now on.
    pub(crate) fn drain(&self) {
        self.word.fetch_or(DRAINING, Ordering::AcqRel);
    }

    /// Accepts leases again. Returns false if the endpoint is closed already.
    pub(crate) fn revive(&self) -> bool {
        let open = |word: u64| (word & CLOSED == 0).then_some(word & !DRAINING);
        let revived = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, open).is_ok();
        if revived {
            self.wake_drain();
        }
        revived
    }

    /// Closes a draining endpoint in spite of its leases.
    pub(crate) fn force_close(&self) -> DrainOutcome {
        let close = |word: u64| (word & DRAINING != 0).then_some(word | CLOSED);
        let closed = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, close).is_ok();
        self.wake_drain();
        if closed { DrainOutcome::Empty } else { DrainOutcome::Revived }
    }

    /// Ready when the last lease has left or the endpoint was revived. The waker of a second caller replaces the first.
    pub(crate) fn poll_drained(&self, cx: &Context<'_>) -> Poll<DrainOutcome> {
        if let Some(outcome) = self.try_close() {
            return Poll::Ready(outcome);
        }
        // Registered first and checked again: a lease that leaves in between finds the waker, or its end is seen here.
        *lock(&self.drain) = Some(cx.waker().clone());
        self.try_close().map_or(Poll::Pending, Poll::Ready)
    }

    fn try_close(&self) -> Option<DrainOutcome> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & CLOSED != 0 {
                return Some(DrainOutcome::Empty);
            }
            if word & DRAINING == 0 {
                return Some(DrainOutcome::Revived);
            }
            if word & COUNT != 0 {
                return None;
            }
            match self.word.compare_exchange(word, word | CLOSED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(DrainOutcome::Empty),
                Err(now) => word = now,
            }
        }
    }

    fn wake_drain(&self) {
        let waker = lock(&self.drain).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
