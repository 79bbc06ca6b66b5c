//! The current snapshot with a version: a reader checks with one load that its copy is current.
//!
//! Each reader keeps a copy and compares versions, without a write to shared memory and without a reclamation scheme. After
//! an update, each reader takes the lock once, to clone an `Arc`.
//!
//! Invariant: the versions that a reader gets from [`Published::read`] never decrease, and each belongs to the value returned
//! with it.

use std::mem;
use std::sync::Arc;

use crate::sync::{AtomicU64, CacheAligned, Mutex, Ordering, lock};

#[derive(Debug)]
pub(crate) struct Published<S> {
    /// Read by every pick, and written only by a publication: alone on its cache line.
    version: CacheAligned<AtomicU64>,
    current: Mutex<(u64, Arc<S>)>,
}

impl<S> Published<S> {
    pub(crate) fn new(version: u64, first: Arc<S>) -> Self {
        Self { version: CacheAligned(AtomicU64::new(version)), current: Mutex::new((version, first)) }
    }

    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.0.load(Ordering::Acquire)
    }

    pub(crate) fn read(&self) -> (u64, Arc<S>) {
        lock(&self.current).clone()
    }

    /// Replaces the value. Returns the previous one, so that it is not dropped under the lock.
    pub(crate) fn publish(&self, version: u64, next: Arc<S>) -> Arc<S> {
        let mut current = lock(&self.current);
        current.0 = version;
        let previous = mem::replace(&mut current.1, next);
        self.version.0.store(version, Ordering::Release);
        previous
    }
}
