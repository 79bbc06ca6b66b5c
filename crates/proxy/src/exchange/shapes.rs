//! Prevents a client from receiving rows of a shape that it does not expect.
//!
//! A statement that a client prepared once is prepared again on other servers, where the catalogue may have changed since:
//! the client would decode a column of another type wrongly, without an error. The gateway therefore has the server describe
//! the statement, and holds the client's Bind until the comparison if the client may have seen a shape before. On a
//! difference, the client gets the error that Postgres gives for a plan with changed columns (`RevalidateCachedQuery` in
//! `src/backend/utils/cache/plancache.c`), until it prepares or describes the statement again.
//!
//! Postgres itself refuses a statement whose columns have changed since its Parse, so a server's shape of a statement is
//! valid as long as the server has the statement.

use std::rc::Rc;

use rustc_hash::FxHashMap;
use tidegate_wire::{
    backend::{ErrorFields, TxStatus},
    frontend::{self, ObjectKind},
    sqlstate,
};

use super::{Exchange, ExchangeError};
use tidegate_pending_replies::{Described, Disposition, RequestKind};
use tidegate_session_state::{
    statements::{
        Analysis, AnalysisTime, ClientStatement, DescribedBy, Description, Freshness, NamedStatement, StaleError,
        Statement, StatementShape, may_change_catalog,
    },
    unnamed::PortalStatement,
};
use tidegate_sql::StatementDigest;

/// Pending shape comparisons of one exchange.
#[derive(Default)]
pub(super) struct ShapeChecks {
    /// Descriptions that were requested; boxed, as few exchanges have any.
    requested: Option<Box<RequestedShapes>>,
    /// State of the client's unnamed statement after it was prepared again.
    unnamed: UnnamedCheck,
    /// A Bind of the client waits for a description.
    pub(super) holds: bool,
}

#[derive(Default)]
struct RequestedShapes {
    /// Statements with a pending Describe, and the time of each Parse. Stored per exchange and not with the server, as the
    /// server may never answer this client.
    asked: FxHashMap<StatementDigest, (AnalysisTime, Rc<[u8]>)>,
    /// Body of the last ParameterDescription.
    parameters: Vec<u8>,
}

impl ShapeChecks {
    /// The time of the Parse and the name of a pending Describe.
    fn asked(&self, digest: &StatementDigest) -> Option<&(AnalysisTime, Rc<[u8]>)> {
        self.requested.as_ref()?.asked.get(digest)
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum UnnamedCheck {
    /// The server has the statement in the shape that the client has seen.
    #[default]
    Passed,
    /// A Describe of the statement is pending.
    Pending,
    /// The server's shape differs from the shape that the client has seen.
    Changed,
}

/// Result of preparing a Bind.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    Ready,
    /// The Bind waits for the server's description.
    Hold,
    /// The server's shape differs from the shape that the client has seen.
    Changed,
}

impl Exchange<'_> {
    /// Required freshness of an analysis for a client that parses the statement now.
    pub(super) fn freshness(&self, statement: &Statement) -> Freshness {
        self.catalog.freshness(statement, &self.plan.dbname, self.plan.pool.prepared_statement_max_age)
    }

    /// Prepares a statement of the client on this server if necessary. After a change of the client's settings, the name
    /// refers to the variant that is analysed under the new settings.
    pub(super) fn ensure_known_prepared(
        &mut self,
        known: &mut NamedStatement,
        oldest: AnalysisTime,
        out: &mut Vec<u8>,
    ) -> Analysis {
        if let Some(analysis) = self.server.statements.find(known.statement.digest(), oldest) {
            return analysis;
        }
        if !known.statement.has_same_analysis_settings(&self.front.settings) {
            self.adapt(known, None);
        }
        self.ensure_prepared(&known.statement, oldest, out)
    }

