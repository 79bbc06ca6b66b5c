//! `tidegate.toml`: TOML text to a raw table, then through the common check.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::Config;
use super::check::{Disk, check};
use super::finding::{ConfigErrors, Finding, FindingKind, Severity};
use super::raw::{Entry, Node, Source, Table, Value};

/// Files larger than this are no configuration.
const LARGEST_BYTES: u64 = 16 << 20;

/// Reads and checks a file. Relative paths in it are relative to its folder; password files are read, and the files of
/// certificates must be readable.
///
/// # Errors
/// Everything that is wrong with the file, at once.
pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
    let name = path.display().to_string();
    let bytes = read_bytes(path).map_err(|reason| unreadable(&name, &reason, NO_FILE))?;
    let text = String::from_utf8(bytes).map_err(|error| unreadable(&name, &error.to_string(), NOT_UTF_8))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    read(text, name, Disk::Folder(folder))
}

/// Checks a text without touching the disk: password files stay unread (their users have empty passwords), and files
/// of certificates are not looked for. Never panics, whatever the text. `name` is the file's name in findings.
///
/// # Errors
/// Everything that is wrong with the text, at once.
pub fn parse(text: &str, name: &str) -> Result<Config, ConfigErrors> {
    read(text.to_owned(), name.to_owned(), Disk::Untouched)
}

fn read(text: String, name: String, disk: Disk<'_>) -> Result<Config, ConfigErrors> {
    let source = Source::new(name, text);
    let (parsed, errors) = DeTable::parse_recoverable(&source.text);
    if !errors.is_empty() {
        return Err(ConfigErrors::new(errors.iter().map(|error| syntax(&source, error)).collect()));
    }
    check(&source, &table(parsed.get_ref()), disk)
}

/// Reads a file of any bytes.
pub fn read_bytes(path: &Path) -> Result<Vec<u8>, String> {
    read_up_to(path, LARGEST_BYTES)
}

/// Reads a file of any bytes, but not of more than so many. Of a pipe or a device nobody knows how many there are.
pub(crate) fn read_up_to(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes));
    match read {
        Ok(count) if count as u64 > bytes_max => Err(format!("it is larger than {} MiB", bytes_max >> 20)),
        Ok(_) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

const NO_FILE: &str = "begin with a copy of tidegate.example.toml, or run `tidegate run --database postgres://...`";
const NOT_UTF_8: &str = "save the file as UTF-8";

fn unreadable(name: &str, reason: &str, help: &str) -> ConfigErrors {
    let source = Source::new(name, "");
    let finding = Finding::new(&source, &(0..0), Severity::Error, "").kind(FindingKind::File);
    ConfigErrors::new(vec![finding.because(format!("cannot read {name}: {reason}")).help(help)])
}

fn syntax(source: &Source, error: &toml::de::Error) -> Finding {
    Finding::of_syntax(source, &error.span().unwrap_or(0..0)).because(error.message().replace('\n', ", "))
}

fn table(parsed: &DeTable<'_>) -> Table {
    let entry = |(key, value): (&Spanned<_>, _)| Entry { key: key_name(key), key_at: key.span(), node: node(value) };
    let mut entries: Vec<Entry> = parsed.iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.key_at.start);
    Table { entries }
}

fn key_name(key: &Spanned<toml::de::DeString<'_>>) -> String {
    key.get_ref().to_string()
}

fn node(parsed: &Spanned<DeValue<'_>>) -> Node {
    Node { value: value(parsed.get_ref()), at: parsed.span() }
}

fn value(parsed: &DeValue<'_>) -> Value {
    match parsed {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => integer(number),
        DeValue::Boolean(value) => Value::Boolean(*value),
        DeValue::Array(nodes) => Value::List(nodes.iter().map(node).collect()),
        DeValue::Table(parsed) => Value::Table(table(parsed)),
        DeValue::Float(_) => Value::Other("a number with a fraction"),
        DeValue::Datetime(_) => Value::Other("a date"),
    }
}

fn integer(number: &DeInteger<'_>) -> Value {
    i64::from_str_radix(number.as_str(), number.radix()).map_or(Value::Other("a number too large"), Value::Integer)
}
