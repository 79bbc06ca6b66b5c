//! Classifies a statement by its effects on the session, as far as they follow from its text.
//!
//! In transaction mode the next transaction may run on another server. Settings are applied there again; locks, listeners and
//! temporary tables pin the client to its server; other effects are rejected. A text is classified once: per simple query, or
//! when a statement is prepared. A query without any relevant word costs one pass of a string search.
//!
//! A function that takes an advisory lock internally cannot be detected; see `docs/src/reference/limits.md`.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};

mod lexer;
mod multi_statement;
mod pins;
mod set;
mod set_config;

use crate::lexical::{is_blank, is_name_byte};
use lexer::{Identifier, StatementSplitter, WordLexer};
use multi_statement::tracked;
pub use pins::Pins;
pub use set::is_temporary_path;
use set::{TIME_ZONE, classify_set};
use set_config::{pins_of_set_config, read_set_config_calls};

/// A change of the session's settings, prepared statements or savepoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionChange {
    /// `SET name = value`, with the value as written.
    Set {
        /// Lower case, unquoted.
        name: String,
        /// Everything after `=` or `TO`. `None` if another server may read it differently, because of a backslash or its
        /// encoding.
        value: Option<String>,
    },
    /// `set_config('name', value, false)` in a SELECT without other expressions: a SET with a string value.
    SetConfig {
        /// As written, unquoted.
        name: String,
        /// The new value.
        value: ConfigValue,
    },
    /// Several of these changes in one query.
    Sets(Vec<Self>),
    /// `RESET name`, in lower case, or `SET name TO DEFAULT`.
    Reset(String),
    /// `RESET ALL`.
    ResetAll,
    /// `DISCARD ALL`.
    DiscardAll,
    /// `DEALLOCATE ALL`; settings stay.
    DeallocateAll,
    /// `DEALLOCATE name`, with the name as Postgres reads it; settings stay.
    Deallocate(String),
    /// `SAVEPOINT name`, as Postgres reads it. `ROLLBACK TO` undoes the settings that follow.
    Savepoint(String),
    /// `RELEASE name`.
    Release(String),
    /// `ROLLBACK TO name`; its CommandComplete is that of a ROLLBACK.
    RollbackTo(String),
    /// Savepoint commands among other statements, or with an ambiguous name.
    Savepoints,
}

/// The value argument of `set_config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigValue {
    /// A string literal.
    Text(String),
    /// A parameter of the statement.
    Parameter {
        /// Number, starting at 1.
        number: usize,
        /// Cast to text, so the parameter may have another type.
        is_cast: bool,
    },
    /// Cannot be applied on another server.
    Unknown,
}

impl SessionChange {
    /// Whether the server drops all prepared statements.
    #[must_use]
    pub fn drops_statements(&self) -> bool {
        matches!(self, Self::DiscardAll | Self::DeallocateAll)
    }

    /// Whether a setting returns to its value at login.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        match self {
            Self::Reset(_) | Self::ResetAll | Self::DiscardAll => true,
            Self::Sets(sets) => sets.iter().any(Self::is_reset),
            _ => false,
        }
    }

    /// Whether a call of `set_config` is a part of the change.
    #[must_use]
    pub fn calls_set_config(&self) -> bool {
        match self {
            Self::SetConfig { .. } => true,
            Self::Sets(sets) => sets.iter().any(Self::calls_set_config),
            _ => false,
        }
    }

    /// The name of the parameter, if the change concerns exactly one.
    #[must_use]
    pub fn parameter(&self) -> Option<&str> {
        match self {
            Self::Set { name, .. } | Self::SetConfig { name, .. } | Self::Reset(name) => Some(name),
            _ => None,
        }
    }

    /// Whether the change is a savepoint command, possibly `ROLLBACK TO`.
    #[must_use]
    pub fn is_savepoint_command(&self) -> bool {
        matches!(self, Self::Savepoint(_) | Self::Release(_) | Self::RollbackTo(_) | Self::Savepoints)
    }
}

