//! A Postgres, a server of shapes in this process, and a client of HTTP.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tidegate_sandbox::{Major, Postgres};
use tidegate_shapes::{DatabaseLogin, ServerStatus, ShapeServer, ShapesOptions};
use tidegate_supervise::Scope;

/// Limit of anything that a test waits for.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A server of shapes and its database.
pub(crate) struct Fixture {
    pub(crate) postgres: Arc<Postgres>,
    pub(crate) server: Arc<ShapeServer>,
    scope: Scope,
    pub(crate) base: String,
    http: Client<HttpConnector, Full<Bytes>>,
    storage: PathBuf,
    change: fn(&mut ShapesOptions),
    _folder: Option<tempfile::TempDir>,
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn handle(&self) -> &str {
        self.header("electric-handle").expect("the answer has a handle")
    }

    pub(crate) fn offset(&self) -> &str {
        self.header("electric-offset").expect("the answer has an offset")
    }

    pub(crate) fn is_up_to_date(&self) -> bool {
        self.headers.contains_key("electric-up-to-date")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The messages that are not control messages.
    pub(crate) fn changes(&self) -> Vec<Value> {
        let messages = self.json().as_array().cloned().unwrap_or_default();
        messages.into_iter().filter(|message| message.get("key").is_some()).collect()
    }
}

pub(crate) fn postgres(major: u8) -> Arc<Postgres> {
    let builder =
        Postgres::builder().version(Major(major)).setting("wal_level", "logical").setting("wal_sender_timeout", "5s");
    Arc::new(builder.setting("max_connections", "100").start().expect("a Postgres starts"))
}

impl Fixture {
    pub(crate) async fn start() -> Self {
        Self::with(18, |_| {}).await
    }

    pub(crate) async fn with(major: u8, change: fn(&mut ShapesOptions)) -> Self {
        let postgres = tokio::task::spawn_blocking(move || postgres(major)).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut fixture = Self::on(postgres, folder.path().to_owned(), change).await;
        fixture._folder = Some(folder);
        fixture
    }

    /// A server with logs of its own or of an earlier one.
    pub(crate) async fn on(postgres: Arc<Postgres>, storage: PathBuf, change: fn(&mut ShapesOptions)) -> Self {
        let login = DatabaseLogin::from_url(&postgres.url()).unwrap();
        Self::with_login(postgres, storage, change, login).await
    }

    /// A server whose queries use another login.
    pub(crate) async fn with_login(
        postgres: Arc<Postgres>,
        storage: PathBuf,
        change: fn(&mut ShapesOptions),
        login: DatabaseLogin,
    ) -> Self {
        let mut options = ShapesOptions::new(storage.clone());
        options.long_poll = Duration::from_secs(20);
        options.catalogue_interval = Duration::from_millis(200);
        change(&mut options);
        let scope: Scope = Scope::root("test");
        let feed = Arc::new(tidegate_shapes::SlotFeed::from_url(&postgres.url()).unwrap());
        let server = tidegate_shapes::start(options, login, feed, &scope).unwrap();
        let socket = tidegate_shapes::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = tidegate_shapes::serve(&server, vec![socket], Arc::new(|| None), &scope).unwrap()[0];
        let http = Client::builder(TokioExecutor::new()).build_http();
        let base = format!("http://{address}");
        Self { postgres, server, scope, base, http, storage, change, _folder: None }
    }

    pub(crate) async fn ready(self) -> Self {
        self.server.ready(LIMIT).await.expect("the server follows the database");
        assert_eq!(self.server.status(), ServerStatus::Active);
        self
    }

    /// Ends all tasks and starts again on the same folder.
    pub(crate) async fn restart(self) -> Self {
        self.restart_after("SELECT").await
    }

    /// [`Self::restart`], with SQL while no server runs.
    pub(crate) async fn restart_after(self, sql: &str) -> Self {
        let Self { postgres, server, scope, storage, change, _folder, http, .. } = self;
        drop(http);
        let report = scope.stop(tokio::time::sleep, Duration::from_secs(10), Duration::from_secs(1)).await;
        assert!(report.left == 0, "{report}");
        drop(server);
        // The writer of the logs ends after its queue.
        let lock = storage.join("lock");
        tokio::task::spawn_blocking(move || std::fs::File::open(lock).unwrap().lock().unwrap()).await.unwrap();
        let (database, sql) = (Arc::clone(&postgres), sql.to_owned());
        tokio::task::spawn_blocking(move || database.simple_query(&sql).unwrap()).await.unwrap();
        let mut fixture = Self::on(postgres, storage, change).await;
        fixture._folder = _folder;
        fixture.ready().await
    }

