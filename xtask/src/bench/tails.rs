//! `bench tails`: throughput and the tail of the latency by number of clients, protocol and encryption, beside other poolers.

mod plot;
mod poolers;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Pace;
use super::load::{self, Load, latencies, number_after};
use super::process::{cpu_time, raise_open_files, resident_kib};
use super::report::{BenchReport, Metric, MetricTarget};
use super::rounds::{self, in_turn};
use super::sample::{median, paired_ratio, percentile};
use super::subject::{Subject, SubjectRole, fill};
use plot::{PlotPoint, Plots};

const PROTOCOLS: [&str; 3] = ["simple", "extended", "prepared"];

/// Above this number, clients that connect for each transaction only measure the queue of the listener.
const FRESH_CLIENTS_MAX: u32 = 500;

/// Logins per second that a pooler manages at least, plain and with TLS: the time of pgbench begins before its clients connect.
/// PgBouncer 1.24.1 manages 330 to 440 with TLS.
const LOGINS_PER_SECOND: [u32; 2] = [500, 200];

/// Interval at which the memory of a pooler is read during a load.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    poolers: poolers::PoolerArgs,
    /// Numbers of clients
    #[arg(long, value_delimiter = ',', default_values_t = [1, 40, 500, 5_000])]
    clients: Vec<u32>,
    /// Seconds per case, subject and round
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// Number of rounds
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Only cases whose names contain this (repeatable), such as "prepared, tls" or "connect"
    #[arg(long)]
    case: Vec<String>,
    /// Folder for a plot per protocol (SVG)
    #[arg(long, value_name = "FOLDER")]
    svg: Option<PathBuf>,
}

/// A load on every subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TailCase {
    protocol: &'static str,
    uses_tls: bool,
    /// A connection for each transaction.
    is_fresh: bool,
    clients: u32,
}

impl TailCase {
    fn name(self) -> String {
        let transport = if self.uses_tls { "tls" } else { "plain" };
        let connections = if self.is_fresh { ", connect each time" } else { "" };
        let noun = if self.clients == 1 { "client" } else { "clients" };
        format!("{}, {transport}{connections}, {} {noun}", self.protocol, self.clients)
    }
}

/// All cases, with those of one plot together.
fn cases(arguments: &Arguments) -> Vec<TailCase> {
    let mut cases = Vec::new();
    let mut add = |protocol, is_fresh, clients_max| {
        for uses_tls in [false, true] {
            for clients in arguments.clients.iter().copied().filter(|clients| *clients <= clients_max) {
                cases.push(TailCase { protocol, uses_tls, is_fresh, clients });
            }
        }
    };
    PROTOCOLS.into_iter().for_each(|protocol| add(protocol, false, u32::MAX));
    // The cost of a connect does not depend on the protocol of the query after it.
    add("simple", true, FRESH_CLIENTS_MAX);
    let is_selected = |case: &TailCase| {
        arguments.case.is_empty() || arguments.case.iter().any(|selected| case.name().contains(selected.as_str()))
    };
    cases.retain(is_selected);
    cases
}

/// The figures of one load.
#[derive(Clone, Copy, Debug)]
struct TailResult {
    tps: f64,
    cpu_us: f64,
    resident_mib: f64,
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
}

