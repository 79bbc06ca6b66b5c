//! Hostile clients: malformed and oversized requests, and clients that do not read.

use http::{Method, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fixture::{Fixture, LIMIT};

/// Requests with random texts per test.
const ROUNDS: usize = 1500;

async fn items() -> Fixture {
    let fixture = Fixture::start().await.ready().await;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY, name text)").await;
    fixture
}

async fn connect(fixture: &Fixture) -> TcpStream {
    TcpStream::connect(fixture.base.strip_prefix("http://").unwrap()).await.unwrap()
}

/// Sends bytes and returns the status of the answer; `None` if the connection is closed without one.
async fn status_of(fixture: &Fixture, request: &[u8]) -> Option<u16> {
    let mut stream = connect(fixture).await;
    // The server may answer and close before everything is sent.
    let _ = stream.write_all(request).await;
    let mut head = Vec::new();
    let read = async {
        let mut buffer = [0; 4096];
        while head.len() < 12 {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(len) => head.extend_from_slice(&buffer[..len]),
            }
        }
    };
    tokio::time::timeout(LIMIT, read).await.expect("an answer, or the end of the connection");
    std::str::from_utf8(head.get(9..12)?).ok()?.parse().ok()
}

fn random_query(random: &mut fastrand::Rng) -> String {
    const NAMES: [&str; 22] = [
        "table",
        "offset",
        "handle",
        "live",
        "live_sse",
        "cursor",
        "where",
        "params[1]",
        "params[2]",
        "params[x]",
        "columns",
        "queryable_columns",
        "replica",
        "log",
        "subset__where",
        "subset__params",
        "subset__limit",
        "subset__offset",
        "subset__order_by",
        "secret",
        "params",
        "%00",
    ];
    const VALUES: [&str; 27] = [
        "items",
        "-1",
        "now",
        "0_0",
        "0_inf",
        "9999999999999999999999_1",
        "18446744073709551615_18446744073709551615",
        "true",
        "false",
        "",
        "%00",
        "%ff%fe",
        "id%3D1",
        "id%20%3D%20%241",
        "((((",
        "name%20LIKE%20'%25%25'",
        "\"",
        "'",
        "{\"1\":\"x\"}",
        "[[[[[[",
        "id,name",
        "*",
        "name;drop%20table%20items",
        "id%20DESC%20NULLS%20LAST",
        "full",
        "-5",
        "1e9",
    ];
    let count = random.usize(..8);
    let pairs: Vec<String> = (0..count)
        .map(|_| {
            let mut value = VALUES[random.usize(..VALUES.len())].to_owned();
            if random.u8(..4) == 0 {
                value.push_str(&"(".repeat(random.usize(..2000)));
            }
            format!("{}={value}", NAMES[random.usize(..NAMES.len())])
        })
        .collect();
    // Most requests are close to a valid one.
    let base = if random.bool() { "table=items&offset=-1&" } else { "" };
    format!("{base}{}", pairs.join("&"))
}

