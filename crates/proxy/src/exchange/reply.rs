//! Server to client: forwards replies, except those to requests of the gateway.

use tidegate_link::{Chunk, Splice};
use tidegate_wire::{
    backend::{self, CommandComplete, ErrorFields, ErrorReply, TxStatus},
    frame::HEADER,
    frontend,
    scan::{Delivery, ScanStep},
    sqlstate,
};

use super::{Exchange, ExchangeError, LARGE_BYTES_MIN, forward::skipped_parse};
use tidegate_config::{Dialect, PoolMode};
use tidegate_pending_replies::{Described, Disposition, ExpectedReply, RepeatedParse, ReplyKind, RequestKind};
use tidegate_query_log::writer::FailedRequest;
use tidegate_session_state::statements::{ClientStatements, NAME_PREFIX, StaleError};
use tidegate_sql::classify::SessionChange;

use crate::server::{Health, ResetNeed};

/// Selects the server messages that are buffered whole: those that change the state of the gateway.
#[inline]
fn delivery(tag: u8) -> Delivery {
    match tag {
        backend::READY_FOR_QUERY
        | backend::PARAMETER_STATUS
        | backend::COMMAND_COMPLETE
        | backend::ERROR_RESPONSE
        // These arrive unsolicited, and synthesized replies must not split one.
        | backend::NOTICE_RESPONSE
        | backend::NOTIFICATION_RESPONSE
        | backend::NEGOTIATE_PROTOCOL_VERSION => Delivery::Whole,
        _ => Delivery::Stream,
    }
}

/// Like `delivery`, but also buffers the description of a statement whose shape must be recorded.
fn delivery_if_described(tag: u8) -> Delivery {
    match tag {
        backend::PARAMETER_DESCRIPTION | backend::ROW_DESCRIPTION => Delivery::Whole,
        _ => delivery(tag),
    }
}

/// Handling of a server message.
pub(super) enum ReplyAction {
    Pass,
    Swallow,
    Replace(Vec<u8>),
}

/// Returns whether more rows probably follow this step; `None` if the step has no message.
#[inline]
fn is_amid_rows(step: ScanStep) -> Option<bool> {
    match step {
        ScanStep::Message { tag, .. }
        | ScanStep::Carried { tag, .. }
        | ScanStep::StreamHead { tag, .. }
        | ScanStep::Stream { tag, .. } => Some(matches!(tag, backend::DATA_ROW | backend::COPY_DATA)),
        ScanStep::NeedMore => None,
    }
}

