//! Counts of disconnects and refused logins by reason.
//!
//! A login costs far more than a lock, so the threads share the counts. Reasons are constant phrases of the code, so the number
//! of series has a bound.

use std::{collections::BTreeMap, sync::Mutex};

use super::lock;

/// Counts by reason.
type ReasonCounts = BTreeMap<&'static str, u64>;

/// How connections of clients ended, since the start.
#[derive(Debug, Default)]
pub struct ClientOutcomes {
    disconnects: Mutex<ReasonCounts>,
    refusals: Mutex<ReasonCounts>,
}

impl ClientOutcomes {
    /// Counts the end of a session.
    pub fn count_disconnect(&self, reason: &'static str) {
        *lock(&self.disconnects).entry(reason).or_default() += 1;
    }

    /// Counts a refused login.
    pub fn count_refusal(&self, reason: &'static str) {
        *lock(&self.refusals).entry(reason).or_default() += 1;
    }

    /// Ended sessions by reason.
    #[must_use]
    pub fn disconnects(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.disconnects).clone()
    }

    /// Refused logins by reason.
    #[must_use]
    pub fn refusals(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.refusals).clone()
    }
}
