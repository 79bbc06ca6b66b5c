//! Synchronisation primitives: `std`'s, or loom's, which explores their interleavings.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

use std::sync::PoisonError;

/// Locks, and ignores poison.
///
/// Foreign code (a policy, a destructor) never runs while a lock is held, or its panic is caught, so a poisoned lock
/// guards consistent data.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A value on cache lines of its own: two lines, because processors prefetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CacheAligned<T>(pub(crate) T);
