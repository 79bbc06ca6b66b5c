//! From the lines of an ini file to the tables that `tidegate.toml` would have.
//!
//! A key that is not written is put down with PgBouncer's default where Tidegate's may differ, so that the file means here
//! what it means there.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use super::{
    ini::{Ini, Line, absolute},
    keys::{self, Effect, GLOBAL, Key, Kind},
};
use crate::{
    CipherSuite, Finding, FindingKind, MESSAGE_MAX, Row,
    finding::Severity,
    raw::{Entry, Node, Source, Span, Table, Value},
    setting,
};

mod global;
mod lines;
mod tls;
mod users;

/// The tables of an ini file; what is wrong with it goes to the findings.
pub(super) fn tables(ini: &mut Ini, findings: &mut Vec<Finding>) -> Table {
    let lines = ini.lines.clone();
    let mut mapper = Mapper::new(ini, findings);
    mapper.global_keys(&lines);
    mapper.listen();
    mapper.put_together();
    mapper.databases(&lines);
    mapper.auth_file();
    mapper.user_lines(&lines);
    mapper.peers(&lines);
    mapper.root
}

/// What a key of `[pgbouncer]` comes to when it is changed and all others stay as `now` has them, under PgBouncer's names:
/// keys of ours (`pool.size`) with their values, or with none where their default holds again.
pub(super) fn change(now: &[Row], name: &str, text: &str) -> Result<Vec<(String, Option<Value>)>, Wrong> {
    let line = |key: &str, value: &str| {
        let (key, value) = (key.to_owned(), value.to_owned());
        Line { section: "pgbouncer", key, key_at: 0..0, value, value_at: 0..0 }
    };
    let settings = |change: Option<Line>| {
        let lines = now.iter().map(|row| line(&row.key, &row.value)).chain(change).collect();
        let (mut ini, mut findings) = (Ini::new(Source::new("SET", ""), lines), Vec::new());
        let lines = ini.lines.clone();
        let mut mapper = Mapper::new(&mut ini, &mut findings);
        mapper.global_keys(&lines);
        mapper.put_together();
        let root = mapper.root;
        findings.retain(|finding| finding.severity == Severity::Error);
        (flat(root), findings)
    };
    let ((old, _), (new, findings)) = (settings(None), settings(Some(line(name, text))));
    if let Some(finding) = findings.into_iter().find(|finding| finding.key == name) {
        return Err((finding.reason, finding.help));
    }
    let changed = new.iter().filter(|(path, value)| old.get(*path) != Some(value));
    let changed = changed.map(|(path, value)| (path.clone(), Some(value.clone())));
    let gone = old.keys().filter(|path| !new.contains_key(*path)).map(|path| (path.clone(), None));
    Ok(changed.chain(gone).collect())
}

/// The keys of all sections.
fn flat(root: Table) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for section in root.entries {
        let Value::Table(table) = section.node.value else { continue };
        all.extend(table.entries.into_iter().map(|entry| (format!("{}.{}", section.key, entry.key), entry.node.value)));
    }
    all
}

struct Mapper<'a> {
    ini: &'a mut Ini,
    findings: &'a mut Vec<Finding>,
    root: Table,
    /// Where in its section each name has its table: of users and databases there may be very many.
    places: HashMap<(String, String), usize>,
    /// The cipher suites towards servers; empty for all.
    server_suites: Vec<CipherSuite>,
}

/// A value of an ini file, and its place; the place is empty if it is not written.
#[derive(Clone, Debug)]
struct Given {
    text: String,
    at: Span,
}

/// No client waits that long for the reserve: what a `reserve_pool_timeout` of 0 means.
pub(super) const RESERVE_NEVER: &str = "315360000s";

/// The most connections that a pool can have: what PgBouncer calls unlimited.
const SIZE_MAX: i64 = 100_000;

impl<'a> Mapper<'a> {
    fn new(ini: &'a mut Ini, findings: &'a mut Vec<Finding>) -> Self {
        Self { ini, findings, root: Table::default(), places: HashMap::new(), server_suites: Vec::new() }
    }
}

