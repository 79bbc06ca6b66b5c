//! `cargo xtask fuzz`: replays the corpus with some mutations, or runs coverage-guided fuzzing with cargo-fuzz. Both
//! use the stable compiler: the fuzzed code has no unsafe code, so the sanitizers, which need nightly, would find
//! nothing.

use std::fs;

use anyhow::{Context, Result};

use crate::repository::{cargo, root, run as run_command};
use crate::tests::features;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Fuzz these targets in turn with cargo-fuzz, instead of replaying the corpus of all targets
    target: Vec<String>,
    /// Duration of each target
    #[arg(long, default_value_t = 60, requires = "target")]
    seconds: u32,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.target.is_empty() {
        return replay_all();
    }
    arguments.target.iter().try_for_each(|target| fuzz(target, arguments.seconds))
}

/// Failing inputs go to `fuzz/artifacts`. Inputs that reach new code go to the target folder, so that the corpus in
/// version control does not change.
fn fuzz(target: &str, seconds: u32) -> Result<()> {
    let grown = root().join("target/fuzz-corpus").join(target);
    fs::create_dir_all(&grown).with_context(|| format!("make {}", grown.display()))?;
    let limit = format!("-max_total_time={seconds}");
    let mut command = cargo();
    command.current_dir(root());
    command.args(["fuzz", "run", "--sanitizer", "none", "--features", "libfuzzer", target]).arg(grown);
    command.arg(root().join("fuzz/corpus").join(target)).args(["--", &limit, "-timeout=10", "-rss_limit_mb=2048"]);
    run_command(&mut command).context("is cargo-fuzz installed? cargo install cargo-fuzz")
}

/// Built with the features of all tests, so that no dependency is built again.
fn replay_all() -> Result<()> {
    let mut command = cargo();
    command.args(["test", "--quiet", "--workspace"]).args(features()).args(["--test", "replay"]);
    if std::env::var_os("FUZZ_ROUNDS").is_none() {
        command.env("FUZZ_ROUNDS", "20000");
    }
    run_command(&mut command)
}
