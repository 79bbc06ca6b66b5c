//! Lines of an ini file: sections, `key = value`, comments, `%include`.
//!
//! All files become one text, each with its name, so that a place in it is a place in a file. A key may stand in double
//! quotes, a quote in it doubled; a value is the rest of its line, without the space around it. Only comments may be in
//! another encoding than UTF-8.

use std::{
    borrow::Cow,
    collections::HashMap,
    path::{Path, PathBuf},
};

use super::keys;
use crate::{
    Finding, FindingKind,
    finding::Severity,
    raw::{Source, Span},
    toml::read_bytes,
};

/// An ini file, and those that it includes, in lines.
pub(super) struct Ini {
    pub(super) source: Source,
    pub(super) lines: Vec<Line>,
    /// The last line of `[pgbouncer]` with each key.
    globals: HashMap<String, usize>,
}

/// `key = value` in a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) section: &'static str,
    pub(super) key: String,
    pub(super) key_at: Span,
    pub(super) value: String,
    pub(super) value_at: Span,
}

/// Files within files at most; more are a circle.
const DEPTH_MAX: usize = 10;
/// Files that are read in all: one that includes itself a few times over would be read ever more often.
const FILES_MAX: usize = 1000;

/// Reads a file with all that it includes.
pub(super) fn read(path: &Path, findings: &mut Vec<Finding>) -> Ini {
    let name = path.display().to_string();
    let mut reader = Reader { source: Source::new(&*name, ""), lines: Vec::new(), section: None, files: 0, findings };
    match read_bytes(path) {
        Ok(bytes) => reader.file(&name, &bytes, 0),
        Err(reason) => {
            let finding = Finding::new(&reader.source, &(0..0), Severity::Error, "").kind(FindingKind::File);
            let finding = finding.because(format!("cannot read {name}: {reason}"));
            reader.findings.push(finding.help("name the pgbouncer.ini that PgBouncer was started with"));
        }
    }
    Ini::new(reader.source, reader.lines)
}

/// The section that lines belong to.
#[derive(Clone, Copy)]
enum Section {
    Known(&'static str),
    /// It was told already; its lines are passed over.
    Unknown,
}

struct Reader<'f> {
    source: Source,
    lines: Vec<Line>,
    section: Option<Section>,
    /// How many were included.
    files: usize,
    findings: &'f mut Vec<Finding>,
}

