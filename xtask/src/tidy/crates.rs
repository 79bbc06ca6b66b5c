//! The size of a crate. Which crate may use which needs no rule here: the manifests declare it, and cargo refuses circles.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Finding, SourceFile};

/// Lines under `src` of one crate.
const CRATE_LINES_MAX: usize = 15_000;

pub(super) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut sizes: BTreeMap<&Path, usize> = BTreeMap::new();
    for file in files {
        if let Some(package) = package_of(&file.path) {
            *sizes.entry(package).or_default() += file.text.lines().count();
        }
    }
    sizes.into_iter().filter_map(|(package, lines)| check_size(package, lines)).collect()
}

/// The folder above `src`, for a source file of a crate.
pub(super) fn package_of(path: &Path) -> Option<&Path> {
    path.ancestors().find(|above| above.ends_with("src"))?.parent()
}

fn check_size(package: &Path, lines: usize) -> Option<Finding> {
    (lines > CRATE_LINES_MAX).then(|| {
        let advice = format!(
            "the crate has {lines} lines under src ({CRATE_LINES_MAX} at most): move one idea to a crate of its own"
        );
        Finding::new(&package.join("Cargo.toml"), 1, advice)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_over_the_limit_is_found() {
        let file = |path: &str, lines: usize| SourceFile { path: path.into(), text: "x\n".repeat(lines) };
        let mut files = vec![file("crates/a/src/lib.rs", 1), file("crates/a/src/b/c.rs", CRATE_LINES_MAX - 1)];
        files.push(file("crates/a/tests/a.rs", CRATE_LINES_MAX));
        assert!(check(&files).is_empty());
        files.push(file("crates/a/src/d.rs", 1));
        assert_eq!(check(&files).len(), 1);
    }
}
