//! Server connection, as used by the pool and by an exchange.

use std::{
    io,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
};

use tidegate_link::{Link, ParkedLink, Reactor};
use tidegate_pg_client::{ConnectError, Connection, ServerIdentity};
use tidegate_session_state::{
    params::{ServerSettings, Settings},
    statements::{ServerStatements, affects_analysis},
};
use tidegate_wire::{
    backend::{self, ParameterStatus, TxStatus},
    frame::HEADER,
    scan::{Delivery, ScanStep, Scanner},
};

pub mod cancel;
pub mod clean;
pub mod server_record;

pub use cancel::CancelGate;

/// Server data shown in a client's `ClientInfo`. Allocated once per server, as the server changes clients with every
/// transaction.
#[derive(Debug)]
pub struct ServerHandle {
    /// Identity of the server process.
    pub identity: Arc<ServerIdentity>,
    /// Blocks a change of clients while a cancel request is in flight.
    pub gate: CancelGate,
}

/// Connection to Postgres.
pub struct Server {
    link_state: LinkState,
    /// Scanner of the server's messages.
    pub scanner: Scanner,
    /// Settings of the session.
    pub settings: ServerSettings,
    /// Client settings that the server is known to have, and the parameters reported with them.
    pub synced_params: Option<SyncedParams>,
    /// Statements prepared on the server.
    pub statements: ServerStatements,
    /// Owner of the server's unnamed statement: client id and stamp.
    pub unnamed: Option<(u64, u64)>,
    /// The current transaction may have changed the catalogue.
    pub changes_catalog: bool,
    /// Reset required before the next client, for session state that is not tracked.
    pub reset_need: ResetNeed,
    /// Determines whether the server may serve another client.
    pub health: Health,
    /// The server's role may have changed: it refuses writes, or shuts down. The topology probes it.
    pub suspect: bool,
    /// Reason why the server needs a cleaning or a close, in PgBouncer's wording for the log.
    pub fault: Option<&'static str>,
    /// Blocks a change of clients while a cancel request is in flight.
    pub cancels: CancelGate,
    /// Identity of the server process.
    pub identity: Arc<ServerIdentity>,
    /// Identity and cancel gate, for the `ClientInfo` of the current client.
    pub server_handle: Rc<ServerHandle>,
    /// Transaction status last seen by a cleaning.
    pub status: TxStatus,
    /// Work required before the next client, if the server is released for cleaning.
    pub cleaning: Cleaning,
    /// Guard of the shared limits and of the task tree.
    pub quota: Option<Box<dyn Send>>,
}

/// Health of a server connection, from best to worst. Health never improves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// The server may serve another client.
    #[default]
    Clean,
    /// A send failed: the server no longer reads. Data that it sent before can still be read.
    WriteFailed,
    /// The session state is unknown.
    Tainted,
    /// The server announced that it closes the connection.
    Closing,
}

/// Client settings that a server has.
#[derive(Clone, Debug)]
pub struct SyncedParams {
    /// Settings of the client.
    pub settings: Rc<Settings>,
    /// Parameters that the server reports under these settings.
    pub reported: Rc<Settings>,
}

/// Reset that a server needs before its next client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResetNeed {
    /// No reset.
    #[default]
    Nothing,
    /// Session state that a DO block or a procedure may have left, which the call's text does not show. Prepared statements
    /// stay.
    Code,
    /// Reset of the whole session.
    Session,
    /// No reset is sufficient: the connection is closed.
    Connection,
}

enum LinkState {
    /// Registered with this thread's reactor.
    Registered(Link),
    /// Moved from another thread, not yet registered with this one.
    Parked(ParkedLink),
    /// Transient during a move, or left by a failed one.
    Missing,
}

