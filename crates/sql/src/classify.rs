//! What a statement does to its session, as far as its text tells.
//!
//! In transaction mode the next transaction may run on another server, so what a statement leaves behind in the
//! session must be carried along (settings), keep the client on its server (locks, listeners, temporary tables), or be
//! refused. The text is looked at once: per simple query, or when a statement is prepared. A query without such words
//! costs one pass of a string search.
//!
//! A function that takes an advisory lock behind the scenes cannot be seen; `docs/src/reference/limits.md` says so.

use std::{fmt, sync::LazyLock};

use aho_corasick::{AhoCorasick, MatchKind};

mod set;
mod set_config;
mod several;
mod words;

pub use set::is_temporary_path;
use set::{TIME_ZONE, look_at_set};
use set_config::{calls_that_are_followed, pins_of_set_config};
use several::followed;
use words::{Name, Statements, Words, is_blank, is_of_name};

/// Why a client stays on its server. A set of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pins(u8);

impl Pins {
    /// LISTEN.
    pub const LISTEN: Self = Self(1);
    /// A cursor WITH HOLD.
    pub const HOLD: Self = Self(2);
    /// A session advisory lock.
    pub const ADVISORY: Self = Self(4);
    /// A temporary table.
    pub const TEMP: Self = Self(8);
    /// A statement prepared in SQL.
    pub const PREPARE: Self = Self(16);
    /// A setting that cannot be carried along.
    pub const SETTING: Self = Self(32);
    /// The session user goes back to that of the login, and takes a role with it.
    pub const USER: Self = Self(64);
    /// A replication origin, which no reset takes back.
    pub const ORIGIN: Self = Self(128);

    const NAMES: [(Self, &'static str); 8] = [
        (Self::LISTEN, "listen"),
        (Self::HOLD, "hold"),
        (Self::ADVISORY, "advisory"),
        (Self::TEMP, "temp"),
        (Self::PREPARE, "prepare"),
        (Self::SETTING, "setting"),
        (Self::USER, "user"),
        (Self::ORIGIN, "origin"),
    ];

    /// No reason at all.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// These are among them.
    #[must_use]
    pub const fn has(self, reasons: Self) -> bool {
        self.0 & reasons.0 != 0
    }

    /// The same without these.
    #[must_use]
    pub const fn without(self, reasons: Self) -> Self {
        Self(self.0 & !reasons.0)
    }

    /// Adds reasons.
    pub fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl fmt::Display for Pins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (pin, name) in Self::NAMES {
            if self.has(pin) {
                write!(f, "{separator}{name}")?;
                separator = ",";
            }
        }
        Ok(())
    }
}

/// A change of the session's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// `SET name = value`, the value as it stands in the statement.
    Set {
        /// In lower case, unquoted.
        name: String,
        /// Everything after `=` or `TO`; `None` if it cannot be said again on another server, which may read a backslash or
        /// another encoding otherwise.
        value: Option<String>,
    },
    /// `set_config('name', value, false)` in a SELECT of its own, which does what SET does, but with a text.
    SetConfig {
        /// As it stands in the statement, unquoted.
        name: String,
        /// The new value.
        value: ConfigValue,
    },
    /// Several of these, in the statements of one query.
    Sets(Vec<Self>),
    /// `RESET name`, in lower case, or `SET name TO DEFAULT`.
    Reset(String),
    /// `RESET ALL`.
    ResetAll,
    /// `DISCARD ALL`.
    DiscardAll,
    /// `DEALLOCATE ALL`, which leaves the settings alone.
    DeallocateAll,
    /// `DEALLOCATE name`, which does so too: the name as Postgres reads it.
    Deallocate(String),
    /// `SAVEPOINT name`, as Postgres reads it: what is set from here on may be undone apart from what was set before.
    Savepoint(String),
    /// `RELEASE name`.
    Release(String),
    /// `ROLLBACK TO name`, whose CommandComplete is that of a ROLLBACK.
    RollbackTo(String),
    /// Some of these three among other statements, or with a name that is hard to read.
    Savepoints,
}

/// The value that a `set_config` gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigValue {
    /// This text.
    Text(String),
    /// A parameter of the statement, from 1.
    Parameter {
        /// Its number.
        number: usize,
        /// It is cast to a text, and may be of another type.
        is_cast: bool,
    },
    /// It cannot be set again on another server.
    Unknown,
}

impl Change {
    /// The server forgets all prepared statements with it.
    #[must_use]
    pub fn forgets(&self) -> bool {
        matches!(self, Self::DiscardAll | Self::DeallocateAll)
    }

