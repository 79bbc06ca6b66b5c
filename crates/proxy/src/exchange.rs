//! A client and a server, from the client's first message until the server may go to another client.
//!
//! Bytes flow both ways at once, so that neither side can block the other by sending without reading. Each direction
//! stops reading while the other side's queue is full; nothing else bounds a message's size.

use std::{
    collections::BTreeMap,
    io,
    rc::Rc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tidegate_config::PoolPlan;
use tidegate_link::{Chunk, Link};
use tidegate_query_log::writer::QueryTracker;
use tidegate_session_state::{
    params::{ParameterValue, RoleOrder, Settings, SettingsInterner},
    statements::{ClientStatements, StatementCatalog},
};
use tidegate_sql::{
    StatementDigest,
    classify::{Pins, SessionChange, is_temporary_path},
};
use tidegate_wire::{
    DecodeError,
    backend::{self, ErrorFields, TxStatus},
    frontend::{self, Execute},
    scan::Scanner,
    sqlstate,
};

use crate::server::{Health, Server};
use tidegate_stats::PoolStats;

mod config_values;
mod copy;
mod fast_path;
mod forward;
mod pending_changes;
mod pending_replies;
mod reply;
mod settings;
mod shapes;
mod splice;

pub use forward::Unnamed;
use pending_changes::PendingChanges;
use pending_replies::{PendingReplies, Unsynced};
use settings::{Inquiry, Reports};
use shapes::ShapeChecks;

/// A client as an exchange sees it: its link and what it has set up in its session.
pub struct ClientSide {
    /// The connection.
    pub link: Link,
    /// Tells this client from all others of its thread.
    pub id: u64,
    /// What the client has set.
    pub settings: Rc<Settings>,
    /// The parameters that were last reported to it.
    pub told: Rc<Settings>,
    /// What it had set when it logged in, to which RESET goes back.
    pub startup_settings: Rc<Settings>,
    /// Its named statements; none as long as it has none.
    pub statements: Option<Box<ClientStatements>>,
    /// Its unnamed statement, as long as one is alive.
    pub unnamed: Option<Box<Unnamed>>,
    /// What that changes in the settings, in session mode, where nothing else of it has to be known.
    pub unnamed_change: Option<Box<SessionChange>>,
    /// Why it stays on its server.
    pub pins: Pins,
    /// When servers are given its role.
    pub role_turn: RoleOrder,
    /// What its named statements change in the settings, in session mode likewise.
    pub statement_changes: NamedChanges,
    /// What its portals will change in the settings.
    pub portal_changes: NamedChanges,
    stamps: u64,
}

impl ClientSide {
    /// A client that has just logged in.
    #[must_use]
    pub fn new(link: Link, id: u64, settings: Rc<Settings>, told: Rc<Settings>) -> Self {
        Self {
            link,
            id,
            told,
            pins: pins_of(&settings),
            startup_settings: settings.clone(),
            settings,
            statements: None,
            unnamed: None,
            unnamed_change: None,
            role_turn: RoleOrder::default(),
            statement_changes: NamedChanges::default(),
            portal_changes: NamedChanges::default(),
            stamps: 0,
        }
    }

    /// A value that no other client shares, nor this one with what it sets later.
    fn own(&mut self, value: ParameterValue) -> ParameterValue {
        ParameterValue::Owned(Box::new(value), (self.id, self.next_stamp()))
    }

    fn next_stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }
}

/// Why a client that has these settings from its login stays on its server: what it creates may be temporary, or it is another
/// user there.
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

/// What the portals of a client, or its statements, will change in its settings once they are executed, by name; those that
/// change nothing are not kept.
#[derive(Debug, Default)]
pub struct NamedChanges(BTreeMap<Box<[u8]>, Box<SessionChange>>);

impl NamedChanges {
    /// A portal is bound, or a statement prepared, and takes the place of another of its name.
    fn bind(&mut self, name: &[u8], change: Option<Box<SessionChange>>) {
        match change {
            Some(change) => drop(self.0.insert(name.into(), change)),
            None => self.close(name),
        }
    }