/// Work required before the server's next client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cleaning {
    /// A transaction is open and requires a rollback.
    pub in_transaction: bool,
    /// The server waits for a Sync, which commits nothing.
    pub unsynced: bool,
    /// The session requires the pool's configured reset.
    pub reset: bool,
    /// A client left state that only a session has, which requires DISCARD ALL before that reset.
    pub discard: bool,
}

/// Maximum size of a server message that the gateway buffers whole. Rows are streamed.
const MESSAGE_MAX: usize = 1 << 30;

impl Server {
    /// Creates a server right after its login.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        let Connection { link, parameters, identity } = connection;
        let mut settings = ServerSettings::default();
        for (name, value) in &parameters {
            settings.report_default(name, value);
        }
        Self::at(LinkState::Registered(link), settings, ServerStatements::default(), Arc::new(identity))
    }

    /// Creates an idle server.
    fn at(
        link_state: LinkState,
        settings: ServerSettings,
        statements: ServerStatements,
        identity: Arc<ServerIdentity>,
    ) -> Self {
        let cancels = CancelGate::default();
        let server_handle = Rc::new(ServerHandle { identity: Arc::clone(&identity), gate: cancels.clone() });
        Self {
            link_state,
            scanner: Scanner::new(MESSAGE_MAX),
            settings,
            synced_params: None,
            statements,
            unnamed: None,
            changes_catalog: false,
            reset_need: ResetNeed::Nothing,
            health: Health::Clean,
            suspect: false,
            fault: None,
            cancels,
            identity,
            server_handle,
            status: TxStatus::Idle,
            cleaning: Cleaning::default(),
            quota: None,
        }
    }

    /// Lowers the health to `health`, if it was better.
    #[inline]
    pub fn degrade(&mut self, health: Health) {
        self.health = self.health.max(health);
    }

    /// Returns whether the server announced that it closes the connection.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.health == Health::Closing
    }

    /// Link to the server.
    ///
    /// # Panics
    /// Before [`Server::settle`].
    #[inline]
    pub fn link(&mut self) -> &mut Link {
        match &mut self.link_state {
            LinkState::Registered(link) => link,
            _ => panic!("a leased server is settled before it is used"),
        }
    }

    /// Registers a server that came from another thread with this one. Call after every checkout.
    ///
    /// # Errors
    /// If registration fails; the caller then closes the server.
    #[inline]
    pub fn settle(&mut self, reactor: &Reactor) -> io::Result<()> {
        if let LinkState::Registered(_) = self.link_state {
            return Ok(());
        }
        match std::mem::replace(&mut self.link_state, LinkState::Missing) {
            LinkState::Parked(parked) => self.link_state = LinkState::Registered(parked.unpark(reactor)?),
            _ => return Err(io::Error::other("the link was lost between threads")),
        }
        Ok(())
    }

    /// Handles a rollback of a transaction that may have changed the catalogue: statements analysed in that transaction are
    /// stale.
    pub fn forget_rolled_back(&mut self) {
        if std::mem::take(&mut self.changes_catalog) {
            self.statements.mark_all_stale();
        }
    }

    /// Raises the required reset to `need`.
    #[inline]
    pub fn needs_reset(&mut self, need: ResetNeed) {
        self.reset_need = self.reset_need.max(need);
    }

    /// Takes the changes of the server's own settings, for the login replies of new clients. Statements analysed under other
    /// settings are prepared again.
    pub fn take_news(&mut self) -> Settings {
        let news = self.settings.take_default_changes();
        if news.iter().any(|(name, _)| affects_analysis(name)) {
            self.statements.mark_all_stale();
        }
        news
    }

    /// Publishes the number of prepared statements.
    pub fn note_statements(&self) {
        let count = u32::try_from(self.statements.len()).unwrap_or(u32::MAX);
        self.identity.prepared.store(count, Ordering::Relaxed);
    }

    /// Reads the server's final messages after a failed send, so that the client receives them.
    pub fn has_final_messages(&mut self, cx: &Context<'_>) -> bool {
        match self.link().poll_read(cx) {
            Poll::Ready(Ok(chunk)) if !chunk.is_empty() => {
                self.link().unread(chunk);
                true
            }
            _ => false,
        }
    }

    /// Processes messages of an idle server. Returns whether the server is still usable.
    fn read_idle(&mut self) -> bool {
        let LinkState::Registered(link) = &mut self.link_state else {
            return !matches!(self.link_state, LinkState::Missing);
        };
        let cx = Context::from_waker(Waker::noop());
        loop {
            match link.poll_read(&cx) {
                Poll::Pending => return self.scanner.is_between_messages(),
                Poll::Ready(Err(_)) => return false,
                Poll::Ready(Ok(chunk)) if chunk.is_empty() => return false,
                Poll::Ready(Ok(chunk)) => {
                    if !on_message(&mut self.scanner, &mut self.settings, &mut self.synced_params, &chunk) {
                        return false;
                    }
                }
            }
        }
    }
}

