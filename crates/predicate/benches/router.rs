//! Router and interpreter: `cargo bench -p tidegate-predicate --bench router`.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

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

/// Every change is an update whose old and new row match one of the shapes.
fn indexed(table: &Arc<Table>) {
    let mut router = Router::new(Arc::clone(table));
    let before = resident();
    let started = Instant::now();
    for shape in 0..SHAPES {
        let predicate = parse("tenant = $1", &[Some(&shape.to_string())], table).unwrap();
        router.insert(shape, &Arc::new(predicate));
    }
    let inserted = started.elapsed();
    println!("{SHAPES} shapes `tenant = n`: {} bytes each", (resident() - before) / SHAPES);
    let tenants: Vec<String> = (0..1024).map(|number| (number * 97 % SHAPES).to_string()).collect();
    let mut matches = Matches::default();
    let mut found = 0;
    let started = Instant::now();
    for change in 0..CHANGES {
        let row = row(&tenants[change % tenants.len()], "a title of some length");
        router.route(Some(&row), Some(&row), &mut matches);
        found += matches.shapes.len();
    }
    let elapsed = started.elapsed();
    assert_eq!(found, CHANGES);
    println!("{SHAPES} shapes `tenant = n`: {:.2} us per insert", inserted.as_secs_f64() * 1e6 / SHAPES as f64);
    println!("{SHAPES} shapes `tenant = n`: {:.0} changes/s, each matches one", CHANGES as f64 / elapsed.as_secs_f64());
    let started = Instant::now();
    (0..SHAPES).for_each(|shape| assert!(router.remove(shape)));
    println!(
        "{SHAPES} shapes `tenant = n`: {:.2} us per removal",
        started.elapsed().as_secs_f64() * 1e6 / SHAPES as f64
    );
}

/// Predicates without a condition that an index answers.
fn scanned(table: &Arc<Table>, what: &str, texts: impl Iterator<Item = String>) {
    let mut router = Router::new(Arc::clone(table));
    let predicates: Vec<Arc<Predicate>> = texts.map(|text| Arc::new(parse(&text, &[], table).unwrap())).collect();
    predicates.iter().enumerate().for_each(|(shape, predicate)| router.insert(shape, predicate));
    let row = row("17", "a title of some length");
    let mut matches = Matches::default();
    let changes = 2_000_000 / predicates.len();
    let started = Instant::now();
    for _ in 0..changes {
        router.route(None, Some(black_box(&row)), &mut matches);
    }
    let evaluations = changes * predicates.len();
    println!(
        "{} shapes `{what}`: {:.1} M changes x shapes/s",
        predicates.len(),
        evaluations as f64 / started.elapsed().as_secs_f64() / 1e6
    );
}

fn main() {
    let table = table();
    indexed(&table);
    scanned(&table, "tenant > n", (0..1000).map(|number| format!("tenant > {number}")));
    scanned(&table, "priority < n AND NOT done", (0..1000).map(|number| format!("priority < {number} AND NOT done")));
    scanned(&table, "title LIKE '%n%'", (0..1000).map(|number| format!("title LIKE '%{number}%'")));
}
