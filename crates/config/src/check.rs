//! Check of raw tables: every key is known and in range, and every combination is possible, otherwise there is a
//! diagnostic.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tidegate_link::is_abstract;

use super::diagnostic::{ConfigErrors, Diagnostic, DiagnosticKind, DiagnosticSeverity};
use super::key_path::{self, SECTIONS};
use super::keys::{
    AdminConfig, AdminHttpConfig, AuthConfig, AuthMethod, Dialect, DnsConfig, ListenConfig, LogConfig, MetricsConfig,
    PoolConfig, RuntimeConfig, ShapesConfig,
};
use super::raw::{RawEntry, RawTable, RawValue, SourceSpan, SourceText};
use super::section::{ConfigKey, ConfigSection, RawSection};
use super::setting::{ValueClass, ValueError, nearest};
use super::{Config, Database, NO_LDAP, NO_LDAP_HELP, NO_PAM, NO_PAM_HELP, User};
use crate::hba::LdapConfig;

mod disk;
mod journal;
mod peer;
pub(super) mod stream;
mod tls;
mod upstream;
mod user;

pub(crate) use disk::FileAccess;

/// Checks a raw configuration of any format.
pub(crate) fn check(source: &SourceText, root: &RawTable, disk: FileAccess<'_>) -> Result<Config, ConfigErrors> {
    let mut checker = Checker::new(source, disk);
    let config = checker.config(root);
    let refused = checker.diagnostics.iter().any(|diagnostic| diagnostic.severity == DiagnosticSeverity::Error);
    let diagnostics = ConfigErrors::new(checker.diagnostics);
    if refused {
        return Err(diagnostics);
    }
    Ok(Config { warnings: diagnostics.into_diagnostics(), secret_files: checker.secret_files, ..config })
}

/// The section below `[admin]`.
const HTTP: &str = "http";

/// The section that is a list of tables.
const LISTED: &str = "streams";

/// Names of the sections, without the part after a dot.
fn section_names() -> impl Iterator<Item = &'static str> {
    SECTIONS.iter().map(|(name, _)| name.split('.').next().unwrap_or(name))
}

/// A table of the configuration with its path and position.
struct SectionView<'t> {
    path: String,
    table: &'t RawTable,
    at: SourceSpan,
}

/// Key and position of a diagnostic.
struct KeyLocation {
    key: String,
    at: SourceSpan,
}

static EMPTY_TABLE: RawTable = RawTable { entries: Vec::new() };

impl<'t> SectionView<'t> {
    /// The section of that name; empty if missing.
    fn of(root: &'t RawTable, name: &str) -> Self {
        let path = name.to_owned();
        match root.entry(name) {
            Some(RawEntry { key_at, node, .. }) => {
                let table = if let RawValue::Table(table) = &node.value { table } else { &EMPTY_TABLE };
                Self { path, table, at: key_at.clone() }
            }
            None => Self { path, table: &EMPTY_TABLE, at: 0..0 },
        }
    }

    fn has(&self, key: &str) -> bool {
        self.table.entry(key).is_some()
    }

    /// Position of the first of these keys that is present, reported under the first name; the section if none is present.
    fn locate(&self, keys: &[&str]) -> KeyLocation {
        let written = keys.iter().find_map(|key| self.table.entry(key));
        KeyLocation {
            key: keys.first().map_or(self.path.clone(), |key| self.key(key)),
            at: written.map_or(self.at.clone(), |entry| entry.node.at.clone()),
        }
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }
}

struct Checker<'s> {
    source: &'s SourceText,
    disk: FileAccess<'s>,
    diagnostics: Vec<Diagnostic>,
    /// Files that contain secrets.
    secret_files: BTreeSet<PathBuf>,
}

impl<'s> Checker<'s> {
    fn new(source: &'s SourceText, disk: FileAccess<'s>) -> Self {
        Self { source, disk, diagnostics: Vec::new(), secret_files: BTreeSet::new() }
    }
}

