//! Client to server: forwards messages, and rewrites those that name a prepared statement.
//!
//! A statement that the server lacks is prepared first, in the same write. Settings precede all other messages, and nothing
//! follows them until the server has applied them.

use std::rc::Rc;

use tidegate_link::{Chunk, Splice};
use tidegate_wire::{
    backend::{self, TxStatus},
    frame::HEADER,
    frontend::{self, Bind, Execute, ObjectKind, ObjectName, Parse, Query},
    scan::{Delivery, ScanStep, Scanner},
};

use super::{Exchange, ExchangeError, QUEUE_BYTES_MAX, STATEMENT_CHANGES_MAX, copy::is_of_copy, shapes::Readiness};
use tidegate_config::Dialect;
use tidegate_pending_replies::{
    Described, Disposition, DroppedState, RepeatedParse, RequestKind, Skipped, StatementUse, Undo,
};
use tidegate_session_state::{
    params::{ROLE, Settings},
    statements::{
        Analysis, AnalysisTime, ClientStatement, ClientStatements, NAME_PREFIX, NamedStatement, StaleError, Statement,
    },
    unnamed::{PortalStatement, UnnamedStatement},
};
use tidegate_sql::{
    StatementDigest,
    classify::{Pins, SessionChange, StatementEffects, classify, function_call_pins},
};

use crate::server::ResetNeed;

/// Selects the client messages that are buffered whole.
fn delivery(tag: u8) -> Delivery {
    match tag {
        frontend::COPY_DATA | frontend::FUNCTION_CALL => Delivery::Stream,
        _ => Delivery::Whole,
    }
}

