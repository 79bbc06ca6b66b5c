//! `bench gateway`: small queries in three protocols, logins, and results of 1 MB, through each proxy and directly.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Pace;
use super::load::{self, Load, LoadResult};
use super::logins;
use super::process::resident_kib;
use super::report::{BenchReport, Metric, MetricTarget};
use super::rounds::{self, in_turn};
use super::sample::{median, paired_ratio};
use super::subject::{Options, Subject, SubjectRole, Testbed, fill};
use crate::tests::Io;

const PROTOCOLS: [&str; 3] = ["simple", "extended", "prepared"];

/// Results of 1 MB: a single value, and 10,000 rows with as many message headers.
const LARGE: [(&str, &str); 2] = [
    ("1 MB, one row", "SELECT repeat('x', 1000000);\n"),
    ("1 MB, 10k rows", "SELECT repeat('x', 88) FROM generate_series(1, 10000);\n"),
];
const LARGE_BYTES: f64 = 1e6;

/// Number of slices per round in which subjects take turns with logins. CPU time on a shared machine varies within a
/// second by more than subjects differ.
const LOGIN_SLICES: u32 = 10;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    subjects: Options,
    /// Clients of the small queries
    #[arg(long, default_value_t = 32)]
    clients: u32,
    /// Seconds per protocol, subject and round
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Number of rounds
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Only these cases (repeatable): simple, extended, prepared, logins, large
    #[arg(long)]
    case: Vec<String>,
}

impl Arguments {
    fn selects(&self, case: &str) -> bool {
        self.case.is_empty() || self.case.iter().any(|selected| selected == case)
    }
}

pub(super) fn run(arguments: &Arguments, pace: Pace) -> Result<BenchReport> {
    let pgbench = load::pgbench()?;
    let stage = Testbed::set(&arguments.subjects)?;
    fill(&stage.postgres, &pgbench)?;
    let mut report = BenchReport::new("gateway");
    stage.notes.iter().for_each(|note| report.note(note));
    // `--quick` is fewer and shorter rounds: one of five seconds instead of five of ten.
    let (seconds, rounds) = match pace {
        Pace::Full => (arguments.seconds, arguments.rounds),
        Pace::Quick => (arguments.seconds.div_ceil(2), arguments.rounds.div_ceil(5)),
    };
    report.note(format!(
        "load: pgbench -S, scale 10, {} clients, pools of {}, {rounds} rounds of {seconds} s; medians; ratios by round",
        arguments.clients, arguments.subjects.pool_size,
    ));
    report.note(rounds::NOTE);
    let bench = Bench { stage: &stage, pgbench: &pgbench, seconds, rounds };
    bench.queries(arguments, &mut report)?;
    if arguments.selects("large") {
        bench.large_results(&mut report)?;
    }
    if arguments.selects("logins") {
        bench.logins(&mut report)?;
    }
    Ok(report)
}

/// The shared state of all cases.
struct Bench<'a> {
    stage: &'a Testbed,
    pgbench: &'a Path,
    seconds: u32,
    rounds: u32,
}

/// Results of a subject in one case, by round.
struct Series<'a> {
    subject: &'a Subject,
    rounds: Vec<LoadResult>,
}

impl Series<'_> {
    fn of(&self, quantity: impl Fn(&LoadResult) -> f64) -> Vec<f64> {
        self.rounds.iter().map(quantity).collect()
    }
}

impl<'a> Bench<'a> {
    fn queries(&self, arguments: &Arguments, report: &mut BenchReport) -> Result<()> {
        for protocol in PROTOCOLS.into_iter().filter(|protocol| arguments.selects(protocol)) {
            let load =
                Load { protocol, clients: arguments.clients, seconds: self.seconds, script: None, logged_share: 0.2 };
            let able = |subject: &&Subject| subject.prepares || protocol != "prepared";
            let series = self.rounds(&load, self.stage.subjects.iter().filter(able).collect())?;
            report_queries(protocol, &series, report)?;
        }
        Ok(())
    }