    /// Runs SQL as the superuser.
    pub(crate) async fn sql(&self, sql: impl Into<String>) -> Vec<Vec<Option<String>>> {
        let (postgres, sql) = (Arc::clone(&self.postgres), sql.into());
        tokio::task::spawn_blocking(move || {
            postgres.simple_query(&sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
        })
        .await
        .unwrap()
    }

    /// Runs SQL in another database.
    pub(crate) async fn sql_in(&self, database: &str, sql: &str) {
        let url = self.postgres.url_for("postgres", database);
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        drop(client);
        connection.await.unwrap().unwrap();
    }

    /// Ends all tasks.
    pub(crate) async fn stop(self) {
        let report = self.scope.stop(tokio::time::sleep, Duration::from_secs(10), Duration::from_secs(1)).await;
        assert!(report.left == 0, "{report}");
    }

    pub(crate) async fn request(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
        let answered = async {
            let (head, body) = self.http.request(request).await.unwrap().into_parts();
            Reply { status: head.status, headers: head.headers, body: body.collect().await.unwrap().to_bytes() }
        };
        tokio::time::timeout(LIMIT, answered).await.unwrap_or_else(|_| panic!("no answer to {path}"))
    }

    pub(crate) async fn get(&self, query: &str) -> Reply {
        self.request(Method::GET, &format!("/v1/shape?{query}"), &[], "").await
    }

    /// Reads a shape up to its end.
    pub(crate) async fn load(&self, shape: &str) -> ShapeReader {
        let mut reader = ShapeReader::new(shape);
        reader.catch_up(self).await;
        reader
    }
}

/// A client that applies messages, as Electric's client does, and checks what it is sent.
#[derive(Clone, Debug)]
pub(crate) struct ShapeReader {
    shape: String,
    pub(crate) handle: String,
    pub(crate) offset: String,
    pub(crate) rows: BTreeMap<String, BTreeMap<String, Option<String>>>,
    pub(crate) refetches: usize,
    cursor: Option<String>,
}

impl ShapeReader {
    pub(crate) fn new(shape: &str) -> Self {
        Self {
            shape: shape.to_owned(),
            handle: String::new(),
            offset: "-1".to_owned(),
            rows: BTreeMap::new(),
            refetches: 0,
            cursor: None,
        }
    }

    pub(crate) fn query(&self, live: bool) -> String {
        let mut query = format!("{}&offset={}", self.shape, self.offset);
        if self.offset != "-1" {
            query += &format!("&handle={}", self.handle);
        }
        if live {
            query += "&live=true";
            if let Some(cursor) = &self.cursor {
                query += &format!("&cursor={cursor}");
            }
        }
        query
    }

    /// Reads until the answer is up to date.
    pub(crate) async fn catch_up(&mut self, fixture: &Fixture) {
        loop {
            let reply = fixture.get(&self.query(false)).await;
            self.apply(&reply);
            if reply.is_up_to_date() {
                return;
            }
        }
    }

    /// Sends a live request.
    pub(crate) async fn poll(&mut self, fixture: &Fixture) -> Reply {
        let reply = fixture.get(&self.query(true)).await;
        self.cursor = reply.header("electric-cursor").map(str::to_owned);
        self.apply(&reply);
        reply
    }

    pub(crate) fn apply(&mut self, reply: &Reply) {
        if reply.status == StatusCode::CONFLICT {
            *self = Self { refetches: self.refetches + 1, ..Self::new(&self.shape) };
            return;
        }
        assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
        self.handle = reply.handle().to_owned();
        self.offset = reply.offset().to_owned();
        for message in reply.changes() {
            self.apply_change(&message);
        }
    }

    fn apply_change(&mut self, message: &Value) {
        let key = message["key"].as_str().unwrap().to_owned();
        let value = message["value"].as_object().unwrap();
        let value = value.iter().map(|(name, value)| (name.clone(), value.as_str().map(str::to_owned)));
        match message["headers"]["operation"].as_str().unwrap() {
            "insert" => {
                let before = self.rows.insert(key.clone(), value.collect());
                assert!(before.is_none(), "insert of a row that is there: {message}");
            }
            "update" => {
                let row = self.rows.get_mut(&key).unwrap_or_else(|| panic!("update of a missing row: {message}"));
                row.extend(value);
            }
            "delete" => drop(self.rows.remove(&key).unwrap_or_else(|| panic!("delete of a missing row: {message}"))),
            other => panic!("unknown operation {other}"),
        }
    }

    /// The values of a column, sorted.
    pub(crate) fn column(&self, name: &str) -> Vec<String> {
        let mut values: Vec<String> =
            self.rows.values().map(|row| row[name].clone().unwrap_or_else(|| "NULL".to_owned())).collect();
        values.sort();
        values
    }
}
