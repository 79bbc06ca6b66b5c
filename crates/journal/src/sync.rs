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
#[cfg(not(loom))]
use std::{
    cell::Cell,
    hint,
    sync::TryLockError,
    time::{Duration, Instant},
};

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

/// Locks what is held for some tens of nanoseconds at a time, and by many.
///
/// What it costs to hand such a lock from core to core (its line, and those of what it guards) is more than what is done
/// under it. Two threads that take it in turn, record by record, are slower than one alone; so whoever finds it taken, and
/// found it taken a moment ago, steps aside for as long as many records take.
#[inline]
pub(crate) fn lock_crowded<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(loom)]
    return lock(mutex);
    #[cfg(not(loom))]
    try_lock(mutex).unwrap_or_else(|| step_aside(mutex))
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

/// Who finds a lock taken so soon after it did so before is in a crowd.
#[cfg(not(loom))]
const CROWDED: Duration = Duration::from_micros(20);
/// Pauses of the processor, some tens of nanoseconds each, before the first look. They double in a crowd, so often at most.
#[cfg(not(loom))]
const PAUSES: u32 = 8;
#[cfg(not(loom))]
const DOUBLED_MAX: u32 = 6;
/// After so many looks the holder may have lost its core, and sleeping is better.
#[cfg(not(loom))]
const LOOKS: usize = 4;

#[cfg(not(loom))]
#[cold]
fn step_aside<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    thread_local! {
        static LAST: Cell<Option<(Instant, u32)>> = const { Cell::new(None) };
    }
    let now = Instant::now();
    let doubled = match LAST.get() {
        Some((last, doubled)) if now.duration_since(last) < CROWDED => (doubled + 1).min(DOUBLED_MAX),
        _ => 0,
    };
    let guard = (0..LOOKS).find_map(|_| {
        (0..PAUSES << doubled).for_each(|_| hint::spin_loop());
        try_lock(mutex)
    });
    let guard = guard.unwrap_or_else(|| lock(mutex));
    LAST.set(Some((Instant::now(), doubled)));
    guard
}