    /// The change of a portal that was just bound.
    fn of_bound(&mut self, portal: &[u8]) -> Option<&mut SessionChange> {
        self.0.get_mut(portal).map(|change| &mut **change)
    }

    fn close(&mut self, name: &[u8]) {
        self.0.remove(name);
    }

    /// All of them are gone.
    fn clear(&mut self) {
        self.0.clear();
    }

    /// What the portal of an Execute message changes.
    fn of(&self, execute: &[u8]) -> Option<&SessionChange> {
        if self.0.is_empty() {
            return None;
        }
        let execute = Execute::decode(execute).ok()?;
        self.0.get(execute.portal).map(|change| &**change)
    }
}

/// More statements of a client are not followed.
const STATEMENT_CHANGES_MAX: usize = 4096;

/// What goes wrong between a client and a server.
#[derive(Debug)]
pub enum ExchangeError {
    /// The server refuses the client's settings, with this error.
    Settings(Box<[u8]>),
    /// The client's link is gone; `None` if it ended without an error.
    ClientGone(Option<io::Error>),
    /// The server's link is gone; `None` if it ended without an error.
    ServerGone(Option<io::Error>),
    /// The client sent what is no message.
    BadClient(DecodeError),
    /// The client sent a message of a kind that has no place in a session.
    UnknownMessage(u8),
    /// The client used the simple protocol, which it may not.
    SimpleQuery,
    /// The server sent what is no message.
    BadServer(DecodeError),
    /// The server sent a message that nobody had asked for.
    Unasked(u8),
}

/// How an exchange ends.
#[derive(Debug)]
pub enum End {
    /// Nothing is owed and no transaction is open. What the client had sent of its next message goes with it.
    Over(Option<Chunk>),
    /// The client said farewell.
    Farewell,
    /// The server refuses the client's settings, which another may take: what the client asked.
    Again(Chunk),
    /// The client has cancelled while the server took its settings: what it asked, and the server's error, a message.
    Cancelled(Chunk, Vec<u8>),
    /// Something went wrong.
    ExchangeError(ExchangeError),
}

/// What an exchange is doing, for deadlines and for `SHOW CLIENTS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The server owes a reply, since this moment.
    Query(Instant),
    /// A transaction is open and the client silent, since this moment.
    IdleInTransaction(Instant),
    /// The client keeps the server without a transaction.
    Idle(Instant),
}

/// What a server is left with when its client goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerResidue {
    /// Nothing: no transaction is open.
    Nothing,
    /// An open transaction; nothing is owed.
    Transaction,
    /// Messages without a Sync, which a Sync of ours would carry out and commit; nothing is owed.
    Unsynced,
    /// Messages without a Sync, of which a Sync commits nothing; nothing is owed, and a transaction may be open.
    Prepared {
        /// A transaction is open, or has failed.
        in_transaction: bool,
    },
    /// It owes a reply, or has got a part of a message.
    Busy,
}

/// What all exchanges of a pool on one thread share.
pub struct ExchangeCtx<'a> {
    /// The statements of this thread.
    pub catalog: &'a StatementCatalog,
    /// The settings of this thread.
    pub interned: &'a SettingsInterner,
    /// The pool's settings.
    pub plan: &'a PoolPlan,
    /// The pool's counters on this thread.
    pub stats: &'a PoolStats,
    /// The server is one of several that the client has a choice of.
    pub is_routed: bool,
}

