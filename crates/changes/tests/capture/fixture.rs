//! A server with a publication and a slot, and a stream whose transactions are collected.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use tidegate_changes::{
    ChangeEvent, ChangeOptions, ChangeStream, ChangeStreamError, ConnectOptions, PgConnection, ReplicationMode,
    Transaction, TransactionCollector,
    slots::{self, NewSlot},
};
use tidegate_sandbox::{Major, Postgres, PostgresBuilder};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Mutex,
};

/// The oldest and the newest supported version, or those of `TIDEGATE_POSTGRES_VERSIONS`, such as `16,17`.
pub(crate) fn versions() -> Vec<u32> {
    let listed = std::env::var("TIDEGATE_POSTGRES_VERSIONS").ok();
    listed.map_or(vec![14, 18], |listed| listed.split(',').map(|version| version.trim().parse().unwrap()).collect())
}

/// Limit of a wait for an event; a test that reaches the limit fails.
const DEADLINE: Duration = Duration::from_secs(100);

pub(crate) async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, work).await.unwrap_or_else(|_| panic!("deadline: {what}"))
}

pub(crate) fn builder(major: u32) -> PostgresBuilder {
    Postgres::builder()
        .version(Major(u8::try_from(major).unwrap()))
        .setting("wal_level", "logical")
        .setting("max_wal_senders", "10")
}

pub(crate) struct Fixture {
    pub(crate) postgres: Postgres,
}

impl Fixture {
    /// A server with the table `t`, the publication `p` for it, and the slot `s`.
    pub(crate) fn new(major: u32) -> Self {
        Self::with(builder(major))
    }

    pub(crate) fn with(builder: PostgresBuilder) -> Self {
        let fixture = Self { postgres: builder.start().unwrap() };
        fixture.sql("create table t (id bigint primary key, v text)");
        fixture.sql("create publication p for table t");
        fixture.sql("select pg_create_logical_replication_slot('s', 'pgoutput')");
        fixture
    }

    pub(crate) fn sql(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.postgres.simple_query(sql).unwrap()
    }

    pub(crate) fn one(&self, sql: &str) -> String {
        self.sql(sql)[0][0].clone().unwrap_or_default()
    }

    pub(crate) fn connect_options(&self) -> ConnectOptions {
        ConnectOptions::from_url(&self.postgres.url()).unwrap()
    }

    pub(crate) fn options(&self) -> ChangeOptions {
        ChangeOptions::new(self.connect_options(), "s", "p")
    }

    pub(crate) async fn connection(&self) -> PgConnection {
        PgConnection::connect(&self.connect_options(), ReplicationMode::Database).await.unwrap()
    }

    pub(crate) async fn create_slot(&self, name: &str) {
        let mut connection = self.connection().await;
        slots::create_slot(&mut connection, &NewSlot::new(name)).await.unwrap();
    }

    /// Waits until the query returns true.
    pub(crate) async fn until(&self, sql: &str) {
        within(sql, async {
            while self.one(sql) != "t" {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
}

/// Receives `count` transactions, and acknowledges each if `acknowledge` is set.
pub(crate) async fn take(stream: &mut ChangeStream, count: usize, acknowledge: bool) -> Vec<Transaction> {
    let mut collector = TransactionCollector::default();
    let mut found = Vec::new();
    while found.len() < count {
        let event = within("a transaction", stream.next()).await.unwrap().expect("the stream goes on");
        let end = if let ChangeEvent::Commit(commit) = &event { Some(commit.end_lsn) } else { None };
        found.extend(collector.push(event));
        if let Some(end) = end.filter(|_| acknowledge) {
            stream.acknowledge(end);
        }
    }
    found
}

/// Receives until the error that ends the stream.
pub(crate) async fn failure(stream: &mut ChangeStream) -> ChangeStreamError {
    within("an error", async {
        loop {
            match stream.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without an error"),
                Err(error) => return error,
            }
        }
    })
    .await
}

/// A line per change: number, operation, and the first column.
pub(crate) fn lines(transaction: &Transaction) -> Vec<String> {
    use tidegate_changes::ChangeKind;
    let line = |change: &tidegate_changes::Change| match &change.kind {
        ChangeKind::Row(row) => {
            let text = |value: tidegate_changes::ColumnValue<'_>| match value {
                tidegate_changes::ColumnValue::Null => "NULL".to_owned(),
                tidegate_changes::ColumnValue::Unchanged => "unchanged".to_owned(),
                other => String::from_utf8_lossy(other.bytes().unwrap_or_default()).chars().take(20).collect(),
            };
            let after: Vec<_> = row.after().map(|(column, value)| format!("{}={}", column.name, text(value))).collect();
            let before: Vec<_> =
                row.before().map(|(column, value)| format!("{}={}", column.name, text(value))).collect();
            format!("{} {:?} [{}] was [{}]", change.id.seq, row.operation(), after.join(" "), before.join(" "))
        }
        ChangeKind::Truncate(truncate) => format!("{} Truncate {}", change.id.seq, truncate.relations[0].name),
        ChangeKind::Message(message) => {
            format!("{} Message {}", change.id.seq, String::from_utf8_lossy(&message.content))
        }
    };
    transaction.changes.iter().map(line).collect()
}

/// Relays connections to a server, and runs `hook` once, before the first bytes of a client are forwarded that are due. Returns
/// where to connect.
pub(crate) async fn relay(
    port: u16,
    is_due: impl FnMut(&[u8]) -> bool + Send + 'static,
    hook: impl Future<Output = ()> + Send + 'static,
) -> ConnectOptions {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://postgres@{}/postgres?sslmode=disable", listener.local_addr().unwrap());
    let hook: RelayHook = Arc::new(Mutex::new(Some((Box::new(is_due), Box::pin(hook)))));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(relay_one(client, port, Arc::clone(&hook)));
        }
    });
    ConnectOptions::from_url(&url).unwrap()
}

type IsDue = Box<dyn FnMut(&[u8]) -> bool + Send>;
type BoxedHook = Pin<Box<dyn Future<Output = ()> + Send>>;
/// `None` once the hook has run.
type RelayHook = Arc<Mutex<Option<(IsDue, BoxedHook)>>>;

async fn relay_one(mut client: TcpStream, port: u16, hook: RelayHook) {
    let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (mut sent, mut received) = (vec![0; 8192], vec![0; 8192]);
    loop {
        tokio::select! {
            read = client.read(&mut sent) => {
                let Ok(bytes @ 1..) = read else { return };
                let mut hook = hook.lock().await;
                if hook.as_mut().is_some_and(|(is_due, _)| is_due(&sent[..bytes]))
                    && let Some((_, hook)) = hook.take()
                {
                    hook.await;
                }
                if server.write_all(&sent[..bytes]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut received) => {
                let Ok(bytes @ 1..) = read else { return };
                if client.write_all(&received[..bytes]).await.is_err() {
                    return;
                }
            }
        }
    }
}
