//! The atomics of the cross-core protocol: those of `std`, or those of loom, which tries all their interleavings.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Stands between a `SeqCst` store and the `SeqCst` loads after it. Loom treats such operations as acquire and release
/// and knows a total order of fences only, so under loom a fence makes up for it; otherwise this is nothing.
#[inline]
pub(crate) fn total_order() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}