/// One exchange. See the [module](self).
pub struct Exchange<'a> {
    front: &'a mut ClientSide,
    server: &'a mut Server,
    catalog: &'a StatementCatalog,
    interned: &'a SettingsInterner,
    plan: &'a PoolPlan,
    stats: &'a PoolStats,
    is_routed: bool,
    /// Of the client's messages.
    scanner: Scanner,
    /// Messages of the client that wait for the server's answers to those before them.
    held: Option<Chunk>,
    /// How far the server was when they were held, if it is its answers that they wait for.
    held_at: Option<u64>,
    pending_replies: PendingReplies,
    clock: Clock,
    /// What has ended in the chunk at hand.
    ended: Ended,
    /// The server stays with the client whatever the state of the transaction.
    keep: bool,
    /// Queries by which the settings of the client are on their way to the server: what it sent waits for them, as nothing may
    /// be run under settings that are not the client's.
    adopting: usize,
    /// The server has had messages of the client.
    served: bool,
    /// A RESET of the client is on its way: what comes behind it waits, as the server goes back to settings of its own.
    resetting: bool,
    /// A RESET was done: the server has lost what the client had set at its login.
    has_reset: bool,
    /// The client is told of its settings before the next ReadyForQuery: they are others than the server has reported.
    tells_settings: bool,
    /// Why the server refused one of them.
    adoption_error: Option<Box<[u8]>>,
    /// Changes of settings that wait for their transaction to end.
    pending: PendingChanges,
    /// Parameters that the server has reported meanwhile.
    reports: Reports,
    /// Whether the server is being asked whose some reported values are.
    inquiry: Inquiry,
    /// What the client does that keeps it on its server, behind a DISCARD ALL that was sent and has yet to be done.
    pins_behind: Option<Pins>,
    /// Statements that were taught behind others which are not answered yet: by what they are read may have changed.
    doubtful: Vec<StatementDigest>,
    /// Shapes of statements that are prepared again.
    shapes: ShapeChecks,
    /// The message now streamed from the server goes to the client.
    streams_for_client: bool,
    /// So many bytes have come in chunks that end amid rows.
    rows_bytes: usize,
    /// The client has been answered in the server's place, and the server may not have been asked anything.
    answered: bool,
    /// The server was told to send what it owes, since that is as much as may be.
    hurried: bool,
    /// Follows the queries for the journal, if there is one.
    query_tracker: Option<QueryTracker>,
}

/// When the transaction and the query at hand began.
#[derive(Clone, Copy)]
struct Clock {
    transaction: Option<Instant>,
    query: Option<Instant>,
    quiet: Instant,
}

/// How much a server has answered to the end.
#[derive(Clone, Copy, Default)]
struct Ended {
    /// Queries, or executions.
    queries: u32,
    /// Transactions.
    transactions: u32,
}

/// How long each of `count` took that took as long as that together.
fn each(together: Duration, count: u32) -> Duration {
    // Most often it is one, which needs no division.
    if count == 1 { together } else { together / count }
}

/// A direction stops reading while so much waits to be sent.
pub const QUEUE_BYTES_MAX: usize = 64 * 1024;
/// After so many bytes of rows a result is taken for a large one, whose pieces may gather.
const LARGE_BYTES_MIN: usize = 128 * 1024;
/// A client is not read while so many replies are owed to it,
const OWED_MAX: usize = 16 * 1024;
/// or while so much of what it prepared is kept for the case that it fails.
const KEPT_BYTES_MAX: usize = 16 << 20;

impl<'a> Exchange<'a> {
    /// Begins an exchange. With `keep`, the server stays with the client until one of them leaves.
    pub fn new(
        front: &'a mut ClientSide,
        server: &'a mut Server,
        around: &ExchangeCtx<'a>,
        keep: bool,
        now: Instant,
    ) -> Self {
        Self {
            front,
            server,
            catalog: around.catalog,
            interned: around.interned,
            plan: around.plan,
            stats: around.stats,
            is_routed: around.is_routed,
            scanner: Scanner::new(around.plan.pool.message_max as usize),
            held: None,
            held_at: None,
            pending_replies: PendingReplies::new(),
            clock: Clock { transaction: None, query: None, quiet: now },
            ended: Ended::default(),
            keep,
            adopting: 0,
            served: false,
            resetting: false,
            has_reset: false,
            tells_settings: false,
            adoption_error: None,
            pending: PendingChanges::default(),
            reports: Reports::default(),
            inquiry: Inquiry::None,
            pins_behind: None,
            doubtful: Vec::new(),
            shapes: ShapeChecks::default(),
            streams_for_client: false,
            rows_bytes: 0,
            answered: false,
            hurried: false,
            query_tracker: None,
        }
    }

