//! One connection to Postgres, as the pool keeps it and an exchange uses it.

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

pub use cancel::CancelGate;

/// What a client's card says of the server that the client has. One for each server, as it changes hands with every
/// transaction.
#[derive(Debug)]
pub struct ServerHandle {
    /// Who it is.
    pub identity: Arc<ServerIdentity>,
    /// Keeps it from going to another client while a cancel request is under way.
    pub gate: CancelGate,
}

/// One connection to Postgres.
pub struct Server {
    place: Place,
    /// Of the server's messages.
    pub scanner: Scanner,
    /// What the session has set.
    pub settings: ServerSettings,
    /// The client settings that the server is known to have, and what it reports with them.
    pub synced_params: Option<SyncedParams>,
    /// The statements it was taught.
    pub statements: ServerStatements,
    /// Whose unnamed statement it has: the client and its stamp.
    pub unnamed: Option<(u64, u64)>,
    /// The transaction at hand may have changed the catalogue.
    pub changes_catalog: bool,
    /// What has to be reset before its next client, as the session may hold something that nobody has noted.
    pub reset_need: ResetNeed,
    /// Whether it may serve another client.
    pub health: Health,
    /// The role of the server may have changed: it refuses writes, or it shuts down. The topology probes it.
    pub suspect: bool,
    /// Why its client could not leave it as it is, in PgBouncer's words for the log.
    pub fault: Option<&'static str>,
    /// Holds the server back while a cancel request for it is under way.
    pub cancels: CancelGate,
    /// Who it is.
    pub identity: Arc<ServerIdentity>,
    /// The same, for the card of its client.
    pub server_handle: Rc<ServerHandle>,
    /// The transaction, as far as a cleaning has seen it.
    pub status: TxStatus,
    /// What is to be done before its next client, should it be released for cleaning.
    pub cleaning: Cleaning,
    /// Its place in the limits that pools share, and in the tree of tasks.
    pub quota: Option<Box<dyn Send>>,
}

/// Whether a server connection may serve another client, from best to worst. It never gets better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// It may.
    #[default]
    Clean,
    /// A send failed: the server reads no more. What it had sent before can still be read.
    WriteFailed,
    /// The state of the session is unknown.
    Tainted,
    /// The server announced that it closes the connection.
    Closing,
}

/// Settings of a client that a server has.
#[derive(Clone, Debug)]
pub struct SyncedParams {
    /// The settings of the client.
    pub settings: Rc<Settings>,
    /// The parameters that the server reports under these settings.
    pub reported: Rc<Settings>,
}

/// The reset that a server needs before its next client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResetNeed {
    /// Nothing.
    #[default]
    Nothing,
    /// What a DO block or a procedure may have left behind, which the text of its call does not tell. Prepared statements stay.
    Code,
    /// The whole session.
    Session,
    /// No reset takes it back: the connection is closed.
    Connection,
}

enum Place {
    /// On this thread.
    Here(Link),
    /// Brought from another thread, not yet registered with this one.
    Away(ParkedLink),
    /// Only while it changes from one to the other, or when that failed.
    Nowhere,
}

/// What has to be done before a server's next client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cleaning {
    /// A transaction is open and has to be rolled back.
    pub in_transaction: bool,
    /// The server waits for a Sync, which commits nothing.
    pub unsynced: bool,
    /// The session has to be reset as the pool is told to,
    pub reset: bool,
    /// and before that as a client needs it who has left behind what only a session has.
    pub discard: bool,
}

/// The largest message of a server that the gateway has to see whole; rows are not among them.
const MESSAGE_MAX: usize = 1 << 30;

