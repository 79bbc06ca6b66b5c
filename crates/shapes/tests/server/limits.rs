//! Limits of connections and requests, TLS, and what operators see.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tidegate_shapes::{DatabaseLogin, Feed, FeedStart, OpeningFeed, ServerStatus, ShapesOptions, SlotFeed};
use tidegate_supervise::Scope;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::fixture::{Fixture, LIMIT, ShapeReader};

async fn items(change: fn(&mut ShapesOptions)) -> Fixture {
    let fixture = Fixture::with(18, change).await.ready().await;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY, name text)").await;
    fixture.sql("INSERT INTO items VALUES (1, 'one'), (2, 'two')").await;
    fixture
}

/// Waits until so many requests wait for a change.
async fn waiting(fixture: &Fixture, count: u64) {
    let wait = async {
        while fixture.server.snapshot().totals.waiting != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.expect("the requests wait");
}

#[tokio::test(flavor = "multi_thread")]
async fn new_connection_displaces_an_idle_one() {
    let fixture = items(|options| options.connections_max = 2).await;
    let address = fixture.base.strip_prefix("http://").unwrap().to_owned();
    let mut idle = TcpStream::connect(&address).await.unwrap();
    for _ in 0..3 {
        let mut active = TcpStream::connect(&address).await.unwrap();
        active.write_all(b"GET /v1/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(LIMIT, active.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.contains("\"active\""), "{answer}");
    }
    let _more = TcpStream::connect(&address).await.unwrap();
    let _and_more = TcpStream::connect(&address).await.unwrap();
    let ended = tokio::time::timeout(LIMIT, idle.read(&mut [0])).await.expect("the idle connection is displaced");
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_per_second_have_a_limit() {
    let fixture = items(|options| options.request_rate_max = 1).await;
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let reply = fixture.get("table=items&offset=-1").await;
        if reply.status == StatusCode::TOO_MANY_REQUESTS {
            assert_eq!(reply.header("retry-after"), Some("1"), "{reply:?}");
            assert_eq!(reply.header("cache-control"), Some("no-store"));
            assert!(reply.header("access-control-expose-headers").unwrap().contains("retry-after"));
        }
        statuses.push(reply.status);
    }
    assert_eq!(statuses[..2], [StatusCode::OK; 2], "the burst");
    assert!(statuses[2..].contains(&StatusCode::TOO_MANY_REQUESTS), "{statuses:?}");
    let health = fixture.request(http::Method::GET, "/v1/health", &[], "").await;
    assert_eq!(health.status, StatusCode::OK, "health is not limited");
}

