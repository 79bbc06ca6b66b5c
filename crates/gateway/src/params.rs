//! Session parameters: what each client set, what each server has, and the statement that makes the second the first.
//!
//! A server reports some parameters whenever they change (`GUC_REPORT`); the others are known only from what clients
//! asked for, at start-up or by SET. Both kinds are kept in one immutable [`Settings`] per client, shared by all clients
//! that agree, so that "nothing to do" is one comparison of pointers.

use std::{borrow::Cow, cell::RefCell, collections::HashSet, rc::Rc};

/// A value, as it was given.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// A text, to be quoted.
    Text(Box<[u8]>),
    /// The right-hand side of a SET statement, as it stood there.
    Sql(Box<str>),
}

impl Value {
    /// The bytes of either kind.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text,
            Self::Sql(sql) => sql.as_bytes(),
        }
    }

    /// A text value.
    #[must_use]
    pub fn text(bytes: &[u8]) -> Self {
        Self::Text(bytes.into())
    }
}

/// Names and values, in order of name; names differ by more than case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settings {
    entries: Vec<(Box<str>, Value)>,
}

impl Settings {
    fn position(&self, name: &str) -> Result<usize, usize> {
        self.entries.binary_search_by(|(known, _)| compare_names(known, name))
    }

    /// The value of `name`, in whatever case it is given.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.position(name).ok().map(|at| &self.entries[at].1)
    }

    /// The value of `name`, if it is a text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&[u8]> {
        match self.get(name)? {
            Value::Text(text) => Some(text),
            Value::Sql(_) => None,
        }
    }

    /// Sets `name`; a known name keeps the case it has.
    pub fn set(&mut self, name: &str, value: Value) {
        match self.position(name) {
            Ok(at) => self.entries[at].1 = value,
            Err(at) => self.entries.insert(at, (name.into(), value)),
        }
    }

    /// Takes `name` out.
    pub fn remove(&mut self, name: &str) {
        if let Ok(at) = self.position(name) {
            self.entries.remove(at);
        }
    }

    /// Whether there is no room for `name`: each change of settings copies all of them, so they are few.
    #[must_use]
    pub fn has_no_room_for(&self, name: &str) -> bool {
        self.entries.len() >= SETTINGS_MAX && self.position(name).is_err()
    }

    /// Nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(name, value)| (&**name, value))
    }
}

/// More are not followed. Postgres 18 reports 15 by itself.
const SETTINGS_MAX: usize = 256;

fn compare_names(a: &str, b: &str) -> std::cmp::Ordering {
    let lower = |byte: u8| byte.to_ascii_lowercase();
    a.bytes().map(lower).cmp(b.bytes().map(lower))
}

/// The settings in use on one thread, each once.
#[derive(Default)]
pub struct Interned {
    known: RefCell<HashSet<Rc<Settings>>>,
}

impl Interned {
    /// The shared copy of `settings`.
    pub fn intern(&self, settings: Settings) -> Rc<Settings> {
        let mut known = self.known.borrow_mut();
        if let Some(shared) = known.get(&settings) {
            return shared.clone();
        }
        if known.len() == known.capacity() {
            known.retain(|shared| Rc::strong_count(shared) > 1);
        }
        let shared = Rc::new(settings);
        known.insert(shared.clone());
        shared
    }

    /// `settings` with one change.
    pub fn with(&self, settings: &Settings, name: &str, value: Option<Value>) -> Rc<Settings> {
        let mut changed = settings.clone();
        match value {
            Some(value) => changed.set(name, value),
            None => changed.remove(name),
        }
        self.intern(changed)
    }
}

/// Parameters that a server reports and nobody can set in a session.
const FIXED: [&str; 6] = [
    "in_hot_standby",
    "integer_datetimes",
    "is_superuser",
    "server_encoding",
    "server_version",
    "session_authorization",
];

/// Whether a reported parameter belongs to the session rather than to the server.
#[must_use]
pub fn is_settable(name: &str) -> bool {
    !FIXED.iter().any(|fixed| fixed.eq_ignore_ascii_case(name))
}

const ENCODING: &str = "client_encoding";

