//! Run-time parameters: what each client has set, what each server connection has, and the queries that synchronise them.
//!
//! [`Settings`] of a client contain what the client has set itself, in its startup packet or by SET. Values from the
//! configuration of a server are not a part of them, because any reload may change them. The gateway compares a server's settings
//! with those of its next client, parameter by parameter. Settings are immutable and shared by all clients with equal settings,
//! so the common case is one pointer comparison.
//!
//! A server reports some parameters whenever they change (`GUC_REPORT`). [`ServerSettings`] stores the last reported value, and
//! the default: the value that the server has while no client sets the parameter.

use std::{cell::RefCell, collections::HashSet, rc::Rc};

/// Value of a parameter, as the client gave it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ParameterValue {
    /// A string, quoted when it is written into a statement.
    Text(Box<[u8]>),
    /// The right-hand side of a SET statement, as written.
    Sql(Box<str>),
    /// A value whose meaning may change, such as the name of a role that is dropped and created again. Equal only for the same
    /// client and the same SET, so it is set again whenever the server changes its client.
    Owned(Box<Self>, SettingOwner),
}

/// Id of the client, and number of its SET.
pub type SettingOwner = (u64, u64);

impl ParameterValue {
    /// The bytes of the value.
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

    /// Creates a string value.
    #[must_use]
    pub fn text(bytes: &[u8]) -> Self {
        Self::Text(bytes.into())
    }
}

/// Names and values in order of name. Names are compared without case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settings {
    entries: Vec<(Box<str>, ParameterValue)>,
}

impl Settings {
    fn position(&self, name: &str) -> Result<usize, usize> {
        self.entries.binary_search_by(|(known, _)| compare_names(known, name))
    }

    /// Returns the value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&ParameterValue> {
        self.position(name).ok().map(|at| &self.entries[at].1)
    }

    /// Returns the value of `name` if it is a string.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&[u8]> {
        match self.get(name)? {
            ParameterValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Sets `name`. An existing name keeps its case.
    pub fn set(&mut self, name: &str, value: ParameterValue) {
        match self.position(name) {
            Ok(at) => self.entries[at].1 = value,
            Err(at) => self.entries.insert(at, (name.into(), value)),
        }
    }

    /// Removes `name`.
    pub fn remove(&mut self, name: &str) {
        if let Ok(at) = self.position(name) {
            self.entries.remove(at);
        }
    }

    /// Whether the limit of settings is reached and `name` is not among them. The number is small, because each change copies all
    /// settings.
    #[must_use]
    pub fn has_no_room_for(&self, name: &str) -> bool {
        self.entries.len() >= SETTINGS_MAX && self.position(name).is_err()
    }

    /// Whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Iterates over names and values in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ParameterValue)> {
        self.entries.iter().map(|(name, value)| (&**name, value))
    }
}

/// Limit of settings per client or server. Postgres 18 reports 15 parameters.
const SETTINGS_MAX: usize = 256;

fn compare_names(a: &str, b: &str) -> std::cmp::Ordering {
    let lower = |byte: u8| byte.to_ascii_lowercase();
    a.bytes().map(lower).cmp(b.bytes().map(lower))
}

/// Stores each distinct [`Settings`] of a thread once.
#[derive(Default)]
pub struct SettingsInterner {
    known: RefCell<HashSet<Rc<Settings>>>,
}

impl SettingsInterner {
    /// Returns the shared copy of `settings`.
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

    /// Returns `settings` with one change.
    pub fn with(&self, settings: &Settings, name: &str, value: Option<ParameterValue>) -> Rc<Settings> {
        let mut changed = settings.clone();
        match value {
            Some(value) => changed.set(name, value),
            None => changed.remove(name),
        }
        self.intern(changed)
    }
}

/// Parameters that a server reports and that SET does not change.
const FIXED: [&str; 6] =
    [IN_HOT_STANDBY, "integer_datetimes", "is_superuser", "server_encoding", "server_version", "session_authorization"];

/// Whether the server is a standby.
pub const IN_HOT_STANDBY: &str = "in_hot_standby";

/// Parameters that change with SET ROLE and SET SESSION AUTHORIZATION.
const USER_DEPENDENT: [&str; 2] = ["is_superuser", "session_authorization"];

