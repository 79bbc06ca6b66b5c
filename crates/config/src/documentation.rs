//! All keys with their defaults, for manual pages and the reference.

use super::hosts::RouteConfig;
use super::key_path::SECTIONS;
use super::keys::{
    AdminConfig, AdminHttpConfig, AuthConfig, DatabaseKeys, DnsConfig, ListenConfig, LogConfig, MetricsConfig,
    PeerKeys, PoolConfig, QueryLogConfig, RuntimeConfig, ShapesConfig, TcpConfig, TimeoutConfig, TracesConfig,
    UserKeys,
};
use super::section::ConfigKey;
use super::stream::StreamKeys;

/// A section of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentedSection {
    /// Name, such as `pool`, `users.NAME` or `streams`.
    pub name: &'static str,
    /// Keys in documentation order.
    pub keys: &'static [ConfigKey],
    /// Defaults of the keys, as `SHOW CONFIG` prints them.
    pub defaults: Vec<String>,
}

/// All sections, in documentation order.
#[must_use]
pub fn documented_sections() -> Vec<DocumentedSection> {
    SECTIONS.iter().map(|(name, keys)| DocumentedSection { name, keys, defaults: defaults(name) }).collect()
}

fn defaults(section: &str) -> Vec<String> {
    match section {
        "listen" => ListenConfig::default().shown_values(),
        "auth" => AuthConfig::default().shown_values(),
        "pool" => PoolConfig::default().shown_values(),
        "timeouts" => TimeoutConfig::default().shown_values(),
        "route" => RouteConfig::default().shown_values(),
        "databases.NAME" => DatabaseKeys::default().shown_values(),
        "users.NAME" => UserKeys::default().shown_values(),
        "peers.ID" => PeerKeys::default().shown_values(),
        "admin" => AdminConfig::default().shown_values(),
        "admin.http" => AdminHttpConfig::default().shown_values(),
        "log" => LogConfig::default().shown_values(),
        "dns" => DnsConfig::default().shown_values(),
        "metrics" => MetricsConfig::default().shown_values(),
        "shapes" => ShapesConfig::default().shown_values(),
        "tcp" => TcpConfig::default().shown_values(),
        "journal" => QueryLogConfig::default().shown_values(),
        "traces" => TracesConfig::default().shown_values(),
        "streams" => StreamKeys::default().shown_values(),
        _ => RuntimeConfig::default().shown_values(),
    }
}