/// Effects of a statement on its session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatementEffects {
    /// Session state that exists on the current server only.
    pub pins: Pins,
    /// The change, if the text is a single statement, or several whose joint success is visible at the end of the query.
    pub change: Option<Box<SessionChange>>,
    /// Runs code (a procedure or a block) that may change settings which the text does not name.
    pub runs_code: bool,
    /// FETCH and EXECUTE: a cursor or an SQL statement of the session determines the columns, and Postgres does not compare
    /// them with those described before.
    pub has_columns_of_session: bool,
}

impl StatementEffects {
    /// Whether the statement has no effects on the session.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.pins.is_empty() && self.change.is_none() && !self.runs_code
    }
}

/// Classifies the text of a simple query or of a Parse message.
#[must_use]
pub fn classify(sql: &[u8]) -> StatementEffects {
    let mut effects = StatementEffects { pins: function_pins(sql), ..StatementEffects::default() };
    let statements = StatementSplitter::new(sql);
    let single = statements.is_single();
    for statement in statements {
        classify_statement(statement, single, &mut effects);
    }
    if effects.pins.has(Pins::SETTING)
        && let Some(tracked) = if single { set_config_calls(sql) } else { tracked(sql) }
    {
        return tracked;
    }
    effects
}

/// Effects of a SELECT that consists of calls of `set_config`: it changes settings like a SET.
fn set_config_calls(sql: &[u8]) -> Option<StatementEffects> {
    let calls = read_set_config_calls(StatementSplitter::new(sql).next()?)?;
    let mut changes = calls.changes;
    let change = match changes.len() {
        0 => None,
        1 => changes.pop(),
        _ => Some(SessionChange::Sets(changes)),
    };
    Some(StatementEffects { pins: calls.pins, change: change.map(Box::new), ..StatementEffects::default() })
}

/// Returns names and values of the SET statements in a configured text, such as `connect_query`.
#[must_use]
pub fn parse_sets(sql: &[u8]) -> Vec<(String, String)> {
    let set = |statement| match *classify(statement).change? {
        SessionChange::Set { name, value } => Some((name, value?)),
        _ => None,
    };
    StatementSplitter::new(sql).filter_map(set).collect()
}

/// Effects of one statement of several.
fn single_statement_effects(statement: &[u8]) -> StatementEffects {
    let mut effects = StatementEffects { pins: function_pins(statement), ..StatementEffects::default() };
    classify_statement(statement, true, &mut effects);
    if effects.pins.has(Pins::SETTING)
        && let Some(tracked) = set_config_calls(statement)
    {
        return tracked;
    }
    effects
}

/// Effects of a function that is called by oid (FunctionCall message). The oids of built-in functions are stable.
#[must_use]
pub const fn function_call_pins(function: u32) -> Pins {
    match function {
        // set_config
        2078 => Pins::SETTING,
        // pg_advisory_lock and pg_try_advisory_lock, exclusive and shared, with one and with two arguments.
        2880..=2883 | 2886..=2889 => Pins::ADVISORY,
        // pg_replication_origin_session_setup
        6006 => Pins::ORIGIN,
        _ => Pins::from_bits(0),
    }
}

/// Finds function calls and views that leave session state, anywhere in the text.
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
    if !may_match_pattern(sql) {
        return pins;
    }
    let (mut first_update, mut comments_left, mut calls_left) = (None, COMMENTS_MAX, CALLS_MAX);
    for found in SEARCH.find_iter(sql) {
        pins.add(match found.pattern().as_usize() {
            0 if is_transaction_lock(sql, found.start()) => Pins::default(),
            0 => Pins::ADVISORY,
            2 if makes_temporary_table(sql, found.start(), &mut comments_left) => Pins::TEMP,
            2 => Pins::default(),
            // UPDATE of pg_settings works like SET.
            3 if *first_update.get_or_insert_with(|| position(sql, b"update")) > found.start() => Pins::default(),
            4 => Pins::ORIGIN,
            1 if !pins.has(Pins::SETTING) && calls_left > 0 => {
                calls_left -= 1;
                pins_of_set_config(&sql[found.end()..])
            }
            // The limit of calls is reached, or a name has unicode escapes: assume any setting.
            _ => Pins::SETTING,
        });
    }
    pins
}

