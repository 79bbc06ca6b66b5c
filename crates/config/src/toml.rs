//! Reader of `tidegate.toml`: TOML text to a raw table, then the common check.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::Config;
use super::check::{FileAccess, check};
use super::diagnostic::{ConfigErrors, Diagnostic, DiagnosticKind, DiagnosticSeverity};
use super::raw::{RawEntry, RawTable, RawValue, SourceText, SpannedValue};

/// Maximum size of a configuration file.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Reads and checks a file. Relative paths start at its folder. Password files are read, and certificate files must be
/// readable.
///
/// # Errors
/// All errors of the file.
pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
    let (source, table) = read_table(path)?;
    check(&source, &table, FileAccess::RelativeTo(path.parent().unwrap_or(Path::new(""))))
}

/// Reads a file without checking its keys.
pub(crate) fn read_table(path: &Path) -> Result<(SourceText, RawTable), ConfigErrors> {
    let name = path.display().to_string();
    let bytes = read_bytes(path).map_err(|reason| unreadable(&name, &reason, access_help(path)))?;
    let text = String::from_utf8(bytes).map_err(|error| unreadable(&name, &error.to_string(), NOT_UTF_8))?;
    parse_table(text, name)
}

/// Checks a text without file access: password files are not read (their users have empty passwords), and certificate files
/// are not looked up. Never panics. `name` is the name of the file in diagnostics.
///
/// # Errors
/// All errors of the text.
pub fn parse(text: &str, name: &str) -> Result<Config, ConfigErrors> {
    let (source, table) = parse_table(text.to_owned(), name.to_owned())?;
    check(&source, &table, FileAccess::None)
}

fn parse_table(text: String, name: String) -> Result<(SourceText, RawTable), ConfigErrors> {
    let source = SourceText::new(name, text);
    let (parsed, errors) = DeTable::parse_recoverable(&source.text);
    if !errors.is_empty() {
        return Err(ConfigErrors::new(errors.iter().map(|error| syntax(&source, error)).collect()));
    }
    let table = table(parsed.get_ref());
    drop((parsed, errors));
    Ok((source, table))
}

/// Reads a file.
pub fn read_bytes(path: &Path) -> Result<Vec<u8>, String> {
    read_up_to(path, FILE_BYTES_MAX)
}

/// Reads a file of at most `bytes_max` bytes. Reads instead of testing the size, because a pipe or a device has none.
pub(crate) fn read_up_to(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes));
    match read {
        Ok(count) if count as u64 > bytes_max => Err(format!("it is larger than {} MiB", bytes_max >> 20)),
        Ok(_) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

const NO_FILE: &str = "start from a copy of tidegate.example.toml, or run `tidegate run --database postgres://...`";
const NO_ACCESS: &str = "let the user of the process read it: chown, or chmod 640 and chgrp to a group of this user";
const NOT_UTF_8: &str = "save the file as UTF-8";

/// Remedy for a file that cannot be read: another copy helps only if there is none.
fn access_help(path: &Path) -> &'static str {
    match File::open(path).map_err(|error| error.kind()) {
        Err(io::ErrorKind::NotFound) => NO_FILE,
        Err(io::ErrorKind::PermissionDenied) => NO_ACCESS,
        _ => "name a TOML file",
    }
}

fn unreadable(name: &str, reason: &str, help: &str) -> ConfigErrors {
    let source = SourceText::new(name, "");
    let diagnostic = Diagnostic::new(&source, &(0..0), DiagnosticSeverity::Error, "").with_kind(DiagnosticKind::File);
    ConfigErrors::new(vec![diagnostic.with_reason(format!("cannot read {name}: {reason}")).with_help(help)])
}

fn syntax(source: &SourceText, error: &toml::de::Error) -> Diagnostic {
    Diagnostic::syntax_error(source, &error.span().unwrap_or(0..0)).with_reason(error.message().replace('\n', ", "))
}

/// The raw form of a parsed table.
pub(crate) fn table(parsed: &DeTable<'_>) -> RawTable {
    let entry = |(key, value): (&Spanned<_>, _)| RawEntry { key: key_name(key), key_at: key.span(), node: node(value) };
    let mut entries: Vec<RawEntry> = parsed.iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.key_at.start);
    RawTable { entries }
}

fn key_name(key: &Spanned<toml::de::DeString<'_>>) -> String {
    key.get_ref().to_string()
}

fn node(parsed: &Spanned<DeValue<'_>>) -> SpannedValue {
    SpannedValue { value: value(parsed.get_ref()), at: parsed.span() }
}

fn value(parsed: &DeValue<'_>) -> RawValue {
    match parsed {
        DeValue::String(text) => RawValue::Text(text.to_string()),
        DeValue::Integer(number) => integer(number),
        DeValue::Boolean(value) => RawValue::Boolean(*value),
        DeValue::Array(nodes) => RawValue::List(nodes.iter().map(node).collect()),
        DeValue::Table(parsed) => RawValue::Table(table(parsed)),
        DeValue::Float(_) => RawValue::Other("a number with a fraction"),
        DeValue::Datetime(_) => RawValue::Other("a date"),
    }
}

fn integer(number: &DeInteger<'_>) -> RawValue {
    i64::from_str_radix(number.as_str(), number.radix())
        .map_or(RawValue::Other("a number too large"), RawValue::Integer)
}
