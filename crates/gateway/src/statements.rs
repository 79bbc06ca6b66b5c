//! Prepared statements: the client's name, the text, the server's name.
//!
//! In transaction mode a statement that a client prepared once is executed on many servers. The client's name is its
//! own; on servers a statement is known by a name made from its text, its parameter types and the search path, so
//! that clients share it and two statements never do. A server is taught a statement right before its first use there.
//!
//! Pure: no I/O, no clock but a counter.

use std::{
    cell::{Cell, RefCell},
    rc::{Rc, Weak},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rustc_hash::FxHashMap;
use sha2::{Digest as _, Sha256};
use tidegate_wire::frontend::{self, Parse};

use crate::{
    classify::{Traits, classify},
    config::PoolPlan,
    params::{Settings, Value},
};

/// What tells one statement from another: 16 bytes of SHA-256, so that no client can make up a collision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest([u8; 16]);

/// One statement, shared by all clients of a thread that prepared it.
#[derive(Debug)]
pub struct Statement {
    digest: Digest,
    /// The Parse message under the server's name.
    parse: Vec<u8>,
    traits: Traits,
    /// Those of its first client.
    settings: Rc<Settings>,
    /// The last server that was taught it took it.
    sound: Cell<bool>,
}

/// Every server-side name begins with this; a client's own SQL should not.
pub const NAME_PREFIX: &str = "tidegate_";

impl Statement {
    fn new(digest: Digest, message: &Parse<'_>, settings: Rc<Settings>) -> Self {
        use std::fmt::Write as _;
        let mut name = NAME_PREFIX.to_owned();
        for byte in &digest.0[..12] {
            // Writing into a string cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        let mut parse = Vec::new();
        let types: Vec<u32> = message.types().collect();
        frontend::parse(name.as_bytes(), message.query, &types, &mut parse);
        Self { digest, parse, traits: classify(message.query), settings, sound: Cell::new(false) }
    }

    /// A server was taught it, and took it or not.
    pub fn tried(&self, sound: bool) {
        self.sound.set(sound);
    }

    /// The Parse message that teaches the statement to a server.
    #[must_use]
    pub fn parse_message(&self) -> &[u8] {
        &self.parse
    }

    /// The name under which servers know it.
    #[must_use]
    pub fn server_name(&self) -> &[u8] {
        const LEN: usize = NAME_PREFIX.len() + 24;
        &self.parse[tidegate_wire::frame::HEADER..tidegate_wire::frame::HEADER + LEN]
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        let behind_name = &self.parse[tidegate_wire::frame::HEADER + self.server_name().len() + 1..];
        &behind_name[..memchr::memchr(0, behind_name).unwrap_or(behind_name.len())]
    }

    /// What it does to its session.
    #[must_use]
    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// Whether a server reads its text under these settings as it is meant.
    #[must_use]
    pub fn is_read_alike(&self, settings: &Rc<Settings>) -> bool {
        Rc::ptr_eq(&self.settings, settings) || READ_BY.iter().all(|name| self.settings.get(name) == settings.get(name))
    }

    /// What tells it from others.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }
}

/// Which statements have come to give other columns than before, and when: shared by all threads. A client that knows
/// such a statement from before is told once, as Postgres would tell it, and servers are taught it anew.
#[derive(Debug, Default)]
pub struct Changes {
    /// Goes up with every change, so that one look tells that there was none.
    moment: AtomicU64,
    last: Mutex<FxHashMap<Digest, u64>>,
}

/// A moment in the history of [`Changes`].
pub type Moment = u64;

/// More statements than are changed at a time. Beyond that the older half is forgotten, with nothing worse to come of it
/// than a client that is not told.
const CHANGES_MAX: usize = 4096;

impl Changes {
    /// Now.
    #[inline]
    pub fn now(&self) -> Moment {
        self.moment.load(Ordering::Acquire)
    }

    /// A server has refused a statement because its columns have changed.
    pub fn note(&self, digest: Digest) -> Moment {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= CHANGES_MAX {
            let mut moments: Vec<_> = last.values().copied().collect();
            let (_, middle, _) = moments.select_nth_unstable(CHANGES_MAX / 2);
            let middle = *middle;
            last.retain(|_, moment| *moment > middle);
        }
        let now = self.now() + 1;
        last.insert(digest, now);
        self.moment.store(now, Ordering::Release);
        now
    }

    /// Whether a statement has changed since.
    pub fn is_newer(&self, digest: Digest, since: Moment) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.get(&digest).is_some_and(|moment| *moment > since)
    }

    /// Which have changed since.
    fn since(&self, since: Moment) -> Vec<Digest> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.iter().filter(|(_, moment)| **moment > since).map(|(digest, _)| *digest).collect()
    }
}

