//! `cargo xtask soak`: the randomised tests again and again, each round with a new printed seed, until the time is
//! over; before them, what takes minutes and is worth it once: a query journal whose disk stands still.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::gateway::{Profile, build};
use crate::machine::find_program;
use crate::repository::{cargo, root, run as run_command};
use crate::tests::{Io, fetch_postgres};

/// A round uses the seeds that follow its own, one a script.
const SCRIPTS_MAX: u64 = 10_000;

/// What `bench/journal_stall.sh` cannot do without.
const STALL_NEEDS: [&str; 8] = ["mount", "mkfs.ext4", "fsfreeze", "runuser", "initdb", "pg_ctl", "psql", "pgbench"];

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Begin no round after that many minutes
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Test targets of the gateway
    #[arg(long, default_values = ["differential", "wrong_client", "unrest"])]
    test: Vec<String>,
    /// How often a round kills a process that writes a journal (0: not at all)
    #[arg(long, default_value_t = 200)]
    kills: u32,
    /// How many clusters of Postgres a round kills, hangs and promotes under load (0: none)
    #[arg(long, default_value_t = 20)]
    storms: u32,
    /// Do not freeze a disk under the query journal
    #[arg(long)]
    no_stall: bool,
    /// The seed of the first round: to repeat one that failed
    #[arg(long)]
    seed: Option<u64>,
    /// I/O mode
    #[arg(long, default_value = "io_uring")]
    io: Io,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    fetch_postgres()?;
    if !arguments.no_stall {
        stall()?;
    }
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
    command.args(["test", "--release", "-p", "tidegate"]);
    command.args(arguments.test.iter().flat_map(|test| ["--test", test]));
    command.env("TIDEGATE_SEED", seed.to_string()).env("TIDEGATE_IO", arguments.io.name());
    run_command(&mut command)?;
    if arguments.storms > 0 {
        let mut command = cargo();
        command.args(["test", "--release", "-p", "tidegate", "--test", "hosts", "storm"]);
        command.env("TIDEGATE_SEED", seed.to_string()).env("TIDEGATE_IO", arguments.io.name());
        run_command(command.env("TIDEGATE_STORMS", arguments.storms.to_string()))?;
    }
    if arguments.kills == 0 {
        return Ok(());
    }
    let mut command = cargo();
    command.args(["test", "--release", "-p", "tidegate-journal", "--features", "tracing", "--test", "journal", "kill"]);
    command.env("TIDEGATE_SEED", seed.to_string()).env("TIDEGATE_JOURNAL_KILLS", arguments.kills.to_string());
    run_command(&mut command)
}

/// Clients keep their latency while the disk under the query journal stands still for 10 s.
fn stall() -> Result<()> {
    if let Some(why) = no_stall_because() {
        println!("=== skipped: the disk that stands still under the query journal; {why}");
        return Ok(());
    }
    println!("=== the disk under the query journal stands still for 10 s");
    let mut command = Command::new(root().join("bench/journal_stall.sh"));
    run_command(command.arg(build(Profile::Dist)?)).context("clients of a gateway whose journal's disk stands still")
}

/// What the script needs and this machine does not give: it freezes a file system of its own.
fn no_stall_because() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("to mount a file system and freeze it needs root".to_owned());
    }
    if let Some(missing) = STALL_NEEDS.iter().find(|name| find_program(name).is_none()) {
        return Some(format!("it needs {missing}, which is not installed"));
    }
    let device = Command::new("losetup").arg("--find").output();
    match device.is_ok_and(|output| output.status.success()) {
        true => None,
        false => Some("it needs a loop device, and this machine gives none".to_owned()),
    }
}

/// Rounds of another day begin elsewhere.
fn seed_from_clock() -> Result<u64> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Ok(now.context("the clock is past 1970")?.as_secs())
}