    /// Settings go back to what they were at the login.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        match self {
            Self::Reset(_) | Self::ResetAll | Self::DiscardAll => true,
            Self::Sets(sets) => sets.iter().any(Self::is_reset),
            _ => false,
        }
    }

    /// Some of it is a call of `set_config` in a SELECT.
    #[must_use]
    pub fn is_of_config(&self) -> bool {
        match self {
            Self::SetConfig { .. } => true,
            Self::Sets(sets) => sets.iter().any(Self::is_of_config),
            _ => false,
        }
    }

    /// The parameter that it is about, if it is one.
    #[must_use]
    pub fn parameter(&self) -> Option<&str> {
        match self {
            Self::Set { name, .. } | Self::SetConfig { name, .. } | Self::Reset(name) => Some(name),
            _ => None,
        }
    }

    /// It has to do with savepoints, and may be a ROLLBACK to one.
    #[must_use]
    pub fn is_of_savepoints(&self) -> bool {
        matches!(self, Self::Savepoint(_) | Self::Release(_) | Self::RollbackTo(_) | Self::Savepoints)
    }
}

/// What a statement does to its session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// What it leaves behind that only its server has.
    pub pins: Pins,
    /// What it changes in the settings, if it is a single statement that does so, or several whose end tells.
    pub change: Option<Box<Change>>,
    /// It runs code that may set something, and its text does not tell what: a procedure, or a block.
    pub runs_code: bool,
}

impl Traits {
    /// It leaves nothing behind.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.pins.is_empty() && self.change.is_none() && !self.runs_code
    }
}

/// Looks at the text of a simple query or of a statement to be prepared.
#[must_use]
pub fn classify(sql: &[u8]) -> Traits {
    let mut traits = Traits { pins: function_pins(sql), ..Traits::default() };
    let statements = Statements::new(sql);
    let single = statements.is_single();
    for statement in statements {
        look_at_statement(statement, single, &mut traits);
    }
    if traits.pins.has(Pins::SETTING)
        && let Some(followed) = if single { followed_calls(sql) } else { followed(sql) }
    {
        return followed;
    }
    traits
}

/// A SELECT of nothing but calls of `set_config`, which changes settings as a SET does.
fn followed_calls(sql: &[u8]) -> Option<Traits> {
    let calls = calls_that_are_followed(Statements::new(sql).next()?)?;
    let mut changes = calls.changes;
    let change = match changes.len() {
        0 => None,
        1 => changes.pop(),
        _ => Some(Change::Sets(changes)),
    };
    Some(Traits { pins: calls.pins, change: change.map(Box::new), runs_code: false })
}

/// What the SETs of a text of the configuration set, each by its right-hand side.
#[must_use]
pub fn sets_of(sql: &[u8]) -> Vec<(String, String)> {
    let set = |statement| match *classify(statement).change? {
        Change::Set { name, value } => Some((name, value?)),
        _ => None,
    };
    Statements::new(sql).filter_map(set).collect()
}

/// The effect of one of several statements.
fn traits_of_one(statement: &[u8]) -> Traits {
    let mut traits = Traits { pins: function_pins(statement), ..Traits::default() };
    look_at_statement(statement, true, &mut traits);
    if traits.pins.has(Pins::SETTING)
        && let Some(followed) = followed_calls(statement)
    {
        return followed;
    }
    traits
}

/// What a function leaves behind that is called by its number, without a statement. Those of the built-in ones never change.
#[must_use]
pub const fn pins_of_call(function: u32) -> Pins {
    match function {
        // set_config
        2078 => Pins::SETTING,
        // pg_advisory_lock and pg_try_advisory_lock, shared or not, of one number and of two.
        2880..=2883 | 2886..=2889 => Pins::ADVISORY,
        // pg_replication_origin_session_setup
        6006 => Pins::ORIGIN,
        _ => Pins(0),
    }
}

