//! Conversion of the lines of an ini file to the raw tables of `tidegate.toml`.
//!
//! A missing key is set to PgBouncer's default where the default here may differ, so that the file keeps its meaning.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use super::{
    ini::{Ini, IniLine, absolute},
    keys::{self, GLOBAL, IniKey, IniKeyEffect, IniValueKind},
};
use crate::{
    CipherSuite, Diagnostic, DiagnosticKind, MESSAGE_MAX, ServerLifetime, SettingRow,
    diagnostic::DiagnosticSeverity,
    raw::{RawEntry, RawTable, RawValue, SourceSpan, SourceText, SpannedValue},
    setting,
};

mod databases;
mod global;
mod tls;
mod users;

/// Converts an ini file; errors and warnings are appended to `diagnostics`.
pub(super) fn tables(ini: &mut Ini, diagnostics: &mut Vec<Diagnostic>) -> RawTable {
    let lines = ini.lines.clone();
    let mut mapper = Mapper::new(ini, diagnostics);
    mapper.global_keys(&lines);
    mapper.listen();
    mapper.composite_keys();
    mapper.databases(&lines);
    mapper.auth_file();
    mapper.user_lines(&lines);
    mapper.peers(&lines);
    mapper.root
}

/// Changes of our keys if a key of `[pgbouncer]` changes and all others stay as in `now` (under PgBouncer's names). `None`
/// as a value restores the default.
pub(super) fn changes(
    now: &[SettingRow],
    name: &str,
    text: &str,
) -> Result<Vec<(String, Option<RawValue>)>, IniValueError> {
    let line = |key: &str, value: &str| {
        let (key, value) = (key.to_owned(), value.to_owned());
        IniLine { section: "pgbouncer", key, key_at: 0..0, value, value_at: 0..0 }
    };
    let settings = |change: Option<IniLine>| {
        let lines = now.iter().map(|row| line(&row.key, &row.value)).chain(change).collect();
        let (mut ini, mut diagnostics) = (Ini::new(SourceText::new("SET", ""), lines), Vec::new());
        let lines = ini.lines.clone();
        let mut mapper = Mapper::new(&mut ini, &mut diagnostics);
        mapper.global_keys(&lines);
        mapper.composite_keys();
        let root = mapper.root;
        diagnostics.retain(|diagnostic| diagnostic.severity == DiagnosticSeverity::Error);
        (flatten(root), diagnostics)
    };
    let ((old, _), (new, diagnostics)) = (settings(None), settings(Some(line(name, text))));
    if let Some(diagnostic) = diagnostics.into_iter().find(|diagnostic| diagnostic.key == name) {
        return Err((diagnostic.reason, diagnostic.help));
    }
    let changed = new.iter().filter(|(path, value)| old.get(*path) != Some(value));
    let changed = changed.map(|(path, value)| (path.clone(), Some(value.clone())));
    let gone = old.keys().filter(|path| !new.contains_key(*path)).map(|path| (path.clone(), None));
    Ok(changed.chain(gone).collect())
}

/// Keys of all sections by path.
fn flatten(root: RawTable) -> BTreeMap<String, RawValue> {
    let mut all = BTreeMap::new();
    for section in root.entries {
        let RawValue::Table(table) = section.node.value else { continue };
        all.extend(table.entries.into_iter().map(|entry| (format!("{}.{}", section.key, entry.key), entry.node.value)));
    }
    all
}

struct Mapper<'a> {
    ini: &'a mut Ini,
    diagnostics: &'a mut Vec<Diagnostic>,
    root: RawTable,
    /// Index of the table of each name in its section, because there may be hundreds of thousands of users and databases.
    table_index: HashMap<(String, String), usize>,
    /// Cipher suites for servers; empty for all.
    server_suites: Vec<CipherSuite>,
}

/// A value of an ini file and its position; the position is empty for a default.
#[derive(Clone, Debug)]
struct IniValue {
    text: String,
    at: SourceSpan,
}

/// Maximum size of a pool, for PgBouncer's "unlimited".
const SIZE_MAX: i64 = 100_000;

impl<'a> Mapper<'a> {
    fn new(ini: &'a mut Ini, diagnostics: &'a mut Vec<Diagnostic>) -> Self {
        Self { ini, diagnostics, root: RawTable::default(), table_index: HashMap::new(), server_suites: Vec::new() }
    }
}

