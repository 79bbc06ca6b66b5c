//! A configuration as rows: for `SHOW CONFIG`, and to tell what a reload cannot change.

use std::collections::HashMap;

use super::check::SECTIONS;
use super::hosts::RouteSettings;
use super::keys::{
    Admin, Auth, Dns, Journal, Listen, Log, Metrics, Overrides, PeerKeys, PoolSettings, Runtime, Tcp, Timeouts,
};
use super::section::{Key, Reload};
use super::setting::Setting;
use super::stream::{Stream, StreamKeys};
use super::{Config, Database, DatabaseKeys, User};

/// A setting as `SHOW CONFIG` prints it; secrets are `***`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Section and key: `pool.size`, `databases.shop.host`.
    pub key: String,
    /// What holds.
    pub value: String,
    /// What would hold if the key were not written.
    pub default: String,
    /// Whether a reload changes it.
    pub reloadable: bool,
    /// Whether `SET` changes it too.
    pub settable: bool,
}

impl Config {
    /// Every setting of the process, then what is written for each database and user, in the order of the
    /// documentation and of names.
    pub fn render(&self) -> Vec<Row> {
        let mut rows = self.sections();
        let (own, general) = (Shown::of_databases(), Shown::of_all(self));
        for (name, database) in &self.databases {
            let path = format!("databases.{name}");
            rows.extend(database.rows(&path, &own));
            rows.extend(limit(&path, "max_servers", database.max_servers, self.pool.max_per_database));
            rows.extend(limit(&path, "max_clients", database.max_clients, self.pool.max_clients_per_database));
            rows.extend(overrides(&path, &database.overrides, &general));
        }
        for (name, user) in &self.users {
            let secret = user.secret.as_ref().map(|secret| secret.secret().show()).unwrap_or_default();
            let path = format!("users.{name}");
            rows.push(row(&path, "password", secret, String::new()));
            rows.extend(limit(&path, "max_servers", user.max_servers, self.pool.max_per_user));
            rows.extend(limit(&path, "max_clients", user.max_clients, self.pool.max_clients_per_user));
            rows.extend(user.overrides.iter().flat_map(|own| overrides(&path, own, &general)));
        }
        for (id, peer) in &self.peers {
            let keys = PeerKeys::KEYS.iter().zip(peer.shown()).zip(PeerKeys::default().shown());
            rows.extend(keys.map(|((key, value), default)| row(&format!("peers.{id}"), key.name, value, default)));
        }
        for stream in &self.streams {
            rows.extend(stream.rows());
        }
        rows.iter_mut().for_each(|row| row.settable = self.is_settable(&row.key));
        rows
    }

    /// Every setting of the process.
    fn sections(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        section(&mut rows, "listen", Listen::KEYS, self.listen.shown(), Listen::default().shown());
        section(&mut rows, "auth", Auth::KEYS, self.auth.shown(), Auth::default().shown());
        section(&mut rows, "pool", PoolSettings::KEYS, self.pool.shown(), PoolSettings::default().shown());
        section(&mut rows, "timeouts", Timeouts::KEYS, self.timeouts.shown(), Timeouts::default().shown());
        section(&mut rows, "route", RouteSettings::KEYS, self.route.shown(), RouteSettings::default().shown());
        section(&mut rows, "admin", Admin::KEYS, self.admin.shown(), Admin::default().shown());
        section(&mut rows, "log", Log::KEYS, self.log.shown(), Log::default().shown());
        section(&mut rows, "dns", Dns::KEYS, self.dns.shown(), Dns::default().shown());
        section(&mut rows, "metrics", Metrics::KEYS, self.metrics.shown(), Metrics::default().shown());
        section(&mut rows, "tcp", Tcp::KEYS, self.tcp.shown(), Tcp::default().shown());
        section(&mut rows, "journal", Journal::KEYS, self.journal.shown(), Journal::default().shown());
        section(&mut rows, "runtime", Runtime::KEYS, self.runtime.shown(), Runtime::default().shown());
        rows
    }

    /// The keys that differ and that a reload cannot change, so that the process must be started again for them.
    pub fn diff_needs_restart(old: &Self, new: &Self) -> Vec<String> {
        let is_fixed = |row: &Row| !row.reloadable;
        let fixed = |config: &Self| config.sections().into_iter().filter(is_fixed).collect::<Vec<_>>();
        let pairs = fixed(old).into_iter().zip(fixed(new));
        pairs.filter(|(old, new)| old.value != new.value).map(|(old, _)| old.key).collect()
    }