impl Exchange<'_> {
    /// Processes a chunk of client messages. Returns false after Terminate.
    pub(super) fn forward(&mut self, chunk: Chunk) -> Result<bool, ExchangeError> {
        if self.forward_fast_path(&chunk) {
            self.server.link().write(chunk);
            return Ok(true);
        }
        self.unfold();
        let mut splice = Splice::default();
        let (mut at, mut held_from) = (0, None);
        self.held_at = None;
        let mut scanner = std::mem::replace(&mut self.scanner, Scanner::new(HEADER));
        let stays = loop {
            if self.must_wait_for_reset() && scanner.is_between_messages() {
                // Applies to partially received messages too.
                (held_from, self.held_at) = (Some(at), Some(self.pending_replies.progress));
                break true;
            }
            if splice.written() >= QUEUE_BYTES_MAX && scanner.is_between_messages() {
                // The Parse messages of re-prepared statements may be many times longer than the client's messages.
                held_from = Some(at);
                break true;
            }
            match scanner.step(&chunk, at, delivery).map_err(ExchangeError::BadClient)? {
                ScanStep::Message { tag: frontend::TERMINATE, .. }
                | ScanStep::Carried { tag: frontend::TERMINATE, .. } => {
                    break false;
                }
                ScanStep::Message { tag, end } => {
                    let rewritten = self.rewrite_or_hold(tag, &chunk[at..end])?;
                    let is_held = matches!(rewritten, Rewrite::Hold(_));
                    put(rewritten, &mut splice, &chunk, at, end);
                    if is_held {
                        (held_from, self.held_at) = (Some(at), Some(self.pending_replies.progress));
                        break true;
                    }
                    at = end;
                }
                ScanStep::Carried { tag, end } => {
                    let mut message = scanner.take_carry();
                    let rewritten = self.rewrite_or_hold(tag, &message)?;
                    if matches!(rewritten, Rewrite::Hold(_)) {
                        put(rewritten, &mut splice, &chunk, at, at);
                        message.extend_from_slice(&chunk[end..]);
                        (self.held, self.held_at) = (Some(message.into()), Some(self.pending_replies.progress));
                        break true;
                    }
                    match rewritten {
                        Rewrite::Other(bytes) => splice.put_vec(&chunk, bytes),
                        _ => splice.put_vec(&chunk, message),
                    }
                    at = end;
                }
                ScanStep::StreamHead { tag, end } => {
                    self.note_streamed(tag, &chunk[end..]);
                    self.count_bytes_in(scanner.carry().len());
                    splice.put_vec(&chunk, scanner.carry().to_vec());
                    at = end;
                }
                ScanStep::Stream { tag, end, first, .. } => {
                    if first {
                        self.note_streamed(tag, &chunk[at + HEADER..end]);
                    }
                    self.count_bytes_in(end - at);
                    splice.pass(&chunk, at, end);
                    at = end;
                }
                ScanStep::NeedMore => break true,
            }
        };
        self.scanner = scanner;
        self.send(splice, chunk, held_from);
        Ok(stays)
    }

    /// Expands a fast-path entry. The client has no newer unnamed statement while such an entry is pending.
    #[inline]
    pub(super) fn unfold(&mut self) {
        self.pending_replies.unfold(self.front.unnamed.as_ref().map(|unnamed| unnamed.stamp));
    }

    /// Sends the rewritten chunk up to the held part.
    fn send(&mut self, splice: Splice, chunk: Chunk, held_from: Option<usize>) {
        let sent = match held_from {
            None => splice.finish(chunk),
            Some(at) => {
                let (sent, held) = splice.finish_before(chunk, at);
                self.held = held;
                sent
            }
        };
        self.server.link().write(sent);
        if self.held.is_some() && self.pending_replies.is_copy_undecided() {
            self.resolve_copy();
        }
    }

    /// Records a message that is streamed; `body` is the part received so far.
    fn note_streamed(&mut self, tag: u8, body: &[u8]) {
        match tag {
            _ if self.pending_replies.skipped() == Skipped::ByServer => {}
            frontend::FUNCTION_CALL => {
                let pins = pins_of_body(body);
                if self.keeps_state_apart() && !pins.is_empty() {
                    self.add_pins(pins);
                }
                self.check_pipeline_end();
                self.pending_replies.push(RequestKind::FunctionCall, Disposition::Forward);
                self.query_tracker.iter_mut().for_each(|tracker| tracker.on_function_call());
            }
            _ => self.pending_replies.note_copy_data(),
        }
    }

    /// Handles a FunctionCall, which names its function by OID.
    fn call(&mut self, body: &[u8]) -> Rewrite {
        let traits = StatementEffects { pins: pins_of_body(body), ..StatementEffects::default() };
        let Some(refusal) = self.pin(&traits) else {
            self.note_streamed(frontend::FUNCTION_CALL, body);
            return Rewrite::Same;
        };
        self.query_tracker.iter_mut().for_each(|tracker| tracker.on_function_call());
        self.check_pipeline_end();
        self.server.unnamed = None;
        self.expect(RequestKind::Query(None, None));
        let mut out = Vec::new();
        frontend::query(refusal.as_bytes(), &mut out);
        Rewrite::Other(out)
    }

    /// Returns whether the server may be returning to its own settings, so that all later messages wait.
    #[inline]
    fn must_wait_for_reset(&self) -> bool {
        self.resetting
            && self.pending_replies.is_pipelined()
            && self.pending_replies.skipped() != Skipped::ByServer
            && !self.pending_replies.is_copy_in()
    }

    /// Returns whether the meaning of a message depends on the result of an earlier segment of the pipeline. Rare: the client
    /// prepares a statement and uses it behind a Sync without reading the reply first.
    fn must_wait(&self, tag: u8, message: &[u8]) -> bool {
        if !self.pending_replies.is_pipelined() || self.pending_replies.is_copy_in() {
            return false;
        }
        if !is_of_copy(tag) && self.pending_replies.is_copy_undecided() {
            return true;
        }
        if self.pending_replies.skipped() == Skipped::ByServer {
            return false;
        }
        if !self.tracks_statements() {
            return false;
        }
        let body = &message[HEADER..];
        match tag {
            frontend::BIND => Bind::decode(body).is_ok_and(|bind| self.is_undecided(bind.statement)),
            frontend::DESCRIBE | frontend::CLOSE => ObjectName::decode(body)
                .is_ok_and(|target| target.kind == ObjectKind::Statement && self.is_undecided(target.name)),
            frontend::QUERY if self.front.statements.is_some() || self.pending_replies.is_naming() => {
                Query::decode(body).is_ok_and(|query| {
                    let change = classify(query.text).change;
                    self.deallocates_known(change.as_deref()) || self.drops_undecided(change.as_deref())
                })
            }
            _ if !self.pending_replies.is_naming() => false,
            frontend::PARSE => Parse::decode(body).is_ok_and(|parse| {
                let statement = self.catalog.intern(&parse, &self.front.settings, self.plan.identity());
                let usage = StatementUse { name: parse.name, digest: Some(statement.digest()) };
                !parse.name.is_empty() && (self.is_undecided(parse.name) || self.pending_replies.is_undecided(usage))
            }),
            frontend::EXECUTE => {
                let change = self.front.portal_changes.of(body);
                self.drops_undecided(change) || self.deallocates_undecided(change)
            }
            _ => false,
        }
    }

    /// Returns whether the gateway answers this `DEALLOCATE`, which requires that no reply is pending.
    fn deallocates_known(&self, change: Option<&SessionChange>) -> bool {
        let Some(SessionChange::Deallocate(name)) = change else { return false };
        self.known(name.as_bytes()).is_some() || self.is_undecided(name.as_bytes())
    }

    fn deallocates_undecided(&self, change: Option<&SessionChange>) -> bool {
        matches!(change, Some(SessionChange::Deallocate(name)) if self.is_undecided(name.as_bytes()))
    }

    fn drops_undecided(&self, change: Option<&SessionChange>) -> bool {
        change.is_some_and(SessionChange::drops_statements) && self.pending_replies.is_any_undecided()
    }

    fn is_undecided(&self, name: &[u8]) -> bool {
        if name.is_empty() {
            return self.pending_replies.is_unnamed_undecided();
        }
        self.pending_replies.is_naming() && {
            let digest = self.known(name).map(|known| known.statement.digest());
            self.pending_replies.is_undecided(StatementUse { name, digest })
        }
    }

    fn rewrite_or_hold(&mut self, tag: u8, message: &[u8]) -> Result<Rewrite, ExchangeError> {
        if self.must_wait(tag, message) { Ok(Rewrite::Hold(Vec::new())) } else { self.rewrite(tag, message) }
    }

    /// Records the expected reply to a message, and returns the message that the server receives.
    fn rewrite(&mut self, tag: u8, message: &[u8]) -> Result<Rewrite, ExchangeError> {
        let body = &message[HEADER..];
        match self.pending_replies.skipped() {
            Skipped::Nothing => {}
            Skipped::ByServer if tag == frontend::SYNC => {}
            Skipped::ByServer => return Ok(Rewrite::Same),
            Skipped::ByGateway if tag == frontend::SYNC => self.pending_replies.end_drops(),
            Skipped::ByGateway => return Ok(Rewrite::Other(Vec::new())),
        }
        if tag == frontend::BIND {
            return self.bind(message);
        }
        self.count_bytes_in(message.len());
        match tag {
            frontend::QUERY => return self.query(body),
            frontend::PARSE => return self.parse(message),
            frontend::DESCRIBE => return self.describe(message),
            frontend::CLOSE => return self.close(body),
            frontend::EXECUTE => return Ok(self.execute(message)),
            frontend::SYNC => {
                // PgBouncer counts what one Sync ends as a query, executed or not.
                let is_counted = std::mem::take(&mut self.executed) || self.plan.dialect == Dialect::Postgres;
                self.stats.query_count.add(u64::from(!is_counted));
                self.expect(RequestKind::Sync);
            }
            frontend::FUNCTION_CALL => return Ok(self.call(body)),
            frontend::COPY_DONE | frontend::COPY_FAIL => self.pending_replies.end_copy_in(),
            frontend::COPY_DATA => self.pending_replies.note_copy_data(),
            frontend::FLUSH => {}
            _ => return Err(ExchangeError::UnknownMessage(tag)),
        }
        Ok(Rewrite::Same)
    }

    fn expect(&mut self, asked: RequestKind) {
        self.pending_replies.push(asked, Disposition::Forward);
    }

    fn query(&mut self, body: &[u8]) -> Result<Rewrite, ExchangeError> {
        if !self.plan.pool.simple_query {
            return Err(ExchangeError::SimpleQuery);
        }
        let text = Query::decode(body).map_err(ExchangeError::BadClient)?.text;
        let traits = classify(text);
        if let Some(tracker) = &mut self.query_tracker {
            tracker.on_query(text);
        }
        self.check_pipeline_end();
        let unnamed = self.front.unnamed.take();
        self.server.unnamed = None;
        self.stats.query_count.add(1);
        if let Some(SessionChange::Deallocate(name)) = traits.change.as_deref()
            && self.deallocate(name.as_bytes())
        {
            return Ok(Rewrite::Other(Vec::new()));
        }
        let undo = self.forget_for(traits.change.as_deref(), unnamed);
        if let Some(refusal) = self.pin(&traits) {
            self.expect(RequestKind::Query(None, undo));
            let mut out = Vec::new();
            frontend::query(refusal.as_bytes(), &mut out);
            return Ok(Rewrite::Other(out));
        }
        self.resetting |= traits.change.as_deref().is_some_and(SessionChange::is_reset);
        self.expect(RequestKind::Query(traits.change, undo));
        Ok(Rewrite::Same)
    }

    /// Answers the `DEALLOCATE` of a protocol-level prepared statement, as sent by PHP and Rails: the server has it under
    /// another name and keeps it for other clients. In a failed transaction, the server itself must refuse it.
    fn deallocate(&mut self, name: &[u8]) -> bool {
        if !self.tracks_statements() {
            return false;
        }
        if name.starts_with(NAME_PREFIX.as_bytes()) {
            // A client may drop a statement by a name of the gateway.
            self.server.statements.mark_stale_by_name(name);
        }
        let may = self.pending_replies.is_quiet() && self.pending_replies.status != TxStatus::Failed;
        let statements = self.front.statements.as_mut().filter(|_| may);
        if statements.and_then(|statements| statements.remove(name)).is_none() {
            return false;
        }
        let mut out = Vec::with_capacity(24);
        backend::command_complete(b"DEALLOCATE", &mut out);
        backend::ready_for_query(self.pending_replies.status, &mut out);
        if let Some(tracker) = &mut self.query_tracker {
            tracker.on_synthesized_reply(out.len(), b"DEALLOCATE\0", self.pending_replies.status);
        }
        self.front.link.write(out);
        self.answered = true;
        true
    }

    /// Drops the client's statements if the message makes the server drop them: statements that the client prepares later in
    /// the same segment are new. If the message fails, the server still has the old ones, so each is closed before it is
    /// prepared again.
    fn forget_for(&mut self, change: Option<&SessionChange>, unnamed: Option<Box<UnnamedStatement>>) -> Undo {
        let forgets = change.is_some_and(SessionChange::drops_statements);
        if change == Some(&SessionChange::DiscardAll) {
            // A second pending DISCARD ALL keeps the pins between the two, as it may fail.
            self.pins_behind.get_or_insert_default();
        }
        let statements = if forgets { self.front.statements.take() } else { None };
        if forgets {
            self.server.statements.mark_all_stale();
        }
        (unnamed.is_some() || statements.is_some()).then(|| Box::new(DroppedState { unnamed, statements }))
    }

    /// Pins the client for the session state that a statement leaves, or returns the statement that raises the refusal.
    fn pin(&mut self, traits: &StatementEffects) -> Option<String> {
        self.note_reset_need(traits);
        if traits.pins.is_empty() || !self.keeps_state_apart() {
            return None;
        }
        let pins = if self.is_login_user() { traits.pins.without(Pins::USER) } else { traits.pins };
        if pins.is_empty() {
            return None;
        }
        if self.plan.pool.pin {
            self.add_pins(pins);
            return None;
        }
        Some(refusal(pins))
    }

    /// Records session state that a statement may leave on the server and that does not move with the client.
    #[inline]
    fn note_reset_need(&mut self, traits: &StatementEffects) {
        if traits.runs_code && self.keeps_state_apart() {
            self.server.needs_reset(ResetNeed::Code);
        }
        if traits.pins.has(Pins::ORIGIN) {
            self.server.needs_reset(ResetNeed::Connection);
        }
    }

    /// Returns whether the client is its login user without a role, current or pending: a return to that user changes
    /// nothing. Npgsql sends one whenever its pool takes back a connection with prepared statements.
    fn is_login_user(&self) -> bool {
        let has_role = |settings: &Settings| settings.get(ROLE).is_some();
        self.pending_replies.has_no_replies_due()
            && !self.has_pending_changes()
            && self.front.pins.is_empty()
            && !has_role(&self.front.settings)
            && !has_role(&self.front.startup_settings)
    }

    fn add_pins(&mut self, pins: Pins) {
        self.front.pins.add(pins);
        self.pins_behind.iter_mut().for_each(|behind| behind.add(pins));
    }

    /// 1, or 0 where PgBouncer does not look at statements.
    pub(super) fn counts_statements(&self) -> u64 {
        u64::from(self.plan.dialect == Dialect::Postgres || self.plan.pool.prepared_statements_per_server > 0)
    }

    fn parse(&mut self, message: &[u8]) -> Result<Rewrite, ExchangeError> {
        self.stats.client_parse_count.add(self.counts_statements());
        let parse = Parse::decode(&message[HEADER..]).map_err(ExchangeError::BadClient)?;
        let is_kept = !self.tracks_statements();
        if let Some(tracker) = &mut self.query_tracker {
            tracker.on_parse(&parse, is_kept);
        }
        if parse.name.is_empty() {
            return Ok(self.parse_unnamed(&parse, message));
        }
        if !self.tracks_statements() {
            return Ok(self.parse_untracked(&parse));
        }
        let known = self.front.statements.as_ref().and_then(|statements| statements.get(parse.name));
        let statement = self.catalog.intern(&parse, &self.front.settings, self.plan.identity());
        if let Some(known) = known {
            return self.parse_again(&known, statement, message);
        }
        let freshness = self.freshness(&statement);
        self.front.statements.get_or_insert_default().insert(parse.name, statement.clone(), freshness);
        let mut out = Vec::new();
        // The server may have analysed the text for another client, but a Parse must use the current catalogue.
        self.parse_on_server(&statement, Disposition::Forward, Some(parse.name), &mut out);
        Ok(Rewrite::Other(out))
    }

    /// Handles a statement that the gateway does not track. Its execution is not visible, so its effects count from here on.
    fn parse_untracked(&mut self, parse: &Parse<'_>) -> Rewrite {
        self.expect(RequestKind::Parse(None, None));
        self.stats.server_parse_count.add(self.counts_statements());
        let traits = classify(parse.query);
        self.note_reset_need(&traits);
        if !self.keeps_state_apart() {
            let has_room = self.front.statement_changes.len() < STATEMENT_CHANGES_MAX;
            self.front.statement_changes.bind(parse.name, traits.change.filter(|_| has_room));
            return Rewrite::Same;
        }
        let StatementEffects { mut pins, change, .. } = traits;
        if change.is_some_and(|change| !matches!(*change, SessionChange::Deallocate(_) | SessionChange::DeallocateAll))
        {
            pins.add(Pins::SETTING);
        }
        let Some(refusal) = self.pin(&StatementEffects { pins, ..StatementEffects::default() }) else {
            return Rewrite::Same;
        };
        let mut out = Vec::new();
        frontend::parse(parse.name, refusal.as_bytes(), &[], &mut out);
        Rewrite::Other(out)
    }

    fn parse_unnamed(&mut self, parse: &Parse<'_>, message: &[u8]) -> Rewrite {
        self.stats.server_parse_count.add(self.counts_statements());
        let traits = classify(parse.query);
        self.note_reset_need(&traits);
        let previous = self.front.unnamed.take();
        self.expect(RequestKind::ParseUnnamed(previous));
        if self.keeps_state_apart() {
            let stamp = self.front.next_stamp();
            self.front.unnamed = Some(Box::new(UnnamedStatement::new(message, traits, stamp)));
            self.server.unnamed = Some((self.front.id, stamp));
        } else {
            self.front.unnamed_change = traits.change;
        }
        Rewrite::Same
    }

    /// Handles a Parse under a name that the client already uses. The server is made to return its own error, unless the text
    /// has another fault. If the first Parse is pending and fails, the second one succeeds.
    fn parse_again(
        &mut self,
        known: &NamedStatement,
        second: Rc<Statement>,
        message: &[u8],
    ) -> Result<Rewrite, ExchangeError> {
        let mut out = Vec::new();
        let first = known.statement.clone();
        self.ensure_prepared(&first, AnalysisTime::default(), &mut out);
        if !first.has_same_analysis_settings(&self.front.settings) {
            self.server.statements.mark_stale(first.digest());
        }
        frontend::rename_statement(message, first.server_name(), &mut out).map_err(ExchangeError::BadClient)?;
        self.expect(RequestKind::ParseAgain(Box::new(RepeatedParse { name: (*known.name).into(), first, second })));
        Ok(Rewrite::Other(out))
    }

    /// Appends the messages that give the server an analysis of `statement` not older than `oldest`.
    pub(super) fn ensure_prepared(
        &mut self,
        statement: &Rc<Statement>,
        oldest: AnalysisTime,
        out: &mut Vec<u8>,
    ) -> Analysis {
        match self.server.statements.find(statement.digest(), oldest) {
            Some(analysis) => analysis,
            None => self.parse_on_server(statement, Disposition::Discard, None, out),
        }
    }

    /// Appends the Parse of `statement`, preceded by the Close of each evicted statement.
    fn parse_on_server(
        &mut self,
        statement: &Rc<Statement>,
        to: Disposition,
        name: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Analysis {
        let limit = self.plan.pool.prepared_statements_per_server as usize;
        let since = self.catalog.changes().now();
        let evict = self.server.statements.add(statement, limit, since);
        let may_be_read_otherwise = !self.pending_replies.has_no_replies_due();
        for (digest, evicted) in evict {
            frontend::close(ObjectKind::Statement, &evicted, out);
            self.pending_replies.push(RequestKind::Evict(digest, evicted), Disposition::Discard);
        }
        out.extend_from_slice(statement.parse_message());
        self.pending_replies.push(RequestKind::Parse(Some(statement.clone()), name.map(Into::into)), to);
        self.stats.server_parse_count.add(self.counts_statements());
        self.server.note_statements();
        if may_be_read_otherwise {
            self.mark_doubtful(statement.digest());
        }
        Analysis { since, shape: None }
    }

    /// Marks a statement prepared now as doubtful: pending requests may change the settings that its analysis depends on.
    fn mark_doubtful(&mut self, digest: StatementDigest) {
        if self.doubtful.len() >= DOUBTFUL_MAX {
            self.expire_doubtful();
        }
        self.doubtful.push(digest);
    }

    /// Marks the doubtful statements stale, so that each is prepared again before its next use.
    pub(super) fn expire_doubtful(&mut self) {
        self.doubtful.drain(..).for_each(|digest| self.server.statements.mark_stale(digest));
    }

    fn bind(&mut self, message: &[u8]) -> Result<Rewrite, ExchangeError> {
        let bind = Bind::decode(&message[HEADER..]).map_err(ExchangeError::BadClient)?;
        if bind.statement.is_empty() {
            return self.bind_unnamed(message, &bind);
        }
        let found = self.prepared(bind.statement);
        let Some((mut known, freshness, seen)) =
            found.map(|(known, prepared)| (known, prepared.freshness, prepared.description.clone()))
        else {
            self.note_bind(message, &bind, None);
            let change = self.front.statement_changes.get(bind.statement).cloned().map(Box::new);
            self.front.portal_changes.bind(bind.portal, change);
            self.front.last_bound.set(bind.portal, PortalStatement::Untracked);
            self.read_config_values(&bind);
            let rewritten = self.close_foreign_named(bind.statement, message);
            self.expect(RequestKind::Bind(None));
            return Ok(rewritten);
        };
        if let Some(refusal) = self.pin(known.statement.effects()) {
            self.note_bind(message, &bind, Some(&known.statement));
            self.front.portal_changes.bind(bind.portal, known.statement.effects().change.clone());
            let rewritten = self.bind_refusal(&refusal, bind.portal);
            self.expect(RequestKind::Bind(None));
            return Ok(rewritten);
        }
        let mut out = Vec::with_capacity(message.len() + 32);
        match self.prepare_bind(&mut known, freshness, seen.as_deref(), &mut out) {
            Readiness::Ready => {}
            Readiness::Hold => return Ok(self.hold(out)),
            Readiness::Changed => {
                self.note_bind(message, &bind, Some(&known.statement));
                self.renew_statement(&known, StaleError::Columns);
                return self.bind_changed(message, out);
            }
        }
        let statement = known.statement.clone();
        self.note_bind(message, &bind, Some(&statement));
        self.front.portal_changes.bind(bind.portal, statement.effects().change.clone());
        self.front.last_bound.set(bind.portal, PortalStatement::Named(known.name.clone()));
        self.read_config_values(&bind);
        self.expect(RequestKind::Bind(Some(known)));
        frontend::rename_statement(message, statement.server_name(), &mut out).map_err(ExchangeError::BadClient)?;
        Ok(Rewrite::Other(out))
    }

    /// Holds the message, which is processed again after the server's reply.
    fn hold(&mut self, out: Vec<u8>) -> Rewrite {
        self.shapes.holds = true;
        Rewrite::Hold(out)
    }

    /// Makes the server refuse a Bind. The error is then replaced by that of Postgres for changed columns.
    fn bind_changed(&mut self, message: &[u8], mut out: Vec<u8>) -> Result<Rewrite, ExchangeError> {
        self.expect(RequestKind::BindChanged);
        frontend::rename_statement(message, NAME_UNKNOWN, &mut out).map_err(ExchangeError::BadClient)?;
        Ok(Rewrite::Other(out))
    }

    /// Records a Bind when it is sent, possibly after a hold.
    fn note_bind(&mut self, message: &[u8], bind: &Bind<'_>, known: Option<&Rc<Statement>>) {
        self.stats.bind_count.add(self.counts_statements());
        self.count_bytes_in(message.len());
        self.record_bind(bind, known);
    }

    /// Binds a refused statement to a statement that raises the refusal.
    fn bind_refusal(&mut self, refusal: &str, portal: &[u8]) -> Rewrite {
        let mut out = Vec::new();
        frontend::parse(b"", refusal.as_bytes(), &[], &mut out);
        self.pending_replies.push(RequestKind::Parse(None, None), Disposition::Discard);
        self.server.unnamed = None;
        frontend::bind(&frontend::BindMessage { portal, ..frontend::BindMessage::default() }, &mut out);
        Rewrite::Other(out)
    }

    /// Binds the client's unnamed statement, which is prepared again if another client has used this server since.
    fn bind_unnamed(&mut self, message: &[u8], bind: &Bind<'_>) -> Result<Rewrite, ExchangeError> {
        let Some((stamp, traits)) = self.front.unnamed.as_ref().map(|unnamed| (unnamed.stamp, unnamed.traits.clone()))
        else {
            self.note_bind(message, bind, None);
            let change = self.front.unnamed_change.clone();
            self.front.portal_changes.bind(bind.portal, change);
            self.front.last_bound.set(bind.portal, PortalStatement::Untracked);
            self.read_config_values(bind);
            let rewritten = self.close_foreign_unnamed(message);
            self.expect(RequestKind::Bind(None));
            return Ok(rewritten);
        };
        if let Some(refusal) = self.pin(&traits) {
            self.note_bind(message, bind, None);
            self.front.portal_changes.bind(bind.portal, None);
            let rewritten = self.bind_refusal(&refusal, bind.portal);
            self.expect(RequestKind::Bind(None));
            return Ok(rewritten);
        }
        let mut again = self.prepare_unnamed_again(stamp);
        let readiness = match &mut again {
            Some(out) => self.ask_unnamed_shape(out),
            None => self.unnamed_readiness(),
        };
        if readiness == Readiness::Hold {
            return Ok(self.hold(again.unwrap_or_default()));
        }
        self.note_bind(message, bind, None);
        if readiness == Readiness::Changed {
            return self.bind_changed(message, Vec::new());
        }
        self.front.portal_changes.bind(bind.portal, traits.change);
        self.front.last_bound.set(bind.portal, PortalStatement::Unnamed(stamp));
        self.read_config_values(bind);
        self.expect(RequestKind::Bind(None));
        Ok(match again {
            None => Rewrite::Same,
            Some(mut out) => {
                out.extend_from_slice(message);
                Rewrite::Other(out)
            }
        })
    }

    /// The client has no unnamed statement, but the server may have one of another client or of the gateway: a Close makes
    /// the server return its own error.
    fn close_foreign_unnamed(&mut self, message: &[u8]) -> Rewrite {
        if !self.keeps_state_apart() {
            return Rewrite::Same;
        }
        let mut out = Vec::with_capacity(message.len() + HEADER + 2);
        frontend::close(ObjectKind::Statement, b"", &mut out);
        self.pending_replies.push(RequestKind::Close(None), Disposition::Discard);
        self.server.unnamed = None;
        out.extend_from_slice(message);
        Rewrite::Other(out)
    }

    /// The client has no statement of this name. If the server has a statement of the gateway under it, a Close makes the
    /// server return its own error.
    fn close_foreign_named(&mut self, name: &[u8], message: &[u8]) -> Rewrite {
        if !name.starts_with(NAME_PREFIX.as_bytes()) || !self.tracks_statements() {
            return Rewrite::Same;
        }
        let Some(digest) = self.server.statements.remove_by_name(name) else { return Rewrite::Same };
        let mut out = Vec::with_capacity(message.len() + HEADER + name.len() + 2);
        frontend::close(ObjectKind::Statement, name, &mut out);
        self.pending_replies.push(RequestKind::Evict(digest, name.into()), Disposition::Discard);
        out.extend_from_slice(message);
        Rewrite::Other(out)
    }

    fn prepare_unnamed_again(&mut self, stamp: u64) -> Option<Vec<u8>> {
        if self.server.unnamed == Some((self.front.id, stamp)) {
            return None;
        }
        self.server.unnamed = Some((self.front.id, stamp));
        self.pending_replies.push(RequestKind::Parse(None, None), Disposition::Discard);
        self.stats.server_parse_count.add(self.counts_statements());
        self.front.unnamed.as_ref().map(|unnamed| unnamed.message.to_vec())
    }

    fn describe(&mut self, message: &[u8]) -> Result<Rewrite, ExchangeError> {
        let target = ObjectName::decode(&message[HEADER..]).map_err(ExchangeError::BadClient)?;
        if target.kind != ObjectKind::Statement {
            let described = self.described_portal(target.name);
            self.expect(RequestKind::Describe(described));
            return Ok(Rewrite::Same);
        }
        if target.name.is_empty() {
            let Some(stamp) = self.front.unnamed.as_ref().map(|unnamed| unnamed.stamp) else {
                let rewritten = self.close_foreign_unnamed(message);
                self.expect(RequestKind::Describe(None));
                return Ok(rewritten);
            };
            let prepared = self.prepare_unnamed_again(stamp);
            self.expect(RequestKind::Describe(Some(Box::new(Described::Unnamed(stamp)))));
            return Ok(prepared.map_or(Rewrite::Same, |mut out| {
                out.extend_from_slice(message);
                Rewrite::Other(out)
            }));
        }
        let found = self.prepared(target.name);
        let Some((mut known, oldest)) = found.map(|(known, prepared)| (known, prepared.freshness.oldest)) else {
            let rewritten = self.close_foreign_named(target.name, message);
            self.expect(RequestKind::Describe(None));
            return Ok(rewritten);
        };
        let mut out = Vec::new();
        let since = self.ensure_known_prepared(&mut known, oldest, &mut out).since;
        let statement = known.statement.clone();
        let described = self.note_asked(known, since);
        self.expect(RequestKind::Describe(Some(described)));
        frontend::rename_statement(message, statement.server_name(), &mut out).map_err(ExchangeError::BadClient)?;
        Ok(Rewrite::Other(out))
    }

    fn close(&mut self, body: &[u8]) -> Result<Rewrite, ExchangeError> {
        let target = ObjectName::decode(body).map_err(ExchangeError::BadClient)?;
        if let (Some(tracker), ObjectKind::Statement) = (&mut self.query_tracker, target.kind) {
            tracker.on_close_statement(target.name);
        }
        if target.kind == ObjectKind::Portal {
            self.front.portal_changes.close(target.name);
        }
        if target.kind == ObjectKind::Statement && target.name.is_empty() {
            let previous = self.front.unnamed.take();
            self.server.unnamed = None;
            self.expect(RequestKind::CloseUnnamed(previous));
            return Ok(Rewrite::Same);
        }
        if target.kind != ObjectKind::Statement || !self.tracks_statements() {
            self.front.statement_changes.close(target.name);
            self.expect(RequestKind::Close(None));
            return Ok(Rewrite::Same);
        }
        // The server keeps the statement for other clients; only this client's name is removed.
        let closed = self.front.statements.as_mut().and_then(|statements| statements.remove(target.name));
        let undo = closed.map(|prepared| Box::new((Box::from(target.name), prepared)));
        self.answer(RequestKind::Close(undo), backend::close_complete);
        Ok(Rewrite::Other(Vec::new()))
    }

    fn record_bind(&mut self, bind: &Bind<'_>, known: Option<&Rc<Statement>>) {
        let Some(tracker) = &mut self.query_tracker else { return };
        let unnamed = self.front.unnamed.as_ref().filter(|_| bind.statement.is_empty());
        let text = unnamed.and_then(|unnamed| Parse::decode(&unnamed.message[HEADER..]).ok());
        tracker.on_bind(bind, known, text.as_ref().map(|parse| parse.query));
    }

    #[inline]
    fn count_bytes_in(&mut self, bytes: usize) {
        if let Some(tracker) = &mut self.query_tracker {
            tracker.add_bytes_in(bytes);
        }
    }

    fn execute(&mut self, message: &[u8]) -> Rewrite {
        if let (Some(tracker), Ok(execute)) = (&mut self.query_tracker, Execute::decode(&message[HEADER..])) {
            tracker.on_execute(execute.portal);
        }
        self.stats.query_count.add(1);
        self.executed = true;
        let change = self.front.portal_changes.of(&message[HEADER..]).cloned().map(Box::new);
        if let Some(SessionChange::Deallocate(name)) = change.as_deref()
            && let Some((mut out, undo)) = self.alias_for_deallocate(name.as_bytes())
        {
            self.expect(RequestKind::Execute(change, undo));
            out.extend_from_slice(message);
            return Rewrite::Other(out);
        }
        self.resetting |= change.as_deref().is_some_and(SessionChange::is_reset);
        let undo = self.forget_for(change.as_deref(), None);
        self.expect(RequestKind::Execute(change, undo));
        Rewrite::Same
    }

    /// Prepares a statement under the client's name for a `DEALLOCATE` in the portal about to run, so that the server returns
    /// its own reply, in a failed transaction too. psycopg sends such a `DEALLOCATE` in pipeline mode.
    fn alias_for_deallocate(&mut self, name: &[u8]) -> Option<(Vec<u8>, Undo)> {
        if !self.tracks_statements() {
            return None;
        }
        if name.starts_with(NAME_PREFIX.as_bytes()) {
            self.server.statements.mark_stale_by_name(name);
            return None;
        }
        let prepared = self.front.statements.as_mut()?.remove(name)?;
        let mut dropped = ClientStatements::default();
        dropped.restore(name, prepared);
        let mut out = Vec::with_capacity(64);
        frontend::parse(name, b"select", &[], &mut out);
        self.pending_replies.push(RequestKind::Parse(None, None), Disposition::Discard);
        Some((out, Some(Box::new(DroppedState { unnamed: None, statements: Some(Box::new(dropped)) }))))
    }

    fn known(&self, name: &[u8]) -> Option<NamedStatement> {
        self.prepared(name).map(|(known, _)| known)
    }

    /// The client's statement of this name; none if PgBouncer would send the name to a server, as it does after
    /// `SET max_prepared_statements = 0`.
    fn prepared(&self, name: &[u8]) -> Option<(NamedStatement, &ClientStatement)> {
        let is_off = self.plan.dialect == Dialect::Pgbouncer && self.plan.pool.prepared_statements_per_server == 0;
        self.front.statements.as_ref().filter(|_| !is_off)?.get_prepared(name)
    }

    /// Synthesizes a reply: immediately if no reply is pending, otherwise when the entry reaches the front.
    fn answer(&mut self, asked: RequestKind, write: impl Fn(&mut Vec<u8>)) {
        if self.pending_replies.push(asked, Disposition::Synthesize) {
            let mut out = Vec::with_capacity(HEADER);
            write(&mut out);
            self.front.link.write(out);
        }
    }

    fn tracks_statements(&self) -> bool {
        self.plan.pool.prepared_statements_per_server > 0 && self.keeps_state_apart()
    }

    /// Returns whether servers change clients between transactions.
    pub(super) fn keeps_state_apart(&self) -> bool {
        self.plan.pool.mode != tidegate_config::PoolMode::Session
    }
}

