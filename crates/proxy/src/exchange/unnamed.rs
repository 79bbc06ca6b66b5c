//! The unnamed statement of a client.

use std::rc::Rc;

use tidegate_session_state::statements::StatementShape;
use tidegate_sql::classify::StatementEffects;
use tidegate_wire::{
    DecodeError,
    backend::{Column, RowDescription},
};

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
    /// Columns that a Describe of a portal returned to the client, unless it has a shape.
    pub(super) columns: PortalColumns,
}

/// Columns of a portal as the client has received them. Copied, not hashed: most clients describe the portal of each
/// unnamed statement, and few bind such a statement again.
#[derive(Debug, Default)]
pub(super) struct PortalColumns {
    pub(super) is_known: bool,
    /// Body of RowDescription; empty for NoData.
    body: Vec<u8>,
}

impl PortalColumns {
    pub(super) fn set(&mut self, body: &[u8]) {
        self.is_known = true;
        self.body.clear();
        self.body.extend_from_slice(body);
    }

    /// The body in a record for another process, if it is known.
    pub(super) fn export(&self) -> Option<Vec<u8>> {
        self.is_known.then(|| self.body.clone())
    }

    pub(super) fn restore(body: Option<&[u8]>) -> Self {
        Self { is_known: body.is_some(), body: body.unwrap_or_default().to_vec() }
    }

    /// Returns whether a server's RowDescription of the statement, empty for NoData, gives the same columns. Format codes
    /// are those of the portal.
    pub(super) fn are(&self, described: &[u8]) -> Result<bool, DecodeError> {
        if self.body.is_empty() || described.is_empty() {
            return Ok(self.body.is_empty() == described.is_empty());
        }
        let (seen, current) = (RowDescription::decode(&self.body)?, RowDescription::decode(described)?);
        let key = |column: Column<'_>| (column.type_oid, column.type_modifier);
        Ok(seen.size_hint() == current.size_hint()
            && seen.zip(current).all(|(seen, current)| seen.name == current.name && key(seen) == key(current)))
    }
}

/// Statement of a portal.
#[derive(Debug, Default)]
pub(super) enum Source {
    /// A statement that is not tracked.
    #[default]
    Untracked,
    /// The client's unnamed statement, by stamp.
    Unnamed(u64),
    /// A named statement, by the client's name.
    Named(Rc<[u8]>),
}

/// The portal that the client has bound last, which most clients describe next.
#[derive(Debug, Default)]
pub(super) struct LastBound {
    portal: Vec<u8>,
    source: Source,
}

/// Longest name of a portal that is tracked.
const PORTAL_NAME_MAX: usize = 256;

impl LastBound {
    #[inline]
    pub(super) fn set(&mut self, portal: &[u8], source: Source) {
        self.portal.clear();
        let is_tracked = portal.len() <= PORTAL_NAME_MAX;
        self.portal.extend_from_slice(if is_tracked { portal } else { b"" });
        self.source = if is_tracked { source } else { Source::Untracked };
    }

    pub(super) fn source_of(&self, portal: &[u8]) -> &Source {
        if self.portal == portal { &self.source } else { &Source::Untracked }
    }
}

impl Unnamed {
    pub(super) fn new(message: &[u8], traits: StatementEffects, stamp: u64) -> Self {
        Self { message: message.into(), traits, stamp, shape: None, columns: PortalColumns::default() }
    }

    #[cfg(test)]
    pub(super) fn of(message: &[u8]) -> Self {
        Self::new(message, StatementEffects::default(), 1)
    }

    /// Returns whether this message prepared the statement, and the statement has no side effects.
    pub(super) fn is(&self, message: &[u8]) -> bool {
        *self.message == *message && self.traits.is_plain()
    }

    /// Replaces the statement by an equal one, which the client has yet to describe.
    pub(super) fn renew(&mut self, stamp: u64) {
        (self.stamp, self.shape, self.columns.is_known) = (stamp, None, false);
    }

    /// Returns whether the client may decode rows by an earlier description, which Postgres would compare.
    pub(super) fn is_described(&self) -> bool {
        (self.shape.is_some() || self.columns.is_known) && !self.traits.has_columns_of_session
    }
}
