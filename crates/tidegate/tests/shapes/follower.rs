//! A client that follows a shape and checks what it receives.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// Rows by key. Equal rows of a table without a primary key have the same one: further ones have a sign behind it.
pub(crate) type Rows = BTreeMap<String, BTreeMap<String, Option<String>>>;

/// An answer.
struct Reply {
    status: u16,
    handle: Option<String>,
    offset: Option<String>,
    is_up_to_date: bool,
    messages: Vec<Value>,
}

/// A shape as a client has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Materialised {
    pub(crate) rows: Rows,
    pub(crate) handle: String,
    pub(crate) offset: String,
    /// Number of answers with status 409.
    pub(crate) refetches: usize,
    /// Number of answers with status 503.
    pub(crate) refusals: usize,
}

pub(crate) struct Follower {
    client: Client<HttpConnector, Empty<bytes::Bytes>>,
    address: SocketAddr,
    /// The parameters that define the shape.
    pub(crate) shape: String,
    /// Whether the table has a primary key.
    has_key: bool,
    pub(crate) state: Materialised,
}

impl Follower {
    pub(crate) fn new(address: SocketAddr, shape: &str) -> Self {
        let state = Materialised { offset: "-1".to_owned(), ..Materialised::default() };
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { client, address, shape: shape.to_owned(), has_key: true, state }
    }

    /// A client of a table that may have no primary key.
    pub(crate) fn with_key(self, has_key: bool) -> Self {
        Self { has_key, ..self }
    }

    /// Follows the shape until the flag is set, and publishes each state at which it is up to date.
    pub(crate) async fn follow(mut self, stop: Arc<AtomicBool>, published: Arc<Mutex<Materialised>>) {
        let mut is_live = false;
        while !stop.load(Ordering::Relaxed) {
            // The server may be killed at any time.
            let Some(reply) = self.request(is_live).await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            is_live = self.apply(&reply);
            if is_live {
                published.lock().unwrap().clone_from(&self.state);
            }
        }
    }

    /// Loads the shape from its start.
    pub(crate) async fn load(mut self) -> Materialised {
        loop {
            if let Some(reply) = self.request(false).await
                && self.apply(&reply)
            {
                return self.state;
            }
        }
    }

    async fn request(&mut self, is_live: bool) -> Option<Reply> {
        let Materialised { handle, offset, .. } = &self.state;
        let mut url = format!("http://{}/v1/shape?{}&offset={offset}", self.address, self.shape);
        if offset != "-1" {
            url += &format!("&handle={handle}");
        }
        if is_live {
            url += "&live=true";
        }
        let (head, body) = self.client.get(url.parse().unwrap()).await.ok()?.into_parts();
        let body = body.collect().await.ok()?.to_bytes();
        let status = head.status.as_u16();
        if status == 503 {
            self.state.refusals += 1;
            return None;
        }
        assert!(status == 200 || status == 409, "{url}: {status} {}", String::from_utf8_lossy(&body));
        let header = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        Some(Reply {
            status,
            handle: header("electric-handle"),
            offset: header("electric-offset"),
            is_up_to_date: head.headers.contains_key("electric-up-to-date"),
            messages: serde_json::from_slice(&body).unwrap(),
        })
    }

    /// Returns whether the state is up to date.
    fn apply(&mut self, reply: &Reply) -> bool {
        let state = &mut self.state;
        if reply.status == 409 {
            let (refetches, refusals) = (state.refetches + 1, state.refusals);
            *state = Materialised { offset: "-1".to_owned(), refetches, refusals, ..Materialised::default() };
            return false;
        }
        state.handle.clone_from(reply.handle.as_ref().unwrap());
        state.offset.clone_from(reply.offset.as_ref().unwrap());
        let mut before = None;
        for message in reply.messages.iter().filter(|message| message.get("key").is_some()) {
            let headers = &message["headers"];
            if let (Some(lsn), Some(op)) = (headers["lsn"].as_str(), headers["op_position"].as_u64()) {
                let at = (lsn.parse::<u64>().unwrap(), op);
                assert!(before.is_none_or(|before| before < at), "offsets rise: {message}");
                before = Some(at);
            }
            apply_change(&mut state.rows, message, self.has_key);
        }
        reply.is_up_to_date
    }
}

/// A change that does not fit the rows is a lost or repeated one.
fn apply_change(rows: &mut Rows, message: &Value, has_key: bool) {
    let key = message["key"].as_str().unwrap().to_owned();
    let value = message["value"].as_object().unwrap().iter();
    let value = value.map(|(name, value)| (name.clone(), value.as_str().map(str::to_owned)));
    let count = (0..).take_while(|count| rows.contains_key(&copy(&key, *count))).count();
    match message["headers"]["operation"].as_str().unwrap() {
        "insert" => {
            assert!(count == 0 || !has_key, "insert of a row that is there: {message}");
            rows.insert(copy(&key, count), value.collect());
        }
        "update" => rows.get_mut(&key).unwrap_or_else(|| panic!("update of a missing row: {message}")).extend(value),
        "delete" => {
            assert!(count > 0, "delete of a missing row: {message}");
            rows.remove(&copy(&key, count - 1));
        }
        other => panic!("unknown operation {other}"),
    }
}

/// The key of a further row with the same key.
fn copy(key: &str, number: usize) -> String {
    key.to_owned() + &"+".repeat(number)
}
