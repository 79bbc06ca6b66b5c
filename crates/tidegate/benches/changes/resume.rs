//! The start after a crash, with a backlog in the spool.

use std::time::Duration;

use tidegate_figures::{Figure, FigureTarget, median};

use crate::process::{Measured, count_lines, peak_mib};
use crate::{Scale, execute, figure, server};

pub(crate) const NAME: &str = "start after a crash with 1 GiB in the spool";
const SUBJECT: &str = "tidegate stream, spool";
/// Rows of about 250 bytes in the spool.
const ROWS: u64 = 4_300_000;
/// The bound is larger than the backlog.
const SPOOL_BYTES: &str = "8589934592";

pub(crate) fn run(scale: &Scale) -> Vec<Figure> {
    let rows = scale.of(ROWS);
    let found: Vec<_> = (0..scale.rounds).map(|_| round(rows)).collect();
    let of = |at: usize| median(found.iter().map(|values| values[at]).collect());
    vec![
        figure(NAME, SUBJECT, "size of the spool", of(0), "MiB", None),
        figure(NAME, SUBJECT, "first delivery", of(1), "s", Some(FigureTarget::AtMost(5.0))),
        figure(NAME, SUBJECT, "all deliveries", of(2), "s", None),
        figure(NAME, SUBJECT, "peak memory", of(3), "MiB", Some(FigureTarget::AtMost(64.0))),
    ]
}

/// Size of the spool in MiB, seconds until the first record and until all, peak of the memory in MiB.
fn round(rows: u64) -> [f64; 4] {
    let server = server();
    execute(
        &server,
        &[
            "create table t (id bigint generated always as identity primary key, v text)",
            "create publication bench for table t",
            "select pg_create_logical_replication_slot('bench', 'pgoutput')",
        ],
    );
    let folder = tempfile::tempdir_in(server.socket_dir()).expect("a folder");
    let state = folder.path().join("state").to_string_lossy().into_owned();
    let arguments = ["--state", &state, "--spool-bytes", SPOOL_BYTES, "--heartbeat", "0"];
    // A sink that is away.
    let away = [&arguments[..], &["--attempts", "0", "--retry-wait", "1s"]].concat();
    let mut stream = Measured::stream(&server, folder.path(), "http://127.0.0.1:1/", &away);
    for _ in 0..rows.div_ceil(100_000) {
        execute(&server, &["insert into t (v) select repeat('x', 200) from generate_series(1, 100000)"]);
    }
    let written = rows.div_ceil(100_000) * 100_000;
    let end = server.simple_query("select pg_current_wal_lsn()").expect("a position")[0][0].clone();
    let confirmed = format!(
        "select confirmed_flush_lsn >= '{}' from pg_replication_slots where slot_name = 'bench'",
        end.expect("a position")
    );
    stream.until("the spool has all", || server.simple_query(&confirmed).expect("slots")[0][0].as_deref() == Some("t"));
    stream.kill();
    let size = folder_mib(&folder.path().join("state"));
    let mut stream = Measured::stream(&server, folder.path(), "-", &arguments);
    let mut output = stream.output();
    let reader = std::thread::spawn(move || {
        count_lines(&mut output, 1);
        let first = std::time::Instant::now();
        (first, output)
    });
    stream.until("the first record has arrived", || reader.is_finished());
    let (first, output) = reader.join().expect("the reader ends");
    let first = first.saturating_duration_since(stream.started);
    // The read of the first record may have had more of them: only the time of the end counts.
    let rest = std::thread::spawn(move || count_lines(output, written.saturating_sub(READ_AHEAD)));
    let all = stream.until("all records have arrived", || rest.is_finished());
    let peak = peak_mib(stream.id());
    [size, first.as_secs_f64(), Duration::as_secs_f64(&all), peak]
}

/// Records that the first read may have had at most.
const READ_AHEAD: u64 = 10_000;

fn folder_mib(folder: &std::path::Path) -> f64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().map_while(Result::ok);
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => folder_mib(&entry.path()),
        Ok(metadata) => metadata.len() as f64 / f64::from(1 << 20),
        Err(_) => 0.0,
    };
    entries.map(size).sum()
}