/// Calls that leave something behind, wherever they stand.
fn function_pins(sql: &[u8]) -> Pins {
    const PATTERNS: [&str; 6] =
        ["advisory_lock", "set_config", "temp", "pg_settings", "replication_origin_session_setup", "u&\""];
    static SEARCH: LazyLock<AhoCorasick> = LazyLock::new(|| {
        AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .build(PATTERNS)
            .expect("a few short patterns make an automaton")
    });
    let mut pins = Pins::default();
    if !may_call_or_keep(sql) {
        return pins;
    }
    let (mut first_update, mut comments_left, mut calls_left) = (None, COMMENTS_MAX, CALLS_MAX);
    for found in SEARCH.find_iter(sql) {
        pins.add(match found.pattern().as_usize() {
            0 if is_transaction_lock(sql, found.start()) => Pins::default(),
            0 => Pins::ADVISORY,
            2 if is_made_temporary(sql, found.start(), &mut comments_left) => Pins::TEMP,
            2 => Pins::default(),
            // An UPDATE of the view is a SET by another name.
            3 if *first_update.get_or_insert_with(|| position(sql, b"update")) > found.start() => Pins::default(),
            4 => Pins::ORIGIN,
            1 if !pins.has(Pins::SETTING) && calls_left > 0 => {
                calls_left -= 1;
                pins_of_set_config(&sql[found.end()..])
            }
            // One call too many, or a name that is spelled by numbers: it may be any of these.
            _ => Pins::SETTING,
        });
    }
    pins
}

/// Whether a text can contain one of the patterns at all: a call has a parenthesis, and what remains has "temp" or
/// "pg_settings". Most queries of an application have none, and are told so by instructions that look at many bytes at once.
fn may_call_or_keep(sql: &[u8]) -> bool {
    let is_temp = |end: usize| end >= 3 && sql[end - 3..end].eq_ignore_ascii_case(b"tem");
    let is_view = |at: usize| sql.get(at + 1..at + 4).is_some_and(|next| next.eq_ignore_ascii_case(b"g_s"));
    memchr::memchr(b'(', sql).is_some() || memchr::memchr2_iter(b'p', b'P', sql).any(|at| is_temp(at) || is_view(at))
}

/// `pg_advisory_xact_lock` does not contain the pattern; `pg_try_advisory_lock` and `pg_advisory_lock_shared` do.
fn is_transaction_lock(sql: &[u8], at: usize) -> bool {
    ends_with(&sql[..at], b"xact_")
}

/// Whether the "temp" at `at` makes a table a temporary one, as in `INTO TEMP` and `CREATE TEMPORARY`, or is the schema of
/// such tables.
fn is_made_temporary(sql: &[u8], at: usize, comments_left: &mut usize) -> bool {
    let (before, behind) = (&sql[at.saturating_sub(LOOK_BACK)..at], &sql[at + b"temp".len()..]);
    if ends_with(before, b"pg_") || ends_with(before, b"pg_toast_") {
        let behind = skip_number(behind);
        let behind = behind.strip_prefix(b"\"").unwrap_or(behind);
        return matches!(trim_start(behind).first(), Some(b'.' | b'/' | b'-'));
    }
    let behind = match behind.first_chunk::<5>() {
        Some(more) if more.eq_ignore_ascii_case(b"orary") => &behind[more.len()..],
        _ => behind,
    };
    if behind.first().is_some_and(|next| is_of_word(*next)) || before.last().is_some_and(|last| is_of_word(*last)) {
        return false;
    }
    follows_making(before, comments_left).unwrap_or(at > LOOK_BACK)
}

/// The number by which a session may call its schema of temporary tables, too: `pg_temp_3`.
fn skip_number(text: &[u8]) -> &[u8] {
    let Some(number) = text.strip_prefix(b"_") else { return text };
    &number[number.iter().take_while(|byte| byte.is_ascii_digit()).count()..]
}

/// So many calls of `set_config` are read in a text, each of which may hold those behind it.
const CALLS_MAX: usize = 64;
/// So many comments at most are passed over in a text; what stands behind more of them may be anything.
const COMMENTS_MAX: usize = 1 << 16;

/// What stands further before a word than this may be anything.
const LOOK_BACK: usize = 256;

/// Whether a text ends with a word that makes something, blanks and comments aside; `None` if it has nothing else.
fn follows_making(mut text: &[u8], comments_left: &mut usize) -> Option<bool> {
    loop {
        text = trim_end(text);
        if text.is_empty() {
            return None;
        }
        let line = memchr::memrchr2(b'\n', b'\r', text).map_or(0, |end| end + 1);
        if text.ends_with(b"*/") {
            text = &text[..comment_start(text)];
        } else if let Some(dashes) = memchr::memmem::find(&text[line..], b"--").map(|at| line + at) {
            if memchr::memchr3(b'\'', b'"', b'$', &text[line..dashes]).is_some() {
                return Some(follows_making_in_line(text, line));
            }
            text = &text[..dashes];
        } else {
            return Some(ends_with_making(text));
        }
        let Some(left) = comments_left.checked_sub(1) else { return Some(true) };
        *comments_left = left;
    }
}