    /// Takes back what a reload cannot change: it holds as it was until the process is started again.
    pub fn keep_fixed(&mut self, old: &Self) {
        self.listen.keep_fixed(&old.listen);
        self.auth.keep_fixed(&old.auth);
        self.pool.keep_fixed(&old.pool);
        self.timeouts.keep_fixed(&old.timeouts);
        self.route.keep_fixed(&old.route);
        self.admin.keep_fixed(&old.admin);
        self.log.keep_fixed(&old.log);
        self.dns.keep_fixed(&old.dns);
        self.metrics.keep_fixed(&old.metrics);
        self.tcp.keep_fixed(&old.tcp);
        self.journal.keep_fixed(&old.journal);
        self.runtime.keep_fixed(&old.runtime);
    }
}

/// What keys have, by their names: looked up for each of very many databases and users.
struct Shown(HashMap<&'static str, String>);

impl Shown {
    /// What a database has of its own keys if they are not written.
    fn of_databases() -> Self {
        Self(names(DatabaseKeys::KEYS).zip(DatabaseKeys::default().shown()).collect())
    }

    /// What holds of the keys that databases and users may have for themselves, where they have not.
    fn of_all(config: &Config) -> Self {
        let pool = names(PoolSettings::KEYS).zip(config.pool.shown());
        let timeouts = names(Timeouts::KEYS).zip(config.timeouts.shown());
        let route = names(RouteSettings::KEYS).zip(config.route.shown());
        Self(route.chain(timeouts).chain(pool).collect())
    }

    fn get(&self, key: &str) -> String {
        self.0.get(key).cloned().unwrap_or_default()
    }
}

fn names(keys: &'static [Key]) -> impl Iterator<Item = &'static str> {
    keys.iter().map(|key| key.name)
}

/// Overrides, with what holds for the others as the default.
fn overrides(path: &str, overrides: &Overrides, general: &Shown) -> Vec<Row> {
    let written = overrides.pool.written().into_iter().chain(overrides.timeouts.written());
    let written = written.chain(overrides.route.written());
    written.map(|(key, value)| row(path, key, value, general.get(key))).collect()
}

impl User {
    /// What is written for it of the keys of `[pool]`, and how it is shown.
    pub fn own_pool(&self) -> Vec<(&'static str, String)> {
        self.overrides.as_ref().map(|own| own.pool.written()).unwrap_or_default()
    }
}

impl Stream {
    /// What is written for it.
    fn rows(&self) -> Vec<Row> {
        let path = format!("streams.{}", self.keys.name);
        let defaults = StreamKeys::KEYS.iter().zip(StreamKeys::default().shown());
        let default_of = |key: &str| defaults.clone().find(|(known, _)| known.name == key).map(|(_, value)| value);
        let written = self.written.written().into_iter();
        written.map(|(key, value)| row(&path, key, value, default_of(key).unwrap_or_default())).collect()
    }
}

impl Database {
    fn rows(&self, path: &str, defaults: &Shown) -> Vec<Row> {
        let hosts = self.hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        [
            ("host", hosts),
            ("dbname", self.dbname.clone()),
            ("user", self.user.clone()),
            ("password", self.password.secret().show()),
            ("sslmode", self.tls.mode.show()),
            ("sslrootcert", self.tls.root_cert.show()),
            ("sslcert", self.tls.cert.show()),
            ("sslkey", self.tls.key.show()),
            ("sslnegotiation", self.tls.negotiation.show()),
            ("sslciphers", self.tls.ciphers.show()),
            ("channel_binding", self.tls.binding.show()),
            ("startup_parameters", self.startup_parameters.show()),
            ("shared_pool", self.shared_pool.show()),
            ("connect_query", self.connect_query.show()),
            ("lookup_user", self.lookup.user.clone()),
            ("lookup_query", self.lookup.query.clone()),
            ("lookup_database", self.lookup.database.clone()),
        ]
        .into_iter()
        .map(|(key, value)| row(path, key, value, defaults.get(key)))
        .collect()
    }
}

/// A limit of its own, if there is one.
fn limit(path: &str, key: &str, own: Option<u32>, general: u32) -> Option<Row> {
    own.map(|own| row(path, key, own.to_string(), general.to_string()))
}

fn row(path: &str, key: &str, value: String, default: String) -> Row {
    Row { key: format!("{path}.{key}"), value, default, reloadable: true, settable: false }
}

fn section(rows: &mut Vec<Row>, name: &str, keys: &[Key], values: Vec<String>, defaults: Vec<String>) {
    debug_assert!(SECTIONS.iter().any(|(known, _)| *known == name), "every section is listed");
    for ((key, value), default) in keys.iter().zip(values).zip(defaults) {
        let reloadable = key.reload == Reload::Live;
        rows.push(Row { key: format!("{name}.{}", key.name), value, default, reloadable, settable: false });
    }
}
