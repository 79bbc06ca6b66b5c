//! From the client to the server: which messages pass as they are, and which are put in other words.
//!
//! Only messages that name a prepared statement are rewritten. A statement that the server must know first is put in front,
//! into the same write. Settings go before all else, and nothing follows them until the server has taken them.

use std::rc::Rc;

use tidegate_link::Chunk;
use tidegate_wire::{
    backend::{self, TxStatus},
    frame::HEADER,
    frontend::{self, Bind, Execute, ObjectKind, ObjectName, Parse, Query},
    scan::{Delivery, ScanStep, Scanner},
};

use super::{
    Exchange, ExchangeError, QUEUE_BYTES_MAX, STATEMENT_CHANGES_MAX,
    copy::is_of_copy,
    pending_replies::{Again, Described, Disposition, Forgotten, RequestKind, Undo, Use},
    shapes::Readiness,
    splice::Splice,
};
use tidegate_query_log::writer::QueryTracker;
use tidegate_session_state::{
    params::{ROLE, Settings},
    statements::{Analysis, AnalysisTime, ClientStatements, NAME_PREFIX, NamedStatement, Statement, StatementShape},
};
use tidegate_sql::{
    StatementDigest,
    classify::{Pins, SessionChange, StatementEffects, classify, function_call_pins},
};

use crate::server::ResetNeed;

/// A client's unnamed statement, which outlives the flight that prepared it.
#[derive(Debug)]
pub struct Unnamed {
    /// The Parse message.
    pub(super) message: Box<[u8]>,
    pub(super) traits: StatementEffects,
    /// Tells this statement from the client's earlier ones.
    pub(super) stamp: u64,
    /// The shape that a Describe of it returned to the client.
    pub(super) shape: Option<StatementShape>,
}

impl Unnamed {
    #[cfg(test)]
    pub(super) fn of(message: &[u8]) -> Self {
        Self { message: message.into(), traits: StatementEffects::default(), stamp: 1, shape: None }
    }

    /// It was prepared by that message, and leaves nothing behind.
    pub(super) fn is(&self, message: &[u8]) -> bool {
        *self.message == *message && self.traits.is_plain()
    }
}

/// Which messages of a client have to be seen whole.
fn want(tag: u8) -> Delivery {
    match tag {
        frontend::COPY_DATA | frontend::FUNCTION_CALL => Delivery::Stream,
        _ => Delivery::Whole,
    }
}