/// The same of a line with dashes and quotes: any dashes may begin the comment, or none.
fn follows_making_in_line(text: &[u8], line: usize) -> bool {
    let mut dashes = memchr::memmem::find_iter(&text[line..], b"--");
    ends_with_making(text) || dashes.any(|at| ends_with_making(trim_end(&text[..line + at])))
}

fn ends_with_making(text: &[u8]) -> bool {
    [&b"into"[..], b"create", b"replace", b"local", b"global"].iter().any(|word| ends_with(text, word))
}

fn ends_with(text: &[u8], word: &[u8]) -> bool {
    text.len() >= word.len() && text[text.len() - word.len()..].eq_ignore_ascii_case(word)
}

/// Where a word begins first; behind the text if nowhere.
fn position(text: &[u8], word: &[u8]) -> usize {
    text.windows(word.len()).position(|part| part.eq_ignore_ascii_case(word)).unwrap_or(text.len())
}

const fn is_of_word(byte: u8) -> bool {
    is_of_name(byte) || byte == b'"'
}

fn trim_start(text: &[u8]) -> &[u8] {
    &text[text.iter().take_while(|byte| is_blank(**byte)).count()..]
}

fn trim_end(text: &[u8]) -> &[u8] {
    &text[..text.len() - text.iter().rev().take_while(|byte| is_blank(**byte)).count()]
}

/// Where the comment begins that the text ends with.
fn comment_start(text: &[u8]) -> usize {
    let (mut depth, mut at) = (0, text.len());
    while at >= 2 {
        match &text[at - 2..at] {
            b"*/" => depth += 1,
            b"/*" => depth -= 1,
            _ => {
                at -= 1;
                continue;
            }
        }
        at -= 2;
        if depth == 0 {
            return at;
        }
    }
    0
}

fn look_at_statement(statement: &[u8], single: bool, traits: &mut Traits) {
    let mut words = Words::new(statement);
    if !words.may_matter() {
        return;
    }
    match words.next().as_deref() {
        Some("set") => look_at_set(&mut words, single, traits),
        Some("reset") => match words.parameter().as_deref() {
            Some("all") => change(Change::ResetAll, single, traits),
            Some("session" | "session_authorization") => traits.pins.add(Pins::USER),
            Some("time") => change(Change::Reset(TIME_ZONE.to_owned()), single, traits),
            Some(name) => change(Change::Reset(name.to_owned()), single, traits),
            None => {}
        },
        Some("discard") if words.next().as_deref() == Some("all") => change(Change::DiscardAll, single, traits),
        Some("deallocate") => look_at_deallocate(&mut words, single, traits),
        Some("savepoint") => look_at_savepoint(&mut words, Change::Savepoint, single, traits),
        Some("release") => look_at_savepoint(&mut words, Change::Release, single, traits),
        Some("rollback") if words.leads_to() => look_at_savepoint(&mut words, Change::RollbackTo, single, traits),
        Some("listen") => traits.pins.add(Pins::LISTEN),
        Some("do") => look_at_block(statement, traits),
        Some("call") => traits.runs_code = true,
        Some("load") => traits.pins.add(Pins::SETTING),
        // PREPARE TRANSACTION ends a transaction and leaves nothing in the session.
        Some("prepare") if words.next().as_deref() != Some("transaction") => traits.pins.add(Pins::PREPARE),
        Some("declare") if words.any_pair("with", "hold") => traits.pins.add(Pins::HOLD),
        Some("create") => {
            let temporary = words.by_ref().take(3).any(|word| word == "temp" || word == "temporary");
            if temporary {
                traits.pins.add(Pins::TEMP);
            }
        }
        _ => {}
    }
}

/// The text of a block is in quotes, and in whatever language: it may do what it has a word for.
fn look_at_block(block: &[u8], traits: &mut Traits) {
    static WORDS: LazyLock<AhoCorasick> = LazyLock::new(|| {
        // Behind `language` there may be any, in which nothing is read.
        let words = ["listen", "hold", "set", "set_config", "execute", "call", "language"];
        let builder =
            AhoCorasick::builder().ascii_case_insensitive(true).match_kind(MatchKind::LeftmostLongest).build(words);
        builder.expect("a few words make an automaton")
    });
    for found in WORDS.find_iter(block) {
        let is_part = |byte: Option<&u8>| byte.is_some_and(|byte| is_of_name(*byte) && *byte != b'$');
        if !is_part(block[..found.start()].last()) && !is_part(block.get(found.end())) {
            match found.pattern().as_usize() {
                0 => traits.pins.add(Pins::LISTEN),
                1 => traits.pins.add(Pins::HOLD),
                _ => traits.runs_code = true,
            }
        }
    }
}

