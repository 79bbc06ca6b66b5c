//! From what was written to what holds: every key known and in range, every combination possible, or a finding each.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tidegate_link::is_abstract;

use super::finding::{ConfigErrors, Finding, FindingKind, Severity};
use super::hosts::RouteSettings;
use super::keys::{
    Admin, Auth, AuthMethod, DatabaseKeys, Dialect, Dns, Journal, Listen, Log, Metrics, PeerKeys, PoolSettings,
    Runtime, Tcp, Timeouts, UserKeys,
};
use super::path;
use super::raw::{Entry, Source, Span, Table, Value};
use super::section::{Key, Keys, Settings};
use super::setting::{Holds, Wrong, nearest};
use super::stream::StreamKeys;
use super::{Config, Database, NO_LDAP, NO_LDAP_HELP, NO_PAM, NO_PAM_HELP, User};
use crate::hba::Ldap;

mod disk;
mod journal;
mod peer;
pub(super) mod stream;
mod tls;
mod upstream;
mod user;

pub(crate) use disk::Disk;

/// Checks a raw configuration; shared by every format.
pub(crate) fn check(source: &Source, root: &Table, disk: Disk<'_>) -> Result<Config, ConfigErrors> {
    let mut checker = Checker::new(source, disk);
    let config = checker.config(root);
    let refused = checker.findings.iter().any(|finding| finding.severity == Severity::Error);
    let findings = ConfigErrors::new(checker.findings);
    if refused {
        return Err(findings);
    }
    Ok(Config { warnings: findings.into_findings(), secret_files: checker.secret_files, ..config })
}

/// The sections and their keys; whoever meets an unknown one looks here for where it belongs.
pub(crate) const SECTIONS: &[(&str, &[Key])] = &[
    ("listen", Listen::KEYS),
    ("auth", Auth::KEYS),
    ("pool", PoolSettings::KEYS),
    ("timeouts", Timeouts::KEYS),
    ("route", RouteSettings::KEYS),
    ("databases.NAME", DatabaseKeys::KEYS),
    ("users.NAME", UserKeys::KEYS),
    ("peers.ID", PeerKeys::KEYS),
    ("admin", Admin::KEYS),
    ("log", Log::KEYS),
    ("dns", Dns::KEYS),
    ("metrics", Metrics::KEYS),
    ("tcp", Tcp::KEYS),
    ("journal", Journal::KEYS),
    ("runtime", Runtime::KEYS),
    ("streams", StreamKeys::KEYS),
];

/// The section that is a list of tables.
const LISTED: &str = "streams";

/// The names of the sections, without what follows a dot.
fn section_names() -> impl Iterator<Item = &'static str> {
    SECTIONS.iter().map(|(name, _)| name.split('.').next().unwrap_or(name))
}

/// One table of the configuration and where it stands.
struct Section<'t> {
    path: String,
    table: &'t Table,
    at: Span,
}

/// What a finding is about: a key with its section, and where it is written.
struct Place {
    key: String,
    at: Span,
}

static NOTHING: Table = Table { entries: Vec::new() };

impl<'t> Section<'t> {
    /// The section of that name; an empty one if it is not written.
    fn of(root: &'t Table, name: &str) -> Self {
        let path = name.to_owned();
        match root.entry(name) {
            Some(Entry { key_at, node, .. }) => {
                let table = if let Value::Table(table) = &node.value { table } else { &NOTHING };
                Self { path, table, at: key_at.clone() }
            }
            None => Self { path, table: &NOTHING, at: 0..0 },
        }
    }

    fn has(&self, key: &str) -> bool {
        self.table.entry(key).is_some()
    }

    /// The value of the first of these keys that is written, under the name of the first; the section itself if none
    /// is.
    fn place(&self, keys: &[&str]) -> Place {
        let written = keys.iter().find_map(|key| self.table.entry(key));
        Place {
            key: keys.first().map_or(self.path.clone(), |key| self.key(key)),
            at: written.map_or(self.at.clone(), |entry| entry.node.at.clone()),
        }
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }
}