pub(super) fn run(arguments: &Arguments, pace: Pace) -> Result<BenchReport> {
    let pgbench = load::pgbench()?;
    let cases = cases(arguments);
    ensure!(!cases.is_empty(), "no case contains {}", arguments.case.join(" or "));
    let files = raise_open_files();
    let most = cases.iter().map(|case| case.clients).max().unwrap_or(0);
    ensure!(files > u64::from(most) + 200, "{most} clients need more than the {files} open files allowed here");
    let testbed = poolers::start(&arguments.poolers)?;
    fill(&testbed.postgres, &pgbench)?;
    let (seconds, rounds) = (pace.scale(arguments.seconds), pace.scale(arguments.rounds));
    let mut report = BenchReport::new("tails");
    testbed.notes.iter().for_each(|note| report.note(note));
    report.note(format!(
        "load: pgbench -S, a pool of {}, {seconds} s per case, {rounds} rounds; medians of rounds, ratios by round",
        arguments.poolers.pool_size
    ));
    report.note(rounds::NOTE);
    let subjects: Vec<&Subject> = testbed.subjects.iter().collect();
    let mut plots = Plots::default();
    for case in cases {
        let able: Vec<&Subject> =
            subjects.iter().copied().filter(|subject| subject.prepares || case.protocol != "prepared").collect();
        let series = match measure_case(&pgbench, &able, case, seconds, rounds) {
            Ok(series) => series,
            // The figures of the other cases are worth their time.
            Err(error) => {
                report.note(format!("not measured: {}: {error:#}", case.name()));
                continue;
            }
        };
        for (subject, results) in able.iter().zip(&series) {
            report_subject(subject, case, results, &mut report);
            plots.add(case.protocol, &plot_point(subject, case, results));
        }
        report_ratios(&able, case, &series, &mut report);
    }
    if let Some(folder) = &arguments.svg {
        for file in plots.write(folder)? {
            report.note(format!("plot: {}", file.display()));
        }
    }
    Ok(report)
}

/// Results by subject, then by round.
fn measure_case(
    pgbench: &Path,
    subjects: &[&Subject],
    case: TailCase,
    seconds: u32,
    rounds: u32,
) -> Result<Vec<Vec<TailResult>>> {
    let login_seconds = case.clients / LOGINS_PER_SECOND[usize::from(case.uses_tls)];
    // Fills the caches of Postgres and the pools first.
    for subject in subjects {
        measure(pgbench, subject, case, 1 + login_seconds)?;
    }
    in_turn(subjects, rounds, |round, subject| {
        let result = measure(pgbench, subject, case, seconds + login_seconds)?;
        eprintln!("round {round}: {} {}: {:.0} tps", case.name(), subject.name, result.tps);
        Ok(result)
    })
}

/// Runs pgbench, and reads the memory of the pooler meanwhile.
fn measure(pgbench: &Path, subject: &Subject, case: TailCase, seconds: u32) -> Result<TailResult> {
    // Latencies of all transactions: the tail needs many, and the log costs pgbench the same for every subject.
    let load =
        Load { protocol: case.protocol, clients: case.clients, seconds, script: None, logged_share: log_share(case) };
    let logs = tempfile::tempdir().context("create a folder")?;
    let database = subject.databases.first().copied().context("a subject has a database")?;
    let mut command = load::command(pgbench, (subject.port, database), &load, logs.path());
    command.env("PGSSLMODE", if case.uses_tls { "require" } else { "disable" });
    if case.is_fresh {
        command.arg("--connect");
    }
    let pid = subject.pid();
    let cpu = || pid.map_or(Ok(f64::NAN), |pid| cpu_time(pid).map(|time| time.as_secs_f64()));
    let before = cpu()?;
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("start pgbench against {}", subject.name))?;
    let mut resident = 0;
    while child.try_wait().context("wait for pgbench")?.is_none() {
        resident = resident.max(pid.map_or(Ok(0), resident_kib)?);
        std::thread::sleep(SAMPLE_INTERVAL);
    }
    let spent = cpu()? - before;
    let output = child.wait_with_output().context("read the output of pgbench")?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{}, {}: {}\n{errors}", case.name(), subject.name, output.status);
    ensure!(
        number_after(&text, "actually processed: ").is_none_or(|processed| processed > 0.0),
        "{}, {}: no transaction ended within {seconds} s, in which all clients log in first",
        case.name(),
        subject.name
    );
    let number = |label| {
        number_after(&text, label).with_context(|| format!("{}, {}: {label}\n{text}", case.name(), subject.name))
    };
    let latencies = latencies(logs.path())?;
    let ms = |share| percentile(&latencies, share) as f64 / 1e3;
    Ok(TailResult {
        tps: number("tps = ")?,
        cpu_us: spent * 1e6 / number("actually processed: ")?,
        resident_mib: if pid.is_some() { resident as f64 / 1024.0 } else { f64::NAN },
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
        p999_ms: ms(0.999),
    })
}