/// SH-45: waiting requests and streams of events have one limit.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_requests_have_a_limit() {
    let fixture = items(|options| options.requests_max = 2).await;
    let reader = fixture.load("table=items").await;
    let (poll, events) = (reader.query(true), format!("{}&live_sse=true", reader.query(true)));
    let address = fixture.base.strip_prefix("http://").unwrap().to_owned();
    let mut streams = Vec::new();
    for query in [&poll, &events] {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let request = format!("GET /v1/shape?{query} HTTP/1.1\r\nhost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        streams.push(stream);
    }
    waiting(&fixture, 2).await;
    let refused = fixture.get(&poll).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{refused:?}");
    assert_eq!(refused.json()["code"], "concurrent_request_limit_exceeded");
    assert_eq!(fixture.server.shape_rows("", 10).0[0].waiting, 2);
    // A request without a handle has a limit of its own.
    assert_eq!(fixture.get("table=items&offset=-1").await.status, StatusCode::OK);
    drop(streams);
    waiting(&fixture, 0).await;
    assert_eq!(fixture.get(&reader.query(false)).await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn shapes_are_listed_with_their_state() {
    let fixture = items(|_| {}).await;
    let mut all = fixture.load("table=items").await;
    let one = fixture.load("table=items&where=id=1").await;
    let rows = || fixture.server.shape_rows("", 10).0;
    assert_eq!(rows().len(), 2);
    let of = |handle: &str| rows().into_iter().find(|row| row.handle == handle).unwrap();
    assert_eq!((of(&all.handle).rows, of(&one.handle).rows), (Some(2), Some(1)));
    assert_eq!((of(&all.handle).table.as_str(), of(&all.handle).state), ("items", "active"));
    assert!(of(&one.handle).predicate.contains("id"), "{:?}", of(&one.handle));
    assert_eq!(of(&all.handle).changed_at, None);
    fixture.sql("INSERT INTO items VALUES (3, 'three'); DELETE FROM items WHERE id = 2").await;
    while all.column("id") != ["1", "3"] {
        all.poll(&fixture).await;
    }
    fixture.sql("UPDATE items SET id = 30 WHERE id = 3").await;
    while all.column("id") != ["1", "30"] {
        all.poll(&fixture).await;
    }
    assert_eq!((of(&all.handle).rows, of(&one.handle).rows), (Some(2), Some(1)));
    assert!(of(&all.handle).changed_at.is_some() && of(&one.handle).changed_at.is_none());
    assert!(of(&all.handle).log_bytes > of(&one.handle).log_bytes);
    assert_eq!(fixture.server.shape_rows(&one.handle, 10).1, 1);
    assert_eq!(fixture.server.shape_rows("nothing", 10), (Vec::new(), 0));
    let (shown, count) = fixture.server.shape_rows("items", 1);
    assert_eq!((shown.len(), count), (1, 2));
    let totals = fixture.server.snapshot().totals;
    assert_eq!((totals.snapshots_complete, totals.snapshots_failed, totals.snapshots_running), (2, 0, 0));
    assert!(totals.changes >= 3 && totals.transactions >= 2, "{totals:?}");
    let answered = |status: u16| totals.answers.iter().find(|(known, _)| *known == status).map(|(_, count)| *count);
    assert!(answered(200) >= Some(4), "{totals:?}");
    let lag = async {
        while fixture.server.snapshot().totals.slot_lag_bytes.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, lag).await.expect("the lag of the slot is read");
}

/// The status is not active while the replication connection is being opened again, and requests for known shapes go on.
#[tokio::test(flavor = "multi_thread")]
async fn health_follows_the_replication_connection() {
    let fixture = items(|_| {}).await;
    let mut reader = fixture.load("table=items").await;
    let health = async || fixture.request(http::Method::GET, "/v1/health", &[], "").await;
    assert_eq!((health().await.status, health().await.json()["status"].clone()), (StatusCode::OK, "active".into()));
    // The reader cannot connect again.
    let sql = "ALTER DATABASE postgres ALLOW_CONNECTIONS false; SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE backend_type = 'walsender'";
    fixture.sql_in("template1", sql).await;
    let mut status = StatusCode::OK;
    let lost = async {
        while status != StatusCode::ACCEPTED {
            status = health().await.status;
        }
    };
    tokio::time::timeout(LIMIT, lost).await.expect("the loss is seen");
    assert!(matches!(fixture.server.status(), ServerStatus::Starting(_)), "{:?}", fixture.server.status());
    assert_eq!(fixture.server.shape_rows("", 10).0[0].state, "waiting");
    assert_eq!(fixture.get(&reader.query(false)).await.status, StatusCode::OK, "what is known is served");
    fixture.sql_in("template1", "ALTER DATABASE postgres ALLOW_CONNECTIONS true").await;
    fixture.server.ready(LIMIT).await.unwrap();
    fixture.sql("INSERT INTO items VALUES (7, 'seven')").await;
    while reader.column("id") != ["1", "2", "7"] {
        reader.poll(&fixture).await;
    }
    assert_eq!(reader.refetches, 0);
    assert!(fixture.server.snapshot().totals.reconnects > 0);
}

/// A second server on the slot waits, and follows when the first ends. Requests for new shapes are refused immediately, so that a
/// load balancer asks the other server.
#[tokio::test(flavor = "multi_thread")]
async fn second_server_waits_for_the_slot() {
    let first = items(|_| {}).await;
    let folder = tempfile::tempdir().unwrap();
    let second = Fixture::on(Arc::clone(&first.postgres), folder.path().to_owned(), |_| {}).await;
    let waits = async {
        while !matches!(second.server.status(), ServerStatus::Waiting(_)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, waits).await.expect("the second server waits");
    let health = second.request(http::Method::GET, "/v1/health", &[], "").await;
    assert_eq!((health.status, health.json()["status"].clone()), (StatusCode::ACCEPTED, "waiting".into()));
    let refused = second.get("table=items&offset=-1").await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{refused:?}");
    assert!(refused.header("retry-after").is_some());
    first.stop().await;
    second.server.ready(LIMIT).await.unwrap();
    let reader = second.load("table=items").await;
    assert_eq!(reader.column("id"), ["1", "2"]);
}

/// HTTPS with HTTP/2 and HTTP/1.1.
#[tokio::test(flavor = "multi_thread")]
async fn shapes_are_served_over_tls() {
    let postgres = tokio::task::spawn_blocking(|| crate::fixture::postgres(18)).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let identity = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, identity.cert.pem()).unwrap();
    std::fs::write(&key, identity.signing_key.serialize_pem()).unwrap();
    let tls = tidegate_tls::for_http(&cert, &key, tidegate_tls::HttpAlpn::Http1And2).unwrap();
    let (scope, url): (Scope, _) = (Scope::root("test"), postgres.url());
    let (login, feed) = (DatabaseLogin::from_url(&url).unwrap(), SlotFeed::from_url(&url).unwrap());
    let options = ShapesOptions::new(folder.path().join("logs"));
    let server = tidegate_shapes::start(options, login, Arc::new(feed), &scope).unwrap();
    let socket = tidegate_shapes::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = tidegate_shapes::serve(&server, vec![socket], Arc::new(move || tls.clone()), &scope).unwrap()[0];
    let mut roots = RootCertStore::empty();
    roots.add(identity.cert.der().clone()).unwrap();
    for protocol in ["h2", "http/1.1"] {
        let mut config = ClientConfig::builder().with_root_certificates(roots.clone()).with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol.as_bytes()));
        let io = hyper_util::rt::TokioIo::new(stream);
        let request = http::Request::builder().uri(format!("https://localhost:{}/v1/health", address.port()));
        let request = request.header("host", "localhost").body(String::new()).unwrap();
        let answer = if protocol == "h2" {
            let executor = hyper_util::rt::TokioExecutor::new();
            let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(request).await.unwrap()
        } else {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(request).await.unwrap()
        };
        assert!(answer.status().is_success(), "{protocol}: {answer:?}");
    }
    let report = scope.stop(tokio::time::sleep, Duration::from_secs(10), Duration::from_secs(1)).await;
    assert!(report.left == 0, "{report}");
}

