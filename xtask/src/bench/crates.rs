//! Areas whose benchmark is a bench target of the crate: `cargo bench` with the same options.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::repository::{cargo, run as run_command};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only these parts (repeatable), where an area has several
    #[arg(long, value_name = "PART")]
    part: Vec<String>,
    /// Arguments for the benchmark
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// A bench target of a crate.
pub(super) struct BenchTarget {
    package: &'static str,
    bench: &'static str,
    features: &'static [&'static str],
}

const fn target(package: &'static str, bench: &'static str, features: &'static [&'static str]) -> BenchTarget {
    BenchTarget { package, bench, features }
}

pub(super) const POOL: &[BenchTarget] = &[target("tidegate-pool", "checkout", &[])];
pub(super) const SUPERVISE: &[BenchTarget] = &[target("tidegate-supervise", "stop", &["--features", "tokio"])];
pub(super) const JOURNAL: &[BenchTarget] = &[target("tidegate-journal", "drain", &["--features", "tracing"])];
pub(super) const BALANCE: &[BenchTarget] =
    &[target("tidegate-balance", "pick", &["--features", "tokio"]), target("tidegate-grpc-channel", "calls", &[])];
pub(super) const LANES: &[BenchTarget] =
    &[target("tidegate-lanes", "throughput", &[]), target("tidegate-lanes", "kafka", &["--features", "kafka"])];
pub(super) const CHANGES: &[BenchTarget] =
    &[target("tidegate-changes", "drain", &[]), target("tidegate", "changes", &[])];
pub(super) const SHAPES: &[BenchTarget] =
    &[target("tidegate-predicate", "router", &[]), target("tidegate", "shapes", &[])];

/// Runs the bench targets of an area, which have the options `--json FILE`, `--check` and `--quick`.
pub(super) fn run(targets: &[BenchTarget], options: &Arguments, common: &super::Arguments) -> Result<()> {
    let selected =
        |target: &&BenchTarget| options.part.is_empty() || options.part.iter().any(|part| part == target.bench);
    let targets: Vec<&BenchTarget> = targets.iter().filter(selected).collect();
    ensure!(!targets.is_empty(), "unknown part {}", options.part.join(" or "));
    let mut lines = String::new();
    let mut outcome = Ok(());
    for target in targets {
        outcome = outcome.and(run_target(target, options, common, &mut lines));
    }
    if let Some(file) = &common.json {
        fs::write(file, lines).with_context(|| format!("write {}", file.display()))?;
    }
    outcome
}

fn run_target(target: &BenchTarget, options: &Arguments, common: &super::Arguments, lines: &mut String) -> Result<()> {
    let mut command = cargo();
    command.args(["bench", "-p", target.package, "--bench", target.bench]).args(target.features).arg("--");
    // The benchmark runs in the folder of its crate and writes a file of its own.
    let file = tempfile::NamedTempFile::new().context("create a file")?;
    if common.json.is_some() {
        command.arg("--json").arg(file.path());
    }
    command.args(common.check.then_some("--check")).args(common.quick.then_some("--quick"));
    let outcome = run_command(command.args(&options.rest));
    lines.push_str(&fs::read_to_string(file.path()).context("read the figures")?);
    outcome
}