struct Checker<'s> {
    source: &'s Source,
    disk: Disk<'s>,
    findings: Vec<Finding>,
    /// The files whose text has secrets in it.
    secret_files: BTreeSet<PathBuf>,
}

impl<'s> Checker<'s> {
    fn new(source: &'s Source, disk: Disk<'s>) -> Self {
        Self { source, disk, findings: Vec::new(), secret_files: BTreeSet::new() }
    }
}

impl Checker<'_> {
    fn config(&mut self, root: &Table) -> Config {
        self.sections(root);
        let pool = self.settings(&Section::of(root, "pool"));
        self.pool(&Section::of(root, "pool"), &pool);
        let auth = self.auth(&Section::of(root, "auth"));
        let listen = self.listen(&Section::of(root, "listen"));
        self.whether_there_is_a_database(root, listen.dialect);
        let databases = self.databases(&Section::of(root, "databases"), &pool);
        let is_looked_up = super::looks_up_users(&auth, &databases);
        let config = Config {
            timeouts: self.settings(&Section::of(root, "timeouts")),
            route: self.settings(&Section::of(root, "route")),
            databases,
            users: self.users(&Section::of(root, "users"), &auth, is_looked_up),
            peers: self.peers(&Section::of(root, "peers"), &listen),
            admin: self.settings(&Section::of(root, "admin")),
            log: self.log(&Section::of(root, "log")),
            dns: self.dns(&Section::of(root, "dns")),
            metrics: self.settings(&Section::of(root, "metrics")),
            tcp: self.settings(&Section::of(root, "tcp")),
            journal: self.journal(&Section::of(root, "journal")),
            runtime: self.runtime(&Section::of(root, "runtime")),
            streams: self.streams(root),
            listen,
            auth,
            pool,
            user_file: String::new(),
            secret_files: BTreeSet::new(),
            warnings: Vec::new(),
        };
        self.probes(&Section::of(root, "route"), &config.route);
        self.verifiers(&Section::of(root, "databases"), &config);
        self.certificates(&Section::of(root, "auth"), &config);
        self.reachability(&Section::of(root, "auth"), &config);
        config
    }

    /// Finds the sections that do not exist, and those that are not tables.
    fn sections(&mut self, root: &Table) {
        for entry in &root.entries {
            let is_table = match entry.key.as_str() {
                LISTED => matches!(entry.node.value, Value::List(_)),
                _ => matches!(entry.node.value, Value::Table(_)),
            };
            if !section_names().any(|name| name == entry.key) {
                let help = help_for_section(&entry.key, is_table);
                self.unknown(entry, &entry.key, format!("unknown section `{}`", entry.key), help);
            } else if !is_table {
                let expected = if entry.key == LISTED { "a list of tables" } else { "a table" };
                let reason = format!("expected {expected}, found {}", entry.node.value.kind());
                let help = format!("begin a section: {}", bracketed(&entry.key));
                self.unknown(entry, &entry.key, reason, help);
            }
        }
    }

    /// Reads a section that has nothing but its own keys.
    fn settings<S: Settings>(&mut self, section: &Section<'_>) -> S {
        let mut raw = S::Raw::default();
        self.fill(section, &mut [&mut raw]);
        S::from_raw(&raw)
    }

    /// Sets every key of the section in the first target that has it.
    fn fill(&mut self, section: &Section<'_>, targets: &mut [&mut dyn Keys]) {
        for entry in &section.table.entries {
            let (name, value) = (entry.key.as_str(), &entry.node.value);
            self.note_secret(section, entry);
            match targets.iter_mut().find_map(|target| target.set(name, value)) {
                Some(Ok(())) => {}
                Some(Err(wrong)) => self.wrong(section.place(&[name]), wrong),
                None => {
                    let keys = targets.iter().map(|target| target.keys()).collect::<Vec<_>>();
                    let help = help_for_address(&section.path, name).unwrap_or_else(|| help_for_key(name, &keys));
                    let reason = format!("unknown key `{name}` in {}", bracketed(&section.path));
                    self.unknown(entry, &section.key(name), reason, help);
                }
            }
        }
    }

    /// Remembers which file has a secret in its text.
    fn note_secret(&mut self, section: &Section<'_>, entry: &Entry) {
        let is_secret = match &entry.node.value {
            Value::Text(text) if text.contains("://") => text.split('@').next().is_some_and(|login| {
                login.len() < text.len() && login.split("://").nth(1).is_some_and(|login| login.contains(':'))
            }),
            // Parameters of logins are seldom secrets.
            Value::Text(text) => !text.is_empty() && path::holds(&section.key(&entry.key)) == Some(Holds::Secret),
            Value::Table(_) => matches!(entry.key.as_str(), "headers" | "kafka_properties"),
            _ => false,
        };
        if is_secret && matches!(self.disk, Disk::Folder(_)) {
            let file = Path::new(self.source.file(entry.node.at.start));
            if !self.secret_files.contains(file) {
                self.secret_files.insert(file.to_owned());
            }
        }
    }

    /// The table of `[databases.NAME]` or `[users.NAME]`.
    fn named<'t>(&mut self, parent: &Section<'_>, entry: &'t Entry) -> Option<Section<'t>> {
        let path = parent.key(&entry.key);
        if entry.key.is_empty() || entry.key.contains('\0') {
            let help = format!("write [{}.NAME]", parent.path);
            self.unknown(entry, &path, "this cannot be a name".to_owned(), help);
            return None;
        }
        if let Value::Table(table) = &entry.node.value {
            return Some(Section { path, table, at: entry.key_at.clone() });
        }
        let reason = format!("expected a table, found {}", entry.node.value.kind());
        let help = format!("begin a section: [{path}]");
        self.unknown(entry, &path, reason, help);
        None
    }

    fn listen(&mut self, section: &Section<'_>) -> Listen {
        let mut listen: Listen = self.settings(section);
        if listen.addresses.is_empty() && listen.unix_socket_dir.as_os_str().is_empty() {
            let help = "write addresses = [\"127.0.0.1:6432\"], or name a folder in unix_socket_dir";
            self.error(section.place(&["addresses"]), "no client could come in", help);
        }
        if !is_abstract(&listen.unix_socket_dir) {
            self.folder(section, "unix_socket_dir", &mut listen.unix_socket_dir);
        }
        self.file(section, "tls_cert", &mut listen.tls_cert);
        self.file(section, "tls_key", &mut listen.tls_key);
        self.file(section, "tls_client_ca", &mut listen.tls_client_ca);
        self.listen_tls(section, &listen);
        self.client_certificates(section, &listen);
        listen
    }

    fn auth(&mut self, section: &Section<'_>) -> Auth {
        let mut auth: Auth = self.settings(section);
        if auth.method == AuthMethod::Hba && auth.hba_file.as_os_str().is_empty() {
            let help = "add hba_file = \"/path/to/pg_hba.conf\", or write another method";
            self.error(section.place(&["method"]), "method hba without its rules", help);
        }
        if auth.method == AuthMethod::Pam && !cfg!(feature = "pam") {
            self.error(section.place(&["method"]), NO_PAM, NO_PAM_HELP);
        }
        if auth.method == AuthMethod::Ldap {
            if !cfg!(feature = "ldap") {
                self.error(section.place(&["method"]), NO_LDAP, NO_LDAP_HELP);
            } else if let Err(reason) = Ldap::parse(auth.ldap_options.reveal()) {
                let help =
                    "write options as in pg_hba.conf: ldapurl=\"ldap://host/dc=example,dc=net?uid?sub\", for one";
                self.error(section.place(&["ldap_options", "method"]), reason, help);
            }
        }
        self.file(section, "hba_file", &mut auth.hba_file);
        self.file(section, "ident_file", &mut auth.ident_file);
        auth
    }

    fn log(&mut self, section: &Section<'_>) -> Log {
        let mut log: Log = self.settings(section);
        self.future_path(&mut log.file);
        if log.stats_period.is_zero() {
            self.error(section.place(&["stats_period"]), "a period of nothing", "write stats_period = \"60s\"");
        }
        log
    }

    fn dns(&mut self, section: &Section<'_>) -> Dns {
        let mut dns: Dns = self.settings(section);
        self.file(section, "resolv_conf", &mut dns.resolv_conf);
        if !dns.servers.0.is_empty() && !dns.resolv_conf.as_os_str().is_empty() {
            let help = "leave out one of them";
            self.error(section.place(&["resolv_conf"]), "servers says already who is asked", help);
        }
        if dns.ttl_min.is_zero() {
            self.error(
                section.place(&["ttl_min"]),
                "names would be looked up without a pause",
                "write ttl_min = \"5s\"",
            );
        }
        if dns.ttl_max < dns.ttl_min {
            let help = "write a ttl_max that is not shorter than ttl_min";
            self.error(section.place(&["ttl_max", "ttl_min"]), "ttl_max is shorter than ttl_min", help);
        }
        dns
    }

    fn runtime(&mut self, section: &Section<'_>) -> Runtime {
        let mut runtime: Runtime = self.settings(section);
        self.future_path(&mut runtime.pid_file);
        runtime
    }

    /// Warns of a gateway that everybody, or nobody, can log in to.
    fn reachability(&mut self, auth: &Section<'_>, config: &Config) {
        let place = auth.place(&["method"]);
        if is_open_to_all(&config.auth, &config.listen) {
            let finding = Finding::new(self.source, &place.at, Severity::Warning, OPEN_TO_ALL);
            self.findings.push(open_to_all(finding));
        } else if !matches!(
            config.auth.method,
            AuthMethod::Trust | AuthMethod::Cert | AuthMethod::Pam | AuthMethod::Ldap
        ) && !config.users.values().any(|user| user.is_declared)
            && !config.databases.is_empty()
            && !config.looks_up_users()
        {
            let method = config.auth.method;
            let reason = format!("there are no users: nobody can log in with method {method}");
            self.warning(place, reason, "add [users.NAME] with a password");
        }
    }

    fn wrong(&mut self, place: Place, wrong: Wrong) {
        let reason = format!("{}: {}", place.key, wrong.reason);
        let at = wrong.at.unwrap_or(place.at);
        self.error(Place { at, ..place }, reason, wrong.help);
    }

    /// An error about a key itself.
    fn unknown(&mut self, entry: &Entry, key: &str, reason: String, help: String) {
        let finding = Finding::new(self.source, &entry.key_at, Severity::Error, key).kind(FindingKind::Unknown);
        let similar = path::similar(key);
        self.findings.push(finding.about(similar.as_deref()).because(reason).help(help));
    }

    /// An error about a file that a key names.
    fn unusable(&mut self, place: &Place, reason: String, help: &str) {
        let finding = Finding::new(self.source, &place.at, Severity::Error, &place.key).kind(FindingKind::File);
        self.findings.push(finding.because(reason).help(help));
    }

    fn error(&mut self, place: Place, reason: impl Into<String>, help: impl Into<String>) {
        self.find(place, Severity::Error, reason.into(), help.into());
    }

    fn warning(&mut self, place: Place, reason: impl Into<String>, help: impl Into<String>) {
        self.find(place, Severity::Warning, reason.into(), help.into());
    }

    fn find(&mut self, Place { key, at }: Place, severity: Severity, reason: String, help: String) {
        let finding = Finding::new(self.source, &at, severity, &key);
        self.findings.push(finding.because(reason).help(help));
    }
}

