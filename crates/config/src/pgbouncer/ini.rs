//! Lines of an ini file: sections, `key = value`, comments, `%include`.
//!
//! All files are appended to one text, which keeps their names, so that a position in it is a position in a file. A key
//! may be in double quotes, with quotes doubled; a value is the rest of the line without surrounding whitespace. Only
//! comments may be in another encoding than UTF-8.

use std::{
    borrow::Cow,
    collections::HashMap,
    path::{Path, PathBuf},
};

use super::keys;
use crate::{
    Diagnostic, DiagnosticKind,
    diagnostic::DiagnosticSeverity,
    raw::{SourceSpan, SourceText},
    toml::read_bytes,
};

/// An ini file with the files that it includes, as lines.
pub(super) struct Ini {
    pub(super) source: SourceText,
    pub(super) lines: Vec<IniLine>,
    /// The last line of `[pgbouncer]` with each key.
    globals: HashMap<String, usize>,
}

/// `key = value` in a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IniLine {
    pub(super) section: &'static str,
    pub(super) key: String,
    pub(super) key_at: SourceSpan,
    pub(super) value: String,
    pub(super) value_at: SourceSpan,
}

/// Maximum nesting depth of includes; deeper nesting is treated as a cycle.
const DEPTH_MAX: usize = 10;
/// Maximum number of included files: a file that includes itself several times would be read exponentially often.
const FILES_MAX: usize = 1000;

/// Reads a file with all that it includes.
pub(super) fn read(path: &Path, diagnostics: &mut Vec<Diagnostic>) -> Ini {
    let name = path.display().to_string();
    let mut reader =
        IniReader { source: SourceText::new(&*name, ""), lines: Vec::new(), section: None, files: 0, diagnostics };
    match read_bytes(path) {
        Ok(bytes) => reader.file(&name, &bytes, 0),
        Err(reason) => {
            let diagnostic =
                Diagnostic::new(&reader.source, &(0..0), DiagnosticSeverity::Error, "").with_kind(DiagnosticKind::File);
            let diagnostic = diagnostic.with_reason(format!("cannot read {name}: {reason}"));
            let help = match path.is_file() {
                true => "let the user of the process read it: chmod 640, and chgrp to a group of this user",
                false => "write the path of the pgbouncer.ini of PgBouncer",
            };
            reader.diagnostics.push(diagnostic.with_help(help));
        }
    }
    Ini::new(reader.source, reader.lines)
}

/// Section of the following lines.
#[derive(Clone, Copy)]
enum IniSection {
    Known(&'static str),
    /// Already reported; its lines are skipped.
    Unknown,
}

struct IniReader<'f> {
    source: SourceText,
    lines: Vec<IniLine>,
    section: Option<IniSection>,
    /// Number of included files.
    files: usize,
    diagnostics: &'f mut Vec<Diagnostic>,
}

