//! Tracks the queries of one exchange from their messages to their records.
//!
//! Queries in flight are in the order in which they were sent. The exchange reports how many replies are pending; queries
//! beyond that number, at the front, are complete. A completed query is written when the next one completes or at
//! ReadyForQuery, because a Sync may still fail for it (a deferred constraint).

use std::{rc::Rc, time::Instant};
use tidegate_sql::{
    error_values::ReportedError,
    trace_parent::{TraceParent, in_set_local, split_comment},
};

use tidegate_wire::{
    DecodeError,
    backend::{ErrorFields, TxStatus},
    frame::HEADER,
    frontend::{self, Bind, Execute, Parse, Query},
};

use super::{
    pipeline::PipelineTracker,
    recorder::{CompletedQuery, QueryServer, RecordingPolicy},
    rules::{RuleInput, apply_rules, statement_classes},
    session_log::SessionLog,
    single_query::SingleQuery,
    tracked_query::{NAME_BYTES_MAX, TrackedQuery, make_unique, micros_between, truncate_utf8},
};
use crate::record::{RecordDraft, RecordKind};
use tidegate_config::RecordUnit;
use tidegate_session_state::{params::Settings, statements::Statement};

/// Maximum length of a character in UTF-8.
const CHAR_BYTES_MAX: usize = 4;

/// The request that the server answered with an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailedRequest {
    /// A simple query, or no request: the error belongs to the query in flight, if there is one.
    Query,
    /// A Sync: the error belongs to the query before it.
    Sync,
    /// A message of the extended protocol: the server skips all messages up to the next Sync.
    Extended,
}

/// Tracks the queries of one exchange and writes each of them once, when it is complete.
pub struct QueryTracker {
    session_log: Rc<SessionLog>,
    policy: Rc<RecordingPolicy>,
    /// State for a single query; `None` once there is a pipeline.
    single: Option<SingleQuery>,
    /// State for everything else, created on demand.
    pipeline: Option<Box<PipelineTracker>>,
    now: Instant,
    /// Server fields of the records; `None` without a server.
    server: Option<Rc<[u8]>>,
    bytes_in: u64,
    bytes_out: u64,
    /// Position in the current chunk up to which bytes are counted.
    position: usize,
    wait_us: u64,
    /// Whether values were bound in this transaction: a later error of it may quote them.
    has_bound_values: bool,
    /// Parent of the queries of this transaction that have none of their own.
    transaction_parent: Option<TraceParent>,
}

impl std::fmt::Debug for QueryTracker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let in_flight = self.pipeline.as_ref().map_or(0, |pipeline| pipeline.in_flight.len());
        f.debug_struct("QueryTracker")
            .field("single", &self.single)
            .field("in_flight", &in_flight)
            .finish_non_exhaustive()
    }
}

impl QueryTracker {
    /// Starts at `now`; the client has waited for a server since `asked`.
    #[must_use]
    pub fn new(session_log: &Rc<SessionLog>, client: &Rc<Settings>, asked: Option<Instant>, now: Instant) -> Self {
        session_log.sync_settings(client);
        Self {
            session_log: session_log.clone(),
            policy: session_log.recorder.policy(),
            single: None,
            pipeline: None,
            now,
            server: None,
            bytes_in: 0,
            bytes_out: 0,
            position: 0,
            wait_us: session_log.unrecorded_wait_us.take() + asked.map_or(0, |asked| micros_between(asked, now)),
            has_bound_values: false,
            transaction_parent: None,
        }
    }

    /// Sets the server connection of the queries.
    #[must_use]
    pub fn with_server(mut self, server: QueryServer<'_>) -> Self {
        self.server = Some(self.session_log.recorder.server_fields(&server));
        self
    }

    fn bytes_max(&self) -> usize {
        self.policy.journal.statement_bytes as usize
    }

    /// Starts a chunk of the client or of the server.
    #[inline]
    pub fn on_chunk(&mut self, now: Instant) {
        self.now = now;
        self.position = 0;
    }

    /// Counts bytes of a client message.
    #[inline]
    pub fn add_bytes_in(&mut self, bytes: usize) {
        self.bytes_in += bytes as u64;
    }

    /// Counts the bytes of the server's chunk up to a position.
    #[inline]
    pub fn advance_to(&mut self, to: usize) {
        self.bytes_out += to.saturating_sub(self.position) as u64;
        self.position = to;
    }

