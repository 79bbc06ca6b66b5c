//! Language rules: the words, the openings and the sentence lengths of comments, string literals, identifiers and pages.
//!
//! Readers search by keyword, with the terms of Postgres, tokio and Kafka. A comment that opens with a pronoun does not name its
//! subject, and a coined word is not found by a search.

mod markdown;
mod prose;
mod rust;
mod vocabulary;

use std::path::Path;

use super::{Finding, SourceFile};

/// Paths whose files follow the language rules. The list goes when every path does.
const CLEAN: &[&str] = &[
    "bench",
    "crates/admin",
    "crates/backoff",
    "crates/balance",
    "crates/config",
    "crates/grpc-channel",
    "crates/journal",
    "crates/lanes",
    "crates/link",
    "crates/logging",
    "crates/pg-client",
    "crates/pool",
    "crates/proxy",
    "crates/query-log",
    "crates/sandbox",
    "crates/session-state",
    "crates/sql",
    "crates/stats",
    "crates/streams",
    "crates/supervise",
    "crates/tasks",
    "crates/tidegate",
    "crates/tls",
    "crates/topology",
    "crates/wire",
    "docs",
    "drivers",
    "examples",
    "fuzz",
    "testkit",
    "xtask",
];

/// Checks a Rust file or a Markdown page.
pub(super) fn check(file: &SourceFile) -> Vec<Finding> {
    if !is_clean(&file.path) {
        return Vec::new();
    }
    let faults = match file.path.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => rust::faults(&file.text),
        Some("md") => markdown::faults(&file.text),
        _ => Vec::new(),
    };
    faults.into_iter().map(|fault| Finding::new(&file.path, fault.line, fault.advice)).collect()
}

fn is_clean(path: &Path) -> bool {
    // The vocabulary and its tests contain the words that occur nowhere else.
    CLEAN.iter().any(|clean| path.starts_with(clean)) && !path.starts_with("xtask/src/tidy/language")
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