impl Exchange<'_> {
    /// Processes a chunk of server messages.
    pub(super) fn reply(&mut self, chunk: Chunk) -> Result<(), ExchangeError> {
        if self.reply_fast_path(&chunk) {
            self.rows_bytes = 0;
            self.front.link.write(chunk);
            return Ok(());
        }
        self.unfold();
        let mut splice = Splice::default();
        let (mut at, mut amid_rows) = (0, false);
        loop {
            let delivery = if self.pending_replies.is_describing() { delivery_if_described } else { delivery };
            let step = self.server.scanner.step(&chunk, at, delivery).map_err(ExchangeError::BadServer)?;
            amid_rows = is_amid_rows(step).unwrap_or(amid_rows);
            match step {
                ScanStep::Message { tag: tag @ (backend::DATA_ROW | backend::COPY_DATA), end } if self.rows_pass() => {
                    let end = self.server.scanner.run(&chunk, end, tag);
                    splice.pass(&chunk, at, end);
                    at = end;
                }
                ScanStep::Message { tag, end } => {
                    self.advance(end);
                    let action = self.dispatch(tag, &chunk[at + HEADER..end])?;
                    match action {
                        ReplyAction::Pass => splice.pass(&chunk, at, end),
                        ReplyAction::Swallow => self.swallow(end - at),
                        ReplyAction::Replace(bytes) => splice.put(&chunk, &bytes),
                    }
                    self.write_synthesized(&mut splice, &chunk);
                    at = end;
                }
                ScanStep::Carried { tag, end } => {
                    let message = self.server.scanner.take_carry();
                    self.advance(end);
                    match self.dispatch(tag, &message[HEADER..])? {
                        ReplyAction::Pass => splice.put_vec(&chunk, message),
                        ReplyAction::Swallow => self.swallow(message.len()),
                        ReplyAction::Replace(bytes) => splice.put_vec(&chunk, bytes),
                    }
                    self.write_synthesized(&mut splice, &chunk);
                    at = end;
                }
                ScanStep::StreamHead { tag, end } => {
                    let head = self.server.scanner.carry().to_vec();
                    self.streams_for_client = self.begin_stream(tag)?;
                    if self.streams_for_client {
                        splice.put_vec(&chunk, head);
                    }
                    at = end;
                }
                ScanStep::Stream { tag, end, first, .. } => {
                    if first {
                        self.streams_for_client = self.begin_stream(tag)?;
                    }
                    if self.streams_for_client {
                        splice.pass(&chunk, at, end);
                    }
                    at = end;
                }
                ScanStep::NeedMore => break,
            }
        }
        self.advance(chunk.len());
        self.note_rows(amid_rows.then_some(chunk.len()));
        self.front.link.write(splice.finish(chunk));
        Ok(())
    }

    /// Adds the bytes of a chunk that ends amid rows; `None` ends the result.
    fn note_rows(&mut self, bytes: Option<usize>) {
        self.rows_bytes = bytes.map_or(0, |bytes| self.rows_bytes.saturating_add(bytes));
        if self.rows_bytes >= LARGE_BYTES_MIN {
            self.server.link().hint_bulk_receive();
        }
    }

    #[inline]
    fn advance(&mut self, to: usize) {
        if let Some(tracker) = &mut self.query_tracker {
            tracker.advance_to(to);
        }
    }

    fn swallow(&mut self, bytes: usize) {
        if let Some(tracker) = &mut self.query_tracker {
            tracker.exclude_bytes_out(bytes);
        }
    }

    /// Ends the tracking of queries without a pending reply.
    #[inline]
    fn update_tracker(&mut self) {
        if let Some(tracker) = &mut self.query_tracker {
            tracker.set_pending(self.pending_replies.queries());
        }
    }

    /// Returns whether rows go to the client. A cheap check, as it runs for every row.
    #[inline]
    fn rows_pass(&self) -> bool {
        self.settings_pending == 0 && self.pending_replies.front().is_some()
    }

    /// Handles the start of a streamed message. Returns whether the client receives it.
    fn begin_stream(&mut self, tag: u8) -> Result<bool, ExchangeError> {
        Ok(matches!(self.dispatch(tag, &[])?, ReplyAction::Pass))
    }

    /// Writes the synthesized replies that have reached the front.
    fn write_synthesized(&mut self, splice: &mut Splice, chunk: &[u8]) {
        while let Some(answered) = self.pending_replies.next_answered() {
            let out = splice.change(chunk);
            match answered.asked {
                RequestKind::Parse(..) => backend::parse_complete(out),
                _ => backend::close_complete(out),
            }
        }
    }

    fn dispatch(&mut self, tag: u8, body: &[u8]) -> Result<ReplyAction, ExchangeError> {
        if self.pending_replies.is_over()
            && self.can_release()
            && !matches!(tag, backend::PARAMETER_STATUS | backend::NOTICE_RESPONSE)
        {
            return Ok(self.discard_unsolicited(tag));
        }
        match tag {
            backend::READY_FOR_QUERY => return self.ready(body),
            backend::ERROR_RESPONSE => return self.error(body),
            backend::PARAMETER_STATUS => return self.parameter(body),
            // The notice concerns a setting that the client made before, possibly at its login.
            backend::NOTICE_RESPONSE if self.settings_pending > 0 => return Ok(ReplyAction::Swallow),
            backend::NOTICE_RESPONSE | backend::NOTIFICATION_RESPONSE => return Ok(ReplyAction::Pass),
            _ => {}
        }
        self.pending_replies.pass_ignored_syncs();
        let completes = match tag {
            backend::COMMAND_COMPLETE => return self.command_complete(body),
            backend::COPY_IN_RESPONSE => {
                self.pending_replies.begin_copy_in();
                return Ok(ReplyAction::Pass);
            }
            backend::PARAMETER_DESCRIPTION => {
                self.note_parameters(body);
                return self.forward_or_discard(tag);
            }
            backend::PARSE_COMPLETE => ReplyKind::Parse,
            backend::BIND_COMPLETE => ReplyKind::Bind,
            backend::CLOSE_COMPLETE => ReplyKind::Close,
            backend::ROW_DESCRIPTION | backend::NO_DATA => ReplyKind::Describe,
            backend::PORTAL_SUSPENDED | backend::EMPTY_QUERY_RESPONSE => ReplyKind::Execute,
            _ => return self.forward_or_discard(tag),
        };
        let completed = self.pending_replies.complete(completes);
        self.ended.queries += u32::from(completes == ReplyKind::Execute && completed.is_some());
        self.update_tracker();
        if let Some(ExpectedReply { asked: RequestKind::Parse(Some(statement), _), .. }) = &completed {
            statement.set_valid(true);
        }
        Ok(match completed {
            Some(ExpectedReply { asked: RequestKind::Describe(Some(described)), to }) => {
                let columns = (tag == backend::ROW_DESCRIPTION).then_some(body);
                self.note_shape(*described, to, columns)?;
                if to == Disposition::Discard { ReplyAction::Swallow } else { ReplyAction::Pass }
            }
            Some(ExpectedReply { to: Disposition::Discard, .. }) => ReplyAction::Swallow,
            Some(ExpectedReply { asked: RequestKind::ParseAgain(again), .. }) => {
                self.accept_second_parse(*again);
                ReplyAction::Pass
            }
            // A SELECT of `set_config` with a row limit is suspended after its only row, and has then taken effect.
            Some(ExpectedReply { asked: RequestKind::Execute(Some(change), _), .. }) if change.calls_set_config() => {
                self.note_change(*change);
                ReplyAction::Pass
            }
            Some(_) => ReplyAction::Pass,
            None => return self.forward_or_discard(tag),
        })
    }

    /// Discards an unsolicited message: the client has all its replies.
    fn discard_unsolicited(&mut self, tag: u8) -> ReplyAction {
        if tag != backend::NOTIFICATION_RESPONSE {
            self.server.degrade(Health::Tainted);
        }
        ReplyAction::Swallow
    }

    /// Rows and similar messages belong to the request at the front. Without a request, they are a protocol error.
    fn forward_or_discard(&self, tag: u8) -> Result<ReplyAction, ExchangeError> {
        match self.pending_replies.front() {
            Some(ExpectedReply { to: Disposition::Discard, .. }) => Ok(ReplyAction::Swallow),
            Some(_) => Ok(ReplyAction::Pass),
            None => Err(ExchangeError::Unasked(tag)),
        }
    }

    /// The second Parse of a name has succeeded, as the first had failed: the server has the second text under the server
    /// name of the first.
    fn accept_second_parse(&mut self, again: RepeatedParse) {
        let RepeatedParse { name, first, second } = again;
        let freshness = self.freshness(&second);
        self.front.statements.get_or_insert_default().insert(&name, second, freshness);
        self.server.statements.undo_eviction(first.digest(), first.server_name().into());
        self.server.statements.mark_stale(first.digest());
    }

    fn ready(&mut self, body: &[u8]) -> Result<ReplyAction, ExchangeError> {
        let status = backend::ready_for_query_status(body).map_err(ExchangeError::BadServer)?;
        let expected = self.pending_replies.ready(status);
        if expected.is_none() {
            return Err(ExchangeError::Unasked(backend::READY_FOR_QUERY));
        }
        if self.pending_replies.take_uncertain_syncs() {
            self.count_syncs();
        }
        self.settle_pending(status);
        self.settle_catalog_change(status);
        if let (Some(tracker), Some(ExpectedReply { to: Disposition::Forward, .. })) =
            (&mut self.query_tracker, &expected)
        {
            tracker.on_ready_for_query(status, self.pending_replies.queries());
        }
        if matches!(expected, Some(ExpectedReply { to: Disposition::Discard, .. })) {
            let action = self.gateway_query_done()?;
            self.settle_reports(status);
            return Ok(action);
        }
        self.ended.queries += u32::from(matches!(expected, Some(ExpectedReply { asked: RequestKind::Query(..), .. })));
        self.ended.transactions += u32::from(status == TxStatus::Idle);
        if self.pending_replies.is_over() {
            self.front.portal_changes.clear();
            self.doubtful.clear();
        }
        self.resetting &= !self.pending_replies.has_no_replies_due();
        self.settle_reports(status);
        if self.plan.pool.mode == PoolMode::Statement
            && status != TxStatus::Idle
            && self.pending_replies.has_no_replies_due()
        {
            return Ok(self.refuse_transaction());
        }
        if !std::mem::take(&mut self.reports_settings) {
            return Ok(ReplyAction::Pass);
        }
        let mut out = self.settings_to_report();
        backend::ready_for_query(status, &mut out);
        Ok(ReplyAction::Replace(out))
    }

    fn roll_back(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.roll_back();
        }
        self.server.unnamed = None;
        let mut rollback = Vec::new();
        frontend::query(b"ROLLBACK", &mut rollback);
        self.server.link().write(rollback);
        self.pending_replies.push(RequestKind::Query(None, None), Disposition::Discard);
    }

    /// Ends a transaction block in statement mode as soon as it has begun.
    fn refuse_transaction(&mut self) -> ReplyAction {
        self.roll_back();
        let refusal = match self.plan.dialect {
            Dialect::Pgbouncer => ErrorReply::protocol("transaction blocks not allowed in statement pooling mode"),
            Dialect::Postgres => {
                ErrorReply::new(sqlstate::FEATURE_NOT_SUPPORTED, "transaction blocks are not allowed in statement mode")
            }
        };
        let refusal = refusal.hint("Use transaction mode for this database or user.");
        let mut out = refusal.error();
        backend::ready_for_query(TxStatus::Idle, &mut out);
        ReplyAction::Replace(out)
    }

    fn command_complete(&mut self, body: &[u8]) -> Result<ReplyAction, ExchangeError> {
        // CommandComplete does not complete a simple query, which may have several commands.
        let mut is_simple = false;
        let change = match self.pending_replies.complete(ReplyKind::Execute) {
            Some(ExpectedReply { to: Disposition::Discard, .. }) => return Ok(ReplyAction::Swallow),
            Some(ExpectedReply { asked: RequestKind::Execute(change, _), .. }) => {
                self.ended.queries += 1;
                change
            }
            _ => match self.pending_replies.front() {
                Some(ExpectedReply { to: Disposition::Discard, .. }) => return Ok(ReplyAction::Swallow),
                Some(ExpectedReply { asked: RequestKind::Query(change, _), .. }) => {
                    is_simple = true;
                    change.clone()
                }
                _ => None,
            },
        };
        if let Some(tracker) = &mut self.query_tracker {
            tracker.on_command_complete(body);
            tracker.set_pending(self.pending_replies.queries());
        }
        self.note_catalog_change(body);
        // Few tags begin with D: DELETE, DECLARE and the two that matter here.
        if body.first() == Some(&b'D') {
            let tag = CommandComplete::decode(body).map_err(ExchangeError::BadServer)?.tag;
            if tag == b"DISCARD ALL" || tag == b"DEALLOCATE ALL" {
                self.forget_statements(change.as_deref());
                if is_simple {
                    // The statements are dropped, even if a later statement of the query fails.
                    drop(self.pending_replies.take_undo());
                }
            }
        } else if body == b"ROLLBACK\0" {
            self.undo_catalog_change();
            if !change.as_deref().is_some_and(SessionChange::is_savepoint_command) {
                self.undo_pending();
            }
        } else if self.has_pending_changes() && body == b"COMMIT\0" {
            self.settle_commit();
        }
        // A portal that has run before returns no rows and sets nothing.
        if let Some(change) = change.filter(|change| !(change.calls_set_config() && body == b"SELECT 0\0")) {
            self.note_change(*change);
        }
        Ok(ReplyAction::Pass)
    }

    /// The server has dropped all statements. If the text showed that, the client's statements were dropped when the message
    /// was sent.
    fn forget_statements(&mut self, change: Option<&SessionChange>) {
        if !change.is_some_and(SessionChange::drops_statements) {
            self.server.statements.mark_all_stale();
            self.front.statements = None;
        }
        self.front.statement_changes.clear();
        self.server.unnamed = None;
    }

    /// Records an executed SET or RESET. Reported values follow the server's reports. Other values apply when the transaction
    /// commits, which for a statement outside a block is at the next ReadyForQuery. Session mode also requires this, as a
    /// RESET restores the server's own settings and not the client's login settings.
    fn note_change(&mut self, change: SessionChange) {
        let commits = change == SessionChange::DiscardAll;
        self.pending.get_or_insert_default().note(change);
        if commits {
            // DISCARD ALL runs outside a block, and a later failure in its pipeline does not undo it.
            self.settle_commit();
        }
    }

    /// Handles a COMMIT that another transaction may follow, and roll back, without a ReadyForQuery between.
    fn settle_commit(&mut self) {
        if let Some(pending) = &mut self.pending {
            let settled = pending.commit();
            self.settle(settled);
        }
    }

    fn error(&mut self, body: &[u8]) -> Result<ReplyAction, ExchangeError> {
        let fields = ErrorFields::decode(body).map_err(ExchangeError::BadServer)?;
        let fatal = matches!(fields.severity(), Some("FATAL" | "PANIC"));
        if fatal {
            self.server.degrade(Health::Closing);
        }
        self.server.suspect |= fatal || fields.code() == Some(sqlstate::READ_ONLY_SQL_TRANSACTION);
        if self.settings_pending > 0 && !fatal {
            self.settings_error = Some(body.into());
            return Ok(ReplyAction::Swallow);
        }
        self.pending.get_or_insert_default().fail();
        self.undo_catalog_change();
        if let Some(undo) = self.pending_replies.take_undo() {
            // A failed simple query has still dropped the unnamed statement.
            self.restore_statements(undo.statements);
        }
        if is_copy_fail_reply(&fields) {
            self.pending_replies.finish_copy();
        }
        let front = failed_request(self.pending_replies.front());
        let skipped = self.pending_replies.fail();
        if let Some(tracker) = &mut self.query_tracker {
            tracker.on_error_response(&fields, front, self.pending_replies.queries());
        }
        let stale = self.stale_error(&fields);
        let worded = self.replace_bind_error(&fields, &skipped).or_else(|| self.rename_in_error(body, &skipped));
        self.undo_skipped(skipped, stale);
        if self.plan.dialect == Dialect::Pgbouncer {
            log_statement_error(worded.as_deref().map_or(body, |message| &message[HEADER..]));
        }
        Ok(worded.map_or(ReplyAction::Pass, ReplyAction::Replace))
    }

    /// Replaces the error of a Bind that the server was made to refuse by that of Postgres for changed columns.
    fn replace_bind_error(&mut self, fields: &ErrorFields<'_>, skipped: &[ExpectedReply]) -> Option<Vec<u8>> {
        let is_made = matches!(skipped.first()?.asked, RequestKind::BindChanged)
            && fields.code() == Some(sqlstate::INVALID_SQL_STATEMENT_NAME);
        is_made.then(columns_changed)
    }

    /// Undoes the state that was recorded for skipped requests, the latest first.
    fn undo_skipped(&mut self, skipped: Vec<ExpectedReply>, error: Option<StaleError>) {
        let mut unnamed = None;
        for (at, expected) in skipped.into_iter().enumerate().rev() {
            let failed = at == 0;
            if let Some(digest) = skipped_parse(&expected.asked) {
                // Earlier skipped messages decide whether the server has the statement; a Close resolves both cases.
                self.server.statements.mark_stale(digest);
            }
            if let (RequestKind::Parse(Some(statement), _), true) = (&expected.asked, failed) {
                statement.set_valid(false);
            }
            match expected.asked {
                RequestKind::Parse(_, Some(name)) => {
                    if let Some(statements) = &mut self.front.statements {
                        statements.remove(&name);
                    }
                }
                RequestKind::Parse(None, None) => self.server.unnamed = None,
                RequestKind::ParseUnnamed(previous) => {
                    // A failed Parse has dropped the previous unnamed statement; a skipped one has not.
                    unnamed = Some(if failed { None } else { previous });
                    self.server.unnamed = None;
                }
                RequestKind::CloseUnnamed(previous) => unnamed = Some(previous),
                RequestKind::Query(_, Some(undo)) => {
                    unnamed = Some(undo.unnamed);
                    self.restore_statements(undo.statements);
                }
                RequestKind::Execute(change, Some(undo)) => {
                    // The name prepared for a DEALLOCATE may still exist.
                    if matches!(change.as_deref(), Some(SessionChange::Deallocate(_))) {
                        self.server.needs_reset(ResetNeed::Session);
                    }
                    self.restore_statements(undo.statements);
                }
                RequestKind::Close(Some(undo)) => {
                    let (name, prepared) = *undo;
                    self.front.statements.get_or_insert_default().restore(&name, prepared);
                }
                RequestKind::Evict(digest, name) => self.server.statements.undo_eviction(digest, name),
                RequestKind::Bind(Some(known)) if failed => {
                    if let Some(error) = error {
                        self.renew_statement(&known, error);
                    }
                }
                RequestKind::Describe(Some(described)) => self.undo_describe(*described, error.filter(|_| failed)),
                _ => {}
            }
        }
        if let Some(unnamed) = unnamed
            && let Err(unnamed) = self.pending_replies.put_unnamed_back(unnamed)
        {
            self.front.unnamed = unnamed;
        }
    }

    /// Restores dropped statements, except those that the client has replaced meanwhile.
    fn restore_statements(&mut self, statements: Option<Box<ClientStatements>>) {
        let Some(mut before) = statements else { return };
        if let Some(since) = self.front.statements.take() {
            before.merge(*since);
        }
        self.front.statements = Some(before);
    }

    /// Returns the error with the client's statement name, if it contains the server's name.
    fn rename_in_error(&self, body: &[u8], skipped: &[ExpectedReply]) -> Option<Vec<u8>> {
        memchr::memmem::find(body, NAME_PREFIX.as_bytes())?;
        // Messages that a copy has ignored may precede the failed request.
        let failed = skipped.first().or_else(|| self.pending_replies.first_behind_copy())?;
        let (statement, name) = match &failed.asked {
            RequestKind::Bind(Some(known)) => (&known.statement, &*known.name),
            RequestKind::Describe(Some(described)) => match &**described {
                Described::Named(known, _) => (&known.statement, &*known.name),
                Described::Unnamed(_) | Described::PortalOfUnnamed(_) => return None,
            },
            RequestKind::Parse(Some(statement), Some(name)) => (statement, &**name),
            RequestKind::ParseAgain(again) => (&again.first, &*again.name),
            _ => return None,
        };
        Some(renamed(body, statement.server_name(), name))
    }
}