/// All statements that clients of one thread hold.
#[derive(Default)]
pub struct Catalog {
    known: RefCell<FxHashMap<Digest, Weak<Statement>>>,
    changes: Arc<Changes>,
}

impl Catalog {
    /// A catalog of one thread among several.
    #[must_use]
    pub fn new(changes: Arc<Changes>) -> Self {
        Self { known: RefCell::default(), changes }
    }

    /// What has changed, for all threads.
    #[inline]
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Finds or makes the statement of a Parse message that a client with these settings sent to this pool.
    pub fn intern(&self, message: &Parse<'_>, settings: &Rc<Settings>, plan: &PoolPlan) -> Rc<Statement> {
        self.intern_for(message, settings, [&plan.entry, &plan.dbname, &plan.user])
    }

    pub(crate) fn intern_for(&self, message: &Parse<'_>, settings: &Rc<Settings>, realm: [&str; 3]) -> Rc<Statement> {
        let digest = digest_of(message, settings, realm);
        if let Some(statement) = self.find(digest) {
            return statement;
        }
        let mut known = self.known.borrow_mut();
        // Dead entries are swept when they may be half of all.
        if known.len() == known.capacity() {
            known.retain(|_, statement| statement.strong_count() > 0);
        }
        let statement = Rc::new(Statement::new(digest, message, settings.clone()));
        known.insert(digest, Rc::downgrade(&statement));
        statement
    }

    /// Finds the statement of such a Parse message, if the last server that was taught it took it.
    pub fn sound(&self, message: &Parse<'_>, settings: &Settings, plan: &PoolPlan) -> Option<Rc<Statement>> {
        let digest = digest_of(message, settings, [&plan.entry, &plan.dbname, &plan.user]);
        self.find(digest).filter(|statement| statement.sound.get())
    }

    fn find(&self, digest: Digest) -> Option<Rc<Statement>> {
        self.known.borrow().get(&digest).and_then(Weak::upgrade)
    }
}

/// Settings by which a server reads the text of a statement: what its names mean, and its literals.
const READ_BY: [&str; 6] =
    ["search_path", "TimeZone", "DateStyle", "IntervalStyle", "client_encoding", "standard_conforming_strings"];

