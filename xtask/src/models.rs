//! `cargo xtask models`: loom checks all interleavings of lock-free code.

use std::process::Command;

use anyhow::Result;

use crate::repository::{cargo, output_of, run as run_command, target_dir};

/// Crates with loom tests.
const CRATES: [&str; 4] = ["tidegate-pool", "tidegate-supervise", "tidegate-balance", "tidegate-journal"];

/// Runs all models.
pub(crate) fn run() -> Result<()> {
    each(&[], run_command)
}

/// Builds the models without output.
pub(crate) fn build() -> Result<()> {
    each(&["--no-run"], |command| output_of(command).map(drop))
}

/// The models have a target folder of their own, because `--cfg loom` applies to every dependency. Only loom and the crates under
/// test are optimised: the build takes minutes and the models a second, and unoptimised code overflows the stacks of loom.
fn each(arguments: &[&str], work: impl Fn(&mut Command) -> Result<()>) -> Result<()> {
    let target = target_dir()?.join("models");
    // A build per crate: the features of another crate would add dependencies that do not build with loom.
    CRATES.iter().try_for_each(|package| {
        let mut command = cargo();
        command.args(["test", "--quiet", "-p", package, "--lib", "--config", "profile.dev.debug=false"]);
        command.args(["--config", "profile.dev.opt-level=1"]);
        for (dependency, level) in [("\"*\"", 0), ("loom", 2), ("generator", 2)] {
            command.args(["--config", &format!("profile.dev.package.{dependency}.opt-level={level}")]);
        }
        command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", &target);
        work(command.args(arguments))
    })
}