/// What one server has.
#[derive(Clone, Debug, Default)]
pub struct ServerSettings {
    /// What the server has reported, all of it.
    pub reported: Settings,
    /// What we or the client at hand set that the server does not report.
    pub silent: Settings,
}

impl ServerSettings {
    /// Takes a ParameterStatus in. Whether there was room for it.
    pub fn report(&mut self, name: &str, value: &[u8]) -> bool {
        let has_room = !self.reported.has_no_room_for(name);
        if has_room {
            self.reported.set(name, Value::text(value));
        }
        has_room
    }

    /// The settings of a client that asked for nothing, on a server that was just started.
    #[must_use]
    pub fn defaults(&self) -> Settings {
        let entries = self.reported.entries.iter().filter(|(name, _)| is_settable(name)).cloned().collect();
        Settings { entries }
    }

    fn has(&self, name: &str, value: &Value) -> bool {
        match self.reported.get(name) {
            Some(reported) => reported == value,
            None => self.silent.get(name) == Some(value),
        }
    }

    /// The queries that give this server the settings of a client; none if it has them. What the client sent has to wait
    /// for their success: one that fails leaves the settings as they were, and may leave a failed transaction.
    ///
    /// All settings are one query in a transaction block of its own. If there is text in it that another encoding would read
    /// otherwise, the client's encoding goes before it.
    ///
    /// A role decides what else may be set: another client's is given up first, and the client's own is taken when all
    /// else is set, or before that.
    #[must_use]
    pub fn adoption(&self, wanted: &Settings, turn: RoleTurn) -> Vec<Vec<u8>> {
        let mut sql = Vec::new();
        for (name, value) in wanted.iter().filter(|(name, value)| !is_role(name) && !self.has(name, value)) {
            write_set(name, value, &mut sql);
        }
        let leftovers = self.silent.iter().filter(|(name, _)| !is_role(name) && wanted.get(name).is_none());
        leftovers.for_each(|(name, _)| write_reset(name, &mut sql));
        let (has, wants) = (self.silent.get(ROLE), wanted.get(ROLE));
        if sql.is_empty() && has == wants {
            return Vec::new();
        }
        if let Some(role) = wants {
            let at = if turn == RoleTurn::First { 0 } else { sql.len() };
            let mut set = Vec::new();
            write_set(ROLE, role, &mut set);
            sql.splice(at..at, set);
        }
        if has.is_some() {
            let mut reset = Vec::new();
            write_reset(ROLE, &mut reset);
            sql.splice(0..0, reset);
        }
        let mut queries = Vec::new();
        if let Some(encoding) = wanted.get(ENCODING).filter(|value| !sql.is_ascii() && !self.has(ENCODING, value)) {
            let mut first = Vec::new();
            write_set(ENCODING, encoding, &mut first);
            queries.push(first);
        }
        let mut block = b"BEGIN;".to_vec();
        block.append(&mut sql);
        block.extend_from_slice(b"COMMIT");
        queries.push(block);
        queries
    }

    /// RESET ALL was done, which leaves the role as it is.
    pub fn reset_all(&mut self) {
        self.silent.entries.retain(|(name, _)| is_role(name));
    }

    /// Nobody knows any more what the server has of that which it does not report.
    pub fn doubt_all(&mut self) {
        // No client has such a value, so that each is set or reset before the next one.
        self.silent.entries.iter_mut().for_each(|(_, value)| *value = Value::Sql("".into()));
    }

    /// The adoption has succeeded: what is not reported is now as the client wanted it.
    pub fn adopted(&mut self, wanted: &Settings) {
        let entries = wanted.entries.iter().filter(|(name, _)| self.reported.get(name).is_none()).cloned().collect();
        self.silent = Settings { entries };
    }

    /// The client's settings once adopted. A value may have been spelled otherwise than the server reports it (`utf8`
    /// for `UTF8`): from here on the server's spelling holds, or the same SET would be sent for ever.
    #[must_use]
    pub fn as_reported(&self, wanted: &Settings) -> Settings {
        let mut settled = wanted.clone();
        for (name, value) in &mut settled.entries {
            if let Some(reported) = self.reported.get(name) {
                value.clone_from(reported);
            }
        }
        settled
    }
}

/// The one parameter that decides which others may be set.
pub const ROLE: &str = "role";

