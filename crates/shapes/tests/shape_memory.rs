//! Memory of idle shapes and of clients that wait. Runs alone in its process, because it counts all allocations.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

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
const SHAPES: usize = 2000;
const CREATORS: usize = 16;
const CLIENTS: usize = 200;
/// Shapes and clients before the count begins: tables and buffers that do not grow with their number.
const FIRST: usize = 50;
/// Bytes of an idle shape. Remembered definitions are limited in number, and left out.
const SHAPE_BYTES_MAX: usize = 1024;
/// Bytes of a client of HTTP/1 that waits, of which hyper's two buffers take 16 KiB.
const CLIENT_BYTES_MAX: usize = 22 << 10;

fn allocated() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

fn send(stream: &mut TcpStream, target: &str) {
    // As many headers as a browser sends.
    let headers = "host: shapes\r\naccept: */*\r\naccept-encoding: gzip, deflate, br\r\naccept-language: en\r\n\
                   origin: http://shapes\r\nreferer: http://shapes/\r\nuser-agent: a browser of our days\r\n";
    write!(stream, "GET /v1/shape?{target} HTTP/1.1\r\n{headers}\r\n").unwrap();
}

/// Reads an answer, and returns its handle and offset.
fn receive(stream: &mut TcpStream) -> (String, String) {
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    let head_len = loop {
        let len = stream.read(&mut buffer).unwrap();
        text.extend_from_slice(&buffer[..len]);
        if let Some(end) = text.windows(4).position(|part| part == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let head = String::from_utf8(text[..head_len].to_vec()).unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let header = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("no {name}: {head}")).to_owned()
    };
    let len: usize = header("content-length").parse().unwrap();
    while text.len() < head_len + len {
        let got = stream.read(&mut buffer).unwrap();
        assert!(got > 0, "the answer is incomplete");
        text.extend_from_slice(&buffer[..got]);
    }
    (header("electric-handle"), header("electric-offset"))
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Loads shapes `n = number`, some at a time.
fn create(address: SocketAddr, numbers: std::ops::Range<usize>) {
    std::thread::scope(|scope| {
        for first in 0..CREATORS {
            let numbers = numbers.clone().skip(first).step_by(CREATORS);
            scope.spawn(move || {
                let mut stream = connect(address);
                for number in numbers {
                    let shape = format!("table=items&where=n%3D{number}");
                    send(&mut stream, &format!("{shape}&offset=-1"));
                    let (handle, offset) = receive(&mut stream);
                    send(&mut stream, &format!("{shape}&handle={handle}&offset={offset}"));
                    receive(&mut stream);
                }
            });
        }
    });
}

/// Clients that have received an answer on their connection, and wait for a change.
fn wait(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let clients = (0..count).map(|_| {
        let mut stream = connect(address);
        send(&mut stream, "table=items&offset=-1");
        let (handle, _) = receive(&mut stream);
        send(&mut stream, &format!("table=items&offset=0_inf&handle={handle}&live=true"));
        stream
    });
    clients.collect()
}

/// Waits until so many bytes, or fewer, are allocated for each of `count`, and returns how many.
fn settled(before: usize, count: usize, bytes_max: usize) -> usize {
    let started = Instant::now();
    loop {
        let each = allocated().saturating_sub(before) / count;
        // Answers are dropped after some seconds.
        if each <= bytes_max || started.elapsed() > LIMIT {
            return each;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Issue 36. One test, because the threads of a second would be counted.
#[test]
fn idle_shapes_and_waiting_clients_need_little() {
    let postgres = Postgres::builder().version(Major(18)).setting("wal_level", "logical").start().unwrap();
    postgres.simple_query("CREATE TABLE items (id int8 PRIMARY KEY, n int); INSERT INTO items VALUES (1, 1)").unwrap();
    postgres.simple_query("CREATE TABLE other (id int8 PRIMARY KEY)").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let scope: Scope = Scope::root("memory");
    let mut options = ShapesOptions::new(folder.path().to_owned());
    options.long_poll = LIMIT * 10;
    let (server, address) = runtime.block_on(async {
        let login = DatabaseLogin::from_url(&postgres.url()).unwrap();
        let feed = Arc::new(SlotFeed::from_url(&postgres.url()).unwrap());
        let server = tidegate_shapes::start(options, login, feed, &scope).unwrap();
        let socket = tidegate_shapes::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = tidegate_shapes::serve(&server, vec![socket], Arc::new(|| None), &scope).unwrap()[0];
        server.ready(LIMIT).await.unwrap();
        (server, address)
    });
    let first_clients = wait(address, FIRST);
    create(address, 0..FIRST);
    let mut other = connect(address);
    send(&mut other, "table=other&offset=-1");
    receive(&mut other);
    let before = allocated();
    create(address, FIRST..FIRST + SHAPES);
    // Remembered definitions are forgotten.
    postgres.simple_query("TRUNCATE other").unwrap();
    let each = settled(before, SHAPES, SHAPE_BYTES_MAX);
    println!("{each} bytes for an idle shape");
    assert!(each <= SHAPE_BYTES_MAX, "{each} bytes for an idle shape");
    let before = allocated();
    let clients = wait(address, CLIENTS);
    let started = Instant::now();
    while server.snapshot().totals.waiting < (FIRST + CLIENTS) as u64 {
        assert!(started.elapsed() < LIMIT, "the clients wait");
        std::thread::sleep(Duration::from_millis(10));
    }
    let each = settled(before, CLIENTS, CLIENT_BYTES_MAX);
    println!("{each} bytes for a waiting client");
    assert!(each <= CLIENT_BYTES_MAX, "{each} bytes for a waiting client");
    drop((first_clients, clients));
    runtime.block_on(scope.stop(tokio::time::sleep, Duration::from_secs(10), Duration::from_secs(1)));
}