/// A client of HTTP/2 that does not read one of its streams loses the connection, although it answers pings.
#[tokio::test(flavor = "multi_thread")]
async fn stalled_stream_of_http2_ends() {
    let fixture =
        Fixture::with(18, |options| options.stall_limit = Some(Duration::from_millis(300))).await.ready().await;
    fixture.sql("CREATE TABLE wide (id int8 PRIMARY KEY, body text)").await;
    fixture.sql("INSERT INTO wide SELECT n, repeat('x', 100000) FROM generate_series(1, 95) n").await;
    let stream = TcpStream::connect(fixture.base.strip_prefix("http://").unwrap()).await.unwrap();
    let executor = hyper_util::rt::TokioExecutor::new();
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = http::Request::builder().uri(format!("{}/v1/shape?table=wide&offset=-1", fixture.base));
    let answer = sender.send_request(request.body(String::new()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    // The body is neither read nor dropped.
    tokio::time::timeout(LIMIT * 2, connection).await.expect("the server ends the connection").unwrap().ok();
    drop(answer);
    let mut reader = ShapeReader::new("table=wide");
    reader.catch_up(&fixture).await;
}

/// A stream that cannot be opened because of a fault of the program.
struct FaultyFeed;

impl Feed for FaultyFeed {
    fn open<'a>(&'a self, _: &'a FeedStart) -> OpeningFeed<'a> {
        panic!("a fault that the test injects");
    }
}

/// A task that has ended shows in the health of the server, and new shapes are refused with the reason.
#[tokio::test(flavor = "multi_thread")]
async fn ended_task_shows_in_the_health() {
    let fixture = items(|_| {}).await;
    let folder = tempfile::tempdir().unwrap();
    let options = ShapesOptions::new(folder.path().to_owned());
    let login = DatabaseLogin::from_url(&fixture.postgres.url()).unwrap();
    let scope: Scope = Scope::root("faulty");
    let server = tidegate_shapes::start(options, login, Arc::new(FaultyFeed), &scope).unwrap();
    let failed = async {
        while !matches!(server.status(), ServerStatus::Failed(_)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, failed).await.expect("the fault is seen");
    let socket = tidegate_shapes::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = tidegate_shapes::serve(&server, vec![socket], Arc::new(|| None), &scope).unwrap()[0];
    for (path, part) in [("/v1/health", "\"failed\""), ("/v1/shape?table=items&offset=-1", "the task stream has ended")]
    {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.0 503") && text.contains(part), "{path}: {text}");
    }
}