impl Exchange<'_> {
    /// Takes a chunk of the client's messages. Returns false when the client has said farewell.
    pub(super) fn forward(&mut self, chunk: Chunk) -> Result<bool, ExchangeError> {
        if self.forward_fast_path(&chunk) {
            self.server.link().write(chunk);
            return Ok(true);
        }
        self.pending_replies.unfold();
        let mut splice = Splice::default();
        let (mut at, mut held_from) = (0, None);
        self.held_at = None;
        let mut scanner = std::mem::replace(&mut self.scanner, Scanner::new(HEADER));
        let stays = loop {
            if self.must_wait_for_reset() && scanner.is_between_messages() {
                // Whether the next message is whole or not.
                (held_from, self.held_at) = (Some(at), Some(self.pending_replies.progress));
                break true;
            }
            if splice.written() >= QUEUE_BYTES_MAX && scanner.is_between_messages() {
                // Statements that are taught again may be many times as long as what asks for them.
                held_from = Some(at);
                break true;
            }
            match scanner.step(&chunk, at, want).map_err(ExchangeError::BadClient)? {
                ScanStep::Message { tag: frontend::TERMINATE, .. }
                | ScanStep::Carried { tag: frontend::TERMINATE, .. } => {
                    break false;
                }
                ScanStep::Message { tag, end } => {
                    let words = self.translate_in_turn(tag, &chunk[at..end])?;
                    let is_held = matches!(words, Words::Hold(_));
                    put(words, &mut splice, &chunk, at, end);
                    if is_held {
                        (held_from, self.held_at) = (Some(at), Some(self.pending_replies.progress));
                        break true;
                    }
                    at = end;
                }
                ScanStep::Carried { tag, end } => {
                    let mut message = scanner.take_carry();
                    let words = self.translate_in_turn(tag, &message)?;
                    if matches!(words, Words::Hold(_)) {
                        put(words, &mut splice, &chunk, at, at);
                        message.extend_from_slice(&chunk[end..]);
                        (self.held, self.held_at) = (Some(message.into()), Some(self.pending_replies.progress));
                        break true;
                    }
                    match words {
                        Words::Other(bytes) => splice.put_vec(&chunk, bytes),
                        _ => splice.put_vec(&chunk, message),
                    }
                    at = end;
                }
                ScanStep::StreamHead { tag, end } => {
                    self.note_streamed(tag, &chunk[end..]);
                    self.on_message(scanner.carry().len());
                    splice.put_vec(&chunk, scanner.carry().to_vec());
                    at = end;
                }
                ScanStep::Stream { tag, end, first, .. } => {
                    if first {
                        self.note_streamed(tag, &chunk[at + HEADER..end]);
                    }
                    self.on_message(end - at);
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

    /// Sends what has become of a chunk, but for what is held of it.
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
            self.hurry_copy();
        }
    }

    /// A message that passes in pieces; `body` is what has arrived of it.
    fn note_streamed(&mut self, tag: u8, body: &[u8]) {
        match tag {
            _ if self.pending_replies.skipping => {}
            frontend::FUNCTION_CALL => {
                let pins = pins_of_body(body);
                if self.keeps_state_apart() && !pins.is_empty() {
                    self.add_pins(pins);
                }
                self.note_end_of_pipeline();
                self.pending_replies.push(RequestKind::FunctionCall, Disposition::Forward);
                self.query_tracker.iter_mut().for_each(QueryTracker::on_function_call);
            }
            _ => self.pending_replies.note_copy_data(),
        }
    }

    /// A call of a function by its number.
    fn call(&mut self, body: &[u8]) -> Words {
        let traits = StatementEffects { pins: pins_of_body(body), ..StatementEffects::default() };
        let Some(refusal) = self.pin(&traits) else {
            self.note_streamed(frontend::FUNCTION_CALL, body);
            return Words::Same;
        };
        self.query_tracker.iter_mut().for_each(QueryTracker::on_function_call);
        self.note_end_of_pipeline();
        self.server.unnamed = None;
        self.expect(RequestKind::Query(None, None));
        let mut out = Vec::new();
        frontend::query(refusal.as_bytes(), &mut out);
        Words::Other(out)
    }

    /// Whether the server may be on its way back to settings of its own, so that all that follows waits.
    #[inline]
    fn must_wait_for_reset(&self) -> bool {
        self.resetting
            && self.pending_replies.is_pipelined()
            && !self.pending_replies.skipping
            && !self.pending_replies.copy_in
    }

    /// Whether what a message means depends on how an earlier flight of the same pipeline ends. Rare: a client that
    /// prepares a statement and, behind a Sync, uses it without having read the reply; the wait is for that reply.
    fn must_wait(&self, tag: u8, message: &[u8]) -> bool {
        if !self.pending_replies.is_pipelined() || self.pending_replies.copy_in {
            return false;
        }
        if !is_of_copy(tag) && self.pending_replies.is_copy_undecided() {
            return true;
        }
        if self.pending_replies.skipping {
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
                    self.gives_up_known(change.as_deref()) || self.forgets_undecided(change.as_deref())
                })
            }
            _ if !self.pending_replies.is_naming() => false,
            frontend::PARSE => Parse::decode(body).is_ok_and(|parse| {
                let statement = self.catalog.intern(&parse, &self.front.settings, self.plan.identity());
                let usage = Use { name: parse.name, digest: Some(statement.digest()) };
                !parse.name.is_empty() && (self.is_undecided(parse.name) || self.pending_replies.is_undecided(usage))
            }),
            frontend::EXECUTE => {
                let change = self.front.portal_changes.of(body);
                self.forgets_undecided(change) || self.gives_up_undecided(change)
            }
            _ => false,
        }
    }

    /// Whether the gateway is to answer, which it can when nothing else is owed.
    fn gives_up_known(&self, change: Option<&SessionChange>) -> bool {
        let Some(SessionChange::Deallocate(name)) = change else { return false };
        self.known(name.as_bytes()).is_some() || self.is_undecided(name.as_bytes())
    }

    fn gives_up_undecided(&self, change: Option<&SessionChange>) -> bool {
        matches!(change, Some(SessionChange::Deallocate(name)) if self.is_undecided(name.as_bytes()))
    }

    fn forgets_undecided(&self, change: Option<&SessionChange>) -> bool {
        change.is_some_and(SessionChange::drops_statements) && self.pending_replies.is_any_undecided()
    }

    fn is_undecided(&self, name: &[u8]) -> bool {
        if name.is_empty() {
            return self.pending_replies.is_unnamed_undecided();
        }
        self.pending_replies.is_naming() && {
            let digest = self.known(name).map(|known| known.statement.digest());
            self.pending_replies.is_undecided(Use { name, digest })
        }
    }

    fn translate_in_turn(&mut self, tag: u8, message: &[u8]) -> Result<Words, ExchangeError> {
        if self.must_wait(tag, message) { Ok(Words::Hold(Vec::new())) } else { self.translate(tag, message) }
    }

    /// Notes what the server will answer to a message, and says in which words the server gets it.
    fn translate(&mut self, tag: u8, message: &[u8]) -> Result<Words, ExchangeError> {
        let body = &message[HEADER..];
        if self.pending_replies.drops {
            if tag == frontend::SYNC {
                self.pending_replies.end_drops();
                self.answered = true;
            }
            return Ok(Words::Other(Vec::new()));
        }
        if self.pending_replies.skipping && tag != frontend::SYNC {
            return Ok(Words::Same);
        }
        if tag == frontend::BIND {
            return self.bind(message);
        }
        self.on_message(message.len());
        match tag {
            frontend::QUERY => return self.query(body),
            frontend::PARSE => return self.parse(message),
            frontend::DESCRIBE => return self.describe(message),
            frontend::CLOSE => return self.close(body),
            frontend::EXECUTE => return Ok(self.execute(message)),
            frontend::SYNC => self.expect(RequestKind::Sync),
            frontend::FUNCTION_CALL => return Ok(self.call(body)),
            frontend::COPY_DONE | frontend::COPY_FAIL => self.pending_replies.end_copy_in(),
            frontend::COPY_DATA => self.pending_replies.note_copy_data(),
            frontend::FLUSH => {}
            _ => return Err(ExchangeError::UnknownMessage(tag)),
        }
        Ok(Words::Same)
    }

    fn expect(&mut self, asked: RequestKind) {
        self.pending_replies.push(asked, Disposition::Forward);
    }

    fn query(&mut self, body: &[u8]) -> Result<Words, ExchangeError> {
        if !self.plan.pool.simple_query {
            return Err(ExchangeError::SimpleQuery);
        }
        let text = Query::decode(body).map_err(ExchangeError::BadClient)?.text;
        let traits = classify(text);
        if let Some(tracker) = &mut self.query_tracker {
            tracker.on_query(text);
        }
        self.note_end_of_pipeline();
        let unnamed = self.front.unnamed.take();
        self.server.unnamed = None;
        self.stats.query_count.add(1);
        if let Some(SessionChange::Deallocate(name)) = traits.change.as_deref()
            && self.deallocate(name.as_bytes())
        {
            return Ok(Words::Other(Vec::new()));
        }
        let undo = self.forget_for(traits.change.as_deref(), unnamed);
        if let Some(refusal) = self.pin(&traits) {
            self.expect(RequestKind::Query(None, undo));
            let mut out = Vec::new();
            frontend::query(refusal.as_bytes(), &mut out);
            return Ok(Words::Other(out));
        }
        self.resetting |= traits.change.as_deref().is_some_and(SessionChange::is_reset);
        self.expect(RequestKind::Query(traits.change, undo));
        Ok(Words::Same)
    }

    /// Answers the `DEALLOCATE` of a statement that the client prepared by the protocol, as PHP and Rails do: the server knows
    /// it by another name and keeps it for other clients. In a failed transaction the server is to refuse it.
    fn deallocate(&mut self, name: &[u8]) -> bool {
        if !self.tracks_statements() {
            return false;
        }
        if name.starts_with(NAME_PREFIX.as_bytes()) {
            // What a client calls by a name that is ours may be gone then.
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

    /// Forgets the client's statements if the statement that is now sent makes the server forget them: what the client
    /// prepares behind it in the same flight is new. Should it fail, the server has them still, so that each is closed
    /// before it is taught again.
    fn forget_for(&mut self, change: Option<&SessionChange>, unnamed: Option<Box<Unnamed>>) -> Undo {
        let forgets = change.is_some_and(SessionChange::drops_statements);
        if change == Some(&SessionChange::DiscardAll) {
            // Behind a second one that is on its way, what came before it counts too: it may fail.
            self.pins_behind.get_or_insert_default();
        }
        let statements = if forgets { self.front.statements.take() } else { None };
        if forgets {
            self.server.statements.mark_all_stale();
        }
        (unnamed.is_some() || statements.is_some()).then(|| Box::new(Forgotten { unnamed, statements }))
    }

    /// Keeps the client on this server for what a statement leaves behind, or gives the statement that refuses it.
    fn pin(&mut self, traits: &StatementEffects) -> Option<String> {
        self.note_reset_need(traits);
        if traits.pins.is_empty() || !self.keeps_state_apart() {
            return None;
        }
        let pins = if self.is_of_login() { traits.pins.without(Pins::USER) } else { traits.pins };
        if pins.is_empty() {
            return None;
        }
        if self.plan.pool.pin {
            self.add_pins(pins);
            return None;
        }
        Some(refusal(pins))
    }

    /// Notes what a statement may leave on the server that its client does not take along.
    #[inline]
    fn note_reset_need(&mut self, traits: &StatementEffects) {
        if traits.runs_code && self.keeps_state_apart() {
            self.server.needs_reset(ResetNeed::Code);
        }
        if traits.pins.has(Pins::ORIGIN) {
            self.server.needs_reset(ResetNeed::Connection);
        }
    }

    /// The client is the user of its login and has no role, nor is about to have one: to go back there changes nothing. Npgsql
    /// does so whenever its pool takes back a connection with prepared statements.
    fn is_of_login(&self) -> bool {
        let has_role = |settings: &Settings| settings.get(ROLE).is_some();
        self.pending_replies.has_no_replies_due()
            && self.pending.is_empty()
            && self.front.pins.is_empty()
            && !has_role(&self.front.settings)
            && !has_role(&self.front.startup_settings)
    }

    fn add_pins(&mut self, pins: Pins) {
        self.front.pins.add(pins);
        self.pins_behind.iter_mut().for_each(|behind| behind.add(pins));
    }

    fn parse(&mut self, message: &[u8]) -> Result<Words, ExchangeError> {
        self.stats.client_parse_count.add(1);
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
        // The server may have analysed the text for another client, but a Parse sees the catalogue of its own time.
        self.parse_on_server(&statement, Disposition::Forward, Some(parse.name), &mut out);
        Ok(Words::Other(out))
    }

    /// A statement that the server alone knows. Nobody will see when it is executed, so what it would do counts from here on.
    fn parse_untracked(&mut self, parse: &Parse<'_>) -> Words {
        self.expect(RequestKind::Parse(None, None));
        self.stats.server_parse_count.add(1);
        let traits = classify(parse.query);
        self.note_reset_need(&traits);
        if !self.keeps_state_apart() {
            let has_room = self.front.statement_changes.0.len() < STATEMENT_CHANGES_MAX;
            self.front.statement_changes.bind(parse.name, traits.change.filter(|_| has_room));
            return Words::Same;
        }
        let StatementEffects { mut pins, change, .. } = traits;
        if change.is_some_and(|change| !matches!(*change, SessionChange::Deallocate(_) | SessionChange::DeallocateAll))
        {
            pins.add(Pins::SETTING);
        }
        let Some(refusal) = self.pin(&StatementEffects { pins, ..StatementEffects::default() }) else {
            return Words::Same;
        };
        let mut out = Vec::new();
        frontend::parse(parse.name, refusal.as_bytes(), &[], &mut out);
        Words::Other(out)
    }

    fn parse_unnamed(&mut self, parse: &Parse<'_>, message: &[u8]) -> Words {
        self.stats.server_parse_count.add(1);
        let traits = classify(parse.query);
        self.note_reset_need(&traits);
        let previous = self.front.unnamed.take();
        self.expect(RequestKind::ParseUnnamed(previous));
        if self.keeps_state_apart() {
            let stamp = self.front.next_stamp();
            self.front.unnamed = Some(Box::new(Unnamed { message: message.into(), traits, stamp, shape: None }));
            self.server.unnamed = Some((self.front.id, stamp));
        } else {
            self.front.unnamed_change = traits.change;
        }
        Words::Same
    }

    /// The client prepares under a name that it has already: the server is made to refuse that, in its own words, unless
    /// something else is wrong with the text. If the first Parse is still under way and fails, the second one succeeds.
    fn parse_again(
        &mut self,
        known: &NamedStatement,
        second: Rc<Statement>,
        message: &[u8],
    ) -> Result<Words, ExchangeError> {
        let mut out = Vec::new();
        let first = known.statement.clone();
        self.teach(&first, AnalysisTime::default(), &mut out);
        if !first.has_same_analysis_settings(&self.front.settings) {
            self.server.statements.mark_stale(first.digest());
        }
        frontend::rename_statement(message, first.server_name(), &mut out).map_err(ExchangeError::BadClient)?;
        self.expect(RequestKind::ParseAgain(Box::new(Again { name: (*known.name).into(), first, second })));
        Ok(Words::Other(out))
    }

    /// Appends what the server needs to have an analysis of `statement` that is not older than `oldest`.
    pub(super) fn teach(&mut self, statement: &Rc<Statement>, oldest: AnalysisTime, out: &mut Vec<u8>) -> Analysis {
        match self.server.statements.find(statement.digest(), oldest) {
            Some(analysis) => analysis,
            None => self.parse_on_server(statement, Disposition::Discard, None, out),
        }
    }

    /// Appends the Parse of `statement`, behind a Close of what has to go before.
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
        self.stats.server_parse_count.add(1);
        self.server.note_statements();
        if may_be_read_otherwise {
            self.doubt(statement.digest());
        }
        Analysis { since, shape: None }
    }

    /// What was asked before may change by what a statement is read that is taught now.
    fn doubt(&mut self, taught: StatementDigest) {
        if self.doubtful.len() >= DOUBTFUL_MAX {
            self.give_up_doubtful();
        }
        self.doubtful.push(taught);
    }

    /// The server has them as nobody can say: each is taught anew before its next use.
    pub(super) fn give_up_doubtful(&mut self) {
        self.doubtful.drain(..).for_each(|digest| self.server.statements.mark_stale(digest));
    }

    fn bind(&mut self, message: &[u8]) -> Result<Words, ExchangeError> {
        let bind = Bind::decode(&message[HEADER..]).map_err(ExchangeError::BadClient)?;
        if bind.statement.is_empty() {
            return self.bind_unnamed(message, &bind);
        }
        let found = self.front.statements.as_ref().and_then(|statements| statements.get_prepared(bind.statement));
        let Some((mut known, freshness, told)) =
            found.map(|(known, prepared)| (known, prepared.freshness, prepared.description.clone()))
        else {
            self.note_bind(message, &bind, None);
            let change = self.front.statement_changes.0.get(bind.statement).cloned();
            self.front.portal_changes.bind(bind.portal, change);
            self.read_config_values(&bind);
            let words = self.behind_no_other(bind.statement, message);
            self.expect(RequestKind::Bind(None));
            return Ok(words);
        };
        if let Some(refusal) = self.pin(known.statement.effects()) {
            self.note_bind(message, &bind, Some(&known.statement));
            self.front.portal_changes.bind(bind.portal, known.statement.effects().change.clone());
            let words = self.bind_refusal(&refusal, bind.portal);
            self.expect(RequestKind::Bind(None));
            return Ok(words);
        }
        let mut out = Vec::with_capacity(message.len() + 32);
        match self.prepare_bind(&mut known, freshness, told.as_deref(), &mut out) {
            Readiness::Ready => {}
            Readiness::Hold => return Ok(self.hold(out)),
            Readiness::Changed => {
                self.note_bind(message, &bind, Some(&known.statement));
                self.renew_statement(&known);
                return self.bind_changed(message, out);
            }
        }
        let statement = known.statement.clone();
        self.note_bind(message, &bind, Some(&statement));
        self.front.portal_changes.bind(bind.portal, statement.effects().change.clone());
        self.read_config_values(&bind);
        self.expect(RequestKind::Bind(Some(known)));
        frontend::rename_statement(message, statement.server_name(), &mut out).map_err(ExchangeError::BadClient)?;
        Ok(Words::Other(out))
    }

    /// The message comes again once the server has answered.
    fn hold(&mut self, out: Vec<u8>) -> Words {
        self.shapes.holds = true;
        Words::Hold(out)
    }

    /// Makes the server refuse a Bind, whose error is then put in the words of Postgres for changed columns.
    fn bind_changed(&mut self, message: &[u8], mut out: Vec<u8>) -> Result<Words, ExchangeError> {
        self.expect(RequestKind::BindChanged);
        frontend::rename_statement(message, NAME_UNKNOWN, &mut out).map_err(ExchangeError::BadClient)?;
        Ok(Words::Other(out))
    }

    /// A Bind is sent, which may have been held before.
    fn note_bind(&mut self, message: &[u8], bind: &Bind<'_>, known: Option<&Rc<Statement>>) {
        self.stats.bind_count.add(1);
        self.on_message(message.len());
        self.record_bind(bind, known);
    }

    /// A statement that is refused is bound to one that raises the refusal.
    fn bind_refusal(&mut self, refusal: &str, portal: &[u8]) -> Words {
        let mut out = Vec::new();
        frontend::parse(b"", refusal.as_bytes(), &[], &mut out);
        self.pending_replies.push(RequestKind::Parse(None, None), Disposition::Discard);
        self.server.unnamed = None;
        frontend::bind(&frontend::BindMessage { portal, ..frontend::BindMessage::default() }, &mut out);
        Words::Other(out)
    }

    /// The unnamed statement is the client's own: if another client has used this server since, it is prepared again.
    fn bind_unnamed(&mut self, message: &[u8], bind: &Bind<'_>) -> Result<Words, ExchangeError> {
        let Some((stamp, traits)) = self.front.unnamed.as_ref().map(|unnamed| (unnamed.stamp, unnamed.traits.clone()))
        else {
            self.note_bind(message, bind, None);
            let change = self.front.unnamed_change.clone();
            self.front.portal_changes.bind(bind.portal, change);
            self.read_config_values(bind);
            let words = self.behind_no_unnamed(message);
            self.expect(RequestKind::Bind(None));
            return Ok(words);
        };
        if let Some(refusal) = self.pin(&traits) {
            self.note_bind(message, bind, None);
            self.front.portal_changes.bind(bind.portal, None);
            let words = self.bind_refusal(&refusal, bind.portal);
            self.expect(RequestKind::Bind(None));
            return Ok(words);
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
        self.read_config_values(bind);
        self.expect(RequestKind::Bind(None));
        Ok(match again {
            None => Words::Same,
            Some(mut out) => {
                out.extend_from_slice(message);
                Words::Other(out)
            }
        })
    }

    /// The client has no unnamed statement, but the server may have another client's, or one of ours: it is closed, so that the
    /// server refuses the message in its own words.
    fn behind_no_unnamed(&mut self, message: &[u8]) -> Words {
        if !self.keeps_state_apart() {
            return Words::Same;
        }
        let mut out = Vec::with_capacity(message.len() + HEADER + 2);
        frontend::close(ObjectKind::Statement, b"", &mut out);
        self.pending_replies.push(RequestKind::Close(None), Disposition::Discard);
        self.server.unnamed = None;
        out.extend_from_slice(message);
        Words::Other(out)
    }

    /// The client has no statement of this name. If the server has one that the gateway has taught it, that is closed, so that
    /// the server refuses the message in its own words.
    fn behind_no_other(&mut self, name: &[u8], message: &[u8]) -> Words {
        if !name.starts_with(NAME_PREFIX.as_bytes()) || !self.tracks_statements() {
            return Words::Same;
        }
        let Some(digest) = self.server.statements.remove_by_name(name) else { return Words::Same };
        let mut out = Vec::with_capacity(message.len() + HEADER + name.len() + 2);
        frontend::close(ObjectKind::Statement, name, &mut out);
        self.pending_replies.push(RequestKind::Evict(digest, name.into()), Disposition::Discard);
        out.extend_from_slice(message);
        Words::Other(out)
    }

    fn prepare_unnamed_again(&mut self, stamp: u64) -> Option<Vec<u8>> {
        if self.server.unnamed == Some((self.front.id, stamp)) {
            return None;
        }
        self.server.unnamed = Some((self.front.id, stamp));
        self.pending_replies.push(RequestKind::Parse(None, None), Disposition::Discard);
        self.stats.server_parse_count.add(1);
        self.front.unnamed.as_ref().map(|unnamed| unnamed.message.to_vec())
    }

    fn describe(&mut self, message: &[u8]) -> Result<Words, ExchangeError> {
        let target = ObjectName::decode(&message[HEADER..]).map_err(ExchangeError::BadClient)?;
        if target.kind != ObjectKind::Statement {
            self.expect(RequestKind::Describe(None));
            return Ok(Words::Same);
        }
        if target.name.is_empty() {
            let Some(stamp) = self.front.unnamed.as_ref().map(|unnamed| unnamed.stamp) else {
                let words = self.behind_no_unnamed(message);
                self.expect(RequestKind::Describe(None));
                return Ok(words);
            };
            let prepared = self.prepare_unnamed_again(stamp);
            self.expect(RequestKind::Describe(Some(Box::new(Described::Unnamed(stamp)))));
            return Ok(prepared.map_or(Words::Same, |mut out| {
                out.extend_from_slice(message);
                Words::Other(out)
            }));
        }
        let found = self.front.statements.as_ref().and_then(|statements| statements.get_prepared(target.name));
        let Some((mut known, oldest)) = found.map(|(known, prepared)| (known, prepared.freshness.oldest)) else {
            let words = self.behind_no_other(target.name, message);
            self.expect(RequestKind::Describe(None));
            return Ok(words);
        };
        let mut out = Vec::new();
        let since = self.teach_known(&mut known, oldest, &mut out).since;
        let statement = known.statement.clone();
        let described = self.note_asked(known, since);
        self.expect(RequestKind::Describe(Some(described)));
        frontend::rename_statement(message, statement.server_name(), &mut out).map_err(ExchangeError::BadClient)?;
        Ok(Words::Other(out))
    }

    fn close(&mut self, body: &[u8]) -> Result<Words, ExchangeError> {
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
            return Ok(Words::Same);
        }
        if target.kind != ObjectKind::Statement || !self.tracks_statements() {
            self.front.statement_changes.close(target.name);
            self.expect(RequestKind::Close(None));
            return Ok(Words::Same);
        }
        // The server keeps the statement for other clients; only this client's name for it goes.
        let closed = self.front.statements.as_mut().and_then(|statements| statements.remove(target.name));
        let undo = closed.map(|prepared| Box::new((Box::from(target.name), prepared)));
        self.answer(RequestKind::Close(undo), backend::close_complete);
        Ok(Words::Other(Vec::new()))
    }

    fn record_bind(&mut self, bind: &Bind<'_>, known: Option<&Rc<Statement>>) {
        let Some(tracker) = &mut self.query_tracker else { return };
        let unnamed = self.front.unnamed.as_ref().filter(|_| bind.statement.is_empty());
        let text = unnamed.and_then(|unnamed| Parse::decode(&unnamed.message[HEADER..]).ok());
        tracker.on_bind(bind, known, text.as_ref().map(|parse| parse.query));
    }

    #[inline]
    fn on_message(&mut self, bytes: usize) {
        if let Some(tracker) = &mut self.query_tracker {
            tracker.add_bytes_in(bytes);
        }
    }

    fn execute(&mut self, message: &[u8]) -> Words {
        if let (Some(tracker), Ok(execute)) = (&mut self.query_tracker, Execute::decode(&message[HEADER..])) {
            tracker.on_execute(execute.portal);
        }
        self.stats.query_count.add(1);
        let change = self.front.portal_changes.of(&message[HEADER..]).cloned().map(Box::new);
        if let Some(SessionChange::Deallocate(name)) = change.as_deref()
            && let Some((mut out, undo)) = self.lend_name(name.as_bytes())
        {
            self.expect(RequestKind::Execute(change, undo));
            out.extend_from_slice(message);
            return Words::Other(out);
        }
        self.resetting |= change.as_deref().is_some_and(SessionChange::is_reset);
        let undo = self.forget_for(change.as_deref(), None);
        self.expect(RequestKind::Execute(change, undo));
        Words::Same
    }

    /// What makes the server know the client's statement of this name by that name, for the `DEALLOCATE` in its portal that
    /// is now to be executed: so the server finds it and answers in its own words, in a failed transaction too. psycopg
    /// gives its statements up in this way in pipeline mode.
    fn lend_name(&mut self, name: &[u8]) -> Option<(Vec<u8>, Undo)> {
        if !self.tracks_statements() {
            return None;
        }
        if name.starts_with(NAME_PREFIX.as_bytes()) {
            self.server.statements.mark_stale_by_name(name);
            return None;
        }
        let prepared = self.front.statements.as_mut()?.remove(name)?;
        let mut given_up = ClientStatements::default();
        given_up.restore(name, prepared);
        let mut out = Vec::with_capacity(64);
        frontend::parse(name, b"select", &[], &mut out);
        self.pending_replies.push(RequestKind::Parse(None, None), Disposition::Discard);
        Some((out, Some(Box::new(Forgotten { unnamed: None, statements: Some(Box::new(given_up)) }))))
    }

    fn known(&self, name: &[u8]) -> Option<NamedStatement> {
        self.front.statements.as_ref()?.get(name)
    }

    /// The gateway answers: at once if nothing is owed before it, else when its turn comes.
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

    /// Whether servers change hands between transactions.
    pub(super) fn keeps_state_apart(&self) -> bool {
        self.plan.pool.mode != tidegate_config::PoolMode::Session
    }
}

