//! The bound on the bytes of all segments of a journal.

use std::io;

use crate::sync::{AtomicU64, Ordering};

/// Counts the bytes of all segments. Writers reserve before they write, and maintenance releases removed segments.
pub(crate) struct DiskBound {
    bytes_max: Option<u64>,
    used: AtomicU64,
}

impl DiskBound {
    /// `used` is the size of the segments that exist.
    pub(crate) fn new(bytes_max: Option<u64>, used: u64) -> Self {
        Self { bytes_max, used: AtomicU64::new(used) }
    }

    /// Reserves bytes. Fails like a write on a full disk.
    pub(crate) fn reserve(&self, bytes: usize) -> io::Result<()> {
        let used = self.used.fetch_add(bytes as u64, Ordering::SeqCst);
        let Some(max) = self.bytes_max.filter(|max| used + bytes as u64 > *max) else { return Ok(()) };
        self.release(bytes as u64);
        let reason = format!("the segments hold {used} bytes of at most {max}: release records to make room");
        Err(io::Error::new(io::ErrorKind::StorageFull, reason))
    }

    /// Counts bytes that the bound does not refuse: headers and summaries.
    pub(crate) fn add(&self, bytes: usize) {
        self.used.fetch_add(bytes as u64, Ordering::SeqCst);
    }

    /// Counts removed bytes. A file may have been longer than its counted frames.
    pub(crate) fn release(&self, bytes: u64) {
        let less = |used: u64| Some(used.saturating_sub(bytes));
        let _ = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn full_bound_refuses_until_bytes_are_released() {
        let bound = DiskBound::new(Some(100), 40);
        assert!(bound.reserve(60).is_ok());
        assert_eq!(bound.reserve(1).map_err(|error| error.kind()), Err(io::ErrorKind::StorageFull));
        bound.add(10);
        bound.release(20);
        assert!(bound.reserve(11).is_err() && bound.reserve(10).is_ok());
        bound.release(1_000);
        assert!(bound.reserve(100).is_ok(), "released more than was counted");
        assert!(DiskBound::new(None, 0).reserve(usize::MAX / 2).is_ok());
    }
}
