//! The unnamed statement of a client, and the statement of the portal that it has bound last.
//!
//! A server has one unnamed statement, whichever client prepared it. In transaction mode the Parse message of the client is
//! stored, so that it can be sent again when the client binds its unnamed statement on another server.

use std::rc::Rc;

use tidegate_sql::classify::StatementEffects;
use tidegate_wire::{
    DecodeError,
    backend::{FieldDescription, RowDescription},
};

use crate::statements::StatementShape;

/// Unnamed statement of a client, which outlives the pipeline segment that prepared it.
#[derive(Debug)]
pub struct UnnamedStatement {
    /// Parse message.
    pub message: Box<[u8]>,
    /// Effects of the statement on the session.
    pub traits: StatementEffects,
    /// Distinguishes this statement from the client's earlier ones.
    pub stamp: u64,
    /// Shape that a Describe returned to the client.
    pub shape: Option<StatementShape>,
    /// Columns that a Describe of a portal returned to the client, unless it has a shape.
    pub columns: PortalColumns,
}

/// Columns of a portal as the client has received them. Copied, not hashed: most clients describe the portal of each
/// unnamed statement, and few bind such a statement again.
#[derive(Debug, Default)]
pub struct PortalColumns {
    /// The client has received a description of the portal.
    pub is_known: bool,
    /// Body of RowDescription; empty for NoData.
    body: Vec<u8>,
}

impl PortalColumns {
    /// Stores the body of a RowDescription; empty for NoData.
    #[inline]
    pub fn set(&mut self, body: &[u8]) {
        self.is_known = true;
        self.body.clear();
        self.body.extend_from_slice(body);
    }

    /// The body in a record for another process, if it is known.
    #[must_use]
    pub fn export(&self) -> Option<Vec<u8>> {
        self.is_known.then(|| self.body.clone())
    }

    /// The columns of a record from another process.
    #[must_use]
    pub fn restore(body: Option<&[u8]>) -> Self {
        Self { is_known: body.is_some(), body: body.unwrap_or_default().to_vec() }
    }

    /// Returns whether a server's RowDescription of the statement, empty for NoData, gives the same columns. Format codes
    /// are those of the portal.
    ///
    /// # Errors
    /// If one of the two messages is invalid.
    pub fn are(&self, described: &[u8]) -> Result<bool, DecodeError> {
        if self.body.is_empty() || described.is_empty() {
            return Ok(self.body.is_empty() == described.is_empty());
        }
        let (seen, current) = (RowDescription::decode(&self.body)?, RowDescription::decode(described)?);
        let key = |column: FieldDescription<'_>| (column.type_oid, column.type_modifier);
        Ok(seen.size_hint() == current.size_hint()
            && seen.zip(current).all(|(seen, current)| seen.name == current.name && key(seen) == key(current)))
    }
}

/// Statement of a portal.
#[derive(Debug, Default)]
pub enum PortalStatement {
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
pub struct LastBound {
    portal: Vec<u8>,
    source: PortalStatement,
}

/// Longest name of a portal that is tracked.
const PORTAL_NAME_MAX: usize = 256;

impl LastBound {
    /// Records a bound portal.
    #[inline]
    pub fn set(&mut self, portal: &[u8], source: PortalStatement) {
        self.portal.clear();
        let is_tracked = portal.len() <= PORTAL_NAME_MAX;
        self.portal.extend_from_slice(if is_tracked { portal } else { b"" });
        self.source = if is_tracked { source } else { PortalStatement::Untracked };
    }

    /// The statement of `portal`, if the client has bound it last.
    #[inline]
    #[must_use]
    pub fn source_of(&self, portal: &[u8]) -> &PortalStatement {
        if self.portal == portal { &self.source } else { &PortalStatement::Untracked }
    }
}

impl UnnamedStatement {
    /// The statement of a Parse message, which the client has yet to describe.
    #[inline]
    #[must_use]
    pub fn new(message: &[u8], traits: StatementEffects, stamp: u64) -> Self {
        Self { message: message.into(), traits, stamp, shape: None, columns: PortalColumns::default() }
    }

    /// Returns whether this message prepared the statement, and the statement has no side effects.
    #[inline]
    #[must_use]
    pub fn is(&self, message: &[u8]) -> bool {
        *self.message == *message && self.traits.is_plain()
    }

    /// Replaces the statement by an equal one, which the client has yet to describe.
    #[inline]
    pub fn renew(&mut self, stamp: u64) {
        (self.stamp, self.shape, self.columns.is_known) = (stamp, None, false);
    }

    /// Returns whether the client may decode rows by an earlier description, which Postgres would compare.
    #[must_use]
    pub fn is_described(&self) -> bool {
        (self.shape.is_some() || self.columns.is_known) && !self.traits.has_columns_of_session
    }
}

#[cfg(test)]
mod tests {
    use tidegate_wire::{backend, frame::HEADER};

    use super::*;

    /// Body of a RowDescription with one column.
    fn column(name: &str, type_oid: u32) -> Vec<u8> {
        let mut message = Vec::new();
        backend::row_description(&[(name, type_oid)], &mut message);
        message.split_off(HEADER)
    }

    #[test]
    fn columns_differ_by_name_type_or_presence() {
        let mut columns = PortalColumns::default();
        columns.set(&column("a", 23));
        assert!(columns.is_known && columns.are(&column("a", 23)).unwrap());
        for other in [column("b", 23), column("a", 25), Vec::new()] {
            assert!(!columns.are(&other).unwrap());
        }
        assert!(columns.are(b"\0\x01").is_err());
        columns.set(b"");
        assert!(columns.are(b"").unwrap() && !columns.are(&column("a", 23)).unwrap());
    }

    #[test]
    fn only_the_last_bound_portal_has_a_source() {
        let mut bound = LastBound::default();
        bound.set(b"p", PortalStatement::Unnamed(7));
        assert!(matches!(bound.source_of(b"p"), PortalStatement::Unnamed(7)));
        assert!(matches!(bound.source_of(b"q"), PortalStatement::Untracked));
        let long = [b'p'; PORTAL_NAME_MAX + 1];
        bound.set(&long, PortalStatement::Unnamed(8));
        assert!(matches!(bound.source_of(&long), PortalStatement::Untracked));
        assert!(matches!(bound.source_of(b"p"), PortalStatement::Untracked));
    }

    #[test]
    fn renewed_statement_is_not_described() {
        let mut unnamed = UnnamedStatement::new(b"select", StatementEffects::default(), 1);
        unnamed.columns.set(b"");
        assert!(unnamed.is_described() && unnamed.is(b"select"));
        unnamed.renew(2);
        assert!(!unnamed.is_described() && unnamed.stamp == 2);
    }
}
