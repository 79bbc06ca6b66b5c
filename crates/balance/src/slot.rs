//! How many hold an endpoint, and whether more may come: one word, so that the last one out is never missed.
//!
//! A holder enters by adding one to the word that also says "draining", and leaves by subtracting one. Whoever leaves
//! a draining slot last learns it from the word it changed, and wakes the drain. A holder that enters too late learns
//! it the same way, and leaves again.
//!
//! Invariant: once closed, a slot that was not forced is empty, and stays so.

use std::task::{Context, Poll, Waker};

use crate::sync::{AtomicU64, Mutex, Ordering, lock};

const DRAINING: u64 = 1 << 63;
const CLOSED: u64 = 1 << 62;
const COUNT: u64 = (1 << 32) - 1;

#[derive(Debug)]
pub(crate) struct Slot {
    word: AtomicU64,
    drain: Mutex<Option<Waker>>,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Nobody holds the endpoint, and nobody will: close it.
    Empty,
    /// The endpoint was added again meanwhile, and is in use: leave it alone.
    Revived,
}

impl Slot {
    pub(crate) fn new() -> Self {
        Self { word: AtomicU64::new(0), drain: Mutex::new(None) }
    }

    /// False: it is draining, choose another.
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
            self.wake();
        }
    }

    #[inline]
    pub(crate) fn holders(&self) -> u32 {
        (self.word.load(Ordering::Relaxed) & COUNT) as u32
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.word.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Let nobody in any more.
    pub(crate) fn drain(&self) {
        self.word.fetch_or(DRAINING, Ordering::AcqRel);
    }

    /// Let them in again; false: too late, it is closed.
    pub(crate) fn revive(&self) -> bool {
        let open = |word: u64| (word & CLOSED == 0).then_some(word & !DRAINING);
        let revived = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, open).is_ok();
        if revived {
            self.wake();
        }
        revived
    }

    /// Closed whoever holds it, if it drains still.
    pub(crate) fn force(&self) -> Drained {
        let close = |word: u64| (word & DRAINING != 0).then_some(word | CLOSED);
        let closed = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, close).is_ok();
        self.wake();
        if closed { Drained::Empty } else { Drained::Revived }
    }

    /// Ready once it was closed empty, or revived. One drain waits at a time; a second takes its place.
    pub(crate) fn poll_drained(&self, cx: &Context<'_>) -> Poll<Drained> {
        if let Some(end) = self.try_close() {
            return Poll::Ready(end);
        }
        // Register first, look again after: who leaves in between finds the waker or is seen.
        *lock(&self.drain) = Some(cx.waker().clone());
        self.try_close().map_or(Poll::Pending, Poll::Ready)
    }

    fn try_close(&self) -> Option<Drained> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & CLOSED != 0 {
                return Some(Drained::Empty);
            }
            if word & DRAINING == 0 {
                return Some(Drained::Revived);
            }
            if word & COUNT != 0 {
                return None;
            }
            match self.word.compare_exchange(word, word | CLOSED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(Drained::Empty),
                Err(now) => word = now,
            }
        }
    }

    fn wake(&self) {
        let waker = lock(&self.drain).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
