//! The clients of one thread, for the console and for cancel requests.

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
use tidegate_link::Address;
use tidegate_pg_client::Identity;
use tidegate_session_state::params::Settings;
use tidegate_sql::classify::Pins;

use crate::{plane::PoolKey, server::Linked};

/// What a client is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientState {
    /// Nothing: it has no server.
    Idle,
    /// It waits for a server, since this moment.
    Waiting(Instant),
    /// It has a server.
    Active,
    /// It has a server of its own for as long as it stays, and gets a stream of changes.
    Replicating(Replication),
}

/// What a stream of changes holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// All of the server.
    Physical,
    /// One database.
    Logical,
}

impl ClientState {
    /// PgBouncer's word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Waiting(_) => "waiting",
            Self::Active | Self::Replicating(_) => "active",
        }
    }
}

/// What another party wants of a client's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// An operator sends it away.
    Kill,
    /// It asked to cancel its wait for a server.
    CancelWait,
    /// Its server must not be used any more: another one is primary.
    Deposed,
    /// It does not take what is sent to it, and everybody waits for that.
    SuspendTimeout,
    /// Its database is none any more: it leaves when it has no transaction open.
    Removed,
}

/// One client, as others see it.
#[derive(Debug)]
pub struct Card {
    /// Tells it from all other clients of the gateway.
    pub id: u64,
    /// The database that it named.
    pub database: Arc<str>,
    /// The user of the pool that it uses.
    pool_user: Told<Arc<str>>,
    /// A reload has made another pool the client's: it uses that one from its next transaction on.
    pub is_pool_replaced: Cell<bool>,
    /// Who it is; the user of its pool, unless that is another's.
    pub user: Arc<str>,
    /// Where it comes from.
    pub peer: Address,
    /// Which of the addresses of [`Roster::local_of`] it has come to.
    local: Option<NonZeroU16>,
    /// Its process, if it has come over the unix socket and the kernel has said which it is; else 0.
    pub process: u32,
    /// Its TLS, as "TLSv1.3/...".
    pub tls: Option<Box<str>>,
    /// When it was let in.
    pub connected_at: SystemTime,
    /// The process id that it was told, if that is not its place.
    pid: Cell<Option<NonZeroU32>>,
    /// What it has to name to cancel.
    secret: Box<[u8]>,
    /// What it is doing.
    pub state: Cell<ClientState>,
    /// When it last asked for something.
    pub request_at: Cell<Option<Instant>>,
    /// Why it stays on its server.
    pub pins: Cell<Pins>,
    /// What it has set, its application name among it.
    settings: Told<Option<Rc<Settings>>>,
    /// The statements it has prepared.
    pub prepared: Cell<u32>,
    linked: Told<Option<Rc<Linked>>>,
    signal: Cell<Option<Signal>>,
    task: Told<Option<Waker>>,
}

/// With the two counts of its `Rc` it fills a block of the allocator: one byte more would cost each client 64.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Card>() <= 240, "a card has grown out of its block");

/// What is looked at for a moment at a time. A card is one of many thousands, and a `RefCell` would be larger.
#[derive(Default)]
struct Told<T>(Cell<T>);

impl<T: Default> Told<T> {
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

impl<T: Default + fmt::Debug> fmt::Debug for Told<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with(|value| value.fmt(f))
    }
}

/// What a card is made of.
pub struct NewCard<'a> {
    /// See [`Card::id`].
    pub id: u64,
    /// See [`Card::key()`].
    pub key: PoolKey,
    /// See [`Card::user`].
    pub user: &'a str,
    /// See [`Card::peer`].
    pub peer: Address,
    /// The address of this machine that it has come to; none for the unix socket.
    pub local: Option<SocketAddr>,
    /// See [`Card::process`].
    pub process: u32,
    /// See [`Card::tls`].
    pub tls: Option<Box<str>>,
    /// The process id that it is told, if that is not to be its place.
    pub pid: Option<u32>,
    /// What the client has to name to cancel.
    pub secret: Box<[u8]>,
}

impl Card {
    /// Sends a signal to the client's task. Who is sent away already is, whatever else is wanted of it.
    pub fn signal(&self, signal: Signal) {
        if self.signal.get() != Some(Signal::Kill) {
            self.signal.set(Some(signal));
        }
        self.wake();
    }

