//! Language rules: the words, the openings and the sentence lengths of comments, string literals, identifiers and pages.
//!
//! Readers search by keyword, with the terms of Postgres, tokio and Kafka. A comment that opens with a pronoun does not name its
//! subject, and a coined word is not found by a search.

mod markdown;
mod prose;
mod rust;
mod vocabulary;

use super::{Finding, SourceFile};

/// Checks a Rust file or a Markdown page.
pub(super) fn check(file: &SourceFile) -> Vec<Finding> {
    // The vocabulary and its tests contain the words that occur nowhere else.
    if file.path.starts_with("xtask/src/tidy/language") {
        return Vec::new();
    }
    let faults = match file.path.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => rust::faults(&file.text),
        Some("md") => markdown::faults(&file.text),
        _ => Vec::new(),
    };
    faults.into_iter().map(|fault| Finding::new(&file.path, fault.line, fault.advice)).collect()
}

/// A language rule that does not hold, with its line in the file.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    line: usize,
    advice: String,
}

impl Fault {
    fn new(line: usize, advice: impl Into<String>) -> Self {
        Self { line, advice: advice.into() }
    }
}