impl Checker<'_> {
    fn config(&mut self, root: &RawTable) -> Config {
        self.sections(root);
        let pool = self.settings(&SectionView::of(root, "pool"));
        self.pool(&SectionView::of(root, "pool"), &pool);
        let auth = self.auth(&SectionView::of(root, "auth"));
        let listen = self.listen(&SectionView::of(root, "listen"));
        self.require_database(root, listen.dialect);
        let databases = self.databases(&SectionView::of(root, "databases"), &pool);
        let is_looked_up = super::has_user_lookup(&auth, &databases);
        let config = Config {
            timeouts: self.settings(&SectionView::of(root, "timeouts")),
            route: self.settings(&SectionView::of(root, "route")),
            databases,
            users: self.users(&SectionView::of(root, "users"), &auth, is_looked_up),
            peers: self.peers(&SectionView::of(root, "peers"), &listen),
            admin: self.admin(root),
            admin_http: self.admin_http(root),
            log: self.log(&SectionView::of(root, "log")),
            dns: self.dns(&SectionView::of(root, "dns")),
            metrics: self.metrics(&SectionView::of(root, "metrics")),
            shapes: self.shapes(&SectionView::of(root, "shapes")),
            tcp: self.settings(&SectionView::of(root, "tcp")),
            journal: self.journal(root),
            traces: self.traces(root),
            runtime: self.runtime(&SectionView::of(root, "runtime")),
            streams: self.streams(root),
            listen,
            auth,
            pool,
            user_file: String::new(),
            ini_file: None,
            secret_files: BTreeSet::new(),
            warnings: Vec::new(),
        };
        self.probes(&SectionView::of(root, "route"), &config.route);
        self.verifiers(&SectionView::of(root, "databases"), &config);
        self.certificates(&SectionView::of(root, "auth"), &config);
        self.reachability(&SectionView::of(root, "auth"), &config);
        config
    }

    /// Reports sections that do not exist or are not tables.
    fn sections(&mut self, root: &RawTable) {
        for entry in &root.entries {
            let is_table = match entry.key.as_str() {
                LISTED => matches!(entry.node.value, RawValue::List(_)),
                _ => matches!(entry.node.value, RawValue::Table(_)),
            };
            if !section_names().any(|name| name == entry.key) {
                let help = help_for_section(&entry.key, is_table);
                self.unknown(entry, &entry.key, format!("unknown section `{}`", entry.key), help);
            } else if !is_table {
                let expected = if entry.key == LISTED { "a list of tables" } else { "a table" };
                let reason = format!("expected {expected}, found {}", entry.node.value.kind());
                let help = format!("start a section: {}", bracketed(&entry.key));
                self.unknown(entry, &entry.key, reason, help);
            }
        }
    }

    /// Reads a section that contains its own keys only.
    fn settings<S: ConfigSection>(&mut self, section: &SectionView<'_>) -> S {
        let mut raw = S::Raw::default();
        self.fill(section, &mut [&mut raw]);
        S::from_raw(&raw)
    }

    /// Sets each key of the section in the first target that has it.
    fn fill(&mut self, section: &SectionView<'_>, targets: &mut [&mut dyn RawSection]) {
        for entry in &section.table.entries {
            let (name, value) = (entry.key.as_str(), &entry.node.value);
            self.record_secret_file(section, entry);
            match targets.iter_mut().find_map(|target| target.set(name, value)) {
                Some(Ok(())) => {}
                Some(Err(error)) => self.value_error(section.locate(&[name]), error),
                None => {
                    let keys = targets.iter().map(|target| target.keys()).collect::<Vec<_>>();
                    let help = help_for_listen_key(&section.path, name).unwrap_or_else(|| help_for_key(name, &keys));
                    let reason = format!("unknown key `{name}` in {}", bracketed(&section.path));
                    self.unknown(entry, &section.key(name), reason, help);
                }
            }
        }
    }

    /// Records the file of a key whose value is a secret.
    fn record_secret_file(&mut self, section: &SectionView<'_>, entry: &RawEntry) {
        let is_secret = match &entry.node.value {
            RawValue::Text(text) if text.contains("://") => text.split('@').next().is_some_and(|login| {
                login.len() < text.len() && login.split("://").nth(1).is_some_and(|login| login.contains(':'))
            }),
            // Startup parameters are rarely secrets, so they do not make the file secret.
            RawValue::Text(text) => {
                !text.is_empty() && key_path::value_class(&section.key(&entry.key)) == Some(ValueClass::Secret)
            }
            RawValue::Table(_) => matches!(entry.key.as_str(), "headers" | "kafka_properties"),
            _ => false,
        };
        if is_secret && matches!(self.disk, FileAccess::RelativeTo(_)) {
            let file = Path::new(self.source.file(entry.node.at.start));
            if !self.secret_files.contains(file) {
                self.secret_files.insert(file.to_owned());
            }
        }
    }

    /// The table of `[databases.NAME]`, `[users.NAME]` or `[peers.ID]`.
    fn named<'t>(&mut self, parent: &SectionView<'_>, entry: &'t RawEntry) -> Option<SectionView<'t>> {
        let path = parent.key(&entry.key);
        if entry.key.is_empty() || entry.key.contains('\0') {
            let help = format!("write [{}.NAME]", parent.path);
            self.unknown(entry, &path, "this is not a valid name".to_owned(), help);
            return None;
        }
        if let RawValue::Table(table) = &entry.node.value {
            return Some(SectionView { path, table, at: entry.key_at.clone() });
        }
        let reason = format!("expected a table, found {}", entry.node.value.kind());
        let help = format!("start a section: [{path}]");
        self.unknown(entry, &path, reason, help);
        None
    }

    fn listen(&mut self, section: &SectionView<'_>) -> ListenConfig {
        let mut listen: ListenConfig = self.settings(section);
        if listen.addresses.is_empty() && listen.unix_socket_dir.as_os_str().is_empty() {
            let help = "write addresses = [\"127.0.0.1:6432\"], or name a folder in unix_socket_dir";
            self.error(section.locate(&["addresses"]), "there is neither an address nor a socket for clients", help);
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

    fn auth(&mut self, section: &SectionView<'_>) -> AuthConfig {
        let mut auth: AuthConfig = self.settings(section);
        if auth.method == AuthMethod::Hba && auth.hba_file.as_os_str().is_empty() {
            let help = "add hba_file = \"/path/to/pg_hba.conf\", or write another method";
            self.error(section.locate(&["method"]), "method hba needs hba_file", help);
        }
        if auth.method == AuthMethod::Pam && !cfg!(feature = "pam") {
            self.error(section.locate(&["method"]), NO_PAM, NO_PAM_HELP);
        }
        if auth.method == AuthMethod::Ldap {
            if !cfg!(feature = "ldap") {
                self.error(section.locate(&["method"]), NO_LDAP, NO_LDAP_HELP);
            } else if let Err(reason) = LdapConfig::parse(auth.ldap_options.reveal()) {
                let help = "write options as in pg_hba.conf, such as ldapurl=\"ldap://host/dc=example,dc=net?uid?sub\"";
                self.error(section.locate(&["ldap_options", "method"]), reason, help);
            }
        }
        self.file(section, "hba_file", &mut auth.hba_file);
        self.file(section, "ident_file", &mut auth.ident_file);
        auth
    }

    fn log(&mut self, section: &SectionView<'_>) -> LogConfig {
        let mut log: LogConfig = self.settings(section);
        self.future_path(&mut log.file);
        if log.stats_period.is_zero() {
            self.error(
                section.locate(&["stats_period"]),
                "stats_period cannot be zero",
                "write stats_period = \"60s\"",
            );
        }
        log
    }

    /// `[admin]` without the section below it.
    fn admin(&mut self, root: &RawTable) -> AdminConfig {
        let section = SectionView::of(root, "admin");
        let own = section.table.entries.iter().filter(|entry| entry.key != HTTP).cloned().collect();
        self.settings(&SectionView { table: &RawTable { entries: own }, ..section })
    }

    fn admin_http(&mut self, root: &RawTable) -> AdminHttpConfig {
        let admin = SectionView::of(root, "admin");
        let Some(entry) = admin.table.entry(HTTP) else { return AdminHttpConfig::default() };
        let path = admin.key(HTTP);
        let RawValue::Table(table) = &entry.node.value else {
            let reason = format!("expected a table, found {}", entry.node.value.kind());
            self.unknown(entry, &path, reason, format!("start a section: {}", bracketed(&path)));
            return AdminHttpConfig::default();
        };
        let section = SectionView { path, table, at: entry.key_at.clone() };
        let mut http: AdminHttpConfig = self.settings(&section);
        self.file(&section, "tls_cert", &mut http.tls_cert);
        self.file(&section, "tls_key", &mut http.tls_key);
        self.certificate_pair(&section, &http.tls_cert, &http.tls_key);
        if http.session_idle.is_zero() {
            let help = "write session_idle = \"30min\"";
            self.error(section.locate(&["session_idle"]), "session_idle cannot be zero", help);
        }
        http
    }

    fn metrics(&mut self, section: &SectionView<'_>) -> MetricsConfig {
        let mut metrics: MetricsConfig = self.settings(section);
        self.file(section, "tls_cert", &mut metrics.tls_cert);
        self.file(section, "tls_key", &mut metrics.tls_key);
        self.certificate_pair(section, &metrics.tls_cert, &metrics.tls_key);
        metrics
    }

    fn shapes(&mut self, section: &SectionView<'_>) -> ShapesConfig {
        let mut shapes: ShapesConfig = self.settings(section);
        self.file(section, "tls_cert", &mut shapes.tls_cert);
        self.file(section, "tls_key", &mut shapes.tls_key);
        self.certificate_pair(section, &shapes.tls_cert, &shapes.tls_key);
        shapes
    }

    fn dns(&mut self, section: &SectionView<'_>) -> DnsConfig {
        let mut dns: DnsConfig = self.settings(section);
        self.file(section, "resolv_conf", &mut dns.resolv_conf);
        if !dns.servers.0.is_empty() && !dns.resolv_conf.as_os_str().is_empty() {
            let help = "leave out one of them";
            self.error(section.locate(&["resolv_conf"]), "resolv_conf and servers exclude each other", help);
        }
        if dns.ttl_min.is_zero() {
            self.error(section.locate(&["ttl_min"]), "ttl_min cannot be zero", "write ttl_min = \"5s\"");
        }
        if dns.ttl_max < dns.ttl_min {
            let help = "write a ttl_max that is not shorter than ttl_min";
            self.error(section.locate(&["ttl_max", "ttl_min"]), "ttl_max is shorter than ttl_min", help);
        }
        dns
    }

    fn runtime(&mut self, section: &SectionView<'_>) -> RuntimeConfig {
        let mut runtime: RuntimeConfig = self.settings(section);
        self.future_path(&mut runtime.pid_file);
        runtime
    }

    /// Warns if all clients, or none, can log in.
    fn reachability(&mut self, auth: &SectionView<'_>, config: &Config) {
        let location = auth.locate(&["method"]);
        if is_open_to_all(&config.auth, &config.listen) {
            let diagnostic = Diagnostic::new(self.source, &location.at, DiagnosticSeverity::Warning, OPEN_TO_ALL_KEY);
            self.diagnostics.push(open_to_all(diagnostic));
        } else if !matches!(
            config.auth.method,
            AuthMethod::Trust | AuthMethod::Cert | AuthMethod::Pam | AuthMethod::Ldap
        ) && !config.users.values().any(|user| user.is_declared)
            && !config.databases.is_empty()
            && !config.has_user_lookup()
        {
            let method = config.auth.method;
            let reason = format!("no client can log in with method {method}: there are no users");
            self.warning(location, reason, "add [users.NAME] with a password");
        }
    }

    fn value_error(&mut self, location: KeyLocation, error: ValueError) {
        let reason = format!("{}: {}", location.key, error.reason);
        let at = error.at.unwrap_or(location.at);
        self.error(KeyLocation { at, ..location }, reason, error.help);
    }

    /// Reports an unknown key.
    fn unknown(&mut self, entry: &RawEntry, key: &str, reason: String, help: String) {
        let diagnostic = Diagnostic::new(self.source, &entry.key_at, DiagnosticSeverity::Error, key)
            .with_kind(DiagnosticKind::Unknown);
        let similar = key_path::most_similar(key);
        self.diagnostics.push(diagnostic.with_known_key(similar.as_deref()).with_reason(reason).with_help(help));
    }

    /// Reports a file that cannot be used.
    fn file_error(&mut self, location: &KeyLocation, reason: String, help: &str) {
        let diagnostic = Diagnostic::new(self.source, &location.at, DiagnosticSeverity::Error, &location.key)
            .with_kind(DiagnosticKind::File);
        self.diagnostics.push(diagnostic.with_reason(reason).with_help(help));
    }

    fn error(&mut self, location: KeyLocation, reason: impl Into<String>, help: impl Into<String>) {
        self.report(location, DiagnosticSeverity::Error, reason.into(), help.into());
    }

    /// Whether an error about the key was reported, so that its value is the default.
    fn is_invalid(&self, section: &SectionView<'_>, key: &str) -> bool {
        let key = section.key(key);
        self.diagnostics.iter().any(|known| known.severity == DiagnosticSeverity::Error && known.key == key)
    }

    fn warning(&mut self, location: KeyLocation, reason: impl Into<String>, help: impl Into<String>) {
        self.report(location, DiagnosticSeverity::Warning, reason.into(), help.into());
    }

    fn report(
        &mut self,
        KeyLocation { key, at }: KeyLocation,
        severity: DiagnosticSeverity,
        reason: String,
        help: String,
    ) {
        let diagnostic = Diagnostic::new(self.source, &at, severity, &key);
        self.diagnostics.push(diagnostic.with_reason(reason).with_help(help));
    }
}

/// Key of the warning of [`open_to_all`].
pub(crate) const OPEN_TO_ALL_KEY: &str = "auth.method";

/// Whether clients from other machines are admitted without authentication.
pub(crate) fn is_open_to_all(auth: &AuthConfig, listen: &ListenConfig) -> bool {
    let outside = |address: &SocketAddr| !address.ip().is_loopback();
    auth.method == AuthMethod::Trust && auth.strangers && listen.addresses.iter().any(outside)
}

/// Adds reason and help of an open gateway.
pub(crate) fn open_to_all(diagnostic: Diagnostic) -> Diagnostic {
    let reason = "method trust on an address that other machines can reach: every client is admitted as any user";
    diagnostic.with_reason(reason).with_help("write method = \"scram-sha-256\" and [users.NAME] with a password")
}

/// The section that has the key.
fn section_of_key(key: &str) -> Option<String> {
    let has = |keys: &[ConfigKey]| keys.iter().any(|known| known.name == key);
    SECTIONS.iter().find(|(_, keys)| has(keys)).map(|(section, _)| bracketed(section))
}

fn help_for_section(name: &str, is_table: bool) -> String {
    // A table is probably a section with a misspelled name; anything else is probably a key outside of its section.
    let (of_key, similar) = (section_of_key(name), nearest(name, section_names()).map(bracketed));
    let near = if is_table { similar.or(of_key) } else { of_key.or(similar) };
    match near {
        Some(near) if is_table => format!("did you mean {near}?"),
        Some(section) => format!("it belongs in {section}"),
        None => {
            let all: Vec<_> = section_names().map(bracketed).collect();
            format!("the sections are {}", all.join(" "))
        }
    }
}

/// Help for keys of a database in `[listen]`.
fn help_for_listen_key(section: &str, key: &str) -> Option<String> {
    let is_address = ["host", "port", "address", "listen_addr", "listen_port"].contains(&key);
    (section == "listen" && is_address).then(|| "write addresses = [\"127.0.0.1:6432\"]".to_owned())
}

/// `targets` are the keys of the section, and those of other sections that may be in it.
fn help_for_key(key: &str, targets: &[Vec<&'static ConfigKey>]) -> String {
    if let Some(section) = section_of_key(key) {
        return format!("it belongs in {section}");
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

/// Values by the name of their table.
type ByName<T> = BTreeMap<String, T>;

impl Checker<'_> {
    /// A configuration without a database can only run streams. PgBouncer's may have none, because packages install it so.
    fn require_database(&mut self, root: &RawTable, dialect: Dialect) {
        let section = SectionView::of(root, "databases");
        if !section.table.entries.is_empty() || root.entry(LISTED).is_some() {
            return;
        }
        let reason = "there is no database";
        match dialect {
            Dialect::Postgres => {
                let help = "add [databases.\"*\"] with host = \"127.0.0.1\", or [databases.NAME] with a url";
                self.error(section.locate(&[]), reason, help);
            }
            Dialect::Pgbouncer => {
                let help =
                    "only the console is available; add a line such as * = host=127.0.0.1 to [databases], and reload";
                self.warning(section.locate(&[]), reason, help);
            }
        }
    }

    fn databases(&mut self, section: &SectionView<'_>, pool: &PoolConfig) -> ByName<Database> {
        self.each(section, |checker, section| checker.database(section, pool))
    }

    fn users(&mut self, section: &SectionView<'_>, auth: &AuthConfig, is_looked_up: bool) -> ByName<User> {
        self.each(section, |checker, section| checker.user(section, auth, is_looked_up))
    }

    fn each<T>(
        &mut self,
        section: &SectionView<'_>,
        mut read: impl FnMut(&mut Self, &SectionView<'_>) -> T,
    ) -> ByName<T> {
        let mut named = ByName::new();
        for entry in &section.table.entries {
            if let Some(section) = self.named(section, entry) {
                named.insert(entry.key.clone(), read(self, &section));
            }
        }
        named
    }
}
