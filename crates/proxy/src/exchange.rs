//! Relays messages between a client and a server, from the client's first message until the server is released.
//!
//! Bytes flow in both directions concurrently, so that neither peer can block the other by sending without reading. Each
//! direction stops reading while the send queue of the other side is full.

use std::{
    io,
    rc::Rc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tidegate_config::PoolPlan;
use tidegate_link::{Chunk, Link};
use tidegate_pending_replies::{PendingReplies, Unsynced};
use tidegate_query_log::writer::QueryTracker;
use tidegate_session_state::{
    named_changes::NamedChanges,
    params::{ParameterValue, RoleOrder, Settings, SettingsInterner},
    pending_changes::PendingChanges,
    statements::{ClientStatements, StatementCatalog},
    unnamed::{LastBound, UnnamedStatement},
};
use tidegate_sql::{
    StatementDigest,
    classify::{Pins, SessionChange, is_temporary_path},
};
use tidegate_wire::{
    DecodeError,
    backend::{self, ErrorFields, TxStatus},
    frontend,
    scan::Scanner,
    sqlstate,
};

use crate::server::{Health, Server};
use tidegate_stats::PoolStats;

mod client_record;
mod config_values;
mod copy;
mod fast_path;
mod forward;
mod reply;
mod settings;
mod shapes;

use settings::{OriginCheck, Reports};
use shapes::ShapeChecks;

/// Client side of an exchange: the link and the client's session state.
pub struct ClientSide {
    /// Link to the client.
    pub link: Link,
    /// Distinguishes this client from all others of its thread.
    pub id: u64,
    /// Settings that the client has set.
    pub settings: Rc<Settings>,
    /// Parameters last reported to the client.
    pub reported: Rc<Settings>,
    /// Settings from the login, which RESET restores.
    pub startup_settings: Rc<Settings>,
    /// Named statements; `None` while the client has none.
    pub statements: Option<Box<ClientStatements>>,
    /// Unnamed statement, while one exists.
    pub unnamed: Option<Box<UnnamedStatement>>,
    /// Setting change of the unnamed statement. Session mode only, which keeps nothing else of that statement.
    pub unnamed_change: Option<Box<SessionChange>>,
    /// Reasons why the client is pinned to its server.
    pub pins: Pins,
    /// Position of the role among the settings that a server receives.
    pub role_turn: RoleOrder,
    /// Setting changes of named statements. Session mode only.
    pub statement_changes: NamedChanges,
    /// Setting changes of bound portals.
    pub portal_changes: NamedChanges,
    /// The portal bound last, and its statement.
    last_bound: LastBound,
    stamps: u64,
}

impl ClientSide {
    /// Creates the state of a client after its login.
    #[must_use]
    pub fn new(link: Link, id: u64, settings: Rc<Settings>, reported: Rc<Settings>) -> Self {
        Self {
            link,
            id,
            reported,
            pins: pins_of(&settings),
            startup_settings: settings.clone(),
            settings,
            statements: None,
            unnamed: None,
            unnamed_change: None,
            role_turn: RoleOrder::default(),
            statement_changes: NamedChanges::default(),
            portal_changes: NamedChanges::default(),
            last_bound: LastBound::default(),
            stamps: 0,
        }
    }

    /// Wraps `value` so that it equals no value of another client and no later value of this client.
    fn own(&mut self, value: ParameterValue) -> ParameterValue {
        ParameterValue::Owned(Box::new(value), (self.id, self.next_stamp()))
    }

    fn next_stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }
}

/// Pins that follow from the login settings: objects that the client creates may be temporary, or the client is another user
/// on the server.
fn pins_of(settings: &Settings) -> Pins {
    let mut pins = Pins::default();
    if settings.get("search_path").is_some_and(|path| is_temporary_path(path.bytes())) {
        pins.add(Pins::TEMP);
    }
    if settings.get("session_authorization").is_some() {
        pins.add(Pins::SETTING);
    }
    pins
}

/// Maximum number of statements with setting changes that are tracked per client.
const STATEMENT_CHANGES_MAX: usize = 4096;

