//! The unnamed statement of a client.

use tidegate_session_state::statements::StatementShape;
use tidegate_sql::classify::StatementEffects;

/// Unnamed statement of a client, which outlives the pipeline segment that prepared it.
#[derive(Debug)]
pub struct Unnamed {
    /// Parse message.
    pub(super) message: Box<[u8]>,
    pub(super) traits: StatementEffects,
    /// Distinguishes this statement from the client's earlier ones.
    pub(super) stamp: u64,
    /// Shape that a Describe returned to the client.
    pub(super) shape: Option<StatementShape>,
}

impl Unnamed {
    #[cfg(test)]
    pub(super) fn of(message: &[u8]) -> Self {
        Self { message: message.into(), traits: StatementEffects::default(), stamp: 1, shape: None }
    }

    /// Returns whether this message prepared the statement, and the statement has no side effects.
    pub(super) fn is(&self, message: &[u8]) -> bool {
        *self.message == *message && self.traits.is_plain()
    }
}
