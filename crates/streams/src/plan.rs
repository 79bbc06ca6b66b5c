//! What a stream is to run by.

use super::door::Doors;
use super::limits::differ_in_limits_only;
use tidegate_config::Stream;

/// What one run goes by.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) stream: Stream,
    pub(super) doors: Doors,
}

impl Plan {
    /// Whether a run of this one can become one of the other while it runs.
    pub(super) fn runs_like(&self, other: &Self) -> bool {
        differ_in_limits_only(&self.stream.keys, &other.stream.keys)
            && self.stream.tls == other.stream.tls
            && self.doors.lets_in_like(&other.doors, &self.stream)
    }
}