    /// Replaces the statement of the client's name by a variant of the same text, for the client's settings and these types.
    fn adapt(&mut self, known: &mut NamedStatement, types: Option<&[u32]>) {
        known.statement = self.catalog.variant_of(&known.statement, &self.front.settings, types, self.plan.identity());
        self.change_prepared(&known.name, |prepared| prepared.statement = known.statement.clone());
    }

    fn change_prepared(&mut self, name: &[u8], change: impl FnOnce(&mut ClientStatement)) {
        let statements = self.front.statements.as_mut();
        if let Some(prepared) = statements.and_then(|statements| statements.get_mut(name)) {
            change(prepared);
        }
    }

    /// Prepares a statement for a Bind on this server if necessary, and compares the client's description with the server's.
    /// Appends the messages for the server to `out`.
    pub(super) fn prepare_bind(
        &mut self,
        known: &mut NamedStatement,
        freshness: Freshness,
        seen: Option<&Description>,
        out: &mut Vec<u8>,
    ) -> Readiness {
        let has_columns_of_session = known.statement.effects().has_columns_of_session;
        if has_columns_of_session {
            // Postgres compares the columns if the search path has changed, and a temporary table of another client of the
            // server changes it. A Parse now gives the columns of the Bind.
            self.server.statements.mark_stale(known.statement.digest());
        }
        let analysis = self.ensure_known_prepared(known, freshness.oldest, out);
        if freshness.oldest > freshness.tolerated {
            self.change_prepared(&known.name, |prepared| prepared.freshness.oldest = freshness.tolerated);
        }
        if has_columns_of_session {
            return Readiness::Ready;
        }
        match (seen, analysis.shape) {
            (Some(seen), Some(shape)) if seen.shape == shape => Readiness::Ready,
            (Some(seen), Some(shape)) => self.renew_bind(known, (freshness, seen), (analysis.since, shape), out),
            (None, Some(shape)) => match known.statement.description(shape) {
                Some(description) => {
                    self.change_prepared(&known.name, |prepared| prepared.describe(description, false));
                    Readiness::Ready
                }
                None => self.describe_bind(known, analysis.since, false, out),
            },
            (_, None) => self.describe_bind(known, analysis.since, seen.is_some(), out),
        }
    }

    /// Handles a server description that differs from the client's.
    fn renew_bind(
        &mut self,
        known: &mut NamedStatement,
        (freshness, seen): (Freshness, &Description),
        (since, shape): (AnalysisTime, StatementShape),
        out: &mut Vec<u8>,
    ) -> Readiness {
        let description = known.statement.description(shape);
        if since < freshness.parsed {
            // The client's Parse is later than the server's: the server's analysis may be stale.
            self.server.statements.mark_stale(known.statement.digest());
        } else if description.is_some_and(|description| description.parameters != seen.parameters) {
            // Postgres also keeps the parameter types when it analyses a statement again.
            self.adapt(known, Some(&seen.parameters));
        } else {
            return Readiness::Changed;
        }
        let analysis = self.ensure_known_prepared(known, freshness.oldest, out);
        if analysis.shape == Some(seen.shape) {
            return Readiness::Ready;
        }
        self.describe_bind(known, analysis.since, true, out)
    }

    /// Sends a Describe unless one is pending. The Bind waits for it if the client has a description.
    fn describe_bind(
        &mut self,
        known: &NamedStatement,
        since: AnalysisTime,
        waits: bool,
        out: &mut Vec<u8>,
    ) -> Readiness {
        let asked = self.shapes.asked(&known.statement.digest()).filter(|asked| asked.0 == since);
        if let Some((_, name)) = asked {
            // The reply also becomes the client's description if it is for the same name.
            if !waits && *name == known.name {
                return Readiness::Ready;
            }
        } else {
            self.ask_shape(known, since, out);
            if !waits {
                return Readiness::Ready;
            }
        }
        // The client may send its Sync behind the Bind.
        frontend::flush(out);
        Readiness::Hold
    }

