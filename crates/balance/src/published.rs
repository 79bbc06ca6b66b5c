//! The current snapshot, and a number that tells in one load whether it is still the one a reader has.
//!
//! Readers keep a copy of their own and compare versions: no shared write, no reclamation scheme. A reader that is
//! behind takes the lock once for each update, to clone one `Arc`.
//!
//! Invariant: the version a reader gets by [`Published::read`] never decreases, and belongs to the value it gets.

use std::mem;
use std::sync::Arc;

use crate::sync::{Apart, AtomicU64, Mutex, Ordering, lock};

#[derive(Debug)]
pub(crate) struct Published<S> {
    /// Read by every pick, written by publishing only: alone on its line.
    version: Apart<AtomicU64>,
    current: Mutex<(u64, Arc<S>)>,
}

impl<S> Published<S> {
    pub(crate) fn new(version: u64, first: Arc<S>) -> Self {
        Self { version: Apart(AtomicU64::new(version)), current: Mutex::new((version, first)) }
    }

    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.0.load(Ordering::Acquire)
    }

    pub(crate) fn read(&self) -> (u64, Arc<S>) {
        lock(&self.current).clone()
    }

    /// Replaces the value. The old one is returned, so that its end does not happen under the lock.
    pub(crate) fn publish(&self, version: u64, next: Arc<S>) -> Arc<S> {
        let mut current = lock(&self.current);
        current.0 = version;
        let old = mem::replace(&mut current.1, next);
        self.version.0.store(version, Ordering::Release);
        old
    }
}
