//! Drains a backlog of changes: this crate, `pg_recvlogical` and Debezium's engine, in turn over the same WAL.
//!
//! `cargo bench -p tidegate-changes --bench drain -- [--quick] [--json FILE] [--check] [--case PART] [--rounds N]`
//!
//! The changes are written first. Then each subject reads them from a slot of its own, as a process of its own.
//! Rate and CPU time cover the time from the start of the walsender to the last change, so that the start of a JVM is not
//! counted. `pg_recvlogical` writes to /dev/null and is the lower bound: the cost of Postgres' own walsender. Debezium needs
//! `mvn -f bench/debezium/pom.xml package`. Missing peers are reported as missing figures.

mod cases;
mod process;
mod subjects;

use std::collections::BTreeMap;
use std::process::ExitCode;

use cases::{CASES, Case};
use process::Usage;
use subjects::{SUBJECTS, Subject};
use tidegate_figures::{Figure, FigureTarget, Options, median, words};
use tidegate_sandbox::{Major, Postgres};

fn main() -> ExitCode {
    let words = words();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--count", url, slot, changes] => subjects::count_changes(url, slot, changes.parse().expect("a number")),
        _ => compare(),
    }
}

fn compare() -> ExitCode {
    let options = match Options::read("Changes per second from a filled slot.", true) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let rounds = if options.is_quick() { 1 } else { options.rounds().unwrap_or(3) };
    let mut figures = Vec::new();
    for case in CASES.iter().filter(|case| options.selects(case.name)) {
        let rows = if options.is_quick() { case.rows / 10 } else { case.rows };
        figures.extend(measure(case, rows, rounds));
    }
    options.finish("changes", &figures)
}

/// All rounds of a case, on a server of its own.
fn measure(case: &Case, rows: u64, rounds: usize) -> Vec<Figure> {
    let server = Postgres::builder()
        .version(Major(15))
        .setting("wal_level", "logical")
        .setting("max_replication_slots", "100")
        .setting("max_wal_senders", "10")
        .setting("max_wal_size", "20GB")
        .start()
        .expect("Postgres 15");
    case.prepare(&server);
    for round in 0..rounds {
        for subject in SUBJECTS {
            subject.create_slot(&server, &subject.slot(round));
        }
    }
    let changes = case.write(&server, rows);
    let end = server.simple_query("select pg_current_wal_lsn()").expect("position")[0][0].clone().expect("not null");
    let mut runs: BTreeMap<&str, Vec<Usage>> = BTreeMap::new();
    for round in 0..rounds {
        for subject in SUBJECTS {
            let usage = subject.drain(&server, &subject.slot(round), changes, &end);
            runs.entry(subject.name()).or_default().extend(usage);
        }
    }
    figures_of(case, changes as f64, &runs)
}

fn figures_of(case: &Case, changes: f64, runs: &BTreeMap<&str, Vec<Usage>>) -> Vec<Figure> {
    let of = |name: &str, value: fn(&Usage, f64) -> f64| {
        median(runs.get(name).into_iter().flatten().map(|usage| value(usage, changes)).collect())
    };
    let rate = |usage: &Usage, changes: f64| changes / usage.wall.as_secs_f64();
    let cpu = |usage: &Usage, changes: f64| usage.cpu.as_secs_f64() * 1e6 / changes;
    let server_cpu = |usage: &Usage, changes: f64| usage.server_cpu.as_secs_f64() * 1e6 / changes;
    let peak = |usage: &Usage, _: f64| usage.peak_mib;
    let mut figures = Vec::new();
    let mut add = |subject: &str, metric: &str, value, unit, target| {
        let (subject, case, metric) = (subject.to_owned(), case.name.to_owned(), metric.to_owned());
        figures.push(Figure { subject, case, metric, value, unit, target });
    };
    for subject in SUBJECTS {
        let (name, ours) = (subject.name(), *subject == Subject::Changes);
        add(name, "changes per second", of(name, rate), "/s", None);
        let limit = (ours && case.is_narrow).then_some(FigureTarget::AtMost(1.5));
        add(name, "CPU per change", of(name, cpu), "µs", limit);
        add(name, "CPU of the walsender", of(name, server_cpu), "µs", None);
        add(name, "peak memory", of(name, peak), "MiB", ours.then_some(FigureTarget::AtMost(64.0)));
    }
    let ours = Subject::Changes.name();
    let ratio = of(ours, rate) / of(Subject::Pgoutput.name(), rate);
    add("changes / pg_recvlogical", "rate", ratio, "x", Some(FigureTarget::AtLeast(0.9)));
    for peer in [Subject::Debezium, Subject::DebeziumTuned] {
        let ratio = of(peer.name(), cpu) / of(ours, cpu);
        add(
            &format!("changes / {}", peer.name()),
            "changes per CPU second",
            ratio,
            "x",
            Some(FigureTarget::AtLeast(3.0)),
        );
    }
    figures
}
