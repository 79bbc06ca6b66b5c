//! Several servers for one database: their list, and the rules by which a transaction gets one of them.

use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

use super::raw::{RawEntry, RawValue};
use super::section::section;
use super::setting::{Setting, ValueError, list, nearest, text, words};
use super::url::{Host, PORT, is_folder};

words! {
    /// Role of the servers that transactions use.
    pub enum Route {
        /// The server that takes writes.
        Primary = "primary",
        /// A replica.
        Replica = "replica",
        /// A replica, or the primary if there is none.
        PreferReplica = "prefer-replica",
        /// Any server.
        Any = "any",
    }

    /// How one of the eligible servers is chosen.
    pub enum RoutePolicy {
        /// Round robin, by weight.
        RoundRobin = "round_robin",
        /// Least loaded of two random servers, by transactions per weight.
        LeastRequest = "least_request",
        /// Fastest of two random servers, by peak EWMA of the latency.
        PeakEwma = "peak_ewma",
        /// The first that is available, in list order.
        PickFirst = "pick_first",
    }

    /// libpq's `target_session_attrs`, another form of the route.
    pub enum SessionAttrs {
        /// Any server.
        Any = "any",
        /// A server that takes writes.
        ReadWrite = "read-write",
        /// A server that takes no writes.
        ReadOnly = "read-only",
        /// The primary.
        Primary = "primary",
        /// A replica.
        Standby = "standby",
        /// A replica, or the primary if there is none.
        PreferStandby = "prefer-standby",
    }
}

impl SessionAttrs {
    /// The equivalent route.
    #[must_use]
    pub const fn route(self) -> Route {
        match self {
            Self::Any => Route::Any,
            Self::ReadWrite | Self::Primary => Route::Primary,
            Self::ReadOnly | Self::Standby => Route::Replica,
            Self::PreferStandby => Route::PreferReplica,
        }
    }
}

section! {
    /// `[route]`: choice of the server for a transaction.
    pub struct RouteConfig, raw RawRoute {
        /// `primary`, `replica`, `prefer-replica` or `any`: which servers transactions go to.
        route: Route = Route::Primary => Live Pool;
        /// Whether a transaction that starts with BEGIN READ ONLY goes to a replica if there is one.
        read_only_to_replica: bool = false => Live Pool;
        /// `round_robin`, `least_request`, `peak_ewma` or `pick_first`: how one of the eligible servers is chosen.
        policy: RoutePolicy = RoutePolicy::RoundRobin => Live Pool;
        /// Maximum lag of a replica in bytes of WAL; a replica beyond it is not used. 0 is no limit.
        lag_bytes_max: u64 = 0, in 0..=9_223_372_036_854_775_807 => Live Pool;
        /// Maximum lag of a replica in time; a replica beyond it is not used. 0 is no limit.
        lag_max: Duration = Duration::ZERO => Live Pool;
        /// Zone of this gateway: servers of the same `zone` are preferred.
        zone: String = String::new() => Live Pool;
        /// Interval of the probes of each server for its role and lag.
        probe_interval: Duration = Duration::from_secs(1) => Live Pool;
        /// Timeout of a probe. A server that misses two in a row is not used while another one is eligible.
        probe_timeout: Duration = Duration::from_secs(2) => Live Pool;
        /// How long a transaction waits for an eligible server, such as a new primary; 0 fails immediately.
        failover_wait: Duration = Duration::from_secs(30) => Live Pool;
        /// Broken connections in a row after which a server is ejected for `eject_time`; 0 never. If all servers are ejected,
        /// all are used.
        eject_after: u32 = 3, in 0..=1_000_000 => Live Pool;
        /// Duration of the first ejection; later ones are longer.
        eject_time: Duration = Duration::from_secs(10) => Live Pool;
        /// Time in which a server that returns grows to its full share of transactions.
        slow_start: Duration = Duration::ZERO => Live Pool;
    }
}

/// An entry in a list of servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSpec {
    /// Name or address. With a choice of servers, a name with several addresses stands for several servers.
    pub host: Host,
    /// The name is a name of SRV records, which contain the servers and ports; the port of `host` is not used.
    pub srv: bool,
    /// Weight for `round_robin`, `least_request` and `peak_ewma`.
    pub weight: u32,
    /// Zone; empty for none.
    pub zone: String,
}

/// Prefix of a name of SRV records.
const SRV: &str = "srv:";