/// So many statements at most may be in doubt.
const DOUBTFUL_MAX: usize = 1024;

/// A statement that no server knows.
const NAME_UNKNOWN: &[u8] = b"tidegate_unknown";

/// What a call leaves behind, by the number of its function, which comes first. As long as that has not arrived it may be any.
fn pins_of_body(call: &[u8]) -> Pins {
    call.first_chunk().map_or(Pins::SETTING, |function| function_call_pins(u32::from_be_bytes(*function)))
}

/// In which words the server gets a message.
enum Words {
    Same,
    Other(Vec<u8>),
    /// The server gets these messages, and the client's message waits for their answers.
    Hold(Vec<u8>),
}

fn put(words: Words, splice: &mut Splice, chunk: &[u8], at: usize, end: usize) {
    match words {
        Words::Same => splice.pass(chunk, at, end),
        Words::Other(bytes) | Words::Hold(bytes) if bytes.is_empty() => {}
        Words::Other(bytes) | Words::Hold(bytes) => splice.put_vec(chunk, bytes),
    }
}

/// What the server forgets with a statement whose Parse it skipped.
pub(super) fn taken_back(asked: &RequestKind) -> Option<StatementDigest> {
    match asked {
        RequestKind::Parse(Some(statement), _) => Some(statement.digest()),
        _ => None,
    }
}

/// A statement that raises the refusal where the client's statement would have run, so that the transaction fails as
/// it would for any other error.
fn refusal(pins: Pins) -> String {
    format!(
        "DO $tidegate$BEGIN RAISE EXCEPTION USING ERRCODE = '0A000', \
         MESSAGE = 'this statement leaves session state behind ({pins}), which the pool does not keep', \
         HINT = 'Set pin = true for this database, or use session mode.'; END$tidegate$"
    )
}
