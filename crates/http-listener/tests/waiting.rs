//! Requests of HTTP/1 that wait, on real sockets.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tidegate_http_listener::{
    ConnectionSlot, HttpServer, HttpService, HttpVersions, ListenerOptions, bind, serve as serve_sockets,
};
use tidegate_supervise::{Scope, Tokio};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};

/// Limit of anything that a test waits for.
const LIMIT: Duration = Duration::from_secs(60);
/// More turns than the sweep of a stop has.
const SWEEP_TURNS_MAX: usize = 1000;
/// More than the buffers of two sockets hold.
const LARGE: usize = 32 << 20;

/// `/wait…` is answered when a permit is added; `/large` immediately, with a large body; others immediately with their path.
/// Paths that end with `409` are answered with that status.
#[derive(Clone)]
struct Waiting {
    permits: Arc<Semaphore>,
    /// Requests that wait.
    count: watch::Sender<usize>,
}

/// Counts a request until it is dropped.
struct Counted(watch::Sender<usize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl HttpService for Waiting {
    type Body = Full<Bytes>;

    async fn answer(self, request: Request<Incoming>, connection: Arc<ConnectionSlot>) -> Response<Full<Bytes>> {
        let _hold = connection.hold();
        let path = request.uri().path().to_owned();
        drop(request);
        if path.starts_with("/wait") {
            self.count.send_modify(|count| *count += 1);
            let _counted = Counted(self.count.clone());
            self.permits.acquire().await.unwrap().forget();
        }
        if path == "/large" {
            return Response::new(vec![b'x'; LARGE].into());
        }
        let status = if path.ends_with("409") { StatusCode::CONFLICT } else { StatusCode::OK };
        let mut response = Response::new(path.into());
        *response.status_mut() = status;
        response.headers_mut().insert("x-name", HeaderValue::from_static("a value"));
        response
    }
}

struct Fixture {
    service: Waiting,
    scope: Scope,
    address: SocketAddr,
}

impl Fixture {
    fn start(change: fn(&mut ListenerOptions)) -> Self {
        let service = Waiting { permits: Arc::new(Semaphore::new(0)), count: watch::channel(0).0 };
        let mut options = ListenerOptions { drain: LIMIT, ..ListenerOptions::DEFAULT };
        options.versions = HttpVersions::Http1And2 { streams_max: 8 };
        change(&mut options);
        let scope: Scope = Scope::root("test");
        let listeners = scope.child("http").on(Tokio::current());
        let connections = listeners.child("connections");
        let server = HttpServer { options, tls: Arc::new(|| None), service: service.clone() };
        let socket = bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = serve_sockets(&listeners, &connections, vec![socket], server).unwrap()[0];
        Self { service, scope, address }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Waits until so many requests wait.
    async fn waiting(&self, count: usize) {
        let mut counts = self.service.count.subscribe();
        tokio::time::timeout(LIMIT, counts.wait_for(|waiting| *waiting == count)).await.unwrap().unwrap();
    }

    fn answer(&self, requests: usize) {
        self.service.permits.add_permits(requests);
    }
}

fn get(path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: a\r\n{more}\r\n")
}

async fn send(stream: &mut TcpStream, requests: &[String]) {
    stream.write_all(requests.concat().as_bytes()).await.unwrap();
}

/// Reads a response: its head, and its body.
async fn response(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let read = async {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        let len = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; len.parse().unwrap()];
        stream.read_exact(&mut body).await.unwrap();
        (head, body)
    };
    tokio::time::timeout(LIMIT, read).await.unwrap()
}

async fn ended(stream: &mut TcpStream) {
    let end = tokio::time::timeout(LIMIT, stream.read(&mut [0])).await.unwrap();
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
}

#[tokio::test]
async fn request_that_waited_is_answered_like_others() {
    let fixture = Fixture::start(|_| {});
    let mut stream = fixture.connect().await;
    for (waiting, next) in [("/wait", "/next"), ("/wait-409", "/next-409"), ("/wait", "/next")] {
        send(&mut stream, &[get(waiting, "")]).await;
        fixture.waiting(1).await;
        fixture.answer(1);
        let (waited, body) = response(&mut stream).await;
        assert_eq!(body, waiting.as_bytes());
        send(&mut stream, &[get(next, "")]).await;
        let (immediate, body) = response(&mut stream).await;
        assert_eq!(body, next.as_bytes());
        // The paths have the same length, and dates may differ.
        let without_date = |head: String| match head.split_once("\r\ndate: ") {
            Some((head, date)) => format!("{head} {} {}", date.len(), date.ends_with(" GMT\r\n\r\n")),
            None => head,
        };
        assert_eq!(without_date(waited), without_date(immediate));
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let fixture = Fixture::start(|_| {});
    let mut stream = fixture.connect().await;
    let filler = format!("x: {}\r\n", "y".repeat(2000));
    send(&mut stream, &[get("/one", ""), get("/wait", ""), get("/two", &filler), get("/wait", ""), get("/three", "")])
        .await;
    for path in ["/one", "/wait", "/two", "/wait", "/three"] {
        if path == "/wait" {
            fixture.waiting(1).await;
            // Arrives while a request waits.
            send(&mut stream, &[get("/more", "")]).await;
            fixture.answer(1);
        }
        assert_eq!(response(&mut stream).await.1, path.as_bytes());
    }
    for _ in 0..2 {
        assert_eq!(response(&mut stream).await.1, b"/more");
    }
}

#[tokio::test]
async fn client_that_leaves_ends_its_request() {
    let fixture = Fixture::start(|_| {});
    let (mut one, mut other) = (fixture.connect().await, fixture.connect().await);
    for stream in [&mut one, &mut other] {
        send(stream, &[get("/wait", "")]).await;
    }
    fixture.waiting(2).await;
    drop(one);
    fixture.waiting(1).await;
    // As with a client that only closes its side.
    other.shutdown().await.unwrap();
    fixture.waiting(0).await;
    ended(&mut other).await;
    // Requests that follow hide no end.
    let mut pipelining = fixture.connect().await;
    send(&mut pipelining, &[get("/wait", ""), get("/next", "")]).await;
    fixture.waiting(1).await;
    send(&mut pipelining, &[get("/next", "")]).await;
    drop(pipelining);
    fixture.waiting(0).await;
}

/// The end of the connection is that of the request, which waits in hyper.
#[tokio::test]
async fn single_request_waits_and_ends_its_connection() {
    let fixture = Fixture::start(|_| {});
    for (request, status) in
        [(get("/wait", "connection: close\r\n"), "HTTP/1.1 200"), ("GET /wait HTTP/1.0\r\n\r\n".into(), "HTTP/1.0 200")]
    {
        let mut stream = fixture.connect().await;
        send(&mut stream, &[request]).await;
        fixture.waiting(1).await;
        fixture.answer(1);
        let (head, body) = response(&mut stream).await;
        assert!(head.starts_with(status) && body == b"/wait", "{head}");
        ended(&mut stream).await;
    }
}

#[tokio::test]
async fn waiting_request_is_the_last_after_a_stop() {
    let fixture = Fixture::start(|_| {});
    let (mut waits, mut idle) = (fixture.connect().await, fixture.connect().await);
    send(&mut idle, &[get("/one", "")]).await;
    assert_eq!(response(&mut idle).await.1, b"/one");
    send(&mut waits, &[get("/wait", "")]).await;
    fixture.waiting(1).await;
    let stop = fixture.scope.stop(tokio::time::sleep, LIMIT, LIMIT);
    let clients = async {
        ended(&mut idle).await;
        // The sweep that signals the connections one after the other is a task of this thread.
        for _ in 0..SWEEP_TURNS_MAX {
            tokio::task::yield_now().await;
        }
        fixture.answer(1);
        let (head, body) = response(&mut waits).await;
        assert!(head.contains("\r\nconnection: close\r\n") && body == b"/wait", "{head}");
        ended(&mut waits).await;
    };
    let (report, ()) = tokio::join!(stop, clients);
    assert_eq!(report.left, 0, "{report}");
}

/// The rest of an earlier response is written although the next request waits.
#[tokio::test]
async fn unread_response_is_not_lost_by_a_wait() {
    let fixture = Fixture::start(|_| {});
    let mut stream = fixture.connect().await;
    let post = "POST /large HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello".to_owned();
    send(&mut stream, &[post, get("/wait", ""), get("/large", ""), get("/wait", "")]).await;
    let answers = async {
        for _ in 0..2 {
            fixture.waiting(1).await;
            fixture.answer(1);
            fixture.waiting(0).await;
        }
    };
    let reads = async {
        for path in ["/large", "/wait", "/large", "/wait"] {
            let (_, body) = response(&mut stream).await;
            let is_whole = if path == "/large" { body.len() == LARGE } else { body == path.as_bytes() };
            assert!(is_whole, "{path}: {} bytes", body.len());
        }
    };
    tokio::join!(answers, reads);
}

#[tokio::test]
async fn head_has_a_limit_and_waits_have_none() {
    const HEAD_LIMIT: Duration = Duration::from_millis(200);
    let fixture = Fixture::start(|options| options.head_limit = HEAD_LIMIT);
    let (mut silent, mut partial, mut waits) =
        (fixture.connect().await, fixture.connect().await, fixture.connect().await);
    send(&mut partial, &["GET /one HTTP/1.1\r\n".to_owned()]).await;
    send(&mut waits, &[get("/wait", "")]).await;
    ended(&mut silent).await;
    ended(&mut partial).await;
    fixture.waiting(1).await;
    // The limits of two more connections pass.
    for _ in 0..2 {
        ended(&mut fixture.connect().await).await;
    }
    fixture.answer(1);
    assert_eq!(response(&mut waits).await.1, b"/wait");
    ended(&mut waits).await;
}
