//! Keys from variables of the environment, which override those of a file or a URL: containers are configured this way.
//!
//! `TIDEGATE_POOL_SIZE` is `size` in `[pool]`. Tables with a name have it before a double underscore, in its own case:
//! `TIDEGATE_DATABASES_shop__HOST`, `TIDEGATE_USERS_app__PASSWORD_FILE`, `TIDEGATE_STREAMS_orders__FROM`. A database without a
//! name (`TIDEGATE_DATABASES__HOST`) is `*`, because a name of a variable cannot contain one.
//!
//! A value is the text itself where the key takes a text, otherwise a TOML value, or a list whose parts are separated by
//! commas.

use std::path::Path;

use ::toml::de::DeTable;

use super::check::{FileAccess, check};
use super::diagnostic::{ConfigErrors, Diagnostic, DiagnosticKind, DiagnosticSeverity};
use super::hosts::RouteConfig;
use super::key_path::SECTIONS;
use super::keys::{
    AdminConfig, AdminHttpConfig, AuthConfig, DatabaseKeys, DnsConfig, ListenConfig, LogConfig, MetricsConfig,
    PeerKeys, PoolConfig, PoolOverrides, QueryLogConfig, RuntimeConfig, ShapesConfig, TcpConfig, TimeoutConfig,
    TracesConfig, UserKeys,
};
use super::raw::{RawEntry, RawTable, RawValue, SourceSpan, SourceText, SpannedValue};
use super::section::{ConfigSection, RawSection};
use super::setting::nearest;
use super::stream::StreamKeys;
use super::{Config, toml, url};

/// Start of the names of all variables.
const PREFIX: &str = "TIDEGATE_";

/// Variables with a meaning of their own.
const RESERVED: [&str; 3] = ["DATABASE", "IO", "BACKGROUND"];

/// The only section below another one; the parts before the dots of others have names of the user below them.
const HTTP: &str = "admin.http";