fn is_role(name: &str) -> bool {
    ROLE.eq_ignore_ascii_case(name)
}

/// When a server is given a client's role: it may take away the right to the client's other settings, or give it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoleTurn {
    /// When all else is set.
    #[default]
    Last,
    /// Before all else.
    First,
}

fn write_reset(name: &str, sql: &mut Vec<u8>) {
    sql.extend_from_slice(b"RESET ");
    write_name(name, sql);
    sql.push(b';');
}

fn write_set(name: &str, value: &Value, sql: &mut Vec<u8>) {
    match value {
        // set_config reads a list as a list; SET would read the quoted text as its only element.
        Value::Text(text) if is_list(name) => {
            sql.extend_from_slice(b"SELECT pg_catalog.set_config(");
            write_literal(name.as_bytes(), sql);
            sql.push(b',');
            write_literal(text, sql);
            sql.extend_from_slice(b",false);");
        }
        Value::Text(text) => {
            write_assignment(name, sql);
            write_literal(text, sql);
            sql.push(b';');
        }
        Value::Sql(text) => {
            write_assignment(name, sql);
            sql.extend_from_slice(text.as_bytes());
            sql.push(b';');
        }
    }
}

fn write_assignment(name: &str, sql: &mut Vec<u8>) {
    sql.extend_from_slice(b"SET ");
    write_name(name, sql);
    sql.extend_from_slice(b" TO ");
}

/// Parameters whose value is a list of names that may be quoted (`GUC_LIST_QUOTE`).
fn is_list(name: &str) -> bool {
    ["search_path", "temp_tablespaces", "local_preload_libraries", "session_preload_libraries"]
        .iter()
        .any(|list| list.eq_ignore_ascii_case(name))
}

/// A name as an identifier; the dot of a custom parameter parts two of them.
fn write_name(name: &str, sql: &mut Vec<u8>) {
    for (at, part) in name.split('.').enumerate() {
        if at > 0 {
            sql.push(b'.');
        }
        sql.push(b'"');
        sql.extend_from_slice(part.replace('"', "\"\"").as_bytes());
        sql.push(b'"');
    }
}

fn write_literal(text: &[u8], sql: &mut Vec<u8>) {
    // The escape form reads the same whatever standard_conforming_strings is.
    let escape = text.contains(&b'\\');
    if escape {
        sql.push(b'E');
    }
    sql.push(b'\'');
    for &byte in text {
        if byte == b'\'' || byte == b'\\' {
            sql.push(byte);
        }
        sql.push(byte);
    }
    sql.push(b'\'');
}

