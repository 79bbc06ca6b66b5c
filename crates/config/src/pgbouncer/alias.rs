//! Settings by PgBouncer's names: for `SHOW CONFIG`, which exporters read, and for `SET`.

use std::net::SocketAddr;

use super::{
    AUTH_FILE, CONFIG_FILE,
    keys::{self, GLOBAL, IniKey, IniKeyEffect, IniValueKind},
    map,
};
use crate as config;
use crate::{ChangeError, CipherSuite, Config, ReserveDelay, ServerLifetime, SettingRow, ValueClass};

/// Keys with the value of one key of ours, although their effect involves more.
const EQUIVALENT: &[(&str, &str)] = &[
    ("default_pool_size", "pool.size"),
    ("min_pool_size", "pool.min_size"),
    ("server_check_query", "pool.server_check"),
    ("server_login_retry", "timeouts.connect_retry"),
    ("dns_zone_check_period", "dns.check_period"),
    ("max_packet_size", "pool.message_max"),
];

fn path_of(key: &IniKey) -> Option<&'static str> {
    match key.effect {
        IniKeyEffect::SameAs(path) => Some(path),
        _ => EQUIVALENT.iter().find(|(name, _)| *name == key.name).map(|(_, path)| *path),
    }
}

/// A key of PgBouncer, the keys of ours, and the conversion of their values.
type Derived = (&'static str, &'static [&'static str], Conversion);

/// Converts values of ours to a value of PgBouncer.
type Conversion = fn(&[&str]) -> String;

/// Keys that are derived from keys of ours; the first of these determines whether a reload changes it.
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
    ("listen_addr", &["listen.addresses"], listen_hosts),
    ("listen_port", &["listen.unix_socket_port", "listen.addresses"], port),
    ("reserve_pool_timeout", &["pool.reserve_after"], reserve_timeout),
    ("server_lifetime", &["timeouts.server_lifetime"], lifetime),
    ("syslog", &["log.syslog"], |given| u8::from(!given[0].is_empty()).to_string()),
    ("tcp_keepidle", &["tcp.keepalive_idle"], |given| to_pgbouncer_unit(IniValueKind::Seconds, given[0])),
    ("tcp_keepintvl", &["tcp.keepalive_interval"], |given| to_pgbouncer_unit(IniValueKind::Seconds, given[0])),
    ("tcp_user_timeout", &["tcp.user_timeout"], milliseconds),
    ("verbose", &["log.level"], verbose),
];

/// Keys that are settings of each database here, with the key of `[databases.NAME]`.
const DATABASE_KEYS: &[(&str, &str, Conversion)] = &[
    ("server_tls13_ciphers", "sslciphers", tls13_ciphers),
    ("server_tls_ca_file", "sslrootcert", same),
    ("server_tls_cert_file", "sslcert", same),
    ("server_tls_ciphers", "sslciphers", tls12_ciphers),
    ("server_tls_key_file", "sslkey", same),
    ("server_tls_protocols", "sslciphers", protocols),
    ("server_tls_sslmode", "sslmode", same),
];

/// Derived keys that cannot be changed while the gateway runs.
const NOT_SETTABLE: &[&str] = &["listen_addr", "listen_port"];

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

/// Hosts of addresses, without duplicates.
fn listen_hosts(given: &[&str]) -> String {
    let mut hosts: Vec<String> = Vec::new();
    for address in given[0].split(", ").filter_map(|address| address.parse::<SocketAddr>().ok()) {
        let host = address.ip().to_string();
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    hosts.join(",")
}

/// Port of the Unix socket, by default the port of the first address.
fn port(given: &[&str]) -> String {
    match given {
        ["0", addresses] => {
            let first = addresses.split(", ").next().and_then(|address| address.parse::<SocketAddr>().ok());
            first.map_or_else(|| "0".to_owned(), |address| address.port().to_string())
        }
        _ => given[0].to_owned(),
    }
}

/// Suites of one TLS version as an OpenSSL list; `None` for all or no suites.
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

/// A version is enabled if it has a suite.
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
    if given[0] == ReserveDelay::NEVER { "0".to_owned() } else { to_pgbouncer_unit(IniValueKind::Seconds, given[0]) }
}

fn lifetime(given: &[&str]) -> String {
    if given[0] == ServerLifetime::SINGLE_USE {
        return "0".to_owned();
    }
    to_pgbouncer_unit(IniValueKind::Seconds, given[0])
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

/// Rows by PgBouncer's names and in its units, except names of files that were read.
#[must_use]
pub fn rows(rows: &[SettingRow]) -> Vec<SettingRow> {
    let alias = |key: &IniKey| {
        let CurrentValue { value, reloadable, settable } = current_value(rows, key)?;
        // PgBouncer's name for an empty statement.
        let value = if key.name == "server_check_query" && value == ";" { "<empty>".to_owned() } else { value };
        let default = key.default.unwrap_or_default().to_owned();
        Some(SettingRow { key: key.name.to_owned(), value, default, reloadable, settable })
    };
    GLOBAL.iter().filter(|key| ![AUTH_FILE, CONFIG_FILE].contains(&key.name)).filter_map(alias).collect()
}

/// Value of a key, and how it can be changed.
struct CurrentValue {
    value: String,
    reloadable: bool,
    settable: bool,
}

impl CurrentValue {
    /// A value that is derived from `row`.
    fn from_row(row: &SettingRow, value: String) -> Self {
        Self { value, reloadable: row.reloadable, settable: row.settable }
    }
}

fn current_value(rows: &[SettingRow], key: &IniKey) -> Option<CurrentValue> {
    let find = |path: &str| rows.iter().find(|row| row.key == path);
    if let Some((_, paths, put)) = DERIVED.iter().find(|(name, ..)| *name == key.name) {
        let given: Option<Vec<_>> = paths.iter().map(|path| Some(find(path)?.value.as_str())).collect();
        return Some(CurrentValue::from_row(find(paths[0])?, put(&given?)));
    }
    if let Some((_, own, put)) = DATABASE_KEYS.iter().find(|(name, ..)| *name == key.name) {
        let value = match database_values(rows, own)[..] {
            [] => default_of(key),
            [one] => put(&[one]),
            _ => String::new(),
        };
        return Some(CurrentValue { value, reloadable: true, settable: false });
    }
    if let IniKeyEffect::Ignored(_) | IniKeyEffect::AlwaysOn(_) = key.effect {
        return Some(CurrentValue { value: default_of(key), reloadable: false, settable: false });
    }
    let row = find(path_of(key)?)?;
    Some(CurrentValue::from_row(row, to_pgbouncer_unit(key.kind, &row.value)))
}

/// Class of the values of a PgBouncer key; `None` if the key does not exist.
#[must_use]
pub fn value_class(name: &str) -> Option<ValueClass> {
    let key = keys::find(GLOBAL, name)?;
    match key.kind {
        IniValueKind::Path | IniValueKind::SocketDir => Some(ValueClass::File),
        _ => Some(path_of(key).and_then(config::value_class).unwrap_or(ValueClass::Plain)),
    }
}

fn default_of(key: &IniKey) -> String {
    key.default.unwrap_or_default().to_owned()
}

/// Values of a key of databases, without duplicates.
fn database_values<'r>(rows: &'r [SettingRow], own: &str) -> Vec<&'r str> {
    let has = |row: &&SettingRow| {
        row.key.starts_with("databases.") && row.key.rsplit_once('.').is_some_and(|(_, key)| key == own)
    };
    let mut values: Vec<_> = rows.iter().filter(has).map(|row| row.value.as_str()).collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// Why a PgBouncer key has no effect; `None` if it has one, or does not exist.
#[must_use]
pub fn without_effect(name: &str) -> Option<&'static str> {
    match keys::find(GLOBAL, name)?.effect {
        IniKeyEffect::Ignored(reason) => Some(reason),
        IniKeyEffect::SameAs(_) | IniKeyEffect::Converted(_) | IniKeyEffect::AlwaysOn(_) => None,
    }
}

