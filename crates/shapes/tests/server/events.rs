//! Server-sent events.

use std::time::Duration;

use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fixture::{Fixture, LIMIT};

/// A stream of events, read raw.
struct Events {
    socket: TcpStream,
    text: String,
}

impl Events {
    async fn open(fixture: &Fixture, query: &str) -> Self {
        let address = fixture.base.strip_prefix("http://").unwrap();
        let mut socket = TcpStream::connect(address).await.unwrap();
        let request = format!("GET /v1/shape?{query}&live=true&live_sse=true HTTP/1.1\r\nhost: x\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut events = Self { socket, text: String::new() };
        events.until(|text| text.contains("\r\n\r\n")).await;
        events
    }

    /// Reads until the text satisfies a condition, or the stream ends.
    async fn until(&mut self, condition: impl Fn(&str) -> bool) {
        let read = async {
            let mut buffer = [0; 4096];
            while !condition(&self.text) {
                match self.socket.read(&mut buffer).await.unwrap() {
                    0 => break,
                    len => self.text.push_str(std::str::from_utf8(&buffer[..len]).unwrap()),
                }
            }
        };
        tokio::time::timeout(LIMIT, read).await.unwrap_or_else(|_| panic!("{}", self.text));
    }

    fn messages(&self) -> Vec<Value> {
        let lines = self.text.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// SH-42: whatever a client resumes from, no operation comes twice.
#[tokio::test(flavor = "multi_thread")]
async fn events_are_resumed_without_repetition() {
    let fixture = Fixture::start().await.ready().await;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY, name text)").await;
    let reader = fixture.load("table=items").await;
    let query = |offset: &str| format!("table=items&handle={}&offset={offset}", reader.handle);
    let mut events = Events::open(&fixture, &query(&reader.offset)).await;
    let head = events.text.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200") && head.contains("content-type: text/event-stream"), "{head}");
    assert!(head.contains("cache-control: public, max-age=59") && head.contains("electric-cursor: "), "{head}");
    assert!(head.contains(&format!("electric-offset: {}", reader.offset)), "{head}");
    fixture.sql("INSERT INTO items SELECT n, 'x' FROM generate_series(1, 3) n").await;
    events.until(|text| text.contains("\"up-to-date\"")).await;
    let messages = events.messages();
    assert_eq!(messages.len(), 4);
    let seen = messages[3]["headers"]["global_last_seen_lsn"].as_str().unwrap().to_owned();
    drop(events);
    let mut resumed = Events::open(&fixture, &query(&format!("{seen}_0"))).await;
    fixture.sql("INSERT INTO items VALUES (4, 'y')").await;
    resumed.until(|text| text.contains("\"up-to-date\"")).await;
    let messages = resumed.messages();
    let rows = messages.iter().filter_map(|message| message.get("value"));
    let ids: Vec<Value> = rows.map(|row| row["id"].clone()).collect();
    assert_eq!(ids, ["4"]);
    let polled = fixture.get(&query(&format!("{seen}_0"))).await;
    assert_eq!(polled.changes().len(), 1);
}

/// The stream ends with its shape; the next request gets status 409.
#[tokio::test(flavor = "multi_thread")]
async fn events_end_with_their_shape() {
    let fixture = Fixture::start().await.ready().await;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY)").await;
    let reader = fixture.load("table=items").await;
    let mut events = Events::open(&fixture, &format!("table=items&handle={}&offset=0_inf", reader.handle)).await;
    fixture.sql("TRUNCATE items").await;
    events.until(|text| text.ends_with("0\r\n\r\n")).await;
    let next = fixture.get(&format!("table=items&handle={}&offset=0_inf", reader.handle)).await;
    assert_eq!(next.status, 409);
}

/// HTTP/2 without TLS, which proxies use.
#[tokio::test(flavor = "multi_thread")]
async fn one_connection_of_http2_has_many_requests() {
    let fixture = Fixture::start().await.ready().await;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY)").await;
    let reader = fixture.load("table=items").await;
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .http2_only(true)
        .build_http::<http_body_util::Empty<bytes::Bytes>>();
    let url = format!("{}/v1/shape?table=items&handle={}&offset=0_inf&live=true", fixture.base, reader.handle);
    let polls = (0..200).map(|_| client.get(url.parse().unwrap()));
    let polls = futures_util::future::try_join_all(polls);
    let (answers, ()) = tokio::join!(tokio::time::timeout(LIMIT, polls), async {
        tokio::time::timeout(Duration::from_secs(5), fixture.sql("INSERT INTO items VALUES (1)")).await.unwrap();
    });
    let mut bodies = std::collections::BTreeSet::new();
    for answer in answers.unwrap().unwrap() {
        assert_eq!((answer.status().as_u16(), answer.version()), (200, http::Version::HTTP_2));
        bodies.insert(answer.into_body().collect().await.unwrap().to_bytes());
    }
    assert_eq!(bodies.len(), 1, "all waiters get one answer");
}
