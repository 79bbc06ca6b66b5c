//! The cases: each has a server of its own, which begins with empty logs.

use std::time::{Duration, Instant};

use tidegate_figures::{Figure, FigureTarget, median};
use tidegate_sandbox::{Major, Postgres};

use crate::process::{LIMIT, LoadProcess, ShapesServer, cpu_seconds, query};

const SUBJECT: &str = "tidegate shapes";
/// Memory settles: buffers are given back, and idle answers leave the cache.
const SETTLE: Duration = Duration::from_secs(15);
/// Rows that one statement writes, so that it ends within the time-out of the client.
const STATEMENT_ROWS: usize = 100_000;

/// A case by the part of its name that selects it.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Scale) -> Vec<Figure>,
}

pub(crate) const CASES: &[Case] = &[
    Case { name: "idle shapes", run: many_shapes },
    Case { name: "write to client", run: latency },
    Case { name: "one large shape", run: large_shape },
    Case { name: "many loads", run: many_loads },
    Case { name: "fan-out", run: fan_out },
];

/// Sizes of a run.
pub(crate) struct Scale {
    pub(crate) is_quick: bool,
    pub(crate) rounds: usize,
}

impl Scale {
    fn of(&self, full: usize) -> usize {
        if self.is_quick { full / 10 } else { full }
    }
}

fn figure(case: &str, metric: &str, value: f64, unit: &'static str, target: Option<FigureTarget>) -> Figure {
    Figure { subject: SUBJECT.to_owned(), case: case.to_owned(), metric: metric.to_owned(), value, unit, target }
}

/// A server whose commits wait for the WAL, as those of a live database do, but not for the disk: its speed is not the subject.
fn postgres() -> Postgres {
    let builder = Postgres::builder().version(Major(15)).setting("wal_level", "logical");
    let builder = builder.setting("synchronous_commit", "on").setting("max_wal_size", "8GB");
    builder.setting("max_connections", "100").start().expect("Postgres 15")
}

/// Rows of 64 bytes: the width that the protocol adds to (a message has 230 bytes). The peer does not publish its width.
fn fill(postgres: &Postgres, rows: usize) {
    query(
        postgres,
        "create table items (id bigint primary key, tenant int not null, title text not null, \
         priority int not null, done bool not null)",
    );
    for from in (0..rows).step_by(STATEMENT_ROWS) {
        let until = (from + STATEMENT_ROWS).min(rows) - 1;
        query(
            postgres,
            &format!(
                "set synchronous_commit = off; insert into items select i, i, 'item number ' || i || ' of a list', 3, false \
                 from generate_series({from}, {until}) i"
            ),
        );
    }
    query(postgres, "create index on items (tenant)");
    query(postgres, "alter table items replica identity full");
    query(postgres, "vacuum analyze items");
    query(postgres, "checkpoint");
}

/// 100,000 shapes `tenant = n`: memory, restart, and changes from Postgres to the logs.
fn many_shapes(scale: &Scale) -> Vec<Figure> {
    let shapes = scale.of(100_000);
    let case = format!("{shapes} shapes `tenant = n`");
    let postgres = postgres();
    fill(&postgres, shapes);
    let mut server = ShapesServer::start(&postgres, "idle");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_string_lossy().into_owned();
    let address = server.address.to_string();
    LoadProcess::start(&["create", &address, "100", &path]).expect("created");
    std::thread::sleep(SETTLE);
    let empty = server.resident_kib();
    let started = Instant::now();
    LoadProcess::start(&["create", &address, &shapes.to_string(), &path]).expect("created");
    let created = started.elapsed().as_secs_f64();
    std::thread::sleep(SETTLE);
    let each = (server.resident_kib() - empty) * 1024.0 / (shapes - 100) as f64;
    let mut figures = vec![
        figure(&case, "memory per idle shape", each, "B", Some(FigureTarget::AtMost(1024.0))),
        figure(&case, "shapes created", shapes as f64 / created, "/s", None),
    ];
    server.kill();
    figures.extend(restart(&case, &postgres, &mut server, &path));
    server.kill();
    figures.extend(drain(&case, &postgres, &mut server, shapes, scale.of(300_000)));
    figures
}

