//! `cargo xtask soak`: runs the randomised tests in rounds, each with a new printed seed, until the time is over.
//! Before the rounds it runs a test of several minutes: a query log on a frozen disk.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::gateway::{BuildProfile, build};
use crate::machine::find_program;
use crate::repository::{cargo, root, run as run_command};
use crate::tests::{Io, fetch_postgres};

/// A round uses the seeds that follow its own, one per script.
const SCRIPTS_MAX: u64 = 10_000;

/// Programs that `bench/journal_stall.sh` needs.
const STALL_NEEDS: [&str; 8] = ["mount", "mkfs.ext4", "fsfreeze", "runuser", "initdb", "pg_ctl", "psql", "pgbench"];

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Start no round after this many minutes
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Test targets of the gateway
    #[arg(long, default_values = ["differential", "chaos"])]
    test: Vec<String>,
    /// Number of processes per round that are killed while they write a journal (0: none)
    #[arg(long, default_value_t = 200)]
    kills: u32,
    /// Number of Postgres clusters per round that are killed, suspended and promoted under load (0: none)
    #[arg(long, default_value_t = 20)]
    fault_runs: u32,
    /// Number of kills per round, and per test, of a stream that copies tables (0: none)
    #[arg(long, default_value_t = 50)]
    copy_kills: u32,
    /// Number of deliveries per round, and per guarantee, during which the stream, the source and the sink are killed, and a
    /// standby is promoted (0: none)
    #[arg(long, default_value_t = 20)]
    deliveries: u32,
    /// Do not freeze a disk under the query journal
    #[arg(long)]
    no_stall: bool,
    /// Seed of the first round, to repeat a failed one
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
        round(arguments, seed).with_context(|| format!("repeat with: cargo xtask soak --seed {seed}"))?;
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
    if arguments.fault_runs > 0 {
        let mut command = cargo();
        command.args(["test", "--release", "-p", "tidegate", "--test", "failover", "random_faults"]);
        command.env("TIDEGATE_SEED", seed.to_string()).env("TIDEGATE_IO", arguments.io.name());
        run_command(command.env("TIDEGATE_FAULT_RUNS", arguments.fault_runs.to_string()))?;
    }
    if arguments.copy_kills > 0 {
        let mut command = cargo();
        command.args([
            "test",
            "--release",
            "-p",
            "tidegate",
            "--test",
            "streams",
            "--",
            "copy_under_load",
            "kills_repeat_no_row",
        ]);
        command.env("TIDEGATE_SEED", seed.to_string()).env("TIDEGATE_IO", arguments.io.name());
        run_command(command.env("TIDEGATE_COPY_KILLS", arguments.copy_kills.to_string()))?;
    }
    if arguments.deliveries > 0 {
        let mut command = cargo();
        command.args(["test", "--release", "-p", "tidegate", "--test", "streams", "--", "delivery::"]);
        command.env("TIDEGATE_SEED", seed.to_string()).env("TIDEGATE_IO", arguments.io.name());
        run_command(command.env("TIDEGATE_DELIVERIES", arguments.deliveries.to_string()))?;
    }
    if arguments.kills == 0 {
        return Ok(());
    }
    let mut command = cargo();
    command.args(["test", "--release", "-p", "tidegate-journal", "--features", "tracing", "--test", "journal", "kill"]);
    command.env("TIDEGATE_SEED", seed.to_string()).env("TIDEGATE_JOURNAL_KILLS", arguments.kills.to_string());
    run_command(&mut command)
}

/// Checks the latency of clients while the disk of the query log is frozen for 10 s.
fn stall() -> Result<()> {
    if let Some(why) = no_stall_because() {
        println!("=== skipped: query log on a frozen disk; {why}");
        return Ok(());
    }
    println!("=== query log on a disk that is frozen for 10 s");
    let mut command = Command::new(root().join("bench/journal_stall.sh"));
    run_command(command.arg(build(BuildProfile::Dist)?))
        .context("latency of clients while the disk of the query log is frozen")
}

/// The missing requirement of the script, which freezes a file system of its own.
fn no_stall_because() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("freezing a file system needs root".to_owned());
    }
    if let Some(missing) = STALL_NEEDS.iter().find(|name| find_program(name).is_none()) {
        return Some(format!("{missing} is not installed"));
    }
    let device = Command::new("losetup").arg("--find").output();
    match device.is_ok_and(|output| output.status.success()) {
        true => None,
        false => Some("no loop device is available".to_owned()),
    }
}

/// Each day starts with another seed.
fn seed_from_clock() -> Result<u64> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Ok(now.context("the clock is past 1970")?.as_secs())
}