/// The configuration that the variables override.
#[derive(Debug, Clone, Copy)]
pub enum ConfigBase<'b> {
    /// A TOML file.
    File(&'b Path),
    /// The URL of a database.
    Url(&'b str),
    /// The defaults.
    Defaults,
}

/// Whether these variables declare a database, so that neither a file nor a URL is needed.
pub fn declares_database(variables: &[(String, String)]) -> bool {
    variables.iter().any(|(name, _)| name.strip_prefix(PREFIX).is_some_and(|rest| rest.starts_with("DATABASES_")))
}

/// Reads a configuration, overrides it with variables of the environment, and checks the result. Other variables than
/// `TIDEGATE_...` are ignored, so the whole environment can be passed.
///
/// # Errors
/// All errors of the file, the URL and the variables.
pub fn load(base: ConfigBase<'_>, variables: &[(String, String)]) -> Result<Config, ConfigErrors> {
    let (mut source, mut root, folder) = match base {
        ConfigBase::File(path) => {
            let (source, root) = toml::read_table(path)?;
            (source, root, path.parent().unwrap_or(Path::new("")))
        }
        ConfigBase::Url(text) => (SourceText::new("--database", text), url::document(text), Path::new("")),
        ConfigBase::Defaults => (SourceText::new("environment", ""), RawTable::default(), Path::new("")),
    };
    let mut layer = Layer { source: &mut source, root: &mut root, diagnostics: Vec::new(), any: false };
    let mut variables: Vec<_> = variables.iter().filter(|(name, _)| is_key(name)).collect();
    variables.sort();
    for (name, value) in variables {
        layer.variable(name, value);
    }
    let Layer { mut diagnostics, any, .. } = layer;
    let disk = match base {
        // A URL alone names no files.
        ConfigBase::Url(_) if !any => FileAccess::None,
        _ => FileAccess::RelativeTo(folder),
    };
    match check(&source, &root, disk) {
        Ok(config) if diagnostics.iter().all(|found| found.severity != DiagnosticSeverity::Error) => {
            diagnostics.extend(config.warnings);
            Ok(Config { warnings: diagnostics, ..config })
        }
        Ok(_) => Err(ConfigErrors::new(diagnostics)),
        Err(errors) => {
            diagnostics.extend(errors.into_diagnostics());
            Err(ConfigErrors::new(diagnostics))
        }
    }
}

/// Whether a variable may be a key. Kubernetes announces a service named `tidegate` in variables such as
/// `TIDEGATE_SERVICE_HOST`, `TIDEGATE_PORT` and `TIDEGATE_PORT_6432_TCP_ADDR`; a service `tidegate-pool` in
/// `TIDEGATE_POOL_SERVICE_HOST`.
fn is_key(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let of_a_service = rest.ends_with("SERVICE_HOST")
        || rest.contains("SERVICE_PORT")
        || rest == "PORT"
        || rest.split("PORT_").skip(1).any(|port| port.starts_with(|digit: char| digit.is_ascii_digit()));
    !of_a_service && !RESERVED.contains(&rest)
}

/// The path that the name of a variable stands for.
#[derive(Debug, PartialEq, Eq)]
enum VariablePath<'n> {
    /// `[pool]`, `size`.
    Plain(&'static str, String),
    /// `[users.app]`, `password`.
    Named(&'static str, &'n str, String),
    /// A section whose tables have names, without one.
    Nameless(&'static str),
}

/// Resolves the rest of a name after `TIDEGATE_`.
fn path_of(rest: &str) -> Option<VariablePath<'_>> {
    if let Some(key) = rest.strip_prefix("ADMIN_HTTP_") {
        return Some(VariablePath::Plain(HTTP, key.to_ascii_lowercase()));
    }
    let found = |(section, _): &(&'static str, _)| {
        let (first, is_named) = match section.split_once('.') {
            Some((first, _)) => (first, true),
            None => (*section, *section == "streams"),
        };
        let key = rest.strip_prefix(first.to_ascii_uppercase().as_str())?.strip_prefix('_')?;
        Some(match key.rsplit_once("__").or_else(|| Some(("", key.strip_prefix('_')?))) {
            _ if !is_named => VariablePath::Plain(section, key.to_ascii_lowercase()),
            Some(("", key)) if first == "databases" => VariablePath::Named(section, "*", key.to_ascii_lowercase()),
            Some((name, key)) if !name.is_empty() => VariablePath::Named(section, name, key.to_ascii_lowercase()),
            _ => VariablePath::Nameless(first),
        })
    };
    SECTIONS.iter().find_map(found)
}

/// The variables on top of a table.
struct Layer<'l> {
    source: &'l mut SourceText,
    root: &'l mut RawTable,
    diagnostics: Vec<Diagnostic>,
    /// Whether a variable was a key.
    any: bool,
}

impl Layer<'_> {
    fn variable(&mut self, name: &str, value: &str) {
        if !self.source.text.is_empty() && !self.source.text.ends_with('\n') {
            self.source.text.push('\n');
        }
        self.source.begin_part("environment", 1);
        let start = self.source.text.len();
        // A diagnostic shows the line, which must be a single one.
        self.source.text.push_str(&format!("{name}={}\n", value.replace(['\n', '\r'], " ")));
        let key_at = start..start + name.len();
        let value_at = key_at.end + 1..self.source.text.len() - 1;
        match path_of(&name[PREFIX.len()..]) {
            Some(VariablePath::Plain(section, key)) => {
                let entry = entry(section, key, value, key_at.clone(), value_at);
                self.any = true;
                let mut own = &mut *self.root;
                for name in section.split('.') {
                    own = table(own, name, &key_at);
                }
                own.replace(entry);
            }
            Some(VariablePath::Named(section, table_name, key)) => {
                let entry = entry(section, key, value, key_at.clone(), value_at);
                self.any = true;
                self.named_table(section, table_name, &key_at).replace(entry);
            }
            Some(VariablePath::Nameless(section)) => {
                let word = section.to_ascii_uppercase();
                let reason = format!("`{name}` does not name a table of [{section}]");
                self.report(&key_at, DiagnosticSeverity::Error, reason, format!("write {PREFIX}{word}_NAME__KEY"));
            }
            // Other programs may have variables with this prefix; only a likely misspelling is reported.
            None => {
                if let Some(near) = similar_section(&name[PREFIX.len()..]) {
                    let reason = format!("`{name}` is not the name of a key and has no effect");
                    self.report(
                        &key_at,
                        DiagnosticSeverity::Warning,
                        reason,
                        format!("did you mean {PREFIX}{near}_...?"),
                    );
                }
            }
        }
    }

    /// The table of a name, created if it is missing.
    fn named_table(&mut self, section: &str, name: &str, at: &SourceSpan) -> &mut RawTable {
        let first = section.split('.').next().unwrap_or(section);
        if first != "streams" {
            return table(table(self.root, first, at), name, at);
        }
        let is_list = |entry: &RawEntry| entry.key == first && matches!(entry.node.value, RawValue::List(_));
        if !self.root.entries.iter().any(is_list) {
            self.root.push(first, RawValue::List(Vec::new()), at.clone());
        }
        let list = self.root.entries.iter_mut().find(|entry| is_list(entry));
        let Some(RawEntry { node: SpannedValue { value: RawValue::List(streams), .. }, .. }) = list else {
            unreachable!("the list was pushed if it was missing")
        };
        let is_named = |stream: &SpannedValue| match &stream.value {
            RawValue::Table(stream) => {
                stream.entry("name").is_some_and(|entry| entry.node.value == RawValue::Text(name.to_owned()))
            }
            _ => false,
        };
        let place = streams.iter().position(is_named).unwrap_or_else(|| {
            let mut stream = RawTable::default();
            stream.push_text("name", name, at.clone());
            streams.push(SpannedValue { value: RawValue::Table(stream), at: at.clone() });
            streams.len() - 1
        });
        let RawValue::Table(stream) = &mut streams[place].value else { unreachable!("only tables have names") };
        stream
    }

    fn report(&mut self, at: &SourceSpan, severity: DiagnosticSeverity, reason: String, help: String) {
        let diagnostic = Diagnostic::new(self.source, at, severity, "").with_kind(DiagnosticKind::Unknown);
        self.diagnostics.push(diagnostic.with_reason(reason).with_help(help));
    }
}

