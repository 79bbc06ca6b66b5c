//! `tidegate convert`: an ini file as the `tidegate.toml` that means the same.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use super::Document;
use crate::{
    Config, ConfigErrors,
    check::{Disk, SECTIONS, check},
    raw::{Entry, Table, Value},
};

/// The file as commented TOML.
///
/// # Errors
/// Everything that is wrong with the file, at once.
pub fn convert(path: &Path) -> Result<String, ConfigErrors> {
    let document = Document::read(path);
    if document.is_refused() {
        return Err(ConfigErrors::new(document.findings));
    }
    let config = check(&document.source, &document.table, Disk::Folder(Path::new("")))?;
    Ok(Printer { defaults: defaults(&config) }.print(path, &document))
}

/// What would hold if a key were not written, by section and key.
fn defaults(config: &Config) -> BTreeMap<String, (String, String)> {
    config.render().into_iter().map(|row| (row.key, (row.value, row.default))).collect()
}

struct Printer {
    /// Value and default of each key.
    defaults: BTreeMap<String, (String, String)>,
}

impl Printer {
    fn print(&self, path: &Path, document: &Document) -> String {
        let mut out = format!("# Made of {} by `tidegate convert`.\n", path.display());
        out.push_str(
            "# Keys that are left out have their default; docs/src/reference/configuration.md describes all.\n",
        );
        for finding in &document.findings {
            let _ = writeln!(out, "# {}:{}: {}", finding.file, finding.line, finding.reason);
        }
        for (section, keys) in SECTIONS {
            let (name, named) = section.split_once('.').map_or((*section, false), |(name, _)| (name, true));
            let Some(Value::Table(table)) = document.table.entry(name).map(|entry| &entry.node.value) else { continue };
            if named {
                for entry in &table.entries {
                    let Value::Table(table) = &entry.node.value else { continue };
                    let _ = writeln!(out, "\n[{name}.{}]", key_text(&entry.key));
                    table.entries.iter().for_each(|entry| self.pair(&mut out, entry, None));
                }
                continue;
            }
            let mut lines = String::new();
            for key in *keys {
                if let Some(entry) = table.entry(key.name).filter(|entry| self.is_worth(name, entry)) {
                    self.pair(&mut lines, entry, Some(key.doc));
                }
            }
            if !lines.is_empty() {
                let _ = write!(out, "\n[{name}]\n{lines}");
            }
        }
        out
    }

    /// Whether a key says anything that would not hold without it.
    fn is_worth(&self, section: &str, entry: &Entry) -> bool {
        let known = self.defaults.get(&format!("{section}.{}", entry.key));
        known.is_none_or(|(value, default)| value != default)
    }

    fn pair(&self, out: &mut String, entry: &Entry, comment: Option<&str>) {
        for line in comment.unwrap_or_default().trim().lines() {
            let _ = writeln!(out, "# {}", line.trim());
        }
        let _ = writeln!(out, "{} = {}", key_text(&entry.key), value_text(&entry.node.value));
    }
}

fn key_text(key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if bare { key.to_owned() } else { quoted(key) }
}

fn value_text(value: &Value) -> String {
    match value {
        Value::Text(text) => quoted(text),
        Value::Integer(number) => number.to_string(),
        Value::Boolean(value) => value.to_string(),
        Value::List(nodes) => {
            let items: Vec<_> = nodes.iter().map(|node| value_text(&node.value)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Table(table) => inline(table),
        Value::Other(_) => quoted(""),
    }
}

fn inline(table: &Table) -> String {
    let pair = |entry: &Entry| format!("{} = {}", key_text(&entry.key), value_text(&entry.node.value));
    format!("{{ {} }}", table.entries.iter().map(pair).collect::<Vec<_>>().join(", "))
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