/// Error that ends an exchange.
#[derive(Debug)]
pub enum ExchangeError {
    /// Server refused the client's settings, with this ErrorResponse body.
    Settings(Box<[u8]>),
    /// Client link closed; `None` without an I/O error.
    ClientGone(Option<io::Error>),
    /// Server link closed; `None` without an I/O error.
    ServerGone(Option<io::Error>),
    /// Client sent an invalid message.
    BadClient(DecodeError),
    /// Client sent a message type that is not allowed in a session.
    UnknownMessage(u8),
    /// Client sent a simple query, which the pool does not allow.
    SimpleQuery,
    /// Server sent an invalid message.
    BadServer(DecodeError),
    /// Server sent a message without a request.
    Unasked(u8),
}

/// How an exchange starts.
pub enum ExchangeStart {
    /// The client has sent a request.
    Request(Chunk),
    /// A pinned client is between two transactions, idle since this moment.
    Idle(Instant),
}

/// Outcome of an exchange.
#[derive(Debug)]
pub enum End {
    /// No reply is pending and no transaction is open. Carries the received part of the client's next message.
    Over(Option<Chunk>),
    /// Client sent Terminate.
    Terminate,
    /// Server refused the client's settings, which another server may accept. Carries the client's request.
    Again(Chunk),
    /// Client cancelled while the server applied its settings. Carries the client's request and the ErrorResponse message.
    Cancelled(Chunk, Vec<u8>),
    /// Exchange failed.
    ExchangeError(ExchangeError),
}

/// Activity of an exchange, for deadlines and for `SHOW CLIENTS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// A reply is pending since this moment.
    Query(Instant),
    /// A transaction is open without a pending reply since this moment.
    IdleInTransaction(Instant),
    /// The client holds the server without a transaction since this moment.
    Idle(Instant),
}

/// State in which a client leaves its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerResidue {
    /// No transaction is open.
    Nothing,
    /// A transaction is open; no reply is pending.
    Transaction,
    /// Messages without a Sync, which a Sync of the gateway would execute and commit; no reply is pending.
    Unsynced,
    /// Messages without a Sync, of which a Sync commits nothing; no reply is pending, and a transaction may be open.
    Prepared {
        /// A transaction is open or has failed.
        in_transaction: bool,
    },
    /// A reply is pending, or the server has received part of a message.
    Busy,
}

/// Context that all exchanges of a pool on one thread share.
pub struct ExchangeCtx<'a> {
    /// Statements of this thread.
    pub catalog: &'a StatementCatalog,
    /// Interned settings of this thread.
    pub interned: &'a SettingsInterner,
    /// Configuration of the pool.
    pub plan: &'a PoolPlan,
    /// Counters of the pool on this thread.
    pub stats: &'a PoolStats,
    /// The server is one of several that routing can choose from.
    pub is_routed: bool,
}

/// Exchange between one client and one server. See the [module](self).
pub struct Exchange<'a> {
    front: &'a mut ClientSide,
    server: &'a mut Server,
    catalog: &'a StatementCatalog,
    interned: &'a SettingsInterner,
    plan: &'a PoolPlan,
    stats: &'a PoolStats,
    is_routed: bool,
    /// Scanner of the client's messages.
    scanner: Scanner,
    /// Client messages that wait for replies to the messages before them.
    held: Option<Chunk>,
    /// `PendingReplies::progress` when the messages were held, if they wait for the server's replies.
    held_at: Option<u64>,
    pending_replies: PendingReplies,
    clock: Clock,
    /// Work that completed in the current chunk.
    ended: CompletedCounts,
    /// The server stays with the client in every transaction state.
    keep: bool,
    /// Pending queries that apply the client's settings to the server. Client messages wait for them, as no statement may run
    /// under other settings.
    settings_pending: usize,
    /// The server has received messages of the client.
    served: bool,
    /// The client has sent an Execute since its last Sync.
    executed: bool,
    /// A RESET of the client is pending. Later messages wait, as the server returns to its own settings.
    resetting: bool,
    /// A RESET has completed: the server has lost the client's login settings.
    has_reset: bool,
    /// The gateway reports the client's settings before the next ReadyForQuery, as they differ from the server's report.
    reports_settings: bool,
    /// ErrorResponse of a refused setting.
    settings_error: Option<Box<[u8]>>,
    /// Setting changes that wait for the end of their transaction. Boxed, as are the next: most exchanges have none, and an
    /// exchange is created and moved for each transaction.
    pending: Option<Box<PendingChanges>>,
    /// Parameters that the server has reported meanwhile.
    reports: Option<Box<Reports>>,
    /// Check of the origin of reported values.
    origin_check: OriginCheck,
    /// Pins that were added behind a pending DISCARD ALL.
    pins_behind: Option<Pins>,
    /// Statements prepared behind pending requests, which may change the settings that analysis depends on.
    doubtful: Vec<StatementDigest>,
    /// Shape checks of statements that are prepared again.
    shapes: ShapeChecks,
    /// The server message being streamed goes to the client.
    streams_for_client: bool,
    /// Bytes received in chunks that end amid rows.
    rows_bytes: usize,
    /// The gateway has synthesized a reply; the server may have no request.
    answered: bool,
    /// Flush was sent, as the limit of pending replies is reached.
    has_sent_flush: bool,
    /// Tracks queries for the query log, if enabled.
    query_tracker: Option<Box<QueryTracker>>,
}

