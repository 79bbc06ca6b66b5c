//! The rules of the repository as checks. Each finding names a file, a line and what to do there.

mod crates;
mod cycles;
mod documented_tests;
mod language;
mod shared;
mod source;
mod text;
mod type_names;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::repository;

/// A rule that does not hold, its place, and the change to make.
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
    let rust = read_files("rs")?;
    let pages = read_files("md")?;
    let mut findings = crates::check(&rust);
    findings.extend(cycles::check(&rust));
    findings.extend(type_names::check(&rust));
    findings.extend(documented_tests::check(&rust, &pages));
    findings.extend(text::check_manifest()?);
    findings.extend(text::check_presence());
    findings.extend(shared::check()?);
    for file in &rust {
        findings.extend(text::check(file));
        findings.extend(source::check(file));
    }
    findings.extend(rust.iter().chain(&pages).flat_map(language::check));
    findings.sort();
    findings.dedup();
    findings.iter().for_each(|finding| println!("{finding}"));
    if !findings.is_empty() {
        bail!("{} findings", findings.len());
    }
    println!("tidy: no findings in {} files", rust.len() + pages.len());
    Ok(())
}

fn read_files(extension: &str) -> Result<Vec<SourceFile>> {
    let root = repository::root();
    let has_extension = |path: &PathBuf| path.extension().is_some_and(|it| it == extension);
    let read = |path: PathBuf| {
        let text = fs::read_to_string(root.join(&path)).with_context(|| format!("read {}", path.display()))?;
        Ok(SourceFile { path, text })
    };
    repository::files()?.into_iter().filter(has_extension).map(read).collect()
}
