//! Tests that documents name as proof: each of them exists.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use super::{Finding, SourceFile};
use crate::repository;

/// Names in code spans such as `copy::an_early_error_keeps_the_connection`: a file, and a test in it.
pub(super) fn check(files: &[SourceFile]) -> Result<Vec<Finding>> {
    let mut tests: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in files {
        if let Some(stem) = file.path.file_stem().and_then(|stem| stem.to_str()) {
            tests.entry(stem).or_default().push(&file.text);
        }
    }
    let mut findings = Vec::new();
    let is_page =
        |path: &PathBuf| path.starts_with("docs") && path.extension().is_some_and(|extension| extension == "md");
    for path in repository::files()?.into_iter().filter(is_page) {
        let text = fs::read_to_string(repository::root().join(&path))?;
        findings.extend(missing(&text, &tests).collect::<Vec<_>>().into_iter().map(|(line, name)| {
            Finding::new(&path, line, format!("there is no test `{name}`: name the one that holds this"))
        }));
    }
    Ok(findings)
}

/// The names that no file of tests has, and their lines.
fn missing<'t>(text: &'t str, tests: &BTreeMap<&str, Vec<&str>>) -> impl Iterator<Item = (usize, &'t str)> {
    let spans =
        text.lines().enumerate().flat_map(|(at, line)| line.split('`').skip(1).step_by(2).map(move |it| (at + 1, it)));
    spans.filter(|(_, span)| {
        let Some((file, name)) = span.split_once("::") else { return false };
        // A name without an underscore is that of a module.
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let Some(texts) = tests.get(file).filter(|_| name.contains('_') && name.bytes().all(is_name)) else {
            return false;
        };
        let declared = format!("fn {name}(");
        !texts.iter().any(|text| text.contains(&declared))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_test_that_is_not_there_is_found() {
        let tests = BTreeMap::from([("copy", vec!["fn early_error(fixture) {}"])]);
        let text =
            "`copy::early_error`<br>`copy::late_error`\n`Copy::new` `other::late_error` `copy::late` `copy::Late_`";
        assert_eq!(missing(text, &tests).collect::<Vec<_>>(), [(1, "copy::late_error")]);
    }
}