/// The key of the warning that [`open_to_all`] makes.
pub(crate) const OPEN_TO_ALL: &str = "auth.method";

/// Whether whoever reaches an address of this machine from outside is let in.
pub(crate) fn is_open_to_all(auth: &Auth, listen: &Listen) -> bool {
    let outside = |address: &SocketAddr| !address.ip().is_loopback();
    auth.method == AuthMethod::Trust && auth.strangers && listen.addresses.iter().any(outside)
}

/// Says in the finding that the gateway is open to all.
pub(crate) fn open_to_all(finding: Finding) -> Finding {
    let reason = "method trust on an address that other machines reach: anybody is let in under any name";
    finding.because(reason).help("write method = \"scram-sha-256\" and [users.NAME] with a password")
}

/// The section in which a key is at home.
fn home_of(key: &str) -> Option<String> {
    let has = |keys: &[Key]| keys.iter().any(|known| known.name == key);
    SECTIONS.iter().find(|(_, keys)| has(keys)).map(|(section, _)| bracketed(section))
}

fn help_for_section(name: &str, is_table: bool) -> String {
    // A table is a section whose name is misspelled; anything else is a key that lost its section.
    let (home, like) = (home_of(name), nearest(name, section_names()).map(bracketed));
    let near = if is_table { like.or(home) } else { home.or(like) };
    match near {
        Some(near) if is_table => format!("did you mean {near}?"),
        Some(home) => format!("it belongs below {home}"),
        None => {
            let all: Vec<_> = section_names().map(bracketed).collect();
            format!("the sections are {}", all.join(" "))
        }
    }
}

