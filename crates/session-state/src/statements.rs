//! Prepared statements: the name of the client, the text, and the name on the server.
//!
//! In transaction mode, a statement that a client prepares once runs on many servers. Clients choose their names freely. On
//! servers, the name is derived from the text, the parameter types and the settings that affect the analysis, so clients share a
//! statement and two statements never have the same name. The gateway sends the Parse to a server right before the first use
//! there.
//!
//! Pure: no I/O; the only clock is [`CatalogChanges::now`].

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
    classify::{StatementEffects, classify},
    trace_parent::split_comment,
};
use tidegate_wire::{
    DecodeError,
    backend::{ParameterDescription, RowDescription},
    frontend::{self, Parse},
};

use crate::params::{ParameterValue, Settings};

/// A statement, shared by all clients of a thread that prepared it.
#[derive(Debug)]
pub struct Statement {
    digest: StatementDigest,
    /// The Parse message with the server-side name.
    parse: Vec<u8>,
    effects: StatementEffects,
    /// Settings of the first client.
    settings: Rc<Settings>,
    /// The last Parse on a server succeeded.
    valid: Cell<bool>,
    /// See [`reads_clock`].
    reads_clock: bool,
    /// The last description by a server.
    description: RefCell<Option<Rc<Description>>>,
}

/// Prefix of all server-side names. SQL of clients should not use it.
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
        let (effects, valid, description) = (classify(message.query), Cell::default(), RefCell::default());
        Self { digest, parse, effects, settings, valid, reads_clock, description }
    }

    /// Records whether a Parse on a server succeeded.
    pub fn set_valid(&self, valid: bool) {
        self.valid.set(valid);
    }

    /// Stores the description by a server. Returns the copy that clients share.
    pub fn share_description(&self, description: Description) -> Rc<Description> {
        let mut last = self.description.borrow_mut();
        match &*last {
            Some(last) if **last == description => last.clone(),
            _ => last.insert(Rc::new(description)).clone(),
        }
    }

    /// Returns the description with this shape, if it was the last one on this thread.
    #[must_use]
    pub fn description(&self, shape: StatementShape) -> Option<Rc<Description>> {
        self.description.borrow().clone().filter(|last| last.shape == shape)
    }

    /// The Parse message for a server.
    #[must_use]
    pub fn parse_message(&self) -> &[u8] {
        &self.parse
    }

    /// The name on servers.
    #[must_use]
    pub fn server_name(&self) -> &[u8] {
        const LEN: usize = NAME_PREFIX.len() + 24;
        &self.parse[tidegate_wire::frame::HEADER..tidegate_wire::frame::HEADER + LEN]
    }

    /// The text of the statement.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        let behind_name = &self.parse[tidegate_wire::frame::HEADER + self.server_name().len() + 1..];
        &behind_name[..memchr::memchr(0, behind_name).unwrap_or(behind_name.len())]
    }

    /// The effects of the statement on its session.
    #[must_use]
    pub fn effects(&self) -> &StatementEffects {
        &self.effects
    }

    /// Whether servers analyse the text in the same way under `settings`.
    #[must_use]
    pub fn has_same_analysis_settings(&self, settings: &Rc<Settings>) -> bool {
        Rc::ptr_eq(&self.settings, settings) || analysis_settings(&self.settings).eq(analysis_settings(settings))
    }

    /// The key of the statement.
    #[must_use]
    pub fn digest(&self) -> StatementDigest {
        self.digest
    }
}

/// Point in time on the clock of [`CatalogChanges`]: nanoseconds since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnalysisTime(u64);

