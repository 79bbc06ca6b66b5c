//! What is wrong with a configuration, said the way a compiler says it: where, why, and what to write instead.

use std::fmt;
use std::path::Path;

use super::path;
use super::raw::{Source, Span};
use crate::escape::{escaped, is_unsafe};

/// Whether a finding keeps the configuration from being used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The configuration is refused.
    Error,
    /// The configuration works, and may not do what was meant.
    Warning,
}

/// The kind of the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingKind {
    /// The text cannot be read.
    Syntax,
    /// There is no such key, section or parameter.
    Unknown,
    /// A file that the configuration names, or the configuration itself, cannot be used.
    File,
    /// A value does not fit, by itself or beside others.
    Setting,
}

/// One finding. Its `Display` is several lines: message, place, the line itself, and help.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// Error or warning.
    pub severity: Severity,
    /// The kind of the error.
    pub kind: FindingKind,
    /// The file, or `--database` for a URL on the command line.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The key with its section (`pool.size`); empty when the text could not be read as far as a key.
    pub key: String,
    /// What is wrong.
    pub reason: String,
    /// What to write instead; empty when there is nothing to say.
    pub help: String,
    /// The line, with whatever may be a secret replaced by `***`.
    pub excerpt: String,
    /// How many characters of the line the finding is about.
    pub width: usize,
    /// The key if it is known, or, if it is not, a known one that is like it; with `NAME` in place of names.
    #[serde(skip)]
    known_key: Option<String>,
}

impl Finding {
    /// A finding about `span` of the source; an empty span is about something that is not written.
    pub(crate) fn new(source: &Source, span: &Span, severity: Severity, key: &str) -> Self {
        let start = floor_boundary(&source.text, span.start);
        let (line_start, line) = line_at(source, start);
        let from = (start - line_start).min(line.len());
        let to = floor_boundary(line, span.end.saturating_sub(line_start)).max(from);
        let (file, number) = source.place(start);
        let finding = Self {
            severity,
            kind: FindingKind::Setting,
            file: file.to_owned(),
            line: number,
            column: line[..from].chars().count() + 1,
            key: key.to_owned(),
            reason: String::new(),
            help: String::new(),
            excerpt: String::new(),
            width: line[from..to].chars().count().max(1),
            known_key: path::find(key).map(path::Found::pattern),
        };
        if span.is_empty() { finding } else { finding.show(line, visible(line, from, to)) }
    }

    /// A finding about text that could not be read, so that nobody knows what of it is a secret: shows no more than
    /// the key.
    pub(crate) fn of_syntax(source: &Source, span: &Span) -> Self {
        let finding = Self::new(source, span, Severity::Error, "").kind(FindingKind::Syntax);
        let line = line_at(source, floor_boundary(&source.text, span.start)).1;
        let end = match line.find('=') {
            Some(at) => at + 1,
            None if line.trim_start().starts_with('[') => line.len(),
            None => 0,
        };
        finding.show(line, end)
    }

    /// An error about a file that a configuration names.
    pub fn in_file(file: &str, line: usize, key: &str, reason: String) -> Self {
        Self {
            severity: Severity::Error,
            kind: FindingKind::File,
            file: file.to_owned(),
            line,
            column: 1,
            key: key.to_owned(),
            reason,
            help: String::new(),
            excerpt: String::new(),
            width: 1,
            known_key: path::find(key).map(path::Found::pattern),
        }
    }

    pub(crate) fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    pub(crate) fn kind(mut self, kind: FindingKind) -> Self {
        self.kind = kind;
        self
    }

    /// Names the key that it is about, or, of an unknown one, a known one that is like it.
    pub(crate) fn about(mut self, known_key: Option<&str>) -> Self {
        self.known_key = known_key.map(str::to_owned).or(self.known_key);
        self
    }

    /// Place, key and kind, without anything that the file says: for somebody who may not be allowed to read it. `main` is the
    /// configuration file; names of others stand in it.
    fn outline(&self, main: &Path) -> String {
        let file = if Path::new(&self.file) == main { &self.file } else { "another file" };
        let what = match (self.kind, &self.known_key) {
            (FindingKind::Unknown, Some(known)) => format!("unknown key, similar to {known}"),
            (FindingKind::Unknown, None) => "unknown key or section".to_owned(),
            (FindingKind::Syntax, _) => "syntax error".to_owned(),
            (FindingKind::File, Some(known)) => format!("{known}: the file cannot be used"),
            (FindingKind::File, None) => "the file cannot be used".to_owned(),
            (FindingKind::Setting, Some(known)) => format!("{known}: invalid setting"),
            (FindingKind::Setting, None) => "invalid setting".to_owned(),
        };
        format!("{file}:{}: {what}", self.line)
    }