impl Server {
    /// A server right after its login.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        let Connection { link, parameters, identity } = connection;
        let mut settings = ServerSettings::default();
        for (name, value) in &parameters {
            settings.report_default(name, value);
        }
        Self::at(Place::Here(link), settings, ServerStatements::default(), Arc::new(identity))
    }

    /// A server at rest: nothing is under way on it.
    fn at(place: Place, settings: ServerSettings, statements: ServerStatements, identity: Arc<ServerIdentity>) -> Self {
        let cancels = CancelGate::default();
        let server_handle = Rc::new(ServerHandle { identity: Arc::clone(&identity), gate: cancels.clone() });
        Self {
            place,
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

    /// Whether the server announced that it closes the connection.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.health == Health::Closing
    }

    /// Its connection.
    ///
    /// # Panics
    /// Before [`Server::settle`].
    #[inline]
    pub fn link(&mut self) -> &mut Link {
        match &mut self.place {
            Place::Here(link) => link,
            _ => panic!("a leased server is settled before it is used"),
        }
    }

    /// Registers a server that came from another thread with this one. To be called after every checkout.
    ///
    /// # Errors
    /// When it cannot be registered; the server is then to be closed.
    #[inline]
    pub fn settle(&mut self, reactor: &Reactor) -> io::Result<()> {
        if let Place::Here(_) = self.place {
            return Ok(());
        }
        match std::mem::replace(&mut self.place, Place::Nowhere) {
            Place::Away(parked) => self.place = Place::Here(parked.unpark(reactor)?),
            _ => return Err(io::Error::other("the link was lost between threads")),
        }
        Ok(())
    }

    /// The client has left in a transaction that may have changed the catalogue, and was rolled back: what was analysed in its
    /// course is outdated.
    pub fn forget_rolled_back(&mut self) {
        if std::mem::take(&mut self.changes_catalog) {
            self.statements.mark_all_stale();
        }
    }

    /// Notes what has to be reset before its next client.
    #[inline]
    pub fn needs_reset(&mut self, need: ResetNeed) {
        self.reset_need = self.reset_need.max(need);
    }

    /// What has changed in the server's own settings, for the greeting of new clients. Statements that it has read under others
    /// are prepared anew.
    pub fn take_news(&mut self) -> Settings {
        let news = self.settings.take_default_changes();
        if news.iter().any(|(name, _)| affects_analysis(name)) {
            self.statements.mark_all_stale();
        }
        news
    }

    /// Lets others see how many statements it was taught.
    pub fn note_statements(&self) {
        let count = u32::try_from(self.statements.len()).unwrap_or(u32::MAX);
        self.identity.prepared.store(count, Ordering::Relaxed);
    }

    /// After a failed send: reads what the server had said before it went, so that the client gets to know.
    pub fn has_last_words(&mut self, cx: &Context<'_>) -> bool {
        match self.link().poll_read(cx) {
            Poll::Ready(Ok(chunk)) if !chunk.is_empty() => {
                self.link().unread(chunk);
                true
            }
            _ => false,
        }
    }

    /// Takes in what an idle server has said. Whether it may still be used.
    fn read_idle(&mut self) -> bool {
        let Place::Here(link) = &mut self.place else { return !matches!(self.place, Place::Nowhere) };
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

/// An idle server may report a parameter, a notice, or a notification that nobody waits for. Anything else means that
/// it and the gateway disagree about whose turn it is.
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

/// A server between two threads.
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
        // A receive is put under way, so that the end of an idle connection is known before its next client comes.
        if !self.read_idle() {
            self.degrade(Health::Closing);
        }
    }

    fn poll_detach(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.place {
            Place::Here(link) => link.poll_quiesce(cx),
            _ => Poll::Ready(()),
        }
    }

    fn detach(mut self) -> ParkedServer {
        self.forget_rolled_back();
        let link = match self.place {
            // A server that has said something on the way out may have said farewell: it is not handed over. Nor is one in the
            // middle of a message, of which the other thread would not know the beginning.
            Place::Here(link) if self.scanner.is_between_messages() => {
                link.park().filter(|parked| !parked.is_readable())
            }
            Place::Here(_) => None,
            Place::Away(parked) => Some(parked),
            Place::Nowhere => None,
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
        let place = parked.link.map_or(Place::Nowhere, Place::Away);
        let mut server = Self::at(place, parked.settings, parked.statements, parked.identity);
        server.quota = parked.quota;
        server
    }
}