impl AnalysisTime {
    /// The point in time `age` earlier, at least the start of the process.
    #[must_use]
    pub fn before(self, age: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The last known change of each database's catalog, shared by all threads.
///
/// Databases share slots by a hash of their names. A collision causes a superfluous Parse and nothing else.
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
    pub fn now(&self) -> AnalysisTime {
        AnalysisTime(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The time since `at`. Another process, whose clock has another start, adopts it with [`AnalysisTime::before`].
    #[must_use]
    pub fn age(&self, at: AnalysisTime) -> Duration {
        Duration::from_nanos(self.now().0.saturating_sub(at.0))
    }

    /// Records a change of the catalog of `dbname`: one was committed, or an error revealed it.
    pub fn record(&self, dbname: &str) {
        self.slot(dbname).fetch_max(self.now().0, Ordering::AcqRel);
    }

    /// The last known change of the catalog of `dbname`.
    #[must_use]
    pub fn last_change(&self, dbname: &str) -> AnalysisTime {
        AnalysisTime(self.slot(dbname).load(Ordering::Acquire))
    }

    fn slot(&self, dbname: &str) -> &AtomicU64 {
        &self.slots[FxBuildHasher.hash_one(dbname) as usize % CHANGE_SLOTS]
    }
}

/// Whether a command with this tag may change the catalog. DO and CALL may contain any command.
#[must_use]
pub fn may_change_catalog(tag: &[u8]) -> bool {
    const TAGS: [&[u8]; 9] =
        [b"CREATE ", b"ALTER ", b"DROP ", b"GRANT", b"REVOKE", b"REASSIGN ", b"IMPORT ", b"DO\0", b"CALL\0"];
    TAGS.iter().any(|known| tag.starts_with(known))
}

/// All statements of the clients of one thread.
#[derive(Default)]
pub struct StatementCatalog {
    known: RefCell<FxHashMap<StatementDigest, Weak<Statement>>>,
    changes: Arc<CatalogChanges>,
    ignores_trace_comments: bool,
}

impl StatementCatalog {
    /// Creates the statements of one of several threads, which share `changes`.
    #[must_use]
    pub fn new(changes: Arc<CatalogChanges>) -> Self {
        Self { changes, ..Self::default() }
    }

    /// Whether statements that differ only in the comment with their trace are one statement, which servers get without it.
    #[must_use]
    pub fn ignoring_trace_comments(self, ignores_trace_comments: bool) -> Self {
        Self { ignores_trace_comments, ..self }
    }

    /// The message with the text that servers get.
    fn shared_form<'m>(&self, message: &Parse<'m>) -> Parse<'m> {
        let query = if self.ignores_trace_comments { split_comment(message.query).0 } else { message.query };
        Parse { query, ..*message }
    }

    /// Catalog changes seen by all threads.
    #[inline]
    pub fn changes(&self) -> &CatalogChanges {
        &self.changes
    }

    /// Requirements for the analysis of a statement that a client parses now. An analysis up to `age_max` older is valid if no
    /// change of the catalog is known since.
    #[must_use]
    pub fn freshness(&self, statement: &Statement, dbname: &str, age_max: Duration) -> Freshness {
        let parsed = self.changes.now();
        let age_max = if statement.reads_clock { Duration::ZERO } else { age_max };
        Freshness { tolerated: parsed.before(age_max).max(self.changes.last_change(dbname)), ..Freshness::from(parsed) }
    }

    /// Finds or adds the statement of a Parse message for clients with these settings.
    ///
    /// `pool` identifies the servers that share the statement: entry of `[databases]`, database and user on the server.
    pub fn intern(&self, message: &Parse<'_>, settings: &Rc<Settings>, pool: [&str; 3]) -> Rc<Statement> {
        let message = &self.shared_form(message);
        let digest = digest_of(message, settings, pool);
        if let Some(statement) = self.find(digest) {
            return statement;
        }
        let mut known = self.known.borrow_mut();
        // Sweep dead entries at the time when the table would grow.
        if known.len() == known.capacity() {
            known.retain(|_, statement| statement.strong_count() > 0);
        }
        let statement = Rc::new(Statement::new(digest, message, settings.clone()));
        known.insert(digest, Rc::downgrade(&statement));
        statement
    }

    /// Returns the statement with the same text for these settings and, if given, these parameter types.
    #[must_use]
    pub fn variant_of(
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
        self.intern(&Parse::decode(message).expect("the gateway encoded this message"), settings, pool)
    }

    /// Finds the statement of a Parse message if its last Parse on a server succeeded.
    pub fn find_valid(&self, message: &Parse<'_>, settings: &Settings, pool: [&str; 3]) -> Option<Rc<Statement>> {
        let digest = digest_of(&self.shared_form(message), settings, pool);
        self.find(digest).filter(|statement| statement.valid.get())
    }

    fn find(&self, digest: StatementDigest) -> Option<Rc<Statement>> {
        self.known.borrow().get(&digest).and_then(Weak::upgrade)
    }
}

/// Parameters that affect neither the analysis of a statement, nor its plan, nor the format of its constants.
const IRRELEVANT_PARAMETERS: [&str; 10] = [
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

/// Whether the value of a parameter may affect the analysis or the plan of a statement.
#[must_use]
pub fn affects_analysis(name: &str) -> bool {
    // Extensions read their parameters at execution.
    !name.contains('.') && !IRRELEVANT_PARAMETERS.iter().any(|irrelevant| irrelevant.eq_ignore_ascii_case(name))
}

/// The settings that affect the analysis, in order of name.
fn analysis_settings(settings: &Settings) -> impl Iterator<Item = (&str, &ParameterValue)> {
    settings.iter().filter(|(name, _)| affects_analysis(name)).map(|(name, value)| (name, value.plain()))
}

/// Computes the key of a statement from its text and parameter types, the settings that affect its analysis (including the role),
/// and the pool.
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

/// Words that Postgres replaces by the current time when it analyses a literal.
const TIME_WORDS: [&[u8]; 4] = [b"now", b"today", b"tomorrow", b"yesterday"];

/// Whether a literal of `text` may mean the time of its analysis, such as `'now'::timestamptz`. The function `now()` does not.
fn reads_clock(text: &[u8]) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    memchr::memchr2(b'\'', b'$', text).is_some()
        && text.split(|byte| !is_word(byte)).any(|word| {
            TIME_WORDS.iter().any(|known| known.eq_ignore_ascii_case(word)) && {
                let end = word.as_ptr_range().end.addr() - text.as_ptr().addr();
                text[end..].trim_ascii_start().first() != Some(&b'(')
            }
        })
}

/// Key of the parameter types and the columns of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatementShape(StatementDigest);

impl StatementShape {
    /// The key for a process of the same version.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.0
    }