impl IniReader<'_> {
    fn file(&mut self, name: &str, bytes: &[u8], depth: usize) {
        self.source.begin_part(name, 1);
        for (number, bytes) in bytes.split(|byte| *byte == b'\n').enumerate() {
            let text = String::from_utf8_lossy(bytes);
            let (line, start) = (text.trim_end_matches('\r'), self.source.text.len());
            self.source.text.push_str(line);
            self.source.text.push('\n');
            if matches!(text, Cow::Owned(_)) {
                self.invalid_utf8(line, start);
            } else if let Some(file) = line.trim_start().strip_prefix("%include") {
                self.include(file.trim(), start..start + line.len(), depth);
                self.source.begin_part(name, number + 2);
            } else {
                self.line(line, start);
            }
        }
    }

    fn include(&mut self, file: &str, at: SourceSpan, depth: usize) {
        if depth >= DEPTH_MAX || self.files >= FILES_MAX {
            return self.error(&at, "files include each other in a cycle, or there are too many", "remove an %include");
        }
        self.files += 1;
        match read_bytes(Path::new(file)) {
            Ok(bytes) => self.file(file, &bytes, depth + 1),
            Err(reason) => {
                let help = "a relative path starts at the working directory of the process";
                self.find(&at, DiagnosticKind::File, format!("cannot read {file}: {reason}"), help);
            }
        }
    }

    /// Only comments may be in another encoding.
    fn invalid_utf8(&mut self, line: &str, start: usize) {
        if !line.trim_start().starts_with([';', '#']) {
            self.error(&(start..start), "this line is not in UTF-8", "save the file as UTF-8");
        }
    }

    fn line(&mut self, mut line: &str, mut start: usize) {
        loop {
            let trimmed = line.trim();
            let from = start + line.len() - line.trim_start().len();
            match trimmed.bytes().next() {
                None | Some(b';' | b'#') => return,
                // As in PgBouncer, the text after the bracket is read as a line of its own.
                Some(b'[') => (line, start) = self.section(trimmed, from),
                Some(_) => return self.pair(trimmed, from),
            }
        }
    }

    /// Returns the rest of the line, and where it starts.
    fn section<'l>(&mut self, line: &'l str, start: usize) -> (&'l str, usize) {
        let Some(end) = line.find(']') else {
            self.section = Some(IniSection::Unknown);
            let at = start..start + line.len();
            self.error(&at, "the section has no closing bracket", "write [pgbouncer]");
            return ("", at.end);
        };
        let (name, at) = (line[1..end].trim(), start..start + end + 1);
        let known = keys::SECTIONS.iter().find(|known| **known == name);
        self.section = Some(known.map_or(IniSection::Unknown, |known| IniSection::Known(known)));
        if known.is_none() {
            let help = keys::nearest(name, keys::SECTIONS.iter().copied(), "the sections are");
            self.find(&at, DiagnosticKind::Unknown, format!("unknown section [{name}]"), help);
        }
        (&line[end + 1..], at.end)
    }

    fn pair(&mut self, line: &str, start: usize) {
        // An invalid line is not shown, because it may contain a password.
        let nowhere = start..start;
        let Some((key, length)) = key(line) else {
            return self.error(
                &nowhere,
                "this is not a line of an ini file",
                "write key = value, or start the line with ;",
            );
        };
        let rest = &line[length..];
        let Some(value) = rest.trim_start().strip_prefix('=') else {
            let help = format!("write {key} = value");
            return self.error(&nowhere, format!("`{key}` is not followed by ="), help);
        };
        let section = match self.section {
            Some(IniSection::Known(section)) => section,
            Some(IniSection::Unknown) => return,
            None => return self.error(&nowhere, format!("`{key}` is before any section"), "start with [pgbouncer]"),
        };
        let value = value.trim();
        let value_start = start + line.len() - value.len();
        self.lines.push(IniLine {
            section,
            key,
            key_at: start..start + length,
            value: value.to_owned(),
            value_at: value_start..value_start + value.len(),
        });
    }

    /// Reports an error in the syntax.
    fn error(&mut self, at: &SourceSpan, reason: impl Into<String>, help: impl Into<String>) {
        self.find(at, DiagnosticKind::Syntax, reason, help);
    }

    fn find(&mut self, at: &SourceSpan, kind: DiagnosticKind, reason: impl Into<String>, help: impl Into<String>) {
        let diagnostic = Diagnostic::new(&self.source, at, DiagnosticSeverity::Error, "").with_kind(kind);
        self.diagnostics.push(diagnostic.with_reason(reason).with_help(help));
    }
}

/// The key of a line, and its length in bytes.
fn key(line: &str) -> Option<(String, usize)> {
    if let Some(quoted) = line.strip_prefix('"') {
        let (text, length) = unquote(quoted, '"')?;
        return (!text.is_empty()).then_some((text, length + 1));
    }
    let end = line.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(line.len());
    (end > 0).then(|| (line[..end].to_owned(), end))
}

/// The text up to the closing quote, with doubled quotes replaced, and its length in bytes including the quote.
pub(super) fn unquote(text: &str, quote: char) -> Option<(String, usize)> {
    let mut read = String::new();
    let mut rest = text.char_indices().peekable();
    while let Some((at, c)) = rest.next() {
        if c != quote {
            read.push(c);
        } else if rest.next_if(|(_, next)| *next == quote).is_some() {
            read.push(quote);
        } else {
            return Some((read, at + quote.len_utf8()));
        }
    }
    None
}

impl Ini {
    pub(super) fn new(source: SourceText, lines: Vec<IniLine>) -> Self {
        let of_all = lines.iter().enumerate().filter(|(_, line)| line.section == "pgbouncer");
        let globals = of_all.map(|(place, line)| (line.key.clone(), place)).collect();
        Self { source, lines, globals }
    }

    /// Appends the text of another file, and returns where it starts.
    pub(super) fn append(&mut self, path: &Path, text: &str) -> usize {
        self.source.begin_part(&path.display().to_string(), 1);
        let start = self.source.text.len();
        self.source.text.push_str(text);
        self.source.text.push('\n');
        start
    }

    /// The last line of `[pgbouncer]` with a key: later lines take precedence.
    pub(super) fn global(&self, key: &str) -> Option<&IniLine> {
        self.globals.get(key).map(|place| &self.lines[*place])
    }
}