impl From<Host> for HostSpec {
    fn from(host: Host) -> Self {
        let (host, srv) = match host {
            Host::Tcp { name, port } => match name.strip_prefix(SRV).filter(|name| is_name(name)) {
                Some(name) => (Host::new(name, 0), true),
                None => (Host::Tcp { name, port }, false),
            },
            host @ Host::Unix { .. } => (host, false),
        };
        Self { host, srv, weight: 1, zone: String::new() }
    }
}

/// Formats the host as in a list.
impl fmt::Display for HostSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Tcp { name, .. } if self.srv => write!(f, "{SRV}{name}"),
            host => host.fmt(f),
        }
    }
}

impl HostSpec {
    /// Description and help for a text that can be neither resolved nor connected to.
    pub(crate) fn likely_mistake(&self) -> Option<(&'static str, String)> {
        let Host::Tcp { name, .. } = &self.host else { return None };
        let address = name.split('%').next().unwrap_or_default();
        if is_name(name) || address.parse::<Ipv6Addr>().is_ok() {
            return None;
        }
        if name.contains("://") {
            // The text may contain a password, so it is not shown.
            return Some(("a URL", "write url instead of host".to_owned()));
        }
        if name.contains(',') {
            return Some(("several", "write each as a separate string: [\"10.0.0.1\", \"10.0.0.2\"]".to_owned()));
        }
        match from_text(name).map(|spec| spec.host) {
            Ok(Host::Tcp { name: alone, port }) if is_name(&alone) || alone.parse::<Ipv6Addr>().is_ok() => {
                Some(("a host with a port", format!("write {alone} as the host, and {port} as the port")))
            }
            _ => Some((
                "neither a name nor an address",
                "write the name or the address of the server, or the folder of its socket".to_owned(),
            )),
        }
    }
}

/// Whether a text can be the name of a host, or an IPv4 address.
fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control() || ":/[],".contains(c))
}

/// The servers of a database.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostList(pub Vec<HostSpec>);

const EXAMPLE: &str = "[\"10.0.0.1:5432\", \"10.0.0.2\"], or [{ host = \"10.0.0.1\", weight = 2, zone = \"a\" }]";
const KEYS: &[&str] = &["host", "port", "weight", "zone"];
const WEIGHT_MAX: i64 = 1_000_000;

impl Setting for HostList {
    fn read(value: &RawValue) -> Result<Self, ValueError> {
        let hosts = list(value, EXAMPLE, |value| match value {
            RawValue::Table(table) => from_table(&table.entries),
            other => from_text(text(other, "\"10.0.0.1:5432\"")?),
        })?;
        if hosts.is_empty() {
            return Err(ValueError::new("the list of hosts is empty", format!("write {EXAMPLE}")));
        }
        Ok(Self(hosts))
    }

    fn show(&self) -> String {
        self.0.iter().map(HostSpec::to_string).collect::<Vec<_>>().join(", ")
    }
}

/// Parses `name`, `name:port`, `[::1]:port`, `/folder` or `srv:_postgresql._tcp.name`.
fn from_text(text: &str) -> Result<HostSpec, ValueError> {
    let text = text.trim();
    if let Some(name) = text.strip_prefix(SRV) {
        if !is_name(name) {
            let lack = if name.is_empty() { "`srv:` needs a name" } else { "`srv:` takes only a name" };
            return Err(ValueError::new(
                lack,
                "write \"srv:_postgresql._tcp.db.example\"; the records contain the ports",
            ));
        }
        return Ok(Host::new(text, 0).into());
    }
    let broken = |reason: &str| ValueError::new(format!("`{text}`: {reason}"), format!("write {EXAMPLE}"));
    if text.is_empty() {
        return Err(ValueError::new("the list of hosts has an empty entry", format!("write {EXAMPLE}")));
    }
    if is_folder(text) {
        return Ok(Host::new(text, PORT).into());
    }
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, rest) = rest.split_once(']').ok_or_else(|| broken("the closing bracket is missing"))?;
            (name, rest.strip_prefix(':'))
        }
        // Several colons without brackets are an IPv6 address without a port.
        None if text.matches(':').count() > 1 => (text, None),
        None => text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port))),
    };
    let port = match port {
        None => PORT,
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(|| broken("this is not a port"))?,
    };
    if name.is_empty() {
        return Err(broken("the name is missing"));
    }
    Ok(Host::new(name, port).into())
}