    fn ask_shape(&mut self, known: &NamedStatement, since: AnalysisTime, out: &mut Vec<u8>) {
        frontend::describe(ObjectKind::Statement, known.statement.server_name(), out);
        let described = self.note_asked(known.clone(), since);
        self.pending_replies.push(RequestKind::Describe(Some(described)), Disposition::Discard);
    }

    /// Records a Describe, by the client or the gateway, of the statement prepared at `since`.
    pub(super) fn note_asked(&mut self, known: NamedStatement, since: AnalysisTime) -> Box<Described> {
        let requested = self.shapes.requested.get_or_insert_default();
        requested.asked.insert(known.statement.digest(), (since, known.name.clone()));
        Box::new(Described::Named(known, since))
    }

    /// Sends a Describe of the re-prepared unnamed statement, if the client has seen its shape.
    pub(super) fn ask_unnamed_shape(&mut self, out: &mut Vec<u8>) -> Readiness {
        let Some(stamp) = self.front.unnamed.as_ref().filter(|unnamed| unnamed.is_described()).map(|it| it.stamp)
        else {
            return Readiness::Ready;
        };
        frontend::describe(ObjectKind::Statement, b"", out);
        frontend::flush(out);
        self.pending_replies
            .push(RequestKind::Describe(Some(Box::new(Described::Unnamed(stamp)))), Disposition::Discard);
        self.shapes.unnamed = UnnamedCheck::Pending;
        Readiness::Hold
    }

    /// Returns whether the server's unnamed statement can be bound.
    pub(super) fn unnamed_readiness(&mut self) -> Readiness {
        match self.shapes.unnamed {
            UnnamedCheck::Passed => Readiness::Ready,
            UnnamedCheck::Pending => Readiness::Hold,
            UnnamedCheck::Changed => {
                self.shapes.unnamed = UnnamedCheck::Passed;
                // The next Bind makes the comparison again, also in another transaction.
                self.server.unnamed = None;
                Readiness::Changed
            }
        }
    }

    /// Records a ParameterDescription.
    pub(super) fn note_parameters(&mut self, body: &[u8]) {
        if self.pending_replies.is_describing() {
            let parameters = &mut self.shapes.requested.get_or_insert_default().parameters;
            parameters.clear();
            parameters.extend_from_slice(body);
        }
    }

    /// Records the description of a statement.
    pub(super) fn note_shape(
        &mut self,
        described: Described,
        to: Disposition,
        columns: Option<&[u8]>,
    ) -> Result<(), ExchangeError> {
        if let Described::PortalOfUnnamed(stamp) = described {
            self.note_portal_columns(stamp, columns.unwrap_or_default());
            return Ok(());
        }
        let parameters = self.shapes.requested.as_ref().map_or(&[][..], |requested| &requested.parameters);
        let description = Description::decode(parameters, columns).map_err(ExchangeError::BadServer)?;
        match described {
            Described::Named(known, since) => {
                let digest = known.statement.digest();
                self.forget_asked(digest, since);
                self.server.statements.set_shape(digest, since, description.shape);
                let description = known.statement.share_description(description);
                // The held Bind makes the comparison for a description that the client does not receive.
                self.change_prepared(&known.name, |prepared| {
                    prepared.describe(description, to == Disposition::Forward);
                });
                Ok(())
            }
            Described::Unnamed(stamp) => {
                self.note_unnamed_shape(stamp, to, (description.shape, columns.unwrap_or_default()))
            }
            Described::PortalOfUnnamed(_) => Ok(()),
        }
    }

    /// Target of the Describe of a portal. The client decodes later rows by its columns.
    pub(super) fn described_portal(&mut self, portal: &[u8]) -> Option<Box<Described>> {
        match self.front.last_bound.source_of(portal) {
            PortalStatement::Untracked => None,
            PortalStatement::Unnamed(stamp) => Some(Box::new(Described::PortalOfUnnamed(*stamp))),
            PortalStatement::Named(name) => {
                let name = name.clone();
                self.change_prepared(&name, |prepared| {
                    prepared.described_by = prepared.described_by.max(DescribedBy::Portal);
                });
                None
            }
        }
    }

