//! A configuration as rows, for `SHOW CONFIG` and for the comparison of a reload.

use std::collections::HashMap;

use super::hosts::RouteConfig;
use super::key_path::SECTIONS;
use super::keys::{PeerKeys, PoolConfig, PoolOverrides, TimeoutConfig};
use super::section::{ConfigKey, ConfigSection, Reload};
use super::setting::Setting;
use super::stream::{StreamConfig, StreamKeys};
use super::{Config, Database, DatabaseKeys, User};

/// A setting as `SHOW CONFIG` prints it; secrets are `***`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingRow {
    /// Section and key: `pool.size`, `databases.shop.host`.
    pub key: String,
    /// Value in force.
    pub value: String,
    /// Value that would be in force if the key were not set.
    pub default: String,
    /// Whether a reload changes it.
    pub reloadable: bool,
    /// Whether `SET` changes it.
    pub settable: bool,
}

impl Config {
    /// All settings of the process, then the settings of each database, user, peer and stream, in documentation order and
    /// by name.
    pub fn setting_rows(&self) -> Vec<SettingRow> {
        let mut rows = self.sections();
        let (own, general) = (KeyDefaults::of_databases(), KeyDefaults::of_all(self));
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
            let keys = PeerKeys::KEYS.iter().zip(peer.shown_values()).zip(PeerKeys::default().shown_values());
            rows.extend(keys.map(|((key, value), default)| row(&format!("peers.{id}"), key.name, value, default)));
        }
        for stream in &self.streams {
            rows.extend(stream.rows());
        }
        rows.iter_mut().for_each(|row| row.settable = self.is_settable(&row.key));
        rows
    }

    /// All settings of the process.
    fn sections(&self) -> Vec<SettingRow> {
        let mut rows = Vec::new();
        push_section(&mut rows, "listen", &self.listen);
        push_section(&mut rows, "auth", &self.auth);
        push_section(&mut rows, "pool", &self.pool);
        push_section(&mut rows, "timeouts", &self.timeouts);
        push_section(&mut rows, "route", &self.route);
        push_section(&mut rows, "admin", &self.admin);
        push_section(&mut rows, "admin.http", &self.admin_http);
        push_section(&mut rows, "log", &self.log);
        push_section(&mut rows, "dns", &self.dns);
        push_section(&mut rows, "metrics", &self.metrics);
        push_section(&mut rows, "shapes", &self.shapes);
        push_section(&mut rows, "tcp", &self.tcp);
        push_section(&mut rows, "journal", &self.journal);
        push_section(&mut rows, "traces", &self.traces);
        push_section(&mut rows, "runtime", &self.runtime);
        rows
    }

    /// Keys that differ and need a restart.
    pub fn diff_needs_restart(old: &Self, new: &Self) -> Vec<String> {
        let is_fixed = |row: &SettingRow| !row.reloadable;
        let fixed = |config: &Self| config.sections().into_iter().filter(is_fixed).collect::<Vec<_>>();
        let pairs = fixed(old).into_iter().zip(fixed(new));
        pairs.filter(|(old, new)| old.value != new.value).map(|(old, _)| old.key).collect()
    }

    /// Restores the values that need a restart.
    pub fn keep_restart_only(&mut self, old: &Self) {
        self.listen.keep_restart_only(&old.listen);
        self.auth.keep_restart_only(&old.auth);
        self.pool.keep_restart_only(&old.pool);
        self.timeouts.keep_restart_only(&old.timeouts);
        self.route.keep_restart_only(&old.route);
        self.admin.keep_restart_only(&old.admin);
        self.admin_http.keep_restart_only(&old.admin_http);
        self.log.keep_restart_only(&old.log);
        self.dns.keep_restart_only(&old.dns);
        self.metrics.keep_restart_only(&old.metrics);
        self.shapes.keep_restart_only(&old.shapes);
        self.tcp.keep_restart_only(&old.tcp);
        self.journal.keep_restart_only(&old.journal);
        self.traces.keep_restart_only(&old.traces);
        self.runtime.keep_restart_only(&old.runtime);
    }
}

/// Defaults by key, looked up for each database and user.
struct KeyDefaults(HashMap<&'static str, String>);

impl KeyDefaults {
    /// Defaults of the keys of a database.
    fn of_databases() -> Self {
        Self(names(DatabaseKeys::KEYS).zip(DatabaseKeys::default().shown_values()).collect())
    }

    /// Values in force for keys that databases and users may override.
    fn of_all(config: &Config) -> Self {
        let pool = names(PoolConfig::KEYS).zip(config.pool.shown_values());
        let timeouts = names(TimeoutConfig::KEYS).zip(config.timeouts.shown_values());
        let route = names(RouteConfig::KEYS).zip(config.route.shown_values());
        Self(route.chain(timeouts).chain(pool).collect())
    }

    fn get(&self, key: &str) -> String {
        self.0.get(key).cloned().unwrap_or_default()
    }
}

fn names(keys: &'static [ConfigKey]) -> impl Iterator<Item = &'static str> {
    keys.iter().map(|key| key.name)
}

/// Rows of overrides, with the value in force for others as the default.
fn overrides(path: &str, overrides: &PoolOverrides, general: &KeyDefaults) -> Vec<SettingRow> {
    let written = overrides.pool.written().into_iter().chain(overrides.timeouts.written());
    let written = written.chain(overrides.route.written());
    written.map(|(key, value)| row(path, key, value, general.get(key))).collect()
}

impl User {
    /// Keys of `[pool]` that are set for the user, with their values.
    pub fn own_pool(&self) -> Vec<(&'static str, String)> {
        self.overrides.as_ref().map(|own| own.pool.written()).unwrap_or_default()
    }
}

impl StreamConfig {
    /// Rows of the keys that are set, and of all limits.
    fn rows(&self) -> Vec<SettingRow> {
        let path = format!("streams.{}", self.keys.name);
        let defaults = StreamKeys::KEYS.iter().zip(StreamKeys::default().shown_values());
        let default_of = |key: &str| defaults.clone().find(|(known, _)| known.name == key).map(|(_, value)| value);
        let written = self.written.written().into_iter().filter(|(key, _)| !Self::LIMITS.contains(key));
        let written = written.map(|(key, value)| row(&path, key, value, default_of(key).unwrap_or_default()));
        let limits = self.limits();
        let limits = limits.map(|(key, value, default)| row(&path, key, value.to_string(), default.to_string()));
        written.chain(limits).collect()
    }
}

impl Database {
    fn rows(&self, path: &str, defaults: &KeyDefaults) -> Vec<SettingRow> {
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

/// Row of a limit, if it is set.
fn limit(path: &str, key: &str, own: Option<u32>, general: u32) -> Option<SettingRow> {
    own.map(|own| row(path, key, own.to_string(), general.to_string()))
}

fn row(path: &str, key: &str, value: String, default: String) -> SettingRow {
    SettingRow { key: format!("{path}.{key}"), value, default, reloadable: true, settable: false }
}

fn push_section<S: ConfigSection>(rows: &mut Vec<SettingRow>, name: &str, section: &S) {
    debug_assert!(SECTIONS.iter().any(|(known, _)| *known == name), "every section is listed");
    let values = section.section_values().into_iter().zip(S::default().section_values());
    for (key, (value, default)) in S::section_keys().iter().zip(values) {
        let reloadable = key.reload == Reload::Live;
        rows.push(SettingRow { key: format!("{name}.{}", key.name), value, default, reloadable, settable: false });
    }
}
