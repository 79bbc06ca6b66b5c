//! The few primitives whose interleavings loom explores; the standard library's otherwise.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use std::sync::PoisonError;

/// Locks, whatever happened to an earlier holder.
///
/// No section of this crate runs foreign code that could leave the data half changed, so poison carries no news.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stands between "publish" and "look" where two sides must not miss each other. Loom knows a total order of fences
/// only; elsewhere the `SeqCst` operations around it have one.
#[inline]
pub(crate) fn total_order() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}