    /// Subtracts bytes of the server that are not forwarded to the client.
    pub fn exclude_bytes_out(&mut self, bytes: usize) {
        self.bytes_out = self.bytes_out.saturating_sub(bytes as u64);
    }

    /// The state for a single query, if `accepts` is true for it.
    fn single_slot(&mut self, accepts: impl FnOnce(&SingleQuery) -> bool) -> Option<&mut SingleQuery> {
        if self.pipeline.is_some() || self.policy.journal.per == RecordUnit::Transaction {
            return None;
        }
        let (recorder, now) = (&self.session_log.recorder, self.now);
        let single = self.single.get_or_insert_with(|| SingleQuery::new(recorder.take_query(now)));
        accepts(single).then_some(single)
    }

    /// The state for several queries. The state of a single query is moved into it.
    fn pipeline(&mut self) -> &mut PipelineTracker {
        let Self { session_log, single, pipeline, .. } = self;
        pipeline.get_or_insert_with(|| {
            let mut pipeline = session_log.recorder.take_pipeline();
            let unused = single.take().and_then(|single| pipeline.absorb_single(single));
            unused.into_iter().for_each(|query| session_log.recorder.recycle_query(query));
            pipeline
        })
    }

    #[cfg(test)]
    pub(super) fn use_pipeline(&mut self) {
        self.pipeline();
    }

    /// The client sent a Query.
    pub fn on_query(&mut self, text: &[u8]) {
        self.note_set_local(text);
        let (bytes_max, now) = (self.bytes_max(), self.now);
        if let Some(single) = self.single_slot(SingleQuery::accepts_query) {
            single.begin(now).set_text(text, bytes_max);
            return self.execute_single();
        }
        self.pipeline().drop_unnamed();
        let mut query = self.session_log.recorder.take_query(now);
        query.new_statement().set_text(text, bytes_max);
        self.track(query);
    }

    fn note_set_local(&mut self, text: &[u8]) {
        if let Some(parent) = in_set_local(text) {
            self.transaction_parent = Some(parent);
        }
    }

    /// The client sent a FunctionCall.
    pub fn on_function_call(&mut self) {
        let query = self.session_log.recorder.take_query(self.now);
        self.track(query);
    }

    /// The client sent a Parse; `is_kept` if only the server stores the statement, as in session mode.
    pub fn on_parse(&mut self, parse: &Parse<'_>, is_kept: bool) {
        self.note_set_local(parse.query);
        let (bytes_max, now) = (self.bytes_max(), self.now);
        if !parse.name.is_empty() {
            self.session_log.note_parent(parse.name, split_comment(parse.query).1);
        }
        if is_kept && !parse.name.is_empty() {
            // A few bytes more than a record holds, so that the truncation is detected.
            self.session_log.remember_prepared(parse.name, truncate_utf8(parse.query, bytes_max + CHAR_BYTES_MAX).0);
        }
        if parse.name.is_empty()
            && let Some(single) = self.single_slot(SingleQuery::accepts_parse)
        {
            single.begin(now).set_text(parse.query, bytes_max);
            return single.note_parse();
        }
        let pipeline = self.pipeline();
        pipeline.unnamed_is_latest = parse.name.is_empty();
        let logged = if pipeline.unnamed_is_latest {
            &mut pipeline.unnamed_statement
        } else {
            make_unique(&mut pipeline.latest)
        };
        logged.set_text(parse.query, bytes_max);
        logged.name.extend_from_slice(truncate_utf8(parse.name, NAME_BYTES_MAX).0);
    }