    fn note_portal_columns(&mut self, stamp: u64, columns: &[u8]) {
        if let Some(unnamed) = self.front.unnamed.as_mut().filter(|unnamed| unnamed.stamp == stamp)
            && unnamed.shape.is_none()
        {
            unnamed.columns.set(columns);
        }
    }

    fn forget_asked(&mut self, digest: StatementDigest, since: AnalysisTime) {
        let Some(requested) = &mut self.shapes.requested else { return };
        if requested.asked.get(&digest).is_some_and(|asked| asked.0 == since) {
            requested.asked.remove(&digest);
        }
    }

    fn note_unnamed_shape(
        &mut self,
        stamp: u64,
        to: Disposition,
        (shape, columns): (StatementShape, &[u8]),
    ) -> Result<(), ExchangeError> {
        let Some(unnamed) = self.front.unnamed.as_mut().filter(|unnamed| unnamed.stamp == stamp) else {
            return Ok(());
        };
        if to == Disposition::Forward {
            unnamed.shape = Some(shape);
        }
        let is_same = match unnamed.shape {
            Some(seen) => seen == shape,
            None => unnamed.columns.are(columns).map_err(ExchangeError::BadServer)?,
        };
        self.shapes.unnamed = if is_same { UnnamedCheck::Passed } else { UnnamedCheck::Changed };
        Ok(())
    }

    /// Handles a Describe that failed or was skipped.
    pub(super) fn undo_describe(&mut self, described: Described, error: Option<StaleError>) {
        match described {
            Described::Named(known, since) => {
                self.forget_asked(known.statement.digest(), since);
                if let Some(error) = error {
                    self.renew_statement(&known, error);
                }
            }
            Described::Unnamed(_) => self.shapes.unnamed = UnnamedCheck::Passed,
            Described::PortalOfUnnamed(_) => {}
        }
    }

    /// Makes this server analyse the statement again.
    pub(super) fn renew_statement(&mut self, known: &NamedStatement, error: StaleError) {
        self.server.statements.mark_stale(known.statement.digest());
        if let Some(statements) = &mut self.front.statements {
            statements.require_fresh(&known.name, self.catalog.changes().now(), error);
        }
    }

    /// Returns whether a stale analysis may have caused an error: changed columns, parameter types or objects, or a dropped
    /// object ("cache lookup failed").
    pub(super) fn stale_error(&mut self, fields: &ErrorFields<'_>) -> Option<StaleError> {
        let code = fields.code()?;
        if code == sqlstate::INTERNAL_ERROR || code == sqlstate::FEATURE_NOT_SUPPORTED {
            self.catalog.changes().record(&self.plan.dbname);
        }
        if code == sqlstate::INTERNAL_ERROR {
            self.server.statements.mark_all_stale();
        }
        match code {
            sqlstate::FEATURE_NOT_SUPPORTED => Some(StaleError::Columns),
            _ => ["0A", "22", "26", "42", "XX"]
                .iter()
                .any(|class| code.as_str().starts_with(class))
                .then_some(StaleError::Other),
        }
    }

    /// Records a command that may change the catalogue when its transaction commits.
    pub(super) fn note_catalog_change(&mut self, tag: &[u8]) {
        self.server.changes_catalog |= may_change_catalog(tag);
    }

    /// Publishes a change of the catalogue once its transaction has ended.
    pub(super) fn settle_catalog_change(&mut self, status: TxStatus) {
        if self.server.changes_catalog && status == TxStatus::Idle {
            self.server.changes_catalog = false;
            self.catalog.changes().record(&self.plan.dbname);
        }
    }

    /// Handles a possible rollback of a change of the catalogue: the server's analyses since then are stale.
    pub(super) fn undo_catalog_change(&mut self) {
        if self.server.changes_catalog {
            self.server.statements.mark_all_stale();
        }
    }
}