impl Mapper<'_> {
    /// Converts keys of `[pgbouncer]` that do not correspond to one key of ours.
    fn composite_keys(&mut self) {
        self.client_tls();
        self.auth();
        self.sizes();
        self.login_retry();
        self.shutdown();
        self.server_check();
        self.dns();
        self.log_level();
        self.syslog();
        self.message_max();
        self.tcp();
    }

    fn find(
        &mut self,
        at: &SourceSpan,
        severity: DiagnosticSeverity,
        key: &str,
        reason: impl Into<String>,
        help: impl Into<String>,
    ) {
        let diagnostic = Diagnostic::new(&self.ini.source, at, severity, key).with_known_key(keys::known(key));
        self.diagnostics.push(diagnostic.with_reason(reason).with_help(help));
    }

    /// Reports a key that is not in `known`.
    fn unknown(&mut self, at: &SourceSpan, key: &str, known: &'static [IniKey], section: &str) {
        let names = known.iter().map(|key| key.name);
        let help = keys::nearest(key, names.clone(), "the keys are");
        let diagnostic =
            Diagnostic::new(&self.ini.source, at, DiagnosticSeverity::Error, key).with_kind(DiagnosticKind::Unknown);
        let diagnostic = diagnostic.with_known_key(setting::nearest(key, names));
        self.diagnostics.push(diagnostic.with_reason(format!("unknown key `{key}` in [{section}]")).with_help(help));
    }

    fn error(&mut self, at: &SourceSpan, key: &str, reason: impl Into<String>, help: impl Into<String>) {
        self.find(at, DiagnosticSeverity::Error, key, reason, help);
    }

    fn warning(&mut self, at: &SourceSpan, key: &str, reason: impl Into<String>, help: impl Into<String>) {
        self.find(at, DiagnosticSeverity::Warning, key, reason, help);
    }

    /// The table of a section, or of a name in a section; created if missing.
    fn table(&mut self, path: &[&str], at: &SourceSpan) -> &mut RawTable {
        let [section, name] = path else {
            return path.iter().fold(&mut self.root, |table, name| child(table, name, at));
        };
        let table = child(&mut self.root, section, at);
        let place = self.table_index.entry(((*section).to_owned(), (*name).to_owned()));
        let place = *place.or_insert_with(|| add_table(table, name, at));
        as_table(&mut table.entries[place])
    }

    /// Sets a key, and replaces a previous value.
    fn put(&mut self, path: &[&str], key: &str, value: RawValue, at: &SourceSpan) {
        let table = self.table(path, at);
        table.entries.retain(|entry| entry.key != key);
        table.push(key, value, at.clone());
    }

    /// Clears the table of a name that is configured again, except these keys.
    fn reset_table(&mut self, path: &[&str], at: &SourceSpan, keep: &[&str]) {
        self.table(path, at).entries.retain(|entry| keep.contains(&entry.key.as_str()));
    }

    fn put_text(&mut self, path: &[&str], key: &str, text: impl Into<String>, at: &SourceSpan) {
        self.put(path, key, RawValue::Text(text.into()), at);
    }

    /// Value in force of a key of `[pgbouncer]`: the written one, or PgBouncer's default.
    fn value_of(&self, name: &str) -> IniValue {
        let key = keys::find(GLOBAL, name);
        match self.ini.global(name) {
            Some(line) => {
                let known = match key.map(|key| key.kind) {
                    Some(IniValueKind::Word(words)) => word(words, &line.value),
                    _ => None,
                };
                let text = known.map_or_else(|| line.value.clone(), str::to_owned);
                IniValue { text, at: line.value_at.clone() }
            }
            None => {
                let default = key.and_then(|key| key.default);
                IniValue { text: default.unwrap_or_default().to_owned(), at: 0..0 }
            }
        }
    }

    /// Parses a value as `kind`; `None` after an error, which is reported.
    fn read(&mut self, kind: IniValueKind, name: &str, given: &IniValue) -> Option<RawValue> {
        match value(kind, &given.text, &given.at) {
            Ok(value) => value,
            Err((reason, help)) => {
                self.error(&given.at, name, format!("{name}: {reason}"), help);
                None
            }
        }
    }

    /// Sets a key whose effect is a key of the section at `path`.
    fn put_key(&mut self, path: &[&str], key: &IniKey, given: &IniValue) {
        if let (IniKeyEffect::SameAs(name), Some(value)) = (key.effect, self.read(key.kind, key.name, given)) {
            self.put(path, name, value, &given.at);
        }
    }

    /// Warns that a key has no effect.
    fn without_effect(&mut self, key: &IniKey, at: &SourceSpan) {
        if let IniKeyEffect::Ignored(reason) = key.effect {
            self.warning(at, key.name, format!("`{}` has no effect: {reason}", key.name), "it can be left out");
        }
    }
}

fn child<'t>(table: &'t mut RawTable, name: &str, at: &SourceSpan) -> &'t mut RawTable {
    let place = table.entries.iter().position(|entry| entry.key == name).unwrap_or_else(|| add_table(table, name, at));
    as_table(&mut table.entries[place])
}

/// Adds an empty table, and returns its index.
fn add_table(table: &mut RawTable, name: &str, at: &SourceSpan) -> usize {
    table.push(name, RawValue::Table(RawTable::default()), at.clone());
    table.entries.len() - 1
}

