//! Paths of keys: `pool.size`, `users.app.password`.

use super::check::SECTIONS;
use super::section::{Key, Scope};
use super::setting::{Holds, nearest};

/// A key that a path names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    /// `pool`, or `users.NAME`.
    section: &'static str,
    pub(crate) key: &'static Key,
}

impl Found {
    /// The path with `NAME` or `ID` in place of a name from the file: `users.NAME.password`.
    pub(crate) fn pattern(self) -> String {
        format!("{}.{}", self.section, self.key.name)
    }
}

/// The key of that path, if there is one.
pub(crate) fn find(path: &str) -> Option<Found> {
    let (section, name) = section_of(path)?;
    let key = keys_of(section).find(|key| key.name == name)?;
    Some(Found { section, key })
}

/// The known key that is most like that of a path that names none, in the form of [`Found::pattern`].
pub(crate) fn similar(path: &str) -> Option<String> {
    let (section, name) = section_of(path)?;
    nearest(name, keys_of(section).map(|key| key.name)).map(|name| format!("{section}.{name}"))
}

/// The section that a path begins with, in the form of [`SECTIONS`], and the name of the key.
fn section_of(path: &str) -> Option<(&'static str, &str)> {
    let (head, rest) = path.split_once('.')?;
    let (is_named, name) = rest.rsplit_once('.').map_or((false, rest), |(_, name)| (true, name));
    let is_meant = |section: &str| match section.split_once('.') {
        Some((first, _)) => is_named && first == head,
        None => section == head && (!is_named || head == "streams"),
    };
    SECTIONS.iter().map(|(section, _)| *section).find(|section| is_meant(section)).map(|section| (section, name))
}

/// The keys of a section; databases and users have some of other sections for themselves.
fn keys_of(section: &'static str) -> impl Iterator<Item = &'static Key> {
    let may_override = matches!(section, "databases.NAME" | "users.NAME");
    let is_own = move |known: &str| known == section;
    let own = SECTIONS.iter().filter(move |(known, _)| is_own(known)).flat_map(|(_, keys)| keys.iter());
    let all = SECTIONS.iter().flat_map(|(_, keys)| keys.iter());
    own.chain(all.filter(move |key| may_override && key.scope == Scope::Pool))
}

/// The kind of values of that key; `None` if there is no such key.
#[must_use]
pub fn holds(path: &str) -> Option<Holds> {
    find(path).map(|found| found.key.holds)
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
            assert_eq!(find(path).map(Found::pattern).as_deref(), pattern, "{path}");
        }
    }

    #[test]
    fn secrets_and_files_are_told_from_plain_values() {
        for (path, expected) in [
            ("pool.size", Some(Holds::Plain)),
            ("auth.ldap_options", Some(Holds::Secret)),
            ("users.app.password", Some(Holds::Secret)),
            ("databases.shop.url", Some(Holds::Secret)),
            ("databases.shop.connect_query", Some(Holds::Secret)),
            ("databases.shop.startup_parameters", Some(Holds::Secret)),
            ("streams.orders.headers", Some(Holds::Secret)),
            ("listen.tls_key", Some(Holds::File)),
            ("log.file", Some(Holds::File)),
            ("log.syslog", Some(Holds::File)),
            ("journal.folder", Some(Holds::File)),
            ("users.app.pasword", None),
        ] {
            assert_eq!(holds(path), expected, "{path}");
        }
    }
}
