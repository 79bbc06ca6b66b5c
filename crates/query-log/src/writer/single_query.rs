//! State of an exchange with a single query, which most exchanges are.
//!
//! One [`TrackedQuery`] holds it. Everything that does not fit, such as a second query before the first is complete,
//! makes the tracker create a pipeline and move the state into it. Both record the same.

use std::time::Instant;

use super::tracked_query::{LoggedStatement, TrackedQuery};

/// State of a single query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SingleQueryState {
    /// No query, or its record is written.
    Empty,
    /// The unnamed statement is prepared, and not bound.
    Parsed,
    /// The unnamed portal is bound, and not executed.
    Bound,
    /// The query is in flight.
    InFlight,
    /// The query is complete, and its record is not written, because the Sync may fail.
    Completed,
}

/// The only query in flight, or the last one.
#[derive(Debug)]
pub(super) struct SingleQuery {
    pub(super) query: Box<TrackedQuery>,
    state: SingleQueryState,
    /// The text is the text of the unnamed statement.
    holds_unnamed_statement: bool,
    /// The unnamed portal is bound to the query.
    holds_unnamed_portal: bool,
    /// The query was bound.
    was_bound: bool,
}

impl SingleQuery {
    /// Creates the empty state.
    pub(super) fn new(query: Box<TrackedQuery>) -> Self {
        Self {
            query,
            state: SingleQueryState::Empty,
            holds_unnamed_statement: false,
            holds_unnamed_portal: false,
            was_bound: false,
        }
    }

    /// Whether a simple query can be next. It drops the unnamed statement and the unnamed portal.
    pub(super) fn accepts_query(&self) -> bool {
        self.state == SingleQueryState::Empty
    }

    /// Whether an unnamed Parse can be next: not if a portal would lose its text.
    pub(super) fn accepts_parse(&self) -> bool {
        self.state == SingleQueryState::Empty && !self.holds_unnamed_portal
    }

    /// Whether a Bind can be next: not if the unnamed statement would lose its text.
    pub(super) fn accepts_bind(&self, is_named: bool) -> bool {
        self.state == SingleQueryState::Empty && !(self.holds_unnamed_statement && is_named)
    }

    pub(super) fn is_parsed(&self) -> bool {
        self.state == SingleQueryState::Parsed
    }

    pub(super) fn is_bound(&self) -> bool {
        self.state == SingleQueryState::Bound
    }

    pub(super) fn state(&self) -> SingleQueryState {
        self.state
    }

    pub(super) fn holds_unnamed_statement(&self) -> bool {
        self.holds_unnamed_statement
    }

    pub(super) fn holds_unnamed_portal(&self) -> bool {
        self.holds_unnamed_portal
    }

    pub(super) fn was_bound(&self) -> bool {
        self.was_bound
    }

    /// Drops the portal at the end of the transaction. A portal that is already bound again belongs to the next
    /// transaction.
    pub(super) fn end_transaction(&mut self) {
        self.holds_unnamed_portal &= self.state != SingleQueryState::Empty;
    }

    /// Starts the next query, and returns its statement to fill in.
    pub(super) fn begin(&mut self, now: Instant) -> &mut LoggedStatement {
        (self.holds_unnamed_statement, self.holds_unnamed_portal, self.was_bound) = (false, false, false);
        self.query.release_statement();
        self.query.reset(now);
        self.query.new_statement()
    }

    /// The statement, to be completed.
    pub(super) fn statement_mut(&mut self) -> &mut LoggedStatement {
        self.query.statement_mut()
    }

    pub(super) fn note_parse(&mut self) {
        (self.state, self.holds_unnamed_statement) = (SingleQueryState::Parsed, true);
    }

    pub(super) fn note_bind(&mut self) {
        (self.state, self.holds_unnamed_portal, self.was_bound) = (SingleQueryState::Bound, true, true);
    }

    pub(super) fn execute(&mut self, now: Instant) -> &mut TrackedQuery {
        self.state = SingleQueryState::InFlight;
        self.query.begin(now);
        &mut self.query
    }

    pub(super) fn in_flight(&mut self) -> Option<&mut Box<TrackedQuery>> {
        (self.state == SingleQueryState::InFlight).then_some(&mut self.query)
    }

    /// Completes the query if it is in flight.
    #[inline]
    pub(super) fn end(&mut self) -> Option<&mut TrackedQuery> {
        if self.state != SingleQueryState::InFlight {
            return None;
        }
        self.state = SingleQueryState::Completed;
        Some(&mut self.query)
    }

    pub(super) fn completed(&mut self) -> Option<&mut TrackedQuery> {
        (self.state == SingleQueryState::Completed).then_some(&mut self.query)
    }

    /// Returns the query for its record if it is complete. Its statement stays, as a portal does.
    pub(super) fn take_completed(&mut self) -> Option<&mut TrackedQuery> {
        if self.state != SingleQueryState::Completed {
            return None;
        }
        self.state = SingleQueryState::Empty;
        Some(&mut self.query)
    }

    pub(super) fn into_query(self) -> Box<TrackedQuery> {
        self.query
    }
}

#[cfg(test)]
mod tests;