/// Start times of the current transaction and query.
#[derive(Clone, Copy)]
struct Clock {
    transaction: Option<Instant>,
    query: Option<Instant>,
    quiet: Instant,
}

/// Number of completed operations.
#[derive(Clone, Copy, Default)]
struct CompletedCounts {
    /// Simple queries and Execute messages.
    queries: u32,
    transactions: u32,
}

/// Mean duration of `count` operations with this total.
fn mean_duration(total: Duration, count: u32) -> Duration {
    // The count is almost always 1, which needs no division.
    if count == 1 { total } else { total / count }
}

/// Queue size at which a direction stops reading.
pub const QUEUE_BYTES_MAX: usize = 64 * 1024;
/// Row bytes from which a result counts as large, so that received chunks may be coalesced.
const LARGE_BYTES_MIN: usize = 128 * 1024;
/// Number of pending replies at which the gateway stops reading from the client.
const PENDING_REPLIES_MAX: usize = 16 * 1024;
/// Bytes of statements kept for undo at which the gateway stops reading from the client.
const KEPT_BYTES_MAX: usize = 16 << 20;

impl<'a> Exchange<'a> {
    /// Begins an exchange. With `keep`, the server stays with the client until one of them disconnects.
    pub fn new(
        front: &'a mut ClientSide,
        server: &'a mut Server,
        ctx: &ExchangeCtx<'a>,
        keep: bool,
        now: Instant,
    ) -> Self {
        Self {
            front,
            server,
            catalog: ctx.catalog,
            interned: ctx.interned,
            plan: ctx.plan,
            stats: ctx.stats,
            is_routed: ctx.is_routed,
            scanner: Scanner::new(ctx.plan.pool.message_max as usize),
            held: None,
            held_at: None,
            pending_replies: PendingReplies::new(),
            clock: Clock { transaction: None, query: None, quiet: now },
            ended: CompletedCounts::default(),
            keep,
            settings_pending: 0,
            served: false,
            executed: false,
            resetting: false,
            has_reset: false,
            reports_settings: false,
            settings_error: None,
            pending: None,
            reports: None,
            origin_check: OriginCheck::None,
            pins_behind: None,
            doubtful: Vec::new(),
            shapes: ShapeChecks::default(),
            streams_for_client: false,
            rows_bytes: 0,
            answered: false,
            has_sent_flush: false,
            query_tracker: None,
        }
    }

    /// Sets the tracker of the client's queries.
    pub fn set_query_tracker(&mut self, query_tracker: Option<Box<QueryTracker>>) {
        self.query_tracker = query_tracker;
    }

    /// Takes the query tracker, which the caller closes.
    pub fn take_query_tracker(&mut self) -> Option<Box<QueryTracker>> {
        self.query_tracker.take()
    }

    /// Starts the exchange.
    ///
    /// # Errors
    /// If the client's first messages are invalid, or end the session.
    pub fn start(&mut self, start: ExchangeStart, now: Instant) -> Result<(), End> {
        match start {
            ExchangeStart::Request(request) => self.begin(request, now),
            ExchangeStart::Idle(since) => {
                self.resume(since);
                Ok(())
            }
        }
    }

    /// Processes the client's first messages.
    ///
    /// # Errors
    /// If the messages are invalid, or end the session.
    fn begin(&mut self, first: Chunk, now: Instant) -> Result<(), End> {
        self.server.forget_rolled_back();
        self.sync_params();
        self.clock = Clock { transaction: Some(now), query: Some(now), quiet: now };
        if self.settings_pending > 0 {
            self.stats.received_bytes.add(first.len() as u64);
            self.held = Some(first);
            return Ok(());
        }
        self.take_from_client(first, now)
    }

