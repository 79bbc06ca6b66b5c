//! Import cycles among the files of a crate. Two files may import each other; in a longer cycle, a type is in the wrong file.
//!
//! A parent module may use its children, so these imports do not count. Re-exports are followed to the file that defines the
//! item. Test modules are left out.

mod graph;
mod imports;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Finding, SourceFile, crates};
use graph::cycles;
use imports::CrateModules;

pub(super) use imports::is_for_tests;

/// The most files that import each other.
const CYCLE_FILES_MAX: usize = 2;

pub(super) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut crates: BTreeMap<&Path, Vec<&SourceFile>> = BTreeMap::new();
    for file in files {
        if let Some(package) = crates::package_of(&file.path) {
            crates.entry(package).or_default().push(file);
        }
    }
    crates.into_iter().flat_map(|(package, files)| check_crate(&package.join("src"), &files)).collect()
}

fn check_crate(source: &Path, files: &[&SourceFile]) -> Vec<Finding> {
    let edges = CrateModules::new(source, files).imports();
    let long = cycles(&edges).into_iter().filter(|cycle| cycle.len() > CYCLE_FILES_MAX);
    long.map(|cycle| Finding::new(&cycle[0], 1, advice(source, &cycle, &edges))).collect()
}

fn advice(source: &Path, cycle: &[PathBuf], edges: &BTreeMap<PathBuf, Vec<PathBuf>>) -> String {
    let short = |file: &PathBuf| file.strip_prefix(source).unwrap_or(file).display().to_string();
    let within = |file: &&PathBuf| cycle.contains(file);
    let lines = cycle.iter().map(|file| {
        let used: Vec<String> = edges.get(file).into_iter().flatten().filter(within).map(short).collect();
        format!("\n    {} imports {}", short(file), used.join(", "))
    });
    format!(
        "{} files import each other: move the shared type to a file below them{}",
        cycle.len(),
        lines.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> usize {
        let file = |(path, text): &(&str, &str)| SourceFile { path: path.into(), text: (*text).to_owned() };
        check(&files.iter().map(file).collect::<Vec<_>>()).len()
    }

    const ROOT: (&str, &str) = ("crates/x/src/lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\n");

    #[test]
    fn a_cycle_of_three_files_is_found() {
        let two = [
            ROOT,
            ("crates/x/src/a.rs", "use crate::b::B;\npub struct A;\n"),
            ("crates/x/src/b.rs", "use super::A;\npub struct B;\n"),
        ];
        assert_eq!(findings(&two), 0);
        let three = [
            ROOT,
            ("crates/x/src/a.rs", "use crate::b::B;\npub struct A;\n"),
            ("crates/x/src/b.rs", "pub struct B;\nfn f() { crate::c::C; }\n"),
            ("crates/x/src/c.rs", "pub struct C;\nuse crate::A;\n"),
        ];
        assert_eq!(findings(&three), 1);
    }

    #[test]
    fn a_parent_may_use_its_children() {
        let files = [
            ("crates/x/src/lib.rs", "mod a;\n"),
            ("crates/x/src/a.rs", "mod b;\nmod c;\nuse b::B;\npub struct A;\n"),
            ("crates/x/src/a/b.rs", "use super::c::C;\npub struct B;\n"),
            ("crates/x/src/a/c.rs", "use super::A;\npub struct C;\n"),
        ];
        assert_eq!(findings(&files), 0);
    }

    #[test]
    fn tests_may_import_every_file() {
        let files = [
            ROOT,
            ("crates/x/src/a.rs", "use crate::b::B;\npub struct A;\n"),
            ("crates/x/src/b.rs", "use crate::c::C;\npub struct B;\n"),
            ("crates/x/src/c.rs", "pub struct C;\n#[cfg(test)]\nmod tests {\n    use crate::A;\n}\n"),
        ];
        assert_eq!(findings(&files), 0);
    }
}