    /// The client sent a Bind. `statement` is the catalogued statement of that name, `text` the text of the unnamed
    /// statement.
    pub fn on_bind(&mut self, bind: &Bind<'_>, statement: Option<&Rc<Statement>>, text: Option<&[u8]>) {
        if bind.portal.is_empty() && self.bind_single(bind, statement, text) {
            return;
        }
        let (bytes_max, capture, session_log) = (self.bytes_max(), self.policy.capture, self.session_log.clone());
        let pipeline = self.pipeline();
        let at = pipeline.portal(bind.portal);
        // Releases the statement of the portal first, because its allocation may be the one to reuse.
        pipeline.portals[at].1 = None;
        let logged = make_unique(&mut pipeline.latest);
        match (statement, text) {
            (Some(statement), _) => logged.set_statement(statement, bytes_max),
            (None, Some(text)) if pipeline.unnamed_statement.own_text.is_empty() => logged.set_text(text, bytes_max),
            (None, _) if bind.statement.is_empty() => logged.copy_from(&pipeline.unnamed_statement),
            (None, _) => match session_log.prepared.borrow().get(bind.statement) {
                Some(text) => logged.set_text(text, bytes_max),
                None => logged.clear(),
            },
        }
        logged.set_bind(bind, capture, bytes_max);
        if !bind.statement.is_empty() {
            logged.parent = session_log.parent_of(bind.statement);
        }
        let has_parameters = logged.has_parameters;
        pipeline.unnamed_is_latest = false;
        pipeline.portals[at].1 = Some(pipeline.latest.clone());
        self.has_bound_values |= has_parameters;
    }

    /// Binds the unnamed portal of a single query, if its statement is known. Returns `false` otherwise.
    fn bind_single(&mut self, bind: &Bind<'_>, statement: Option<&Rc<Statement>>, text: Option<&[u8]>) -> bool {
        let (bytes_max, capture, now) = (self.bytes_max(), self.policy.capture, self.now);
        let named_parent = self.session_log.parent_of(bind.statement);
        let logged = match (&mut self.single, statement, text) {
            (Some(single), None, _) if single.is_parsed() && bind.statement.is_empty() => single.statement_mut(),
            (_, None, None) => return false,
            (_, statement, text) => {
                let is_named = statement.is_some() || !bind.statement.is_empty();
                let Some(single) = self.single_slot(|single| single.accepts_bind(is_named)) else { return false };
                let logged = single.begin(now);
                match statement {
                    Some(statement) => logged.set_statement(statement, bytes_max),
                    None => logged.set_text(text.unwrap_or_default(), bytes_max),
                }
                logged
            }
        };
        logged.set_bind(bind, capture, bytes_max);
        if !bind.statement.is_empty() {
            logged.parent = named_parent;
        }
        self.has_bound_values |= logged.has_parameters;
        self.single.iter_mut().for_each(SingleQuery::note_bind);
        true
    }

    /// The client closed a statement.
    pub fn on_close_statement(&mut self, name: &[u8]) {
        self.session_log.forget_prepared(name);
    }

    /// The client sent an Execute.
    pub fn on_execute(&mut self, name: &[u8]) {
        if name.is_empty() && self.single.as_ref().is_some_and(SingleQuery::is_bound) {
            return self.execute_single();
        }
        let portals = &self.pipeline().portals;
        let bound = match name {
            b"" => portals.first(),
            _ => portals.iter().find(|(known, _)| known == name),
        };
        let logged = bound.and_then(|(_, logged)| logged.clone());
        let mut query = self.session_log.recorder.take_query(self.now);
        query.statement = logged;
        self.track(query);
    }

    fn track(&mut self, mut query: Box<TrackedQuery>) {
        query.bytes_in = std::mem::take(&mut self.bytes_in);
        query.wait_us = std::mem::take(&mut self.wait_us);
        self.pipeline().in_flight.push_back(query);
    }

    /// Moves the single query to the state in flight.
    fn execute_single(&mut self) {
        let Some(single) = &mut self.single else { return };
        let query = single.execute(self.now);
        query.bytes_in = std::mem::take(&mut self.bytes_in);
        query.wait_us = std::mem::take(&mut self.wait_us);
    }

    /// A command of the first query in flight completed.
    #[inline]
    pub fn on_command_complete(&mut self, body: &[u8]) {
        let single = self.single.as_mut().and_then(SingleQuery::in_flight);
        if let Some(query) = single.or_else(|| self.pipeline.as_mut()?.in_flight.front_mut()) {
            query.on_command_complete(body, self.policy.uses_statement_classes);
        }
    }

    /// The gateway answered the last query itself, while no reply of the server is pending.
    pub fn on_synthesized_reply(&mut self, bytes: usize, tag: &[u8], status: TxStatus) {
        self.bytes_out += bytes as u64;
        self.on_command_complete(tag);
        self.on_ready_for_query(status, 0);
    }

