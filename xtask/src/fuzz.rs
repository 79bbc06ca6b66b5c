//! `cargo xtask fuzz`: replay of the kept corpus and some mutations, on the stable compiler; or fuzzing that is guided
//! by coverage, with cargo-fuzz.

use std::process::Command;

use anyhow::{Context, Result};

use crate::repository::{cargo, root, run as run_command};
use crate::tests::features;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Fuzz this target instead of replaying the corpus of all (needs cargo-fuzz and a nightly compiler)
    target: Option<String>,
    /// How long to fuzz
    #[arg(long, default_value_t = 60, requires = "target")]
    seconds: u32,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Some(target) = &arguments.target else {
        return replay_all();
    };
    let limit = format!("-max_total_time={}", arguments.seconds);
    // Not the cargo that runs us: rustup's, which knows `+nightly`.
    let mut command = Command::new("cargo");
    command.current_dir(root()).env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    command.args(["+nightly", "fuzz", "run", target, "--features", "libfuzzer", "--", &limit]);
    run_command(&mut command).context("is cargo-fuzz installed? cargo install cargo-fuzz")
}

/// Built as all tests are, so that nothing is built anew.
fn replay_all() -> Result<()> {
    let mut command = cargo();
    command.args(["test", "--quiet", "--workspace"]).args(features()).args(["--test", "replay"]);
    if std::env::var_os("FUZZ_ROUNDS").is_none() {
        command.env("FUZZ_ROUNDS", "20000");
    }
    run_command(&mut command)
}
