//! Changes of Postgres end to end, on one machine: latency, backlogs as JSON through the spool, copies of tables, and the
//! start after a crash.
//!
//! `cargo bench -p tidegate --bench changes -- [--quick] [--json FILE] [--check] [--case PART] [--rounds N]`
//!
//! The subjects are `tidegate stream` with standard output as its sink, and the library `tidegate-changes` in a process of
//! its own. Postgres commits wait for the WAL to be written and not for the disk. Debezium needs
//! `mvn -f bench/debezium/pom.xml package`, and is reported as missing otherwise. `TIDEGATE=PATH` measures another build.

mod backlog;
mod copy;
mod latency;
mod process;
mod resume;

use std::process::ExitCode;

use tidegate_figures::{Figure, FigureTarget, Options, words};
use tidegate_sandbox::{Major, Postgres};

/// A case, selected by a part of its name.
struct Case {
    name: &'static str,
    run: fn(&Scale) -> Vec<Figure>,
}

const CASES: &[Case] = &[
    Case { name: latency::NAME, run: latency::run },
    Case { name: backlog::INSERTS, run: backlog::inserts },
    Case { name: backlog::LARGE, run: backlog::large_transaction },
    Case { name: backlog::TABLES, run: backlog::many_tables },
    Case { name: copy::NAME, run: copy::run },
    Case { name: resume::NAME, run: resume::run },
];

/// Sizes of a run.
pub(crate) struct Scale {
    is_quick: bool,
    pub(crate) rounds: usize,
}

impl Scale {
    pub(crate) fn of(&self, full: u64) -> u64 {
        if self.is_quick { full / 10 } else { full }
    }
}

fn main() -> ExitCode {
    let words = words();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--receive", url, slot, changes] => latency::receive(url, slot, changes.parse().expect("a number")),
        ["--copy", method, url, rows] => copy::count(method, url, rows.parse().expect("a number")),
        _ => compare(),
    }
}

fn compare() -> ExitCode {
    let options = match Options::read("Changes of Postgres to records.", true) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let is_quick = options.is_quick();
    let scale = Scale { is_quick, rounds: if is_quick { 1 } else { options.rounds().unwrap_or(3) } };
    let selected = CASES.iter().filter(|case| options.selects(case.name));
    let figures: Vec<_> = selected.flat_map(|case| (case.run)(&scale)).collect();
    options.finish("changes", &figures)
}

/// A server for one case.
pub(crate) fn server() -> Postgres {
    let settings = [
        ("wal_level", "logical"),
        ("synchronous_commit", "on"),
        ("max_wal_size", "20GB"),
        ("max_wal_senders", "20"),
        ("max_replication_slots", "20"),
        ("max_locks_per_transaction", "1000"),
    ];
    let builder = Postgres::builder().version(Major(15));
    settings.iter().fold(builder, |builder, (name, value)| builder.setting(name, value)).start().expect("Postgres 15")
}

/// Executes statements, each in a transaction of its own.
pub(crate) fn execute(server: &Postgres, statements: &[&str]) {
    for statement in statements {
        server.simple_query(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
}

pub(crate) fn figure(
    case: &str,
    subject: &str,
    metric: &str,
    value: f64,
    unit: &'static str,
    target: Option<FigureTarget>,
) -> Figure {
    Figure { subject: subject.to_owned(), case: case.to_owned(), metric: metric.to_owned(), value, unit, target }
}