fn from_table(entries: &[RawEntry]) -> Result<HostSpec, ValueError> {
    let (mut spec, mut port) = (None, None);
    let (mut weight, mut zone) = (1, String::new());
    for entry in entries {
        let value = &entry.node.value;
        let at = |error: ValueError| ValueError { at: error.at.or(Some(entry.node.at.clone())), ..error };
        match entry.key.as_str() {
            "host" => spec = Some(from_text(text(value, "\"10.0.0.1\"").map_err(at)?).map_err(at)?),
            "port" => port = Some(super::setting::within::<u16>(value, &(1..=65535)).map_err(at)?),
            "weight" => weight = self::weight(value).map_err(at)?,
            "zone" => zone = String::read(value).map_err(at)?,
            unknown => {
                let help = match nearest(unknown, KEYS.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("the keys of a host are {}", KEYS.join(", ")),
                };
                let error = ValueError::new(format!("unknown key `{unknown}`"), help);
                return Err(ValueError { at: Some(entry.key_at.clone()), ..error });
            }
        }
    }
    let spec: HostSpec = spec.ok_or_else(|| ValueError::new("this entry has no `host`", format!("write {EXAMPLE}")))?;
    Ok(HostSpec { host: spec.host.on_port(port), weight, zone, ..spec })
}

fn weight(value: &RawValue) -> Result<u32, ValueError> {
    let help = format!("write a whole number from 0 to {WEIGHT_MAX}");
    match value {
        RawValue::Integer(number @ 0..=WEIGHT_MAX) => Ok(u32::try_from(*number).unwrap_or(1)),
        RawValue::Integer(number) => Err(ValueError::new(format!("{number} is out of range"), help)),
        other => Err(ValueError::new(format!("expected a number, found {}", other.kind()), help)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_listed_host_is_parsed() {
        for (written, shown, srv) in [
            ("10.0.0.1", "10.0.0.1:5432", false),
            ("db:7000", "db:7000", false),
            ("[::1]:7000", "[::1]:7000", false),
            ("[::1]", "[::1]:5432", false),
            ("fe80::1", "[fe80::1]:5432", false),
            ("/run/pg", "/run/pg/.s.PGSQL.5432", false),
            ("@pg", "@pg/.s.PGSQL.5432", false),
            ("srv:_postgresql._tcp.db.example", "srv:_postgresql._tcp.db.example", true),
        ] {
            let spec = from_text(written).expect(written);
            assert_eq!((spec.to_string().as_str(), spec.srv), (shown, srv), "{written}");
        }
        for written in ["", "db:", "db:0", "db:x", ":5432", "[::1", "srv:"] {
            assert!(from_text(written).is_err(), "{written}");
        }
    }

    #[test]
    fn an_impossible_host_is_detected() {
        let seen = |name: &str| HostSpec::from(Host::new(name, PORT)).likely_mistake();
        for name in
            ["db", "10.0.0.1", "::1", "fe80::1%eth0", "/run/pg", "@pg", "srv:_pg._tcp.db.example", "düsseldorf.example"]
        {
            assert_eq!(seen(name), None, "{name}");
        }
        for (name, help) in [
            ("db:5433", "write db as the host, and 5433 as the port"),
            ("10.0.0.1:5433", "write 10.0.0.1 as the host, and 5433 as the port"),
            ("[::1]:5433", "write ::1 as the host, and 5433 as the port"),
            ("postgres://app:secret@db/shop", "write url instead of host"),
        ] {
            assert_eq!(seen(name).map(|seen| seen.1).as_deref(), Some(help), "{name}");
        }
        assert_eq!(seen("db1,db2").map(|seen| seen.0), Some("several"));
        for name in ["a b", "srv:", "srv:a b", "run/pg", "db:", "db:x:y"] {
            assert_eq!(seen(name).map(|seen| seen.0), Some("neither a name nor an address"), "{name}");
        }
    }

    #[test]
    fn session_attributes_are_routes() {
        let route = |word: &str| word.parse::<SessionAttrs>().expect(word).route();
        assert_eq!(route("read-write"), Route::Primary);
        assert_eq!(route("standby"), Route::Replica);
        assert_eq!(route("prefer-standby"), Route::PreferReplica);
        assert_eq!(route("any"), Route::Any);
    }
}
