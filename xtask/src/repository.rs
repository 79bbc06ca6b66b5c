//! The working copy: its paths, its packages and its commit.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The root of the working copy.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask lies in the workspace").to_path_buf()
}

/// A `cargo` in the root: the same one as runs this program.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// `cargo metadata` of the workspace, without dependencies.
pub(crate) fn metadata() -> Result<Value> {
    let text = output_of(cargo().args(["metadata", "--format-version=1", "--no-deps"]))?;
    serde_json::from_str(&text).context("cargo metadata prints JSON")
}

/// The target folder of cargo.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let metadata = metadata()?;
    let dir = metadata["target_directory"].as_str().context("cargo metadata names the target directory")?;
    Ok(PathBuf::from(dir))
}

/// Every file that git tracks or would add, relative to the root.
pub(crate) fn files() -> Result<Vec<PathBuf>> {
    let listing = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let text = output_of(Command::new("git").args(listing).current_dir(root()))?;
    let mut files: Vec<PathBuf> = text.lines().map(PathBuf::from).collect();
    files.retain(|file| root().join(file).is_file());
    files.sort();
    files.dedup();
    Ok(files)
}

/// The current commit, with a `+` when the working copy differs from it.
pub(crate) fn commit() -> String {
    let git = |arguments: &[&str]| output_of(Command::new("git").args(arguments).current_dir(root()));
    let Ok(commit) = git(&["rev-parse", "--short", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let dirty = git(&["status", "--porcelain", "--untracked-files=no"]).is_ok_and(|changes| !changes.is_empty());
    format!("{}{}", commit.trim(), if dirty { "+" } else { "" })
}

/// Runs a command and returns its output.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("start {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).with_context(|| format!("{command:?} prints UTF-8"))
}

/// Runs a command with the standard streams of this process.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("start {command:?}"))?;
    ensure!(status.success(), "{status}: {command:?}");
    Ok(())
}

/// Optional features of the crates that are checked and tested with the rest.
pub(crate) const FEATURES: [&str; 2] = [
    "--features",
    "tidegate-balance/dns,tidegate-grpc-channel/tls,tidegate/kafka,tidegate/ldap,tidegate-journal/tracing,\
     tidegate-lanes/kafka,tidegate-lanes/tracing,tidegate-sandbox/kafka,tidegate-supervise/compio,\
     tidegate-supervise/tokio,tidegate-supervise/tracing",
];

/// Features of published binaries, which need no library of the machine.
pub(crate) const PUBLISHED: [&str; 2] = ["--features", "tidegate/kafka,tidegate/ldap"];

/// Features that need a library of the machine for linking.
pub(crate) const PAM: [&str; 2] = ["--features", "tidegate/pam"];

/// Features that need OpenSSL of the machine, for checks as well.
pub(crate) const KAFKA_TLS: [&str; 2] = ["--features", "tidegate-lanes/kafka-ssl"];