/// The table of a key, created if it is missing. A value that is no table is replaced.
fn table<'t>(parent: &'t mut RawTable, key: &str, at: &SourceSpan) -> &'t mut RawTable {
    let is_table = |entry: &RawEntry| entry.key == key && matches!(entry.node.value, RawValue::Table(_));
    let place = parent.entries.iter().position(is_table).unwrap_or_else(|| {
        parent.entries.retain(|entry| entry.key != key);
        parent.push(key, RawValue::Table(RawTable::default()), at.clone());
        parent.entries.len() - 1
    });
    let RawValue::Table(table) = &mut parent.entries[place].node.value else {
        unreachable!("a table was found or pushed")
    };
    table
}

/// The section that a name probably means.
fn similar_section(rest: &str) -> Option<String> {
    let section = rest.split('_').next().unwrap_or(rest).to_ascii_lowercase();
    let first = |name: &'static str| name.split('.').next().unwrap_or(name);
    nearest(&section, SECTIONS.iter().map(|(name, _)| first(name))).map(str::to_ascii_uppercase)
}

/// The entry of a variable, with its value in the form that the key takes.
fn entry(section: &str, key: String, text: &str, key_at: SourceSpan, value_at: SourceSpan) -> RawEntry {
    let plain = RawValue::Text(text.to_owned());
    let typed = toml_value(text, &value_at);
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let part = |part: &str| SpannedValue { value: RawValue::Text(part.to_owned()), at: value_at.clone() };
    let list = RawValue::List(parts.map(part).collect());
    let forms = [Some(&plain), typed.as_ref(), Some(&list)];
    let accepted = forms.into_iter().flatten().find(|form| accepts(section, &key, form)).cloned();
    let value = accepted.or(typed).unwrap_or(plain);
    RawEntry { key, key_at, node: SpannedValue { value, at: value_at } }
}

/// The text as a TOML value; `None` if it is none.
fn toml_value(text: &str, at: &SourceSpan) -> Option<RawValue> {
    // A line end would start another key.
    let document = format!("value = {}", text.trim());
    let (parsed, errors) = DeTable::parse_recoverable(&document);
    let table = errors.is_empty().then(|| toml::table(parsed.get_ref()))?;
    match table.entries.as_slice() {
        [RawEntry { key, node, .. }] if key == "value" => Some(moved(node.value.clone(), at)),
        _ => None,
    }
}

