//! Prepared statements: the client's name, the text, the server's name.
//!
//! In transaction mode a statement that a client prepared once is executed on many servers. The client's name is its
//! own; on servers a statement is known by a name made from its text, its parameter types and the search path, so
//! that clients share it and two statements never do. A server is taught a statement right before its first use there.
//!
//! Pure: no I/O, no clock but a counter.

use std::{
    cell::{Cell, RefCell},
    hash::BuildHasher as _,
    rc::{Rc, Weak},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rustc_hash::{FxBuildHasher, FxHashMap};
use sha2::{Digest as _, Sha256};
use tidegate_sql::{
    StatementDigest,
    classify::{Traits, classify},
};
use tidegate_wire::{
    DecodeError,
    backend::{ParameterDescription, RowDescription},
    frontend::{self, Parse},
};

use crate::params::{Settings, Value};

/// One statement, shared by all clients of a thread that prepared it.
#[derive(Debug)]
pub struct Statement {
    digest: StatementDigest,
    /// The Parse message under the server's name.
    parse: Vec<u8>,
    traits: Traits,
    /// Those of its first client.
    settings: Rc<Settings>,
    /// The last server that was taught it took it.
    sound: Cell<bool>,
    /// See [`reads_clock`].
    reads_clock: bool,
    /// The last description by a server.
    description: RefCell<Option<Rc<Description>>>,
}

/// Every server-side name begins with this; a client's own SQL should not.
pub const NAME_PREFIX: &str = "tidegate_";

impl Statement {
    fn new(digest: StatementDigest, message: &Parse<'_>, settings: Rc<Settings>) -> Self {
        use std::fmt::Write as _;
        let mut name = NAME_PREFIX.to_owned();
        for byte in &digest.0[..12] {
            // Writing into a string cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        let mut parse = Vec::new();
        let types: Vec<u32> = message.types().collect();
        frontend::parse(name.as_bytes(), message.query, &types, &mut parse);
        let reads_clock = reads_clock(message.query);
        let (traits, sound, description) = (classify(message.query), Cell::default(), RefCell::default());
        Self { digest, parse, traits, settings, sound, reads_clock, description }
    }

    /// A server was taught it, and took it or not.
    pub fn tried(&self, sound: bool) {
        self.sound.set(sound);
    }

    /// A server has described it. Returns the one copy of that description which clients share.
    pub fn describe(&self, description: Description) -> Rc<Description> {
        let mut last = self.description.borrow_mut();
        match &*last {
            Some(last) if **last == description => last.clone(),
            _ => last.insert(Rc::new(description)).clone(),
        }
    }

    /// The description of this shape, if it was the last one on this thread.
    #[must_use]
    pub fn description(&self, shape: Shape) -> Option<Rc<Description>> {
        self.description.borrow().clone().filter(|last| last.shape == shape)
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
        Rc::ptr_eq(&self.settings, settings) || analysis_settings(&self.settings).eq(analysis_settings(settings))
    }

    /// What tells it from others.
    #[must_use]
    pub fn digest(&self) -> StatementDigest {
        self.digest
    }
}

/// A moment on the clock of [`CatalogChanges`], in nanoseconds since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// The moment this long before, or the start of the process.
    #[must_use]
    pub fn before(self, age: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// When the catalogue of each database was last seen to change, shared by all threads.
///
/// Databases share slots by a hash of their names: a collision causes an early Parse and no more.
#[derive(Debug)]
pub struct CatalogChanges {
    start: Instant,
    slots: [AtomicU64; CHANGE_SLOTS],
}

const CHANGE_SLOTS: usize = 64;

impl Default for CatalogChanges {
    fn default() -> Self {
        Self { start: Instant::now(), slots: [const { AtomicU64::new(0) }; CHANGE_SLOTS] }
    }
}

impl CatalogChanges {
    /// Reads the clock. A cached time would be too early for a change and too late for a comparison.
    #[must_use]
    pub fn now(&self) -> Moment {
        Moment(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// A change of the catalogue of `dbname` has been committed, or was found by an error.
    pub fn note(&self, dbname: &str) {
        self.slot(dbname).fetch_max(self.now().0, Ordering::AcqRel);
    }

    /// When the catalogue of `dbname` was last seen to change.
    #[must_use]
    pub fn last(&self, dbname: &str) -> Moment {
        Moment(self.slot(dbname).load(Ordering::Acquire))
    }

    fn slot(&self, dbname: &str) -> &AtomicU64 {
        &self.slots[FxBuildHasher.hash_one(dbname) as usize % CHANGE_SLOTS]
    }
}

/// Whether a command with this tag may have changed the catalogue. DO and CALL may contain any command.
#[must_use]
pub fn may_change_catalog(tag: &[u8]) -> bool {
    const TAGS: [&[u8]; 9] =
        [b"CREATE ", b"ALTER ", b"DROP ", b"GRANT", b"REVOKE", b"REASSIGN ", b"IMPORT ", b"DO\0", b"CALL\0"];
    TAGS.iter().any(|known| tag.starts_with(known))
}

/// All statements that clients of one thread hold.
#[derive(Default)]
pub struct Catalog {
    known: RefCell<FxHashMap<StatementDigest, Weak<Statement>>>,
    changes: Arc<CatalogChanges>,
}

impl Catalog {
    /// A catalog of one thread among several.
    #[must_use]
    pub fn new(changes: Arc<CatalogChanges>) -> Self {
        Self { known: RefCell::default(), changes }
    }

    /// Changes of the catalogues, for all threads.
    #[inline]
    pub fn changes(&self) -> &CatalogChanges {
        &self.changes
    }

    /// From when on servers must have analysed the text that a client now parses: the first one from now on. Others that have
    /// analysed it up to `age_max` earlier serve if no change of the catalogue was seen since.
    #[must_use]
    pub fn demand(&self, statement: &Statement, dbname: &str, age_max: Duration) -> Demand {
        let parsed = self.changes.now();
        let age_max = if statement.reads_clock { Duration::ZERO } else { age_max };
        Demand { tolerated: parsed.before(age_max).max(self.changes.last(dbname)), ..Demand::from(parsed) }
    }

    /// Finds or adds the statement of a Parse message that a client with these settings sent to this pool.
    ///
    /// `pool` identifies the servers that share the statement: entry of `[databases]`, database and user on the server.
    pub fn intern(&self, message: &Parse<'_>, settings: &Rc<Settings>, pool: [&str; 3]) -> Rc<Statement> {
        let digest = digest_of(message, settings, pool);
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

    /// The statement of the same text for a client with these settings and, if given, parameters of these types.
    #[must_use]
    pub fn adapt(
        &self,
        statement: &Statement,
        settings: &Rc<Settings>,
        types: Option<&[u32]>,
        pool: [&str; 3],
    ) -> Rc<Statement> {
        let mut typed = Vec::new();
        let message = match types {
            None => statement.parse_message(),
            Some(types) => {
                frontend::parse(statement.server_name(), statement.text(), types, &mut typed);
                &typed
            }
        };
        let message = &message[tidegate_wire::frame::HEADER..];
        self.intern(&Parse::decode(message).expect("the gateway wrote this message"), settings, pool)
    }

    /// Finds the statement of such a Parse message, if the last server that was taught it took it.
    pub fn sound(&self, message: &Parse<'_>, settings: &Settings, pool: [&str; 3]) -> Option<Rc<Statement>> {
        let digest = digest_of(message, settings, pool);
        self.find(digest).filter(|statement| statement.sound.get())
    }

    fn find(&self, digest: StatementDigest) -> Option<Rc<Statement>> {
        self.known.borrow().get(&digest).and_then(Weak::upgrade)
    }
}

/// Parameters that affect neither what a text means, nor its plan, nor the form of its constants.
const NEUTRAL: [&str; 10] = [
    "application_name",
    "client_min_messages",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "lock_timeout",
    "statement_timeout",
    "tcp_keepalives_idle",
    "tcp_user_timeout",
    "track_activities",
    "transaction_timeout",
];

/// Whether the value of a parameter may affect how a server analyses or plans a statement.
#[must_use]
pub fn affects_analysis(name: &str) -> bool {
    // Extensions read parameters of their own when a statement runs.
    !name.contains('.') && !NEUTRAL.iter().any(|neutral| neutral.eq_ignore_ascii_case(name))
}

/// The settings that affect analysis, in order of name.
fn analysis_settings(settings: &Settings) -> impl Iterator<Item = (&str, &Value)> {
    settings.iter().filter(|(name, _)| affects_analysis(name)).map(|(name, value)| (name, value.plain()))
}

/// Identifies a statement: text and types, the settings that affect its analysis (the role among them), and the pool whose
/// servers know it.
fn digest_of(message: &Parse<'_>, settings: &Settings, pool: [&str; 3]) -> StatementDigest {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    pool.iter().for_each(|name| part(name.as_bytes()));
    part(message.query);
    for (name, value) in analysis_settings(settings) {
        part(name.to_ascii_lowercase().as_bytes());
        part(value.bytes());
    }
    for oid in message.types() {
        hash.update(oid.to_le_bytes());
    }
    let full = hash.finalize();
    StatementDigest(full[..16].try_into().expect("SHA-256 has 32 bytes"))
}

/// Words that a server reads as a time when it analyses a literal.
const CLOCK_WORDS: [&[u8]; 4] = [b"now", b"today", b"tomorrow", b"yesterday"];

/// Whether a literal of `text` may stand for the time of its analysis, such as `'now'::timestamptz`. A function `now()` does not.
fn reads_clock(text: &[u8]) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    memchr::memchr2(b'\'', b'$', text).is_some()
        && text.split(|byte| !is_word(byte)).any(|word| {
            CLOCK_WORDS.iter().any(|known| known.eq_ignore_ascii_case(word)) && {
                let end = word.as_ptr_range().end.addr() - text.as_ptr().addr();
                text[end..].trim_ascii_start().first() != Some(&b'(')
            }
        })
}

/// Identifies the parameter types and the columns of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape(StatementDigest);

/// The answer of a server to the Describe of a statement.
#[derive(Debug, PartialEq, Eq)]
pub struct Description {
    /// All of it.
    pub shape: Shape,
    /// The types of the parameters.
    pub parameters: Box<[u32]>,
}

impl Description {
    /// Reads the bodies of ParameterDescription and RowDescription; `None` stands for NoData. The format codes of the columns do
    /// not count: a client chooses them with each Bind.
    ///
    /// # Errors
    /// When one of them is malformed.
    pub fn decode(parameters: &[u8], columns: Option<&[u8]>) -> Result<Self, DecodeError> {
        let mut hash = Sha256::new();
        hash.update((parameters.len() as u64).to_le_bytes());
        hash.update(parameters);
        if let Some(columns) = columns {
            hash.update([1]);
            for column in RowDescription::decode(columns)? {
                hash.update(column.name);
                hash.update([0]);
                hash.update(column.type_oid.to_be_bytes());
                hash.update(column.type_modifier.to_be_bytes());
            }
        }
        let full = hash.finalize();
        let shape = Shape(StatementDigest(full[..16].try_into().expect("SHA-256 has 32 bytes")));
        Ok(Self { shape, parameters: ParameterDescription::decode(parameters)?.collect() })
    }
}

/// How fresh the analysis of a statement has to be to serve a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// When the client has parsed it, or has learned that it has changed.
    pub parsed: Moment,
    /// An analysis from before this moment does not serve: `parsed` until one server has made an analysis for the client.
    pub oldest: Moment,
    /// The value of `oldest` from then on.
    pub tolerated: Moment,
}

impl Demand {
    /// No analysis from before this moment serves.
    #[must_use]
    pub fn from(now: Moment) -> Self {
        Self { parsed: now, oldest: now, tolerated: now }
    }
}

/// A statement and one client's name for it.
#[derive(Clone, Debug)]
pub struct Known {
    /// The client's name.
    pub name: Rc<[u8]>,
    /// The statement.
    pub statement: Rc<Statement>,
}

/// A statement of a client, and what has to hold of a server's analysis before the client may use it there.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The statement.
    pub statement: Rc<Statement>,
    /// How fresh the analysis has to be.
    pub demand: Demand,
    /// The description of parameters and columns that the client may know.
    pub description: Option<Rc<Description>>,
}

/// The named statements of one client.
#[derive(Debug, Default)]
pub struct ClientStatements {
    by_name: FxHashMap<Rc<[u8]>, Prepared>,
}

impl ClientStatements {
    /// Finds a statement by the client's name.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<Known> {
        self.get_prepared(name).map(|(known, _)| known)
    }

    /// Finds a statement by the client's name, with what the client demands of it.
    #[must_use]
    pub fn get_prepared(&self, name: &[u8]) -> Option<(Known, &Prepared)> {
        let (name, prepared) = self.by_name.get_key_value(name)?;
        Some((Known { name: name.clone(), statement: prepared.statement.clone() }, prepared))
    }

    /// Changes what is known of a statement.
    pub fn get_mut(&mut self, name: &[u8]) -> Option<&mut Prepared> {
        self.by_name.get_mut(name)
    }

    /// Remembers a statement under the client's name.
    pub fn insert(&mut self, name: &[u8], statement: Rc<Statement>, demand: Demand) {
        self.put_back(name, Prepared { statement, demand, description: None });
    }

    /// Remembers a statement as it was before.
    pub fn put_back(&mut self, name: &[u8], prepared: Prepared) {
        self.by_name.insert(name.into(), prepared);
    }

    /// The client got an error because of an outdated analysis: its next use takes a fresh one, of whatever shape.
    pub fn renew(&mut self, name: &[u8], now: Moment) {
        if let Some(prepared) = self.by_name.get_mut(name) {
            prepared.demand = Demand::from(now);
            prepared.description = None;
        }
    }

    /// Forgets a name.
    pub fn remove(&mut self, name: &[u8]) -> Option<Prepared> {
        self.by_name.remove(name)
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
    taught: FxHashMap<StatementDigest, Taught>,
    clock: u64,
}

struct Taught {
    used_at: u64,
    name: Box<[u8]>,
    stale: bool,
    /// When its Parse was sent: the server has analysed it after that.
    since: Moment,
    /// Its shape, once the server has described it. Postgres refuses to use a statement whose columns have changed, so it does
    /// not change.
    shape: Option<Shape>,
}

/// A server's analysis of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// When the server was sent the statement.
    pub since: Moment,
    /// The shape, if the server has described it.
    pub shape: Option<Shape>,
}

/// The server names of statements to be closed.
pub type Evicted = Vec<(StatementDigest, Box<[u8]>)>;

impl ServerStatements {
    /// Finds the analysis of a statement, unless it is stale or older than `oldest`, and marks it as used.
    #[inline]
    pub fn find(&mut self, digest: StatementDigest, oldest: Moment) -> Option<Analysis> {
        let taught = self.taught.get_mut(&digest).filter(|taught| !taught.stale && taught.since >= oldest)?;
        self.clock += 1;
        taught.used_at = self.clock;
        Some(Analysis { since: taught.since, shape: taught.shape })
    }

    /// The server is sent a statement now. Returns which it has to close before: what it has of the same name, and the least
    /// recently used ones beyond `limit`.
    pub fn add(&mut self, statement: &Statement, limit: usize, now: Moment) -> Evicted {
        self.clock += 1;
        let mut evict = Vec::new();
        evict.extend(self.taught.remove(&statement.digest).map(|taught| (statement.digest, taught.name)));
        while self.taught.len() >= limit.max(1) {
            evict.extend(self.evict());
        }
        let (used_at, name) = (self.clock, statement.server_name().into());
        let taught = Taught { used_at, name, stale: false, since: now, shape: None };
        self.taught.insert(statement.digest, taught);
        evict
    }

    /// The server has described the statement that it was sent at `since`.
    pub fn set_shape(&mut self, digest: StatementDigest, since: Moment, shape: Shape) {
        if let Some(taught) = self.taught.get_mut(&digest).filter(|taught| taught.since == since) {
            taught.shape = Some(shape);
        }
    }

    /// A scan: evictions are rare where the limit is right, and a few hundred entries are scanned in a microsecond.
    fn evict(&mut self) -> Option<(StatementDigest, Box<[u8]>)> {
        let oldest = self.taught.iter().min_by_key(|(_, taught)| taught.used_at).map(|(digest, _)| *digest)?;
        self.taught.remove(&oldest).map(|taught| (oldest, taught.name))
    }

    /// The server has it after all, since it skipped the Close.
    pub fn not_evicted(&mut self, digest: StatementDigest, name: Box<[u8]>) {
        let since = Moment::default();
        self.taught.entry(digest).or_insert(Taught { used_at: 0, name, stale: true, since, shape: None });
    }

    /// The server is about to forget all statements, or has: each is closed before it is taught anew.
    pub fn mark_all_stale(&mut self) {
        self.taught.values_mut().for_each(|taught| taught.stale = true);
    }

    /// The server's plan for it has gone stale: it is closed and taught anew before its next use.
    pub fn mark_stale(&mut self, digest: StatementDigest) {
        if let Some(taught) = self.taught.get_mut(&digest) {
            taught.stale = true;
        }
    }

    /// Forgets the statement that the server knows by that name. A scan, for those who use names that are not theirs.
    pub fn remove_by_name(&mut self, name: &[u8]) -> Option<StatementDigest> {
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

    fn by_name(&self, name: &[u8]) -> Option<StatementDigest> {
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
        catalog.intern(&Parse::decode(&body).unwrap(), &Rc::new(settings), ["shop"; 3])
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
    fn settings_that_cannot_affect_a_plan_are_not_part() {
        let (catalog, body) = (Catalog::default(), parse_body("any", "select 1", &[]));
        let digest = |name: &str| {
            let mut settings = Settings::default();
            settings.set(name, Value::text(b"x"));
            catalog.intern(&Parse::decode(&body).unwrap(), &Rc::new(settings), ["shop"; 3]).digest()
        };
        let plain = intern(&catalog, "select 1", &[], None).digest();
        for name in ["application_name", "Statement_Timeout", "my.setting"] {
            assert_eq!(digest(name), plain, "{name}");
        }
        for name in ["role", "enable_seqscan", "search_path", "DateStyle"] {
            assert_ne!(digest(name), plain, "{name}");
        }
    }

    #[test]
    fn an_analysis_serves_until_it_is_too_old() {
        let (changes, catalog) = (CatalogChanges::default(), Catalog::default());
        let statement = intern(&catalog, "a", &[], None);
        let mut server = ServerStatements::default();
        let (before, now) = (changes.now(), changes.now());
        server.add(&statement, 10, now);
        assert_eq!(server.find(statement.digest(), before), Some(Analysis { since: now, shape: None }));
        changes.note("shop");
        let demand = catalog.demand(&statement, "shop", Duration::MAX);
        assert_eq!(demand.tolerated, Moment::default(), "this catalog has clocks of its own");
        assert_eq!(server.find(statement.digest(), changes.last("shop")), None);
        let shape = Description::decode(&[0, 0], None).unwrap().shape;
        server.set_shape(statement.digest(), before, shape);
        assert_eq!(server.find(statement.digest(), before).unwrap().shape, None, "it was sent again since");
        server.set_shape(statement.digest(), now, shape);
        assert_eq!(server.find(statement.digest(), before).unwrap().shape, Some(shape));
    }

    #[test]
    fn a_client_demands_an_analysis_from_after_a_change() {
        let changes = Arc::new(CatalogChanges::default());
        let catalog = Catalog::new(changes.clone());
        let [plain, clock] = ["select now()", "select 'today'::date"].map(|text| intern(&catalog, text, &[], None));
        let before = changes.now();
        assert_eq!(catalog.demand(&plain, "shop", Duration::MAX).tolerated, Moment::default());
        assert!(catalog.demand(&plain, "shop", Duration::ZERO).tolerated > before);
        assert!(catalog.demand(&clock, "shop", Duration::MAX).tolerated > before);
        changes.note("shop");
        let demand = catalog.demand(&plain, "shop", Duration::MAX);
        assert!(before < demand.tolerated && demand.tolerated <= demand.parsed && demand.oldest == demand.parsed);
    }

    #[test]
    fn literals_that_stand_for_the_time_are_found() {
        for text in [
            "select 'now'::timestamptz",
            "select timestamp 'Today 10:00'",
            "select $$yesterday$$::date",
            "select 'now' , (1)",
        ] {
            assert!(reads_clock(text.as_bytes()), "{text}");
        }
        for text in ["select now()", "select now ( ), 'x'", "select 'known'", "select now", "select 'knows today_s'"] {
            assert!(!reads_clock(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn commands_that_change_the_catalogue_are_known_by_their_tags() {
        let changing: [&[u8]; 5] = [b"CREATE TABLE\0", b"ALTER ROLE\0", b"GRANT\0", b"DO\0", b"REVOKE ROLE\0"];
        assert!(changing.iter().all(|tag| may_change_catalog(tag)));
        let others: [&[u8]; 5] = [b"COMMIT\0", b"SELECT 1\0", b"COPY 3\0", b"DECLARE CURSOR\0", b"INSERT 0 1\0"];
        assert!(!others.iter().any(|tag| may_change_catalog(tag)));
    }

    #[test]
    fn a_shape_is_types_and_names_and_no_format() {
        let columns = |name: &[u8], oid: u32, format: u16| {
            let mut body = vec![0, 1];
            body.extend_from_slice(name);
            body.push(0);
            body.extend_from_slice(&[0; 6]);
            body.extend_from_slice(&oid.to_be_bytes());
            body.extend_from_slice(&[0, 4, 255, 255, 255, 255]);
            body.extend_from_slice(&format.to_be_bytes());
            body
        };
        let describe = |parameters: &[u8], columns: Option<&[u8]>| Description::decode(parameters, columns).unwrap();
        let shape = |parameters: &[u8], columns: Option<&[u8]>| describe(parameters, columns).shape;
        let first = shape(&[0, 0], Some(&columns(b"a", 23, 0)));
        assert_eq!(first, shape(&[0, 0], Some(&columns(b"a", 23, 1))));
        assert_ne!(first, shape(&[0, 0], Some(&columns(b"b", 23, 0))));
        assert_ne!(first, shape(&[0, 0], Some(&columns(b"a", 700, 0))));
        assert_ne!(first, shape(&[0, 1, 0, 0, 0, 23], Some(&columns(b"a", 23, 0))));
        assert_ne!(first, shape(&[0, 0], None));
        assert_eq!(*describe(&[0, 2, 0, 0, 0, 23, 0, 0, 0, 25], None).parameters, [23, 25]);
        for (parameters, columns) in [(&[0, 0][..], &[0, 1][..]), (&[0, 1, 0], &[0, 0]), (&[0, 0, 0], &[0, 0])] {
            assert!(Description::decode(parameters, Some(columns)).is_err());
        }
    }

    #[test]
    fn the_least_recently_used_statement_makes_room() {
        let (changes, catalog) = (CatalogChanges::default(), Catalog::default());
        let [a, b, c] = ["a", "b", "c"].map(|text| intern(&catalog, text, &[], None));
        let mut server = ServerStatements::default();
        let add = |server: &mut ServerStatements, statement: &Statement| server.add(statement, 2, changes.now());
        let is_there = |server: &mut ServerStatements, statement: &Statement| {
            server.find(statement.digest(), Moment::default()).is_some()
        };
        assert_eq!(add(&mut server, &a), []);
        assert_eq!(add(&mut server, &b), []);
        assert!(is_there(&mut server, &a));
        assert_eq!(add(&mut server, &c), [(b.digest(), b.server_name().into())]);
        assert!(is_there(&mut server, &a) && !is_there(&mut server, &b));
        server.mark_stale(a.digest());
        assert!(!is_there(&mut server, &a));
        assert_eq!(add(&mut server, &a), [(a.digest(), a.server_name().into())], "closed first");
        assert!(is_there(&mut server, &a));
    }
}