    /// Sets the number of queries whose replies are pending; queries before them are complete.
    #[inline]
    pub fn set_pending(&mut self, pending: usize) {
        if let Some(single) = &mut self.single
            && pending == 0
            && let Some(query) = single.end()
        {
            query.end(self.now);
            query.bytes_out = std::mem::take(&mut self.bytes_out);
        }
        if self.pipeline.is_some() {
            self.complete_pipelined(pending);
        }
    }

    fn complete_pipelined(&mut self, pending: usize) {
        while self.pipeline().in_flight.len() > pending {
            let Some(mut query) = self.pipeline().in_flight.pop_front() else { return };
            query.end(self.now);
            query.bytes_out = std::mem::take(&mut self.bytes_out);
            self.write_completed();
            self.pipeline().completed = Some(query);
        }
    }

    /// The server answered the first pending request with an error; `pending` is the number of queries that remain.
    pub fn on_error_response(&mut self, fields: &ErrorFields<'_>, failed: FailedRequest, pending: usize) {
        let (failure, redaction, has_bound_values) =
            (ReportedError::new(fields), self.policy.redaction, self.has_bound_values);
        let pipeline = self.pipeline();
        let skipped = pipeline.in_flight.len().saturating_sub(pending);
        let about = match failed {
            FailedRequest::Query => pipeline.in_flight.front_mut(),
            FailedRequest::Sync => pipeline.completed.as_mut(),
            FailedRequest::Extended if skipped == 0 => return self.on_error_before_execute(&failure),
            FailedRequest::Extended => pipeline.in_flight.front_mut(),
        };
        about.into_iter().for_each(|query| query.on_error(&failure, redaction, has_bound_values));
        // The server executed only the failed query; it skips the rest of the pipeline.
        for _ in 1..skipped {
            let rest = self.pipeline().in_flight.remove(1);
            rest.into_iter().for_each(|query| self.session_log.recorder.recycle_query(query));
        }
        self.set_pending(pending);
    }

    /// An error of a Parse, Bind or Describe without an Execute.
    fn on_error_before_execute(&mut self, failure: &ReportedError<'_>) {
        let mut query = self.take_unexecuted();
        query.bytes_out = std::mem::take(&mut self.bytes_out);
        query.on_error(failure, self.policy.redaction, self.has_bound_values);
        self.write_completed();
        self.pipeline().completed = Some(query);
    }

    /// A record for the latest statement, which has no Execute.
    fn take_unexecuted(&mut self) -> Box<TrackedQuery> {
        let mut query = self.session_log.recorder.take_query(self.now);
        let pipeline = self.pipeline();
        if pipeline.unnamed_is_latest {
            query.new_statement().copy_from(&pipeline.unnamed_statement);
        } else {
            query.statement = Some(pipeline.latest.clone());
        }
        query.bytes_in = std::mem::take(&mut self.bytes_in);
        query.wait_us = std::mem::take(&mut self.wait_us);
        query
    }

    /// The server sent ReadyForQuery; `pending` is the number of queries behind it.
    pub fn on_ready_for_query(&mut self, status: TxStatus, pending: usize) {
        self.set_pending(pending);
        let single = self.single.as_mut().and_then(SingleQuery::completed);
        let has_record = match single.or_else(|| self.pipeline.as_mut()?.completed.as_deref_mut()) {
            Some(completed) => {
                completed.bytes_out += std::mem::take(&mut self.bytes_out);
                if pending == 0 {
                    // The Sync belongs to the last query.
                    completed.bytes_in += std::mem::take(&mut self.bytes_in);
                }
                true
            }
            None => self.pipeline.as_ref().is_some_and(|pipeline| !pipeline.totals.is_empty()),
        };
        self.write_completed();
        if status == TxStatus::Idle && has_record {
            self.end_transaction("");
        }
    }

    fn end_transaction(&mut self, reason: &str) {
        self.write_transaction(reason);
        self.session_log.transactions.set(self.session_log.transactions.get() + 1);
        self.single.iter_mut().for_each(SingleQuery::end_transaction);
        // The unnamed portal may already belong to the next pipeline.
        self.pipeline.iter_mut().for_each(|pipeline| pipeline.portals.truncate(1));
        self.has_bound_values = false;
        self.transaction_parent = None;
        self.session_log.recorder.refresh_policy(&mut self.policy);
    }

