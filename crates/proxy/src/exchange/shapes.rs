//! Keeps a client from getting rows of another shape than the one it decodes by.
//!
//! A statement that a client prepared once is prepared again on other servers, where the catalogue may have changed since:
//! a column of another type would be decoded wrongly without an error. So the server describes what it was sent, and the
//! client's Bind waits for the comparison if the client may have seen a shape before. On a difference the client gets the
//! error that Postgres gives for a plan whose columns have changed (`RevalidateCachedQuery` in
//! `src/backend/utils/cache/plancache.c`), and its next use takes the statement as it is now.
//!
//! Postgres itself refuses a statement whose columns have changed since it was sent to it, so that a server's shape of a
//! statement holds as long as the server has the statement.

use std::rc::Rc;

use rustc_hash::FxHashMap;
use tidegate_wire::{
    backend::{ErrorFields, TxStatus},
    frontend::{self, ObjectKind},
    sqlstate,
};

use super::{
    Exchange, ExchangeError,
    pending_replies::{Described, Disposition, RequestKind},
};
use tidegate_session_state::statements::{
    Analysis, AnalysisTime, ClientStatement, Description, Freshness, NamedStatement, Statement, StatementShape,
    may_change_catalog,
};
use tidegate_sql::StatementDigest;

/// The comparisons of one exchange.
#[derive(Default)]
pub(super) struct ShapeChecks {
    /// Statements that the server was asked to describe, and when it was sent each. Only here and not with the server, which may
    /// never answer this client.
    asked: FxHashMap<StatementDigest, (AnalysisTime, Rc<[u8]>)>,
    /// The body of the last ParameterDescription.
    parameters: Vec<u8>,
    /// The client's unnamed statement, once it was prepared again.
    unnamed: UnnamedCheck,
    /// A Bind of the client waits for a description.
    pub(super) holds: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum UnnamedCheck {
    /// The server has it as the client knows it.
    #[default]
    Passed,
    /// The server was asked to describe it.
    RequestKind,
    /// It has another shape than the client knows.
    Changed,
}

/// Whether a Bind may be sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    Ready,
    /// Once the server has described the statement.
    Hold,
    /// The client knows another shape.
    Changed,
}

