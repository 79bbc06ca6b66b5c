//! Postgres URLs: `postgres://user:password@host:port,host:port/dbname?sslmode=require`.
//!
//! The grammar is libpq's (PostgreSQL documentation, "Connection URIs"). Parsers of web URLs refuse host lists and
//! sockets. No error repeats a part of the URL that could be a password.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::raw::{RawTable, RawValue, SpannedValue};
use super::secret::Secret;
use super::setting::{Setting, ValueClass, ValueError, nearest, text};

/// Default port of Postgres.
pub(crate) const PORT: u16 = 5432;

/// Address on which a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name or an address.
    Tcp {
        /// Name or IP address, without brackets.
        name: String,
        /// Port.
        port: u16,
    },
    /// A Unix socket.
    Unix {
        /// Directory of the socket.
        dir: PathBuf,
        /// Port in the name of the socket file.
        port: u16,
    },
}

impl Host {
    /// Creates a host as libpq does: a name that starts with `/` is a directory, and a name that starts with `@` is an
    /// abstract socket.
    pub fn new(name: &str, port: u16) -> Self {
        if is_folder(name) {
            Self::Unix { dir: PathBuf::from(name), port }
        } else {
            Self::Tcp { name: name.to_owned(), port }
        }
    }

    /// The host with another port, if one is given.
    #[must_use]
    pub(crate) fn on_port(self, other: Option<u16>) -> Self {
        match (self, other) {
            (Self::Tcp { name, .. }, Some(port)) => Self::Tcp { name, port },
            (Self::Unix { dir, .. }, Some(port)) => Self::Unix { dir, port },
            (host, None) => host,
        }
    }

    /// The socket file of [`Host::Unix`].
    pub fn socket_path(&self) -> Option<PathBuf> {
        match self {
            Self::Unix { dir, port } => Some(socket_path(dir, *port)),
            Self::Tcp { .. } => None,
        }
    }
}

/// Whether a host is a directory of Unix sockets, or the name of an abstract one.
pub(crate) fn is_folder(host: &str) -> bool {
    host.starts_with(['/', '@'])
}

pub(crate) fn socket_path(dir: &Path, port: u16) -> PathBuf {
    dir.join(format!(".s.PGSQL.{port}"))
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { name, port } if name.contains(':') => write!(f, "[{name}]:{port}"),
            Self::Tcp { name, port } => write!(f, "{name}:{port}"),
            Self::Unix { dir, port } => write!(f, "{}", socket_path(dir, *port).display()),
        }
    }
}

/// Parts of a Postgres URL; missing ones are empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PgUrl {
    /// The servers, in order.
    pub hosts: Vec<Host>,
    /// Name of the database.
    pub dbname: String,
    /// User of the login.
    pub user: String,
    /// Password of the login.
    pub password: Secret,
    /// Parameters such as `sslmode`, by their keys in `[databases.NAME]`.
    pub keys: Vec<(&'static str, String)>,
    /// `connect_timeout` in seconds, as written.
    pub connect_timeout: Option<u32>,
    /// Startup parameters of server logins.
    pub parameters: Vec<(String, String)>,
    /// Parameters of libpq that have no effect in a gateway.
    pub ignored: Vec<String>,
}

const ENCODE: &str = "in names and passwords, write : / ? # [ ] @ % as %3A %2F %3F %23 %5B %5D %40 %25: \
                      postgres://user:pass%40word@host:5432/db";
const KEYS: &[&str] =
    &["sslmode", "sslrootcert", "sslcert", "sslkey", "sslnegotiation", "channel_binding", "target_session_attrs"];
const LOGIN: &[&str] = &["host", "port", "user", "password", "dbname", "connect_timeout"];
const PARAMETERS: &[&str] = &["application_name", "client_encoding", "options"];
const IGNORED: &[&str] = &[
    "hostaddr",
    "passfile",
    "require_auth",
    "fallback_application_name",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "gssencmode",
    "krbsrvname",
    "gsslib",
    "gssdelegation",
    "sslcompression",
    "sslcertmode",
    "sslpassword",
    "sslcrl",
    "sslcrldir",
    "sslsni",
    "requirepeer",
    "ssl_min_protocol_version",
    "ssl_max_protocol_version",
    "load_balance_hosts",
    "min_protocol_version",
    "max_protocol_version",
];