/// SH-46: whatever a request has, the answer is one of the protocol, and no shape but those of valid definitions is kept.
#[tokio::test(flavor = "multi_thread")]
async fn random_requests_get_answers_of_the_protocol() {
    let fixture = items().await;
    let seed = std::env::var("SHAPES_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("SHAPES_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..ROUNDS {
        // A live request for a known position would wait.
        let query = random_query(&mut random).replace("live", "live_");
        let method = ["GET", "POST", "HEAD", "DELETE", "OPTIONS", "PATCH"][random.usize(..6)];
        let body = if method == "POST" { "{\"where\":\"((((\"}" } else { "" };
        let request = format!(
            "{method} /v1/shape?{query} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let status = status_of(&fixture, request.as_bytes()).await;
        let is_known = matches!(status, Some(200 | 204 | 304 | 400 | 404 | 405 | 409));
        assert!(is_known, "{status:?} to {method} {query}");
    }
    let reply = fixture.get("table=items&offset=-1").await;
    assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_requests_are_refused() {
    let fixture = items().await;
    let head = |target: &str, more: &str| format!("GET {target} HTTP/1.1\r\nhost: x\r\n{more}\r\n").into_bytes();
    let long = "x".repeat(1 << 20);
    let shape = "/v1/shape?table=items&offset=-1";
    let flood: String = (0..20_000).map(|number| format!("x-{number}: y\r\n")).collect();
    for (request, expected, name) in [
        (head(&format!("{shape}&where={long}"), ""), &[414, 431][..], "a predicate of 1 MB"),
        (head(shape, &format!("x: {long}\r\n")), &[431], "a header of 1 MB"),
        (head(shape, &flood), &[431], "20,000 headers"),
        (head(&format!("{shape}&where={}", "(".repeat(60_000)), ""), &[400], "60,000 parentheses"),
        (head(&format!("{shape}&where={}1", "NOT%20".repeat(9_000)), ""), &[400], "9,000 operators"),
        (head(&format!("{shape}&params[5000]=x"), ""), &[400], "parameters with a gap"),
    ] {
        let status = status_of(&fixture, &request).await;
        assert!(status.is_some_and(|status| expected.contains(&status)), "{name}: {status:?}");
    }
    let deep = format!("{{\"where\":\"{}\"}}", "(".repeat(1_000_000));
    let reply = fixture.request(Method::POST, shape, &[], &deep).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{reply:?}");
    let nested = format!("{}{}", "[".repeat(500_000), "]".repeat(500_000));
    assert_eq!(fixture.request(Method::POST, shape, &[], &nested).await.status, StatusCode::BAD_REQUEST);
    let large = "x".repeat((1 << 20) + 1);
    assert_eq!(fixture.request(Method::POST, shape, &[], &large).await.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(fixture.get("table=items&offset=-1").await.status, StatusCode::OK);
}

/// SH-31: unknown handles get the handle of the current shape, and leave nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_handles_leave_nothing_behind() {
    const HANDLES: usize = 20_000;
    let fixture = items().await;
    let current = fixture.get("table=items&offset=-1").await.handle().to_owned();
    let mut stream = connect(&fixture).await;
    let (mut read, mut write) = stream.split();
    let requests = async {
        for number in 0..HANDLES {
            let target = format!("/v1/shape?table=items&offset=0_inf&handle={number}-{number}");
            write.write_all(format!("GET {target} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
        }
    };
    let answers = async {
        let (mut count, mut rest, mut buffer) = (0, String::new(), vec![0; 64 << 10]);
        while count < HANDLES {
            let len = read.read(&mut buffer).await.unwrap();
            assert!(len > 0, "the connection has ended after {count} answers");
            rest.push_str(std::str::from_utf8(&buffer[..len]).unwrap());
            count += rest.matches("HTTP/1.1 409").count();
            assert!(!rest.contains("HTTP/1.1 2") && !rest.contains("HTTP/1.1 5"), "{rest}");
            // The end may be the beginning of a status line.
            rest = rest[rest.len() - rest.len().min(11)..].to_owned();
        }
    };
    tokio::time::timeout(LIMIT, async { tokio::join!(requests, answers) }).await.unwrap();
    assert_eq!(fixture.server.shape_count(), 1);
    assert_eq!(fixture.get("table=items&offset=-1").await.handle(), current);
}

/// SH-44: a client that does not read loses its connection, whatever it asked for.
#[tokio::test(flavor = "multi_thread")]
async fn stalled_reader_loses_its_connection() {
    let fixture = Fixture::with(18, |options| options.stall_limit = Some(std::time::Duration::from_millis(300))).await;
    let fixture = fixture.ready().await;
    fixture.sql("CREATE TABLE wide (id int8 PRIMARY KEY, body text)").await;
    fixture.sql("INSERT INTO wide SELECT n, repeat('x', 100000) FROM generate_series(1, 95) n").await;
    let whole = fixture.get("table=wide&offset=-1").await.body.len();
    let mut stalled = connect(&fixture).await;
    let request = b"GET /v1/shape?table=wide&offset=-1 HTTP/1.1\r\nhost: x\r\n\r\n";
    // More answers than the buffers of both sockets hold.
    for _ in 0..4 {
        stalled.write_all(request).await.unwrap();
    }
    // A write fails once the server has closed the connection.
    let ended = async {
        while stalled.write_all(b"x").await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, ended).await.expect("the connection has ended");
    assert_eq!(fixture.get("table=wide&offset=-1").await.body.len(), whole, "others are served");
}
