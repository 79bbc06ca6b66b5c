//! Session parameters: what each client set, what each server has, and the statement that makes the second the first.
//!
//! A client's [`Settings`] hold what the client itself has set, by its startup packet or by SET, and nothing else: a value that
//! a server has by its configuration may change at any reload, and is not the client's. What was set on a server is compared
//! with what its client has set, parameter by parameter. Settings are immutable and shared by all clients that agree, so that
//! "nothing to do" is one comparison of pointers.
//!
//! A server reports some parameters whenever they change (`GUC_REPORT`). [`ServerSettings`] keeps the value that it reported
//! last, and the value that the server has when no client has set the parameter.

use std::{cell::RefCell, collections::HashSet, rc::Rc};

/// A value, as it was given.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// A text, to be quoted.
    Text(Box<[u8]>),
    /// The right-hand side of a SET statement, as it stood there.
    Sql(Box<str>),
    /// A value that may stand for something else later, as the name of a role that is dropped and created again: it is equal
    /// only for the same client and the same SET, so that it is set anew whenever a server changes its client.
    Owned(Box<Self>, Owner),
}

/// The number of a client, and the number of its SET.
pub type Owner = (u64, u64);

impl Value {
    /// The bytes of either kind.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text,
            Self::Sql(sql) => sql.as_bytes(),
            Self::Owned(value, _) => value.bytes(),
        }
    }

    /// The value without its owner.
    #[must_use]
    pub fn plain(&self) -> &Self {
        match self {
            Self::Owned(value, _) => value,
            value => value,
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
            _ => None,
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

/// Parameters that a server reports and that no SET of their name changes.
const FIXED: [&str; 6] =
    [IN_HOT_STANDBY, "integer_datetimes", "is_superuser", "server_encoding", "server_version", "session_authorization"];

/// Whether a server is a standby.
pub const IN_HOT_STANDBY: &str = "in_hot_standby";

/// The ones that change with SET ROLE and SET SESSION AUTHORIZATION.
const OF_USER: [&str; 2] = ["is_superuser", "session_authorization"];

fn is_among(name: &str, names: &[&str]) -> bool {
    names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Whether a reported parameter belongs to the session rather than to the server.
#[must_use]
pub fn is_settable(name: &str) -> bool {
    !is_among(name, &FIXED)
}

const ENCODING: &str = "client_encoding";

/// What one server has.
#[derive(Clone, Debug, Default)]
pub struct ServerSettings {
    /// All parameters that the server has reported last.
    reported: Settings,
    /// Reported values that hold where no client has set the parameter, as far as they are known.
    own: Settings,
    /// Settings made for the client at hand, or for the one before it.
    set: Settings,
    /// Settings made by `connect_query`, which hold for all clients that set nothing else.
    base: Settings,
    /// Changes of `own` since the last `take_news`.
    news: Settings,
}

impl ServerSettings {
    /// Takes in a ParameterStatus that no client has caused: the server's own value. Whether there was room for it.
    pub fn report_own(&mut self, name: &str, value: &[u8]) -> bool {
        let has_room = self.report(name, value);
        if has_room && self.set.get(name).is_none() {
            self.learn(name);
        } else if has_room && self.set.get(name).is_some_and(|set| *set != Value::text(value)) {
            // No server does that: whatever it is, it is set or reset before the next client.
            self.set.set(name, unknown());
        }
        has_room
    }

    /// Takes in a ParameterStatus of which the cause has yet to be found. Whether there was room for it.
    pub fn report(&mut self, name: &str, value: &[u8]) -> bool {
        let has_room = !self.reported.has_no_room_for(name);
        if has_room {
            self.reported.set(name, Value::text(value));
            if !is_settable(name) && !is_among(name, &OF_USER) {
                self.learn(name);
            }
        }
        has_room
    }

    /// The parameters that the server has reported last.
    #[must_use]
    pub fn reported(&self) -> &Settings {
        &self.reported
    }

    /// The parameters that the server would report to a client that has set nothing.
    #[must_use]
    pub fn own(&self) -> &Settings {
        &self.own
    }

    /// Changes of the server's own values since the last call.
    pub fn take_news(&mut self) -> Settings {
        std::mem::take(&mut self.news)
    }

    /// Whether [`Self::take_news`] would return any change.
    #[inline]
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Takes over values of its own that another server of the pool has told. Whether they are others than before.
    pub fn renew(&mut self, news: &Settings) -> bool {
        let mut is_new = false;
        for (name, value) in news.iter() {
            if self.own.has_no_room_for(name) {
                continue;
            }
            is_new |= self.own.get(name) != Some(value);
            self.own.set(name, value.clone());
        }
        is_new
    }

    /// Takes over the own values of `other` for parameters that are set here at the moment: a server does not report a new value
    /// of its own for these, so that the one known here may be outdated.
    pub fn renew_masked(&mut self, other: &Self) {
        let is_masked = |(name, _): &&(Box<str>, Value)| self.set.get(name).is_some();
        let masked = Settings { entries: other.own.entries.iter().filter(is_masked).cloned().collect() };
        self.renew(&masked);
    }

    /// The reported value of `name` is the server's own.
    fn learn(&mut self, name: &str) {
        let Ok(at) = self.reported.position(name) else { return };
        // A client may spell the name in another case.
        let (name, value) = &self.reported.entries[at];
        if self.base.get(name).is_none() && self.own.get(name) != Some(value) {
            self.own.set(name, value.clone());
            self.news.set(name, value.clone());
        }
    }

    fn learn_all(&mut self) {
        let is_learned = |name: &str| self.set.get(name).is_none() && !is_among(name, &OF_USER);
        let names: Vec<Box<str>> =
            self.reported.iter().filter(|(name, _)| is_learned(name)).map(|(name, _)| name.into()).collect();
        names.iter().for_each(|name| self.learn(name));
    }

    /// `connect_query` was run: what it has set is to hold for all clients, although a RESET or a DISCARD ALL undoes it.
    pub fn note_connect_query(&mut self, before: &Self, sets: Vec<(String, String)>) {
        let is_changed = |name: &str, value: &Value| is_settable(name) && before.reported.get(name) != Some(value);
        let reported = self.reported.iter().filter(|(name, value)| is_changed(name, value));
        let mut base = Settings { entries: reported.map(|(name, value)| (name.into(), value.clone())).collect() };
        for (name, value) in sets.into_iter().filter(|(name, _)| self.reported.get(name).is_none()) {
            base.set(&name, Value::Sql(value.into()));
        }
        self.set = base.clone();
        self.base = base;
        self.own = self.reported.clone();
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
        let is_set = |name: &str, value: &Value| self.set.get(name) == Some(value);
        let of_base = self.base.iter().filter(|(name, _)| wanted.get(name).is_none());
        let missing = wanted.iter().chain(of_base).filter(|(name, value)| !is_role(name) && !is_set(name, value));
        missing.for_each(|(name, value)| write_set(name, value, &mut sql));
        let is_wanted = |name: &str| wanted.get(name).is_some() || self.base.get(name).is_some();
        let leftovers = self.set.iter().filter(|(name, _)| !is_role(name) && !is_wanted(name));
        leftovers.for_each(|(name, _)| write_reset(name, &mut sql));
        let role_of = |settings: &Settings| settings.get(ROLE).cloned();
        let (has, wants) = (role_of(&self.set), role_of(wanted).or_else(|| role_of(&self.base)));
        if sql.is_empty() && has == wants {
            return Vec::new();
        }
        if let Some(role) = &wants {
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
        if let Some(encoding) = wanted.get(ENCODING).filter(|value| !sql.is_ascii() && !is_set(ENCODING, value)) {
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

    /// The adoption has succeeded. What the server has of the client's settings is as it spells them (`UTF8` for `utf8`), and
    /// what it reports of all others is its own.
    ///
    /// Returns the client's settings in that spelling: with another one the same SET would be sent for ever.
    #[must_use]
    pub fn adopted(&mut self, wanted: &Settings) -> Settings {
        let mut settled = wanted.clone();
        for (name, value) in &mut settled.entries {
            if let Some(reported) = self.reported.get(name) {
                value.clone_from(reported);
            }
        }
        self.set = self.base.clone();
        settled.iter().for_each(|(name, value)| self.set.set(name, value.clone()));
        self.learn_all();
        settled
    }

    /// Some client has left something on this server, or `connect_query` has.
    #[must_use]
    pub fn has_leftovers(&self) -> bool {
        !self.set.is_empty()
    }

    /// The client at hand has set `name`.
    pub fn set(&mut self, name: &str, value: Value) {
        self.set.set(name, value);
    }

    /// The client at hand has reset `name`: what the server reports of it from here on is its own value.
    pub fn reset(&mut self, name: &str) {
        self.set.remove(name);
        if is_settable(name) && self.base.get(name).is_none() {
            self.own.remove(name);
        }
    }

    /// The server was reset by RESET ALL, and has reported what it has now.
    pub fn note_reset_all(&mut self) {
        self.reset_all();
        self.learn_all();
    }

    /// The client at hand has done a RESET ALL, which leaves the role as it is. Returns what was reset.
    pub fn reset_all(&mut self) -> Vec<Box<str>> {
        let names: Vec<Box<str>> =
            self.set.iter().filter(|(name, _)| !is_role(name)).map(|(name, _)| name.into()).collect();
        names.iter().for_each(|name| self.reset(name));
        names
    }

    /// The role that was set.
    #[must_use]
    pub fn role(&self) -> Option<&Value> {
        self.set.get(ROLE)
    }

    /// What was set for the client is gone, its role too, and the server has reported what it has now.
    pub fn note_discard(&mut self) {
        self.set = Settings::default();
        self.learn_all();
        // Of the user too, as it is that of the login again.
        OF_USER.iter().for_each(|name| self.learn(name));
    }

    /// Nobody knows any more what the server has of what was set, or of what it has reported since.
    pub fn doubt_all(&mut self) {
        self.doubt_reports();
        self.set.entries.iter_mut().for_each(|(_, value)| *value = unknown());
    }

    /// Whatever is reported otherwise than it should be was set by somebody: it is reset before the next client.
    pub fn doubt_reports(&mut self) {
        let is_strange = |name: &str| !self.is_as_known(name);
        let names = self.reported.iter().map(|(name, _)| name).filter(|name| is_strange(name));
        let strange: Vec<Box<str>> = names.map(Into::into).collect();
        strange.iter().for_each(|name| self.set.set(name, unknown()));
    }

    /// Whether what the server reports of a parameter is what was set, or its own value where nothing was set.
    #[must_use]
    pub fn is_as_known(&self, name: &str) -> bool {
        let Some(reported) = self.reported.get(name).filter(|_| is_settable(name)) else { return true };
        let has_yet_to_be_set = self.set.get(name).is_none() && self.base.get(name).is_some();
        let known = self.set.get(name).or_else(|| self.own.get(name));
        has_yet_to_be_set || known == Some(reported)
    }

    /// A parameter that nothing was set of is reported with the server's own value.
    pub fn learn_unless_set(&mut self, name: &str) {
        if self.set.get(name).is_none() {
            self.learn(name);
        }
    }

    /// Whether the server's own value of a parameter has yet to be reported, behind a RESET.
    #[must_use]
    pub fn awaits_own(&self, name: &str) -> bool {
        self.set.get(name).is_none() && self.own.get(name).is_none()
    }
}

/// A value that no client has, so that its parameter is set or reset before the next one.
fn unknown() -> Value {
    Value::Sql("".into())
}

/// RESET of each of these.
#[must_use]
pub fn resets<'n>(names: impl Iterator<Item = &'n str>) -> Vec<u8> {
    let mut sql = Vec::new();
    names.for_each(|name| write_reset(name, &mut sql));
    sql
}

/// The one parameter that decides which others may be set.
pub const ROLE: &str = "role";

/// Whether a parameter is the role.
#[must_use]
pub fn is_role(name: &str) -> bool {
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
        Value::Owned(value, _) => write_set(name, value, sql),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_values_behind_a_set_are_those_of_other_servers() {
        let (mut server, mut other) = (ServerSettings::default(), ServerSettings::default());
        for (name, value) in [("DateStyle", "ISO, MDY"), ("TimeZone", "UTC")] {
            server.report_own(name, value.as_bytes());
        }
        server.set("DateStyle", Value::text(b"SQL, DMY"));
        for (name, value) in [("DateStyle", "German, DMY"), ("TimeZone", "Europe/Paris")] {
            other.report_own(name, value.as_bytes());
        }
        server.renew_masked(&other);
        assert_eq!(server.own().text("DateStyle"), Some(&b"German, DMY"[..]));
        assert_eq!(server.own().text("TimeZone"), Some(&b"UTC"[..]), "the server would have reported a change");
    }

    /// A server that has just been connected.
    fn server(reported: &[(&str, &str)]) -> ServerSettings {
        let mut server = ServerSettings::default();
        for (name, value) in reported {
            server.report_own(name, value.as_bytes());
        }
        server.take_news();
        server
    }

    fn settings(entries: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::default();
        entries.iter().for_each(|(name, value)| settings.set(name, Value::text(value.as_bytes())));
        settings
    }

    fn sql(server: &ServerSettings, wanted: &Settings, turn: RoleTurn) -> Option<String> {
        let queries = server.adoption(wanted, turn);
        assert!(queries.len() <= 1);
        queries.into_iter().next().map(|sql| String::from_utf8(sql).unwrap())
    }

    fn adoption(server: &ServerSettings, wanted: &Settings) -> Option<String> {
        sql(server, wanted, RoleTurn::Last)
    }

    #[test]
    fn text_is_read_in_the_clients_encoding() {
        let server = server(&[("client_encoding", "UTF8"), ("application_name", "")]);
        let mut wanted = settings(&[("client_encoding", "LATIN1")]);
        wanted.set("application_name", Value::text(b"caf\xe9"));
        let queries = server.adoption(&wanted, RoleTurn::Last);
        assert_eq!(queries[0], b"SET \"client_encoding\" TO 'LATIN1';");
        assert!(queries.len() == 2 && queries[1].starts_with(b"BEGIN;SET \"application_name\" TO 'caf\xe9';"));
    }

    #[test]
    fn client_without_settings_leaves_the_servers_own() {
        let mut server = server(&[("TimeZone", "UTC"), ("server_version", "18.0")]);
        assert_eq!(adoption(&server, &Settings::default()), None);
        server.report_own("TimeZone", b"Asia/Tokyo");
        assert_eq!(adoption(&server, &Settings::default()), None);
        assert_eq!(server.take_news(), settings(&[("TimeZone", "Asia/Tokyo")]));
        assert!(!server.has_news());
    }

    #[test]
    fn value_equal_to_the_servers_own_is_set_too() {
        let mut server = server(&[("TimeZone", "UTC")]);
        let wanted = settings(&[("TimeZone", "UTC")]);
        assert!(adoption(&server, &wanted).is_some(), "the server's own may change at any reload");
        let settled = server.adopted(&wanted);
        assert_eq!(adoption(&server, &settled), None);
        assert_eq!(adoption(&server, &Settings::default()).unwrap(), "BEGIN;RESET \"TimeZone\";COMMIT");
    }

    #[test]
    fn a_difference_is_set_and_a_leftover_is_reset() {
        let mut server = server(&[("TimeZone", "UTC"), ("search_path", "public")]);
        server.set("work_mem", Value::Sql("'4MB'".into()));
        let mut wanted = settings(&[("timezone", "Europe/Paris"), ("search_path", "a, \"b'c\"")]);
        wanted.set("my.var", Value::Sql("1, 2".into()));
        assert_eq!(
            adoption(&server, &wanted).unwrap(),
            "BEGIN;SET \"my\".\"var\" TO 1, 2;SELECT pg_catalog.set_config('search_path','a, \"b''c\"',false);\
             SET \"timezone\" TO 'Europe/Paris';RESET \"work_mem\";COMMIT"
        );
        server.report("TimeZone", b"Europe/Paris");
        server.report("search_path", b"a, \"b'c\"");
        let settled = server.adopted(&wanted);
        assert_eq!(adoption(&server, &settled), None);
        assert!(!server.has_news(), "what a client has set is no news of the server");
    }

    #[test]
    fn a_role_is_given_up_first_and_taken_last_or_first() {
        let mut server = server(&[]);
        server.set("log_duration", Value::text(b"on"));
        server.set("role", Value::text(b"a"));
        let mut wanted = Settings::default();
        let none = "BEGIN;RESET \"role\";RESET \"log_duration\";COMMIT";
        assert_eq!(sql(&server, &wanted, RoleTurn::Last).unwrap(), none);
        wanted.set("log_statement", Value::text(b"all"));
        wanted.set("role", Value::text(b"a"));
        let (set, role) = ("SET \"log_statement\" TO 'all';RESET \"log_duration\";", "SET \"role\" TO 'a';");
        let last = format!("BEGIN;RESET \"role\";{set}{role}COMMIT");
        let first = format!("BEGIN;RESET \"role\";{role}{set}COMMIT");
        assert_eq!(sql(&server, &wanted, RoleTurn::Last), Some(last));
        assert_eq!(sql(&server, &wanted, RoleTurn::First), Some(first));
        let settled = server.adopted(&wanted);
        assert_eq!(sql(&server, &settled, RoleTurn::Last), None, "a role alone is no reason");
    }

    #[test]
    fn role_of_another_client_is_set_anew() {
        let owned = |client: u64, number: u64| {
            let mut wanted = Settings::default();
            wanted.set("role", Value::Owned(Box::new(Value::text(b"a")), (client, number)));
            wanted
        };
        let mut server = server(&[]);
        let settled = server.adopted(&owned(1, 1));
        assert_eq!(adoption(&server, &settled), None);
        for other in [owned(2, 1), owned(1, 2)] {
            assert_eq!(adoption(&server, &other).unwrap(), "BEGIN;RESET \"role\";SET \"role\" TO 'a';COMMIT");
        }
    }

    #[test]
    fn another_spelling_is_set_once() {
        let mut server = server(&[("client_encoding", "UTF8")]);
        let wanted = settings(&[("client_encoding", "utf8")]);
        let settled = server.adopted(&wanted);
        assert_eq!(settled, settings(&[("client_encoding", "UTF8")]));
        assert_eq!(adoption(&server, &settled), None);
    }

    #[test]
    fn strange_report_is_reset_before_the_next_client() {
        let mut server = server(&[("TimeZone", "UTC")]);
        server.report("TimeZone", b"Asia/Tokyo");
        assert!(!server.is_as_known("TimeZone"));
        server.doubt_reports();
        assert_eq!(adoption(&server, &Settings::default()).unwrap(), "BEGIN;RESET \"TimeZone\";COMMIT");
        server.report("TimeZone", b"UTC");
        let _ = server.adopted(&Settings::default());
        assert!(server.is_as_known("TimeZone") && !server.has_news());
    }

    #[test]
    fn own_value_is_learned_behind_a_reset() {
        let mut server = server(&[("TimeZone", "UTC")]);
        server.report("TimeZone", b"Asia/Tokyo");
        server.set("TimeZone", Value::text(b"Asia/Tokyo"));
        server.reset("timezone");
        assert!(server.awaits_own("TimeZone"));
        server.report("TimeZone", b"Europe/Paris");
        server.learn_unless_set("timezone");
        assert_eq!(server.take_news(), settings(&[("TimeZone", "Europe/Paris")]));
    }

    #[test]
    fn connect_query_holds_for_those_who_set_nothing() {
        let before = server(&[("TimeZone", "UTC")]);
        let mut server = before.clone();
        server.report_own("TimeZone", b"Asia/Tokyo");
        server.note_connect_query(&before, vec![("work_mem".to_owned(), "'7MB'".to_owned())]);
        assert_eq!(adoption(&server, &Settings::default()), None);
        server.note_discard();
        let again = "BEGIN;SET \"TimeZone\" TO 'Asia/Tokyo';SET \"work_mem\" TO '7MB';COMMIT";
        assert_eq!(adoption(&server, &Settings::default()).unwrap(), again);
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