/// Routine of Postgres that refuses a statement with changed columns. Drivers match on it too.
const COLUMNS_CHANGED: &[u8] = b"RevalidateCachedQuery";

/// Error of Postgres for changed columns.
fn columns_changed() -> Vec<u8> {
    let code = sqlstate::FEATURE_NOT_SUPPORTED.as_str();
    let text = "cached plan must not change result type";
    let mut body = Vec::new();
    for (field, value) in [(b'S', "ERROR"), (b'V', "ERROR"), (b'C', code), (b'M', text)] {
        body.push(field);
        body.extend_from_slice(value.as_bytes());
        body.push(0);
    }
    body.push(b'R');
    body.extend_from_slice(COLUMNS_CHANGED);
    body.extend_from_slice(&[0, 0]);
    message(backend::ERROR_RESPONSE, &body)
}

/// Logs PgBouncer's words for a name that is not prepared, or is prepared twice.
fn log_statement_error(body: &[u8]) {
    let Ok(fields) = ErrorFields::decode(body) else { return };
    let text = fields.message().unwrap_or_default();
    match fields.code() {
        Some(sqlstate::INVALID_SQL_STATEMENT_NAME) => tracing::warn!("prepared statement did not exist"),
        Some(sqlstate::DUPLICATE_PREPARED_STATEMENT) => {
            let name = text.split('"').nth(1).unwrap_or_default();
            tracing::warn!("prepared statement '{name}' was already prepared");
        }
        _ => {}
    }
}

