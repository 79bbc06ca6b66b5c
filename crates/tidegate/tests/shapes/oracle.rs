//! Compares shapes as clients have them with queries, at quiet points.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastrand::Rng;
use tidegate_sandbox::{Major, Postgres};

use crate::follower::{Follower, Materialised};
use crate::process::{LIMIT, ShapesProcess};
use crate::transactions::{GROUPS, TABLE, transaction, transaction_with_groups, transaction_without_keys};

const WRITERS: u64 = 3;
const TRANSACTIONS: usize = 25;

/// Shapes, and the conditions of the queries that they equal.
const SHAPES: &[(&str, &str)] = &[
    ("table=items", "true"),
    ("table=items&columns=id,n&replica=full", "true"),
    ("table=items&where=n%3D3", "n = 3"),
    ("table=items&where=n%20IN%20(1,5,7)%20AND%20b", "n IN (1, 5, 7) AND b"),
    ("table=items&where=NOT%20b%20OR%20n%20IS%20NULL&replica=full", "NOT b OR n IS NULL"),
    (
        "table=items&where=n%20BETWEEN%202%20AND%206%20AND%20s%20LIKE%20%27%25%2F%25%27",
        "n BETWEEN 2 AND 6 AND s LIKE '%/%'",
    ),
];

/// Shapes with subqueries, beside random ones.
const SUBQUERIES: &[&str] = &[
    "n IN (SELECT n FROM groups)",
    "n IN (SELECT n FROM groups WHERE kind = 1 AND b) AND NOT items.b",
    "n NOT IN (SELECT n FROM groups WHERE kind = 2)",
    "id IN (SELECT id FROM groups WHERE n IN (SELECT n FROM items WHERE b)) OR n = 3",
];

/// Shapes whose logs have changes only. The tables are empty at first, so that a client has all rows.
const CHANGES_ONLY: &[&str] = &[
    "id IN (SELECT id FROM groups WHERE kind = 1 AND b)",
    "n NOT IN (SELECT n FROM groups WHERE kind = 2)",
    "n IN (SELECT n FROM groups) AND (NOT items.b OR id NOT IN (SELECT id FROM groups WHERE kind <> 2))",
    "id IN (SELECT id FROM groups WHERE n IN (SELECT n FROM items WHERE b)) OR n = 3",
    "n NOT IN (SELECT n FROM groups WHERE id NOT IN (SELECT id FROM items WHERE n IN (SELECT kind FROM groups WHERE b)))",
];

const LOG_OF_CHANGES: &str = "log=changes_only";

/// Tables, and the transactions that change them.
struct Workload {
    tables: String,
    has_key: bool,
    transaction: fn(&mut Rng) -> String,
}

/// A row by the names of the columns.
type Row = BTreeMap<String, Option<String>>;

struct Followed {
    shape: String,
    condition: String,
    state: Arc<Mutex<Materialised>>,
}