    /// Continues between two transactions of a pinned client, which is idle since this moment.
    fn resume(&mut self, idle_since: Instant) {
        self.served = true;
        self.clock = Clock { transaction: None, query: None, quiet: idle_since };
    }

    fn take_from_client(&mut self, chunk: Chunk, now: Instant) -> Result<(), End> {
        self.stats.received_bytes.add(chunk.len() as u64);
        self.take_messages(chunk, now)
    }

    fn take_messages(&mut self, chunk: Chunk, now: Instant) -> Result<(), End> {
        if self.pending_replies.is_over() {
            self.clock.transaction = Some(now);
        }
        if let Some(tracker) = &mut self.query_tracker {
            tracker.on_chunk(now);
        }
        let was_quiet = self.pending_replies.has_no_replies_due();
        self.served = true;
        self.shapes.holds = false;
        match self.forward(chunk) {
            Ok(true) => {}
            Ok(false) => return Err(End::Terminate),
            Err(exchange_error) => return Err(End::ExchangeError(exchange_error)),
        }
        if was_quiet && !self.pending_replies.has_no_replies_due() {
            self.clock.query = Some(now);
        }
        if self.answered {
            self.note_completed(now);
        }
        Ok(())
    }

    fn take_from_server(&mut self, chunk: Chunk, now: Instant) -> Result<(), ExchangeError> {
        self.stats.sent_bytes.add(chunk.len() as u64);
        if let Some(tracker) = &mut self.query_tracker {
            tracker.on_chunk(now);
        }
        let is_own = self.settings_pending > 0 || self.shapes.holds;
        let was_asking = self.origin_check.is_under_way();
        self.reply(chunk)?;
        // The client's query has not started yet.
        if !is_own {
            self.note_completed(now);
        } else if was_asking && self.settings_pending == 0 {
            // The client's query is counted already.
            self.clock = Clock { transaction: None, query: None, quiet: now };
        }
        Ok(())
    }

    /// Records completed queries and transactions. The query ends when no reply is pending, and so may the transaction. In a
    /// pipeline, the next query has already started.
    #[inline]
    fn note_completed(&mut self, now: Instant) {
        let ended = std::mem::take(&mut self.ended);
        if !self.pending_replies.has_no_replies_due() {
            if ended.queries > 0 {
                self.note_queries(ended.queries, Some(now), now);
            }
            if ended.transactions > 0 {
                self.note_transactions(ended.transactions, Some(now), now);
            }
            return;
        }
        if self.clock.query.is_some() {
            self.note_queries(ended.queries.max(1), None, now);
            self.clock.quiet = now;
        }
        if self.pending_replies.is_over() {
            self.note_transactions(ended.transactions.max(1), None, now);
        } else if ended.transactions > 0 {
            self.note_transactions(ended.transactions, Some(now), now);
        }
    }

    /// Records `count` queries that completed since the first of them started. `next` is the start of the following query.
    fn note_queries(&mut self, count: u32, next: Option<Instant>, now: Instant) {
        let Some(began) = std::mem::replace(&mut self.clock.query, next) else { return };
        self.stats.query_time.add_time(now - began);
        self.stats.durations.query.record_several(mean_duration(now - began, count), count);
    }

    /// Records transactions, as `note_queries` does queries.
    fn note_transactions(&mut self, count: u32, next: Option<Instant>, now: Instant) {
        let Some(began) = std::mem::replace(&mut self.clock.transaction, next) else { return };
        self.stats.xact_count.add(count.into());
        self.stats.xact_time.add_time(now - began);
        self.stats.durations.transaction.record_several(mean_duration(now - began, count), count);
    }

