//! Diagnostics of a configuration: position, reason and help, in the form of a compiler's.

use std::fmt;
use std::path::Path;

use super::key_path;
use super::raw::{SourceSpan, SourceText};
use crate::escape::{escaped, is_unsafe};

/// Whether a diagnostic prevents the use of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DiagnosticSeverity {
    /// The configuration is refused.
    Error,
    /// The configuration works, but may not do what was intended.
    Warning,
}

/// Kind of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DiagnosticKind {
    /// The text cannot be parsed.
    Syntax,
    /// The key, section or parameter does not exist.
    Unknown,
    /// The configuration, or a file that it names, cannot be used.
    File,
    /// The value is invalid, alone or together with others.
    Setting,
}

/// A diagnostic. `Display` prints several lines: message, position, excerpt and help.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: DiagnosticSeverity,
    /// The kind.
    pub kind: DiagnosticKind,
    /// The file, or `--database` for a URL on the command line.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The key with its section (`pool.size`); empty if no key was parsed.
    pub key: String,
    /// Why the configuration is wrong.
    pub reason: String,
    /// Help: text to write instead; empty for none.
    pub help: String,
    /// The line, with possible secrets replaced by `***`.
    pub excerpt: String,
    /// Number of characters that are marked.
    pub width: usize,
    /// The known key, or the known key most similar to an unknown one, with `NAME` in place of names.
    #[serde(skip)]
    known_key: Option<String>,
}

impl Diagnostic {
    /// A diagnostic for `span` of the source. An empty span stands for something that is missing.
    pub(crate) fn new(source: &SourceText, span: &SourceSpan, severity: DiagnosticSeverity, key: &str) -> Self {
        let start = floor_boundary(&source.text, span.start);
        let (line_start, line) = line_at(source, start);
        let from = (start - line_start).min(line.len());
        let to = floor_boundary(line, span.end.saturating_sub(line_start)).max(from);
        let (file, number) = source.location(start);
        let diagnostic = Self {
            severity,
            kind: DiagnosticKind::Setting,
            file: file.to_owned(),
            line: number,
            column: line[..from].chars().count() + 1,
            key: key.to_owned(),
            reason: String::new(),
            help: String::new(),
            excerpt: String::new(),
            width: line[from..to].chars().count().max(1),
            known_key: key_path::find(key).map(key_path::KeyRef::pattern),
        };
        if span.is_empty() { diagnostic } else { diagnostic.show(line, visible(line, from, to)) }
    }

    /// A diagnostic for text that cannot be parsed. Shows the key only, because the rest may be a secret.
    pub(crate) fn syntax_error(source: &SourceText, span: &SourceSpan) -> Self {
        let diagnostic = Self::new(source, span, DiagnosticSeverity::Error, "").with_kind(DiagnosticKind::Syntax);
        let line = line_at(source, floor_boundary(&source.text, span.start)).1;
        let end = match line.find('=') {
            Some(at) => at + 1,
            None if line.trim_start().starts_with('[') => line.len(),
            None => 0,
        };
        diagnostic.show(line, end)
    }

    /// An error of a file that the configuration names.
    pub fn file_error(file: &str, line: usize, key: &str, reason: String) -> Self {
        Self {
            severity: DiagnosticSeverity::Error,
            kind: DiagnosticKind::File,
            file: file.to_owned(),
            line,
            column: 1,
            key: key.to_owned(),
            reason,
            help: String::new(),
            excerpt: String::new(),
            width: 1,
            known_key: key_path::find(key).map(key_path::KeyRef::pattern),
        }
    }

