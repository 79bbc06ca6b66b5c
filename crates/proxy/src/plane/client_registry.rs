//! The clients of one thread: for the console, and to match cancel requests.

use std::{
    cell::{Cell, RefCell},
    fmt,
    net::SocketAddr,
    num::{NonZeroU16, NonZeroU32},
    rc::Rc,
    sync::Arc,
    task::Waker,
    time::{Instant, SystemTime},
};

use subtle::ConstantTimeEq;
use tidegate_handover::THREAD_NUMBERS;
use tidegate_link::PeerAddress;
use tidegate_pg_client::ServerIdentity;
use tidegate_session_state::params::Settings;
use tidegate_sql::classify::Pins;

use crate::{plane::PoolKey, server::ServerHandle};

/// State of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientState {
    /// Idle: it has no server connection.
    Idle,
    /// Waiting for a server connection since this moment.
    Waiting(Instant),
    /// Active: a server connection is leased.
    Active,
    /// A replication connection with a server connection of its own.
    Replicating(Replication),
}

/// Scope of a replication connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// Physical: the whole server.
    Physical,
    /// Logical: one database.
    Logical,
}

impl ClientState {
    /// The word that PgBouncer's console shows.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Waiting(_) => "waiting",
            Self::Active | Self::Replicating(_) => "active",
        }
    }
}

/// A signal to the task of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// An operator disconnects it (`KILL`).
    Kill,
    /// The client cancelled its wait for a server connection.
    CancelWait,
    /// The server is no longer the primary: the server connection must not be used.
    Deposed,
    /// The client does not read, and `SUSPEND` waits for it.
    SuspendTimeout,
    /// The database was removed from the configuration: disconnect outside a transaction.
    Removed,
}

/// State of one client that other tasks and threads see.
#[derive(Debug)]
pub struct ClientInfo {
    /// Unique in this process.
    pub id: u64,
    /// The database as named in the startup packet.
    pub database: Arc<str>,
    /// User of its pool.
    pool_user: TakeCell<Arc<str>>,
    /// Pool user after a reload; takes effect with its next transaction.
    pub is_pool_replaced: Cell<bool>,
    /// User name, unless it equals the user of its pool.
    pub user: Arc<str>,
    /// Peer address.
    pub peer: PeerAddress,
    /// Index of its local address in [`ClientRegistry::local_of`].
    local: Option<NonZeroU16>,
    /// Process id of the peer on a unix socket, if the kernel reports it; else 0.
    pub process: u32,
    /// Version and cipher suite, such as "TLSv1.3/...".
    pub tls: Option<Box<str>>,
    /// Time of the login.
    pub connected_at: SystemTime,
    /// Announced process id, if it is not derived from the slot.
    pid: Cell<Option<NonZeroU32>>,
    /// Secret of its cancel key.
    secret: Box<[u8]>,
    /// Current state.
    pub state: Cell<ClientState>,
    /// Time of its last request.
    pub request_at: Cell<Option<Instant>>,
    /// Reasons why it keeps its server connection.
    pub pins: Cell<Pins>,
    /// Run-time parameters, `application_name` included.
    settings: TakeCell<Option<Rc<Settings>>>,
    /// Number of its prepared statements.
    pub prepared: Cell<u32>,
    server_handle: TakeCell<Option<Rc<ServerHandle>>>,
    signal: Cell<Option<Signal>>,
    task: TakeCell<Option<Waker>>,
}

/// Together with the two counts of its `Rc` this fills a size class of the allocator: one byte more costs 64 bytes per
/// client.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<ClientInfo>() <= 240, "a card has grown out of its block");

/// Fields that are borrowed for a moment. There are many thousands of these, and a `RefCell` is larger.
#[derive(Default)]
struct TakeCell<T>(Cell<T>);

impl<T: Default> TakeCell<T> {
    fn set(&self, value: T) {
        self.0.set(value);
    }

    fn with<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        let value = self.0.take();
        let seen = look(&value);
        self.0.set(value);
        seen
    }
}

impl<T: Default + fmt::Debug> fmt::Debug for TakeCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with(|value| value.fmt(f))
    }
}

