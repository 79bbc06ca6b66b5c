//! Backlogs through `tidegate stream`: JSON lines to a pipe, with a spool.

use std::time::Duration;

use tidegate_figures::{Figure, FigureTarget, median};
use tidegate_sandbox::Postgres;

use crate::process::{Measured, count_lines, cpu_seconds, peak_mib};
use crate::{Scale, execute, figure, server};

pub(crate) const INSERTS: &str = "backlog of inserts as JSON";
pub(crate) const LARGE: &str = "backlog of one transaction of 1,000,000 rows as JSON";
pub(crate) const TABLES: &str = "backlog of 10,000 tables as JSON";
const SUBJECT: &str = "tidegate stream, spool";
const TABLE: &str = "create table t (id bigint generated always as identity primary key, v text)";

struct Drained {
    start: Duration,
    wall: f64,
    cpu: f64,
    peak_mib: f64,
}

fn create_slot(server: &Postgres) {
    execute(server, &["select pg_create_logical_replication_slot('bench', 'pgoutput')"]);
}

/// Delivers the backlog of the slot, and drops the slot.
fn drain(server: &Postgres, records: u64, more: &[&str]) -> Drained {
    let folder = tempfile::tempdir_in(server.socket_dir()).expect("a folder");
    let state = folder.path().join("state").to_string_lossy().into_owned();
    let mut stream =
        Measured::stream(server, folder.path(), "-", &[&["--state", &state, "--heartbeat", "0"], more].concat());
    let output = stream.output();
    let reader = std::thread::spawn(move || count_lines(output, records));
    let start = stream.wait_for_slot(server, "bench");
    let before = cpu_seconds(stream.id());
    let wall = stream.until("all records have arrived", || reader.is_finished()).saturating_sub(start).as_secs_f64();
    let cpu = cpu_seconds(stream.id()) - before;
    assert!(reader.join().expect("the reader ends") >= records, "records are missing");
    let drained = Drained { start, wall, cpu, peak_mib: peak_mib(stream.id()) };
    stream.kill();
    drained
}

fn figures(case: &str, records: u64, runs: &[Drained], peak_max: f64) -> Vec<Figure> {
    let of = |value: &dyn Fn(&Drained) -> f64| median(runs.iter().map(value).collect());
    let records = records as f64;
    vec![
        figure(case, SUBJECT, "changes per second", of(&|run| records / run.wall), "/s", None),
        figure(case, SUBJECT, "CPU per change", of(&|run| run.cpu * 1e6 / records), "µs", None),
        figure(case, SUBJECT, "peak memory", of(&|run| run.peak_mib), "MiB", Some(FigureTarget::AtMost(peak_max))),
    ]
}

/// The rounds of a case, each on a server of its own: a slot cannot be read twice.
fn rounds(scale: &Scale, prepare: impl Fn(&Postgres), records: u64, more: &[&str]) -> Vec<Drained> {
    let round = |_| {
        let server = server();
        prepare(&server);
        drain(&server, records, more)
    };
    (0..scale.rounds).map(round).collect()
}

/// Inserts of 200 bytes, 1,000 per transaction.
pub(crate) fn inserts(scale: &Scale) -> Vec<Figure> {
    let rows = scale.of(2_000_000);
    let prepare = |server: &Postgres| {
        execute(server, &[TABLE, "create publication bench for table t"]);
        create_slot(server);
        let write = format!(
            "do $$ begin for i in 1 .. {} loop \
             insert into t (v) select repeat('x', 200) from generate_series(1, 1000); commit; end loop; end $$",
            rows / 1000
        );
        execute(server, &[&write]);
    };
    figures(INSERTS, rows, &rounds(scale, prepare, rows, &[]), 64.0)
}

/// A transaction that the server streams before its commit, and that is kept in files.
pub(crate) fn large_transaction(scale: &Scale) -> Vec<Figure> {
    let rows = scale.of(1_000_000);
    let prepare = |server: &Postgres| {
        execute(server, &[TABLE, "create publication bench for table t"]);
        create_slot(server);
        execute(server, &[&format!("insert into t (v) select repeat('x', 200) from generate_series(1, {rows})")]);
    };
    let runs = rounds(scale, prepare, rows, &["--tx-memory", "16777216"]);
    figures(LARGE, rows, &runs, 64.0)
}

/// 20 rows in each of 10,000 tables, in random order.
pub(crate) fn many_tables(scale: &Scale) -> Vec<Figure> {
    const ROWS: u64 = 20;
    let tables = scale.of(10_000);
    let prepare = |server: &Postgres| {
        let create = format!(
            "do $$ begin for i in 1 .. {tables} loop \
             execute format('create table t%s (id int primary key, v text)', i); \
             if i % 200 = 0 then commit; end if; end loop; end $$"
        );
        execute(server, &[&create, "create publication bench for all tables"]);
        create_slot(server);
        let write = format!(
            "do $$ declare i int; begin for n in 1 .. {ROWS} loop \
             for i in select g from generate_series(1, {tables}) g order by random() loop \
             execute format('insert into t%s values (%s, repeat(''x'', 200))', i, n); end loop; commit; end loop; end $$"
        );
        execute(server, &[&write]);
    };
    let runs = rounds(scale, prepare, tables * ROWS, &[]);
    let start = median(runs.iter().map(|run| run.start.as_secs_f64()).collect());
    let mut found = figures(TABLES, tables * ROWS, &runs, 100.0);
    found.push(figure(TABLES, SUBJECT, "start until the slot is read", start, "s", Some(FigureTarget::AtMost(2.0))));
    found
}