    /// The signal that was sent, if there is one.
    #[inline]
    pub fn peek_signal(&self) -> Option<Signal> {
        self.signal.get()
    }

    /// Takes the signal away.
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

    /// The pool that the client uses; the console's for the console.
    #[must_use]
    pub fn key(&self) -> PoolKey {
        let user = self.pool_user.with(Arc::clone);
        PoolKey { database: self.database.clone(), user, looks_up: false, host: None }
    }

    /// The client uses the pool of this user from now on.
    pub fn set_pool_user(&self, user: Arc<str>) {
        self.pool_user.set(user);
        self.is_pool_replaced.set(false);
    }

    /// The task to be woken by signals.
    pub fn set_waker(&self, waker: &Waker) {
        self.task.set(Some(waker.clone()));
    }

    /// The client has got a server, or has given it back.
    pub fn link(&self, linked: Option<Rc<Linked>>) {
        if linked.is_none() && matches!(self.signal.get(), Some(Signal::Deposed | Signal::SuspendTimeout)) {
            // Of a server that it no longer has.
            self.signal.set(None);
        }
        self.linked.set(linked);
    }

    /// The client's settings as they are now.
    pub fn note_settings(&self, settings: &Rc<Settings>) {
        let is_known = self.settings.with(|known| known.as_ref().is_some_and(|known| Rc::ptr_eq(known, settings)));
        if !is_known {
            self.settings.set(Some(settings.clone()));
        }
    }

    /// What it calls itself.
    #[must_use]
    pub fn application_name(&self) -> Option<String> {
        self.settings.with(|settings| {
            let name = settings.as_ref()?.text("application_name")?;
            (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned())
        })
    }

    /// What the client has to name to cancel.
    #[must_use]
    pub fn secret(&self) -> &[u8] {
        &self.secret
    }

    /// The client is told the process id of this server, which it has for as long as it stays.
    pub fn announce(&self, server: &Identity) {
        self.pid.set(NonZeroU32::new(server.pid));
    }

    /// The server that the client has.
    #[must_use]
    pub fn linked(&self) -> Option<Rc<Linked>> {
        self.linked.with(Option::clone)
    }
}

/// The clients of one thread.
#[derive(Debug, Default)]
pub struct Roster {
    slots: RefCell<Slots>,
    /// The addresses that clients have come to, each once, so that a card has but two bytes for its own.
    locals: RefCell<Vec<SocketAddr>>,
}

/// A machine has few addresses; of clients that come to more than that it is not told which.
const LOCALS_MAX: usize = 256;

#[derive(Debug, Default)]
struct Slots {
    cards: Vec<Option<Rc<Card>>>,
    free: Vec<u32>,
}

/// Keeps a client on the roster as long as it lives.
#[derive(Debug)]
pub struct Entry {
    /// The client.
    pub card: Rc<Card>,
    slot: u32,
}

