//! Paths of keys such as `pool.size` and `users.app.password`.

use super::hosts::RouteConfig;
use super::keys::{
    AdminConfig, AdminHttpConfig, AuthConfig, DatabaseKeys, DnsConfig, ListenConfig, LogConfig, MetricsConfig,
    PeerKeys, PoolConfig, QueryLogConfig, RuntimeConfig, ShapesConfig, TcpConfig, TimeoutConfig, TracesConfig,
    UserKeys,
};
use super::section::{ConfigKey, KeyScope};
use super::setting::{ValueClass, nearest};
use super::stream::StreamKeys;

/// Sections and their keys. Also used to find the section of a misplaced key.
pub(crate) const SECTIONS: &[(&str, &[ConfigKey])] = &[
    ("listen", ListenConfig::KEYS),
    ("auth", AuthConfig::KEYS),
    ("pool", PoolConfig::KEYS),
    ("timeouts", TimeoutConfig::KEYS),
    ("route", RouteConfig::KEYS),
    ("databases.NAME", DatabaseKeys::KEYS),
    ("users.NAME", UserKeys::KEYS),
    ("peers.ID", PeerKeys::KEYS),
    ("admin", AdminConfig::KEYS),
    ("admin.http", AdminHttpConfig::KEYS),
    ("log", LogConfig::KEYS),
    ("dns", DnsConfig::KEYS),
    ("metrics", MetricsConfig::KEYS),
    ("shapes", ShapesConfig::KEYS),
    ("tcp", TcpConfig::KEYS),
    ("journal", QueryLogConfig::KEYS),
    ("traces", TracesConfig::KEYS),
    ("runtime", RuntimeConfig::KEYS),
    ("streams", StreamKeys::KEYS),
];

/// The key of a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyRef {
    /// `pool`, or `users.NAME`.
    section: &'static str,
    pub(crate) key: &'static ConfigKey,
}

impl KeyRef {
    /// The path with `NAME` or `ID` in place of a name: `users.NAME.password`.
    pub(crate) fn pattern(self) -> String {
        format!("{}.{}", self.section, self.key.name)
    }
}

/// Finds the key of a path.
pub(crate) fn find(path: &str) -> Option<KeyRef> {
    let (section, name) = section_of(path)?;
    let key = keys_of(section).find(|key| key.name == name)?;
    Some(KeyRef { section, key })
}

/// The known key most similar to an unknown path, in the form of [`KeyRef::pattern`].
pub(crate) fn most_similar(path: &str) -> Option<String> {
    let (section, name) = section_of(path)?;
    nearest(name, keys_of(section).map(|key| key.name)).map(|name| format!("{section}.{name}"))
}

/// The section of a path, in the form of [`SECTIONS`], and the name of the key.
fn section_of(path: &str) -> Option<(&'static str, &str)> {
    let (head, rest) = path.split_once('.')?;
    let (is_named, name) = rest.rsplit_once('.').map_or((false, rest), |(_, name)| (true, name));
    let is_meant = |section: &str| match section.split_once('.') {
        // The only section below another one; names of databases, users and peers are free.
        Some(("admin", _)) => path.starts_with("admin.http."),
        Some((first, _)) => is_named && first == head,
        None => section == head && (!is_named || head == "streams"),
    };
    SECTIONS.iter().map(|(section, _)| *section).find(|section| is_meant(section)).map(|section| (section, name))
}

/// Keys of a section; databases and users may also have keys of other sections.
fn keys_of(section: &'static str) -> impl Iterator<Item = &'static ConfigKey> {
    let may_override = matches!(section, "databases.NAME" | "users.NAME");
    let is_own = move |known: &str| known == section;
    let own = SECTIONS.iter().filter(move |(known, _)| is_own(known)).flat_map(|(_, keys)| keys.iter());
    let all = SECTIONS.iter().flat_map(|(_, keys)| keys.iter());
    own.chain(all.filter(move |key| may_override && key.scope == KeyScope::Pool))
}

/// Class of the values of a key; `None` if the key does not exist.
#[must_use]
pub fn value_class(path: &str) -> Option<ValueClass> {
    find(path).map(|found| found.key.class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_key() {
        for (path, pattern) in [
            ("pool.size", Some("pool.size")),
            ("users.app.password", Some("users.NAME.password")),
            ("users.a.b.password", Some("users.NAME.password")),
            ("databases.shop.size", Some("databases.NAME.size")),
            ("peers.7.host", Some("peers.ID.host")),
            ("streams.orders.rate", Some("streams.rate")),
            ("users.password", None),
            ("pool.a.size", None),
            ("users.app.workers", None),
            ("nothing", None),
        ] {
            assert_eq!(find(path).map(KeyRef::pattern).as_deref(), pattern, "{path}");
        }
    }

    #[test]
    fn keys_have_value_classes() {
        for (path, expected) in [
            ("pool.size", Some(ValueClass::Plain)),
            ("auth.ldap_options", Some(ValueClass::Secret)),
            ("users.app.password", Some(ValueClass::Secret)),
            ("databases.shop.url", Some(ValueClass::Secret)),
            ("databases.shop.connect_query", Some(ValueClass::Secret)),
            ("databases.shop.startup_parameters", Some(ValueClass::Secret)),
            ("streams.orders.headers", Some(ValueClass::Secret)),
            ("listen.tls_key", Some(ValueClass::File)),
            ("log.file", Some(ValueClass::File)),
            ("log.syslog", Some(ValueClass::File)),
            ("journal.folder", Some(ValueClass::File)),
            ("users.app.pasword", None),
        ] {
            assert_eq!(value_class(path), expected, "{path}");
        }
    }
}
