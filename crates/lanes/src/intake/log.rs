//! What the intake writes to the log; nothing at all without the feature `tracing`.

use crate::shard::Alarm;
use crate::source::Mark;

#[cfg(feature = "tracing")]
pub(super) fn alarm(subscription: &str, lane: &str, alarm: &Alarm, is_news: bool) {
    use crate::shard::AlarmKind;
    let Alarm { kind, position, key, failure, .. } = alarm;
    let key = key.as_deref().map(String::from_utf8_lossy).map(tracing::field::display);
    let (is_grave, then) = match kind {
        AlarmKind::Stop => (true, "the subscription stops"),
        AlarmKind::Halt => (true, "its lane is halted"),
        AlarmKind::Parked => (false, "its key is parked"),
        AlarmKind::Skipped => (false, "it is skipped"),
        AlarmKind::NotBuried => (false, "the dead-letter did not take it and will be asked again"),
    };
    if !is_news {
        tracing::debug!(subscription, lane, %position, key, %failure, then, "another record cannot be done");
    } else if is_grave {
        tracing::error!(subscription, lane, %position, key, %failure, then, "a record cannot be done");
    } else {
        tracing::warn!(subscription, lane, %position, key, %failure, then, "a record cannot be done");
    }
}

#[cfg(feature = "tracing")]
pub(super) fn failed_commit(subscription: &str, lane: &str, mark: Mark, reason: &str) {
    tracing::warn!(subscription, lane, through = %mark.through, reason, "a commit failed and will be repeated");
}

#[cfg(not(feature = "tracing"))]
pub(super) fn alarm(_: &str, _: &str, _: &Alarm, _: bool) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn failed_commit(_: &str, _: &str, _: Mark, _: &str) {}