/// The share of transactions whose latency is logged. One client has few.
fn log_share(case: TailCase) -> f64 {
    if case.clients == 1 { 1.0 } else { 0.5 }
}

const TPS: Metric = Metric::new("tps", "");
const CPU: Metric = Metric::new("cpu", "us/tx");
const P50: Metric = Metric::new("p50", "ms");
const P99: Metric = Metric::new("p99", "ms");
const P999: Metric = Metric::new("p99.9", "ms");
const RESIDENT: Metric = Metric::new("resident", "MiB");
const TPS_RATIO: Metric = Metric::new("tps / pgbouncer", "");
const CPU_RATIO: Metric = Metric::new("cpu per tx / pgbouncer", "");
const P99_RATIO: Metric = Metric::new("p99 / pgbouncer", "");

fn of(results: &[TailResult], quantity: fn(&TailResult) -> f64) -> Vec<f64> {
    results.iter().map(quantity).collect()
}

fn report_subject(subject: &Subject, case: TailCase, results: &[TailResult], report: &mut BenchReport) {
    let mut add = |metric, quantity| {
        report.add(subject.name, &case.name(), metric, median(&of(results, quantity)), None);
    };
    add(TPS, |result| result.tps);
    if subject.pid().is_some() {
        add(CPU, |result| result.cpu_us);
        add(RESIDENT, |result| result.resident_mib);
    }
    // pgbench does not count the connect as a part of the latency.
    if !case.is_fresh {
        add(P50, |result| result.p50_ms);
        add(P99, |result| result.p99_ms);
        add(P999, |result| result.p999_ms);
    }
}

fn report_ratios(subjects: &[&Subject], case: TailCase, series: &[Vec<TailResult>], report: &mut BenchReport) {
    let find = |is_it: fn(SubjectRole) -> bool| {
        subjects
            .iter()
            .zip(series)
            .find(|(subject, _)| is_it(subject.role))
            .map(|(subject, results)| (*subject, results))
    };
    let baseline = find(|role| role == SubjectRole::Baseline);
    let ours = find(|role| matches!(role, SubjectRole::Tidegate(_)));
    let (Some((_, theirs)), Some((subject, ours))) = (baseline, ours) else { return };
    let ratio = |quantity| paired_ratio(&of(ours, quantity), &of(theirs, quantity));
    let mut add = |metric, value, target| report.add(subject.name, &case.name(), metric, value, Some(target));
    add(TPS_RATIO, ratio(|result| result.tps), MetricTarget::AtLeast(1.0));
    add(CPU_RATIO, ratio(|result| result.cpu_us), MetricTarget::AtMost(0.9));
    if !case.is_fresh {
        add(P99_RATIO, ratio(|result| result.p99_ms), MetricTarget::AtMost(1.0));
    }
}

fn plot_point(subject: &Subject, case: TailCase, results: &[TailResult]) -> PlotPoint {
    let variant = match (case.uses_tls, case.is_fresh) {
        (false, false) => "plain",
        (true, false) => "TLS",
        (false, true) => "plain, connect each time",
        (true, true) => "TLS, connect each time",
    };
    PlotPoint {
        variant,
        subject: subject.name,
        clients: case.clients,
        tps: median(&of(results, |result| result.tps)),
        p99_ms: (!case.is_fresh).then(|| median(&of(results, |result| result.p99_ms))),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn names(line: &[&str]) -> Vec<String> {
        let arguments = Line::try_parse_from(["tails"].iter().chain(line)).expect("a command line").arguments;
        cases(&arguments).into_iter().map(TailCase::name).collect()
    }

    #[test]
    fn cases_are_all_combinations() {
        let all = names(&[]);
        assert_eq!(all.len(), 3 * 2 * 4 + 2 * 3);
        assert!(all.contains(&"prepared, tls, 5000 clients".to_owned()));
        assert!(all.contains(&"simple, plain, connect each time, 1 client".to_owned()));
        let some = names(&["--clients", "40", "--case", "prepared, tls", "--case", "connect"]);
        assert_eq!(some.len(), 3, "{some:?}");
    }
}