impl PgUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// Why the URL is invalid, and what to write.
    pub fn parse(url: &str) -> Result<Self, ValueError> {
        let rest = url.strip_prefix("postgres://").or_else(|| url.strip_prefix("postgresql://")).ok_or_else(|| {
            let help = "write postgres://user:password@host:5432/dbname";
            ValueError::new("this is not a Postgres URL", help)
        })?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if query.contains('@') {
            return Err(ValueError::new("there is an `@` after the `?` of the URL", ENCODE));
        }
        let (authority, dbname) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let mut parsed = Self {
            hosts: hosts
                .split(',')
                .filter(|_| !hosts.is_empty())
                .map(|spec| host(spec, !login.is_empty()))
                .collect::<Result<_, _>>()?,
            dbname: decode(dbname)?,
            user: decode(user)?,
            password: Secret::new(decode(password)?),
            ..Self::default()
        };
        let (mut host, mut port) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or_else(|| {
                ValueError::new(
                    "a parameter of the URL has no value",
                    "write name=value, joined by &: ?sslmode=require",
                )
            })?;
            match (decode(name)?, decode(value)?) {
                (name, value) if name == "host" => host = Some(value),
                (name, value) if name == "port" => port = Some(port_number(&value, true)?),
                (name, value) => parsed.parameter(&name, value)?,
            }
        }
        parsed.with_hosts(host.as_deref(), port)
    }

    /// The parts that correspond to keys of `[databases.NAME]`, without missing ones.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&'static str, String)> {
        let login = [
            ("dbname", self.dbname.clone()),
            ("user", self.user.clone()),
            ("password", self.password.reveal().to_owned()),
        ];
        self.keys.clone().into_iter().chain(login).filter(|(_, text)| !text.is_empty())
    }

    /// Sets the hosts from the parameters `host` and `port`, or to localhost if the URL names none.
    fn with_hosts(mut self, host: Option<&str>, port: Option<u16>) -> Result<Self, ValueError> {
        if self.hosts.is_empty() {
            self.hosts = host_list(host.unwrap_or("localhost"), port.unwrap_or(PORT))?;
        } else if host.is_some() || port.is_some() {
            return Err(ValueError::new("the URL has two hosts", "leave out the parameters host and port"));
        }
        Ok(self)
    }

    fn parameter(&mut self, name: &str, value: String) -> Result<(), ValueError> {
        if let Some(key) = KEYS.iter().find(|key| **key == name) {
            self.keys.push((key, value));
        } else if PARAMETERS.contains(&name) {
            self.parameters.push((name.to_owned(), value));
        } else if IGNORED.contains(&name) {
            self.ignored.push(name.to_owned());
        } else {
            match name {
                "user" => self.user = value,
                "password" => self.password = Secret::new(value),
                "dbname" => self.dbname = value,
                "connect_timeout" => self.connect_timeout = Some(seconds(&value)?),
                _ => return Err(unknown_parameter(name)),
            }
        }
        Ok(())
    }
}

impl std::str::FromStr for PgUrl {
    type Err = String;

    /// Parses a URL. The error has the reason and what to write, and repeats nothing that may be a password.
    fn from_str(url: &str) -> Result<Self, String> {
        Self::parse(url).map_err(|error| format!("{}: {}", error.reason, error.help))
    }
}

fn unknown_parameter(name: &str) -> ValueError {
    let known = [KEYS, LOGIN, PARAMETERS, IGNORED].concat();
    let help = match nearest(name, known.into_iter()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "write other server settings in startup_parameters".to_owned(),
    };
    ValueError::new(format!("the URL has an unknown parameter `{name}`"), help)
}

fn seconds(text: &str) -> Result<u32, ValueError> {
    text.parse()
        .map_err(|_| ValueError::new("connect_timeout of the URL is not a number", "write seconds: connect_timeout=5"))
}