    fn write_completed(&mut self) {
        if let Some(mut single) = self.single.take() {
            if let Some(query) = single.take_completed() {
                self.write(query, "");
            }
            self.single = Some(single);
        } else if let Some(mut query) = self.pipeline.as_mut().and_then(|pipeline| pipeline.completed.take()) {
            self.write(&mut query, "");
            self.session_log.recorder.recycle_query(query);
        }
    }

    fn write(&mut self, query: &mut TrackedQuery, reason: &str) {
        query.parent = query.statement.as_ref().and_then(|logged| logged.parent).or(self.transaction_parent);
        if self.policy.uses_statement_classes {
            query.classes = query.classes.union(statement_classes(query.text()));
        }
        let (recorder, journal) = (&self.session_log.recorder, &self.policy.journal);
        if let (RecordUnit::Transaction, Some(pipeline)) = (journal.per, &mut self.pipeline) {
            return pipeline.totals.add(query, &mut recorder.buffers().borrow_mut().normalize_cache, journal);
        }
        let input = self.rule_input(query, query.wait_us + query.server_us());
        let Some(parameters) = apply_rules(journal, &input) else { return };
        let session_fields = self.session_log.session_fields();
        let (server, transaction) = (self.server.as_deref(), self.transaction());
        recorder.query(CompletedQuery {
            query,
            session_fields: &session_fields,
            server,
            transaction,
            policy: &self.policy,
            parameters,
            reason,
        });
    }

    fn transaction(&self) -> u64 {
        self.session_log.transactions.get() + 1
    }

    fn write_transaction(&mut self, reason: &str) {
        let Some(query) = self.pipeline.as_mut().and_then(|pipeline| pipeline.totals.take()) else { return };
        let input = self.rule_input(&query.total, query.total.wait_us + query.total.server_us());
        if apply_rules(&self.policy.journal, &input).is_some() {
            let session_fields = self.session_log.session_fields();
            let draft = RecordDraft {
                kind: Some(RecordKind::Transaction),
                session_fields: &session_fields,
                transaction: Some(self.transaction()),
                statement: &query.text,
                fingerprint: query.fingerprint,
                // Excludes the time in which the server waited for the client.
                server_us: self.server.as_ref().map(|_| query.server_us.min(query.total.server_us())),
                queries: Some(query.queries),
                reason: reason.as_bytes(),
                ..query.total.draft(self.server.as_deref())
            };
            self.session_log.recorder.transaction(draft, query.total.ended());
        }
        self.pipeline().totals.put_back(query);
    }

    fn rule_input(&self, query: &TrackedQuery, total_us: u64) -> RuleInput<'_> {
        RuleInput {
            user: &self.session_log.peer.user,
            database: &self.session_log.peer.database,
            total: std::time::Duration::from_micros(total_us),
            classes: query.classes,
            failed: query.failed(),
        }
    }

    /// The exchange is over. Queries in flight and an open transaction are written with `reason`. The SQLSTATE belongs to
    /// the first of them, because the client receives one error.
    pub fn finish(mut self, (sqlstate, reason): (&[u8], &str), now: Instant) {
        self.now = now;
        self.session_log.unrecorded_wait_us.set(self.wait_us);
        self.write_completed();
        let mut client_sqlstate = sqlstate;
        if let Some(mut single) = self.single.take() {
            if let Some(query) = single.in_flight() {
                self.abort_query(query, &mut client_sqlstate, reason);
            }
            return self.session_log.recorder.recycle_query(single.into_query());
        }
        while let Some(mut query) = self.pipeline.as_mut().and_then(|pipeline| pipeline.in_flight.pop_front()) {
            self.abort_query(&mut query, &mut client_sqlstate, reason);
            self.session_log.recorder.recycle_query(query);
        }
        if let Some(pipeline) = self.pipeline.as_mut().filter(|pipeline| !pipeline.totals.is_empty()) {
            pipeline.totals.end(sqlstate, now);
            self.end_transaction(reason);
        }
        if let Some(mut pipeline) = self.pipeline.take() {
            pipeline.clear();
            self.session_log.recorder.recycle_pipeline(pipeline);
        }
    }

    /// Writes a query that has no reply; the first one takes the SQLSTATE.
    fn abort_query(&mut self, query: &mut TrackedQuery, client_sqlstate: &mut &[u8], reason: &str) {
        query.end(self.now);
        query.bytes_out = std::mem::take(&mut self.bytes_out);
        query.set_sqlstate(std::mem::take(client_sqlstate));
        self.write(query, reason);
    }

    /// Writes the queries of messages that got no server, with the error that the client received, or with the reason if it
    /// received none. `known` finds prepared statements.
    pub fn reject(
        mut self,
        messages: &[u8],
        known: impl Fn(&[u8]) -> Option<Rc<Statement>>,
        (sqlstate, reason): (&[u8], &str),
        now: Instant,
    ) {
        self.server = None;
        let mut is_unexecuted = false;
        for (tag, message) in FrontendFrames(messages) {
            let body = &message[HEADER..];
            is_unexecuted |= matches!(tag, frontend::PARSE | frontend::BIND);
            self.add_bytes_in(message.len());
            // A message that cannot be decoded never reached a server.
            let _ = self.on_message(tag, body, &known);
        }
        if is_unexecuted && self.pipeline().in_flight.is_empty() {
            let query = self.take_unexecuted();
            self.pipeline().in_flight.push_back(query);
        }
        let in_flight = &mut self.pipeline().in_flight;
        in_flight.iter_mut().for_each(|query| query.set_sqlstate(sqlstate));
        let any = !in_flight.is_empty();
        let session_log = self.session_log.clone();
        let per = self.policy.journal.per;
        self.finish((sqlstate, reason), now);
        if any && per == RecordUnit::Query {
            session_log.transactions.set(session_log.transactions.get() + 1);
        }
    }
}