    /// Adopts a key of [`Self::to_bytes`].
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(StatementDigest(bytes))
    }
}

/// Answer of a server to Describe for a statement.
#[derive(Debug, PartialEq, Eq)]
pub struct Description {
    /// Key of the whole answer.
    pub shape: StatementShape,
    /// Types of the parameters.
    pub parameters: Box<[u32]>,
}

impl Description {
    /// Decodes the bodies of ParameterDescription and RowDescription; `None` means NoData. Format codes of columns are ignored: a
    /// client chooses them in each Bind.
    ///
    /// # Errors
    /// If one of the bodies is malformed.
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
        let shape = StatementShape(StatementDigest(full[..16].try_into().expect("SHA-256 has 32 bytes")));
        Ok(Self { shape, parameters: ParameterDescription::decode(parameters)?.collect() })
    }
}

/// How recent the analysis of a statement has to be to serve a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// When the client sent its Parse, or got an error about a changed statement.
    pub parsed: AnalysisTime,
    /// Older analyses are not used: equal to `parsed` until a server has made an analysis for the client.
    pub oldest: AnalysisTime,
    /// The value of `oldest` afterwards.
    pub tolerated: AnalysisTime,
}

impl Freshness {
    /// Requires an analysis made after `now`.
    #[must_use]
    pub fn from(now: AnalysisTime) -> Self {
        Self { parsed: now, oldest: now, tolerated: now }
    }
}

