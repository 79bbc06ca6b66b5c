//! `cargo-deny`: the crates, licences and registries that the project may depend on, by `deny.toml`.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::repository::{cargo, run as run_command};

/// The version that CI installs. A newer installed version is used as well.
const VERSION: &str = "0.20.2";

/// Checks bans, licences and sources. Advisories need a database from GitHub, and are checked before a release.
pub(crate) fn run() -> Result<()> {
    prepare()?;
    run_command(cargo().args(["deny", "--log-level", "warn", "check", "bans", "licenses", "sources"]))
}

/// Installs cargo-deny from crates.io unless it is installed: about five minutes of CPU time.
pub(crate) fn prepare() -> Result<()> {
    if is_installed() {
        return Ok(());
    }
    let mut install = cargo();
    // The profile and the flags of the workspace do not apply to a tool.
    install.args(["install", "cargo-deny", "--locked", "--quiet", "--version", VERSION]).env_remove("RUSTFLAGS");
    run_command(&mut install).context("install cargo-deny")
}

fn is_installed() -> bool {
    let mut version: Command = cargo();
    version.args(["deny", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}