/// Databases have a host and a port; where clients come in has addresses.
fn help_for_address(section: &str, key: &str) -> Option<String> {
    let is_address = ["host", "port", "address", "listen_addr", "listen_port"].contains(&key);
    (section == "listen" && is_address).then(|| "write addresses = [\"127.0.0.1:6432\"]".to_owned())
}

/// `targets` are the section's own keys, and those of other sections that may stand beside them.
fn help_for_key(key: &str, targets: &[Vec<&'static Key>]) -> String {
    if let Some(home) = home_of(key) {
        return format!("it belongs in {home}");
    }
    if let Some(near) = nearest(key, targets.iter().flatten().map(|key| key.name)) {
        return format!("did you mean `{near}`?");
    }
    let own: Vec<_> = targets.iter().take(1).flatten().map(|key| key.name).collect();
    let others = if targets.len() > 1 { ", and those of [pool], [timeouts] and [route]" } else { "" };
    format!("the keys here are {}{others}", own.join(", "))
}

fn bracketed(name: &str) -> String {
    if name == LISTED { format!("[[{name}]]") } else { format!("[{name}]") }
}

/// One value per named table.
type Named<T> = BTreeMap<String, T>;

impl Checker<'_> {
    /// Without one there is nothing to do but streams. PgBouncer starts nevertheless, as packages install it.
    fn whether_there_is_a_database(&mut self, root: &Table, dialect: Dialect) {
        let section = Section::of(root, "databases");
        if !section.table.entries.is_empty() || root.entry(LISTED).is_some() {
            return;
        }
        let reason = "there is no database to send clients to";
        match dialect {
            Dialect::Postgres => {
                let help = "add [databases.\"*\"] with host = \"127.0.0.1\", or [databases.NAME] with a url";
                self.error(section.place(&[]), reason, help);
            }
            Dialect::Pgbouncer => {
                let help = "only the console answers; give [databases] a line, such as * = host=127.0.0.1, and reload";
                self.warning(section.place(&[]), reason, help);
            }
        }
    }

    fn databases(&mut self, section: &Section<'_>, pool: &PoolSettings) -> Named<Database> {
        self.each(section, |checker, section| checker.database(section, pool))
    }

    fn users(&mut self, section: &Section<'_>, auth: &Auth, is_looked_up: bool) -> Named<User> {
        self.each(section, |checker, section| checker.user(section, auth, is_looked_up))
    }

    fn each<T>(&mut self, section: &Section<'_>, mut read: impl FnMut(&mut Self, &Section<'_>) -> T) -> Named<T> {
        let mut named = Named::new();
        for entry in &section.table.entries {
            if let Some(section) = self.named(section, entry) {
                named.insert(entry.key.clone(), read(self, &section));
            }
        }
        named
    }
}
