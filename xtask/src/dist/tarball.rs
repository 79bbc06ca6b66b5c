//! The archive for any Linux, and its checksums.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{Release, Stage, sbom};
use crate::repository::{output_of, run as run_command};

/// Makes `tidegate-VERSION-linux-amd64.tar.gz` and `SHA256SUMS`.
pub(super) fn make(release: &Release) -> Result<PathBuf> {
    let stage = Stage::new()?;
    let folder = format!("tidegate-{}", release.version);
    stage.add_binary(release, &format!("{folder}/tidegate"))?;
    for file in ["LICENSE-MIT", "LICENSE-APACHE", "README.md", "CHANGELOG.md", "tidegate.example.toml"] {
        stage.copy(file, &format!("{folder}/{file}"), 0o644)?;
    }
    sbom::add(release, &stage, &format!("{folder}/tidegate.cdx.json"))?;
    for unit in ["tidegate.service", "tidegate.socket"] {
        stage.copy(&format!("packaging/systemd/{unit}"), &format!("{folder}/systemd/{unit}"), 0o644)?;
    }
    let documents = Stage::new()?;
    documents.add_documents(release)?;
    documents.add_completions(release, "usr/share/zsh/site-functions/_tidegate")?;
    stage.add_tree(&documents.path().join("usr/share"), &format!("{folder}/share"))?;
    let archive = release.out.join(format!("tidegate-{}-linux-{}.tar.gz", release.version, architecture()));
    self::archive(release, stage.path(), &archive)?;
    checksums(release)?;
    Ok(archive)
}

/// The architecture as Debian, Go and OCI name it.
pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Packs a folder: sorted names, one time, one owner.
pub(super) fn archive(release: &Release, folder: &Path, archive: &Path) -> Result<()> {
    let mut command = release.command("tar");
    command.args(["--create", "--sort=name", "--format=gnu", "--owner=0", "--group=0", "--numeric-owner"]);
    command
        .arg(format!("--mtime=@{}", release.epoch))
        .arg(format!("--use-compress-program=gzip -n -{}", release.level));
    run_command(command.arg("--file").arg(archive).arg("--directory").arg(folder).arg("."))
}

/// Writes the checksums of all archives and packages of the folder.
pub(super) fn checksums(release: &Release) -> Result<()> {
    let mut names: Vec<String> = std::fs::read_dir(&release.out)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| [".tar.gz", ".tgz", ".deb", ".rpm", ".tar", ".cdx.json"].iter().any(|end| name.ends_with(end)))
        .collect();
    names.sort();
    let sums = output_of(Command::new("sha256sum").args(&names).current_dir(&release.out))?;
    Ok(std::fs::write(release.out.join("SHA256SUMS"), sums)?)
}
