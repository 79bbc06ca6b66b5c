//! The programs that read the changes.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use tidegate_changes::{ChangeEvent, ChangeOptions, ChangeStream, ConnectOptions};
use tidegate_sandbox::Postgres;

use crate::process::{ProcessSampler, Usage};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Subject {
    /// This crate.
    Changes,
    /// `pg_recvlogical` with pgoutput.
    Pgoutput,
    /// `pg_recvlogical` with `test_decoding`.
    TestDecoding,
    /// Debezium's engine with default settings.
    Debezium,
    /// Debezium's engine with large batches and short polls.
    DebeziumTuned,
}

pub(crate) const SUBJECTS: &[Subject] =
    &[Subject::Changes, Subject::Pgoutput, Subject::TestDecoding, Subject::Debezium, Subject::DebeziumTuned];

/// The longest run, with the start of the program.
const RUN_MAX: Duration = Duration::from_secs(600);

impl Subject {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Changes => "changes",
            Self::Pgoutput => "pg_recvlogical",
            Self::TestDecoding => "pg_recvlogical test_decoding",
            Self::Debezium => "Debezium",
            Self::DebeziumTuned => "Debezium, tuned",
        }
    }

    pub(crate) fn slot(self, round: usize) -> String {
        format!("bench_{}_{round}", format!("{self:?}").to_lowercase())
    }

    pub(crate) fn create_slot(self, server: &Postgres, slot: &str) {
        let plugin = if self == Self::TestDecoding { "test_decoding" } else { "pgoutput" };
        let sql = format!("select pg_create_logical_replication_slot('{slot}', '{plugin}')");
        server.simple_query(&sql).expect("a slot");
    }

    /// Reads all changes of a slot; `None` if the program is missing.
    pub(crate) fn drain(self, server: &Postgres, slot: &str, changes: u64, end: &str) -> Option<Usage> {
        let mut command = self.command(server, slot, changes, end)?;
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let begun = Instant::now();
        let walsender = loop {
            let sql = format!("select active_pid from pg_replication_slots where slot_name = '{slot}'");
            let rows = server.simple_query(&sql).expect("the slots");
            if let Some(pid) = rows[0][0].as_deref() {
                break pid.parse().expect("a process id");
            }
            assert!(begun.elapsed() < RUN_MAX, "{} does not read", self.name());
            if child.try_wait().expect("a status of the child").is_some() {
                eprintln!("{} ended before it read the slot", self.name());
                return None;
            }
        };
        let mut sampler = ProcessSampler::start(child.id(), walsender);
        let output = child.stdout.take().expect("a pipe");
        // A subject prints `counted N` behind the last change, or just ends.
        let finished = std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).any(|line| line.starts_with("counted"))
        });
        while !finished.is_finished() && child.try_wait().expect("a status of the child").is_none() {
            assert!(begun.elapsed() < RUN_MAX, "{} does not end", self.name());
            sampler.sample();
            std::thread::sleep(Duration::from_millis(5));
        }
        let usage = sampler.finish();
        if self != Self::Changes && self != Self::Pgoutput && self != Self::TestDecoding {
            // The engine takes seconds to stop.
            let _ = child.kill();
        }
        let _ = child.wait();
        Some(usage)
    }

    fn command(self, server: &Postgres, slot: &str, changes: u64, end: &str) -> Option<Command> {
        let mut command = match self {
            Self::Changes => {
                let mut command = Command::new(std::env::current_exe().ok()?);
                command.args(["--count", &server.url(), slot, &changes.to_string()]);
                command
            }
            Self::Pgoutput | Self::TestDecoding => {
                let program = server.binaries().program("pg_recvlogical");
                let mut command = Command::new(program.exists().then_some(program)?);
                let database = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", server.port());
                command.args(["--start", "--no-loop", "--file", "/dev/null", "--fsync-interval", "0"]);
                command.args(["--dbname", &database, "--slot", slot, "--endpos", end]);
                if self == Self::Pgoutput {
                    command.args(["--option", "proto_version=1", "--option", "publication_names=bench"]);
                }
                command
            }
            Self::Debezium | Self::DebeziumTuned => {
                let target = debezium()?;
                let mut command = Command::new("java");
                command.arg("-cp").arg(format!("{0}/classes:{0}/dependency/*", target.display()));
                command.args([
                    "tidegate.CountChanges",
                    "127.0.0.1",
                    &server.port().to_string(),
                    "postgres",
                    "postgres",
                ]);
                command.args([slot, "bench", &changes.to_string(), "connect"]);
                command.arg(if self == Self::Debezium { "default" } else { "tuned" });
                command
            }
        };
        command.stdin(Stdio::null());
        Some(command)
    }
}

/// The folder with the built engine.
fn debezium() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/debezium/target");
    target.join("dependency").exists().then_some(target)
}

/// Counts the changes of a slot with this crate, and prints their number.
pub(crate) fn count_changes(url: &str, slot: &str, expected: u64) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let counted = runtime.block_on(async {
        let connect = ConnectOptions::from_url(url).expect("a URL of the sandbox");
        let mut stream = ChangeStream::start(ChangeOptions::new(connect, slot, "bench"));
        let mut counted = 0;
        while counted < expected {
            let batch = stream.next_batch().await.expect("changes").expect("the stream goes on");
            for event in batch {
                match event {
                    ChangeEvent::Change(_) => counted += 1,
                    ChangeEvent::Commit(commit) => stream.acknowledge(commit.end_lsn),
                    _ => {}
                }
            }
        }
        counted
    });
    println!("counted {counted}");
    ExitCode::SUCCESS
}