impl Mapper<'_> {
    /// The keys of `[pgbouncer]` that are more than one of ours by another name.
    fn put_together(&mut self) {
        self.client_tls();
        self.auth();
        self.sizes();
        self.login_retry();
        self.server_check();
        self.dns();
        self.log_level();
        self.syslog();
        self.message_max();
        self.tcp();
    }

    fn find(&mut self, at: &Span, severity: Severity, key: &str, reason: impl Into<String>, help: impl Into<String>) {
        let finding = Finding::new(&self.ini.source, at, severity, key).about(keys::known(key));
        self.findings.push(finding.because(reason).help(help));
    }

    /// An error about a key that `known` does not have, in that section.
    fn unknown(&mut self, at: &Span, key: &str, known: &'static [Key], section: &str) {
        let names = known.iter().map(|key| key.name);
        let help = keys::nearest(key, names.clone(), "the keys are");
        let finding = Finding::new(&self.ini.source, at, Severity::Error, key).kind(FindingKind::Unknown);
        let finding = finding.about(setting::nearest(key, names));
        self.findings.push(finding.because(format!("unknown key `{key}` in [{section}]")).help(help));
    }

    fn error(&mut self, at: &Span, key: &str, reason: impl Into<String>, help: impl Into<String>) {
        self.find(at, Severity::Error, key, reason, help);
    }

    fn warning(&mut self, at: &Span, key: &str, reason: impl Into<String>, help: impl Into<String>) {
        self.find(at, Severity::Warning, key, reason, help);
    }

    /// The table of a section, or of a name in one, made if it is not there.
    fn table(&mut self, path: &[&str], at: &Span) -> &mut Table {
        let [section, name] = path else {
            return path.iter().fold(&mut self.root, |table, name| child(table, name, at));
        };
        let table = child(&mut self.root, section, at);
        let place = self.places.entry(((*section).to_owned(), (*name).to_owned()));
        let place = *place.or_insert_with(|| add(table, name, at));
        inner(&mut table.entries[place])
    }

    /// Writes a key; what was there before is gone.
    fn put(&mut self, path: &[&str], key: &str, value: Value, at: &Span) {
        let table = self.table(path, at);
        table.entries.retain(|entry| entry.key != key);
        table.push(key, value, at.clone());
    }

    /// A line that names what an earlier one has named begins anew, but for these keys.
    fn begin_anew(&mut self, path: &[&str], at: &Span, but_for: &[&str]) {
        self.table(path, at).entries.retain(|entry| but_for.contains(&entry.key.as_str()));
    }

    fn put_text(&mut self, path: &[&str], key: &str, text: impl Into<String>, at: &Span) {
        self.put(path, key, Value::Text(text.into()), at);
    }

    /// What holds of a key of `[pgbouncer]`: what is written, or PgBouncer's default.
    fn given(&self, name: &str) -> Given {
        let key = keys::find(GLOBAL, name);
        match self.ini.global(name) {
            Some(line) => {
                let known = match key.map(|key| key.kind) {
                    Some(Kind::Word(words)) => word(words, &line.value),
                    _ => None,
                };
                let text = known.map_or_else(|| line.value.clone(), str::to_owned);
                Given { text, at: line.value_at.clone() }
            }
            None => {
                let default = key.and_then(|key| key.default);
                Given { text: default.unwrap_or_default().to_owned(), at: 0..0 }
            }
        }
    }

    /// The given value as `kind` has it; `None` if it cannot be that, which is told.
    fn read(&mut self, kind: Kind, name: &str, given: &Given) -> Option<Value> {
        match value(kind, &given.text, &given.at) {
            Ok(value) => value,
            Err((reason, help)) => {
                self.error(&given.at, name, format!("{name}: {reason}"), help);
                None
            }
        }
    }

    /// A key of a line of `[databases]` or the like, whose effect is a key of the section at `path`.
    fn put_key(&mut self, path: &[&str], key: &Key, given: &Given) {
        if let (Effect::Is(name), Some(value)) = (key.effect, self.read(key.kind, key.name, given)) {
            self.put(path, name, value, &given.at);
        }
    }

    /// Says once that a key has no effect.
    fn without_effect(&mut self, key: &Key, at: &Span) {
        if let Effect::Nothing(reason) = key.effect {
            self.warning(at, key.name, format!("`{}` has no effect: {reason}", key.name), "it may be left out");
        }
    }
}

fn child<'t>(table: &'t mut Table, name: &str, at: &Span) -> &'t mut Table {
    let place = table.entries.iter().position(|entry| entry.key == name).unwrap_or_else(|| add(table, name, at));
    inner(&mut table.entries[place])
}

/// Adds an empty table, and says where it is.
fn add(table: &mut Table, name: &str, at: &Span) -> usize {
    table.push(name, Value::Table(Table::default()), at.clone());
    table.entries.len() - 1
}

fn inner(entry: &mut Entry) -> &mut Table {
    let value = &mut entry.node.value;
    if !matches!(value, Value::Table(_)) {
        *value = Value::Table(Table::default());
    }
    match value {
        Value::Table(table) => table,
        _ => unreachable!("it was made a table a line before"),
    }
}

/// A reason and what to write instead.
pub(super) type Wrong = (String, String);