impl QueryTracker {
    fn on_message(
        &mut self,
        tag: u8,
        body: &[u8],
        known: impl Fn(&[u8]) -> Option<Rc<Statement>>,
    ) -> Result<(), DecodeError> {
        match tag {
            frontend::QUERY => self.on_query(Query::decode(body)?.text),
            frontend::PARSE => self.on_parse(&Parse::decode(body)?, false),
            frontend::BIND => {
                let bind = Bind::decode(body)?;
                self.on_bind(&bind, known(bind.statement).as_ref(), None);
            }
            frontend::EXECUTE => self.on_execute(Execute::decode(body)?.portal),
            frontend::FUNCTION_CALL => self.on_function_call(),
            _ => {}
        }
        Ok(())
    }
}

/// The messages up to and including the first that ReadyForQuery answers.
#[must_use]
pub fn messages_until_ready(messages: &[u8]) -> &[u8] {
    let mut frames = FrontendFrames(messages);
    for (tag, _) in frames.by_ref() {
        if matches!(tag, frontend::QUERY | frontend::SYNC | frontend::FUNCTION_CALL) {
            break;
        }
    }
    &messages[..messages.len() - frames.0.len()]
}

/// The complete messages at the start of a buffer, each with its header.
#[derive(Clone, Copy, Debug)]
struct FrontendFrames<'a>(&'a [u8]);