/// Maximum number of doubtful statements.
const DOUBTFUL_MAX: usize = 1024;

/// Statement name that no server has.
const NAME_UNKNOWN: &[u8] = b"tidegate_unknown";

/// Pins that a FunctionCall causes, by the function's OID at its start. Without the complete OID, any function is possible.
fn pins_of_body(call: &[u8]) -> Pins {
    call.first_chunk().map_or(Pins::SETTING, |function| function_call_pins(u32::from_be_bytes(*function)))
}

/// Message that the server receives in place of the client's.
enum Rewrite {
    Same,
    Other(Vec<u8>),
    /// The server receives these messages, and the client's message waits for their replies.
    Hold(Vec<u8>),
}

fn put(rewritten: Rewrite, splice: &mut Splice, chunk: &[u8], at: usize, end: usize) {
    match rewritten {
        Rewrite::Same => splice.pass(chunk, at, end),
        Rewrite::Other(bytes) | Rewrite::Hold(bytes) if bytes.is_empty() => {}
        Rewrite::Other(bytes) | Rewrite::Hold(bytes) => splice.put_vec(chunk, bytes),
    }
}

/// Returns the statement that the server lacks if it skipped this Parse.
pub(super) fn skipped_parse(asked: &RequestKind) -> Option<StatementDigest> {
    match asked {
        RequestKind::Parse(Some(statement), _) => Some(statement.digest()),
        _ => None,
    }
}

/// Statement that raises the refusal in place of the client's statement, so that the transaction fails as after any other
/// error.
fn refusal(pins: Pins) -> String {
    format!(
        "DO $tidegate$BEGIN RAISE EXCEPTION USING ERRCODE = '0A000', \
         MESSAGE = 'this statement leaves session state behind ({pins}), which the pool does not keep', \
         HINT = 'Set pin = true for this database, or use session mode.'; END$tidegate$"
    )
}