impl Roster {
    /// Puts a client on the roster.
    pub fn enter(&self, new: NewCard<'_>) -> Entry {
        let NewCard { id, key, user, peer, local, process, tls, pid, secret } = new;
        // The same name takes no memory of this client's own.
        let user = if *key.user == *user { key.user.clone() } else { user.into() };
        let card = Rc::new(Card {
            id,
            database: key.database,
            pool_user: Told(Cell::new(key.user)),
            is_pool_replaced: Cell::new(false),
            user,
            peer,
            local: local.and_then(|local| self.note_local(local)),
            process,
            tls,
            pid: Cell::new(pid.and_then(NonZeroU32::new)),
            secret,
            connected_at: SystemTime::now(),
            state: Cell::new(ClientState::Idle),
            request_at: Cell::new(None),
            pins: Cell::new(Pins::default()),
            settings: Told::default(),
            prepared: Cell::new(0),
            linked: Told::default(),
            signal: Cell::new(None),
            task: Told::default(),
        });
        let mut slots = self.slots.borrow_mut();
        let slot = match slots.free.pop() {
            Some(slot) => slot,
            None => {
                slots.cards.push(None);
                u32::try_from(slots.cards.len() - 1).expect("fewer than 4 billion clients")
            }
        };
        slots.cards[slot as usize] = Some(card.clone());
        Entry { card, slot }
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

    /// The address of this machine that a client of this roster has come to; none for the unix socket.
    #[must_use]
    pub fn local_of(&self, card: &Card) -> Option<SocketAddr> {
        self.locals.borrow().get(usize::from(card.local?.get()) - 1).copied()
    }

    /// Takes a client off the roster.
    pub fn leave(&self, entry: &Entry) {
        let mut slots = self.slots.borrow_mut();
        slots.cards[entry.slot as usize] = None;
        slots.free.push(entry.slot);
    }

    /// All clients.
    #[must_use]
    pub fn cards(&self) -> Vec<Rc<Card>> {
        self.slots.borrow().cards.iter().flatten().cloned().collect()
    }

    /// Sends those away who have one of these servers.
    pub fn sever(&self, servers: &[u64]) {
        let is_on = |card: &Rc<Card>| card.linked().is_some_and(|linked| servers.contains(&linked.identity.id));
        for card in self.cards().into_iter().filter(is_on) {
            card.signal(Signal::Deposed);
        }
    }

    /// Lets every client look at what has changed around it.
    pub fn wake_all(&self) {
        for card in self.cards() {
            card.wake();
        }
    }

    /// The client that was told this process id and this secret. Looks at every client.
    #[must_use]
    pub fn find_told(&self, pid: u32, secret: &[u8]) -> Option<Rc<Card>> {
        let slots = self.slots.borrow();
        let told = |card: &&Rc<Card>| {
            card.pid.get().map(NonZeroU32::get) == Some(pid) && bool::from(card.secret.ct_eq(secret))
        };
        slots.cards.iter().flatten().find(told).cloned()
    }

    /// The client at `slot`, if `secret` is its secret. Takes the same time whatever the secret is.
    #[must_use]
    pub fn find(&self, slot: u32, secret: &[u8]) -> Option<Rc<Card>> {
        let slots = self.slots.borrow();
        let card = slots.cards.get(slot as usize)?.as_ref()?;
        bool::from(card.secret.ct_eq(secret)).then(|| card.clone())
    }
}

impl Entry {
    /// The process id that the client is told: the thread's number and the slot, or what was said otherwise.
    #[must_use]
    pub fn pid(&self, worker: usize) -> u32 {
        self.card.pid.get().map_or_else(|| pid_of(worker, self.slot), NonZeroU32::get)
    }
}

/// Bits of a process id that name the slot; those above name the thread. The highest bit stays zero, because drivers
/// read a signed number.
const SLOT_BITS: u32 = 22;

/// No process of Linux has a higher number (`PID_MAX_LIMIT` in `include/linux/threads.h`), so those that the gateway makes up are
/// above it: a client that ends a process by the number that it was told ends nobody else's.
pub const PROCESS_ID_MAX: u32 = 1 << SLOT_BITS;

/// The process id of a client: thread and slot. Beyond four million clients of one thread it no longer tells them
/// apart, and cancelling fails for those.
#[must_use]
fn pid_of(worker: usize, slot: u32) -> u32 {
    let worker = u32::try_from(worker + 1).unwrap_or(u32::MAX) & 0x1ff;
    ((worker << SLOT_BITS) | (slot & ((1 << SLOT_BITS) - 1))) + 1
}

/// The thread and the slot that a process id names; `None` for that of a server.
#[must_use]
pub fn place_of(pid: u32) -> Option<(usize, u32)> {
    let pid = pid.checked_sub(1)?;
    let worker = (pid >> SLOT_BITS).checked_sub(1)?;
    Some((worker as usize, pid & ((1 << SLOT_BITS) - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_sent_away_is_not_kept_by_a_cancel_request() {
        let roster = Roster::default();
        let entry = roster.enter(NewCard {
            id: 1,
            key: PoolKey::new("shop", "app"),
            user: "app",
            peer: Address::Unix,
            local: None,
            process: 0,
            tls: None,
            pid: None,
            secret: Box::new([0; 4]),
        });
        for other in [Signal::CancelWait, Signal::Deposed] {
            entry.card.signal(Signal::Kill);
            entry.card.signal(other);
            assert_eq!(entry.card.peek_signal(), Some(Signal::Kill), "after {other:?}");
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