impl<'a> Iterator for FrontendFrames<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&tag, rest) = self.0.split_first()?;
        let len = u32::from_be_bytes(*rest.first_chunk()?) as usize;
        let message = self.0.get(..len.checked_add(1)?).filter(|message| message.len() >= HEADER)?;
        self.0 = &self.0[message.len()..];
        Some((tag, message))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_journal::{AtEnd, JournalReader, ReadFrom};

    use super::*;
    use tidegate_config as config;

    use crate::{
        record::LogRecord,
        writer::{PeerInfo, QueryLog, Recorder},
    };

    /// The records of a script.
    fn written(per: RecordUnit, script: impl FnOnce(QueryTracker, Instant)) -> Vec<LogRecord> {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("journal");
        let settings = config::QueryLogConfig {
            folder: folder.clone(),
            per,
            connections: false,
            ..config::QueryLogConfig::default()
        };
        let query_log = QueryLog::open(&settings, None).unwrap().unwrap();
        let now = Instant::now();
        let recorder = Recorder::new(&query_log, 0, &settings, now).unwrap();
        let session_log = SessionLog::new(&recorder, PeerInfo::default(), 1, None, now);
        let tracker = QueryTracker::new(&session_log, &Rc::default(), None, now);
        script(tracker.with_server(QueryServer { id: 1, address: &"db", pid: 2 }), now);
        assert!(query_log.close(Duration::from_secs(60)).unwrap().is_complete());
        let mut reader = JournalReader::open(&folder, &ReadFrom::Beginning, AtEnd::Stop).unwrap();
        let mut records = Vec::new();
        while let Some(tidegate_journal::JournalEntry::Record(record)) = reader.read().unwrap() {
            records.push(LogRecord::from_json(record.payload).unwrap());
        }
        records
    }

    #[test]
    fn an_error_of_the_gateway_is_recorded_once() {
        let records = written(RecordUnit::Query, |mut tracker, now| {
            tracker.on_query(b"select pg_sleep(9)");
            tracker.on_query(b"select 2");
            tracker.finish((b"57014", "query timeout"), now + Duration::from_millis(7));
        });
        let ends: Vec<_> =
            records.iter().map(|record| (record.sqlstate.as_deref(), record.reason.as_deref())).collect();
        // The second query was not executed.
        assert_eq!(ends, [(Some("57014"), Some("query timeout")), (None, Some("query timeout"))]);
    }

    /// Messages that are rejected after a wait of three seconds, and a query after them that waits for one more second.
    fn rejected_after_a_wait(messages: &[u8]) -> Vec<(String, Option<u64>, Option<u64>)> {
        let records = written(RecordUnit::Query, |tracker, now| {
            let (session_log, client, later) =
                (tracker.session_log.clone(), Rc::default(), now + Duration::from_secs(3));
            let waiting = QueryTracker::new(&session_log, &client, Some(now), later);
            waiting.reject(messages, |_| None, (b"53300", "checkout timeout"), later);
            let mut next = QueryTracker::new(&session_log, &client, Some(later), later + Duration::from_secs(1));
            next.on_query(b"select 2");
            next.on_ready_for_query(TxStatus::Idle, 0);
            next.finish(Default::default(), later + Duration::from_secs(1));
        });
        records
            .into_iter()
            .map(|record| (record.statement.unwrap_or_default(), record.wait_us, record.total_us))
            .collect()
    }

    #[test]
    fn waits_without_a_server_are_recorded() {
        let (mut query, mut parse, mut named) = (Vec::new(), Vec::new(), Vec::new());
        frontend::query(b"select 1", &mut query);
        frontend::parse(b"", b"select 1", &[], &mut parse);
        frontend::parse(b"named", b"select 1", &[], &mut named);
        frontend::sync(&mut parse);
        frontend::sync(&mut named);
        let waited = |seconds: u64| Some(seconds * 1_000_000);
        for messages in [query, parse, named] {
            let expected =
                [("select 1".to_owned(), waited(3), waited(3)), ("select 2".to_owned(), waited(1), waited(1))];
            assert_eq!(rejected_after_a_wait(&messages), expected);
        }
        // The wait of an exchange without a query is that of the next query.
        let expected = [("select 2".to_owned(), waited(4), waited(4))];
        assert_eq!(rejected_after_a_wait(b"S\0\0\0\x04"), expected);
    }

    #[test]
    fn server_time_of_a_transaction_excludes_the_client() {
        let at = |now: Instant, millis| now + Duration::from_millis(millis);
        let records = written(RecordUnit::Transaction, |mut tracker, now| {
            for (text, from, to) in [("begin", 0, 10), ("select 1", 500, 520)] {
                tracker.on_chunk(at(now, from));
                tracker.on_query(text.as_bytes());
                tracker.on_chunk(at(now, to));
                tracker.on_ready_for_query(TxStatus::InTransaction, 0);
            }
            tracker.finish((b"25P03", "idle_in_transaction timeout"), at(now, 1000));
        });
        let [record] = &*records else { panic!("{records:?}") };
        assert_eq!((record.server_us, record.total_us, record.queries), (Some(30_000), Some(1_000_000), Some(2)));
        assert_eq!(record.sqlstate.as_deref(), Some("25P03"));
        // Pipelined queries run at the same time.
        let records = written(RecordUnit::Transaction, |mut tracker, now| {
            tracker.on_query(b"select 1");
            tracker.on_query(b"select 2");
            tracker.on_chunk(at(now, 10));
            tracker.on_ready_for_query(TxStatus::Idle, 0);
            tracker.finish((b"", ""), at(now, 1000));
        });
        assert_eq!((records[0].server_us, records[0].total_us), (Some(10_000), Some(10_000)));
    }
}