/// Parses `host`, `host:port`, `[::1]:port` or `%2Ffolder`. Without a login before it, the text may also be part of a
/// password that contains a `/`.
fn host(spec: &str, is_behind_login: bool) -> Result<Host, ValueError> {
    let broken =
        || ValueError::new("the URL has an IPv6 address without its closing bracket", "write postgres://[::1]:5432/");
    let (name, port) = match spec.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(broken)?,
        None => spec.split_at(spec.find(':').unwrap_or(spec.len())),
    };
    let port = match (port, port.strip_prefix(':')) {
        ("", _) | (_, Some("")) => PORT,
        (_, Some(port)) => port_number(port, is_behind_login).map_err(|error| srv_name_in_url(name, error))?,
        _ => {
            return Err(ValueError::new("the URL has text between `]` and the port", "write postgres://[::1]:5432/"));
        }
    };
    let name = decode(name)?;
    if spec.starts_with('[') && name.parse::<IpAddr>().is_err() {
        return Err(ValueError::new("the URL has no IPv6 address in its brackets", "write postgres://[::1]:5432/"));
    }
    Ok(Host::new(if name.is_empty() { "localhost" } else { &name }, port))
}

fn port_number(text: &str, is_sure: bool) -> Result<u16, ValueError> {
    let help = if is_sure { "write postgres://user@host:5432/db; without a port it is 5432" } else { ENCODE };
    text.parse()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| ValueError::new("the URL has a port that is not a number from 1 to 65535", help))
}

/// Replaces the error for a name of SRV records, which a URL cannot contain.
fn srv_name_in_url(host: &str, error: ValueError) -> ValueError {
    if host != "srv" {
        return error;
    }
    ValueError::new(
        "a URL cannot contain an SRV name",
        "write host = \"srv:NAME\" in [databases.NAME], with dbname, user and password beside it",
    )
}

/// Parses a comma-separated list of hosts with the same port.
pub(crate) fn host_list(hosts: &str, port: u16) -> Result<Vec<Host>, ValueError> {
    let one = |name: &str| match name.trim() {
        "" => Err(ValueError::new("the list of hosts has an empty entry", "write host = \"first,second\"")),
        name => Ok(Host::new(name, port)),
    };
    hosts.split(',').map(one).collect()
}

/// Decodes percent-encoding.
pub fn decode(text: &str) -> Result<String, ValueError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' { hex(rest.next(), rest.next())? } else { byte });
    }
    let decoded = String::from_utf8(bytes).map_err(|_| ValueError::new("the decoded URL is not UTF-8", ENCODE))?;
    if decoded.contains('\0') {
        return Err(ValueError::new("the URL has a zero byte (%00)", "remove it; Postgres strings end at a zero byte"));
    }
    Ok(decoded)
}

