//! Locking of mutexes without poisoning.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ignores poisoning: every critical section replaces whole values, so the data is consistent after a panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