/// An idle server may report a parameter, a notice, or a notification without a listener. Any other message means that the
/// server and the gateway are out of sync.
fn on_message(
    scanner: &mut Scanner,
    settings: &mut ServerSettings,
    synced_params: &mut Option<SyncedParams>,
    chunk: &[u8],
) -> bool {
    let mut at = 0;
    loop {
        let (tag, body, end) = match scanner.step(chunk, at, |_| Delivery::Whole) {
            Ok(ScanStep::Message { tag, end }) => (tag, chunk[at + HEADER..end].to_vec(), end),
            Ok(ScanStep::Carried { tag, end }) => (tag, scanner.take_carry()[HEADER..].to_vec(), end),
            Ok(ScanStep::NeedMore) => return true,
            Ok(_) | Err(_) => return false,
        };
        match tag {
            backend::NOTICE_RESPONSE | backend::NOTIFICATION_RESPONSE => {}
            backend::PARAMETER_STATUS => {
                let Ok(status) = ParameterStatus::decode(&body) else { return false };
                let Ok(name) = str::from_utf8(status.name) else { return false };
                settings.report_default(name, status.value);
                *synced_params = None;
            }
            _ => return false,
        }
        at = end;
    }
}

/// Server between two threads.
pub struct ParkedServer {
    link: Option<ParkedLink>,
    settings: ServerSettings,
    statements: ServerStatements,
    identity: Arc<ServerIdentity>,
    quota: Option<Box<dyn Send>>,
}

impl tidegate_pool::Connection for Server {
    type Detached = ParkedServer;
    type Error = ConnectError;

    fn is_usable(&mut self) -> bool {
        !self.is_closing() && self.read_idle()
    }

    fn on_idle(&mut self) {
        // A pending receive detects the end of an idle connection before its next client arrives.
        if !self.read_idle() {
            self.degrade(Health::Closing);
        }
    }

    fn poll_detach(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.link_state {
            LinkState::Registered(link) => link.poll_quiesce(cx),
            _ => Poll::Ready(()),
        }
    }

    fn detach(mut self) -> ParkedServer {
        self.forget_rolled_back();
        let link = match self.link_state {
            // A server that has sent data during the handover may have closed its session, so it is not handed over. A
            // partially read message is not handed over either, as the other thread lacks its beginning.
            LinkState::Registered(link) if self.scanner.is_between_messages() => {
                link.park().filter(|parked| !parked.is_readable())
            }
            LinkState::Registered(_) => None,
            LinkState::Parked(parked) => Some(parked),
            LinkState::Missing => None,
        };
        ParkedServer {
            link,
            settings: self.settings,
            statements: self.statements,
            identity: self.identity,
            quota: self.quota,
        }
    }

    fn attach(parked: ParkedServer) -> Self {
        let link_state = parked.link.map_or(LinkState::Missing, LinkState::Parked);
        let mut server = Self::at(link_state, parked.settings, parked.statements, parked.identity);
        server.quota = parked.quota;
        server
    }
}