/// Arguments of [`ClientRegistry::enter`].
pub struct NewClient<'a> {
    /// See [`ClientInfo::id`].
    pub id: u64,
    /// See [`ClientInfo::key()`].
    pub key: PoolKey,
    /// See [`ClientInfo::user`].
    pub user: &'a str,
    /// See [`ClientInfo::peer`].
    pub peer: PeerAddress,
    /// Local address; none for a unix socket.
    pub local: Option<SocketAddr>,
    /// See [`ClientInfo::process`].
    pub process: u32,
    /// See [`ClientInfo::tls`].
    pub tls: Option<Box<str>>,
    /// Process id to announce instead of the one derived from the slot.
    pub pid: Option<u32>,
    /// Secret of the cancel key.
    pub secret: Box<[u8]>,
    /// See [`ClientInfo::connected_at`].
    pub connected_at: SystemTime,
}

impl ClientInfo {
    /// Sends a signal to the task of the client. `Kill` is never replaced by another signal.
    pub fn signal(&self, signal: Signal) {
        if self.signal.get() != Some(Signal::Kill) {
            self.signal.set(Some(signal));
        }
        self.wake();
    }

    /// The pending signal.
    #[inline]
    pub fn peek_signal(&self) -> Option<Signal> {
        self.signal.get()
    }

    /// Clears the pending signal.
    pub fn clear_signal(&self) {
        self.signal.set(None);
    }

    fn wake(&self) {
        self.task.with(|task| {
            if let Some(task) = task {
                task.wake_by_ref();
            }
        });
    }

    /// The key of its pool; for the console, that of the console.
    #[must_use]
    pub fn key(&self) -> PoolKey {
        let user = self.pool_user.with(Arc::clone);
        PoolKey { database: self.database.clone(), user, looks_up: false, host: None }
    }

    /// Switches the client to the pool of this user.
    pub fn set_pool_user(&self, user: Arc<str>) {
        self.pool_user.set(user);
        self.is_pool_replaced.set(false);
    }

    /// Registers the task that signals wake.
    pub fn set_waker(&self, waker: &Waker) {
        self.task.set(Some(waker.clone()));
    }

    /// Sets or clears the server connection of the client.
    pub fn link(&self, server_handle: Option<Rc<ServerHandle>>) {
        if server_handle.is_none() && matches!(self.signal.get(), Some(Signal::Deposed | Signal::SuspendTimeout)) {
            // A signal about the server connection that was released.
            self.signal.set(None);
        }
        self.server_handle.set(server_handle);
    }

    /// Updates the parameters of the client.
    pub fn note_settings(&self, settings: &Rc<Settings>) {
        let is_known = self.settings.with(|known| known.as_ref().is_some_and(|known| Rc::ptr_eq(known, settings)));
        if !is_known {
            self.settings.set(Some(settings.clone()));
        }
    }

    /// The `application_name` of the client.
    #[must_use]
    pub fn application_name(&self) -> Option<String> {
        self.settings.with(|settings| {
            let name = settings.as_ref()?.text("application_name")?;
            (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned())
        })
    }

    /// The secret of its cancel key.
    #[must_use]
    pub fn secret(&self) -> &[u8] {
        &self.secret
    }

    /// Announces the process id of this server, which the client keeps for its session (session mode).
    pub fn announce(&self, server: &ServerIdentity) {
        self.pid.set(NonZeroU32::new(server.pid));
    }

    /// The server connection of the client.
    #[must_use]
    pub fn server_handle(&self) -> Option<Rc<ServerHandle>> {
        self.server_handle.with(Option::clone)
    }
}

/// The clients of one thread.
#[derive(Debug, Default)]
pub struct ClientRegistry {
    slots: RefCell<Slots>,
    /// Local addresses, each once, so that a client stores two bytes.
    locals: RefCell<Vec<SocketAddr>>,
}

/// Number of local addresses that are remembered; a machine has few.
const LOCALS_MAX: usize = 256;

#[derive(Debug, Default)]
struct Slots {
    client_infos: Vec<Option<Rc<ClientInfo>>>,
    free: Vec<u32>,
}