/// A statement and its name for one client.
#[derive(Clone, Debug)]
pub struct NamedStatement {
    /// The name for the client.
    pub name: Rc<[u8]>,
    /// The statement.
    pub statement: Rc<Statement>,
}

/// A statement of a client, with the requirements for its analysis on a server.
#[derive(Clone, Debug)]
pub struct ClientStatement {
    /// The statement.
    pub statement: Rc<Statement>,
    /// How recent the analysis has to be.
    pub freshness: Freshness,
    /// The description of parameters and columns that the client may have seen.
    pub description: Option<Rc<Description>>,
    /// How the client has asked for a description, by which it may decode rows.
    pub described_by: DescribedBy,
}

/// How a client has asked for the description of a statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DescribedBy {
    /// The client has no description.
    #[default]
    Nothing,
    /// Described by a portal: the client describes each portal, or prepares the statement again after an error about its columns.
    Portal,
    /// Described by the statement.
    Statement,
}

/// Error of a statement whose analysis may be stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaleError {
    /// The columns have changed.
    Columns,
    /// Any other error.
    Other,
}

impl ClientStatement {
    /// Records the description of a server. A description that the client does not receive replaces none.
    pub fn describe(&mut self, description: Rc<Description>, is_received: bool) {
        if is_received || self.description.is_none() {
            self.description = Some(description);
        }
        if is_received {
            self.described_by = DescribedBy::Statement;
        }
    }
}

/// The named statements of one client.
#[derive(Debug, Default)]
pub struct ClientStatements {
    by_name: FxHashMap<Rc<[u8]>, ClientStatement>,
}

impl ClientStatements {
    /// Finds a statement by the client's name.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<NamedStatement> {
        self.get_prepared(name).map(|(known, _)| known)
    }

    /// Finds a statement by the client's name, with its requirements.
    #[must_use]
    pub fn get_prepared(&self, name: &[u8]) -> Option<(NamedStatement, &ClientStatement)> {
        let (name, prepared) = self.by_name.get_key_value(name)?;
        Some((NamedStatement { name: name.clone(), statement: prepared.statement.clone() }, prepared))
    }

    /// Finds a statement by the client's name for modification.
    pub fn get_mut(&mut self, name: &[u8]) -> Option<&mut ClientStatement> {
        self.by_name.get_mut(name)
    }

    /// Stores a statement under the client's name.
    pub fn insert(&mut self, name: &[u8], statement: Rc<Statement>, freshness: Freshness) {
        let described_by = DescribedBy::Nothing;
        self.restore(name, ClientStatement { statement, freshness, description: None, described_by });
    }

    /// Stores a statement with its earlier requirements.
    pub fn restore(&mut self, name: &[u8], prepared: ClientStatement) {
        self.by_name.insert(name.into(), prepared);
    }

    /// Requires a new analysis after the client got an error that a changed statement may cause. A description that the client
    /// has asked for stays valid: like Postgres, the gateway refuses other columns until the client prepares or describes the
    /// statement again.
    pub fn require_fresh(&mut self, name: &[u8], now: AnalysisTime, error: StaleError) {
        if let Some(prepared) = self.by_name.get_mut(name) {
            prepared.freshness = Freshness::from(now);
            let is_kept = match error {
                StaleError::Columns => prepared.described_by == DescribedBy::Statement,
                StaleError::Other => prepared.described_by != DescribedBy::Nothing,
            };
            if !is_kept {
                prepared.description = None;
            }
        }
    }

    /// Iterates over names and statements, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &ClientStatement)> {
        self.by_name.iter().map(|(name, prepared)| (&**name, prepared))
    }

    /// Removes a name.
    pub fn remove(&mut self, name: &[u8]) -> Option<ClientStatement> {
        self.by_name.remove(name)
    }

    /// Adds all statements of `newer`, replacing equal names.
    pub fn merge(&mut self, newer: Self) {
        self.by_name.extend(newer.by_name);
    }

    /// The number of statements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there are no statements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

