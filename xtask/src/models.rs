//! `cargo xtask models`: every interleaving of the code that threads share without a lock, tried by loom.

use std::process::Command;

use anyhow::Result;

use crate::repository::{cargo, output_of, run as run_command, target_dir};

/// The crates that have models.
const CRATES: [&str; 4] = ["tidegate-pool", "tidegate-supervise", "tidegate-balance", "tidegate-journal"];

/// Tries them all.
pub(crate) fn run() -> Result<()> {
    each(&[], run_command)
}

/// Builds what [`run`] needs, and prints nothing.
pub(crate) fn build() -> Result<()> {
    each(&["--no-run"], |command| output_of(command).map(drop))
}

/// Built apart, since the flag concerns every dependency. Little is optimised: the build takes minutes, the models a second. Our
/// own code is, since loom's stacks are too small for it otherwise.
fn each(arguments: &[&str], work: impl Fn(&mut Command) -> Result<()>) -> Result<()> {
    let target = target_dir()?.join("models");
    // One at a time: features that another crate asks for would bring what does not build under loom.
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