/// The configuration with a PgBouncer key changed; `None` if the key does not exist.
///
/// # Errors
/// Why the key cannot be changed.
pub fn with_setting(config: &Config, name: &str, text: &str) -> Option<Result<Config, ChangeError>> {
    let key = keys::find(GLOBAL, name)?;
    let is_derived = DERIVED.iter().any(|(name, ..)| *name == key.name) && !NOT_SETTABLE.contains(&key.name);
    if path_of(key).is_none() && !is_derived {
        return Some(Err(ChangeError::Fixed(format!("{name} cannot be changed here; {}", key.effect.describe()))));
    }
    if key.kind != IniValueKind::Text && text == "-1" {
        return Some(Err(ChangeError::Invalid(format!("{name}: -1 is not a value"))));
    }
    let ours = config.setting_rows();
    let changes = match map::changes(&rows(&ours), name, text) {
        Ok(changes) => changes,
        Err((reason, help)) => return Some(Err(ChangeError::Invalid(format!("{reason}; {help}")))),
    };
    Some(changes.into_iter().try_fold(config.clone(), |config, (path, value)| match value {
        Some(value) => config.with_value(&path, &value),
        None => {
            let default = ours.iter().find(|row| row.key == path).map_or("", |row| row.default.as_str());
            config.with_setting(&path, default)
        }
    }))
}

