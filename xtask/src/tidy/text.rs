//! Rules that need no syntax: file names, unfinished work, line and file lengths, required files, reasons of dependencies.

use std::path::Path;

use anyhow::{Context, Result};

use super::{Finding, SourceFile};
use crate::repository;

const LINE_CHARS_MAX: usize = 130;
const FILE_LINES_MAX: usize = 900;

/// Names that do not describe the contents.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "manager", "misc", "helper", "helpers"];

/// Marks of unfinished work, split so that this file has none.
const UNFINISHED: &[&str] = &[concat!("FIX", "ME"), concat!("XX", "X"), concat!("todo", "!("), concat!("#[", "ignore")];

const REQUIRED: &[&str] = &["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "README.md", "ARCHITECTURE.md"];

pub(super) fn check(file: &SourceFile) -> Vec<Finding> {
    let mut findings = check_name(&file.path);
    let lines = file.text.lines().count();
    if lines > FILE_LINES_MAX {
        let advice = format!("{lines} lines; a file is one noun: split it ({FILE_LINES_MAX} at most)");
        findings.push(Finding::new(&file.path, 1, advice));
    }
    for (index, line) in file.text.lines().enumerate() {
        findings.extend(check_line(line).map(|advice| Finding::new(&file.path, index + 1, advice)));
    }
    findings
}

fn check_name(path: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    if path.ends_with("mod.rs") {
        findings.push(Finding::new(path, 1, "no mod.rs: name the file after its folder and put it beside the folder"));
    }
    let parts = path.iter().filter_map(|part| part.to_str());
    let names = parts.map(|part| part.strip_suffix(".rs").unwrap_or(part));
    for name in names.filter(|name| EMPTY_NAMES.contains(name)) {
        findings.push(Finding::new(
            path,
            1,
            format!("`{name}` does not describe the contents: use the noun that it holds"),
        ));
    }
    findings
}

fn check_line(line: &str) -> Option<String> {
    let chars = line.chars().count();
    // A raw capture or a link cannot be broken.
    if chars > LINE_CHARS_MAX && line.contains(' ') && !line.contains("://") {
        return Some(format!("{chars} characters; break the line ({LINE_CHARS_MAX} at most)"));
    }
    let word = UNFINISHED.iter().find(|word| line.contains(**word))?;
    Some(format!("`{word}`: finish it, or open an issue"))
}

/// Every dependency of the workspace has a comment with its reason.
pub(super) fn check_manifest() -> Result<Vec<Finding>> {
    let path = Path::new("Cargo.toml");
    let text = std::fs::read_to_string(repository::root().join(path)).context("read Cargo.toml")?;
    let unexplained = dependencies_without_reason(&text);
    let advice = |name| format!("state above `{name}` what it is for, and why nothing smaller will do");
    Ok(unexplained.into_iter().map(|(line, name)| Finding::new(path, line, advice(name))).collect())
}

/// Dependencies without a comment above. A comment counts for the lines below it, up to an empty line.
fn dependencies_without_reason(manifest: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let (mut inside, mut explained) = (false, false);
    for (index, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            inside = line == "[workspace.dependencies]";
        } else if line.starts_with('#') {
            explained = true;
        } else if line.trim().is_empty() {
            explained = false;
        } else if let Some((name, _)) = line.split_once(" = ").filter(|_| inside && !explained)
            && !line.contains("path = ")
        {
            found.push((index + 1, name));
        }
    }
    found
}

pub(super) fn check_presence() -> Vec<Finding> {
    let missing = REQUIRED.iter().filter(|name| !repository::root().join(name).is_file());
    missing.map(|name| Finding::new(Path::new(name), 1, "the file is missing; write it")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_without_a_reason_is_found() {
        let manifest =
            "[workspace.dependencies]\nwire = { path = \"wire\" }\n# Hashes.\na = \"1\"\nb = \"2\"\n\nc = \"3\"\n";
        assert_eq!(dependencies_without_reason(manifest), [(7, "c")]);
    }

    #[test]
    fn empty_names_are_found_in_folders_too() {
        assert_eq!(check_name(Path::new("crates/pool/src/utils/lease.rs")).len(), 1);
        assert_eq!(check_name(Path::new("crates/pool/src/lease/mod.rs")).len(), 1);
        assert_eq!(check_name(Path::new("crates/pool/src/lease.rs")).len(), 0);
    }

    #[test]
    fn long_lines_are_found_unless_they_cannot_be_broken() {
        assert!(check_line(&"word ".repeat(30)).is_some());
        assert!(check_line(&"x".repeat(130)).is_none());
    }
}
