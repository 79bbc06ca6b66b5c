//! `cargo xtask models`: every interleaving of the code that threads share without a lock, tried by loom.

use anyhow::Result;

use crate::repository::{cargo, run as run_command, target_dir};

/// The crates that have models.
const CRATES: [&str; 4] = ["tidegate-pool", "tidegate-supervise", "tidegate-balance", "tidegate-journal"];

/// Built apart, since the flag concerns every dependency; quick to build rather than quick to run is too slow here.
pub(crate) fn run() -> Result<()> {
    let target = target_dir()?.join("models");
    // One at a time: features that another crate asks for would bring what does not build under loom.
    for package in CRATES {
        let mut command = cargo();
        command.args(["test", "--quiet", "-p", package, "--lib", "--release"]);
        command.args(["--config", "profile.release.lto=false", "--config", "profile.release.debug=false"]);
        command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", &target);
        run_command(&mut command)?;
    }
    Ok(())
}