    pub(crate) fn with_reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    pub(crate) fn with_kind(mut self, kind: DiagnosticKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the known key, or the one most similar to an unknown key.
    pub(crate) fn with_known_key(mut self, known_key: Option<&str>) -> Self {
        self.known_key = known_key.map(str::to_owned).or(self.known_key);
        self
    }

    /// Position, key and kind without content of the file, for readers who may not be allowed to read it. Only the name of
    /// the main file is shown, because other names are content of it.
    fn outline(&self, main: &Path) -> String {
        let file = if Path::new(&self.file) == main { &self.file } else { "another file" };
        let what = match (self.kind, &self.known_key) {
            (DiagnosticKind::Unknown, Some(known)) => format!("unknown key, similar to {known}"),
            (DiagnosticKind::Unknown, None) => "unknown key or section".to_owned(),
            (DiagnosticKind::Syntax, _) => "syntax error".to_owned(),
            (DiagnosticKind::File, Some(known)) => format!("{known}: the file cannot be used"),
            (DiagnosticKind::File, None) => "the file cannot be used".to_owned(),
            (DiagnosticKind::Setting, Some(known)) => format!("{known}: invalid setting"),
            (DiagnosticKind::Setting, None) => "invalid setting".to_owned(),
        };
        format!("{file}:{}: {what}", self.line)
    }

    /// Shows the line up to a byte, and `***` for the rest.
    fn show(mut self, line: &str, end: usize) -> Self {
        self.excerpt = printable(line[..end].trim_end());
        if !line[end..].trim().is_empty() {
            self.excerpt.push_str(" ***");
        }
        self
    }

    /// Start and width of the mark, within the excerpt.
    fn mark(&self) -> (usize, usize) {
        let length = self.excerpt.chars().count();
        let hidden = length.saturating_sub("***".len());
        let start = if self.column > length { hidden } else { self.column - 1 };
        (start, self.width.min(length.saturating_sub(start)).max(1))
    }
}

/// Length of the part of a line that a diagnostic for `from..to` may show: nothing after the start of a possible secret,
/// nothing else of an inline table, and after `to` only what cannot be a value.
fn visible(line: &str, from: usize, to: usize) -> usize {
    let rest = line[to..].trim_start();
    let harmless = rest.is_empty() || rest.starts_with(['#', ']', ',']);
    let end = if harmless { line.len() } else { to };
    let inline = line[..from].find('{').map_or(end, |at| at + 1);
    secret_from(line).unwrap_or(end).min(inline).min(end)
}

/// Start of a possible secret in a line that contains a URL or a word such as "password": after the first `=`, or after
/// `://`.
fn secret_from(line: &str) -> Option<usize> {
    let lower = line.to_ascii_lowercase();
    let url = lower.find("://").map(|at| at + "://".len());
    let words = ["pass", "secret", "scram-sha-256", "md5"];
    let word = words.iter().filter_map(|word| lower.find(word).map(|at| at + word.len())).min();
    let equals = line.find('=').map(|at| at + 1);
    let start = url.into_iter().chain(word).min()?;
    Some(equals.map_or(start, |equals| equals.min(url.unwrap_or(equals))))
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

/// The line of a byte, and where it starts.
fn line_at(source: &SourceText, at: usize) -> (usize, &str) {
    let start = source.text[..at].rfind('\n').map_or(0, |end| end + 1);
    (start, source.text[start..].lines().next().unwrap_or(""))
}

fn floor_boundary(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            DiagnosticSeverity::Error => "error",
            DiagnosticSeverity::Warning => "warning",
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

/// Maximum number of errors in an outline.
const OUTLINE_ERRORS_MAX: usize = 10;

/// All diagnostics of a refused configuration, errors and warnings, in text order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    diagnostics: Vec<Diagnostic>,
}

impl ConfigErrors {
    /// Sorts the diagnostics in text order.
    pub fn new(mut diagnostics: Vec<Diagnostic>) -> Self {
        diagnostics.sort_by_key(|diagnostic| (diagnostic.line, diagnostic.column));
        Self { diagnostics }
    }

    pub(crate) fn into_diagnostics(self) -> Vec<Diagnostic> {
        self.diagnostics
    }

    /// The errors by position, key and kind, without content of the files; `main` is the configuration file.
    #[must_use]
    pub fn outline(&self, main: &Path) -> String {
        let errors: Vec<_> =
            self.diagnostics.iter().filter(|diagnostic| diagnostic.severity == DiagnosticSeverity::Error).collect();
        let mut lines: Vec<_> =
            errors.iter().take(OUTLINE_ERRORS_MAX).map(|diagnostic| diagnostic.outline(main)).collect();
        if let Some(more) = errors.len().checked_sub(OUTLINE_ERRORS_MAX).filter(|more| *more > 0) {
            lines.push(format!("{more} more"));
        }
        lines.join("; ")
    }

    /// All diagnostics in text order.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.diagnostics
    }
}

impl std::error::Error for ConfigErrors {}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for diagnostic in &self.diagnostics {
            writeln!(f, "{diagnostic}")?;
        }
        let errors =
            self.diagnostics.iter().filter(|diagnostic| diagnostic.severity == DiagnosticSeverity::Error).count();
        write!(f, "{errors} error{} in the configuration", if errors == 1 { "" } else { "s" })
    }
}