/// Time from the start of the process until the first, and the last, shape has answered.
fn restart(case: &str, postgres: &Postgres, server: &mut ShapesServer, file: &str) -> Vec<Figure> {
    let mut load = LoadProcess::start(&["answers", &server.address.to_string(), file]);
    let started = Instant::now();
    server.restart(postgres);
    load.expect("first");
    let first = started.elapsed().as_secs_f64();
    load.expect("all");
    let all = started.elapsed().as_secs_f64();
    vec![
        figure(case, "restart until the first answer", first, "s", Some(FigureTarget::AtMost(2.0))),
        figure(case, "restart until all have answered", all, "s", Some(FigureTarget::AtMost(10.0))),
    ]
}

/// Changes from a filled slot until they are durable in the logs. Every change is a transaction, and matches one shape.
fn drain(case: &str, postgres: &Postgres, server: &mut ShapesServer, shapes: usize, changes: usize) -> Vec<Figure> {
    let (slot, peer) = (server.slot(), "bench_peer");
    query(postgres, &format!("select pg_create_logical_replication_slot('{peer}', 'pgoutput')"));
    for from in (0..changes).step_by(STATEMENT_ROWS) {
        let until = (from + STATEMENT_ROWS).min(changes) - 1;
        query(
            postgres,
            &format!(
                "do $$ begin perform set_config('synchronous_commit', 'off', false); for i in {from} .. {until} loop \
                 update items set priority = priority + 1 where id = i % {shapes}; commit; end loop; end $$"
            ),
        );
    }
    let end = query(postgres, "select pg_current_wal_flush_lsn()")[0][0].clone().expect("a position");
    server.restart(postgres);
    let started = server.wait_for_stream(postgres);
    let walsender = query(postgres, &format!("select active_pid from pg_replication_slots where slot_name = '{slot}'"));
    let walsender: u32 = walsender[0][0].as_deref().and_then(|pid| pid.parse().ok()).expect("the slot is active");
    let cpu_before = server.cpu_seconds();
    let sql =
        format!("select 1 from pg_replication_slots where slot_name = '{slot}' and confirmed_flush_lsn >= '{end}'");
    while query(postgres, &sql).is_empty() {
        assert!(started.elapsed() < LIMIT, "the slot is not drained:\n{}", server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let elapsed = started.elapsed().as_secs_f64();
    let cpu = (server.cpu_seconds() - cpu_before) * 1e6 / changes as f64;
    let sender = cpu_seconds(walsender) / elapsed * 100.0;
    let alone = drain_alone(postgres, peer, &end);
    let rate = changes as f64 / elapsed;
    vec![
        figure(case, "changes from Postgres to the log", rate, "/s", Some(FigureTarget::AtLeast(30_000.0))),
        figure(case, "CPU of the server per change", cpu, "µs", None),
        figure(case, "walsender busy meanwhile", sender, "%", None),
        figure(case, "pg_recvlogical of the same changes", changes as f64 / alone, "/s", None),
    ]
}

/// Seconds that `pg_recvlogical` takes for the same changes, written to /dev/null.
fn drain_alone(postgres: &Postgres, slot: &str, end: &str) -> f64 {
    let mut command = std::process::Command::new(postgres.binaries().program("pg_recvlogical"));
    let database = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", postgres.port());
    command.args(["--start", "--no-loop", "--file", "/dev/null", "--fsync-interval", "0"]);
    command.args(["--dbname", &database, "--slot", slot, "--endpos", end]);
    command.args(["--option", "proto_version=1", "--option", "publication_names=tidegate_shapes_idle"]);
    let started = Instant::now();
    match command.stdin(std::process::Stdio::null()).status() {
        Ok(status) if status.success() => started.elapsed().as_secs_f64(),
        _ => f64::NAN,
    }
}

/// Time from the start of a statement until its client has the change, by long-poll, with a client on each of 10,000 shapes.
fn latency(scale: &Scale) -> Vec<Figure> {
    let shapes = scale.of(10_000);
    let case = format!("{shapes} shapes, a long-poll on each, one write");
    let postgres = postgres();
    fill(&postgres, shapes);
    let server = ShapesServer::start(&postgres, "latency");
    let (address, url) = (server.address.to_string(), postgres.url());
    let writes = scale.of(3000).to_string();
    let mut load = LoadProcess::start(&["latency", &address, &url, &shapes.to_string(), &writes]);
    let found = load.expect("latency");
    vec![
        figure(&case, "write to client, p50", found[0], "ms", Some(FigureTarget::AtMost(3.0))),
        figure(&case, "write to client, p99", found[1], "ms", Some(FigureTarget::AtMost(8.0))),
        figure(&case, "of which the statement, p50", found[2], "ms", None),
    ]
}

/// Clients that load the table together; the first request creates the shape.
fn loads(case: &str, scale: &Scale, rows: usize, clients: usize) -> Vec<Figure> {
    let postgres = postgres();
    fill(&postgres, rows);
    let (mut seconds, mut peaks, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
    for name in ["round1", "round2", "round3"].into_iter().take(scale.rounds) {
        let server = ShapesServer::start(&postgres, name);
        server.wait_for_stream(&postgres);
        let mut load = LoadProcess::start(&["load", &server.address.to_string(), &clients.to_string()]);
        load.expect("ready");
        load.go();
        let found = load.expect("loaded");
        seconds.push(found[0]);
        sizes.push(found[1] / (1 << 20) as f64);
        peaks.push(server.peak_kib() / 1024.0);
        let slot = server.slot();
        drop((load, server));
        release(&postgres, &slot);
    }
    vec![
        figure(case, "time", median(seconds), "s", Some(FigureTarget::AtMost(2.0))),
        figure(case, "peak memory", median(peaks), "MiB", Some(FigureTarget::AtMost(64.0))),
        figure(case, "bytes of all answers", median(sizes), "MiB", None),
    ]
}

/// Drops the slot of a server that was killed, when Postgres has noticed that.
fn release(postgres: &Postgres, slot: &str) {
    let started = Instant::now();
    while postgres.simple_query(&format!("select pg_drop_replication_slot('{slot}')")).is_err() {
        assert!(started.elapsed() < LIMIT, "the slot {slot} stays in use");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn large_shape(scale: &Scale) -> Vec<Figure> {
    let rows = scale.of(1_000_000);
    loads(&format!("one shape of {rows} rows, one client"), scale, rows, 1)
}

fn many_loads(scale: &Scale) -> Vec<Figure> {
    let clients = scale.of(2000);
    loads(&format!("one shape of 500 rows, {clients} clients load it"), scale, 500, clients)
}

/// Clients that wait on one shape, and one write.
fn fan_out(scale: &Scale) -> Vec<Figure> {
    let clients = scale.of(10_000);
    let case = format!("{clients} long-polls on one shape, one write");
    let postgres = postgres();
    fill(&postgres, 10);
    let server = ShapesServer::start(&postgres, "waiting");
    server.wait_for_stream(&postgres);
    let (address, url) = (server.address.to_string(), postgres.url());
    let mut first = LoadProcess::start(&["wait", &address, &url, "100"]);
    first.expect("waiting");
    let empty = server.resident_kib();
    // As many clients as are admitted.
    drop(first);
    let mut load = LoadProcess::start(&["wait", &address, &url, &clients.to_string()]);
    load.expect("waiting");
    std::thread::sleep(Duration::from_secs(2));
    let each = (server.resident_kib() - empty) / clients as f64;
    let (mut seconds, mut cpu) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds * 3 {
        let before = server.cpu_seconds();
        load.go();
        seconds.push(load.expect("all")[0]);
        load.expect("settled");
        cpu.push((server.cpu_seconds() - before) * 1e6 / clients as f64);
    }
    drop(load);
    // The same with next requests that come when all have the answer.
    let mut load = LoadProcess::start(&["wait", &address, &url, &clients.to_string(), "hold"]);
    load.expect("waiting");
    std::thread::sleep(Duration::from_secs(2));
    let (mut answers, mut requests) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds * 3 {
        let before = server.cpu_seconds();
        load.go();
        load.expect("all");
        let answered = server.cpu_seconds();
        load.go();
        load.expect("settled");
        answers.push((answered - before) * 1e6 / clients as f64);
        requests.push((server.cpu_seconds() - answered) * 1e6 / clients as f64);
    }
    vec![
        figure(&case, "until all have it", median(seconds), "s", Some(FigureTarget::AtMost(0.5))),
        figure(&case, "CPU per answer", median(answers), "µs", Some(FigureTarget::AtMost(20.0))),
        figure(&case, "CPU per next request", median(requests), "µs", None),
        figure(&case, "CPU per answer and next request, interleaved", median(cpu), "µs", None),
        figure(&case, "memory per waiting HTTP/1 client", each, "KiB", Some(FigureTarget::AtMost(16.0))),
    ]
}
