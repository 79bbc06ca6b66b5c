//! Detects jumps of the offset when the next offset is not in the log.
//!
//! A pure core; its inputs are the offsets read.

use crate::record::Position;

/// A jump from the expected offset to the next one read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OffsetJump {
    /// Records in between were deleted before they were read, or `start` skips them.
    Forward(u64, u64),
    /// The log was truncated or recreated.
    Backward(u64, u64),
}

/// The state of one lane.
#[derive(Debug, Default)]
pub(super) struct OffsetResetTracker {
    /// The offset that was not in the log; the offset of the next record is not known yet.
    at: Option<u64>,
}

impl OffsetResetTracker {
    /// The offset is not in the log.
    pub(super) fn on_reset(&mut self, at: u64) {
        self.at = Some(at);
    }

    /// A record was read after `last`.
    pub(super) fn on_record(&mut self, last: Option<Position>, next: Position) -> Option<OffsetJump> {
        let is_below = last >= Some(next);
        let from = match (self.at, last) {
            // The record was prefetched before the reset.
            (Some(at), Some(_)) if next.0 < at && !is_below => return None,
            (Some(at), _) => at,
            (None, Some(last)) if is_below => last.0 + 1,
            (None, _) => return None,
        };
        self.at = None;
        jump(from, next.0)
    }

    /// The end of the log was read; there may be no further record for a long time.
    pub(super) fn on_end(&mut self, next: u64) -> Option<OffsetJump> {
        // An end below the reset offset was seen before the reset.
        let from = self.at.take_if(|at| *at < next)?;
        jump(from, next)
    }
}

fn jump(from: u64, to: u64) -> Option<OffsetJump> {
    match from.cmp(&to) {
        std::cmp::Ordering::Less => Some(OffsetJump::Forward(from, to)),
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some(OffsetJump::Backward(from, to)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(at: u64) -> OffsetResetTracker {
        OffsetResetTracker { at: Some(at) }
    }

    #[test]
    fn deleted_records_are_reported_once() {
        let mut reset = begun(5);
        assert_eq!(reset.on_record(None, Position(60)), Some(OffsetJump::Forward(5, 60)));
        assert_eq!(reset.on_record(Some(Position(60)), Position(70)), None, "a gap");
    }

    #[test]
    fn prefetched_records_do_not_resolve_the_reset() {
        let mut reset = begun(12);
        assert_eq!((reset.on_end(12), reset.on_record(Some(Position(9)), Position(10))), (None, None));
        assert_eq!(reset.on_record(Some(Position(11)), Position(40)), Some(OffsetJump::Forward(12, 40)));
    }

    #[test]
    fn end_of_log_resolves_the_reset() {
        let mut reset = begun(5);
        assert_eq!(reset.on_end(100), Some(OffsetJump::Forward(5, 100)));
        assert_eq!(reset.on_record(None, Position(100)), None);
    }

    #[test]
    fn recreated_log_is_a_backward_jump() {
        assert_eq!(begun(1_000).on_record(None, Position(0)), Some(OffsetJump::Backward(1_000, 0)));
        assert_eq!(begun(12).on_record(Some(Position(9)), Position(9)), Some(OffsetJump::Backward(12, 9)));
        assert_eq!(
            OffsetResetTracker::default().on_record(Some(Position(9)), Position(3)),
            Some(OffsetJump::Backward(10, 3))
        );
    }
}