/// The statements prepared on one server, with eviction of the least recently used.
#[derive(Default)]
pub struct ServerStatements {
    by_digest: FxHashMap<StatementDigest, ServerStatement>,
    clock: u64,
}

struct ServerStatement {
    used_at: u64,
    name: Box<[u8]>,
    stale: bool,
    /// When the Parse was sent; the server analysed it afterwards.
    since: AnalysisTime,
    /// The shape, once the server has described the statement. It is constant: Postgres rejects a statement whose columns have
    /// changed.
    shape: Option<StatementShape>,
}

/// Analysis of a statement on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// When the Parse was sent.
    pub since: AnalysisTime,
    /// The shape, if the server has described the statement.
    pub shape: Option<StatementShape>,
}

/// State of a statement on a server, for a process of the same version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedState {
    /// The key of the statement.
    pub digest: [u8; 16],
    /// The name on the server.
    pub name: Box<[u8]>,
    /// Whether the server must prepare it again.
    pub is_stale: bool,
    /// The analysis by the server.
    pub analysis: Analysis,
}

/// Server-side names of statements to close.
pub type Evicted = Vec<(StatementDigest, Box<[u8]>)>;

impl ServerStatements {
    /// Finds the analysis of a statement and marks it as used, unless it is stale or older than `oldest`.
    #[inline]
    pub fn find(&mut self, digest: StatementDigest, oldest: AnalysisTime) -> Option<Analysis> {
        let by_digest =
            self.by_digest.get_mut(&digest).filter(|by_digest| !by_digest.stale && by_digest.since >= oldest)?;
        self.clock += 1;
        by_digest.used_at = self.clock;
        Some(Analysis { since: by_digest.since, shape: by_digest.shape })
    }

    /// Records that the Parse is sent now. Returns the statements that have to be closed before: one with the same name, and the
    /// least recently used ones beyond `limit`.
    pub fn add(&mut self, statement: &Statement, limit: usize, now: AnalysisTime) -> Evicted {
        self.clock += 1;
        let mut evict = Vec::new();
        evict.extend(self.by_digest.remove(&statement.digest).map(|by_digest| (statement.digest, by_digest.name)));
        while self.by_digest.len() >= limit.max(1) {
            evict.extend(self.evict());
        }
        let (used_at, name) = (self.clock, statement.server_name().into());
        let by_digest = ServerStatement { used_at, name, stale: false, since: now, shape: None };
        self.by_digest.insert(statement.digest, by_digest);
        evict
    }

    /// Records the shape of the statement whose Parse was sent at `since`.
    pub fn set_shape(&mut self, digest: StatementDigest, since: AnalysisTime, shape: StatementShape) {
        if let Some(by_digest) = self.by_digest.get_mut(&digest).filter(|by_digest| by_digest.since == since) {
            by_digest.shape = Some(shape);
        }
    }

    /// Linear search: evictions are rare with a suitable limit, and scanning a few hundred entries takes about a microsecond.
    fn evict(&mut self) -> Option<(StatementDigest, Box<[u8]>)> {
        let oldest = self.by_digest.iter().min_by_key(|(_, by_digest)| by_digest.used_at).map(|(digest, _)| *digest)?;
        self.by_digest.remove(&oldest).map(|by_digest| (oldest, by_digest.name))
    }

    /// Records that the server skipped a Close, so it still has the statement.
    pub fn undo_eviction(&mut self, digest: StatementDigest, name: Box<[u8]>) {
        let since = AnalysisTime::default();
        self.by_digest.entry(digest).or_insert(ServerStatement { used_at: 0, name, stale: true, since, shape: None });
    }

    /// Records that the server drops all statements. Each is closed before its next Parse.
    pub fn mark_all_stale(&mut self) {
        self.by_digest.values_mut().for_each(|by_digest| by_digest.stale = true);
    }

    /// Records that the server's plan is outdated. The statement is closed and prepared again before its next use.
    pub fn mark_stale(&mut self, digest: StatementDigest) {
        if let Some(by_digest) = self.by_digest.get_mut(&digest) {
            by_digest.stale = true;
        }
    }

