//! Changes through the router, and predicates through the interpreter.
//!
//! `cargo bench -p tidegate-predicate --bench router -- [--quick] [--json FILE] [--check]`

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use tidegate_figures::{Figure, FigureTarget, Options};
use tidegate_predicate::{Collation, Column, ColumnType, Matches, Predicate, Router, Table, parse};

const SHAPES: usize = 100_000;
const CHANGES: usize = 1_000_000;

fn table() -> Arc<Table> {
    let columns = vec![
        Column::new("id", ColumnType::INT8),
        Column::new("tenant", ColumnType::INT4),
        Column::new("title", ColumnType::TEXT),
        Column::new("priority", ColumnType::INT4),
        Column::new("done", ColumnType::BOOL),
    ];
    Arc::new(Table::new("public", "items", columns, Collation::c()))
}

fn row<'r>(tenant: &'r str, title: &'r str) -> [Option<&'r [u8]>; 5] {
    [Some(b"4711"), Some(tenant.as_bytes()), Some(title.as_bytes()), Some(b"3"), Some(b"f")]
}

/// Resident memory of the process in bytes; 0 where /proc does not exist.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).map_or(0, |pages| pages * 4096)
}

const SUBJECT: &str = "router";

fn figure(case: &str, metric: &str, value: f64, unit: &'static str, target: Option<FigureTarget>) -> Figure {
    let (subject, case, metric) = (SUBJECT.to_owned(), case.to_owned(), metric.to_owned());
    Figure { subject, case, metric, value, unit, target }
}

/// Every change is an update whose old and new row match one of the shapes.
fn indexed(table: &Arc<Table>, changes: usize) -> Vec<Figure> {
    const CASE: &str = "100,000 shapes `tenant = n`";
    let mut router = Router::new(Arc::clone(table));
    let before = resident();
    let started = Instant::now();
    for shape in 0..SHAPES {
        let predicate = parse("tenant = $1", &[Some(&shape.to_string())], table).unwrap();
        router.insert(shape, &Arc::new(predicate));
    }
    let (inserted, bytes) = (started.elapsed(), resident() - before);
    let tenants: Vec<String> = (0..1024).map(|number| (number * 97 % SHAPES).to_string()).collect();
    let mut matches = Matches::default();
    let mut found = 0;
    let started = Instant::now();
    for change in 0..changes {
        let row = row(&tenants[change % tenants.len()], "a title of some length");
        router.route(Some(&row), Some(&row), &mut matches);
        found += matches.shapes.len();
    }
    let elapsed = started.elapsed();
    assert_eq!(found, changes);
    let started = Instant::now();
    (0..SHAPES).for_each(|shape| assert!(router.remove(shape)));
    let removed = started.elapsed();
    let rate = changes as f64 / elapsed.as_secs_f64();
    let micros = |time: std::time::Duration| time.as_secs_f64() * 1e6 / SHAPES as f64;
    vec![
        figure(CASE, "changes per second", rate, "/s", Some(FigureTarget::AtLeast(200_000.0))),
        figure(CASE, "memory per shape", (bytes / SHAPES) as f64, "B", None),
        figure(CASE, "insertion", micros(inserted), "µs", None),
        figure(CASE, "removal", micros(removed), "µs", None),
    ]
}

/// Predicates without a condition that an index answers.
fn scanned(table: &Arc<Table>, case: &str, texts: impl Iterator<Item = String>, evaluations: usize) -> Figure {
    let mut router = Router::new(Arc::clone(table));
    let predicates: Vec<Arc<Predicate>> = texts.map(|text| Arc::new(parse(&text, &[], table).unwrap())).collect();
    predicates.iter().enumerate().for_each(|(shape, predicate)| router.insert(shape, predicate));
    let row = row("17", "a title of some length");
    let mut matches = Matches::default();
    let changes = evaluations / predicates.len();
    let started = Instant::now();
    for _ in 0..changes {
        router.route(None, Some(black_box(&row)), &mut matches);
    }
    let rate = (changes * predicates.len()) as f64 / started.elapsed().as_secs_f64() / 1e6;
    figure(&format!("1,000 shapes `{case}`"), "changes x shapes", rate, "M/s", Some(FigureTarget::AtLeast(5.0)))
}

fn main() -> ExitCode {
    let options = match Options::read("Changes through the router, and predicates through the interpreter.", false) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let scale = if options.is_quick() { 10 } else { 1 };
    let (table, evaluations) = (table(), 20_000_000 / scale);
    let mut figures = indexed(&table, CHANGES / scale);
    for (case, text) in [
        ("tenant > n", (|number| format!("tenant > {number}")) as fn(u32) -> String),
        ("priority < n AND NOT done", |number| format!("priority < {number} AND NOT done")),
        ("title LIKE '%n%'", |number| format!("title LIKE '%{number}%'")),
    ] {
        figures.push(scanned(&table, case, (0..1000).map(text), evaluations));
    }
    options.finish("shapes", &figures)
}