    /// Moves bytes in both directions until the exchange ends.
    pub fn poll(&mut self, now: Instant, cx: &Context<'_>) -> Poll<End> {
        loop {
            let from_client = self.poll_client(now, cx);
            if let Poll::Ready(Err(end)) = from_client {
                return Poll::Ready(end);
            }
            let from_server = self.poll_server(now, cx);
            if let Poll::Ready(Err(exchange_error)) = from_server {
                return Poll::Ready(self.end_of(exchange_error));
            }
            if self.has_reset && self.pending_replies.is_over() && !self.can_release() {
                self.has_reset = false;
                self.sync_params();
            }
            let answered = std::mem::take(&mut self.answered);
            if self.pending_replies.is_over() && (from_server.is_ready() || answered) && self.can_release() {
                return Poll::Ready(End::Over(self.take_partial_message()));
            }
            if from_client.is_pending() && from_server.is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Sends queued bytes without reading. Returns whether the kernel has accepted all of them.
    ///
    /// # Errors
    /// If one of the links has closed.
    pub fn flush(&mut self, cx: &Context<'_>) -> Result<bool, End> {
        self.flush_to_server(cx)?;
        self.flush_to_client(cx).map_err(End::ExchangeError)?;
        // The next read returns any error.
        Ok(self.server.link().poll_sent(cx).is_ready() && self.front.link.poll_sent(cx).is_ready())
    }

    fn end_of(&mut self, exchange_error: ExchangeError) -> End {
        let ExchangeError::Settings(error) = exchange_error else { return End::ExchangeError(exchange_error) };
        // The client would lose its session state on this server.
        let stays = self.served && (self.keep || !self.front.pins.is_empty());
        let request = if stays { None } else { self.held.take() };
        let Some(request) = request else { return End::ExchangeError(ExchangeError::Settings(error)) };
        let is_cancelled = |fields: ErrorFields<'_>| fields.code() == Some(sqlstate::QUERY_CANCELED);
        if ErrorFields::decode(&error).is_ok_and(is_cancelled) {
            return End::Cancelled(request, reply::message(backend::ERROR_RESPONSE, &error));
        }
        if self.may_retry_elsewhere() {
            End::Again(request)
        } else {
            End::ExchangeError(ExchangeError::Settings(error))
        }
    }

    /// Returns whether another server may accept the settings. State of other clients on this server may be the cause, or the
    /// client's own role, which is then set first.
    fn may_retry_elsewhere(&mut self) -> bool {
        let takes_role = self.front.settings.get("role").is_some();
        let turns = takes_role && self.front.role_turn == RoleOrder::Last;
        if turns {
            self.front.role_turn = RoleOrder::First;
        }
        turns || self.server.settings.has_client_settings()
    }

    fn poll_client(&mut self, now: Instant, cx: &Context<'_>) -> Poll<Result<(), End>> {
        self.flush_to_server(cx)?;
        let mut progress = Poll::Pending;
        if self.settings_pending == 0
            && self.server.link().queued_bytes() < QUEUE_BYTES_MAX
            // Held messages may be long; parsing them for each chunk of a large result would delay other clients.
            && self.held_at != Some(self.pending_replies.progress)
            && let Some(held) = self.held.take()
        {
            let bytes = held.len();
            self.take_messages(held, now)?;
            if self.held.as_ref().is_none_or(|held| held.len() < bytes) {
                progress = Poll::Ready(Ok(()));
            }
        }
        let gone = |error| Err(End::ExchangeError(ExchangeError::ClientGone(error)));
        if !self.may_read_client() {
            // A running query is useless to a client that has disconnected.
            if self.front.link.poll_peer_closed(cx).is_ready() {
                return Poll::Ready(gone(None));
            }
        } else if let Poll::Ready(read) = self.front.link.poll_read(cx) {
            match read {
                Ok(chunk) if chunk.is_empty() => return Poll::Ready(gone(None)),
                Ok(chunk) => self.take_from_client(chunk, now)?,
                Err(error) => return Poll::Ready(gone(Some(error))),
            }
            progress = Poll::Ready(Ok(()));
        }
        self.flush_to_server(cx)?;
        progress
    }

    fn may_read_client(&mut self) -> bool {
        self.held.is_none()
            && self.settings_pending == 0
            && self.server.link().queued_bytes() < QUEUE_BYTES_MAX
            // Synthesized replies accumulate in this queue, or wait for their turn.
            && self.front.link.queued_bytes() < QUEUE_BYTES_MAX
            && self.has_reply_room()
    }

    /// Returns whether more replies may become pending. Otherwise sends Flush: the server buffers replies until a Sync, which
    /// the client may not have sent yet, and all synthesized replies wait behind them.
    fn has_reply_room(&mut self) -> bool {
        let is_bounded =
            self.pending_replies.len() < PENDING_REPLIES_MAX && self.pending_replies.kept_bytes() < KEPT_BYTES_MAX;
        if is_bounded || self.scanner.is_streaming() {
            self.has_sent_flush = false;
            return true;
        }
        if !std::mem::replace(&mut self.has_sent_flush, true) {
            let mut flush = Vec::new();
            frontend::flush(&mut flush);
            self.server.link().write(flush);
        }
        false
    }

    #[inline]
    fn flush_to_server(&mut self, cx: &Context<'_>) -> Result<(), End> {
        if let Poll::Ready(Err(error)) = self.server.link().poll_flush(cx) {
            // The server may have sent an error before it closed; that error is read first.
            self.server.degrade(Health::WriteFailed);
            if !self.server.has_final_messages(cx) {
                return Err(End::ExchangeError(ExchangeError::ServerGone(Some(error))));
            }
        }
        Ok(())
    }

    fn poll_server(&mut self, now: Instant, cx: &Context<'_>) -> Poll<Result<(), ExchangeError>> {
        self.flush_to_client(cx)?;
        let mut progress = Poll::Pending;
        if self.front.link.queued_bytes() < QUEUE_BYTES_MAX
            && let Poll::Ready(read) = self.server.link().poll_read(cx)
        {
            match read {
                Ok(chunk) if chunk.is_empty() => return Poll::Ready(Err(ExchangeError::ServerGone(None))),
                Ok(chunk) => self.take_from_server(chunk, now)?,
                Err(error) => return Poll::Ready(Err(ExchangeError::ServerGone(Some(error)))),
            }
            progress = Poll::Ready(Ok(()));
        }
        self.flush_to_client(cx)?;
        progress
    }

    fn flush_to_client(&mut self, cx: &Context<'_>) -> Result<(), ExchangeError> {
        match self.front.link.poll_flush(cx) {
            Poll::Ready(Err(error)) => Err(ExchangeError::ClientGone(Some(error))),
            _ => Ok(()),
        }
    }

    /// Returns whether this client allows the release of the server.
    fn can_release(&self) -> bool {
        !self.keep
            && self.held.is_none()
            && (self.front.pins.is_empty() || !self.keeps_state_apart())
            && !self.scanner.is_streaming()
    }

    /// Takes the received part of the client's next message, of which the server has received nothing.
    fn take_partial_message(&mut self) -> Option<Chunk> {
        let beginning = self.scanner.take_unfinished();
        (!beginning.is_empty()).then(|| beginning.into())
    }

    /// Takes the changes of the server's own values since the last call, for logins of other clients. `None` during a
    /// transaction or with a pending reply.
    #[inline]
    pub fn take_news(&mut self) -> Option<Settings> {
        let is_due = self.server.settings.has_default_changes() && self.pending_replies.is_over();
        is_due.then(|| self.server.take_news())
    }

    /// Current activity.
    #[must_use]
    pub fn activity(&self) -> Activity {
        match self.clock.query {
            Some(since) => Activity::Query(since),
            None if self.pending_replies.is_over() => Activity::Idle(self.clock.quiet),
            None => Activity::IdleInTransaction(self.clock.quiet),
        }
    }

    /// Start of the current transaction.
    #[must_use]
    pub fn transaction_since(&self) -> Option<Instant> {
        self.clock.transaction
    }

    /// Whether another process could continue with both connections: no transaction is open, and nothing is on the way.
    pub fn is_portable(&mut self, cx: &Context<'_>) -> bool {
        self.pending_replies.is_over()
            && self.held.is_none()
            && self.settings_pending == 0
            && !(self.resetting || self.has_reset || self.reports_settings)
            && !self.has_pending_changes()
            && self.pins_behind.is_none()
            && !self.origin_check.is_under_way()
            && self.scanner.is_between_messages()
            && self.front.is_portable()
            && self.server.is_portable()
            && self.server.link().poll_sent(cx).is_ready()
            && self.front.link.poll_sent(cx).is_ready()
    }

    /// Reasons why the client is pinned to its server.
    #[must_use]
    pub fn pins(&self) -> Pins {
        self.front.pins
    }

    /// State of the server at the end of the exchange.
    pub fn residue(&mut self) -> ServerResidue {
        self.close_reports();
        if self.scanner.is_streaming() || !self.pending_replies.has_no_replies_due() {
            ServerResidue::Busy
        } else if self.pending_replies.unsynced() == Unsynced::Executed {
            ServerResidue::Unsynced
        } else if self.pending_replies.unsynced() == Unsynced::Prepared {
            ServerResidue::Prepared { in_transaction: self.pending_replies.status != TxStatus::Idle }
        } else if self.pending_replies.is_over() {
            ServerResidue::Nothing
        } else {
            ServerResidue::Transaction
        }
    }
}