    /// Removes the statement with this server-side name. Linear search, for clients that use server-side names in SQL.
    pub fn remove_by_name(&mut self, name: &[u8]) -> Option<StatementDigest> {
        let digest = self.by_name(name)?;
        self.by_digest.remove(&digest);
        Some(digest)
    }

    /// Records that the server may have lost the statement with this name.
    pub fn mark_stale_by_name(&mut self, name: &[u8]) {
        if let Some(digest) = self.by_name(name) {
            self.mark_stale(digest);
        }
    }

    fn by_name(&self, name: &[u8]) -> Option<StatementDigest> {
        self.by_digest.iter().find(|(_, by_digest)| *by_digest.name == *name).map(|(digest, _)| *digest)
    }

    /// Records that the server has no statements (DEALLOCATE ALL, DISCARD ALL).
    pub fn clear(&mut self) {
        self.by_digest.clear();
    }

    /// The states of all statements, least recently used first.
    #[must_use]
    pub fn states(&self) -> Vec<PreparedState> {
        let mut ordered: Vec<_> = self.by_digest.iter().collect();
        ordered.sort_unstable_by_key(|(_, statement)| statement.used_at);
        let state = |(digest, statement): (&StatementDigest, &ServerStatement)| PreparedState {
            digest: digest.0,
            name: statement.name.clone(),
            is_stale: statement.stale,
            analysis: Analysis { since: statement.since, shape: statement.shape },
        };
        ordered.into_iter().map(state).collect()
    }

    /// Adopts the states of [`Self::states`].
    #[must_use]
    pub fn from_states(states: impl IntoIterator<Item = PreparedState>) -> Self {
        let mut statements = Self::default();
        for PreparedState { digest, name, is_stale, analysis: Analysis { since, shape } } in states {
            statements.clock += 1;
            let statement = ServerStatement { used_at: statements.clock, name, stale: is_stale, since, shape };
            statements.by_digest.insert(StatementDigest(digest), statement);
        }
        statements
    }