/// Whether the text can contain any of the patterns: a call needs a parenthesis; the other patterns contain "temp" or
/// "pg_settings". Most queries have neither, which vectorised searches find out.
fn may_match_pattern(sql: &[u8]) -> bool {
    let is_temp = |end: usize| end >= 3 && sql[end - 3..end].eq_ignore_ascii_case(b"tem");
    let is_view = |at: usize| sql.get(at + 1..at + 4).is_some_and(|next| next.eq_ignore_ascii_case(b"g_s"));
    memchr::memchr(b'(', sql).is_some() || memchr::memchr2_iter(b'p', b'P', sql).any(|at| is_temp(at) || is_view(at))
}

/// `pg_advisory_xact_lock` does not contain the pattern; `pg_try_advisory_lock` and `pg_advisory_lock_shared` do.
fn is_transaction_lock(sql: &[u8], at: usize) -> bool {
    ends_with(&sql[..at], b"xact_")
}

/// Whether "temp" at `at` makes a table temporary, as in `INTO TEMP` and `CREATE TEMPORARY`, or names the schema of temporary
/// tables.
fn makes_temporary_table(sql: &[u8], at: usize, comments_left: &mut usize) -> bool {
    let (before, after) = (&sql[at.saturating_sub(LOOK_BACK)..at], &sql[at + b"temp".len()..]);
    if ends_with(before, b"pg_") || ends_with(before, b"pg_toast_") {
        let after = skip_number(after);
        let after = after.strip_prefix(b"\"").unwrap_or(after);
        return matches!(trim_start(after).first(), Some(b'.' | b'/' | b'-'));
    }
    let after = match after.first_chunk::<5>() {
        Some(more) if more.eq_ignore_ascii_case(b"orary") => &after[more.len()..],
        _ => after,
    };
    if after.first().is_some_and(|next| is_word_byte(*next)) || before.last().is_some_and(|last| is_word_byte(*last)) {
        return false;
    }
    follows_create_word(before, comments_left).unwrap_or(at > LOOK_BACK)
}

/// Skips the number in the name of a session's schema of temporary tables: `pg_temp_3`.
fn skip_number(text: &[u8]) -> &[u8] {
    let Some(number) = text.strip_prefix(b"_") else { return text };
    &number[number.iter().take_while(|byte| byte.is_ascii_digit()).count()..]
}

/// Limit of `set_config` calls that are read per text. Each may contain the following ones.
const CALLS_MAX: usize = 64;
/// Limit of comments that are skipped per text. Beyond it, the text counts as temporary.
const COMMENTS_MAX: usize = 1 << 16;

/// Text further before a word than this many bytes is not examined.
const LOOK_BACK: usize = 256;

/// Whether a text ends with a word that creates an object, ignoring blanks and comments. `None` if it contains nothing else.
fn follows_create_word(mut text: &[u8], comments_left: &mut usize) -> Option<bool> {
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
                return Some(follows_create_word_in_line(text, line));
            }
            text = &text[..dashes];
        } else {
            return Some(ends_with_create_word(text));
        }
        let Some(left) = comments_left.checked_sub(1) else { return Some(true) };
        *comments_left = left;
    }
}

/// The same for a line with dashes and quotes, where any pair of dashes may begin the comment.
fn follows_create_word_in_line(text: &[u8], line: usize) -> bool {
    let mut dashes = memchr::memmem::find_iter(&text[line..], b"--");
    ends_with_create_word(text) || dashes.any(|at| ends_with_create_word(trim_end(&text[..line + at])))
}

fn ends_with_create_word(text: &[u8]) -> bool {
    [&b"into"[..], b"create", b"replace", b"local", b"global"].iter().any(|word| ends_with(text, word))
}

fn ends_with(text: &[u8], word: &[u8]) -> bool {
    text.len() >= word.len() && text[text.len() - word.len()..].eq_ignore_ascii_case(word)
}

