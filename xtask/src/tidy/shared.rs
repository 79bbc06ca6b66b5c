//! Dependencies that xtask and the tests share have the same features, so that cargo builds them once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;

use super::Finding;
use crate::repository::{cargo, output_of};
use crate::tests::features_to_check;

pub(super) fn check() -> Result<Vec<Finding>> {
    let ours = tree(&["-p", "xtask", "-e", "normal,build"])?;
    let theirs = tree(&[&["--workspace", "-e", "normal,build,dev"], &features_to_check()[..]].concat())?;
    let (ours, theirs) = (by_crate(&ours), by_crate(&theirs));
    let differ = ours.iter().filter_map(|(name, ours)| {
        let theirs = theirs.get(name)?;
        let lacks = ours.iter().find(|features| !theirs.contains(*features))?;
        let needed: Vec<&str> = theirs.iter().copied().collect();
        let advice = format!(
            "{name} is built with the features [{lacks}], and for the tests with [{}]: ask for the same here, or it and what \
             needs it is built twice",
            needed.join("] or [")
        );
        Some(Finding::new(Path::new("xtask/Cargo.toml"), 1, advice))
    });
    Ok(differ.collect())
}

fn tree(arguments: &[&str]) -> Result<String> {
    let mut command = cargo();
    command.args(["tree", "--quiet", "--prefix", "none", "--format", "{p}\t{f}"]).args(arguments);
    output_of(&mut command)
}

/// Crates of others, by name and version, with each set of features that they are built with. One crate may be built twice:
/// for the program, and for what runs at build time.
fn by_crate(tree: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut crates: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (package, features) in tree.lines().filter_map(|line| line.split_once('\t')) {
        // Our own have a path, and are quickly built.
        if !package.contains('/') {
            crates.entry(package).or_default().insert(features.trim_end_matches(" (*)"));
        }
    }
    crates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_differ_by_version_and_features() {
        let crates = by_crate("ours v1 (/somewhere)\tdefault\nlog v1\tstd\nlog v1\tstd (*)\nlog v1\t\nlog v2\t\n");
        assert_eq!(crates.len(), 2);
        assert_eq!(crates["log v1"], BTreeSet::from(["", "std"]));
    }
}