    /// Runs `load` against the subjects in turn.
    fn rounds(&self, load: &Load, subjects: Vec<&'a Subject>) -> Result<Vec<Series<'a>>> {
        // Fills the caches of Postgres and the pools of the proxies first.
        for subject in &subjects {
            load::run(self.pgbench, subject, &Load { seconds: 1, ..load.clone() })?;
        }
        let yields = in_turn(&subjects, self.rounds, |round, subject| {
            let got = load::run(self.pgbench, subject, load)?;
            eprintln!("round {round}: {} {}: {:.0} tps", load.protocol, subject.name, got.tps);
            Ok(got)
        })?;
        Ok(subjects.into_iter().zip(yields).map(|(subject, rounds)| Series { subject, rounds }).collect())
    }

    fn large_results(&self, report: &mut BenchReport) -> Result<()> {
        for (case, sql) in LARGE {
            let script = self.stage.dir.path().join("large.sql");
            fs::write(&script, sql).context("write a script")?;
            let load =
                Load { protocol: "simple", clients: 8, seconds: self.seconds, script: Some(script), logged_share: 1.0 };
            let series = self.rounds(&load, self.stage.subjects.iter().collect())?;
            report_large(case, &series, report);
        }
        Ok(())
    }

    fn logins(&self, report: &mut BenchReport) -> Result<()> {
        let case = "logins, one by one";
        let subjects: Vec<&Subject> = self.stage.subjects.iter().collect();
        let time = Duration::from_secs(u64::from(self.seconds.div_ceil(3))) / LOGIN_SLICES;
        let rates = in_turn(&subjects, self.rounds * LOGIN_SLICES, |_, subject| logins::rate(subject.port, time))?;
        let rates: Vec<(&Subject, Vec<f64>)> = subjects.into_iter().zip(rates).collect();
        let measure =
            rates.iter().find(|(subject, _)| subject.role == SubjectRole::Baseline).map(|(_, rates)| rates.clone());
        for (subject, rates) in &rates {
            report.add(subject.name, case, LOGINS, median(rates), None);
            if let (SubjectRole::Tidegate(_), Some(theirs)) = (subject.role, &measure) {
                report.add(
                    subject.name,
                    case,
                    LOGIN_RATIO,
                    paired_ratio(rates, theirs),
                    Some(MetricTarget::AtLeast(1.0)),
                );
            }
        }
        Ok(())
    }
}

const TPS: Metric = Metric::new("tps", "");
const CPU: Metric = Metric::new("cpu", "us/tx");
const P50: Metric = Metric::new("p50", "ms");
const P99: Metric = Metric::new("p99", "ms");
const RESIDENT: Metric = Metric::new("resident", "MiB");
const PER_CPU: Metric = Metric::new("per cpu second", "MB");
const LOGINS: Metric = Metric::new("logins", "/s");
const CPU_RATIO: Metric = Metric::new("cpu per tx / pgbouncer", "");
const TPS_RATIO: Metric = Metric::new("tps / pgbouncer", "");
const P99_RATIO: Metric = Metric::new("p99 / pgbouncer", "");
const PER_CPU_RATIO: Metric = Metric::new("bytes per cpu / pgbouncer", "");
const LOGIN_RATIO: Metric = Metric::new("logins / pgbouncer", "");

fn report_queries(case: &str, series: &[Series<'_>], report: &mut BenchReport) -> Result<()> {
    for one in series {
        let name = one.subject.name;
        report.add(name, case, TPS, median(&one.of(|got| got.tps)), None);
        if let Some(pid) = one.subject.pid() {
            report.add(name, case, CPU, median(&one.of(LoadResult::cpu_us_per_transaction)), None);
            report.add(name, case, RESIDENT, resident_kib(pid)? as f64 / 1024.0, None);
        }
        report.add(name, case, P50, median(&one.of(|got| got.p50_ms)), None);
        report.add(name, case, P99, median(&one.of(|got| got.p99_ms)), None);
    }
    for (ours, io, measure) in pairs(series) {
        let ratio = |quantity: fn(&LoadResult) -> f64| paired_ratio(&ours.of(quantity), &measure.of(quantity));
        let name = ours.subject.name;
        // PgBouncer uses epoll: a gateway with epoll has no advantage by its kernel interface.
        let cpu_at_most = if io == Io::Uring { 0.90 } else { 1.05 };
        report.add(
            name,
            case,
            CPU_RATIO,
            ratio(LoadResult::cpu_us_per_transaction),
            Some(MetricTarget::AtMost(cpu_at_most)),
        );
        let target = |limit| (io == Io::Uring).then_some(limit);
        report.add(name, case, TPS_RATIO, ratio(|got| got.tps), target(MetricTarget::AtLeast(1.05)));
        report.add(name, case, P99_RATIO, ratio(|got| got.p99_ms), target(MetricTarget::AtMost(1.0)));
    }
    Ok(())
}

fn report_large(case: &str, series: &[Series<'_>], report: &mut BenchReport) {
    let mb_per_cpu = |got: &LoadResult| got.transactions * LARGE_BYTES / 1e6 / got.cpu_seconds;
    for one in series {
        report.add(one.subject.name, case, TPS, median(&one.of(|got| got.tps)), None);
        if one.subject.pid().is_some() {
            report.add(one.subject.name, case, PER_CPU, median(&one.of(mb_per_cpu)), None);
        }
    }
    for (ours, io, measure) in pairs(series) {
        let ratio = paired_ratio(&ours.of(mb_per_cpu), &measure.of(mb_per_cpu));
        let target = (io == Io::Uring).then_some(MetricTarget::AtLeast(1.5));
        report.add(ours.subject.name, case, PER_CPU_RATIO, ratio, target);
    }
}

/// Each Tidegate beside PgBouncer, if PgBouncer took part.
fn pairs<'s, 'a>(series: &'s [Series<'a>]) -> impl Iterator<Item = (&'s Series<'a>, Io, &'s Series<'a>)> {
    let measure = series.iter().find(|one| one.subject.role == SubjectRole::Baseline);
    series.iter().filter_map(move |one| match one.subject.role {
        SubjectRole::Tidegate(io) => Some((one, io, measure?)),
        _ => None,
    })
}