/// The value with all positions at `at`.
fn moved(value: RawValue, at: &SourceSpan) -> RawValue {
    let node = |node: SpannedValue| SpannedValue { value: moved(node.value, at), at: at.clone() };
    match value {
        RawValue::List(nodes) => RawValue::List(nodes.into_iter().map(node).collect()),
        RawValue::Table(table) => {
            let entries = table.entries.into_iter();
            let entries = entries.map(|entry| RawEntry { key_at: at.clone(), node: node(entry.node), key: entry.key });
            RawValue::Table(RawTable { entries: entries.collect() })
        }
        other => other,
    }
}

/// Whether a key of a section takes a value.
fn accepts(section: &str, key: &str, value: &RawValue) -> bool {
    let mut targets = raw_sections(section);
    targets.iter_mut().find_map(|target| target.set(key, value)).is_some_and(|set| set.is_ok())
}

fn raw_sections(section: &str) -> Vec<Box<dyn RawSection>> {
    fn raw<S: ConfigSection>() -> Box<dyn RawSection>
    where
        S::Raw: 'static,
    {
        Box::<S::Raw>::default()
    }
    let overrides = || -> Box<dyn RawSection> { Box::<PoolOverrides>::default() };
    match section {
        "listen" => vec![raw::<ListenConfig>()],
        "auth" => vec![raw::<AuthConfig>()],
        "pool" => vec![raw::<PoolConfig>()],
        "timeouts" => vec![raw::<TimeoutConfig>()],
        "route" => vec![raw::<RouteConfig>()],
        "databases.NAME" => vec![raw::<DatabaseKeys>(), overrides()],
        "users.NAME" => vec![raw::<UserKeys>(), overrides()],
        "peers.ID" => vec![raw::<PeerKeys>()],
        "admin" => vec![raw::<AdminConfig>()],
        HTTP => vec![raw::<AdminHttpConfig>()],
        "log" => vec![raw::<LogConfig>()],
        "dns" => vec![raw::<DnsConfig>()],
        "metrics" => vec![raw::<MetricsConfig>()],
        "shapes" => vec![raw::<ShapesConfig>()],
        "tcp" => vec![raw::<TcpConfig>()],
        "journal" => vec![raw::<QueryLogConfig>()],
        "traces" => vec![raw::<TracesConfig>()],
        "streams" => vec![raw::<StreamKeys>()],
        _ => vec![raw::<RuntimeConfig>()],
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pairs(variables: &[(&str, &str)]) -> Vec<(String, String)> {
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn from_variables(variables: &[(&str, &str)]) -> Result<Config, ConfigErrors> {
        load(ConfigBase::Defaults, &pairs(variables))
    }

    #[test]
    fn variables_alone_are_a_configuration() {
        let config = from_variables(&[
            ("TIDEGATE_DATABASES_shop__HOST", "10.0.0.7"),
            ("TIDEGATE_DATABASES_shop__SIZE", "40"),
            ("TIDEGATE_DATABASES__HOST", "10.0.0.8"),
            ("TIDEGATE_USERS_app__PASSWORD", "12345"),
            ("TIDEGATE_LISTEN_ADDRESSES", "*:6432, [::1]:6432"),
            ("TIDEGATE_LISTEN_MAX_CLIENTS", "500"),
            ("TIDEGATE_POOL_MODE", "session"),
            ("TIDEGATE_TIMEOUTS_CHECKOUT", "5s"),
            ("TIDEGATE_ADMIN_USERS", "[\"ops\", \"app\"]"),
            ("TIDEGATE_LOG_CONNECTIONS", "false"),
            ("TIDEGATE_DATABASES_shop__STARTUP_PARAMETERS", "{ search_path = \"shop\" }"),
            ("TIDEGATE_JOURNAL_RULES", "[{ action = \"skip\", users = \"monitor\" }]"),
            ("PATH", "/usr/bin"),
        ])
        .expect("a configuration");
        // `*` stands for an address of each family.
        assert_eq!(config.listen.addresses.len(), 3);
        assert_eq!((config.listen.max_clients, config.timeouts.checkout), (500, Duration::from_secs(5)));
        assert_eq!((config.pool.mode, config.log.connections), (crate::PoolMode::Session, false));
        assert_eq!(config.admin.users, ["ops", "app"]);
        assert_eq!(config.databases.keys().map(String::as_str).collect::<Vec<_>>(), ["*", "shop"]);
        assert_eq!(config.pool_for("shop", "app").expect("a database").pool.size, 40);
        assert!(config.users["app"].secret.is_some());
    }

    #[test]
    fn variables_override_the_url() {
        let variables = pairs(&[("TIDEGATE_POOL_SIZE", "7"), ("TIDEGATE_DATABASE", "postgres://ignored")]);
        let config = load(ConfigBase::Url("postgres://app:x@db/shop"), &variables).expect("a configuration");
        assert_eq!(config.pool_for("shop", "app").expect("a database").pool.size, 7);
    }

    #[test]
    fn variables_override_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("tidegate.toml");
        let text = "[pool]\nsize = 1\nmin_size = 1\n[databases.shop]\nhost = \"a\"\n[[streams]]\nname = \"s\"\nfrom = \"-\"\n\
                    to = \"-\"";
        std::fs::write(&file, text).expect("a file");
        let variables = pairs(&[
            ("TIDEGATE_POOL_SIZE", "9"),
            ("TIDEGATE_DATABASES_shop__HOST", "b"),
            ("TIDEGATE_STREAMS_s__CONCURRENCY", "3"),
            ("TIDEGATE_STREAMS_t__FROM", "in.ndjson"),
            ("TIDEGATE_STREAMS_t__TO", "-"),
        ]);
        let config = load(ConfigBase::File(&file), &variables).expect("a configuration");
        let plan = config.pool_for("shop", "app").expect("a database");
        assert_eq!((plan.pool.size, plan.pool.min_size, plan.hosts[0].to_string().as_str()), (9, 1, "b:5432"));
        assert_eq!(config.streams.iter().map(|stream| stream.keys.name.as_str()).collect::<Vec<_>>(), ["s", "t"]);
        assert_eq!(config.streams[0].keys.concurrency, 3);
    }

    #[test]
    fn invalid_variables_are_reported_by_name() {
        let database = ("TIDEGATE_DATABASES_a__HOST", "x");
        for (name, value, reason, help) in [
            ("TIDEGATE_POOL_SIZES", "1", "unknown key `sizes`", "`size`"),
            ("TIDEGATE_POOL_SIZE", "many", "expected a number", "whole number"),
            ("TIDEGATE_POOL_SIZE", "-1", "out of range", "not below zero"),
            ("TIDEGATE_USERS_PASSWORD", "hunter2", "does not name a table of [users]", "TIDEGATE_USERS_NAME__KEY"),
            ("TIDEGATE_USERS_app__PASWORD", "hunter2", "unknown key `pasword`", "`password`"),
        ] {
            let errors = from_variables(&[database, (name, value)]).expect_err(name).to_string();
            assert!(errors.contains(reason) && errors.contains(help) && errors.contains(name), "{errors}");
            assert!(!errors.contains("hunter2"), "{errors}");
        }
        let config = from_variables(&[database, ("TIDEGATE_POLL_SIZE", "1")]).expect("a warning only");
        let warning = config.warnings.iter().find(|warning| warning.reason.contains("TIDEGATE_POLL_SIZE"));
        assert!(warning.is_some_and(|warning| warning.help.contains("TIDEGATE_POOL_")), "{:?}", config.warnings);
    }

    /// Every pod gets these variables for a service of that name.
    #[test]
    fn service_variables_of_kubernetes_are_ignored() {
        let config = from_variables(&[
            ("TIDEGATE_DATABASES_a__HOST", "x"),
            ("TIDEGATE_SERVICE_HOST", "10.96.0.1"),
            ("TIDEGATE_SERVICE_PORT_POSTGRES", "6432"),
            ("TIDEGATE_PORT", "tcp://10.96.0.1:6432"),
            ("TIDEGATE_PORT_6432_TCP", "tcp://10.96.0.1:6432"),
            ("TIDEGATE_POOL_SERVICE_HOST", "10.96.0.2"),
            ("TIDEGATE_POOL_PORT_6432_TCP_ADDR", "10.96.0.2"),
            ("TIDEGATE_LISTEN_UNIX_SOCKET_PORT", "7000"),
        ])
        .expect("a configuration");
        assert_eq!(config.listen.unix_socket_port, 7000);
        assert!(config.warnings.iter().all(|warning| !warning.reason.contains("TIDEGATE_")), "{:?}", config.warnings);
    }
}