fn rounds() -> u32 {
    std::env::var("TIDEGATE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(6)
}

fn seed() -> u64 {
    let given = std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("TIDEGATE_SEED={seed}");
    seed
}

/// SH-14 to SH-18, SH-56, SH-62: random transactions of several writers, and `kill -9` while they write.
#[test]
fn shapes_equal_queries_through_kill_9() {
    let shapes = SHAPES.iter().map(|(shape, condition)| ((*shape).to_owned(), (*condition).to_owned())).collect();
    compare(seed(), &Workload { tables: TABLE.to_owned(), has_key: true, transaction }, shapes);
}

/// SH-14 to SH-18, SH-55, SH-56: the results of subqueries change with the rows of the shape, also in one transaction, and
/// through `kill -9`.
#[test]
fn shapes_with_subqueries_equal_queries() {
    let workload =
        Workload { tables: format!("{TABLE}; {GROUPS}"), has_key: true, transaction: transaction_with_groups };
    compare_subqueries(&workload);
}

/// SH-56, SH-62: a client that counts equal rows has as many as the tables without primary keys.
#[test]
fn shapes_without_keys_equal_queries() {
    let tables = format!("{TABLE}; {GROUPS}").replace("PRIMARY KEY", "NOT NULL");
    compare_subqueries(&Workload { tables, has_key: false, transaction: transaction_without_keys });
}

fn compare_subqueries(workload: &Workload) {
    let seed = seed();
    let mut rng = Rng::with_seed(seed);
    let mut conditions: Vec<String> = SUBQUERIES.iter().map(|condition| (*condition).to_owned()).collect();
    conditions.extend((0..6).map(|_| condition(&mut rng, 2)));
    let shapes = conditions.into_iter().zip(0..).map(|(condition, number)| {
        let replica = if number % 2 == 0 { "default" } else { "full" };
        (format!("table=items&replica={replica}&where={}", encoded(&condition)), condition)
    });
    let shapes: Vec<_> = shapes.chain(logs_of_changes(&mut rng)).collect();
    compare(seed, workload, shapes);
}

fn logs_of_changes(rng: &mut Rng) -> Vec<(String, String)> {
    let mut conditions: Vec<String> = CHANGES_ONLY.iter().map(|condition| (*condition).to_owned()).collect();
    while conditions.len() < CHANGES_ONLY.len() * 2 {
        let condition = condition(rng, 2);
        if condition.contains("SELECT") {
            conditions.push(condition);
        }
    }
    let shape = |condition: &String| format!("table=items&{LOG_OF_CHANGES}&where={}", encoded(condition));
    conditions.into_iter().map(|condition| (shape(&condition), condition)).collect()
}

/// A random condition of `groups`, with subqueries inside of each other.
fn groups_condition(rng: &mut Rng, depth: u8) -> String {
    match rng.u8(if depth == 0 { 0..4 } else { 0..7 }) {
        0 => "b".to_owned(),
        1 => format!("kind = {}", rng.u8(..4)),
        2 => format!("n > {} OR b IS NULL", rng.u8(..10)),
        3 => format!("kind <> {} AND NOT b", rng.u8(..4)),
        4 => format!("kind IN (SELECT n FROM items WHERE {})", items_condition(rng, depth - 1)),
        5 => format!("n NOT IN (SELECT n FROM items WHERE {})", items_condition(rng, depth - 1)),
        _ => format!("b OR id IN (SELECT i.id FROM items i WHERE {})", items_condition(rng, depth - 1)),
    }
}

/// A random condition of `items` in a subquery.
fn items_condition(rng: &mut Rng, depth: u8) -> String {
    match rng.u8(if depth == 0 { 0..3 } else { 0..5 }) {
        0 => "b".to_owned(),
        1 => format!("id < {}", rng.u8(..60)),
        2 => format!("n > {} OR s IS NULL", rng.u8(..10)),
        3 => format!("n IN (SELECT kind FROM groups WHERE {})", groups_condition(rng, depth - 1)),
        _ => format!("NOT b AND id NOT IN (SELECT id FROM groups WHERE {})", groups_condition(rng, depth - 1)),
    }
}

/// A random condition with subqueries.
fn condition(rng: &mut Rng, depth: u8) -> String {
    let inner = |rng: &mut Rng| groups_condition(rng, 2);
    match rng.u8(if depth == 0 { 0..5 } else { 0..8 }) {
        0 | 1 => format!("n IN (SELECT n FROM groups WHERE {})", inner(rng)),
        2 => format!("n NOT IN (SELECT n FROM groups AS g WHERE {})", inner(rng)),
        3 => format!("id IN (SELECT g.id FROM public.groups g WHERE {})", inner(rng)),
        4 => format!("n < {}", rng.u8(..10)),
        5 => format!("({} AND {})", condition(rng, depth - 1), condition(rng, depth - 1)),
        6 => format!("({} OR {})", condition(rng, depth - 1), condition(rng, depth - 1)),
        _ => format!("NOT {}", condition(rng, depth - 1)),
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Follows shapes while transactions are written, and compares them with queries. No client may have to load its shape again.
fn compare(seed: u64, workload: &Workload, shapes: Vec<(String, String)>) {
    let postgres = Postgres::builder().version(Major(18)).setting("wal_level", "logical").start().unwrap();
    postgres.simple_query(&workload.tables).unwrap();
    let mut process = ShapesProcess::start(&postgres);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut followed = Vec::new();
    let mut tasks = Vec::new();
    for (shape, condition) in shapes {
        let state = Arc::new(Mutex::new(Materialised::default()));
        let follower = Follower::new(process.address, &shape).with_key(workload.has_key);
        tasks.push(runtime.spawn(follower.follow(Arc::clone(&stop), Arc::clone(&state))));
        followed.push(Followed { shape, condition, state });
    }
    let begun = Instant::now();
    // Clients of these logs need all changes.
    for log in followed.iter().filter(|followed| followed.shape.contains(LOG_OF_CHANGES)) {
        while log.state.lock().unwrap().handle.is_empty() {
            assert!(begun.elapsed() < LIMIT, "{} does not begin:\n{}", log.shape, process.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    for round in 0..rounds() {
        let mut rng = Rng::with_seed(seed.wrapping_add(u64::from(round) << 32));
        write_and_kill(&postgres, &mut process, &mut rng, round, workload.transaction);
        for followed in &followed {
            settle(&postgres, followed, &process, &tasks, seed, round);
            let follower = Follower::new(process.address, &followed.shape).with_key(workload.has_key);
            let fresh = runtime.block_on(follower.load());
            let state = followed.state.lock().unwrap().clone();
            assert_eq!(fresh.rows, state.rows, "seed {seed}, round {round}, {}", followed.condition);
            assert_eq!(fresh.handle, state.handle, "seed {seed}, round {round}, {}", followed.condition);
        }
    }
    stop.store(true, Ordering::Relaxed);
    for followed in &followed {
        let refetches = followed.state.lock().unwrap().refetches;
        assert_eq!(refetches, 0, "no handle is lost: seed {seed}, {}\n{}", followed.condition, process.log());
    }
}

/// Writers run concurrently; in every second round the server is killed meanwhile.
fn write_and_kill(
    postgres: &Postgres,
    process: &mut ShapesProcess,
    rng: &mut Rng,
    round: u32,
    transaction: fn(&mut Rng) -> String,
) {
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            let mut rng = rng.fork();
            scope.spawn(move || {
                for _ in 0..TRANSACTIONS {
                    // A deadlock ends a transaction, which is as good as a rollback.
                    let _ = postgres.simple_query(&transaction(&mut rng));
                }
            });
        }
        if round % 2 == 1 {
            process.kill_and_restart(postgres);
        }
    });
}

/// Waits until a shape equals its query.
fn settle(
    postgres: &Postgres,
    followed: &Followed,
    process: &ShapesProcess,
    tasks: &[tokio::task::JoinHandle<()>],
    seed: u64,
    round: u32,
) {
    let deadline = Instant::now() + LIMIT;
    let expected = query(postgres, &followed.condition);
    loop {
        let state = followed.state.lock().unwrap().clone();
        let found = sorted(state.rows.values());
        if found == selected(&expected, &found) {
            return;
        }
        let has_failed = tasks.iter().any(tokio::task::JoinHandle::is_finished);
        assert!(
            !has_failed && Instant::now() < deadline,
            "seed {seed}, round {round}, {}:\n{found:?}\n{expected:?}\n{}",
            followed.shape,
            process.log()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn sorted<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<Row> {
    let mut rows: Vec<Row> = rows.cloned().collect();
    rows.sort();
    rows
}

/// Rows with the columns that others have.
fn selected(rows: &[Row], others: &[Row]) -> Vec<Row> {
    let Some(other) = others.first() else { return rows.to_vec() };
    let rows = rows.iter().cloned().map(|mut row| {
        row.retain(|name, _| other.contains_key(name));
        row
    });
    sorted(rows.collect::<Vec<_>>().iter())
}

fn query(postgres: &Postgres, condition: &str) -> Vec<Row> {
    let names = ["id", "n", "s", "b"];
    let rows = postgres.simple_query(&format!("SELECT id, n, s, b FROM items WHERE {condition}")).unwrap();
    let rows = rows.into_iter().map(|row| names.iter().map(|name| (*name).to_owned()).zip(row).collect());
    sorted(rows.collect::<Vec<Row>>().iter())
}