fn hex(high: Option<u8>, low: Option<u8>) -> Result<u8, ValueError> {
    let digit = |byte: Option<u8>| char::from(byte?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    digit(high).zip(digit(low)).map(|(high, low)| high * 16 + low).ok_or_else(not_encoded)
}

fn not_encoded() -> ValueError {
    ValueError::new("the URL has a `%` that is not followed by two hexadecimal digits", ENCODE)
}

/// The raw configuration of a URL; see [`Config::from_url`](super::Config::from_url).
pub(crate) fn document(url: &str) -> RawTable {
    let at = 0..url.len();
    let section = |name: &str, table: RawTable| {
        let mut outer = RawTable::default();
        outer.push(name, RawValue::Table(table), at.clone());
        outer
    };
    // The check reports an invalid URL, as in a file.
    let parsed = PgUrl::parse(url).unwrap_or_default();
    let (mut database, mut auth, mut root) = (RawTable::default(), RawTable::default(), RawTable::default());
    database.push_text("url", url, at.clone());
    let name = if parsed.dbname.is_empty() { "*" } else { &parsed.dbname };
    root.push("databases", RawValue::Table(section(name, database)), at.clone());
    if parsed.user.is_empty() || parsed.password.is_empty() {
        auth.push_text("method", "trust", at.clone());
        root.push("auth", RawValue::Table(auth), at.clone());
    } else {
        let mut user = RawTable::default();
        user.push_text("password", parsed.password.reveal(), at.clone());
        root.push("users", RawValue::Table(section(&parsed.user, user)), at.clone());
        let name = SpannedValue { value: RawValue::Text(parsed.user.clone()), at: at.clone() };
        let mut admin = RawTable::default();
        admin.push("users", RawValue::List(vec![name]), at.clone());
        root.push("admin", RawValue::Table(admin), at.clone());
    }
    root
}

impl Setting for PgUrl {
    const CLASS: ValueClass = ValueClass::Secret;

    fn read(value: &RawValue) -> Result<Self, ValueError> {
        Self::parse(text(value, "\"postgres://user:password@host:5432/dbname\"")?)
    }

    fn show(&self) -> String {
        if *self == Self::default() { String::new() } else { "***".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(url: &str) -> String {
        let parsed = PgUrl::parse(url).expect(url);
        parsed.hosts.iter().map(Host::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_form_of_host_is_parsed() {
        assert_eq!(hosts("postgres://"), "localhost:5432");
        assert_eq!(hosts("postgres:///shop"), "localhost:5432");
        assert_eq!(hosts("postgresql://db:7000/shop"), "db:7000");
        assert_eq!(hosts("postgres://u@a:1,b,[::1]:3/shop"), "a:1 b:5432 [::1]:3");
        assert_eq!(hosts("postgres://%2Frun%2Fpg/shop"), "/run/pg/.s.PGSQL.5432");
        assert_eq!(hosts("postgres:///shop?host=/run/pg&port=6000"), "/run/pg/.s.PGSQL.6000");
    }

    #[test]
    fn login_and_parameters_are_decoded() {
        let url = "postgres://us%65r:p%40ss%3aword@h/my%20db?sslmode=require&application_name=a%26b&connect_timeout=7&sslsni=1";
        let parsed = PgUrl::parse(url).expect("a URL");
        assert_eq!(
            (parsed.user.as_str(), parsed.password.reveal(), parsed.dbname.as_str()),
            ("user", "p@ss:word", "my db")
        );
        assert_eq!(parsed.keys, [("sslmode", "require".to_owned())]);
        assert_eq!(parsed.parameters, [("application_name".to_owned(), "a&b".to_owned())]);
        assert_eq!((parsed.connect_timeout, parsed.ignored), (Some(7), vec!["sslsni".to_owned()]));
    }

    #[test]
    fn an_error_has_help() {
        for (url, help) in [
            ("postgres://u@db:NAME/shop", "user@host:5432"),
            ("postgres://u:p@a:1,b:0/shop", "user@host:5432"),
            ("postgres:///shop?port=x", "user@host:5432"),
            ("postgres://u@srv:_pg._tcp.db.example/shop", "host = \"srv:NAME\""),
            // The text may be a password that is not encoded.
            ("postgres://u:pass/word@db/shop", "%2F"),
        ] {
            let error = PgUrl::parse(url).expect_err(url);
            assert!(error.help.contains(help), "{url}: {error:?}");
        }
        assert_eq!(hosts("postgres://u@srv:5433/shop"), "srv:5433");
    }

    #[test]
    fn errors_do_not_repeat_a_password() {
        for url in [
            "mysql://app:hunter2@h/db",
            "postgres://app:hunter2/x@h/db",
            "postgres://app:hunter2?x@h/db",
            "postgres://app:hunter2%@h/db",
            "postgres://app:hunter2@h:70000/db",
            "postgres://app:hunter2@[::1/db",
            "postgres://app:hunter2@[::1]x/db",
            "postgres://app:hunter2@[nonsense]/db",
            "postgres://app:hunter2@h/db?sslmod=require",
            "postgres://app:hunter2@h/db?sslmode",
            "postgres://app:hunter2@h/db?host=other",
            "postgres://app:hunter2%00@h/db",
            "postgres://app:hunter2%ff@h/db",
        ] {
            let error = PgUrl::parse(url).expect_err(url);
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
