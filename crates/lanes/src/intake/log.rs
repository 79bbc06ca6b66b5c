//! Log messages of the intake; no-ops without the feature `tracing`.

use std::time::Duration;

use crate::messages::{FailureAction, FailureEvent};
use crate::monotonic_time::MonotonicTime;
use crate::record::Epoch;
use crate::source::LaneCommit;

/// Messages of a kind that are logged per window.
const LOGGED_MAX: u32 = 10;
/// After the window, the number of suppressed messages is logged.
const WINDOW: Duration = Duration::from_secs(10);

/// Limits log messages of a kind that may occur thousands of times.
#[derive(Debug, Default)]
pub(super) struct LogLimiter {
    until: Option<MonotonicTime>,
    logged: u32,
    suppressed: u64,
}

impl LogLimiter {
    /// Whether one more message may be logged.
    pub(super) fn allow(&mut self, now: MonotonicTime) -> bool {
        self.until.get_or_insert(now.after(WINDOW));
        if self.logged < LOGGED_MAX {
            self.logged += 1;
            return true;
        }
        self.suppressed += 1;
        false
    }

    /// When [`take_suppressed`](Self::take_suppressed) has a result.
    pub(super) fn due(&self) -> Option<MonotonicTime> {
        self.until.filter(|_| self.suppressed > 0)
    }

    /// The number of suppressed messages, once the window or the subscription has ended.
    pub(super) fn take_suppressed(&mut self, now: MonotonicTime, is_end: bool) -> Option<u64> {
        if self.until.is_none_or(|until| now < until && !is_end) {
            return None;
        }
        Some(std::mem::take(self).suppressed).filter(|suppressed| *suppressed > 0)
    }
}

/// Characters of a key in a log message.
#[cfg(any(feature = "tracing", test))]
const KEY_CHARS_MAX: usize = 100;

/// The key, or its beginning and its length.
#[cfg(any(feature = "tracing", test))]
fn shortened(key: &[u8]) -> String {
    let text = String::from_utf8_lossy(&key[..key.len().min(4 * KEY_CHARS_MAX + 4)]);
    match text.char_indices().nth(KEY_CHARS_MAX) {
        None => text.into_owned(),
        Some((end, _)) => format!("{}... ({} bytes)", &text[..end], key.len()),
    }
}

#[cfg(feature = "tracing")]
fn consequence(kind: FailureAction) -> &'static str {
    match kind {
        FailureAction::Stop => "the stream stops",
        FailureAction::HaltLane => "lane halted",
        FailureAction::ParkKey => "key parked",
        FailureAction::Skip => "record skipped",
        FailureAction::RetryDeadLetter => "dead-letter queue refused the record and will be retried",
        FailureAction::ParkDeadLetter => "dead-letter queue refused the record for good, key parked",
    }
}

#[cfg(feature = "tracing")]
pub(super) fn failure(stream: &str, lane: &str, failure: &FailureEvent, is_logged: bool) {
    let FailureEvent { kind, position, key, failure, .. } = failure;
    let key = key.as_deref().map(shortened).map(tracing::field::display);
    let is_error = matches!(kind, FailureAction::Stop | FailureAction::HaltLane);
    let consequence = consequence(*kind);
    if !is_logged {
        tracing::debug!(stream, lane, %position, key, %failure, consequence, "record failed");
    } else if is_error {
        tracing::error!(stream, lane, %position, key, %failure, consequence, "record failed");
    } else {
        tracing::warn!(stream, lane, %position, key, %failure, consequence, "record failed");
    }
}

/// Logs the number of suppressed messages.
#[cfg(feature = "tracing")]
pub(super) fn suppressed(stream: &str, records: u64, kind: FailureAction) {
    let consequence = consequence(kind);
    tracing::warn!(stream, records, consequence, "more records failed (each is logged at level DEBUG)");
}

/// Logs an error of the source: the records of the assignment are dropped.
#[cfg(feature = "tracing")]
pub(super) fn assignment_ignored(stream: &str, lane: &str, epoch: Epoch) {
    let epoch = epoch.0;
    tracing::error!(
        stream,
        lane,
        epoch,
        "assignment ignored: the source has assigned the lane with this epoch or a later one"
    );
}

#[cfg(feature = "tracing")]
pub(super) fn commit_failed(stream: &str, lane: &str, commit: LaneCommit, reason: &str) {
    tracing::warn!(stream, lane, through = %commit.through, reason, "commit failed and will be retried");
}

#[cfg(not(feature = "tracing"))]
pub(super) fn failure(_: &str, _: &str, _: &FailureEvent, _: bool) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn suppressed(_: &str, _: u64, _: FailureAction) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn assignment_ignored(_: &str, _: &str, _: Epoch) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn commit_failed(_: &str, _: &str, _: LaneCommit, _: &str) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_key_is_shortened() {
        assert_eq!(shortened("ähm".as_bytes()), "ähm");
        let long = shortened("ä".repeat(250_000).as_bytes());
        assert_eq!(long, format!("{}... (500000 bytes)", "ä".repeat(100)));
    }

    #[test]
    fn repeated_failures_are_logged_as_a_few_and_a_count() {
        let (mut limiter, begin) = (LogLimiter::default(), MonotonicTime(7));
        let logged = (0..1_000).filter(|_| limiter.allow(begin)).count();
        assert_eq!(logged, LOGGED_MAX as usize);
        assert_eq!((limiter.take_suppressed(begin, false), limiter.due()), (None, Some(begin.after(WINDOW))));
        assert_eq!(limiter.take_suppressed(begin.after(WINDOW), false), Some(990));
        // A new window starts. Nothing suppressed means no message; the rest is reported at the end.
        assert_eq!((limiter.take_suppressed(begin.after(WINDOW), true), limiter.due()), (None, None));
        assert_eq!((0..12).filter(|_| limiter.allow(begin)).count(), 10);
        assert_eq!(limiter.take_suppressed(begin, true), Some(2));
    }
}