/// Whether a server reads statements by this parameter.
#[must_use]
pub fn is_read_by(name: &str) -> bool {
    READ_BY.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// What makes two statements the same: text and types, the settings by which they are read, and the pool whose servers know
/// them, so that what changes in one database says nothing of another.
fn digest_of(message: &Parse<'_>, settings: &Settings, realm: [&str; 3]) -> Digest {
    let mut hash = Sha256::new();
    let read_by = READ_BY.iter().map(|name| settings.get(name).map_or(&[][..], Value::bytes));
    for part in realm.iter().map(|part| part.as_bytes()).chain(read_by).chain([message.query]) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    for oid in message.types() {
        hash.update(oid.to_le_bytes());
    }
    let full = hash.finalize();
    Digest(full[..16].try_into().expect("SHA-256 has 32 bytes"))
}

/// A statement and one client's name for it.
#[derive(Clone, Debug)]
pub struct Known {
    /// The client's name.
    pub name: Rc<[u8]>,
    /// The statement.
    pub statement: Rc<Statement>,
}

/// The named statements of one client, each with the moment since which the client knows what it gives.
#[derive(Debug, Default)]
pub struct ClientStatements {
    by_name: FxHashMap<Rc<[u8]>, (Rc<Statement>, Moment)>,
}

impl ClientStatements {
    /// Finds a statement by the client's name.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<Known> {
        self.get_dated(name).map(|(known, _)| known)
    }

    /// Finds a statement by the client's name, and since when the client knows what it gives.
    #[must_use]
    pub fn get_dated(&self, name: &[u8]) -> Option<(Known, Moment)> {
        let (name, (statement, since)) = self.by_name.get_key_value(name)?;
        Some((Known { name: name.clone(), statement: statement.clone() }, *since))
    }

    /// Remembers a statement under the client's name.
    pub fn insert(&mut self, name: &[u8], statement: Rc<Statement>, now: Moment) {
        self.by_name.insert(name.into(), (statement, now));
    }

    /// The client has been told what the statement gives now.
    pub fn acquaint(&mut self, name: &[u8], now: Moment) {
        if let Some((_, since)) = self.by_name.get_mut(name) {
            *since = now;
        }
    }

    /// Forgets a name.
    pub fn remove(&mut self, name: &[u8]) -> Option<Rc<Statement>> {
        self.by_name.remove(name).map(|(statement, _)| statement)
    }

    /// Takes all names of `newer`, over those known before.
    pub fn replace_from(&mut self, newer: Self) {
        self.by_name.extend(newer.by_name);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// There is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

/// The statements one server has been taught, least recently used first out.
#[derive(Default)]
pub struct ServerStatements {
    taught: FxHashMap<Digest, Taught>,
    clock: u64,
    /// Changes up to here are known.
    caught_up: Moment,
}

struct Taught {
    used_at: u64,
    name: Box<[u8]>,
    stale: bool,
}

/// What has to be sent before a statement may be used.
#[derive(Debug, PartialEq, Eq)]
pub enum Teach {
    /// Nothing: the server knows it.
    Known,
    /// Its Parse message, after a Close of the named ones, if the server knows too many.
    Send {
        /// Server names of the statements to close first.
        evict: Vec<(Digest, Box<[u8]>)>,
    },
}

impl ServerStatements {
    /// Marks `statement` as used, and as taught if it is new, within `limit`.
    pub fn use_or_teach(&mut self, statement: &Statement, limit: usize) -> Teach {
        self.clock += 1;
        let mut evict = Vec::new();
        match self.taught.get_mut(&statement.digest) {
            Some(taught) if !taught.stale => {
                taught.used_at = self.clock;
                return Teach::Known;
            }
            Some(_) => {
                evict.extend(self.taught.remove(&statement.digest).map(|taught| (statement.digest, taught.name)));
            }
            None => {}
        }
        while self.taught.len() >= limit.max(1) {
            evict.extend(self.evict());
        }
        let taught = Taught { used_at: self.clock, name: statement.server_name().into(), stale: false };
        self.taught.insert(statement.digest, taught);
        Teach::Send { evict }
    }

    /// A scan: evictions are rare where the limit is right, and a few hundred entries are scanned in a microsecond.
    fn evict(&mut self) -> Option<(Digest, Box<[u8]>)> {
        let oldest = self.taught.iter().min_by_key(|(_, taught)| taught.used_at).map(|(digest, _)| *digest)?;
        self.taught.remove(&oldest).map(|taught| (oldest, taught.name))
    }

    /// The server has it after all, since it skipped the Close.
    pub fn not_evicted(&mut self, digest: Digest, name: Box<[u8]>) {
        self.taught.entry(digest).or_insert(Taught { used_at: 0, name, stale: true });
    }

    /// Marks as stale what servers have refused since this was done last.
    #[inline]
    pub fn catch_up(&mut self, changes: &Changes) {
        let now = changes.now();
        if self.caught_up != now {
            for digest in changes.since(self.caught_up) {
                self.mark_stale(digest);
            }
            self.caught_up = now;
        }
    }

    /// The server is about to forget all statements, or has: each is closed before it is taught anew.
    pub fn mark_all_stale(&mut self) {
        self.taught.values_mut().for_each(|taught| taught.stale = true);
    }

    /// The server's plan for it has gone stale: it is closed and taught anew before its next use.
    pub fn mark_stale(&mut self, digest: Digest) {
        if let Some(taught) = self.taught.get_mut(&digest) {
            taught.stale = true;
        }
    }

    /// Forgets the statement that the server knows by that name. A scan, for those who use names that are not theirs.
    pub fn remove_by_name(&mut self, name: &[u8]) -> Option<Digest> {
        let digest = self.by_name(name)?;
        self.taught.remove(&digest);
        Some(digest)
    }

    /// The server may have lost the statement of that name.
    pub fn mark_stale_by_name(&mut self, name: &[u8]) {
        if let Some(digest) = self.by_name(name) {
            self.mark_stale(digest);
        }
    }

    fn by_name(&self, name: &[u8]) -> Option<Digest> {
        self.taught.iter().find(|(_, taught)| *taught.name == *name).map(|(digest, _)| *digest)
    }

    /// The server knows none (DEALLOCATE ALL, DISCARD ALL).
    pub fn clear(&mut self) {
        self.taught.clear();
    }

    /// How many the server knows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.taught.len()
    }

    /// The server knows none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taught.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_body(name: &str, query: &str, types: &[u32]) -> Vec<u8> {
        let mut message = Vec::new();
        frontend::parse(name.as_bytes(), query.as_bytes(), types, &mut message);
        message[5..].to_vec()
    }

    fn intern(catalog: &Catalog, query: &str, types: &[u32], path: Option<&Value>) -> Rc<Statement> {
        let body = parse_body("any", query, types);
        let mut settings = Settings::default();
        path.into_iter().for_each(|path| settings.set("search_path", path.clone()));
        catalog.intern_for(&Parse::decode(&body).unwrap(), &Rc::new(settings), ["shop"; 3])
    }

    #[test]
    fn same_text_and_types_are_shared_and_anything_else_is_not() {
        let catalog = Catalog::default();
        let one = intern(&catalog, "select $1", &[23], None);
        assert!(Rc::ptr_eq(&one, &intern(&catalog, "select $1", &[23], None)));
        for other in [
            intern(&catalog, "select $1", &[25], None),
            intern(&catalog, "select  $1", &[23], None),
            intern(&catalog, "select $1", &[], None),
            intern(&catalog, "select $1", &[23], Some(&Value::text(b"tenant"))),
        ] {
            assert_ne!(one.server_name(), other.server_name());
        }
    }

    #[test]
    fn who_knows_a_statement_from_before_its_change_is_told() {
        let (changes, catalog) = (Changes::default(), Catalog::default());
        let [changed, other] = ["a", "b"].map(|text| intern(&catalog, text, &[], None));
        let mut server = ServerStatements::default();
        for statement in [&changed, &other] {
            server.use_or_teach(statement, 10);
        }
        let before = changes.now();
        let after = changes.note(changed.digest());
        assert!(changes.is_newer(changed.digest(), before) && !changes.is_newer(changed.digest(), after));
        assert!(!changes.is_newer(other.digest(), before));
        server.catch_up(&changes);
        assert_eq!(server.use_or_teach(&other, 10), Teach::Known);
        assert_ne!(server.use_or_teach(&changed, 10), Teach::Known);
        server.catch_up(&changes);
        assert_eq!(server.use_or_teach(&changed, 10), Teach::Known);
    }

    #[test]
    fn changes_beyond_what_is_kept_forget_the_oldest() {
        let changes = Changes::default();
        let digest = |number: usize| Digest((number as u128).to_le_bytes());
        for number in 0..=CHANGES_MAX {
            changes.note(digest(number));
        }
        assert!(!changes.is_newer(digest(0), 0));
        assert!(changes.is_newer(digest(CHANGES_MAX), 0) && changes.is_newer(digest(CHANGES_MAX - 1), 0));
    }

    #[test]
    fn the_least_recently_used_statement_makes_room() {
        let catalog = Catalog::default();
        let [a, b, c] = ["a", "b", "c"].map(|text| intern(&catalog, text, &[], None));
        let mut server = ServerStatements::default();
        assert_eq!(server.use_or_teach(&a, 2), Teach::Send { evict: vec![] });
        assert_eq!(server.use_or_teach(&b, 2), Teach::Send { evict: vec![] });
        assert_eq!(server.use_or_teach(&a, 2), Teach::Known);
        assert_eq!(server.use_or_teach(&c, 2), Teach::Send { evict: vec![(b.digest(), b.server_name().into())] });
        assert_eq!(server.use_or_teach(&a, 2), Teach::Known);
        server.mark_stale(a.digest());
        let closed_first = Teach::Send { evict: vec![(a.digest(), a.server_name().into())] };
        assert_eq!(server.use_or_teach(&a, 2), closed_first);
        assert_eq!(server.use_or_teach(&a, 2), Teach::Known);
    }
}
