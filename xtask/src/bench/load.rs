//! A run of pgbench against a subject, and its cost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::process::cpu_time;
use super::sample::percentile;
use super::subject::{Subject, USER};
use crate::machine::find_program;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// `simple`, `extended`, `prepared`.
    pub(crate) protocol: &'static str,
    pub(crate) clients: u32,
    pub(crate) seconds: u32,
    /// A script instead of `-S`.
    pub(crate) script: Option<PathBuf>,
    /// Share of transactions whose latency is logged; logging all of them would be a load of its own.
    pub(crate) logged_share: f64,
}

/// Results of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadResult {
    pub(crate) transactions: f64,
    pub(crate) tps: f64,
    /// CPU time of the proxy process; NaN without a proxy.
    pub(crate) cpu_seconds: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

impl LoadResult {
    pub(crate) fn cpu_us_per_transaction(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.transactions
    }
}

/// pgbench of Debian's postgresql-contrib.
pub(crate) fn pgbench() -> Result<PathBuf> {
    find_program("pgbench").context("pgbench is not installed; install Debian's package postgresql-contrib")
}

/// Runs `load` against `subject`, with a pgbench process per database.
pub(crate) fn run(pgbench: &Path, subject: &Subject, load: &Load) -> Result<LoadResult> {
    RunningLoad::new(pgbench, subject, load)?.end()
}

/// Runs `load` against both subjects at the same time; the first starts a moment before the other.
pub(crate) fn run_both(pgbench: &Path, subjects: [&Subject; 2], load: &Load) -> Result<[LoadResult; 2]> {
    let [first, second] = subjects.map(|subject| RunningLoad::new(pgbench, subject, load));
    let (first, second) = (first?, second?);
    Ok([first.end()?, second.end()?])
}

/// A load in progress.
struct RunningLoad<'a> {
    subject: &'a Subject,
    protocol: &'static str,
    logs: tempfile::TempDir,
    /// The processes print little, so pipes do not fill up before they are read.
    running: Vec<Child>,
    cpu_before: f64,
}

impl<'a> RunningLoad<'a> {
    fn new(pgbench: &Path, subject: &'a Subject, load: &Load) -> Result<Self> {
        let logs = tempfile::tempdir().context("create a folder")?;
        let count = subject.databases.len().max(1);
        let share = Load { clients: load.clients.div_ceil(u32::try_from(count)?), ..load.clone() };
        let cpu_before = cpu_seconds(subject)?;
        let mut begun = Self { subject, protocol: load.protocol, logs, running: Vec::new(), cpu_before };
        for database in subject.databases {
            let mut command = command(pgbench, (subject.port, database), &share, begun.logs.path());
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
            begun.running.push(child.with_context(|| begun.what())?);
        }
        Ok(begun)
    }

    fn what(&self) -> String {
        format!("pgbench, {} protocol, against {}", self.protocol, self.subject.name)
    }

    fn end(mut self) -> Result<LoadResult> {
        let running = std::mem::take(&mut self.running);
        let output = running.into_iter().map(|child| output_of_child(child).with_context(|| self.what()));
        let output = output.collect::<Result<Vec<_>>>()?;
        let cpu_seconds = cpu_seconds(self.subject)? - self.cpu_before;
        let latencies = latencies(self.logs.path())?;
        // pgbench prints no tps without a transaction.
        let number = |label| {
            output.iter().try_fold(0.0, |sum, output| {
                let one = number_after(output, label);
                let no_transaction =
                    || format!("{} completed no transaction; output of pgbench:\n{output}", self.subject.name);
                Ok::<_, anyhow::Error>(sum + one.with_context(no_transaction)?)
            })
        };
        let ms = |share| percentile(&latencies, share) as f64 / 1e3;
        Ok(LoadResult {
            transactions: number("actually processed: ")?,
            tps: number("tps = ")?,
            cpu_seconds,
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
        })
    }
}

/// CPU time of the process so far; NaN without a proxy.
fn cpu_seconds(subject: &Subject) -> Result<f64> {
    subject.pid().map_or(Ok(f64::NAN), |pid| Ok(cpu_time(pid)?.as_secs_f64()))
}

fn output_of_child(child: Child) -> Result<String> {
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command of a run, for other measurements.
pub(crate) fn command(pgbench: &Path, (port, database): (u16, &str), load: &Load, dir: &Path) -> Command {
    let mut command = Command::new(pgbench);
    command.current_dir(dir).env("PGPASSWORD", USER);
    command.args(["-n", "-h", "127.0.0.1", "-U", USER, "-p", &port.to_string(), "-M", load.protocol]);
    command.args(["-c", &load.clients.to_string(), "-j", "2", "-T", &load.seconds.to_string()]);
    command.args(["--log", &format!("--sampling-rate={}", load.logged_share)]);
    match &load.script {
        Some(script) => command.arg("-f").arg(script),
        None => command.arg("-S"),
    };
    command.arg(database);
    command
}

/// Latencies in µs, sorted: the third column of the logs of pgbench.
pub(crate) fn latencies(dir: &Path) -> Result<Vec<u64>> {
    let mut latencies = Vec::new();
    for entry in fs::read_dir(dir).context("read the logs of pgbench")? {
        let text = fs::read_to_string(entry.context("read the logs of pgbench")?.path()).context("read a log")?;
        latencies.extend(text.lines().filter_map(|line| line.split(' ').nth(2)?.parse::<u64>().ok()));
    }
    latencies.sort_unstable();
    Ok(latencies)
}

pub(crate) fn number_after(text: &str, label: &str) -> Option<f64> {
    let rest = text.split_once(label)?.1;
    rest.split([' ', '\n', '/']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_pgbench_output() {
        let output =
            "number of transactions actually processed: 12345/0\ntps = 2469.13 (without initial connection time)";
        assert_eq!(number_after(output, "actually processed: "), Some(12345.0));
        assert_eq!(number_after(output, "tps = "), Some(2469.13));
        assert_eq!(number_after(output, "latency = "), None);
    }
}