/// A text as `kind` has it; `None` if that is as if it were not written.
pub(super) fn value(kind: Kind, text: &str, at: &Span) -> Result<Option<Value>, Wrong> {
    let read = match kind {
        Kind::Text => Value::Text(text.to_owned()),
        Kind::Path if text.is_empty() => Value::Text(String::new()),
        Kind::Path => Value::Text(path(text)),
        Kind::SocketDir => Value::Text(socket_dir(text)),
        Kind::List => {
            let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
            Value::List(names.map(|name| Node { value: Value::Text(name.to_owned()), at: at.clone() }).collect())
        }
        Kind::Number => match number(text)? {
            -1 => return Ok(None),
            number => Value::Integer(number),
        },
        Kind::Flag => Value::Boolean(flag(text)?),
        Kind::Seconds => match seconds(text)? {
            Some(time) => Value::Text(time),
            None => return Ok(None),
        },
        Kind::Word(words) => match word(words, text) {
            Some(word) => Value::Text(word.to_owned()),
            None => {
                let help = keys::nearest(text, words.iter().copied(), "it can be");
                return Err((format!("`{text}` is not known here"), help));
            }
        },
    };
    Ok(Some(read))
}

/// The word that is meant, in whatever case it is written.
fn word(words: &[&'static str], text: &str) -> Option<&'static str> {
    words.iter().copied().find(|word| word.eq_ignore_ascii_case(text))
}

fn path(text: &str) -> String {
    absolute(text).display().to_string()
}

/// A folder of sockets, or a name for sockets without files.
fn socket_dir(text: &str) -> String {
    if text.is_empty() || text.starts_with('@') { text.to_owned() } else { path(text) }
}

fn number(text: &str) -> Result<i64, Wrong> {
    text.parse().map_err(|_| (format!("`{text}` is not a whole number"), "write digits only".to_owned()))
}

fn flag(text: &str) -> Result<bool, Wrong> {
    match text {
        "1" | "on" | "yes" | "true" => Ok(true),
        "0" | "off" | "no" | "false" => Ok(false),
        // PgBouncer reads a number.
        other => match other.parse::<i64>() {
            Ok(number) => Ok(number != 0),
            Err(_) => Err((format!("`{other}` is neither 0 nor 1"), "write 1 for yes, 0 for no".to_owned())),
        },
    }
}

/// A number of seconds as a time with its unit; `None` for -1.
fn seconds(text: &str) -> Result<Option<String>, Wrong> {
    let wrong =
        || (format!("`{text}` is not a number of seconds"), "write seconds without a unit: 5 or 0.5".to_owned());
    if text == "-1" {
        return Ok(None);
    }
    let number: f64 = text.parse().map_err(|_| wrong())?;
    if !(0.0..1e9).contains(&number) {
        return Err(wrong());
    }
    let micros = (number * 1e6).round() as u64;
    Ok(Some(match micros {
        0 => "0".to_owned(),
        _ if micros.is_multiple_of(1_000_000) => format!("{}s", micros / 1_000_000),
        _ if micros.is_multiple_of(1_000) => format!("{}ms", micros / 1_000),
        _ => format!("{micros}us"),
    }))
}

/// PgBouncer uses a connection whose lifetime is 0 once; one of a microsecond is as old after its first use.
fn lifetime(text: &str) -> Result<Option<Value>, Wrong> {
    let time = seconds(text)?;
    Ok(time.map(|time| Value::Text(if time == "0" { "1us".to_owned() } else { time })))
}

/// A pool's size, of which 0 is as much as there can be.
fn size(text: &str) -> Result<Option<i64>, Wrong> {
    Ok(match number(text)? {
        -1 => None,
        0 => Some(SIZE_MAX),
        size => Some(size),
    })
}

/// The file that a key names, if it names one.
fn file(given: &Given) -> Option<std::path::PathBuf> {
    (!given.text.is_empty()).then(|| absolute(&given.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_get_a_unit() {
        let read = |text| seconds(text).map(Option::unwrap_or_default);
        for (text, time) in
            [("0", "0"), ("5", "5s"), ("5.0", "5s"), ("0.25", "250ms"), ("0.0000015", "2us"), ("-1", "")]
        {
            assert_eq!(read(text), Ok(time.to_owned()), "{text}");
        }
        for text in ["", "5s", "nan", "-2", "1e300", "inf"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn words_and_flags_are_checked() {
        let read = |kind, text| value(kind, text, &(0..0));
        assert!(read(Kind::Word(&["a", "b"]), "c").is_err());
        assert_eq!(read(Kind::Word(&["md5"]), "MD5"), Ok(Some(Value::Text("md5".to_owned()))));
        assert_eq!(read(Kind::Flag, "1"), Ok(Some(Value::Boolean(true))));
        assert_eq!(read(Kind::Flag, "2"), Ok(Some(Value::Boolean(true))));
        assert!(read(Kind::Flag, "maybe").is_err());
        assert_eq!(read(Kind::Number, "-1"), Ok(None));
    }
}