fn to_pgbouncer_unit(kind: IniValueKind, shown: &str) -> String {
    match kind {
        IniValueKind::Flag => u8::from(shown == "true").to_string(),
        IniValueKind::List => shown.replace(", ", ","),
        IniValueKind::Seconds => seconds(shown).unwrap_or_else(|| shown.to_owned()),
        _ => shown.to_owned(),
    }
}

/// Converts `250ms` to `0.25`.
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
    fn durations_are_shown_in_seconds() {
        let shown = |text| to_pgbouncer_unit(IniValueKind::Seconds, text);
        assert_eq!([shown("5s"), shown("250ms"), shown("0"), shown("1us")], ["5", "0.25", "0", "0.000001"]);
        assert_eq!(to_pgbouncer_unit(IniValueKind::Flag, "true"), "1");
    }

    #[test]
    fn exporters_find_pgbouncer_names() {
        let config = Config::from_url("postgres://db/shop").expect("a configuration");
        let rows = rows(&config.setting_rows());
        let find = |name: &str| rows.iter().find(|row| row.key == name).map(|row| row.value.clone());
        assert_eq!(find("max_client_conn").as_deref(), Some("10000"));
        assert_eq!(find("query_wait_timeout").as_deref(), Some("120"));
        for (name, value) in [("listen_addr", "127.0.0.1"), ("listen_port", "6432"), ("client_tls_sslmode", "disable")]
        {
            assert_eq!(find(name).as_deref(), Some(value), "{name}");
        }
        let changed = with_setting(&config, "default_pool_size", "7").expect("a key").expect("a value");
        assert_eq!(changed.pool.size, 7);
        assert!(super::with_setting(&config, "listen_port", "1").expect("a key").is_err());
        assert!(without_effect("pkt_buf").is_some() && without_effect("pool_mode").is_none());
        assert!(super::with_setting(&config, "pool.size", "1").is_none());
    }

    #[test]
    fn files_are_not_settable_by_another_name() {
        let config = Config::from_url("postgres://db/shop").expect("a configuration");
        let rows = rows(&config.setting_rows());
        for (name, value) in [("logfile", "/etc/passwd"), ("syslog", "1")] {
            let refused = with_setting(&config, name, value).expect("a key");
            assert!(matches!(refused, Err(ChangeError::NamesFile(_))), "{name}");
            assert!(rows.iter().any(|row| row.key == name && !row.settable), "{name}");
        }
        // Setting the same value changes nothing, and is accepted.
        with_setting(&config, "client_tls_sslmode", "disable").expect("a key").expect("it holds already");
    }

    #[test]
    fn value_classes_are_known_by_both_names() {
        for (name, expected) in [
            ("auth_ldap_options", Some(ValueClass::Secret)),
            ("logfile", Some(ValueClass::File)),
            ("auth_file", Some(ValueClass::File)),
            ("default_pool_size", Some(ValueClass::Plain)),
            ("default_pool_siz", None),
        ] {
            assert_eq!(value_class(name), expected, "{name}");
        }
    }
}
