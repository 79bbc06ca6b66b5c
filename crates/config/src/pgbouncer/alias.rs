//! PgBouncer's names for settings in force: for `SHOW CONFIG`, which exporters read, and for `SET`.

use std::net::SocketAddr;

use super::{
    AUTH_FILE, CONFIG_FILE,
    keys::{self, Effect, GLOBAL, Key, Kind},
    map,
};
use crate as config;
use crate::{ChangeError, CipherSuite, Config, Holds, Row};

/// Keys whose value is one of ours, although they are put together from more.
const ALSO: &[(&str, &str)] = &[
    ("default_pool_size", "pool.size"),
    ("min_pool_size", "pool.min_size"),
    ("server_check_query", "pool.server_check"),
    ("server_lifetime", "timeouts.server_lifetime"),
    ("server_login_retry", "timeouts.connect_retry"),
    ("dns_zone_check_period", "dns.check_period"),
    ("max_packet_size", "pool.message_max"),
];

fn path_of(key: &Key) -> Option<&'static str> {
    match key.effect {
        Effect::Is(path) => Some(path),
        _ => ALSO.iter().find(|(name, _)| *name == key.name).map(|(_, path)| *path),
    }
}

/// A key, ours, and how its value is made of theirs.
type Derived = (&'static str, &'static [&'static str], Put);

/// How a value of theirs is made of ours.
type Put = fn(&[&str]) -> String;

/// Keys that say what some of ours say, in other words: those of ours, the first of which tells whether a reload changes
/// it.
const DERIVED: &[Derived] = &[
    ("auth_hba_file", &["auth.hba_file"], same),
    ("auth_ident_file", &["auth.ident_file"], same),
    ("auth_type", &["auth.method", "auth.strangers"], auth_type),
    ("client_tls13_ciphers", &["listen.tls_ciphers"], tls13_ciphers),
    ("client_tls_ca_file", &["listen.tls_client_ca"], same),
    ("client_tls_cert_file", &["listen.tls_cert"], same),
    ("client_tls_ciphers", &["listen.tls_ciphers"], tls12_ciphers),
    ("client_tls_ecdhcurve", &["listen.tls_groups"], curves),
    ("client_tls_key_file", &["listen.tls_key"], same),
    ("client_tls_protocols", &["listen.tls_ciphers"], protocols),
    ("client_tls_sslmode", &["listen.tls", "listen.tls_client_ca", "listen.tls_client_cert"], sslmode),
    ("disable_pqexec", &["pool.simple_query"], |given| u8::from(given[0] == "false").to_string()),
    ("listen_addr", &["listen.addresses"], hosts),
    ("listen_port", &["listen.unix_socket_port", "listen.addresses"], port),
    ("reserve_pool_timeout", &["pool.reserve_after"], reserve_timeout),
    ("syslog", &["log.syslog"], |given| u8::from(!given[0].is_empty()).to_string()),
    ("tcp_keepidle", &["tcp.keepalive_idle"], |given| in_its_unit(Kind::Seconds, given[0])),
    ("tcp_keepintvl", &["tcp.keepalive_interval"], |given| in_its_unit(Kind::Seconds, given[0])),
    ("tcp_user_timeout", &["tcp.user_timeout"], milliseconds),
    ("verbose", &["log.level"], verbose),
];

/// Keys that every database has for itself here, and the key of ours within it.
const OF_DATABASES: &[(&str, &str, Put)] = &[
    ("server_tls13_ciphers", "sslciphers", tls13_ciphers),
    ("server_tls_ca_file", "sslrootcert", same),
    ("server_tls_cert_file", "sslcert", same),
    ("server_tls_ciphers", "sslciphers", tls12_ciphers),
    ("server_tls_key_file", "sslkey", same),
    ("server_tls_protocols", "sslciphers", protocols),
    ("server_tls_sslmode", "sslmode", same),
];

/// Those of them that nobody can change while the gateway runs.
const FIXED: &[&str] = &["listen_addr", "listen_port"];

fn same(given: &[&str]) -> String {
    given[0].to_owned()
}

fn auth_type(given: &[&str]) -> String {
    let word = match given {
        ["trust", "true"] => "any",
        ["password", _] => "plain",
        other => other[0],
    };
    word.to_owned()
}

fn sslmode(given: &[&str]) -> String {
    let word = match given {
        ["off", ..] => "disable",
        ["allow", ..] => "allow",
        [_, "", _] | [_, _, "allow"] => "require",
        _ => "verify-full",
    };
    word.to_owned()
}

/// The hosts of addresses, each once.
fn hosts(given: &[&str]) -> String {
    let mut hosts: Vec<String> = Vec::new();
    for address in given[0].split(", ").filter_map(|address| address.parse::<SocketAddr>().ok()) {
        let host = address.ip().to_string();
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    hosts.join(",")
}

/// That of the unix socket, which is that of the addresses unless it has one of its own.
fn port(given: &[&str]) -> String {
    match given {
        ["0", addresses] => {
            let first = addresses.split(", ").next().and_then(|address| address.parse::<SocketAddr>().ok());
            first.map_or_else(|| "0".to_owned(), |address| address.port().to_string())
        }
        _ => given[0].to_owned(),
    }
}

/// The suites of one version in a list, in OpenSSL's form; nothing if those are all that there are, or none.
fn ciphers(given: &str, tls13: bool) -> Option<String> {
    let is_meant = |cipher: &&CipherSuite| cipher.is_tls13() == tls13;
    let known: Vec<_> = CipherSuite::ALL.iter().filter(is_meant).map(|cipher| cipher.as_str()).collect();
    let chosen: Vec<_> = given.split(", ").filter(|name| known.contains(name)).collect();
    (!chosen.is_empty() && chosen != known).then(|| chosen.join(":"))
}

fn tls12_ciphers(given: &[&str]) -> String {
    ciphers(given[0], false).unwrap_or_else(|| "default".to_owned())
}

fn tls13_ciphers(given: &[&str]) -> String {
    ciphers(given[0], true).unwrap_or_default()
}

/// A version is spoken if there is a suite for it.
fn protocols(given: &[&str]) -> String {
    let is_there = |tls13: bool| {
        let mut known = CipherSuite::ALL.iter().filter(|cipher| cipher.is_tls13() == tls13);
        given[0].is_empty() || known.any(|known| given[0].split(", ").any(|name| name == known.as_str()))
    };
    let word = match (is_there(false), is_there(true)) {
        (true, false) => "tlsv1.2",
        (false, true) => "tlsv1.3",
        _ => "secure",
    };
    word.to_owned()
}

fn curves(given: &[&str]) -> String {
    if given[0].is_empty() { "auto".to_owned() } else { given[0].replace(", ", ":") }
}

fn reserve_timeout(given: &[&str]) -> String {
    if given[0] == map::RESERVE_NEVER { "0".to_owned() } else { in_its_unit(Kind::Seconds, given[0]) }
}

fn milliseconds(given: &[&str]) -> String {
    seconds(given[0]).and_then(|text| text.parse::<f64>().ok()).map_or_else(|| same(given), |s| (s * 1e3).to_string())
}

fn verbose(given: &[&str]) -> String {
    let level = match given[0] {
        "debug" => "1",
        "trace" => "2",
        _ => "0",
    };
    level.to_owned()
}

/// The rows under PgBouncer's names, in its units; all that it has but those that name files which were read.
#[must_use]
pub fn rows(rows: &[Row]) -> Vec<Row> {
    let alias = |key: &Key| {
        let InForce { value, reloadable, settable } = in_force(rows, key)?;
        // A statement of nothing has a name there.
        let value = if key.name == "server_check_query" && value == ";" { "<empty>".to_owned() } else { value };
        let default = key.default.unwrap_or_default().to_owned();
        Some(Row { key: key.name.to_owned(), value, default, reloadable, settable })
    };
    GLOBAL.iter().filter(|key| ![AUTH_FILE, CONFIG_FILE].contains(&key.name)).filter_map(alias).collect()
}

/// The value of a key, and the way to change it.
struct InForce {
    value: String,
    reloadable: bool,
    settable: bool,
}

impl InForce {
    /// A value that is made of that of `row`.
    fn like(row: &Row, value: String) -> Self {
        Self { value, reloadable: row.reloadable, settable: row.settable }
    }
}

fn in_force(rows: &[Row], key: &Key) -> Option<InForce> {
    let find = |path: &str| rows.iter().find(|row| row.key == path);
    if let Some((_, paths, put)) = DERIVED.iter().find(|(name, ..)| *name == key.name) {
        let given: Option<Vec<_>> = paths.iter().map(|path| Some(find(path)?.value.as_str())).collect();
        return Some(InForce::like(find(paths[0])?, put(&given?)));
    }
    if let Some((_, own, put)) = OF_DATABASES.iter().find(|(name, ..)| *name == key.name) {
        let value = match of_databases(rows, own)[..] {
            [] => default_of(key),
            [one] => put(&[one]),
            _ => String::new(),
        };
        return Some(InForce { value, reloadable: true, settable: false });
    }
    if let Effect::Nothing(_) | Effect::Always(_) = key.effect {
        return Some(InForce { value: default_of(key), reloadable: false, settable: false });
    }
    let row = find(path_of(key)?)?;
    Some(InForce::like(row, in_its_unit(key.kind, &row.value)))
}

/// What the values of a key of PgBouncer are; nothing if it has no such key.
#[must_use]
pub fn holds(name: &str) -> Option<Holds> {
    let key = keys::find(GLOBAL, name)?;
    match key.kind {
        Kind::Path | Kind::SocketDir => Some(Holds::File),
        _ => Some(path_of(key).and_then(config::holds).unwrap_or(Holds::Plain)),
    }
}

fn default_of(key: &Key) -> String {
    key.default.unwrap_or_default().to_owned()
}

/// What databases have of a key of theirs, each value once.
fn of_databases<'r>(rows: &'r [Row], own: &str) -> Vec<&'r str> {
    let has =
        |row: &&Row| row.key.starts_with("databases.") && row.key.rsplit_once('.').is_some_and(|(_, key)| key == own);
    let mut values: Vec<_> = rows.iter().filter(has).map(|row| row.value.as_str()).collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// Why a key of PgBouncer has no effect here; nothing if it has one, or if there is no such key.
#[must_use]
pub fn without_effect(name: &str) -> Option<&'static str> {
    match keys::find(GLOBAL, name)?.effect {
        Effect::Nothing(reason) => Some(reason),
        Effect::Is(_) | Effect::Does(_) | Effect::Always(_) => None,
    }
}

/// The configuration with a key of PgBouncer changed; nothing if it has no such key.
///
/// # Errors
/// Why it cannot be changed to that.
pub fn changed(config: &Config, name: &str, text: &str) -> Option<Result<Config, ChangeError>> {
    let key = keys::find(GLOBAL, name)?;
    let is_derived = DERIVED.iter().any(|(name, ..)| *name == key.name) && !FIXED.contains(&key.name);
    if path_of(key).is_none() && !is_derived {
        return Some(Err(ChangeError::Fixed(format!("{name} cannot be changed here; {}", key.effect.told()))));
    }
    if key.kind != Kind::Text && text == "-1" {
        return Some(Err(ChangeError::Invalid(format!("{name}: -1 is no value"))));
    }
    let ours = config.render();
    let changes = match map::change(&rows(&ours), name, text) {
        Ok(changes) => changes,
        Err((reason, help)) => return Some(Err(ChangeError::Invalid(format!("{reason}; {help}")))),
    };
    Some(changes.into_iter().try_fold(config.clone(), |config, (path, value)| match value {
        Some(value) => config.with_value(&path, &value),
        None => {
            let default = ours.iter().find(|row| row.key == path).map_or("", |row| row.default.as_str());
            config.changed(&path, default)
        }
    }))
}

fn in_its_unit(kind: Kind, shown: &str) -> String {
    match kind {
        Kind::Flag => u8::from(shown == "true").to_string(),
        Kind::List => shown.replace(", ", ","),
        Kind::Seconds => seconds(shown).unwrap_or_else(|| shown.to_owned()),
        _ => shown.to_owned(),
    }
}

/// `250ms` as `0.25`.
fn seconds(shown: &str) -> Option<String> {
    let at = shown.find(|c: char| !c.is_ascii_digit()).unwrap_or(shown.len());
    let (digits, unit) = shown.split_at(at);
    let number: f64 = digits.parse().ok()?;
    let unit = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        _ => 1.0,
    };
    Some((number * unit).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_seconds() {
        let shown = |text| in_its_unit(Kind::Seconds, text);
        assert_eq!([shown("5s"), shown("250ms"), shown("0"), shown("1us")], ["5", "0.25", "0", "0.000001"]);
        assert_eq!(in_its_unit(Kind::Flag, "true"), "1");
    }

    #[test]
    fn exporters_find_their_names() {
        let config = Config::from_url("postgres://db/shop").expect("a configuration");
        let rows = rows(&config.render());
        let find = |name: &str| rows.iter().find(|row| row.key == name).map(|row| row.value.clone());
        assert_eq!(find("max_client_conn").as_deref(), Some("10000"));
        assert_eq!(find("query_wait_timeout").as_deref(), Some("120"));
        for (name, value) in [("listen_addr", "127.0.0.1"), ("listen_port", "6432"), ("client_tls_sslmode", "disable")]
        {
            assert_eq!(find(name).as_deref(), Some(value), "{name}");
        }
        let changed = changed(&config, "default_pool_size", "7").expect("a key").expect("a value");
        assert_eq!(changed.pool.size, 7);
        assert!(super::changed(&config, "listen_port", "1").expect("a key").is_err());
        assert!(without_effect("pkt_buf").is_some() && without_effect("pool_mode").is_none());
        assert!(super::changed(&config, "pool.size", "1").is_none());
    }

    #[test]
    fn files_are_not_settable_by_another_name() {
        let config = Config::from_url("postgres://db/shop").expect("a configuration");
        let rows = rows(&config.render());
        for (name, value) in [("logfile", "/etc/passwd"), ("syslog", "1")] {
            let refused = changed(&config, name, value).expect("a key");
            assert!(matches!(refused, Err(ChangeError::NamesFile(_))), "{name}");
            assert!(rows.iter().any(|row| row.key == name && !row.settable), "{name}");
        }
        // What keeps its value is not changed: the key, the certificate and the authorities beside the mode.
        changed(&config, "client_tls_sslmode", "disable").expect("a key").expect("it holds already");
    }

    #[test]
    fn what_a_value_holds_is_known_by_both_names() {
        for (name, expected) in [
            ("auth_ldap_options", Some(Holds::Secret)),
            ("logfile", Some(Holds::File)),
            ("auth_file", Some(Holds::File)),
            ("default_pool_size", Some(Holds::Plain)),
            ("default_pool_siz", None),
        ] {
            assert_eq!(holds(name), expected, "{name}");
        }
    }
}
