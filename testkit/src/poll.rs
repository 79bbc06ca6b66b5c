//! Waits for conditions without a notification.

use std::thread;
use std::time::{Duration, Instant};

use crate::TIMEOUT;

const POLL: Duration = Duration::from_millis(10);

/// Polls a condition until it holds or the timeout expires; returns whether it holds.
///
/// Use this instead of a sleep for every wait without a notification.
pub fn poll(timeout: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + timeout;
    while !holds() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(POLL);
    }
    true
}

/// Polls a condition until it holds; the test fails at the deadline.
#[track_caller]
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    assert!(poll(TIMEOUT, holds), "not in time: {what}");
}