    /// Lets a ledger follow the client's queries.
    pub fn set_query_tracker(&mut self, query_tracker: Option<QueryTracker>) {
        self.query_tracker = query_tracker;
    }

    /// The ledger, to be closed.
    pub fn take_query_tracker(&mut self) -> Option<QueryTracker> {
        self.query_tracker.take()
    }

    /// Takes the client's first messages.
    ///
    /// # Errors
    /// When they are none, or when the client leaves with them.
    pub fn begin(&mut self, first: Chunk, now: Instant) -> Result<(), End> {
        self.server.forget_rolled_back();
        self.sync_params();
        self.clock = Clock { transaction: Some(now), query: Some(now), quiet: now };
        if self.adopting > 0 {
            self.stats.received_bytes.add(first.len() as u64);
            self.held = Some(first);
            return Ok(());
        }
        self.take_from_client(first, now)
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
        let owed_nothing = self.pending_replies.has_no_replies_due();
        self.served = true;
        self.shapes.holds = false;
        match self.forward(chunk) {
            Ok(true) => {}
            Ok(false) => return Err(End::Farewell),
            Err(exchange_error) => return Err(End::ExchangeError(exchange_error)),
        }
        if owed_nothing && !self.pending_replies.has_no_replies_due() {
            self.clock.query = Some(now);
        }
        if self.answered {
            self.note_rest(now);
        }
        Ok(())
    }

    fn take_from_server(&mut self, chunk: Chunk, now: Instant) -> Result<(), ExchangeError> {
        self.stats.sent_bytes.add(chunk.len() as u64);
        if let Some(tracker) = &mut self.query_tracker {
            tracker.on_chunk(now);
        }
        let is_own = self.adopting > 0 || self.shapes.holds;
        let was_asking = self.inquiry.is_under_way();
        self.reply(chunk)?;
        // The client's own query has yet to begin.
        if !is_own {
            self.note_rest(now);
        } else if was_asking && self.adopting == 0 {
            // The client's own is counted already.
            self.clock = Clock { transaction: None, query: None, quiet: now };
        }
        Ok(())
    }