impl Reader<'_> {
    fn file(&mut self, name: &str, bytes: &[u8], depth: usize) {
        self.source.begin_part(name, 1);
        for (number, bytes) in bytes.split(|byte| *byte == b'\n').enumerate() {
            let text = String::from_utf8_lossy(bytes);
            let (line, start) = (text.trim_end_matches('\r'), self.source.text.len());
            self.source.text.push_str(line);
            self.source.text.push('\n');
            if matches!(text, Cow::Owned(_)) {
                self.foreign(line, start);
            } else if let Some(file) = line.trim_start().strip_prefix("%include") {
                self.include(file.trim(), start..start + line.len(), depth);
                self.source.begin_part(name, number + 2);
            } else {
                self.line(line, start);
            }
        }
    }

    fn include(&mut self, file: &str, at: Span, depth: usize) {
        if depth >= DEPTH_MAX || self.files >= FILES_MAX {
            return self.error(&at, "files include each other in a circle, or too many", "take an %include out");
        }
        self.files += 1;
        match read_bytes(Path::new(file)) {
            Ok(bytes) => self.file(file, &bytes, depth + 1),
            Err(reason) => {
                let help = "a relative path begins where the process is started";
                self.find(&at, FindingKind::File, format!("cannot read {file}: {reason}"), help);
            }
        }
    }

    /// A comment may be in any encoding; of anything else nobody knows what is meant.
    fn foreign(&mut self, line: &str, start: usize) {
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
                // What stands behind the bracket, a comment for one, is as if it stood on a line of its own.
                Some(b'[') => (line, start) = self.section(trimmed, from),
                Some(_) => return self.pair(trimmed, from),
            }
        }
    }

    /// The rest of the line, and where it begins.
    fn section<'l>(&mut self, line: &'l str, start: usize) -> (&'l str, usize) {
        let Some(end) = line.find(']') else {
            self.section = Some(Section::Unknown);
            let at = start..start + line.len();
            self.error(&at, "a section without its closing bracket", "write [pgbouncer]");
            return ("", at.end);
        };
        let (name, at) = (line[1..end].trim(), start..start + end + 1);
        let known = keys::SECTIONS.iter().find(|known| **known == name);
        self.section = Some(known.map_or(Section::Unknown, |known| Section::Known(known)));
        if known.is_none() {
            let help = keys::nearest(name, keys::SECTIONS.iter().copied(), "the sections are");
            self.find(&at, FindingKind::Unknown, format!("unknown section [{name}]"), help);
        }
        (&line[end + 1..], at.end)
    }

    fn pair(&mut self, line: &str, start: usize) {
        // Nothing of a line that could not be read is shown: it may hold a password.
        let nowhere = start..start;
        let Some((key, length)) = key(line) else {
            return self.error(&nowhere, "this is no line of an ini file", "write key = value, or begin it with ;");
        };
        let rest = &line[length..];
        let Some(value) = rest.trim_start().strip_prefix('=') else {
            let help = format!("write {key} = value");
            return self.error(&nowhere, format!("`{key}` is not followed by ="), help);
        };
        let section = match self.section {
            Some(Section::Known(section)) => section,
            Some(Section::Unknown) => return,
            None => return self.error(&nowhere, format!("`{key}` before any section"), "begin with [pgbouncer]"),
        };
        let value = value.trim();
        let value_start = start + line.len() - value.len();
        self.lines.push(Line {
            section,
            key,
            key_at: start..start + length,
            value: value.to_owned(),
            value_at: value_start..value_start + value.len(),
        });
    }

    /// An error in the lines themselves.
    fn error(&mut self, at: &Span, reason: impl Into<String>, help: impl Into<String>) {
        self.find(at, FindingKind::Syntax, reason, help);
    }

    fn find(&mut self, at: &Span, kind: FindingKind, reason: impl Into<String>, help: impl Into<String>) {
        let finding = Finding::new(&self.source, at, Severity::Error, "").kind(kind);
        self.findings.push(finding.because(reason).help(help));
    }
}

/// The key that a line begins with, and how many bytes it takes.
fn key(line: &str) -> Option<(String, usize)> {
    if let Some(quoted) = line.strip_prefix('"') {
        let (text, length) = unquote(quoted, '"')?;
        return (!text.is_empty()).then_some((text, length + 1));
    }
    let end = line.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(line.len());
    (end > 0).then(|| (line[..end].to_owned(), end))
}

/// The text up to the closing quote, doubled ones as one, and how many bytes it takes with that quote.
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
    pub(super) fn new(source: Source, lines: Vec<Line>) -> Self {
        let of_all = lines.iter().enumerate().filter(|(_, line)| line.section == "pgbouncer");
        let globals = of_all.map(|(place, line)| (line.key.clone(), place)).collect();
        Self { source, lines, globals }
    }

    /// Appends the text of another file, and says where it begins.
    pub(super) fn append(&mut self, path: &Path, text: &str) -> usize {
        self.source.begin_part(&path.display().to_string(), 1);
        let start = self.source.text.len();
        self.source.text.push_str(text);
        self.source.text.push('\n');
        start
    }

    /// The last line of `[pgbouncer]` with that key; a later one goes before an earlier.
    pub(super) fn global(&self, key: &str) -> Option<&Line> {
        self.globals.get(key).map(|place| &self.lines[*place])
    }
}

