//! `cargo xtask soak`: the randomised tests again and again, each round with a new printed seed, until the time is
//! over.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::repository::{cargo, run as run_command};
use crate::tests::{Io, fetch_postgres};

/// A round uses the seeds that follow its own, one a script.
const SCRIPTS_MAX: u64 = 10_000;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Begin no round after that many minutes
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Test targets of the gateway
    #[arg(long, default_values = ["differential", "wrong_client"])]
    test: Vec<String>,
    /// The seed of the first round: to repeat one that failed
    #[arg(long)]
    seed: Option<u64>,
    /// I/O mode
    #[arg(long, default_value = "io_uring")]
    io: Io,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    fetch_postgres()?;
    let start = Instant::now();
    let mut seed = arguments.seed.map_or_else(seed_from_clock, Ok)?;
    let mut rounds = 0_u32;
    while rounds == 0 || start.elapsed() < Duration::from_secs(arguments.minutes * 60) {
        println!("=== round {rounds}, seed {seed}, {} s so far", start.elapsed().as_secs());
        round(arguments, seed).with_context(|| format!("repeat it with: cargo xtask soak --seed {seed}"))?;
        seed = seed.wrapping_add(SCRIPTS_MAX);
        rounds += 1;
    }
    println!("=== {rounds} rounds passed");
    Ok(())
}

fn round(arguments: &Arguments, seed: u64) -> Result<()> {
    let mut command = cargo();
    command.args(["test", "--release", "-p", "tidegate-gateway"]);
    command.args(arguments.test.iter().flat_map(|test| ["--test", test]));
    command.env("TIDEGATE_SEED", seed.to_string()).env("TIDEGATE_IO", arguments.io.name());
    run_command(&mut command)
}

/// Rounds of another day begin elsewhere.
fn seed_from_clock() -> Result<u64> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Ok(now.context("the clock is past 1970")?.as_secs())
}
