//! Debug symbols of the binary, apart from it: an archive for any Linux, and `tidegate-dbgsym` for Debian and Ubuntu.
//!
//! Debuggers and `perf` find the file by the build ID that the linker has put into the binary.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::tarball::{architecture, archive, checksums};
use super::{Release, Stage, deb};
use crate::repository::{output_of, run as run_command};

/// Programs that make the packages.
pub(super) const TOOLS: [&str; 5] = ["objcopy", "readelf", "dpkg-deb", "gzip", "tar"];

/// Makes `tidegate-VERSION-linux-ARCH-debug.tar.gz` and `tidegate-dbgsym`.
pub(super) fn make(release: &Release) -> Result<[PathBuf; 2]> {
    let stage = Stage::new()?;
    let id = build_id(release)?;
    let (folder, name) = id.split_at_checked(2).context("a build ID has two digits and more")?;
    let path = format!("usr/lib/debug/.build-id/{folder}/{name}.debug");
    let file = stage.file(&path)?;
    let mut command = Command::new("objcopy");
    command.args(["--only-keep-debug", "--compress-debug-sections=zlib"]).arg(&release.binary).arg(&file);
    run_command(&mut command)?;
    stage.set_mode(&path, 0o644)?;
    let made = release.out.join(format!("tidegate-{}-linux-{}-debug.tar.gz", release.version, architecture()));
    archive(release, stage.path(), &made)?;
    let package = deb::symbols(release, &stage, &id)?;
    checksums(release)?;
    Ok([made, package])
}

/// The build ID in hexadecimal digits.
fn build_id(release: &Release) -> Result<String> {
    let notes = output_of(Command::new("readelf").args(["--notes", "--wide"]).arg(&release.binary))?;
    // The ID has a line of its own, or with --wide the end of the line of its note.
    let id = notes.lines().find_map(|line| line.split_once("Build ID: "));
    Ok(id.context("the binary has no build ID")?.1.trim().to_owned())
}