/// A path from where the process was started.
pub(super) fn absolute(path: &str) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_files(files: &[(&str, &str)]) -> (Ini, Vec<Finding>) {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let text = text.replace("DIR", &folder.path().display().to_string());
            // As an editor of another time would write it.
            let bytes = text.chars().flat_map(|c| if c == 'é' { vec![0xe9] } else { c.to_string().into_bytes() });
            std::fs::write(folder.path().join(name), bytes.collect::<Vec<_>>()).expect("a file");
        }
        let mut findings = Vec::new();
        let ini = read(&folder.path().join(files[0].0), &mut findings);
        (ini, findings)
    }

    #[test]
    fn lines_have_their_section_key_and_value() {
        let text = "; a comment\n[databases]\n\"my \"\"db\" = host=a # b\n  * =\n[pgbouncer]\nlisten_port=7000 \n";
        let (ini, findings) = read_files(&[("a.ini", text)]);
        assert!(findings.is_empty(), "{findings:?}");
        let lines: Vec<_> = ini.lines.iter().map(|line| (line.section, &*line.key, &*line.value)).collect();
        let expected =
            [("databases", "my \"db", "host=a # b"), ("databases", "*", ""), ("pgbouncer", "listen_port", "7000")];
        assert_eq!(lines, expected);
        assert_eq!(&ini.source.text[ini.lines[2].value_at.clone()], "7000");
    }

    #[test]
    fn an_included_file_has_its_own_name_and_lines() {
        let main = "[pgbouncer]\n%include DIR/b.ini\nlisten_port = 1\n";
        let (ini, findings) = read_files(&[("a.ini", main), ("b.ini", "\npool_mode = session\n[databases]\n")]);
        assert!(findings.is_empty(), "{findings:?}");
        let places: Vec<_> = ini.lines.iter().map(|line| ini.source.place(line.key_at.start)).collect();
        assert!(places[0].0.ends_with("b.ini") && places[0].1 == 2, "{places:?}");
        assert!(places[1].0.ends_with("a.ini") && places[1].1 == 3, "{places:?}");
        assert_eq!(ini.lines[1].section, "databases", "an included section goes on behind the include");
    }

    #[test]
    fn what_is_no_line_is_told_without_what_it_says() {
        let text = "a = 1\n[pgbounce]\nx = 1\n[databases]\nhunter2\n= hunter2\n[users\n%include /nowhere/at/all\n";
        let (_, findings) = read_files(&[("a.ini", text)]);
        let lines: Vec<_> = findings.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 2, 5, 6, 7, 8]);
        assert!(findings[1].help.contains("[pgbouncer]") || findings[1].help.contains("pgbouncer"), "{findings:?}");
        assert!(!format!("{findings:?}").contains("= hunter2"), "{findings:?}");
    }

    #[test]
    fn what_stands_behind_a_section_is_a_line_of_its_own() {
        let text = "[databases] ; who is served\n[pgbouncer]# a\n[users] [databases]\tx = host=a ; b\r\n[peers] 7\n";
        let (ini, findings) = read_files(&[("a.ini", text)]);
        let lines: Vec<_> = ini.lines.iter().map(|line| (line.section, &*line.key, &*line.value)).collect();
        assert_eq!(lines, [("databases", "x", "host=a ; b")]);
        assert_eq!(&ini.source.text[ini.lines[0].key_at.clone()], "x");
        let told: Vec<_> = findings.iter().map(|finding| (finding.line, finding.column)).collect();
        assert_eq!(told, [(4, 9)], "{findings:?}");
    }

    #[test]
    fn a_comment_may_be_in_any_encoding() {
        let text = "; un café\n[databases]\n  # é\ncafé = host=a\nx = host=b\n";
        let (ini, findings) = read_files(&[("a.ini", text)]);
        assert_eq!(ini.lines.iter().map(|line| &*line.key).collect::<Vec<_>>(), ["x"]);
        assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), [4], "{findings:?}");
    }

    #[test]
    fn a_circle_of_files_ends() {
        let (_, findings) = read_files(&[("a.ini", "%include DIR/a.ini\n")]);
        assert!(findings.iter().any(|finding| finding.reason.contains("circle")), "{findings:?}");
    }

    #[test]
    fn a_file_that_includes_itself_many_times_is_told_and_not_read_for_ever() {
        let (_, findings) = read_files(&[("a.ini", "%include DIR/a.ini\n".repeat(8).as_str())]);
        assert!(findings.iter().any(|finding| finding.reason.contains("circle")), "{findings:?}");
    }
}