/// A client's spelling of an encoding, as the server would report it.
#[must_use]
pub fn canonical_encoding(value: &[u8]) -> Cow<'_, [u8]> {
    let plain: Vec<u8> = value.iter().filter(|byte| byte.is_ascii_alphanumeric()).map(u8::to_ascii_uppercase).collect();
    match plain.as_slice() {
        b"UTF8" | b"UNICODE" => Cow::Borrowed(b"UTF8"),
        b"LATIN1" | b"ISO88591" => Cow::Borrowed(b"LATIN1"),
        b"SQLASCII" => Cow::Borrowed(b"SQL_ASCII"),
        b"WIN1252" | b"WINDOWS1252" => Cow::Borrowed(b"WIN1252"),
        _ => Cow::Borrowed(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(reported: &[(&str, &str)]) -> ServerSettings {
        let mut server = ServerSettings::default();
        for (name, value) in reported {
            server.report(name, value.as_bytes());
        }
        server
    }

    fn adoption(server: &ServerSettings, wanted: &Settings) -> Option<String> {
        let queries = server.adoption(wanted, RoleTurn::Last);
        assert!(queries.len() <= 1);
        queries.into_iter().next().map(|sql| String::from_utf8(sql).unwrap())
    }

    #[test]
    fn text_is_read_in_the_clients_encoding() {
        let server = server(&[("client_encoding", "UTF8"), ("application_name", "")]);
        let mut wanted = server.defaults();
        wanted.set("client_encoding", Value::text(b"LATIN1"));
        wanted.set("application_name", Value::text(b"caf\xe9"));
        let queries = server.adoption(&wanted, RoleTurn::Last);
        assert_eq!(queries[0], b"SET \"client_encoding\" TO 'LATIN1';");
        assert!(queries.len() == 2 && queries[1].starts_with(b"BEGIN;SET \"application_name\" TO 'caf\xe9';"));
    }

    #[test]
    fn equal_settings_need_nothing() {
        let server = server(&[("TimeZone", "UTC"), ("server_version", "18.0")]);
        let wanted = server.defaults();
        assert_eq!(adoption(&server, &wanted), None);
        assert!(wanted.get("server_version").is_none(), "what nobody can set is not wanted");
    }

    #[test]
    fn a_difference_is_set_and_a_leftover_is_reset() {
        let mut server = server(&[("TimeZone", "UTC"), ("search_path", "public")]);
        server.silent.set("work_mem", Value::Sql("'4MB'".into()));
        let mut wanted = server.defaults();
        wanted.set("timezone", Value::text(b"Europe/Paris"));
        wanted.set("search_path", Value::text(b"a, \"b'c\""));
        wanted.set("my.var", Value::Sql("1, 2".into()));
        assert_eq!(
            adoption(&server, &wanted).unwrap(),
            "BEGIN;SET \"my\".\"var\" TO 1, 2;SELECT pg_catalog.set_config('search_path','a, \"b''c\"',false);\
             SET \"TimeZone\" TO 'Europe/Paris';RESET \"work_mem\";COMMIT"
        );
        server.report("TimeZone", b"Europe/Paris");
        server.report("search_path", b"a, \"b'c\"");
        server.adopted(&wanted);
        assert_eq!(adoption(&server, &wanted), None);
    }

    #[test]
    fn a_role_is_given_up_first_and_taken_last_or_first() {
        let mut server = server(&[]);
        server.silent.set("log_duration", Value::text(b"on"));
        server.silent.set("role", Value::text(b"a"));
        let mut wanted = server.defaults();
        let sql = |server: &ServerSettings, wanted: &Settings, turn| {
            server.adoption(wanted, turn).into_iter().next().map(|sql| String::from_utf8(sql).unwrap())
        };
        let none = "BEGIN;RESET \"role\";RESET \"log_duration\";COMMIT";
        assert_eq!(sql(&server, &wanted, RoleTurn::Last).unwrap(), none);
        wanted.set("log_statement", Value::text(b"all"));
        wanted.set("role", Value::text(b"a"));
        let (set, role) = ("SET \"log_statement\" TO 'all';RESET \"log_duration\";", "SET \"role\" TO 'a';");
        let last = format!("BEGIN;RESET \"role\";{set}{role}COMMIT");
        let first = format!("BEGIN;RESET \"role\";{role}{set}COMMIT");
        assert_eq!(sql(&server, &wanted, RoleTurn::Last), Some(last));
        assert_eq!(sql(&server, &wanted, RoleTurn::First), Some(first));
        server.adopted(&wanted);
        assert_eq!(sql(&server, &wanted, RoleTurn::Last), None, "a role alone is no reason");
    }

    #[test]
    fn another_spelling_is_set_once() {
        let mut server = server(&[("client_encoding", "UTF8")]);
        let mut wanted = server.defaults();
        wanted.set("client_encoding", Value::text(b"utf8"));
        assert!(adoption(&server, &wanted).is_some());
        server.adopted(&wanted);
        let settled = server.as_reported(&wanted);
        assert_eq!(adoption(&server, &settled), None);
    }

    #[test]
    fn equal_settings_are_one() {
        let interned = Interned::default();
        let mut settings = Settings::default();
        settings.set("a", Value::text(b"1"));
        let first = interned.intern(settings.clone());
        assert!(Rc::ptr_eq(&first, &interned.intern(settings)));
        assert!(Rc::ptr_eq(&first, &interned.with(&first, "A", Some(Value::text(b"1")))));
        assert!(!Rc::ptr_eq(&first, &interned.with(&first, "a", None)));
    }

    #[test]
    fn literals_survive_quotes_and_backslashes() {
        let mut sql = Vec::new();
        write_literal(b"a'b\\c", &mut sql);
        assert_eq!(sql, b"E'a''b\\\\c'");
    }
}
