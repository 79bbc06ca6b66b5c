//! The house rules as checks. Each finding names a place and what to do there.

mod crates;
mod named_tests;
mod rooms;
mod shared;
mod source;
mod text;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::repository;

/// A rule that does not hold, where, and what to do about it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    file: PathBuf,
    line: usize,
    advice: String,
}

impl Finding {
    fn new(file: &Path, line: usize, advice: impl Into<String>) -> Self {
        Self { file: file.to_path_buf(), line, advice: advice.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.advice)
    }
}

/// A file of the working copy, read once for all rules.
#[derive(Debug)]
struct SourceFile {
    path: PathBuf,
    text: String,
}

pub(crate) fn run() -> Result<()> {
    let files = rust_files()?;
    let mut findings = crates::check(&repository::metadata()?)?;
    findings.extend(text::check_manifest()?);
    findings.extend(text::check_presence());
    findings.extend(shared::check()?);
    findings.extend(named_tests::check(&files)?);
    for file in &files {
        findings.extend(text::check(file));
        findings.extend(source::check(file));
    }
    findings.sort();
    findings.dedup();
    findings.iter().for_each(|finding| println!("{finding}"));
    if !findings.is_empty() {
        bail!("{} places to tidy", findings.len());
    }
    println!("tidy: {} files hold to the house rules", files.len());
    Ok(())
}

fn rust_files() -> Result<Vec<SourceFile>> {
    let root = repository::root();
    let is_rust = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    let read = |path: PathBuf| {
        let text = fs::read_to_string(root.join(&path)).with_context(|| format!("read {}", path.display()))?;
        Ok(SourceFile { path, text })
    };
    repository::files()?.into_iter().filter(is_rust).map(read).collect()
}
