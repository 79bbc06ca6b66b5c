//! `tidegate convert`: converts an ini file to an equivalent `tidegate.toml`.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use super::IniDocument;
use crate::{
    Config, ConfigErrors,
    check::{FileAccess, check},
    escape::escaped,
    key_path::SECTIONS,
    raw::{RawEntry, RawTable, RawValue},
};

/// The file as TOML with comments.
///
/// # Errors
/// All errors of the file.
pub fn convert(path: &Path) -> Result<String, ConfigErrors> {
    let document = IniDocument::read(path);
    if document.is_refused() {
        return Err(ConfigErrors::new(document.diagnostics));
    }
    let config = check(&document.source, &document.table, FileAccess::RelativeTo(Path::new("")))?;
    Ok(TomlPrinter { defaults: defaults(&config) }.print(path, &document))
}

/// Value and default of each key.
fn defaults(config: &Config) -> BTreeMap<String, (String, String)> {
    config.setting_rows().into_iter().map(|row| (row.key, (row.value, row.default))).collect()
}

struct TomlPrinter {
    /// Value and default of each key.
    defaults: BTreeMap<String, (String, String)>,
}

impl TomlPrinter {
    fn print(&self, path: &Path, document: &IniDocument) -> String {
        // TOML has no control characters in comments, and a line break would end one.
        let mut out = format!("# Converted from {} by `tidegate convert`.\n", escaped(&path.display().to_string()));
        out.push_str("# Missing keys have their defaults; docs/src/reference/configuration.md describes all keys.\n");
        for diagnostic in &document.diagnostics {
            let warning = format!("{}:{}: {}", diagnostic.file, diagnostic.line, diagnostic.reason);
            let _ = writeln!(out, "# {}", escaped(&warning));
        }
        for (section, keys) in SECTIONS {
            let (name, named) = section.split_once('.').map_or((*section, false), |(name, _)| (name, true));
            let Some(RawValue::Table(table)) = document.table.entry(name).map(|entry| &entry.node.value) else {
                continue;
            };
            if named {
                for entry in &table.entries {
                    let RawValue::Table(table) = &entry.node.value else { continue };
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

    /// Whether the value differs from the default.
    fn is_worth(&self, section: &str, entry: &RawEntry) -> bool {
        let known = self.defaults.get(&format!("{section}.{}", entry.key));
        known.is_none_or(|(value, default)| value != default)
    }

    fn pair(&self, out: &mut String, entry: &RawEntry, comment: Option<&str>) {
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

fn value_text(value: &RawValue) -> String {
    match value {
        RawValue::Text(text) => quoted(text),
        RawValue::Integer(number) => number.to_string(),
        RawValue::Boolean(value) => value.to_string(),
        RawValue::List(nodes) => {
            let items: Vec<_> = nodes.iter().map(|node| value_text(&node.value)).collect();
            format!("[{}]", items.join(", "))
        }
        RawValue::Table(table) => inline(table),
        RawValue::Other(_) => quoted(""),
    }
}

fn inline(table: &RawTable) -> String {
    let pair = |entry: &RawEntry| format!("{} = {}", key_text(&entry.key), value_text(&entry.node.value));
    format!("{{ {} }}", table.entries.iter().map(pair).collect::<Vec<_>>().join(", "))
}

/// A TOML basic string.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_in_comments() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pgbouncer\u{1}\n.ini");
        let ini = "[databases]\na = host=h\n[pgbouncer]\nauth_file = users\u{7f}\u{1b}.txt\n";
        std::fs::write(&path, ini).expect("a writable folder");
        let text = convert(&path).expect("a configuration");
        assert!(!text.contains(|c: char| c != '\n' && c.is_control()), "{text}");
        crate::toml::parse(&text, "converted").unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    }
}