/// Offset of the first occurrence of a word, or the length of the text.
fn position(text: &[u8], word: &[u8]) -> usize {
    text.windows(word.len()).position(|part| part.eq_ignore_ascii_case(word)).unwrap_or(text.len())
}

const fn is_word_byte(byte: u8) -> bool {
    is_name_byte(byte) || byte == b'"'
}

fn trim_start(text: &[u8]) -> &[u8] {
    &text[text.iter().take_while(|byte| is_blank(**byte)).count()..]
}

fn trim_end(text: &[u8]) -> &[u8] {
    &text[..text.len() - text.iter().rev().take_while(|byte| is_blank(**byte)).count()]
}

/// Offset of the comment at the end of the text.
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

fn classify_statement(statement: &[u8], single: bool, effects: &mut StatementEffects) {
    let mut words = WordLexer::new(statement);
    if !words.may_change_session() {
        return;
    }
    match words.next().as_deref() {
        Some("set") => classify_set(&mut words, single, effects),
        Some("reset") => match words.parameter().as_deref() {
            Some("all") => record_change(SessionChange::ResetAll, single, effects),
            Some("session" | "session_authorization") => effects.pins.add(Pins::USER),
            Some("time") => record_change(SessionChange::Reset(TIME_ZONE.to_owned()), single, effects),
            Some(name) => record_change(SessionChange::Reset(name.to_owned()), single, effects),
            None => {}
        },
        Some("discard") if words.next().as_deref() == Some("all") => {
            record_change(SessionChange::DiscardAll, single, effects);
        }
        Some("deallocate") => classify_deallocate(&mut words, single, effects),
        Some("savepoint") => classify_savepoint(&mut words, SessionChange::Savepoint, single, effects),
        Some("release") => classify_savepoint(&mut words, SessionChange::Release, single, effects),
        Some("rollback") if words.is_to_savepoint() => {
            classify_savepoint(&mut words, SessionChange::RollbackTo, single, effects);
        }
        Some("listen") => effects.pins.add(Pins::LISTEN),
        Some("do") => classify_do_block(statement, effects),
        Some("call") => effects.runs_code = true,
        Some("fetch" | "execute") => effects.has_columns_of_session = true,
        Some("load") => effects.pins.add(Pins::SETTING),
        // PREPARE TRANSACTION ends a transaction and leaves nothing in the session.
        Some("prepare") if words.next().as_deref() != Some("transaction") => effects.pins.add(Pins::PREPARE),
        Some("declare") if words.any_pair("with", "hold") => effects.pins.add(Pins::HOLD),
        Some("create") => {
            let temporary = words.by_ref().take(3).any(|word| word == "temp" || word == "temporary");
            if temporary {
                effects.pins.add(Pins::TEMP);
            }
        }
        _ => {}
    }
}

/// The body of a DO block is a string in any language: assume every command for which it has a keyword.
fn classify_do_block(block: &[u8], effects: &mut StatementEffects) {
    static WORDS: LazyLock<AhoCorasick> = LazyLock::new(|| {
        // A block in a language other than PL/pgSQL is not searched.
        let words = ["listen", "hold", "set", "set_config", "execute", "call", "language"];
        let builder =
            AhoCorasick::builder().ascii_case_insensitive(true).match_kind(MatchKind::LeftmostLongest).build(words);
        builder.expect("a few words make an automaton")
    });
    for found in WORDS.find_iter(block) {
        let is_part = |byte: Option<&u8>| byte.is_some_and(|byte| is_name_byte(*byte) && *byte != b'$');
        if !is_part(block[..found.start()].last()) && !is_part(block.get(found.end())) {
            match found.pattern().as_usize() {
                0 => effects.pins.add(Pins::LISTEN),
                1 => effects.pins.add(Pins::HOLD),
                _ => effects.runs_code = true,
            }
        }
    }
}

fn record_change(change: SessionChange, single: bool, effects: &mut StatementEffects) {
    match change {
        change if single => effects.change = Some(Box::new(change)),
        // Statements prepared later in the text are new, whatever precedes it.
        SessionChange::DeallocateAll => drop(effects.change.get_or_insert_with(|| Box::new(change))),
        // `DEALLOCATE name` among other statements concerns a statement prepared by `PREPARE`.
        SessionChange::Deallocate(_) => {}
        _ => effects.pins.add(Pins::SETTING),
    }
}