/// Kind of the failed request, for the query log.
fn failed_request(expected: Option<&ExpectedReply>) -> FailedRequest {
    match expected.map(|expected| &expected.asked) {
        None | Some(RequestKind::Query(..) | RequestKind::FunctionCall) => FailedRequest::Query,
        Some(RequestKind::Sync) => FailedRequest::Sync,
        Some(_) => FailedRequest::Extended,
    }
}

/// Returns whether the error answers a CopyFail, which shares its SQLSTATE with a cancelled query. The routine is the only
/// difference that does not depend on the language.
fn is_copy_fail_reply(fields: &ErrorFields<'_>) -> bool {
    fields.code() == Some(sqlstate::QUERY_CANCELED) && fields.get(b'R') == Some(b"CopyGetData")
}

/// Error with the client's name in place of the server's.
fn renamed(body: &[u8], server_name: &[u8], name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some(at) = memchr::memmem::find(rest, server_name) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(name);
        rest = &rest[at + server_name.len()..];
    }
    out.extend_from_slice(rest);
    message(backend::ERROR_RESPONSE, &out)
}

pub(super) fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len() + 4).expect("a message has at most 1 GiB");
    let mut out = Vec::with_capacity(body.len() + HEADER);
    out.push(tag);
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(body);
    out
}
