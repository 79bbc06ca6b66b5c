//! The atomics of the cross-core protocol: `std`'s, or loom's, which explores their interleavings.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Orders a `SeqCst` store before the `SeqCst` loads that follow it. Under loom only: loom treats `SeqCst` operations as
/// acquire and release, and has a total order of fences only.
#[inline]
pub(crate) fn total_order() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}
