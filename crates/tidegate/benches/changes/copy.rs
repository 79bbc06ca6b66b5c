//! Copies of a table, beside `psql` with COPY TO STDOUT.

use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use tidegate_changes::{
    ChangeEvent, ChangeOptions, ConnectOptions, ExportedSnapshot, SnapshotEvent, SnapshotOptions, SnapshotState,
    SnapshotStream, slots::NewSlot,
};
use tidegate_figures::{Figure, FigureTarget, median};
use tidegate_sandbox::Postgres;

use crate::process::{ended_children_seconds, server_seconds};
use crate::{Scale, execute, figure, server};

pub(crate) const NAME: &str = "copy of a table of 10,000,000 rows";
const ROWS: u64 = 10_000_000;
/// Rows that a statement writes, so that it ends within the time-out of the client.
const STATEMENT_ROWS: u64 = 100_000;
/// Connections that read at the same time, as by default.
const PARALLEL: usize = 2;

#[derive(Clone, Copy)]
enum Subject {
    Chunks,
    Exported,
    Psql,
}

const SUBJECTS: [Subject; 3] = [Subject::Chunks, Subject::Exported, Subject::Psql];

/// The cost of one copy.
struct Copied {
    wall: f64,
    /// CPU time of the client and of the server.
    cpu: f64,
}

impl Subject {
    const fn name(self) -> &'static str {
        match self {
            Self::Chunks => "changes, chunks by key",
            Self::Exported => "changes, exported snapshot",
            Self::Psql => "psql",
        }
    }

    fn command(self, server: &Postgres, rows: u64) -> Command {
        let mut command = match self {
            Self::Psql => {
                let mut command = Command::new(server.binaries().program("psql"));
                command.args(["--no-psqlrc", "--command", "copy t to stdout", &server.url()]);
                command
            }
            Self::Chunks | Self::Exported => {
                let method = if matches!(self, Self::Chunks) { "chunks" } else { "exported" };
                let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
                command.args(["--copy", method, &server.url(), &rows.to_string()]);
                command
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn copy(self, server: &Postgres, rows: u64) -> Option<Copied> {
        let (children, postgres) = (ended_children_seconds(), server_seconds(server));
        let started = Instant::now();
        let status = self.command(server, rows).status().ok()?;
        assert!(status.success(), "{} has failed", self.name());
        let wall = started.elapsed().as_secs_f64();
        let cpu = ended_children_seconds() - children + server_seconds(server) - postgres;
        Some(Copied { wall, cpu })
    }
}

fn fill(server: &Postgres, rows: u64) {
    execute(
        server,
        &["create table t (id bigint primary key, v text)", "create publication bench for table t", "checkpoint"],
    );
    for from in (0..rows).step_by(usize::try_from(STATEMENT_ROWS).unwrap_or(usize::MAX)) {
        let until = (from + STATEMENT_ROWS).min(rows) - 1;
        let insert = format!("insert into t select i, repeat('x', 200) from generate_series({from}, {until}) i");
        execute(server, &[&insert]);
    }
    execute(
        server,
        &["vacuum analyze t", "checkpoint", "select pg_create_logical_replication_slot('bench', 'pgoutput')"],
    );
}

pub(crate) fn run(scale: &Scale) -> Vec<Figure> {
    let rows = scale.of(ROWS);
    let server = server();
    fill(&server, rows);
    let mut runs: [Vec<Copied>; 3] = Default::default();
    for _ in 0..scale.rounds {
        for (subject, found) in SUBJECTS.iter().zip(&mut runs) {
            found.extend(subject.copy(&server, rows));
        }
    }
    let rate = |at: usize| median(runs[at].iter().map(|copied| rows as f64 / copied.wall).collect());
    let cpu = |at: usize| median(runs[at].iter().map(|copied| copied.cpu * 1e6 / rows as f64).collect());
    let mut figures = Vec::new();
    for (at, subject) in SUBJECTS.iter().enumerate() {
        figures.push(figure(NAME, subject.name(), "rows per second", rate(at), "/s", None));
        figures.push(figure(NAME, subject.name(), "CPU per row, with Postgres", cpu(at), "µs", None));
    }
    for (at, subject) in SUBJECTS.iter().enumerate().take(2) {
        let name = format!("{} / psql", subject.name());
        figures.push(figure(NAME, &name, "rows per second", rate(at) / rate(2), "x", Some(FigureTarget::AtLeast(0.8))));
        figures.push(figure(NAME, &name, "CPU per row", cpu(at) / cpu(2), "x", Some(FigureTarget::AtMost(1.3))));
    }
    figures
}

/// Copies the table, and counts its rows.
pub(crate) fn count(method: &str, url: &str, rows: u64) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let counted = runtime.expect("a runtime").block_on(async {
        let connect = ConnectOptions::from_url(url).expect("a URL of the sandbox");
        if method == "chunks" { chunks(connect).await } else { exported(connect).await }
    });
    assert_eq!(counted, rows, "rows were copied");
    ExitCode::SUCCESS
}

async fn chunks(connect: ConnectOptions) -> u64 {
    let changes = ChangeOptions::new(connect, "bench", "bench");
    let options = SnapshotOptions { parallel: PARALLEL, ..SnapshotOptions::default() };
    let mut stream = SnapshotStream::start(changes, options, SnapshotState::default()).await.expect("a stream");
    let mut counted = 0;
    loop {
        for event in stream.next_batch().await.expect("events").expect("the stream goes on") {
            match event {
                SnapshotEvent::Rows(rows) => counted += rows.rows.len() as u64,
                SnapshotEvent::Change(ChangeEvent::Commit(commit)) => stream.acknowledge(commit.end_lsn),
                SnapshotEvent::Change(_) => {}
                SnapshotEvent::Complete(_) => {
                    stream.stop().await;
                    return counted;
                }
            }
        }
    }
}

async fn exported(connect: ConnectOptions) -> u64 {
    let slot = NewSlot { temporary: true, ..NewSlot::new("bench_copy") };
    let snapshot = ExportedSnapshot::create(connect, slot, vec!["bench".to_owned()]).await.expect("a snapshot");
    let mut counted = 0;
    for table in snapshot.tables().await.expect("tables") {
        let mut rows = snapshot.read(&table, PARALLEL).await.expect("rows");
        while let Some(batch) = rows.next().await.expect("rows") {
            counted += batch.rows.len() as u64;
        }
    }
    counted
}
