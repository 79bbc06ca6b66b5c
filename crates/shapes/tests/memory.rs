//! Memory per idle shape. Runs alone in its process, because it counts all allocations.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::alloc::System;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tidegate_sandbox::{Major, Postgres};
use tidegate_shapes::{DatabaseLogin, ShapesOptions, SlotFeed};
use tidegate_supervise::Scope;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const LIMIT: Duration = Duration::from_secs(60);
/// Fills hash tables as much as 100,000 shapes do.
const SHAPES: usize = 3_125;
/// Resident memory is more: an allocator has classes of sizes, and pages that are not full.
const BYTES_MAX: usize = 720;
const CLIENTS: usize = 16;

fn allocated() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

fn get(address: SocketAddr, query: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(format!("GET /v1/shape?{query}&offset=-1 HTTP/1.0\r\nhost: a\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{query}: {answer}");
}

/// Waits until at most `bytes` are allocated, and returns how many are: buffers are given back, and answers leave the cache.
fn settle(bytes: usize) -> usize {
    let deadline = Instant::now() + LIMIT;
    while allocated() > bytes && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    allocated()
}

/// Issue 36: at most 1 KiB is resident for each of 100,000 shapes `column = constant`.
#[test]
fn idle_shape_takes_less_than_a_kilobyte() {
    let postgres = Postgres::builder().version(Major(18)).setting("wal_level", "logical").start().unwrap();
    let rows = format!("INSERT INTO items SELECT n, n, 'item ' || n FROM generate_series(1, {SHAPES}) n");
    postgres.simple_query("CREATE TABLE items (id int8 PRIMARY KEY, tenant int, title text)").unwrap();
    postgres.simple_query("CREATE TABLE other (id int8 PRIMARY KEY); CREATE INDEX ON items (tenant)").unwrap();
    postgres.simple_query(&rows).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let scope: Scope = Scope::root("test");
    let address = runtime.block_on(async {
        let mut options = ShapesOptions::new(folder.path().to_owned());
        options.catalogue_interval = Duration::from_secs(3600);
        let login = DatabaseLogin::from_url(&postgres.url()).unwrap();
        let feed = Arc::new(SlotFeed::from_url(&postgres.url()).unwrap());
        let server = tidegate_shapes::start(options, login, feed, &scope).unwrap();
        server.ready(LIMIT).await.unwrap();
        let socket = tidegate_shapes::bind(([127, 0, 0, 1], 0).into()).unwrap();
        tidegate_shapes::serve(&server, vec![socket], Arc::new(|| None), &scope).unwrap()[0]
    });
    get(address, "table=items&where=tenant=0");
    let before = allocated();
    std::thread::scope(|threads| {
        for first in 0..CLIENTS {
            threads.spawn(move || {
                (1 + first..=SHAPES)
                    .step_by(CLIENTS)
                    .for_each(|tenant| get(address, &format!("table=items&where=tenant={tenant}")));
            });
        }
    });
    // A table that changes clears the definitions that are remembered.
    get(address, "table=other");
    postgres.simple_query("TRUNCATE other").unwrap();
    let each = settle(before + BYTES_MAX * SHAPES).saturating_sub(before) / SHAPES;
    println!("{each} bytes per shape");
    assert!(each <= BYTES_MAX, "{each} bytes per shape");
    runtime.block_on(scope.stop(tokio::time::sleep, LIMIT, LIMIT));
}
