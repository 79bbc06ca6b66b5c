//! Synchronisation primitives: loom's under `cfg(loom)`, the standard library's otherwise.

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
#[cfg(not(loom))]
use std::{
    cell::Cell,
    hint,
    sync::TryLockError,
    time::{Duration, Instant},
};

/// Locks a mutex and ignores poisoning.
///
/// No critical section of this crate runs foreign code that could leave the data inconsistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A fence between "publish" and "check" where two sides must not miss each other. Loom models the total order of fences
/// only; otherwise the `SeqCst` operations around it provide the order.
#[inline]
pub(crate) fn seq_cst_fence() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Locks a mutex that many threads hold for some tens of nanoseconds at a time.
///
/// Moving such a lock between cores (its cache line and those of its data) costs more than the critical section. Two
/// threads that alternate record by record are slower than one alone; so a thread that finds the lock taken twice within
/// a short time backs off for the duration of many appends.
#[inline]
pub(crate) fn lock_contended<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(loom)]
    return lock(mutex);
    #[cfg(not(loom))]
    try_lock(mutex).unwrap_or_else(|| back_off(mutex))
}

#[cfg(not(loom))]
#[inline]
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Two contended locks within this time mean that many threads compete.
#[cfg(not(loom))]
const CONTENDED_WITHIN: Duration = Duration::from_micros(20);
/// Spin iterations, some tens of nanoseconds each, before the first retry. They double under contention, at most this
/// often.
#[cfg(not(loom))]
const SPINS: u32 = 8;
#[cfg(not(loom))]
const DOUBLINGS_MAX: u32 = 6;
/// After this many retries the holder may have been descheduled, and blocking is better.
#[cfg(not(loom))]
const LOCK_TRIES: usize = 4;

#[cfg(not(loom))]
#[cold]
fn back_off<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    thread_local! {
        static LAST: Cell<Option<(Instant, u32)>> = const { Cell::new(None) };
    }
    let now = Instant::now();
    let doublings = match LAST.get() {
        Some((last, doublings)) if now.duration_since(last) < CONTENDED_WITHIN => (doublings + 1).min(DOUBLINGS_MAX),
        _ => 0,
    };
    let guard = (0..LOCK_TRIES).find_map(|_| {
        (0..SPINS << doublings).for_each(|_| hint::spin_loop());
        try_lock(mutex)
    });
    let guard = guard.unwrap_or_else(|| lock(mutex));
    LAST.set(Some((Instant::now(), doublings)));
    guard
}