/// Removes a client from the registry on drop.
#[derive(Debug)]
pub struct RegisteredClient {
    /// The client.
    pub client_info: Rc<ClientInfo>,
    slot: u32,
}

impl ClientRegistry {
    /// Registers a client.
    pub fn enter(&self, new: NewClient<'_>) -> RegisteredClient {
        let NewClient { id, key, user, peer, local, process, tls, pid, secret, connected_at } = new;
        // The pool's name is shared; no copy per client.
        let user = if *key.user == *user { key.user.clone() } else { user.into() };
        let client_info = Rc::new(ClientInfo {
            id,
            database: key.database,
            pool_user: TakeCell(Cell::new(key.user)),
            is_pool_replaced: Cell::new(false),
            user,
            peer,
            local: local.and_then(|local| self.note_local(local)),
            process,
            tls,
            pid: Cell::new(pid.and_then(NonZeroU32::new)),
            secret,
            connected_at,
            state: Cell::new(ClientState::Idle),
            request_at: Cell::new(None),
            pins: Cell::new(Pins::default()),
            settings: TakeCell::default(),
            prepared: Cell::new(0),
            server_handle: TakeCell::default(),
            signal: Cell::new(None),
            task: TakeCell::default(),
        });
        let mut slots = self.slots.borrow_mut();
        let slot = match slots.free.pop() {
            Some(slot) => slot,
            None => {
                slots.client_infos.push(None);
                u32::try_from(slots.client_infos.len() - 1).expect("fewer than 4 billion clients")
            }
        };
        slots.client_infos[slot as usize] = Some(client_info.clone());
        RegisteredClient { client_info, slot }
    }

    fn note_local(&self, local: SocketAddr) -> Option<NonZeroU16> {
        let mut locals = self.locals.borrow_mut();
        let number = match locals.iter().position(|known| *known == local) {
            Some(place) => place + 1,
            None if locals.len() < LOCALS_MAX => {
                locals.push(local);
                locals.len()
            }
            None => return None,
        };
        NonZeroU16::new(u16::try_from(number).ok()?)
    }

    /// Local address of a client; none for a unix socket.
    #[must_use]
    pub fn local_of(&self, client_info: &ClientInfo) -> Option<SocketAddr> {
        self.locals.borrow().get(usize::from(client_info.local?.get()) - 1).copied()
    }

    /// Unregisters a client.
    pub fn leave(&self, entry: &RegisteredClient) {
        let mut slots = self.slots.borrow_mut();
        slots.client_infos[entry.slot as usize] = None;
        slots.free.push(entry.slot);
    }

    /// All clients.
    #[must_use]
    pub fn client_infos(&self) -> Vec<Rc<ClientInfo>> {
        self.slots.borrow().client_infos.iter().flatten().cloned().collect()
    }

    /// Disconnects the clients that hold one of these server connections.
    pub fn sever(&self, servers: &[u64]) {
        let is_on = |client_info: &Rc<ClientInfo>| {
            client_info.server_handle().is_some_and(|server_handle| servers.contains(&server_handle.identity.id))
        };
        for client_info in self.client_infos().into_iter().filter(is_on) {
            client_info.signal(Signal::Deposed);
        }
    }

    /// Wakes the tasks of up to `limit` clients that may move to another process, idle or pinned, from the client behind the last
    /// one on. `cursor` is the place of that client.
    pub fn wake_movable(&self, cursor: &Cell<usize>, limit: usize) {
        let is_movable = |client_info: &&Rc<ClientInfo>| {
            let may_be_quiet = client_info.state.get() == ClientState::Idle || !client_info.pins.get().is_empty();
            may_be_quiet && client_info.tls.is_none()
        };
        let woken: Vec<_> = {
            let slots = self.slots.borrow();
            let count = slots.client_infos.len();
            let order = (0..count).map(|step| (cursor.get() + 1 + step) % count);
            let client_at = |place: usize| slots.client_infos.get(place)?.as_ref().map(|client| (place, client));
            let movable = order.filter_map(client_at).filter(|(_, client_info)| is_movable(client_info));
            movable.take(limit).map(|(place, client_info)| (place, client_info.clone())).collect()
        };
        for (place, client_info) in woken {
            cursor.set(place);
            client_info.wake();
        }
    }