/// The path relative to the working directory of the process.
pub(super) fn absolute(path: &str) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_files(files: &[(&str, &str)]) -> (Ini, Vec<Diagnostic>) {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let text = text.replace("DIR", &folder.path().display().to_string());
            // Writes Latin-1.
            let bytes = text.chars().flat_map(|c| if c == 'é' { vec![0xe9] } else { c.to_string().into_bytes() });
            std::fs::write(folder.path().join(name), bytes.collect::<Vec<_>>()).expect("a file");
        }
        let mut diagnostics = Vec::new();
        let ini = read(&folder.path().join(files[0].0), &mut diagnostics);
        (ini, diagnostics)
    }

    #[test]
    fn lines_have_their_section_key_and_value() {
        let text = "; a comment\n[databases]\n\"my \"\"db\" = host=a # b\n  * =\n[pgbouncer]\nlisten_port=7000 \n";
        let (ini, diagnostics) = read_files(&[("a.ini", text)]);
        assert!(diagnostics.is_empty(), "{diagnostics:?}");
        let lines: Vec<_> = ini.lines.iter().map(|line| (line.section, &*line.key, &*line.value)).collect();
        let expected =
            [("databases", "my \"db", "host=a # b"), ("databases", "*", ""), ("pgbouncer", "listen_port", "7000")];
        assert_eq!(lines, expected);
        assert_eq!(&ini.source.text[ini.lines[2].value_at.clone()], "7000");
    }

    #[test]
    fn an_included_file_has_its_own_name_and_lines() {
        let main = "[pgbouncer]\n%include DIR/b.ini\nlisten_port = 1\n";
        let (ini, diagnostics) = read_files(&[("a.ini", main), ("b.ini", "\npool_mode = session\n[databases]\n")]);
        assert!(diagnostics.is_empty(), "{diagnostics:?}");
        let positions: Vec<_> = ini.lines.iter().map(|line| ini.source.location(line.key_at.start)).collect();
        assert!(positions[0].0.ends_with("b.ini") && positions[0].1 == 2, "{positions:?}");
        assert!(positions[1].0.ends_with("a.ini") && positions[1].1 == 3, "{positions:?}");
        assert_eq!(ini.lines[1].section, "databases", "the section of an included file stays current");
    }

    #[test]
    fn an_invalid_line_is_reported_without_its_content() {
        let text = "a = 1\n[pgbounce]\nx = 1\n[databases]\nhunter2\n= hunter2\n[users\n%include /nowhere/at/all\n";
        let (_, diagnostics) = read_files(&[("a.ini", text)]);
        let lines: Vec<_> = diagnostics.iter().map(|diagnostic| diagnostic.line).collect();
        assert_eq!(lines, [1, 2, 5, 6, 7, 8]);
        assert!(
            diagnostics[1].help.contains("[pgbouncer]") || diagnostics[1].help.contains("pgbouncer"),
            "{diagnostics:?}"
        );
        assert!(!format!("{diagnostics:?}").contains("= hunter2"), "{diagnostics:?}");
    }

    #[test]
    fn text_after_a_section_is_a_line_of_its_own() {
        let text = "[databases] ; who is served\n[pgbouncer]# a\n[users] [databases]\tx = host=a ; b\r\n[peers] 7\n";
        let (ini, diagnostics) = read_files(&[("a.ini", text)]);
        let lines: Vec<_> = ini.lines.iter().map(|line| (line.section, &*line.key, &*line.value)).collect();
        assert_eq!(lines, [("databases", "x", "host=a ; b")]);
        assert_eq!(&ini.source.text[ini.lines[0].key_at.clone()], "x");
        let positions: Vec<_> = diagnostics.iter().map(|diagnostic| (diagnostic.line, diagnostic.column)).collect();
        assert_eq!(positions, [(4, 9)], "{diagnostics:?}");
    }

    #[test]
    fn a_comment_may_be_in_any_encoding() {
        let text = "; un café\n[databases]\n  # é\ncafé = host=a\nx = host=b\n";
        let (ini, diagnostics) = read_files(&[("a.ini", text)]);
        assert_eq!(ini.lines.iter().map(|line| &*line.key).collect::<Vec<_>>(), ["x"]);
        assert_eq!(diagnostics.iter().map(|diagnostic| diagnostic.line).collect::<Vec<_>>(), [4], "{diagnostics:?}");
    }

    #[test]
    fn a_cycle_of_includes_ends() {
        let (_, diagnostics) = read_files(&[("a.ini", "%include DIR/a.ini\n")]);
        assert!(diagnostics.iter().any(|diagnostic| diagnostic.reason.contains("cycle")), "{diagnostics:?}");
    }

    #[test]
    fn repeated_self_includes_are_limited() {
        let (_, diagnostics) = read_files(&[("a.ini", "%include DIR/a.ini\n".repeat(8).as_str())]);
        assert!(diagnostics.iter().any(|diagnostic| diagnostic.reason.contains("cycle")), "{diagnostics:?}");
    }
}