fn classify_deallocate(words: &mut WordLexer<'_>, single: bool, effects: &mut StatementEffects) {
    let mut name = words.name();
    if name == Some(Identifier::Word("prepare".to_owned())) {
        // `prepare` may be the name itself.
        name = words.name().or(name);
    }
    match name {
        Some(Identifier::Word(all)) if all == "all" => record_change(SessionChange::DeallocateAll, single, effects),
        Some(Identifier::Word(name) | Identifier::Quoted(name)) if words.next_or_symbol().is_none() => {
            record_change(SessionChange::Deallocate(name), single, effects);
        }
        _ => {}
    }
}

/// The effect depends on earlier and later changes. Postgres compares the first 63 bytes of a name.
fn classify_savepoint(
    words: &mut WordLexer<'_>,
    of: fn(String) -> SessionChange,
    single: bool,
    effects: &mut StatementEffects,
) {
    const NAME_BYTES_MAX: usize = 63;
    let mut name = words.name();
    if name == Some(Identifier::Word("savepoint".to_owned())) {
        // `savepoint` may be the name itself.
        name = words.name().or(name);
    }
    let name = match name {
        Some(Identifier::Word(name) | Identifier::Quoted(name)) => Some(name),
        None => None,
    };
    let is_whole = |name: &String| name.len() <= NAME_BYTES_MAX && !name.contains(char::REPLACEMENT_CHARACTER);
    let read = name.filter(|name| single && is_whole(name) && words.next_or_symbol().is_none());
    effects.change = Some(Box::new(read.map_or(SessionChange::Savepoints, of)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pins(sql: &str) -> String {
        classify(sql.as_bytes()).pins.to_string()
    }

    fn set(sql: &str) -> Option<(String, String)> {
        match *classify(sql.as_bytes()).change? {
            SessionChange::Set { name, value } => Some((name, value?)),
            _ => None,
        }
    }

    #[test]
    fn fetch_and_execute_have_columns_of_the_session() {
        for sql in ["fetch all in c", " FETCH c", "execute p", "/* first */ execute p(1)"] {
            assert!(classify(sql.as_bytes()).has_columns_of_session, "{sql}");
        }
        assert!(!classify(b"select 1").has_columns_of_session);
    }

    #[test]
    fn plain_statements_have_no_effects() {
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
    fn session_state_is_found_anywhere() {
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
    fn statements_are_found_after_misleading_quotes() {
        for sql in [
            // Either line break ends a comment.
            "select 1 -- a\r; listen x",
            "select 1;\u{b}listen x",
            // The dollar signs belong to names or tags.
            "select 1 as a$b$; listen x; select 1 as a$b$",
            "select 1 as é$b$; listen x; select 1 as é$b$",
            "select $é$ ' $é$; listen x; select '1'",
            // Whether a backslash escapes depends on the characters before the quote, the previous line, or the settings.
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
    fn set_value_is_kept_only_if_portable() {
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
        assert_eq!(latin, Some(SessionChange::Set { name: "a.b".into(), value: None }));
        assert_eq!(set("set a.b = 1; (select 2)"), None, "it is not alone");
    }

    #[test]
    fn single_set_is_parsed() {
        let read = |name: &str, value: &str| Some((name.to_owned(), value.to_owned()));
        assert_eq!(set("SET statement_timeout = '5s';"), read("statement_timeout", "'5s'"));
        assert_eq!(set("set session My.Var to 'x', y ;  "), read("my.var", "'x', y"));
        assert_eq!(set("set \"Quoted\" to 1"), read("Quoted", "1"));
        for text in ["set role alice", "set role = alice", "set role to alice", "set session role alice"] {
            assert_eq!(set(text), read("role", "alice"), "{text}");
        }
        for text in ["set schema 's1'", "SET SESSION SCHEMA 's1' ; -- x"] {
            assert_eq!(set(text), read("search_path", "'s1'"), "{text}");
        }
        assert_eq!(set("SET XML OPTION Document;"), read("xmloption", "document"));
        assert_eq!(set("set time zone 'UTC'"), None);
        assert_eq!(classify(b"reset all").change, Some(Box::new(SessionChange::ResetAll)));
        assert_eq!(classify(b"Reset Role").change, Some(Box::new(SessionChange::Reset("role".into()))));
        for (text, name) in [
            ("set work_mem to default", "work_mem"),
            ("SET SESSION My.Var = DEFAULT; -- as it was", "my.var"),
            ("set names default", "client_encoding"),
            ("set names", "client_encoding"),
            ("set time zone local", "timezone"),
            ("set time zone DEFAULT;", "timezone"),
            ("reset time zone", "timezone"),
        ] {
            assert_eq!(classify(text.as_bytes()).change, Some(Box::new(SessionChange::Reset(name.into()))), "{text}");
        }
        assert_eq!(set("set a.b to 'default'"), read("a.b", "'default'"));
        assert_eq!(classify(b"deallocate prepare all").change, Some(Box::new(SessionChange::DeallocateAll)));
        assert_eq!(classify(b"select 1; deallocate all;").change, Some(Box::new(SessionChange::DeallocateAll)));
        assert_eq!(classify(b"savepoint a; deallocate all").change, Some(Box::new(SessionChange::Savepoints)));
        assert_eq!(classify(b"discard all;").change, Some(Box::new(SessionChange::DiscardAll)));
    }

    #[test]
    fn session_characteristics_set_parameters() {
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
    fn reset_among_other_statements_is_tracked() {
        let read = |sql: &str| {
            let StatementEffects { pins, change, .. } = classify(sql.as_bytes());
            (pins.to_string(), change.map(|change| *change))
        };
        let all = || Some(SessionChange::ResetAll);
        let of_asyncpg = "SELECT pg_advisory_unlock_all();\nCLOSE ALL;\nUNLISTEN *;\nRESET ALL;";
        assert_eq!(read(of_asyncpg), (String::new(), all()));
        assert_eq!(read("reset all; listen x"), ("listen".into(), all()));
        let of_npgsql = "SET SESSION AUTHORIZATION DEFAULT;RESET ALL;CLOSE ALL;UNLISTEN *;\
                         SELECT pg_advisory_unlock_all();DISCARD SEQUENCES;DISCARD TEMP";
        assert_eq!(read(of_npgsql), ("user".into(), all()));
        assert_eq!(read("show a; set a to default"), (String::new(), Some(SessionChange::Reset("a".into()))));
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
            assert!(
                pins.contains("setting") && change.is_none_or(|change| change == SessionChange::Savepoints),
                "{sql}"
            );
        }
        assert_eq!(read("reset all; savepoint s"), ("setting".into(), Some(SessionChange::Savepoints)));
    }

    #[test]
    fn long_texts_take_linear_time() {
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
    fn savepoint_names_are_parsed_like_postgres() {
        let read = |sql: &str| match classify(sql.as_bytes()).change.map(|change| *change) {
            Some(SessionChange::Savepoint(name)) => format!("+{name}"),
            Some(SessionChange::Release(name)) => format!("-{name}"),
            Some(SessionChange::RollbackTo(name)) => format!("<{name}"),
            Some(SessionChange::Savepoints) => "?".to_owned(),
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
    fn deallocated_names_are_parsed_like_postgres() {
        let name = |sql: &str| match *classify(sql.as_bytes()).change? {
            SessionChange::Deallocate(name) => Some(name),
            SessionChange::DeallocateAll => Some("all of them".to_owned()),
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
        fn any_text_is_classified(sql in proptest::collection::vec(proptest::sample::select(
            b"sSeEtT;'\"$-*/\\ \nlistenwithholdab1=".to_vec()), 0..60), temp in 0..60_usize) {
            let mut sql = sql;
            sql.splice(temp.min(sql.len())..temp.min(sql.len()), *b"temp");
            let _ = classify(&sql);
        }
    }
}
