//! Who may know whom among the crates: the libraries know nothing of each other, only the gateway knows all.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Finding;
use crate::repository;

/// What a crate of ours may name in `[dependencies]`; what is not listed may name none of ours.
const MAY_USE: &[(&str, &[&str])] = &[
    (
        "tidegate-gateway",
        &[
            "tidegate-balance",
            "tidegate-journal",
            "tidegate-lanes",
            "tidegate-link",
            "tidegate-pool",
            "tidegate-sandbox",
            "tidegate-supervise",
            "tidegate-wire",
        ],
    ),
    ("tidegate-fuzz", &["tidegate-gateway", "tidegate-journal", "tidegate-wire"]),
    ("tidegate-testkit", &["tidegate-sandbox", "tidegate-wire"]),
    ("xtask", &["tidegate-figures", "tidegate-sandbox"]),
];

/// What any crate may name in `[dev-dependencies]`, which are also those of benches.
const TESTS_MAY_USE: &[&str] = &["tidegate-figures", "tidegate-sandbox", "tidegate-testkit"];

pub(super) fn check(metadata: &Value) -> Result<Vec<Finding>> {
    let packages = metadata["packages"].as_array().context("cargo metadata lists packages")?;
    let ours: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    Ok(packages.iter().flat_map(|package| check_package(package, &ours)).collect())
}

fn check_package(package: &Value, ours: &[&str]) -> Vec<Finding> {
    let name = package["name"].as_str().unwrap_or_default();
    let manifest = package["manifest_path"].as_str().unwrap_or_default();
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    dependencies
        .filter(|dependency| dependency["name"].as_str().is_some_and(|used| ours.contains(&used)))
        .filter_map(|dependency| check_edge(name, Path::new(manifest), dependency))
        .collect()
}

fn check_edge(name: &str, manifest: &Path, dependency: &Value) -> Option<Finding> {
    let used = dependency["name"].as_str()?;
    let for_tests = dependency["kind"].as_str() == Some("dev");
    if may_use(name, used) || (for_tests && TESTS_MAY_USE.contains(&used)) {
        return None;
    }
    let text = std::fs::read_to_string(manifest).unwrap_or_default();
    let line = text.lines().position(|line| line.starts_with(used)).map_or(1, |index| index + 1);
    let path = manifest.strip_prefix(repository::root()).unwrap_or(manifest);
    let advice = format!("{name} may not know {used}; pass what it needs as a value or a trait from the gateway");
    Some(Finding::new(path, line, advice))
}

fn may_use(name: &str, used: &str) -> bool {
    MAY_USE.iter().any(|(user, may)| *user == name && may.contains(&used))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn findings(user: &str, used: &str, kind: Option<&str>) -> usize {
        let packages = json!({ "packages": [
            { "name": user, "manifest_path": "/x/Cargo.toml", "dependencies": [{ "name": used, "kind": kind }] },
            { "name": used, "manifest_path": "/y/Cargo.toml", "dependencies": [] },
        ]});
        check(&packages).unwrap().len()
    }

    #[test]
    fn a_library_may_not_know_another() {
        assert_eq!(findings("tidegate-pool", "tidegate-wire", None), 1);
        assert_eq!(findings("tidegate-gateway", "tidegate-wire", None), 0);
    }

    #[test]
    fn only_tests_may_use_the_testkit() {
        assert_eq!(findings("tidegate-gateway", "tidegate-testkit", Some("dev")), 0);
        assert_eq!(findings("tidegate-gateway", "tidegate-testkit", None), 1);
    }
}
