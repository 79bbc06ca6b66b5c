//! The bill of materials: every crate that is linked into the binary, as CycloneDX 1.6 (<https://cyclonedx.org/docs/1.6/json/>).
//!
//! It is made from `cargo metadata` and `Cargo.lock`, so that no tool has to be installed and equal inputs give equal bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::tarball::checksums;
use super::{Release, Stage};
use crate::repository::{PUBLISHED, cargo, output_of, root};

/// Makes `tidegate-VERSION.cdx.json`.
pub(super) fn make(release: &Release) -> Result<PathBuf> {
    let file = release.out.join(format!("tidegate-{}.cdx.json", release.version));
    fs::write(&file, document(release)?).with_context(|| format!("write {}", file.display()))?;
    checksums(release)?;
    Ok(file)
}

/// Adds the document to a package.
pub(super) fn add(release: &Release, stage: &Stage, path: &str) -> Result<()> {
    stage.write(path, 0o644, document(release)?)
}

fn document(release: &Release) -> Result<String> {
    let mut command = cargo();
    command.args(["metadata", "--format-version", "1", "--locked", "--filter-platform"]);
    command.arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH)).args(PUBLISHED);
    let metadata: Value = serde_json::from_str(&output_of(&mut command)?).context("cargo metadata prints JSON")?;
    let lock = fs::read_to_string(root().join("Cargo.lock")).context("read Cargo.lock")?;
    let crates = linked_crates(&metadata)?;
    ensure!(crates.len() > 100, "only {} crates are linked", crates.len());
    Ok(format!("{:#}\n", bill(release, &crates, &lock_checksums(&lock))))
}

/// A crate of the binary.
#[derive(Debug, Default, PartialEq, Eq)]
struct LinkedCrate {
    name: String,
    version: String,
    license: Option<String>,
    description: Option<String>,
    /// Whether it comes from a registry, not from the workspace.
    is_foreign: bool,
    /// References of the crates that it uses.
    uses: BTreeSet<String>,
}

impl LinkedCrate {
    fn reference(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }
}

/// The crates that `tidegate` reaches over normal dependencies, by id. Build scripts, procedural macros and tests are not in the
/// binary.
fn linked_crates(metadata: &Value) -> Result<BTreeMap<String, LinkedCrate>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let id_of = |value: &Value| value.as_str().map(str::to_owned).context("cargo metadata names packages by id");
    let mut packages = BTreeMap::new();
    for package in list(&metadata["packages"]) {
        packages.insert(id_of(&package["id"])?, package);
    }
    let mut nodes = BTreeMap::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        nodes.insert(id_of(&node["id"])?, node);
    }
    let first = packages.iter().find(|(_, package)| package["name"] == "tidegate").context("there is no tidegate")?.0;
    let (mut found, mut open) = (BTreeMap::new(), vec![first.clone()]);
    while let Some(id) = open.pop() {
        if found.contains_key(&id) {
            continue;
        }
        let package = packages.get(&id).with_context(|| format!("cargo metadata lists no {id}"))?;
        let text = |key: &str| package[key].as_str().map(str::to_owned);
        let mut linked = LinkedCrate {
            name: text("name").unwrap_or_default(),
            version: text("version").unwrap_or_default(),
            license: text("license"),
            description: text("description").map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")),
            is_foreign: package["source"].is_string(),
            uses: BTreeSet::new(),
        };
        for dependency in list(&nodes.get(&id).unwrap_or(&Value::Null)["deps"]) {
            let is_normal = list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            let used = id_of(&dependency["pkg"])?;
            let target = packages.get(&used).with_context(|| format!("cargo metadata lists no {used}"))?;
            let is_macro = list(&target["targets"]).iter().any(|target| target["kind"] == json!(["proc-macro"]));
            if is_normal && !is_macro {
                let reference = |key: &str| target[key].as_str().unwrap_or_default();
                linked.uses.insert(format!("pkg:cargo/{}@{}", reference("name"), reference("version")));
                open.push(used);
            }
        }
        found.insert(id, linked);
    }
    Ok(found)
}