    /// The query is over if nothing is owed any more, and so may the transaction be. Behind what has ended in a pipeline the
    /// next has begun.
    #[inline]
    fn note_rest(&mut self, now: Instant) {
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

    /// So many queries are over since the first of them began, and maybe the next has begun.
    fn note_queries(&mut self, count: u32, next: Option<Instant>, now: Instant) {
        let Some(began) = std::mem::replace(&mut self.clock.query, next) else { return };
        self.stats.query_time.add_time(now - began);
        self.stats.durations.query.record_several(each(now - began, count), count);
    }

    /// The same of transactions.
    fn note_transactions(&mut self, count: u32, next: Option<Instant>, now: Instant) {
        let Some(began) = std::mem::replace(&mut self.clock.transaction, next) else { return };
        self.stats.xact_count.add(count.into());
        self.stats.xact_time.add_time(now - began);
        self.stats.durations.transaction.record_several(each(now - began, count), count);
    }

    /// Moves bytes both ways until the exchange ends.
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
            if self.has_reset && self.pending_replies.is_over() && !self.may_part() {
                self.has_reset = false;
                self.sync_params();
            }
            let answered = std::mem::take(&mut self.answered);
            if self.pending_replies.is_over() && (from_server.is_ready() || answered) && self.may_part() {
                return Poll::Ready(End::Over(self.take_beginning()));
            }
            if from_client.is_pending() && from_server.is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Sends what waits to be sent, and reads nothing. Whether the kernel has all of it.
    ///
    /// # Errors
    /// When one of the two has gone.
    pub fn flush(&mut self, cx: &Context<'_>) -> Result<bool, End> {
        self.flush_to_server(cx)?;
        self.flush_to_client(cx).map_err(End::ExchangeError)?;
        // An error is met by whoever reads.
        Ok(self.server.link().poll_sent(cx).is_ready() && self.front.link.poll_sent(cx).is_ready())
    }

    fn end_of(&mut self, exchange_error: ExchangeError) -> End {
        let ExchangeError::Settings(error) = exchange_error else { return End::ExchangeError(exchange_error) };
        // What it has on this server would be lost with it.
        let stays = self.served && (self.keep || !self.front.pins.is_empty());
        let request = if stays { None } else { self.held.take() };
        let Some(request) = request else { return End::ExchangeError(ExchangeError::Settings(error)) };
        let is_cancelled = |fields: ErrorFields<'_>| fields.code() == Some(sqlstate::QUERY_CANCELED);
        if ErrorFields::decode(&error).is_ok_and(is_cancelled) {
            return End::Cancelled(request, reply::message(backend::ERROR_RESPONSE, &error));
        }
        if self.may_ask_another() { End::Again(request) } else { End::ExchangeError(ExchangeError::Settings(error)) }
    }

    /// Whether it may not be the client's fault that its settings are refused: what other clients have left on this server may be
    /// the reason, or its own role, which is then taken earlier.
    fn may_ask_another(&mut self) -> bool {
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
        if self.adopting == 0
            && self.server.link().queued_bytes() < QUEUE_BYTES_MAX
            // They may be long, and a look at them for each piece of a large result would hold up other clients.
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
            // What runs for it is of no use to it any more.
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
            && self.adopting == 0
            && self.server.link().queued_bytes() < QUEUE_BYTES_MAX
            // What the gateway answers itself piles up there, or waits for its turn.
            && self.front.link.queued_bytes() < QUEUE_BYTES_MAX
            && self.may_owe_more()
    }

    /// Whether the client may be owed more. If not, the server is told to send what it keeps until it gets a Sync: the client may
    /// not have come to that, and all of our own replies wait behind it.
    fn may_owe_more(&mut self) -> bool {
        let is_bounded = self.pending_replies.len() < OWED_MAX && self.pending_replies.kept_bytes() < KEPT_BYTES_MAX;
        if is_bounded || self.scanner.is_streaming() {
            self.hurried = false;
            return true;
        }
        if !std::mem::replace(&mut self.hurried, true) {
            let mut flush = Vec::new();
            frontend::flush(&mut flush);
            self.server.link().write(flush);
        }
        false
    }

    fn flush_to_server(&mut self, cx: &Context<'_>) -> Result<(), End> {
        if let Poll::Ready(Err(error)) = self.server.link().poll_flush(cx) {
            // The server may have said why before it went: its last words are read first.
            self.server.degrade(Health::WriteFailed);
            if !self.server.has_last_words(cx) {
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

    /// Whether the server may go to another client, as far as this client is concerned.
    fn may_part(&self) -> bool {
        !self.keep
            && self.held.is_none()
            && (self.front.pins.is_empty() || !self.keeps_state_apart())
            && !self.scanner.is_streaming()
    }

    /// What the client has sent of its next message, none of which the server has got.
    fn take_beginning(&mut self) -> Option<Chunk> {
        let beginning = self.scanner.take_unfinished();
        (!beginning.is_empty()).then(|| beginning.into())
    }

    /// Changes of the server's own values since the last call, for the logins of other clients; none while a transaction or a
    /// reply is under way.
    #[inline]
    pub fn take_news(&mut self) -> Option<Settings> {
        let is_due = self.server.settings.has_default_changes() && self.pending_replies.is_over();
        is_due.then(|| self.server.take_news())
    }

    /// What the exchange is doing.
    #[must_use]
    pub fn activity(&self) -> Activity {
        match self.clock.query {
            Some(since) => Activity::Query(since),
            None if self.pending_replies.is_over() => Activity::Idle(self.clock.quiet),
            None => Activity::IdleInTransaction(self.clock.quiet),
        }
    }

    /// Since when the transaction at hand is open.
    #[must_use]
    pub fn transaction_since(&self) -> Option<Instant> {
        self.clock.transaction
    }

    /// Why the client stays on its server.
    #[must_use]
    pub fn pins(&self) -> Pins {
        self.front.pins
    }

    /// The state of the server when the exchange ends.
    pub fn residue(&mut self) -> ServerResidue {
        self.give_up_reports();
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
