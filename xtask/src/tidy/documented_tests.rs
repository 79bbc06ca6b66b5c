//! Tests that pages of docs/ cite as evidence exist.

use std::collections::BTreeMap;

use super::{Finding, SourceFile};

/// Checks code spans such as `copy::early_error_keeps_the_connection`: a file of tests, and a function in it.
pub(super) fn check(rust: &[SourceFile], pages: &[SourceFile]) -> Vec<Finding> {
    let mut tests: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in rust {
        if let Some(stem) = file.path.file_stem().and_then(|stem| stem.to_str()) {
            tests.entry(stem).or_default().push(&file.text);
        }
    }
    let mut findings = Vec::new();
    for page in pages.iter().filter(|page| page.path.starts_with("docs")) {
        let missing = missing(&page.text, &tests);
        findings.extend(missing.map(|(line, name)| {
            Finding::new(&page.path, line, format!("no test is called `{name}`: cite a test that exists"))
        }));
    }
    findings
}

/// Cited names without a function, with their lines.
fn missing<'t>(text: &'t str, tests: &BTreeMap<&str, Vec<&str>>) -> impl Iterator<Item = (usize, &'t str)> {
    let spans =
        text.lines().enumerate().flat_map(|(at, line)| line.split('`').skip(1).step_by(2).map(move |it| (at + 1, it)));
    spans.filter(|(_, span)| {
        let Some((file, name)) = span.split_once("::") else { return false };
        // A name without an underscore is a module.
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
    fn a_missing_test_is_found() {
        let tests = BTreeMap::from([("copy", vec!["fn early_error(fixture) {}"])]);
        let text =
            "`copy::early_error`<br>`copy::late_error`\n`Copy::new` `other::late_error` `copy::late` `copy::Late_`";
        assert_eq!(missing(text, &tests).collect::<Vec<_>>(), [(1, "copy::late_error")]);
    }
}