    /// Shows the line up to that byte, and `***` for the rest of it.
    fn show(mut self, line: &str, end: usize) -> Self {
        self.excerpt = printable(line[..end].trim_end());
        if !line[end..].trim().is_empty() {
            self.excerpt.push_str(" ***");
        }
        self
    }

    /// Where the mark begins in the excerpt, and how wide it is; inside of what is shown.
    fn mark(&self) -> (usize, usize) {
        let length = self.excerpt.chars().count();
        let hidden = length.saturating_sub("***".len());
        let start = if self.column > length { hidden } else { self.column - 1 };
        (start, self.width.min(length.saturating_sub(start)).max(1))
    }
}

/// How much of a line may be shown in a finding about `from..to`: nothing that speaks of a password or a URL, nothing
/// else in an inline table, and of what follows only what cannot be a value.
fn visible(line: &str, from: usize, to: usize) -> usize {
    let rest = line[to..].trim_start();
    let harmless = rest.is_empty() || rest.starts_with(['#', ']', ',']);
    let end = if harmless { line.len() } else { to };
    let inline = line[..from].find('{').map_or(end, |at| at + 1);
    secret_from(line).unwrap_or(end).min(inline).min(end)
}

/// Where a secret may begin in a line that speaks of a password or has a URL: behind the first `=`, or `://`.
fn secret_from(line: &str) -> Option<usize> {
    let lower = line.to_ascii_lowercase();
    let url = lower.find("://").map(|at| at + "://".len());
    let words = ["pass", "secret", "scram-sha-256", "md5"];
    let word = words.iter().filter_map(|word| lower.find(word).map(|at| at + word.len())).min();
    let equals = line.find('=').map(|at| at + 1);
    let told = url.into_iter().chain(word).min()?;
    Some(equals.map_or(told, |equals| equals.min(url.unwrap_or(equals))))
}

fn printable(line: &str) -> String {
    line.chars()
        .map(|c| {
            if c == '\t' {
                ' '
            } else if is_unsafe(c) {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}

/// The line that a byte is in, and where it begins.
fn line_at(source: &Source, at: usize) -> (usize, &str) {
    let start = source.text[..at].rfind('\n').map_or(0, |end| end + 1);
    (start, source.text[start..].lines().next().unwrap_or(""))
}

fn floor_boundary(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let number = self.line.to_string();
        let gutter = " ".repeat(number.len());
        writeln!(f, "{severity}: {}", escaped(&self.reason))?;
        writeln!(f, "{gutter}--> {}:{}:{}", escaped(&self.file), self.line, self.column)?;
        if !self.excerpt.is_empty() {
            writeln!(f, "{gutter} |\n{number} | {}", self.excerpt)?;
            let (start, width) = self.mark();
            writeln!(f, "{gutter} | {}{}", " ".repeat(start), "^".repeat(width))?;
        }
        if !self.help.is_empty() {
            writeln!(f, "{gutter} = help: {}", escaped(&self.help))?;
        }
        Ok(())
    }
}

/// An outline has as many errors at most.
const OUTLINED_MAX: usize = 10;

/// Every finding about a configuration that cannot be used: the errors, and the warnings beside them, in the order of
/// the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    findings: Vec<Finding>,
}

impl ConfigErrors {
    /// The findings, in the order of the text.
    pub fn new(mut findings: Vec<Finding>) -> Self {
        findings.sort_by_key(|finding| (finding.line, finding.column));
        Self { findings }
    }

    pub(crate) fn into_findings(self) -> Vec<Finding> {
        self.findings
    }

    /// The errors by place, key and kind, without anything that the files say; `main` is the configuration file.
    #[must_use]
    pub fn outline(&self, main: &Path) -> String {
        let errors: Vec<_> = self.findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
        let mut lines: Vec<_> = errors.iter().take(OUTLINED_MAX).map(|finding| finding.outline(main)).collect();
        if let Some(more) = errors.len().checked_sub(OUTLINED_MAX).filter(|more| *more > 0) {
            lines.push(format!("{more} more"));
        }
        lines.join("; ")
    }

    /// All findings, errors and warnings, in the order of the text.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

impl std::error::Error for ConfigErrors {}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        let errors = self.findings.iter().filter(|finding| finding.severity == Severity::Error).count();
        write!(f, "{errors} error{} in the configuration", if errors == 1 { "" } else { "s" })
    }
}