/// SHA-256 of each crate of a registry, by reference.
fn lock_checksums(lock: &str) -> BTreeMap<String, String> {
    let mut sums = BTreeMap::new();
    for block in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let line = block.lines().find_map(|line| line.strip_prefix(&format!("{name} = \"")))?;
            line.strip_suffix('"').map(str::to_owned)
        };
        if let (Some(name), Some(version), Some(sum)) = (field("name"), field("version"), field("checksum")) {
            sums.insert(format!("pkg:cargo/{name}@{version}"), sum);
        }
    }
    sums
}

fn bill(release: &Release, crates: &BTreeMap<String, LinkedCrate>, sums: &BTreeMap<String, String>) -> Value {
    let mut sorted: Vec<&LinkedCrate> = crates.values().collect();
    sorted.sort_by_key(|linked| linked.reference());
    let (own, others): (Vec<&LinkedCrate>, Vec<&LinkedCrate>) =
        sorted.iter().copied().partition(|linked| linked.name == "tidegate");
    let components: Vec<Value> = others.iter().map(|linked| component(linked, sums)).collect();
    let dependencies: Vec<Value> =
        sorted.iter().map(|linked| json!({ "ref": linked.reference(), "dependsOn": linked.uses })).collect();
    let mut subject = own.first().map_or(Value::Null, |linked| component(linked, sums));
    subject["type"] = "application".into();
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": timestamp(release.epoch),
            "tools": { "components": [{ "type": "application", "name": "cargo xtask dist", "version": release.version }] },
            "component": subject,
        },
        "components": components,
        "dependencies": dependencies,
    })
}

fn component(linked: &LinkedCrate, sums: &BTreeMap<String, String>) -> Value {
    let reference = linked.reference();
    let mut component = json!({
        "type": "library",
        "bom-ref": reference,
        "name": linked.name,
        "version": linked.version,
        "purl": reference,
        "scope": "required",
    });
    if let Some(description) = &linked.description {
        component["description"] = description.as_str().into();
    }
    if let Some(license) = &linked.license {
        // Old crates separate alternatives by a slash, which is no SPDX expression.
        component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
    }
    if let Some(sum) = sums.get(&reference).filter(|_| linked.is_foreign) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
    }
    component
}

/// Seconds since 1970 as RFC 3339. Algorithm: `civil_from_days` in Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
fn timestamp(epoch: u64) -> String {
    let (days, seconds) = (epoch / 86_400 + 719_468, epoch % 86_400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_a_release_is_rfc_3339() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00Z");
        assert_eq!(timestamp(1_709_210_096), "2024-02-29T12:34:56Z");
        assert_eq!(timestamp(4_102_444_799), "2099-12-31T23:59:59Z");
    }

    #[test]
    fn bill_has_linked_crates_with_checksums() {
        let package = |id: &str, kind: &str| {
            json!({ "id": id, "name": id, "version": "1.0.0", "license": "MIT/Apache-2.0", "source": "registry",
                    "targets": [{ "kind": [kind] }] })
        };
        let dependency = |id: &str, kind: Value| json!({ "pkg": id, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [package("tidegate", "bin"), package("used", "lib"), package("derive", "proc-macro"),
                         package("tested", "lib"), package("deep", "lib")],
            "resolve": { "nodes": [
                { "id": "tidegate", "deps": [dependency("used", Value::Null), dependency("derive", Value::Null),
                                             dependency("tested", json!("dev"))] },
                { "id": "used", "deps": [dependency("deep", Value::Null)] },
            ] },
        });
        let crates = linked_crates(&metadata).expect("a graph");
        assert_eq!(crates.keys().collect::<Vec<_>>(), ["deep", "tidegate", "used"]);
        assert_eq!(crates["used"].uses, BTreeSet::from(["pkg:cargo/deep@1.0.0".to_owned()]));
        let sums = lock_checksums("[[package]]\nname = \"deep\"\nversion = \"1.0.0\"\nchecksum = \"ab\"\n");
        let component = component(&crates["deep"], &sums);
        assert_eq!(component["hashes"][0]["content"], "ab");
        assert_eq!(component["licenses"][0]["expression"], "MIT OR Apache-2.0");
    }
}
