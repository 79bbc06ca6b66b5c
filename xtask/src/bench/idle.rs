//! `bench idle`: memory of an idle client. Plain text, trust authentication; resident memory of the proxy minus that of
//! the empty proxy.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::Pace;
use super::logins::log_in;
use super::process::{raise_open_files, resident_kib};
use super::report::{BenchReport, Metric, MetricTarget};
use super::subject::{Options, Subject, SubjectRole, Testbed};

const KIB_EACH: Metric = Metric::new("memory", "KiB each");
const EMPTY: Metric = Metric::new("empty", "MiB");
const LOGINS: Metric = Metric::new("logins", "/s");

/// Memory settles: buffers of the login are given back, allocators tidy up.
const SETTLE: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    subjects: Options,
    /// Number of clients
    #[arg(long, default_value_t = 10_000)]
    clients: u32,
}

pub(super) fn run(arguments: &Arguments, pace: Pace) -> Result<BenchReport> {
    let clients = pace.scale(arguments.clients);
    let files = raise_open_files();
    ensure!(files > u64::from(clients) + 100, "{clients} clients need more than the {files} open files allowed here");
    let stage = Testbed::set(&arguments.subjects)?;
    let mut report = BenchReport::new("idle");
    stage.notes.iter().for_each(|note| report.note(note));
    report.note(format!("load: {clients} idle clients"));
    // Only pooling proxies share server connections.
    let pooling = |subject: &&Subject| matches!(subject.role, SubjectRole::Baseline | SubjectRole::Tidegate(_));
    for subject in stage.subjects.iter().filter(pooling) {
        measure(subject, clients, &mut report)?;
    }
    Ok(report)
}

/// Clients that connect and disconnect before the empty process is measured.
const WARM_UP: u32 = 200;

fn measure(subject: &Subject, clients: u32, report: &mut BenchReport) -> Result<()> {
    let Some(pid) = subject.pid() else {
        return Ok(());
    };
    // The first client pays for shared memory: the pool with its first server connection, and the pages of code and
    // buffers that a login touches.
    let first = log_in(subject.port)?;
    drop((0..WARM_UP).map(|_| log_in(subject.port)).collect::<Result<Vec<_>>>()?);
    thread::sleep(SETTLE);
    let empty = resident_kib(pid)?;
    let start = Instant::now();
    let idle = (0..clients).map(|_| log_in(subject.port)).collect::<Result<Vec<_>>>()?;
    let logins = f64::from(clients) / start.elapsed().as_secs_f64();
    thread::sleep(SETTLE);
    let each = (resident_kib(pid)? as f64 - empty as f64) / f64::from(clients);
    let case = format!("{} clients", idle.len());
    report.add(subject.name, &case, KIB_EACH, each, None);
    report.add(subject.name, &case, EMPTY, empty as f64 / 1024.0, None);
    report.add(subject.name, &case, LOGINS, logins, None);
    if let SubjectRole::Tidegate(_) = subject.role {
        report.add(subject.name, &case, KIB_EACH, each, Some(MetricTarget::AtMost(2.0)));
    }
    drop((first, idle));
    Ok(())
}
