//! Where a log goes on that does not hold what was to be read next, and what that means.
//!
//! A core: it is told what was read.

use crate::record::Position;

/// How a lane goes on, by its positions: the one that was to be read next, and the one that is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Onward {
    /// What lies between was removed before it was read, or begins behind it on purpose (`start`).
    Above(u64, u64),
    /// The log was cut, or made anew.
    Below(u64, u64),
}

/// Of one lane.
#[derive(Debug, Default)]
pub(super) struct Reset {
    /// Was to be read next when the log did not hold it. Nothing is known yet of where it goes on.
    at: Option<u64>,
}

impl Reset {
    /// The log does not hold this position.
    pub(super) fn begin(&mut self, at: u64) {
        self.at = Some(at);
    }

    /// A record, behind the last one.
    pub(super) fn read(&mut self, last: Option<Position>, next: Position) -> Option<Onward> {
        let is_below = last >= Some(next);
        let from = match (self.at, last) {
            // It was read ahead before.
            (Some(at), Some(_)) if next.0 < at && !is_below => return None,
            (Some(at), _) => at,
            (None, Some(last)) if is_below => last.0 + 1,
            (None, _) => return None,
        };
        self.at = None;
        onward(from, next.0)
    }

    /// The end of the log, which is this position: there may be no record for long.
    pub(super) fn end(&mut self, next: u64) -> Option<Onward> {
        // One that was seen before lies below.
        let from = self.at.take_if(|at| *at < next)?;
        onward(from, next)
    }
}

fn onward(from: u64, to: u64) -> Option<Onward> {
    match from.cmp(&to) {
        std::cmp::Ordering::Less => Some(Onward::Above(from, to)),
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some(Onward::Below(from, to)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(at: u64) -> Reset {
        Reset { at: Some(at) }
    }

    #[test]
    fn what_was_removed_is_counted_once() {
        let mut reset = begun(5);
        assert_eq!(reset.read(None, Position(60)), Some(Onward::Above(5, 60)));
        assert_eq!(reset.read(Some(Position(60)), Position(70)), None, "a gap");
    }

    #[test]
    fn what_was_read_ahead_before_is_no_sign_of_where_it_goes_on() {
        let mut reset = begun(12);
        assert_eq!((reset.end(12), reset.read(Some(Position(9)), Position(10))), (None, None));
        assert_eq!(reset.read(Some(Position(11)), Position(40)), Some(Onward::Above(12, 40)));
    }

    #[test]
    fn a_log_that_goes_on_with_nothing_yet_has_an_end() {
        let mut reset = begun(5);
        assert_eq!(reset.end(100), Some(Onward::Above(5, 100)));
        assert_eq!(reset.read(None, Position(100)), None);
    }

    #[test]
    fn a_log_that_was_made_anew_goes_on_below() {
        assert_eq!(begun(1_000).read(None, Position(0)), Some(Onward::Below(1_000, 0)));
        assert_eq!(begun(12).read(Some(Position(9)), Position(9)), Some(Onward::Below(12, 9)));
        assert_eq!(Reset::default().read(Some(Position(9)), Position(3)), Some(Onward::Below(10, 3)));
    }
}
