//! The time from a commit to its receipt, at 1,000 transactions per second.
//!
//! The commit time is that of the server, which is taken before the WAL is written: the latency holds the end of the commit.

use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_changes::{ChangeEvent, ChangeOptions, ChangeStream, ConnectOptions, PgTimestamp};
use tidegate_figures::{Figure, FigureTarget, median};
use tidegate_sandbox::Postgres;
use tokio::time::MissedTickBehavior;

use crate::process::Measured;
use crate::{Scale, execute, figure, server};

pub(crate) const NAME: &str = "latency at 1,000 transactions per second";
/// Seconds of a full run.
const SECONDS: u64 = 60;
const PER_SECOND: u64 = 1_000;
/// The first transactions are not counted: the virtual machine of Java compiles, and caches are cold.
const WARM_UP: usize = 1_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Library,
    Stream,
    StreamWithSpool,
    Debezium,
    DebeziumTuned,
}

const SUBJECTS: [Subject; 5] =
    [Subject::Library, Subject::Stream, Subject::StreamWithSpool, Subject::Debezium, Subject::DebeziumTuned];

/// Percentiles in milliseconds.
#[derive(Clone, Copy)]
struct Latency {
    p50: f64,
    p99: f64,
}

impl Latency {
    fn of(mut micros: Vec<i64>) -> Self {
        micros.sort_unstable();
        let at = |share: f64| {
            let index = (micros.len() as f64 * share) as usize;
            micros.get(index.min(micros.len().saturating_sub(1))).map_or(f64::NAN, |micros| *micros as f64 / 1e3)
        };
        Self { p50: at(0.5), p99: at(0.99) }
    }

    /// Reads `latency P50 P99`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("latency ")?.split_whitespace().map(str::parse);
        Some(Self { p50: words.next()?.ok()?, p99: words.next()?.ok()? })
    }
}

impl Subject {
    const fn name(self) -> &'static str {
        match self {
            Self::Library => "changes",
            Self::Stream => "tidegate stream",
            Self::StreamWithSpool => "tidegate stream, spool",
            Self::Debezium => "Debezium",
            Self::DebeziumTuned => "Debezium, tuned",
        }
    }

    /// Receives `changes` transactions; `None` if the program is missing.
    fn measure(self, server: &Postgres, changes: u64) -> Option<Latency> {
        let folder = tempfile::tempdir_in(server.socket_dir()).expect("a folder");
        let mut measured = self.start(server, folder.path(), changes)?;
        let output = measured.output();
        let receiver = match self {
            Self::Stream | Self::StreamWithSpool => std::thread::spawn(move || of_records(output, changes)),
            _ => std::thread::spawn(move || {
                output.lines().map_while(Result::ok).find_map(|line| Latency::parse(&line)).expect("a latency")
            }),
        };
        measured.wait_for_slot(server, "bench");
        write(server, changes);
        measured.until("all records have arrived", || receiver.is_finished());
        Some(receiver.join().expect("the receiver ends"))
    }

    fn start(self, server: &Postgres, folder: &Path, changes: u64) -> Option<Measured> {
        let changes = changes.to_string();
        match self {
            Self::Library => {
                let mut command = Command::new(std::env::current_exe().ok()?);
                command.args(["--receive", &server.url(), "bench", &changes]);
                Some(Measured::start(command, server, folder))
            }
            Self::Stream => Some(Measured::stream(server, folder, "-", &[])),
            Self::StreamWithSpool => {
                let state = folder.join("state").to_string_lossy().into_owned();
                Some(Measured::stream(server, folder, "-", &["--state", &state]))
            }
            Self::Debezium | Self::DebeziumTuned => {
                let target = debezium()?;
                let mut command = Command::new("java");
                command.arg("-cp").arg(format!("{0}/classes:{0}/dependency/*", target.display()));
                command.args(["tidegate.CountChanges", "127.0.0.1", &server.port().to_string()]);
                command.args(["postgres", "postgres", "bench", "bench", &changes, "latency"]);
                command.arg(if self == Self::Debezium { "default" } else { "tuned" });
                Some(Measured::start(command, server, folder))
            }
        }
    }
}

/// The folder with the built engine.
fn debezium() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/debezium/target");
    target.join("dependency").exists().then_some(target)
}