fn is_among(name: &str, names: &[&str]) -> bool {
    names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Whether SET can change a reported parameter.
#[must_use]
pub fn is_settable(name: &str) -> bool {
    !is_among(name, &FIXED)
}

const ENCODING: &str = "client_encoding";

/// Parameters of one server connection.
#[derive(Clone, Debug, Default)]
pub struct ServerSettings {
    /// Last reported values.
    reported: Settings,
    /// Reported values of parameters that no client has set, as far as known.
    defaults: Settings,
    /// Settings of the current client, or of the last one.
    set: Settings,
    /// Settings made by `connect_query`, which apply to all clients that do not set the parameter.
    base: Settings,
    /// Changes of `defaults` since the last `take_default_changes`.
    default_changes: Settings,
}

impl ServerSettings {
    /// Records a ParameterStatus that no client has caused, so that its value is the server's default. Returns whether there was
    /// room for it.
    pub fn report_default(&mut self, name: &str, value: &[u8]) -> bool {
        let has_room = self.report(name, value);
        if has_room && self.set.get(name).is_none() {
            self.set_default_from_report(name);
        } else if has_room && self.set.get(name).is_some_and(|set| *set != ParameterValue::text(value)) {
            // Unexpected: the parameter is set or reset before the next client.
            self.set.set(name, unknown());
        }
        has_room
    }

    /// Records a ParameterStatus with an unknown cause. Returns whether there was room for it.
    pub fn report(&mut self, name: &str, value: &[u8]) -> bool {
        let has_room = !self.reported.has_no_room_for(name);
        if has_room {
            self.reported.set(name, ParameterValue::text(value));
            if !is_settable(name) && !is_among(name, &USER_DEPENDENT) {
                self.set_default_from_report(name);
            }
        }
        has_room
    }

    /// Reported values, defaults, values of the current client, and values of `connect_query`: the state for another process.
    #[must_use]
    pub fn parts(&self) -> [&Settings; 4] {
        [&self.reported, &self.defaults, &self.set, &self.base]
    }

    /// Adopts the state of [`Self::parts`].
    #[must_use]
    pub fn from_parts([reported, defaults, set, base]: [Settings; 4]) -> Self {
        Self { reported, defaults, set, base, default_changes: Settings::default() }
    }

    /// The last reported values.
    #[must_use]
    pub fn reported(&self) -> &Settings {
        &self.reported
    }

    /// The values that the server reports to a client without settings.
    #[must_use]
    pub fn defaults(&self) -> &Settings {
        &self.defaults
    }

    /// Returns the changes of defaults since the last call.
    pub fn take_default_changes(&mut self) -> Settings {
        std::mem::take(&mut self.default_changes)
    }

    /// Whether [`Self::take_default_changes`] would return any change.
    #[inline]
    #[must_use]
    pub fn has_default_changes(&self) -> bool {
        !self.default_changes.is_empty()
    }

    /// Applies changes of defaults that another server of the pool reported. Returns whether any value is new.
    pub fn update_defaults(&mut self, default_changes: &Settings) -> bool {
        let mut is_new = false;
        for (name, value) in default_changes.iter() {
            if self.defaults.has_no_room_for(name) {
                continue;
            }
            is_new |= self.defaults.get(name) != Some(value);
            self.defaults.set(name, value.clone());
        }
        is_new
    }

    /// Copies defaults of `other` for parameters that are set here. A server does not report a new default of a parameter that is
    /// set, so the stored one may be outdated.
    pub fn update_masked_defaults(&mut self, other: &Self) {
        let is_masked = |(name, _): &&(Box<str>, ParameterValue)| self.set.get(name).is_some();
        let masked = Settings { entries: other.defaults.entries.iter().filter(is_masked).cloned().collect() };
        self.update_defaults(&masked);
    }

    /// Stores the reported value of `name` as its default.
    fn set_default_from_report(&mut self, name: &str) {
        let Ok(at) = self.reported.position(name) else { return };
        // A client may write the name in another case.
        let (name, value) = &self.reported.entries[at];
        if self.base.get(name).is_none() && self.defaults.get(name) != Some(value) {
            self.defaults.set(name, value.clone());
            self.default_changes.set(name, value.clone());
        }
    }

    fn set_all_defaults_from_reports(&mut self) {
        let is_learned = |name: &str| self.set.get(name).is_none() && !is_among(name, &USER_DEPENDENT);
        let names: Vec<Box<str>> =
            self.reported.iter().filter(|(name, _)| is_learned(name)).map(|(name, _)| name.into()).collect();
        names.iter().for_each(|name| self.set_default_from_report(name));
    }

    /// Records what `connect_query` has set. It applies to all clients, although RESET and DISCARD ALL undo it.
    pub fn record_connect_query(&mut self, before: &Self, sets: Vec<(String, String)>) {
        let is_changed =
            |name: &str, value: &ParameterValue| is_settable(name) && before.reported.get(name) != Some(value);
        let reported = self.reported.iter().filter(|(name, value)| is_changed(name, value));
        let mut base = Settings { entries: reported.map(|(name, value)| (name.into(), value.clone())).collect() };
        for (name, value) in sets.into_iter().filter(|(name, _)| self.reported.get(name).is_none()) {
            base.set(&name, ParameterValue::Sql(value.into()));
        }
        self.set = base.clone();
        self.base = base;
        self.defaults = self.reported.clone();
    }

    /// Returns the queries that give this server the settings of a client; none if it has them. Messages of the client wait until
    /// the queries succeed. A failed query leaves the settings unchanged, and possibly a failed transaction.
    ///
    /// All settings are one query in an explicit transaction block. If its text depends on the encoding, a query that sets
    /// `client_encoding` precedes it.
    ///
    /// A role decides what else may be set: the role of another client is reset first, and the role of this client is set last or
    /// first, depending on `order`.
    #[must_use]
    pub fn sync_queries(&self, target: &Settings, order: RoleOrder) -> Vec<Vec<u8>> {
        let mut sql = Vec::new();
        let is_set = |name: &str, value: &ParameterValue| self.set.get(name) == Some(value);
        let of_base = self.base.iter().filter(|(name, _)| target.get(name).is_none());
        let missing = target.iter().chain(of_base).filter(|(name, value)| !is_role(name) && !is_set(name, value));
        missing.for_each(|(name, value)| write_set(name, value, &mut sql));
        let is_target = |name: &str| target.get(name).is_some() || self.base.get(name).is_some();
        let leftovers = self.set.iter().filter(|(name, _)| !is_role(name) && !is_target(name));
        leftovers.for_each(|(name, _)| write_reset(name, &mut sql));
        let role_of = |settings: &Settings| settings.get(ROLE).cloned();
        let (has, target_role) = (role_of(&self.set), role_of(target).or_else(|| role_of(&self.base)));
        if sql.is_empty() && has == target_role {
            return Vec::new();
        }
        if let Some(role) = &target_role {
            let at = if order == RoleOrder::First { 0 } else { sql.len() };
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
        if let Some(encoding) = target.get(ENCODING).filter(|value| !sql.is_ascii() && !is_set(ENCODING, value)) {
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

    /// Ends a successful synchronisation. The server spells values of the client's settings in its own way (`UTF8` for `utf8`),
    /// and its reports of all other parameters are defaults.
    ///
    /// Returns the client's settings in that spelling. With another spelling, the same SET would be sent again and again.
    #[must_use]
    pub fn finish_sync(&mut self, target: &Settings) -> Settings {
        let mut normalized = target.clone();
        for (name, value) in &mut normalized.entries {
            if let Some(reported) = self.reported.get(name) {
                value.clone_from(reported);
            }
        }
        self.set = self.base.clone();
        normalized.iter().for_each(|(name, value)| self.set.set(name, value.clone()));
        self.set_all_defaults_from_reports();
        normalized
    }

    /// Whether a client or `connect_query` has set anything on this server.
    #[must_use]
    pub fn has_client_settings(&self) -> bool {
        !self.set.is_empty()
    }

    /// Records that the current client has set `name`.
    pub fn set(&mut self, name: &str, value: ParameterValue) {
        self.set.set(name, value);
    }

    /// Records that the current client has reset `name`. From here on, the server reports the default.
    pub fn reset(&mut self, name: &str) {
        self.set.remove(name);
        if is_settable(name) && self.base.get(name).is_none() {
            self.defaults.remove(name);
        }
    }

    /// Records a completed RESET ALL of the gateway; the server has reported its values.
    pub fn finish_reset_all(&mut self) {
        self.reset_all();
        self.set_all_defaults_from_reports();
    }

    /// Records a RESET ALL of the current client, which does not reset the role. Returns the names of the reset parameters.
    pub fn reset_all(&mut self) -> Vec<Box<str>> {
        let names: Vec<Box<str>> =
            self.set.iter().filter(|(name, _)| !is_role(name)).map(|(name, _)| name.into()).collect();
        names.iter().for_each(|name| self.reset(name));
        names
    }

    /// The role that is set.
    #[must_use]
    pub fn role(&self) -> Option<&ParameterValue> {
        self.set.get(ROLE)
    }

    /// Records a completed DISCARD ALL: all settings and the role are reset, and the server has reported its values.
    pub fn discard_all(&mut self) {
        self.set = Settings::default();
        self.set_all_defaults_from_reports();
        // The session user is that of the login again.
        USER_DEPENDENT.iter().for_each(|name| self.set_default_from_report(name));
    }

    /// Marks all settings as unknown, including those that the server has reported since.
    pub fn mark_all_unknown(&mut self) {
        self.mark_unexpected_reports();
        self.set.entries.iter_mut().for_each(|(_, value)| *value = unknown());
    }

    /// Marks parameters with unexpected reported values as unknown. They are reset before the next client.
    pub fn mark_unexpected_reports(&mut self) {
        let is_strange = |name: &str| !self.is_as_expected(name);
        let names = self.reported.iter().map(|(name, _)| name).filter(|name| is_strange(name));
        let strange: Vec<Box<str>> = names.map(Into::into).collect();
        strange.iter().for_each(|name| self.set.set(name, unknown()));
    }

    /// Whether the reported value of a parameter equals the set value, or the default if none was set.
    #[must_use]
    pub fn is_as_expected(&self, name: &str) -> bool {
        let Some(reported) = self.reported.get(name).filter(|_| is_settable(name)) else { return true };
        let has_yet_to_be_set = self.set.get(name).is_none() && self.base.get(name).is_some();
        let known = self.set.get(name).or_else(|| self.defaults.get(name));
        has_yet_to_be_set || known == Some(reported)
    }

    /// Stores the reported value of a parameter as its default, unless the parameter is set.
    pub fn update_default_unless_set(&mut self, name: &str) {
        if self.set.get(name).is_none() {
            self.set_default_from_report(name);
        }
    }

    /// Whether the default of a parameter has yet to be reported, after a RESET.
    #[must_use]
    pub fn is_default_unknown(&self, name: &str) -> bool {
        self.set.get(name).is_none() && self.defaults.get(name).is_none()
    }
}

/// A value that equals no client's value, so that the parameter is set or reset before the next client.
fn unknown() -> ParameterValue {
    ParameterValue::Sql("".into())
}

/// Returns a RESET statement for each name.
#[must_use]
pub fn reset_sql<'n>(names: impl Iterator<Item = &'n str>) -> Vec<u8> {
    let mut sql = Vec::new();
    names.for_each(|name| write_reset(name, &mut sql));
    sql
}

/// The parameter that decides which other parameters may be set.
pub const ROLE: &str = "role";

/// Whether a parameter is the role.
#[must_use]
pub fn is_role(name: &str) -> bool {
    ROLE.eq_ignore_ascii_case(name)
}

/// When the role of a client is set: a role may remove the right to make other settings, or grant it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoleOrder {
    /// After all other settings.
    #[default]
    Last,
    /// Before all other settings.
    First,
}

fn write_reset(name: &str, sql: &mut Vec<u8>) {
    sql.extend_from_slice(b"RESET ");
    write_name(name, sql);
    sql.push(b';');
}

fn write_set(name: &str, value: &ParameterValue, sql: &mut Vec<u8>) {
    match value {
        ParameterValue::Owned(value, _) => write_set(name, value, sql),
        // set_config parses a list; SET would read the quoted text as the only element.
        ParameterValue::Text(text) if is_list(name) => {
            sql.extend_from_slice(b"SELECT pg_catalog.set_config(");
            write_literal(name.as_bytes(), sql);
            sql.push(b',');
            write_literal(text, sql);
            sql.extend_from_slice(b",false);");
        }
        ParameterValue::Text(text) => {
            write_assignment(name, sql);
            write_literal(text, sql);
            sql.push(b';');
        }
        ParameterValue::Sql(text) => {
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

/// Parameters whose value is a list of quoted names (`GUC_LIST_QUOTE`).
fn is_list(name: &str) -> bool {
    ["search_path", "temp_tablespaces", "local_preload_libraries", "session_preload_libraries"]
        .iter()
        .any(|list| list.eq_ignore_ascii_case(name))
}

/// Writes a name as an identifier. The dot in the name of a custom parameter separates two identifiers.
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
    // Escape strings mean the same for both values of standard_conforming_strings.
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
    fn masked_defaults_come_from_other_servers() {
        let (mut server, mut other) = (ServerSettings::default(), ServerSettings::default());
        for (name, value) in [("DateStyle", "ISO, MDY"), ("TimeZone", "UTC")] {
            server.report_default(name, value.as_bytes());
        }
        server.set("DateStyle", ParameterValue::text(b"SQL, DMY"));
        for (name, value) in [("DateStyle", "German, DMY"), ("TimeZone", "Europe/Paris")] {
            other.report_default(name, value.as_bytes());
        }
        server.update_masked_defaults(&other);
        assert_eq!(server.defaults().text("DateStyle"), Some(&b"German, DMY"[..]));
        assert_eq!(server.defaults().text("TimeZone"), Some(&b"UTC"[..]), "the server would have reported a change");
    }

    /// A server right after its login.
    fn server(reported: &[(&str, &str)]) -> ServerSettings {
        let mut server = ServerSettings::default();
        for (name, value) in reported {
            server.report_default(name, value.as_bytes());
        }
        server.take_default_changes();
        server
    }

    fn settings(entries: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::default();
        entries.iter().for_each(|(name, value)| settings.set(name, ParameterValue::text(value.as_bytes())));
        settings
    }

    fn sql(server: &ServerSettings, target: &Settings, order: RoleOrder) -> Option<String> {
        let queries = server.sync_queries(target, order);
        assert!(queries.len() <= 1);
        queries.into_iter().next().map(|sql| String::from_utf8(sql).unwrap())
    }

    fn sync_query(server: &ServerSettings, target: &Settings) -> Option<String> {
        sql(server, target, RoleOrder::Last)
    }

    #[test]
    fn encoding_is_set_before_other_text() {
        let server = server(&[("client_encoding", "UTF8"), ("application_name", "")]);
        let mut target = settings(&[("client_encoding", "LATIN1")]);
        target.set("application_name", ParameterValue::text(b"caf\xe9"));
        let queries = server.sync_queries(&target, RoleOrder::Last);
        assert_eq!(queries[0], b"SET \"client_encoding\" TO 'LATIN1';");
        assert!(queries.len() == 2 && queries[1].starts_with(b"BEGIN;SET \"application_name\" TO 'caf\xe9';"));
    }

    #[test]
    fn client_without_settings_keeps_the_defaults() {
        let mut server = server(&[("TimeZone", "UTC"), ("server_version", "18.0")]);
        assert_eq!(sync_query(&server, &Settings::default()), None);
        server.report_default("TimeZone", b"Asia/Tokyo");
        assert_eq!(sync_query(&server, &Settings::default()), None);
        assert_eq!(server.take_default_changes(), settings(&[("TimeZone", "Asia/Tokyo")]));
        assert!(!server.has_default_changes());
    }

    #[test]
    fn value_equal_to_the_default_is_set() {
        let mut server = server(&[("TimeZone", "UTC")]);
        let target = settings(&[("TimeZone", "UTC")]);
        assert!(sync_query(&server, &target).is_some(), "the default may change at any reload");
        let normalized = server.finish_sync(&target);
        assert_eq!(sync_query(&server, &normalized), None);
        assert_eq!(sync_query(&server, &Settings::default()).unwrap(), "BEGIN;RESET \"TimeZone\";COMMIT");
    }

    #[test]
    fn differences_are_set_and_leftovers_are_reset() {
        let mut server = server(&[("TimeZone", "UTC"), ("search_path", "public")]);
        server.set("work_mem", ParameterValue::Sql("'4MB'".into()));
        let mut target = settings(&[("timezone", "Europe/Paris"), ("search_path", "a, \"b'c\"")]);
        target.set("my.var", ParameterValue::Sql("1, 2".into()));
        assert_eq!(
            sync_query(&server, &target).unwrap(),
            "BEGIN;SET \"my\".\"var\" TO 1, 2;SELECT pg_catalog.set_config('search_path','a, \"b''c\"',false);\
             SET \"timezone\" TO 'Europe/Paris';RESET \"work_mem\";COMMIT"
        );
        server.report("TimeZone", b"Europe/Paris");
        server.report("search_path", b"a, \"b'c\"");
        let normalized = server.finish_sync(&target);
        assert_eq!(sync_query(&server, &normalized), None);
        assert!(!server.has_default_changes(), "a client's setting is not a default");
    }

    #[test]
    fn role_is_reset_first_and_set_last_or_first() {
        let mut server = server(&[]);
        server.set("log_duration", ParameterValue::text(b"on"));
        server.set("role", ParameterValue::text(b"a"));
        let mut target = Settings::default();
        let none = "BEGIN;RESET \"role\";RESET \"log_duration\";COMMIT";
        assert_eq!(sql(&server, &target, RoleOrder::Last).unwrap(), none);
        target.set("log_statement", ParameterValue::text(b"all"));
        target.set("role", ParameterValue::text(b"a"));
        let (set, role) = ("SET \"log_statement\" TO 'all';RESET \"log_duration\";", "SET \"role\" TO 'a';");
        let last = format!("BEGIN;RESET \"role\";{set}{role}COMMIT");
        let first = format!("BEGIN;RESET \"role\";{role}{set}COMMIT");
        assert_eq!(sql(&server, &target, RoleOrder::Last), Some(last));
        assert_eq!(sql(&server, &target, RoleOrder::First), Some(first));
        let normalized = server.finish_sync(&target);
        assert_eq!(sql(&server, &normalized, RoleOrder::Last), None, "the role is unchanged");
    }

    #[test]
    fn role_of_another_client_is_set_again() {
        let owned = |client: u64, number: u64| {
            let mut target = Settings::default();
            target.set("role", ParameterValue::Owned(Box::new(ParameterValue::text(b"a")), (client, number)));
            target
        };
        let mut server = server(&[]);
        let normalized = server.finish_sync(&owned(1, 1));
        assert_eq!(sync_query(&server, &normalized), None);
        for other in [owned(2, 1), owned(1, 2)] {
            assert_eq!(sync_query(&server, &other).unwrap(), "BEGIN;RESET \"role\";SET \"role\" TO 'a';COMMIT");
        }
    }

    #[test]
    fn another_spelling_is_set_once() {
        let mut server = server(&[("client_encoding", "UTF8")]);
        let target = settings(&[("client_encoding", "utf8")]);
        let normalized = server.finish_sync(&target);
        assert_eq!(normalized, settings(&[("client_encoding", "UTF8")]));
        assert_eq!(sync_query(&server, &normalized), None);
    }

    #[test]
    fn unexpected_report_is_reset_before_the_next_client() {
        let mut server = server(&[("TimeZone", "UTC")]);
        server.report("TimeZone", b"Asia/Tokyo");
        assert!(!server.is_as_expected("TimeZone"));
        server.mark_unexpected_reports();
        assert_eq!(sync_query(&server, &Settings::default()).unwrap(), "BEGIN;RESET \"TimeZone\";COMMIT");
        server.report("TimeZone", b"UTC");
        let _ = server.finish_sync(&Settings::default());
        assert!(server.is_as_expected("TimeZone") && !server.has_default_changes());
    }

    #[test]
    fn default_is_stored_after_a_reset() {
        let mut server = server(&[("TimeZone", "UTC")]);
        server.report("TimeZone", b"Asia/Tokyo");
        server.set("TimeZone", ParameterValue::text(b"Asia/Tokyo"));
        server.reset("timezone");
        assert!(server.is_default_unknown("TimeZone"));
        server.report("TimeZone", b"Europe/Paris");
        server.update_default_unless_set("timezone");
        assert_eq!(server.take_default_changes(), settings(&[("TimeZone", "Europe/Paris")]));
    }

    #[test]
    fn connect_query_applies_to_clients_without_settings() {
        let before = server(&[("TimeZone", "UTC")]);
        let mut server = before.clone();
        server.report_default("TimeZone", b"Asia/Tokyo");
        server.record_connect_query(&before, vec![("work_mem".to_owned(), "'7MB'".to_owned())]);
        assert_eq!(sync_query(&server, &Settings::default()), None);
        server.discard_all();
        let again = "BEGIN;SET \"TimeZone\" TO 'Asia/Tokyo';SET \"work_mem\" TO '7MB';COMMIT";
        assert_eq!(sync_query(&server, &Settings::default()).unwrap(), again);
    }

    #[test]
    fn equal_settings_are_shared() {
        let interned = SettingsInterner::default();
        let mut settings = Settings::default();
        settings.set("a", ParameterValue::text(b"1"));
        let first = interned.intern(settings.clone());
        assert!(Rc::ptr_eq(&first, &interned.intern(settings)));
        assert!(Rc::ptr_eq(&first, &interned.with(&first, "A", Some(ParameterValue::text(b"1")))));
        assert!(!Rc::ptr_eq(&first, &interned.with(&first, "a", None)));
    }

    #[test]
    fn literals_survive_quotes_and_backslashes() {
        let mut sql = Vec::new();
        write_literal(b"a'b\\c", &mut sql);
        assert_eq!(sql, b"E'a''b\\\\c'");
    }
}