fn as_table(entry: &mut RawEntry) -> &mut RawTable {
    let value = &mut entry.node.value;
    if !matches!(value, RawValue::Table(_)) {
        *value = RawValue::Table(RawTable::default());
    }
    match value {
        RawValue::Table(table) => table,
        _ => unreachable!("the value was replaced by a table above"),
    }
}

/// Reason and help of an invalid value.
pub(super) type IniValueError = (String, String);

/// Parses a text as `kind`; `None` if the value means "not set".
pub(super) fn value(kind: IniValueKind, text: &str, at: &SourceSpan) -> Result<Option<RawValue>, IniValueError> {
    let read = match kind {
        IniValueKind::Text => RawValue::Text(text.to_owned()),
        IniValueKind::Path if text.is_empty() => RawValue::Text(String::new()),
        IniValueKind::Path => RawValue::Text(path(text)),
        IniValueKind::SocketDir => RawValue::Text(socket_dir(text)),
        IniValueKind::List => {
            let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
            RawValue::List(
                names.map(|name| SpannedValue { value: RawValue::Text(name.to_owned()), at: at.clone() }).collect(),
            )
        }
        IniValueKind::Number => match number(text)? {
            -1 => return Ok(None),
            number => RawValue::Integer(number),
        },
        IniValueKind::Flag => RawValue::Boolean(flag(text)?),
        IniValueKind::Seconds => match seconds(text)? {
            Some(time) => RawValue::Text(time),
            None => return Ok(None),
        },
        IniValueKind::Word(words) => match word(words, text) {
            Some(word) => RawValue::Text(word.to_owned()),
            None => {
                let help = keys::nearest(text, words.iter().copied(), "it can be");
                return Err((format!("`{text}` is not a valid value"), help));
            }
        },
    };
    Ok(Some(read))
}

/// The word, ignoring case.
fn word(words: &[&'static str], text: &str) -> Option<&'static str> {
    words.iter().copied().find(|word| word.eq_ignore_ascii_case(text))
}

fn path(text: &str) -> String {
    absolute(text).display().to_string()
}

/// A directory of sockets, or the name of an abstract socket.
fn socket_dir(text: &str) -> String {
    if text.is_empty() || text.starts_with('@') { text.to_owned() } else { path(text) }
}

fn number(text: &str) -> Result<i64, IniValueError> {
    text.parse().map_err(|_| (format!("`{text}` is not a whole number"), "write digits only".to_owned()))
}

fn flag(text: &str) -> Result<bool, IniValueError> {
    match text {
        "1" | "on" | "yes" | "true" => Ok(true),
        "0" | "off" | "no" | "false" => Ok(false),
        // PgBouncer parses a number.
        other => match other.parse::<i64>() {
            Ok(number) => Ok(number != 0),
            Err(_) => Err((format!("`{other}` is neither 0 nor 1"), "write 1 for yes, 0 for no".to_owned())),
        },
    }
}

/// Converts seconds to a duration with a unit; `None` for -1.
fn seconds(text: &str) -> Result<Option<String>, IniValueError> {
    let error =
        || (format!("`{text}` is not a number of seconds"), "write seconds without a unit: 5 or 0.5".to_owned());
    if text == "-1" {
        return Ok(None);
    }
    let number: f64 = text.parse().map_err(|_| error())?;
    if !(0.0..1e9).contains(&number) {
        return Err(error());
    }
    let micros = (number * 1e6).round() as u64;
    Ok(Some(match micros {
        0 => "0".to_owned(),
        _ if micros.is_multiple_of(1_000_000) => format!("{}s", micros / 1_000_000),
        _ if micros.is_multiple_of(1_000) => format!("{}ms", micros / 1_000),
        _ => format!("{micros}us"),
    }))
}

/// A lifetime of 0 closes a connection of PgBouncer after its first use.
fn lifetime(text: &str) -> Result<Option<RawValue>, IniValueError> {
    let word = |time: String| if time == "0" { ServerLifetime::SINGLE_USE.to_owned() } else { time };
    Ok(seconds(text)?.map(|time| RawValue::Text(word(time))))
}

/// Size of a pool; 0 is the maximum.
fn size(text: &str) -> Result<Option<i64>, IniValueError> {
    Ok(match number(text)? {
        -1 => None,
        0 => Some(SIZE_MAX),
        size => Some(size),
    })
}

/// The file of a key, if it is set.
fn file(given: &IniValue) -> Option<std::path::PathBuf> {
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
        assert!(read(IniValueKind::Word(&["a", "b"]), "c").is_err());
        assert_eq!(read(IniValueKind::Word(&["md5"]), "MD5"), Ok(Some(RawValue::Text("md5".to_owned()))));
        assert_eq!(read(IniValueKind::Flag, "1"), Ok(Some(RawValue::Boolean(true))));
        assert_eq!(read(IniValueKind::Flag, "2"), Ok(Some(RawValue::Boolean(true))));
        assert!(read(IniValueKind::Flag, "maybe").is_err());
        assert_eq!(read(IniValueKind::Number, "-1"), Ok(None));
    }
}
