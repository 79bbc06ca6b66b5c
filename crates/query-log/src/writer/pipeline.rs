//! State of an exchange with several queries, portals or statements.

use std::{collections::VecDeque, rc::Rc};

use super::{
    single_query::{SingleQuery, SingleQueryState},
    tracked_query::{LoggedStatement, TrackedQuery, make_unique},
    transaction::TransactionTotals,
};

/// State of a tracker with several queries, portals or statements; reused by later exchanges.
#[derive(Debug, Default)]
pub(super) struct PipelineTracker {
    pub(super) in_flight: VecDeque<Box<TrackedQuery>>,
    pub(super) completed: Option<Box<TrackedQuery>>,
    /// The unnamed statement.
    pub(super) unnamed_statement: LoggedStatement,
    /// The statement that was last prepared under a name or bound.
    pub(super) latest: Rc<LoggedStatement>,
    /// The unnamed statement was prepared after `latest`: an error before any Execute is about it.
    pub(super) unnamed_is_latest: bool,
    pub(super) portals: PortalStatements,
    pub(super) totals: TransactionTotals,
}

/// Statements of portals by name; the unnamed portal is the first.
type PortalStatements = Vec<(Vec<u8>, Option<Rc<LoggedStatement>>)>;

/// Maximum number of portals that are tracked; beyond it the oldest named portal loses its statement.
const PORTALS_MAX: usize = 64;

impl PipelineTracker {
    /// Takes over the state of a single query. Returns the query if it is not used any more.
    pub(super) fn absorb_single(&mut self, mut single: SingleQuery) -> Option<Box<TrackedQuery>> {
        if single.holds_unnamed_statement() {
            self.unnamed_statement.copy_text_from(single.statement_mut());
            self.unnamed_is_latest = single.is_parsed();
        }
        if single.was_bound() {
            self.latest = single.query.statement.clone().unwrap_or_default();
        }
        if single.holds_unnamed_portal() {
            let at = self.portal(b"");
            self.portals[at].1 = single.query.statement.clone();
        }
        match single.state() {
            SingleQueryState::InFlight => self.in_flight.push_back(single.into_query()),
            SingleQueryState::Completed => self.completed = Some(single.into_query()),
            _ => return Some(single.into_query()),
        }
        None
    }

    /// Drops the unnamed statement and the unnamed portal, as a simple query does.
    pub(super) fn drop_unnamed(&mut self) {
        self.portals.iter_mut().filter(|(name, _)| name.is_empty()).for_each(|(_, logged)| *logged = None);
        self.unnamed_statement.clear();
        make_unique(&mut self.latest).clear();
        self.unnamed_is_latest = false;
    }

    /// Keeps only allocations.
    pub(super) fn clear(&mut self) {
        self.portals.clear();
        self.drop_unnamed();
    }

    /// Index of a portal; the unnamed portal is the first.
    pub(super) fn portal(&mut self, name: &[u8]) -> usize {
        let portals = &mut self.portals;
        if portals.is_empty() {
            portals.push(Default::default());
        }
        if name.is_empty() {
            return 0;
        }
        if let Some(at) = portals.iter().position(|(known, _)| known == name) {
            return at;
        }
        if portals.len() >= PORTALS_MAX {
            portals.remove(1);
        }
        portals.push((name.to_vec(), None));
        portals.len() - 1
    }
}