    /// The number of statements on the server.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_digest.len()
    }

    /// Whether the server has no statements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_digest.is_empty()
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

    #[test]
    fn comment_with_a_trace_makes_no_other_statement() {
        let text = |span: u32| format!("select 1 /*traceparent='00-4bf92f3577b34da6a3ce929d0e0e4736-{span:016x}-01'*/");
        for ignores_trace_comments in [true, false] {
            let catalog = StatementCatalog::default().ignoring_trace_comments(ignores_trace_comments);
            let [one, other] = [1, 2].map(|span| intern(&catalog, &text(span), &[], None));
            assert_eq!(Rc::ptr_eq(&one, &other), ignores_trace_comments);
            assert_eq!(one.text() == b"select 1", ignores_trace_comments);
            assert_eq!(Rc::ptr_eq(&one, &intern(&catalog, "select 1", &[], None)), ignores_trace_comments);
        }
    }

    fn intern(catalog: &StatementCatalog, query: &str, types: &[u32], path: Option<&ParameterValue>) -> Rc<Statement> {
        let body = parse_body("any", query, types);
        let mut settings = Settings::default();
        path.into_iter().for_each(|path| settings.set("search_path", path.clone()));
        catalog.intern(&Parse::decode(&body).unwrap(), &Rc::new(settings), ["shop"; 3])
    }

    #[test]
    fn equal_texts_and_types_are_shared() {
        let catalog = StatementCatalog::default();
        let one = intern(&catalog, "select $1", &[23], None);
        assert!(Rc::ptr_eq(&one, &intern(&catalog, "select $1", &[23], None)));
        for other in [
            intern(&catalog, "select $1", &[25], None),
            intern(&catalog, "select  $1", &[23], None),
            intern(&catalog, "select $1", &[], None),
            intern(&catalog, "select $1", &[23], Some(&ParameterValue::text(b"tenant"))),
        ] {
            assert_ne!(one.server_name(), other.server_name());
        }
    }

    #[test]
    fn settings_without_effect_on_plans_are_ignored() {
        let (catalog, body) = (StatementCatalog::default(), parse_body("any", "select 1", &[]));
        let digest = |name: &str| {
            let mut settings = Settings::default();
            settings.set(name, ParameterValue::text(b"x"));
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
    fn analysis_is_used_until_it_is_too_old() {
        let (changes, catalog) = (CatalogChanges::default(), StatementCatalog::default());
        let statement = intern(&catalog, "a", &[], None);
        let mut server = ServerStatements::default();
        let (before, now) = (changes.now(), changes.now());
        server.add(&statement, 10, now);
        assert_eq!(server.find(statement.digest(), before), Some(Analysis { since: now, shape: None }));
        changes.record("shop");
        let freshness = catalog.freshness(&statement, "shop", Duration::MAX);
        assert_eq!(freshness.tolerated, AnalysisTime::default(), "this catalog has its own clock");
        assert_eq!(server.find(statement.digest(), changes.last_change("shop")), None);
        let shape = Description::decode(&[0, 0], None).unwrap().shape;
        server.set_shape(statement.digest(), before, shape);
        assert_eq!(server.find(statement.digest(), before).unwrap().shape, None, "it was sent again since");
        server.set_shape(statement.digest(), now, shape);
        assert_eq!(server.find(statement.digest(), before).unwrap().shape, Some(shape));
    }

    #[test]
    fn catalog_change_requires_a_new_analysis() {
        let changes = Arc::new(CatalogChanges::default());
        let catalog = StatementCatalog::new(changes.clone());
        let [plain, clock] = ["select now()", "select 'today'::date"].map(|text| intern(&catalog, text, &[], None));
        let before = changes.now();
        assert_eq!(catalog.freshness(&plain, "shop", Duration::MAX).tolerated, AnalysisTime::default());
        assert!(catalog.freshness(&plain, "shop", Duration::ZERO).tolerated > before);
        assert!(catalog.freshness(&clock, "shop", Duration::MAX).tolerated > before);
        changes.record("shop");
        let freshness = catalog.freshness(&plain, "shop", Duration::MAX);
        assert!(
            before < freshness.tolerated
                && freshness.tolerated <= freshness.parsed
                && freshness.oldest == freshness.parsed
        );
    }

    #[test]
    fn literals_that_mean_the_time_are_found() {
        for text in [
            "select 'now'::timestamptz",
            "select timestamp 'Today 10:00'",
            "select $$yesterday$$::date",
            "select 'now' , (1)",
        ] {
            assert!(reads_clock(text.as_bytes()), "{text}");
        }
        for text in ["select now()", "select now ( ), 'x'", "select 'known'", "select now", "select 'see today_s'"] {
            assert!(!reads_clock(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn command_tags_show_catalog_changes() {
        let changing: [&[u8]; 5] = [b"CREATE TABLE\0", b"ALTER ROLE\0", b"GRANT\0", b"DO\0", b"REVOKE ROLE\0"];
        assert!(changing.iter().all(|tag| may_change_catalog(tag)));
        let others: [&[u8]; 5] = [b"COMMIT\0", b"SELECT 1\0", b"COPY 3\0", b"DECLARE CURSOR\0", b"INSERT 0 1\0"];
        assert!(!others.iter().any(|tag| may_change_catalog(tag)));
    }

    #[test]
    fn shape_ignores_format_codes() {
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
    fn least_recently_used_statement_is_evicted() {
        let (changes, catalog) = (CatalogChanges::default(), StatementCatalog::default());
        let [a, b, c] = ["a", "b", "c"].map(|text| intern(&catalog, text, &[], None));
        let mut server = ServerStatements::default();
        let add = |server: &mut ServerStatements, statement: &Statement| server.add(statement, 2, changes.now());
        let is_there = |server: &mut ServerStatements, statement: &Statement| {
            server.find(statement.digest(), AnalysisTime::default()).is_some()
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
