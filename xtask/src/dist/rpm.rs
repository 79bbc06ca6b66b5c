//! The package of Fedora, RHEL and their kin.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::tarball::checksums;
use super::{Release, Stage, sbom};
use crate::repository::{root, run as run_command};

/// Revision of the packaging.
const RELEASE: &str = "1";

/// Makes `tidegate-VERSION-1.ARCH.rpm`.
pub(super) fn make(release: &Release) -> Result<PathBuf> {
    let stage = Stage::new()?;
    stage.add_binary(release, "usr/bin/tidegate")?;
    stage.add_documents(release)?;
    stage.add_completions(release, "usr/share/zsh/site-functions/_tidegate")?;
    stage.add_service("usr/lib/systemd/system")?;
    for license in ["LICENSE-MIT", "LICENSE-APACHE"] {
        stage.copy(license, &format!("usr/share/licenses/tidegate/{license}"), 0o644)?;
    }
    sbom::add(release, &stage, "usr/share/doc/tidegate/tidegate.cdx.json")?;
    for folder in ["var/lib/tidegate", "var/log/tidegate"] {
        stage.folder(folder)?;
    }
    let build = Stage::new()?;
    let spec = fs::read_to_string(root().join("packaging/rpm/tidegate.spec")).context("read the spec file")?;
    let spec = spec.replace("@VERSION@", &release.version).replace("@RELEASE@", RELEASE);
    build.write("tidegate.spec", 0o644, spec.replace("@STAGE@", &stage.path().display().to_string()))?;
    let top = build.path().display();
    let mut command = release.command("rpmbuild");
    // Debian has no database of rpm packages in which dependencies of the build could be found.
    command.args(["-bb", "--quiet", "--nodeps", "--define", &format!("_topdir {top}")]);
    command.args(["--define", &format!("_binary_payload w{}.gzdio", release.level)]);
    run_command(command.arg(build.path().join("tidegate.spec")))?;
    let name = format!("tidegate-{}-{RELEASE}.{}.rpm", release.version, std::env::consts::ARCH);
    let made = build.path().join("RPMS").join(std::env::consts::ARCH).join(&name);
    let file = release.out.join(name);
    fs::copy(&made, &file).with_context(|| format!("copy {}", made.display()))?;
    checksums(release)?;
    Ok(file)
}