pub(crate) fn run(scale: &Scale) -> Vec<Figure> {
    let changes = scale.of(SECONDS * PER_SECOND);
    let mut found: Vec<Vec<Latency>> = vec![Vec::new(); SUBJECTS.len()];
    for _ in 0..scale.rounds {
        for (subject, latencies) in SUBJECTS.iter().zip(&mut found) {
            let server = server();
            execute(
                &server,
                &[
                    "create table t (id bigint generated always as identity primary key, v text)",
                    "create publication bench for table t",
                    "select pg_create_logical_replication_slot('bench', 'pgoutput')",
                ],
            );
            latencies.extend(subject.measure(&server, changes));
        }
    }
    figures(&found)
}

fn figures(found: &[Vec<Latency>]) -> Vec<Figure> {
    let of = |at: usize, value: fn(&Latency) -> f64| median(found[at].iter().map(value).collect());
    let mut figures = Vec::new();
    for (at, subject) in SUBJECTS.iter().enumerate() {
        let is_bound = matches!(subject, Subject::Library | Subject::StreamWithSpool);
        for (metric, value, limit) in [("p50", (|l| l.p50) as fn(&Latency) -> f64, 2.0), ("p99", |l| l.p99, 10.0)] {
            let target = is_bound.then_some(FigureTarget::AtMost(limit));
            figures.push(figure(NAME, subject.name(), metric, of(at, value), "ms", target));
        }
    }
    for (at, subject) in SUBJECTS.iter().enumerate().skip(3) {
        let ratio = of(2, |l| l.p50) / of(at, |l| l.p50);
        let name = format!("{} / {}", SUBJECTS[2].name(), subject.name());
        figures.push(figure(NAME, &name, "p50", ratio, "x", Some(FigureTarget::AtMost(0.2))));
    }
    figures
}

/// Writes one row per millisecond, each in a transaction.
fn write(server: &Postgres, rows: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.expect("a connection");
        tokio::spawn(connection);
        let insert = client.prepare("insert into t (v) values (repeat('x', 200))").await.expect("a statement");
        let mut ticks = tokio::time::interval(Duration::from_micros(1_000_000 / PER_SECOND));
        // A late transaction does not delay the ones after it.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for _ in 0..rows {
            ticks.tick().await;
            client.execute(&insert, &[]).await.expect("a row");
        }
    });
}

/// Microseconds since midnight, UTC.
fn now_in_day() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_micros() % (24 * 3_600_000_000)) as i64
}

/// Microseconds since midnight of `…T12:00:00.123456Z`.
fn in_day(text: &str) -> Option<i64> {
    let (_, time) = text.split_once('T')?;
    let mut parts = time.trim_end_matches('Z').splitn(3, ':');
    let (hours, minutes): (f64, f64) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let seconds: f64 = parts.next()?.parse().ok()?;
    Some(((hours * 3600.0 + minutes * 60.0 + seconds) * 1e6).round() as i64)
}

/// The latency of records that arrive as lines.
fn of_records(output: impl std::io::BufRead, changes: u64) -> Latency {
    let mut micros = Vec::with_capacity(usize::try_from(changes).unwrap_or(0));
    for line in output.lines().map_while(Result::ok).take(usize::try_from(changes).unwrap_or(usize::MAX)) {
        let now = now_in_day();
        let committed = line.split_once("\"commit_time\":\"").and_then(|(_, rest)| in_day(rest.split('"').next()?));
        // A run may pass midnight.
        micros.push((now - committed.expect("a time")).rem_euclid(24 * 3_600_000_000));
    }
    Latency::of(micros.split_off(WARM_UP.min(micros.len() / 2)))
}

/// Receives transactions with the library, and prints their latency.
pub(crate) fn receive(url: &str, slot: &str, changes: usize) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let micros = runtime.block_on(async {
        let connect = ConnectOptions::from_url(url).expect("a URL of the sandbox");
        let mut stream = ChangeStream::start(ChangeOptions::new(connect, slot, "bench"));
        let mut micros = Vec::with_capacity(changes);
        while micros.len() < changes {
            let batch = stream.next_batch().await.expect("changes").expect("the stream goes on");
            let now = PgTimestamp::from_system_time(SystemTime::now());
            for event in batch {
                if let ChangeEvent::Commit(commit) = event {
                    micros.push(now.0 - commit.commit_time.0);
                    stream.acknowledge(commit.end_lsn);
                }
            }
        }
        micros
    });
    let mut micros = micros;
    let Latency { p50, p99 } = Latency::of(micros.split_off(WARM_UP.min(changes / 2)));
    println!("latency {p50} {p99}");
    ExitCode::SUCCESS
}
