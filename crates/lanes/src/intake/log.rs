//! What the intake writes to the log; nothing at all without the feature `tracing`.

use std::time::Duration;

use crate::moment::Moment;
use crate::shard::Alarm;
#[cfg(feature = "tracing")]
use crate::shard::AlarmKind;
use crate::source::Mark;

/// Of records of which nobody has to know each, so many are told of within...
const TOLD_MAX: u32 = 10;
/// ... this time. How many more there were is told when it is over.
const WINDOW: Duration = Duration::from_secs(10);

/// What was told lately of records that come by the thousand where everything fails.
#[derive(Debug, Default)]
pub(super) struct Lately {
    until: Option<Moment>,
    told: u32,
    untold: u64,
}

impl Lately {
    /// Whether one more is told of by itself.
    pub(super) fn tells(&mut self, now: Moment) -> bool {
        self.until.get_or_insert(now.after(WINDOW));
        if self.told < TOLD_MAX {
            self.told += 1;
            return true;
        }
        self.untold += 1;
        false
    }

    /// When [`over`](Self::over) has something to say.
    pub(super) fn due(&self) -> Option<Moment> {
        self.until.filter(|_| self.untold > 0)
    }

    /// How many were not told of, once the time is over, or all is.
    pub(super) fn over(&mut self, now: Moment, is_end: bool) -> Option<u64> {
        if self.until.is_none_or(|until| now < until && !is_end) {
            return None;
        }
        Some(std::mem::take(self).untold).filter(|untold| *untold > 0)
    }
}

#[cfg(feature = "tracing")]
fn then(kind: AlarmKind) -> &'static str {
    match kind {
        AlarmKind::Stop => "the subscription stops",
        AlarmKind::Halt => "its lane is halted",
        AlarmKind::Parked => "its key is parked",
        AlarmKind::Skipped => "it is skipped",
        AlarmKind::NotBuried => "the dead-letter did not take it and will be asked again",
    }
}

#[cfg(feature = "tracing")]
pub(super) fn alarm(subscription: &str, lane: &str, alarm: &Alarm, is_news: bool) {
    let Alarm { kind, position, key, failure, .. } = alarm;
    let key = key.as_deref().map(String::from_utf8_lossy).map(tracing::field::display);
    let is_grave = matches!(kind, AlarmKind::Stop | AlarmKind::Halt);
    let then = then(*kind);
    if !is_news {
        tracing::debug!(subscription, lane, %position, key, %failure, then, "another record cannot be done");
    } else if is_grave {
        tracing::error!(subscription, lane, %position, key, %failure, then, "a record cannot be done");
    } else {
        tracing::warn!(subscription, lane, %position, key, %failure, then, "a record cannot be done");
    }
}

/// Of those that were not told of one by one.
#[cfg(feature = "tracing")]
pub(super) fn others(subscription: &str, records: u64, what: &str) {
    tracing::warn!(subscription, records, "more records cannot be done: {what} (each is told at level DEBUG)");
}

#[cfg(feature = "tracing")]
pub(super) fn failed_commit(subscription: &str, lane: &str, mark: Mark, reason: &str) {
    tracing::warn!(subscription, lane, through = %mark.through, reason, "a commit failed and will be repeated");
}

#[cfg(not(feature = "tracing"))]
pub(super) fn alarm(_: &str, _: &str, _: &Alarm, _: bool) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn others(_: &str, _: u64, _: &str) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn failed_commit(_: &str, _: &str, _: Mark, _: &str) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_everything_fails_a_few_are_told_of_and_then_how_many_more() {
        let (mut lately, begin) = (Lately::default(), Moment(7));
        let told = (0..1_000).filter(|_| lately.tells(begin)).count();
        assert_eq!(told, TOLD_MAX as usize);
        assert_eq!((lately.over(begin, false), lately.due()), (None, Some(begin.after(WINDOW))));
        assert_eq!(lately.over(begin.after(WINDOW), false), Some(990));
        // Then it begins anew; nothing is said of nothing, and what is left at the end is.
        assert_eq!((lately.over(begin.after(WINDOW), true), lately.due()), (None, None));
        assert_eq!((0..12).filter(|_| lately.tells(begin)).count(), 10);
        assert_eq!(lately.over(begin, true), Some(2));
    }
}