    /// Wakes the tasks of all clients.
    pub fn wake_all(&self) {
        for client_info in self.client_infos() {
            client_info.wake();
        }
    }

    /// The client with this announced process id and secret. Scans all clients.
    #[must_use]
    pub fn find_by_process_id(&self, pid: u32, secret: &[u8]) -> Option<Rc<ClientInfo>> {
        let slots = self.slots.borrow();
        let matches = |client_info: &&Rc<ClientInfo>| {
            client_info.pid.get().map(NonZeroU32::get) == Some(pid) && bool::from(client_info.secret.ct_eq(secret))
        };
        slots.client_infos.iter().flatten().find(matches).cloned()
    }

    /// The client at `slot`, if `secret` is its secret. Constant time in the secret.
    #[must_use]
    pub fn find(&self, slot: u32, secret: &[u8]) -> Option<Rc<ClientInfo>> {
        let slots = self.slots.borrow();
        let client_info = slots.client_infos.get(slot as usize)?.as_ref()?;
        bool::from(client_info.secret.ct_eq(secret)).then(|| client_info.clone())
    }
}

impl RegisteredClient {
    /// The announced process id: number of the thread and slot, unless another one was set.
    #[must_use]
    pub(super) fn pid(&self, thread: usize) -> u32 {
        self.client_info.pid.get().map_or_else(|| pid_of(thread, self.slot), NonZeroU32::get)
    }
}

/// Bits of a process id for the slot; the bits above are for the thread. The sign bit stays zero, because drivers parse a
/// signed number.
const SLOT_BITS: u32 = 22;

/// Highest process id of Linux (`PID_MAX_LIMIT` in `include/linux/threads.h`). Virtual process ids are above it, so that
/// `pg_terminate_backend` with one never hits another client's backend.
pub const PROCESS_ID_MAX: u32 = 1 << SLOT_BITS;

/// The process id of a client: number of its thread and slot. Beyond four million clients per thread the ids repeat, and cancel
/// requests for those clients fail.
#[must_use]
fn pid_of(thread: usize, slot: u32) -> u32 {
    let thread = u32::try_from(thread % THREAD_NUMBERS + 1).unwrap_or(u32::MAX);
    ((thread << SLOT_BITS) | (slot & ((1 << SLOT_BITS) - 1))) + 1
}

/// Number of the thread and slot of a process id; `None` for the process id of a server.
#[must_use]
pub fn place_of(pid: u32) -> Option<(usize, u32)> {
    let pid = pid.checked_sub(1)?;
    let thread = (pid >> SLOT_BITS).checked_sub(1)?;
    Some((thread as usize, pid & ((1 << SLOT_BITS) - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_sent_away_is_not_kept_by_a_cancel_request() {
        let registry = ClientRegistry::default();
        let entry = registry.enter(NewClient {
            id: 1,
            key: PoolKey::new("shop", "app"),
            user: "app",
            peer: PeerAddress::Unix,
            local: None,
            process: 0,
            tls: None,
            pid: None,
            secret: Box::new([0; 4]),
            connected_at: SystemTime::now(),
        });
        for other in [Signal::CancelWait, Signal::Deposed] {
            entry.client_info.signal(Signal::Kill);
            entry.client_info.signal(other);
            assert_eq!(entry.client_info.peek_signal(), Some(Signal::Kill), "after {other:?}");
        }
    }

    #[test]
    fn a_process_id_names_its_place_and_is_positive() {
        for (worker, slot) in [(0, 0), (0, 1), (7, 123_456), (510, (1 << SLOT_BITS) - 2)] {
            let pid = pid_of(worker, slot);
            assert_eq!(place_of(pid), Some((worker, slot)));
            assert!(pid > PROCESS_ID_MAX && i32::try_from(pid).is_ok());
        }
        for pid in [0, 1, 77, PROCESS_ID_MAX] {
            assert_eq!(place_of(pid), None, "of a process");
        }
    }
}