impl Exchange<'_> {
    /// How fresh an analysis has to be for a client that parses the statement now.
    pub(super) fn freshness(&self, statement: &Statement) -> Freshness {
        self.catalog.freshness(statement, &self.plan.dbname, self.plan.pool.prepared_statement_max_age)
    }

    /// Prepares a statement of the client on this server if need be. If the settings of the client have changed since its Parse,
    /// the statement is from then on the one that is analysed under these.
    pub(super) fn teach_known(
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
        self.teach(&known.statement, oldest, out)
    }

    /// The client's name stands for the same text from now on, analysed under the settings of the client and for these types.
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

    /// Prepares a statement that is to be bound on this server if need be, and compares the description that the client knows
    /// with the server's. What the server needs is appended to `out`.
    pub(super) fn prepare_bind(
        &mut self,
        known: &mut NamedStatement,
        freshness: Freshness,
        told: Option<&Description>,
        out: &mut Vec<u8>,
    ) -> Readiness {
        let analysis = self.teach_known(known, freshness.oldest, out);
        if freshness.oldest > freshness.tolerated {
            self.change_prepared(&known.name, |prepared| prepared.freshness.oldest = freshness.tolerated);
        }
        match (told, analysis.shape) {
            (Some(told), Some(shape)) if told.shape == shape => Readiness::Ready,
            (Some(told), Some(shape)) => self.renew_bind(known, (freshness, told), (analysis.since, shape), out),
            (None, Some(shape)) => match known.statement.description(shape) {
                Some(description) => {
                    self.change_prepared(&known.name, |prepared| prepared.description = Some(description));
                    Readiness::Ready
                }
                None => self.describe_bind(known, analysis.since, false, out),
            },
            (_, None) => self.describe_bind(known, analysis.since, told.is_some(), out),
        }
    }

    /// The server has another description than the client.
    fn renew_bind(
        &mut self,
        known: &mut NamedStatement,
        (freshness, told): (Freshness, &Description),
        (since, shape): (AnalysisTime, StatementShape),
        out: &mut Vec<u8>,
    ) -> Readiness {
        let description = known.statement.description(shape);
        if since < freshness.parsed {
            // The client has parsed it later than the server: it may be the server's analysis that is outdated.
            self.server.statements.mark_stale(known.statement.digest());
        } else if description.is_some_and(|description| description.parameters != told.parameters) {
            // As Postgres, which keeps the types of the parameters when it analyses a statement again.
            self.adapt(known, Some(&told.parameters));
        } else {
            return Readiness::Changed;
        }
        let analysis = self.teach_known(known, freshness.oldest, out);
        if analysis.shape == Some(told.shape) {
            return Readiness::Ready;
        }
        self.describe_bind(known, analysis.since, true, out)
    }

    /// Asks the server for a description if that was not done yet. A Bind has to wait for it if the client knows one.
    fn describe_bind(
        &mut self,
        known: &NamedStatement,
        since: AnalysisTime,
        waits: bool,
        out: &mut Vec<u8>,
    ) -> Readiness {
        let asked = self.shapes.asked.get(&known.statement.digest()).filter(|asked| asked.0 == since);
        if let Some((_, name)) = asked {
            // The answer is the client's description too if it is for the same name.
            if !waits && *name == known.name {
                return Readiness::Ready;
            }
        } else {
            self.ask_shape(known, since, out);
            if !waits {
                return Readiness::Ready;
            }
        }
        // The client's Sync may be behind the Bind.
        frontend::flush(out);
        Readiness::Hold
    }

    fn ask_shape(&mut self, known: &NamedStatement, since: AnalysisTime, out: &mut Vec<u8>) {
        frontend::describe(ObjectKind::Statement, known.statement.server_name(), out);
        let described = self.note_asked(known.clone(), since);
        self.pending_replies.push(RequestKind::Describe(Some(described)), Disposition::Discard);
    }

    /// The server is asked, by the client or the gateway, to describe what it was sent at `since`.
    pub(super) fn note_asked(&mut self, known: NamedStatement, since: AnalysisTime) -> Box<Described> {
        self.shapes.asked.insert(known.statement.digest(), (since, known.name.clone()));
        Box::new(Described::Named(known, since))
    }

    /// The unnamed statement is prepared again: asks for its shape if the client has seen one.
    pub(super) fn ask_unnamed_shape(&mut self, out: &mut Vec<u8>) -> Readiness {
        let Some(stamp) = self.front.unnamed.as_ref().filter(|unnamed| unnamed.shape.is_some()).map(|it| it.stamp)
        else {
            return Readiness::Ready;
        };
        frontend::describe(ObjectKind::Statement, b"", out);
        frontend::flush(out);
        self.pending_replies
            .push(RequestKind::Describe(Some(Box::new(Described::Unnamed(stamp)))), Disposition::Discard);
        self.shapes.unnamed = UnnamedCheck::RequestKind;
        Readiness::Hold
    }

    /// Whether the unnamed statement that the server has may be bound.
    pub(super) fn unnamed_readiness(&mut self) -> Readiness {
        match self.shapes.unnamed {
            UnnamedCheck::Passed => Readiness::Ready,
            UnnamedCheck::RequestKind => Readiness::Hold,
            UnnamedCheck::Changed => {
                self.shapes.unnamed = UnnamedCheck::Passed;
                if let Some(unnamed) = &mut self.front.unnamed {
                    unnamed.shape = None;
                }
                Readiness::Changed
            }
        }
    }

    /// A ParameterDescription.
    pub(super) fn note_parameters(&mut self, body: &[u8]) {
        if self.pending_replies.is_describing() {
            self.shapes.parameters.clear();
            self.shapes.parameters.extend_from_slice(body);
        }
    }

    /// A statement was described.
    pub(super) fn note_shape(
        &mut self,
        described: Described,
        to: Disposition,
        columns: Option<&[u8]>,
    ) -> Result<(), ExchangeError> {
        let description = Description::decode(&self.shapes.parameters, columns).map_err(ExchangeError::BadServer)?;
        match described {
            Described::Named(known, since) => {
                let digest = known.statement.digest();
                self.forget_asked(digest, since);
                self.server.statements.set_shape(digest, since, description.shape);
                let description = known.statement.share_description(description);
                self.change_prepared(&known.name, |prepared| match &mut prepared.description {
                    // It is compared when the Bind that waits comes again.
                    Some(_) if to == Disposition::Discard => {}
                    told => *told = Some(description),
                });
            }
            Described::Unnamed(stamp) => self.note_unnamed_shape(stamp, to, description.shape),
        }
        Ok(())
    }

    fn forget_asked(&mut self, digest: StatementDigest, since: AnalysisTime) {
        if self.shapes.asked.get(&digest).is_some_and(|asked| asked.0 == since) {
            self.shapes.asked.remove(&digest);
        }
    }

    fn note_unnamed_shape(&mut self, stamp: u64, to: Disposition, shape: StatementShape) {
        let Some(unnamed) = self.front.unnamed.as_mut().filter(|unnamed| unnamed.stamp == stamp) else { return };
        if to == Disposition::Forward {
            unnamed.shape = Some(shape);
        }
        let is_same = unnamed.shape == Some(shape);
        self.shapes.unnamed = if is_same { UnnamedCheck::Passed } else { UnnamedCheck::Changed };
    }

    /// A Describe has failed or is skipped.
    pub(super) fn undo_describe(&mut self, described: Described, outdated: bool) {
        match described {
            Described::Named(known, since) => {
                self.forget_asked(known.statement.digest(), since);
                if outdated {
                    self.renew_statement(&known);
                }
            }
            Described::Unnamed(_) => self.shapes.unnamed = UnnamedCheck::Passed,
        }
    }

    /// The client takes the next analysis as it is, and this server makes a fresh one.
    pub(super) fn renew_statement(&mut self, known: &NamedStatement) {
        self.server.statements.mark_stale(known.statement.digest());
        if let Some(statements) = &mut self.front.statements {
            statements.require_fresh(&known.name, self.catalog.changes().now());
        }
    }

    /// Whether an error may come from an analysis that is outdated: changed columns, types of parameters or objects, or an object
    /// that is gone ("cache lookup failed").
    pub(super) fn may_be_outdated(&mut self, fields: &ErrorFields<'_>) -> bool {
        let Some(code) = fields.code() else { return false };
        if code == sqlstate::INTERNAL_ERROR || code == sqlstate::FEATURE_NOT_SUPPORTED {
            self.catalog.changes().record(&self.plan.dbname);
        }
        if code == sqlstate::INTERNAL_ERROR {
            self.server.statements.mark_all_stale();
        }
        ["0A", "22", "26", "42", "XX"].iter().any(|class| code.as_str().starts_with(class))
    }

    /// A command is done: the catalogue may have changed, as soon as its transaction is committed.
    pub(super) fn note_catalog_change(&mut self, tag: &[u8]) {
        self.server.changes_catalog |= may_change_catalog(tag);
    }

    /// A transaction may have ended.
    pub(super) fn settle_catalog_change(&mut self, status: TxStatus) {
        if self.server.changes_catalog && status == TxStatus::Idle {
            self.server.changes_catalog = false;
            self.catalog.changes().record(&self.plan.dbname);
        }
    }

    /// A change of the catalogue may be rolled back: what the server has analysed in its course is outdated.
    pub(super) fn undo_catalog_change(&mut self) {
        if self.server.changes_catalog {
            self.server.statements.mark_all_stale();
        }
    }
}