fn change(change: Change, single: bool, traits: &mut Traits) {
    match change {
        change if single => traits.change = Some(Box::new(change)),
        // Whatever it is among, what is prepared behind it is new.
        Change::DeallocateAll => drop(traits.change.get_or_insert_with(|| Box::new(change))),
        // A name among other statements is one prepared in SQL.
        Change::Deallocate(_) => {}
        _ => traits.pins.add(Pins::SETTING),
    }
}

fn look_at_deallocate(words: &mut Words<'_>, single: bool, traits: &mut Traits) {
    let mut name = words.name();
    if name == Some(Name::Word("prepare".to_owned())) {
        // Which may be the name itself.
        name = words.name().or(name);
    }
    match name {
        Some(Name::Word(all)) if all == "all" => change(Change::DeallocateAll, single, traits),
        Some(Name::Word(name) | Name::Quoted(name)) if words.next_or_symbol().is_none() => {
            change(Change::Deallocate(name), single, traits);
        }
        _ => {}
    }
}

/// What it does depends on what was set before and on what comes later; names are compared by all 63 bytes that count.
fn look_at_savepoint(words: &mut Words<'_>, of: fn(String) -> Change, single: bool, traits: &mut Traits) {
    const NAME_BYTES_MAX: usize = 63;
    let mut name = words.name();
    if name == Some(Name::Word("savepoint".to_owned())) {
        // Which may be the name itself.
        name = words.name().or(name);
    }
    let name = match name {
        Some(Name::Word(name) | Name::Quoted(name)) => Some(name),
        None => None,
    };
    let is_whole = |name: &String| name.len() <= NAME_BYTES_MAX && !name.contains(char::REPLACEMENT_CHARACTER);
    let read = name.filter(|name| single && is_whole(name) && words.next_or_symbol().is_none());
    traits.change = Some(Box::new(read.map_or(Change::Savepoints, of)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pins(sql: &str) -> String {
        classify(sql.as_bytes()).pins.to_string()
    }

    fn set(sql: &str) -> Option<(String, String)> {
        match *classify(sql.as_bytes()).change? {
            Change::Set { name, value } => Some((name, value?)),
            _ => None,
        }
    }

    #[test]
    fn ordinary_statements_leave_nothing_behind() {
        for sql in [
            "",
            ";",
            "select 1",
            "SELECT abalance FROM pgbench_accounts WHERE aid = 123;",
            "update t set a = 1 where b = 'listen x'",
            "select 1 offset 3; select 2",
            "select pg_advisory_xact_lock(1)",
            "select pg_try_advisory_xact_lock(1)",
            "set local statement_timeout = 5",
            "set transaction isolation level serializable",
            "begin; set constraints all deferred",
            "prepare transaction 'a'",
            "declare c cursor for select 1",
            "create table temp_things (a int)",
            "insert into readings (temp, temperature) values (1, 2)",
            "select temp from into_temp, template where attempt = 1 and \"temp\" = 2",
            "select nspname from pg_namespace where nspname not like 'pg_temp_%'",
            "-- create temp table t ()\nselect 1",
            "/* set a = 1 */ select 1",
            "select $$; listen x; $$",
            "select $é$; listen x; $é$",
            "select '-- into ' || temp from t where n = 'a\nb'",
            "select name, setting from pg_settings; select 1",
            "set transaction_isolation = 'serializable'",
            "do $$ begin perform listener from thresholds; end $$",
            "document listen",
            "set local search_path = a, b",
            "set seed to 0.5",
        ] {
            assert!(classify(sql.as_bytes()).is_plain(), "{sql}: {:?}", classify(sql.as_bytes()));
        }
    }

    #[test]
    fn session_state_is_seen_wherever_it_stands() {
        assert_eq!(pins("LISTEN jobs"), "listen");
        assert_eq!(pins("begin; listen jobs; commit"), "listen");
        assert_eq!(pins("-- hello\n /* a /* b */ */ listen jobs"), "listen");
        assert_eq!(pins("declare c binary cursor with hold for select 1"), "hold");
        assert_eq!(pins("select pg_advisory_lock(1)"), "advisory");
        assert_eq!(pins("select PG_TRY_ADVISORY_LOCK_SHARED(1)"), "advisory");
        assert_eq!(pins("create temp table t (a int)"), "temp");
        assert_eq!(pins("create local temporary table t as select 1"), "temp");
        assert_eq!(pins("select 1 INTO TEMP t"), "temp");
        assert_eq!(pins("select 1 into  /* a /* b */ */\n-- c\n temporary t"), "temp");
        assert_eq!(pins("select 1 into local temp t"), "temp");
        assert_eq!(pins("explain analyze create temp table t as select 1"), "temp");
        assert_eq!(pins("do $$ begin create temp table t (); end $$"), "temp");
        assert_eq!(pins("create or replace temp view v as select 1"), "temp");
        assert_eq!(pins("create table pg_temp.t ()"), "temp");
        assert_eq!(pins("do $$ begin listen x; end $$"), "listen");
        assert_eq!(pins("DO 'begin execute ''declare c cursor with hold for select 1''; end'"), "hold");
        assert_eq!(pins("do$a$listen x$a$"), "listen");
        assert_eq!(pins("create table \"pg_temp\" . t ()"), "temp");
        assert_eq!(pins(&format!("select 1 into /*{}*/ temp t", " ".repeat(LOOK_BACK))), "temp");
        assert_eq!(pins("prepare p as select 1"), "prepare");
        assert_eq!(pins("select set_config('search_path', '', false) from t"), "setting");
        assert_eq!(pins("set a.b = 1; commit and chain"), "setting");
        assert_eq!(pins("set session characteristics as transaction read only, deferrable"), "setting");
        assert_eq!(pins("listen a; create temp table t ()"), "listen,temp");
        assert_eq!(pins("update only pg_catalog.pg_settings set setting = 1 where name = 'a'"), "setting");
        assert_eq!(pins("select U&\"set\\005fconfig\"('a.b', '', false)"), "setting");
        for name in ["é.a", "session é.a", "\"é\".é", "a.é"] {
            assert_eq!(pins(&format!("set {name} to 'a'")), "setting", "{name}");
        }
        for name in ["session_authorization", "session session_authorization", "\"session_authorization\""] {
            assert_eq!(pins(&format!("set {name} to 'a'")), "setting");
            assert_eq!(pins(&format!("set {name} to default -- a")), "user");
        }
        for sql in ["reset session authorization", "RESET session_authorization;", "set session authorization default"]
        {
            assert_eq!(pins(sql), "user", "{sql}");
        }
        assert_eq!(pins("set session authorization 'default'"), "setting");
        for sql in ["set role a; set session authorization default", "reset session authorization; set role a"] {
            assert_eq!(pins(sql), "setting,user", "{sql}");
        }
        assert_eq!(pins("select '--' into temp t"), "temp");
        assert_eq!(pins("select '--' into -- a\n temp t"), "temp");
        assert_eq!(pins("select '-- ' -- a\ninto -- b\n\u{b}temp t"), "temp");
        assert_eq!(pins("create table pg_temp/**/.t ()"), "temp");
        for path in ["pg_temp, public", "PG_TEMP_3", "'pg_temp'", "\"$user\", pg_temp", "'$user',\"pg_temp\""] {
            assert_eq!(pins(&format!("set search_path to {path}")), "temp", "{path}");
        }
        for path in ["public, pg_temp", "\"$user\", public", "\"$user\""] {
            assert_eq!(pins(&format!("set search_path to {path}")), "", "{path}");
        }
        for schema in ["pg_temp_3", "\"pg_temp_12\" ", "pg_toast_temp_3", "pg_temp_3/**/"] {
            assert_eq!(pins(&format!("create table {schema}.t ()")), "temp", "{schema}");
        }
        for set in ["set search_path = pg_temp, public", "set \"Search_path\" to 'PG_TEMP'"] {
            assert_eq!(pins(set), "temp", "{set}");
        }
        for set in ["set local search_path = pg_temp", "begin; set local schema 'pg_temp'; create table t ()"] {
            assert_eq!(pins(set), "temp", "{set}");
        }
    }

    #[test]
    fn a_statement_is_seen_behind_whatever_seems_to_hide_it() {
        for sql in [
            // A comment ends with either end of a line.
            "select 1 -- a\r; listen x",
            "select 1;\u{b}listen x",
            // The dollars belong to names, or to the tag.
            "select 1 as a$b$; listen x; select 1 as a$b$",
            "select 1 as é$b$; listen x; select 1 as é$b$",
            "select $é$ ' $é$; listen x; select '1'",
            // A backslash is an escape, or is none, by what stands before the quote, on the line before or in the settings.
            r"select name'\'; listen x; select '1'",
            "select E'a'\n'\\'' ; listen x; select '1'",
            r"select E'a''\''; listen x; select '1'",
            r"select 'a\''; listen x; select '1'",
            "select E'\u{95}\\'; listen x; select '1'",
        ] {
            assert_eq!(pins(sql), "listen", "{sql}");
        }
    }

    #[test]
    fn a_set_is_carried_along_only_as_it_can_be_said_again() {
        for (sql, value) in [
            ("set work_mem = '4MB' -- why", "'4MB'"),
            ("set work_mem = '4MB' /* why */ -- and\n ;", "'4MB'"),
            ("set a.b to 'x--y', /* z */ c -- d", "'x--y', /* z */ c"),
            ("set role a -- why", "a"),
        ] {
            assert_eq!(set(sql).map(|(_, value)| value).as_deref(), Some(value), "{sql}");
        }
        for sql in [r"set a.b = 'a\b'", r"set a.b = E'a\'b'", r"set role 'a\b'"] {
            assert!(set(sql).is_none() && classify(sql.as_bytes()).change.is_some(), "{sql}");
        }
        let latin = classify(b"set a.b = 'caf\xe9'").change.map(|change| *change);
        assert_eq!(latin, Some(Change::Set { name: "a.b".into(), value: None }));
        assert_eq!(set("set a.b = 1; (select 2)"), None, "it is not alone");
    }

    #[test]
    fn a_single_set_is_read() {
        let read = |name: &str, value: &str| Some((name.to_owned(), value.to_owned()));
        assert_eq!(set("SET statement_timeout = '5s';"), read("statement_timeout", "'5s'"));
        assert_eq!(set("set session My.Var to 'x', y ;  "), read("my.var", "'x', y"));
        assert_eq!(set("set \"Quoted\" to 1"), read("Quoted", "1"));
        for text in ["set role alice", "set role = alice", "set role to alice", "set session role alice"] {
            assert_eq!(set(text), read("role", "alice"), "{text}");
        }
        assert_eq!(set("set time zone 'UTC'"), None);
        assert_eq!(classify(b"reset all").change, Some(Box::new(Change::ResetAll)));
        assert_eq!(classify(b"Reset Role").change, Some(Box::new(Change::Reset("role".into()))));
        for (text, name) in [
            ("set work_mem to default", "work_mem"),
            ("SET SESSION My.Var = DEFAULT; -- as it was", "my.var"),
            ("set names default", "client_encoding"),
            ("set names", "client_encoding"),
            ("set time zone local", "timezone"),
            ("set time zone DEFAULT;", "timezone"),
            ("reset time zone", "timezone"),
        ] {
            assert_eq!(classify(text.as_bytes()).change, Some(Box::new(Change::Reset(name.into()))), "{text}");
        }
        assert_eq!(set("set a.b to 'default'"), read("a.b", "'default'"));
        assert_eq!(classify(b"deallocate prepare all").change, Some(Box::new(Change::DeallocateAll)));
        assert_eq!(classify(b"select 1; deallocate all;").change, Some(Box::new(Change::DeallocateAll)));
        assert_eq!(classify(b"savepoint a; deallocate all").change, Some(Box::new(Change::Savepoints)));
        assert_eq!(classify(b"discard all;").change, Some(Box::new(Change::DiscardAll)));
    }

    #[test]
    fn a_mode_of_all_transactions_is_a_parameter() {
        for (mode, name, value) in [
            ("READ ONLY", "default_transaction_read_only", "on"),
            ("read  write;", "default_transaction_read_only", "off"),
            ("not deferrable", "default_transaction_deferrable", "off"),
            ("ISOLATION LEVEL REPEATABLE READ", "default_transaction_isolation", "'repeatable read'"),
            ("isolation level serializable -- a", "default_transaction_isolation", "serializable"),
        ] {
            let sql = format!("SET SESSION CHARACTERISTICS AS TRANSACTION {mode}");
            assert_eq!(set(&sql), Some((name.to_owned(), value.to_owned())), "{sql}");
            assert_eq!(pins(&sql), "", "{sql}");
        }
    }

    #[test]
    fn a_reset_among_statements_that_set_nothing_is_read() {
        let read = |sql: &str| {
            let Traits { pins, change, .. } = classify(sql.as_bytes());
            (pins.to_string(), change.map(|change| *change))
        };
        let all = || Some(Change::ResetAll);
        let of_asyncpg = "SELECT pg_advisory_unlock_all();\nCLOSE ALL;\nUNLISTEN *;\nRESET ALL;";
        assert_eq!(read(of_asyncpg), (String::new(), all()));
        assert_eq!(read("reset all; listen x"), ("listen".into(), all()));
        let of_npgsql = "SET SESSION AUTHORIZATION DEFAULT;RESET ALL;CLOSE ALL;UNLISTEN *;\
                         SELECT pg_advisory_unlock_all();DISCARD SEQUENCES;DISCARD TEMP";
        assert_eq!(read(of_npgsql), ("user".into(), all()));
        assert_eq!(read("show a; set a to default"), (String::new(), Some(Change::Reset("a".into()))));
        for sql in [
            "set a = 1; begin; set b = 2",
            "set a = 1; set role to 'x\\'",
            "set role a; set session authorization default",
            "reset all; select set_config('a', 'b', false) from t",
            "begin; reset all; commit; select 1",
            "begin; reset all; commit prepared 'a'",
            "begin; set a = 1; rollback",
            "begin; set a = 1; savepoint b; commit",
            "reset all; rollback and chain",
            "select '\\'; reset all; --'",
            "select 1; discard all",
        ] {
            let (pins, change) = read(sql);
            assert!(pins.contains("setting") && change.is_none_or(|change| change == Change::Savepoints), "{sql}");
        }
        assert_eq!(read("reset all; savepoint s"), ("setting".into(), Some(Change::Savepoints)));
    }

    #[test]
    fn a_long_text_is_looked_at_once() {
        let parts = [
            "pg_settings ",
            "temp ",
            "/**/temp",
            "--temp\n",
            "';",
            "set_config(",
            "set_config('a',",
            "$a$ ",
            "\\;",
            "declare ",
            "(",
            "/*",
            "reset a;",
            "set a = 1;",
        ];
        for part in parts {
            let _ = classify(part.repeat((1 << 20) / part.len()).as_bytes());
        }
    }

    #[test]
    fn savepoints_are_read_as_postgres_reads_them() {
        let read = |sql: &str| match classify(sql.as_bytes()).change.map(|change| *change) {
            Some(Change::Savepoint(name)) => format!("+{name}"),
            Some(Change::Release(name)) => format!("-{name}"),
            Some(Change::RollbackTo(name)) => format!("<{name}"),
            Some(Change::Savepoints) => "?".to_owned(),
            _ => String::new(),
        };
        let long = "s".repeat(64);
        for (sql, expected) in [
            ("savepoint A", "+a"),
            ("SAVEPOINT \"A\" -- here\n;", "+A"),
            ("savepoint savepoint", "+savepoint"),
            ("release a", "-a"),
            ("release savepoint a", "-a"),
            ("release savepoint", "-savepoint"),
            ("rollback to a", "<a"),
            ("Rollback /* not all */ Work To Savepoint a", "<a"),
            ("rollback transaction to \"a b\"", "<a b"),
            ("rollback", ""),
            ("rollback and chain", ""),
            ("rollback prepared 'to a'", ""),
            ("abort", ""),
            ("savepoint a; select 1", "?"),
            ("select 1; rollback to a", "?"),
            ("savepoint \"a\"\"b\"", "?"),
            ("savepoint a$b", "?"),
            ("rollback to U&\"\\0061\"", "?"),
            (&format!("release {long}"), "?"),
            ("savepoint é", "?"),
        ] {
            assert_eq!(read(sql), expected, "{sql}");
        }
    }

    #[test]
    fn a_name_that_is_given_up_is_read_as_postgres_reads_it() {
        let name = |sql: &str| match *classify(sql.as_bytes()).change? {
            Change::Deallocate(name) => Some(name),
            Change::DeallocateAll => Some("all of them".to_owned()),
            _ => None,
        };
        for (sql, expected) in [
            ("deallocate pdo_stmt_00000001", "pdo_stmt_00000001"),
            ("DEALLOCATE PREPARE A1;", "a1"),
            ("deallocate /* which? */ \"S_1\" -- this\n;", "S_1"),
            ("deallocate prepare", "prepare"),
            ("deallocate all", "all of them"),
            ("deallocate \"all\"", "all"),
            ("deallocate prepare \"prepare\"", "prepare"),
        ] {
            assert_eq!(name(sql).as_deref(), Some(expected), "{sql}");
        }
        for sql in [
            "deallocate",
            "deallocate a b",
            "deallocate a.b",
            "deallocate 1a",
            "deallocate \"a",
            "deallocate \"",
            "deallocate \"\"",
            "deallocate \"a\"\"b\"",
            "deallocate a; select 1",
            "select 1; deallocate a",
        ] {
            assert!(classify(sql.as_bytes()).is_plain(), "{sql}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_survived(sql in proptest::collection::vec(proptest::sample::select(
            b"sSeEtT;'\"$-*/\\ \nlistenwithholdab1=".to_vec()), 0..60), temp in 0..60_usize) {
            let mut sql = sql;
            sql.splice(temp.min(sql.len())..temp.min(sql.len()), *b"temp");
            let _ = classify(&sql);
        }
    }
}
