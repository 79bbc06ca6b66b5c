//! PgBouncer's names for settings in force: for `SHOW CONFIG`, which exporters read, and for `SET`.

use super::{
    keys::{self, Effect, GLOBAL, Key, Kind},
    map,
};
use crate::config::{Config, Row};

/// Keys whose value is one of ours, although they are put together from more.
const ALSO: &[(&str, &str)] = &[
    ("default_pool_size", "pool.size"),
    ("min_pool_size", "pool.min_size"),
    ("reserve_pool_size", "pool.reserve_size"),
    ("server_check_query", "pool.server_check"),
    ("server_lifetime", "timeouts.server_lifetime"),
    ("dns_zone_check_period", "dns.check_period"),
    ("max_packet_size", "pool.message_max"),
];

fn path_of(key: &Key) -> Option<&'static str> {
    match key.effect {
        Effect::Is(path) => Some(path),
        _ => ALSO.iter().find(|(name, _)| *name == key.name).map(|(_, path)| *path),
    }
}

/// The rows under PgBouncer's names, in its units.
#[must_use]
pub fn rows(rows: &[Row]) -> Vec<Row> {
    let alias = |key: &Key| {
        let path = path_of(key)?;
        let row = rows.iter().find(|row| row.key == path)?;
        Some(Row {
            key: key.name.to_owned(),
            value: in_its_unit(key.kind, &row.value),
            default: key.default.unwrap_or_default().to_owned(),
            reloadable: row.reloadable,
        })
    };
    GLOBAL.iter().filter_map(alias).collect()
}

/// The configuration with a key of PgBouncer changed; nothing if it has no such key.
///
/// # Errors
/// Why it cannot be changed to that.
pub fn changed(config: &Config, name: &str, text: &str) -> Option<Result<Config, String>> {
    let key = keys::find(GLOBAL, name)?;
    let Some(path) = path_of(key) else {
        return Some(Err(format!("{name} cannot be changed here; {}", key.effect.told())));
    };
    let value = match map::value(key.kind, text, &(0..0)) {
        Ok(Some(value)) => value,
        Ok(None) => return Some(Err(format!("{name}: -1 is no value"))),
        Err((reason, help)) => return Some(Err(format!("{name}: {reason}; {help}"))),
    };
    Some(config.with_value(path, &value))
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
        let changed = changed(&config, "default_pool_size", "7").expect("a key").expect("a value");
        assert_eq!(changed.pool.size, 7);
        assert!(super::changed(&config, "pkt_buf", "1").expect("a key").is_err());
        assert!(super::changed(&config, "pool.size", "1").is_none());
    }
}
