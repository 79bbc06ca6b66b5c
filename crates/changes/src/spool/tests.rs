//! The spool between two streams of the test: no server.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use tidegate_wire::replication::{
    Lsn,
    pgoutput::{ColumnValue, ReplicaIdentity, encode},
};
use tokio::{sync::oneshot, task::JoinHandle};

use super::{SPOOL_BYTES_MIN, Spool, SpoolConfig, SpoolError, SpoolFull};
use crate::{
    change::{Change, ChangeId},
    error::ChangeStreamError,
    event::{ChangeEvent, PgTimestamp, TransactionBegin, TransactionCommit},
    position::SlotIdentity,
    relation::{Relation, RelationColumn, Relations, SchemaChange},
    stream::{ChangeStream, EventSender},
};

fn config(folder: &Path) -> SpoolConfig {
    SpoolConfig { folder: folder.to_path_buf(), bytes_max: SPOOL_BYTES_MIN, full: SpoolFull::Hold }
}

fn identity() -> SlotIdentity {
    SlotIdentity { system_id: 1, timeline: 1, database: "d".into(), slot: "s".into() }
}

fn table(columns: &[&str]) -> Relation {
    let column = |name: &&str| RelationColumn { name: (*name).into(), type_oid: 25, type_modifier: -1, is_key: true };
    Relation {
        oid: 7,
        schema: "public".into(),
        name: "t".into(),
        identity: ReplicaIdentity::Default,
        columns: columns.iter().map(column).collect(),
        version: 0,
    }
}

/// The server's side: it describes a table again on each connection.
#[derive(Default)]
struct Server {
    relations: Relations,
}

impl Server {
    fn schema(&mut self, columns: &[&str]) -> ChangeEvent {
        let change = self.relations.update(table(columns));
        ChangeEvent::Schema(change.expect("a new definition"))
    }

    /// A transaction of rows whose commit record is at `commit`; it ends 5 bytes later.
    fn transaction(&self, commit: u64, rows: &[&str]) -> Vec<ChangeEvent> {
        let commit_lsn = Lsn(commit);
        let columns = self.relations.get(7).expect("a table").columns.len();
        let begin = TransactionBegin { commit_lsn, commit_time: PgTimestamp(0), xid: 3, origin: None };
        let mut events = vec![ChangeEvent::Begin(begin)];
        for (seq, row) in (0..).zip(rows) {
            let values = vec![ColumnValue::Text(row.as_bytes()); columns];
            let mut frame = Vec::new();
            encode::insert(None, 7, &values, &mut frame);
            let change = Change::decode(ChangeId { commit_lsn, seq }, &Bytes::from(frame), &self.relations);
            events.push(ChangeEvent::Change(change.expect("a change")));
        }
        events.push(ChangeEvent::Commit(TransactionCommit {
            commit_lsn,
            end_lsn: Lsn(commit + 5),
            commit_time: PgTimestamp(0),
            xid: 3,
            changes: rows.len() as u64,
        }));
        events
    }
}

struct Running {
    server: EventSender,
    consumer: ChangeStream,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

fn start(config: SpoolConfig) -> Running {
    run(Spool::open(config).expect("a spool"))
}

fn run(mut spool: Spool) -> Running {
    spool.bind(&identity(), "p").expect("the same stream");
    let ((server, upstream), (sender, consumer)) = (ChangeStream::channel(4), ChangeStream::channel(4));
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(spool.run(upstream, sender, async { drop(stopped.await) }));
    Running { server, consumer, stop, task }
}

impl Running {
    async fn stop(self) {
        drop(self.stop);
        self.task.await.expect("no panic");
    }

    /// Reads up to the next commit. Returns the first column of each row, and the end.
    async fn take(&mut self) -> (Vec<String>, Lsn) {
        let mut rows = Vec::new();
        loop {
            match self.consumer.next().await.expect("no error").expect("an event") {
                ChangeEvent::Begin(_) => assert!(rows.is_empty(), "a transaction without its commit: {rows:?}"),
                ChangeEvent::Change(change) => {
                    let row = change.row().expect("a row");
                    let (_, value) = row.after().next().expect("a column");
                    rows.push(String::from_utf8(value.bytes().expect("a value").to_vec()).expect("UTF-8"));
                }
                ChangeEvent::Commit(commit) => return (rows, commit.end_lsn),
                _ => {}
            }
        }
    }
}

/// CH-04: the slot is confirmed when a transaction is durable, and not when the consumer has it.
#[tokio::test(flavor = "multi_thread")]
async fn transactions_are_confirmed_when_durable() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = start(config(folder.path()));
    let mut server = Server::default();
    let mut events = vec![server.schema(&["a"])];
    events.extend(server.transaction(100, &["x", "y"]));
    assert!(running.server.send(Ok(events)).await);
    running.server.acknowledgements().changed().await;
    assert_eq!(running.server.acknowledgements().acknowledged(), Lsn(105));
    assert_eq!(running.take().await, (vec!["x".to_owned(), "y".to_owned()], Lsn(105)));
    running.stop().await;
}

/// CH-14, CH-57: after a restart the consumer gets what it has not acknowledged; what the server repeats is dropped, and a
/// transaction without its commit comes again whole.
#[tokio::test(flavor = "multi_thread")]
async fn restart_repeats_only_what_is_not_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = start(config(folder.path()));
    let mut server = Server::default();
    let mut events = vec![server.schema(&["a"])];
    events.extend(server.transaction(100, &["1"]));
    events.extend(server.transaction(200, &["2"]));
    let mut cut = server.transaction(300, &["3", "4"]);
    cut.truncate(2);
    assert!(running.server.send(Ok(events)).await);
    assert_eq!(running.take().await.1, Lsn(105));
    running.consumer.acknowledge(Lsn(105));
    assert_eq!(running.take().await.1, Lsn(205));
    assert!(running.server.send(Ok(cut)).await);
    // The transaction is in the log when the consumer has its change.
    while !matches!(running.consumer.next().await, Ok(Some(ChangeEvent::Change(_)))) {}
    while running.server.acknowledgements().acknowledged() < Lsn(205) {
        running.server.acknowledgements().changed().await;
    }
    running.stop().await;

    let spool = Spool::open(config(folder.path())).unwrap();
    assert_eq!(spool.position().map(|position| position.lsn), Some(Lsn(205)));
    drop(spool);
    let mut running = start(config(folder.path()));
    let mut server = Server::default();
    let mut events = vec![server.schema(&["a"])];
    events.extend(server.transaction(200, &["2"]));
    events.extend(server.transaction(300, &["3", "4"]));
    assert!(running.server.send(Ok(events)).await);
    // The first part of the transaction at 300 is in the log twice now, and is delivered once.
    assert_eq!(running.take().await, (vec!["2".to_owned()], Lsn(205)));
    assert_eq!(running.take().await, (vec!["3".to_owned(), "4".to_owned()], Lsn(305)));
    running.stop().await;
}

/// CH-49: a row is decoded with the definition that it was written with, also after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn rows_keep_their_definition() {
    let folder = tempfile::tempdir().unwrap();
    let running = start(config(folder.path()));
    let mut server = Server::default();
    let mut events = vec![server.schema(&["a"])];
    events.extend(server.transaction(100, &["1"]));
    events.push(server.schema(&["a", "b"]));
    events.extend(server.transaction(200, &["2"]));
    assert!(running.server.send(Ok(events)).await);
    while running.server.acknowledgements().acknowledged() < Lsn(205) {
        running.server.acknowledgements().changed().await;
    }
    running.stop().await;
    let mut running = start(config(folder.path()));
    let mut found = Vec::new();
    while found.len() < 4 {
        match running.consumer.next().await.unwrap().unwrap() {
            ChangeEvent::Schema(SchemaChange { before, after }) => {
                found.push((before.map_or(0, |before| before.version), after.columns.len()));
            }
            ChangeEvent::Change(change) => found.push((99, change.row().unwrap().after().count())),
            _ => {}
        }
    }
    assert_eq!(found, [(0, 1), (99, 1), (1, 2), (99, 2)]);
    running.stop().await;
}

/// A value of several parts, and a value that does not fit.
#[tokio::test(flavor = "multi_thread")]
async fn large_values_fit_and_huge_ones_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = start(config(folder.path()));
    let mut server = Server::default();
    let large = "x".repeat(1_000_000);
    let mut events = vec![server.schema(&["a"])];
    events.extend(server.transaction(100, &[&large, "y"]));
    assert!(running.server.send(Ok(events)).await);
    let (rows, _) = running.take().await;
    assert_eq!((rows[0].len(), rows[1].as_str()), (large.len(), "y"));
    running.consumer.acknowledge(Lsn(105));
    let huge = "x".repeat(9_000_000);
    assert!(running.server.send(Ok(server.transaction(200, &[&huge]))).await);
    let error = loop {
        if let Err(error) = running.consumer.next().await {
            break error;
        }
    };
    assert!(matches!(error, ChangeStreamError::Spool(SpoolError::ChangeTooLarge { .. })), "{error}");
    running.task.await.unwrap();
}

/// Sends a transaction of 48 MB between two small ones, change by change.
fn send_huge_transaction(sender: EventSender, mut server: Server, first: u64) -> JoinHandle<EventSender> {
    let value: Arc<str> = "x".repeat(1_000_000).into();
    let schema = server.schema(&["a"]);
    tokio::spawn(async move {
        let mut events = vec![schema];
        if first <= 100 {
            events.extend(server.transaction(100, &["before"]));
        }
        for event in events.into_iter().chain(server.transaction(200, &[&*value; 48])) {
            assert!(sender.send(Ok(vec![event])).await);
        }
        // The send may wait: no more is taken before the consumer acknowledges.
        sender.send(Ok(server.transaction(300, &["after"]))).await;
        sender
    })
}

/// CH-53: the transaction has three times the bound, also while its consumer is slow and the policy is to stop.
#[tokio::test(flavor = "multi_thread")]
async fn transaction_larger_than_the_spool_passes() {
    for full in [SpoolFull::Hold, SpoolFull::Stop] {
        let folder = tempfile::tempdir().unwrap();
        let Running { server: sender, consumer, stop, task } = start(SpoolConfig { full, ..config(folder.path()) });
        let confirmed = sender.acknowledgements().clone();
        let sending = send_huge_transaction(sender, Server::default(), 100);
        let (spare, _) = ChangeStream::channel(1);
        let mut running = Running { server: spare, consumer, stop, task };
        assert_eq!(running.take().await, (vec!["before".to_owned()], Lsn(105)));
        running.consumer.acknowledge(Lsn(105));
        let (rows, end) = running.take().await;
        assert_eq!((rows.len(), end), (48, Lsn(205)));
        assert!(confirmed.acknowledged() <= Lsn(105), "only the slot has the transaction");
        running.consumer.acknowledge(Lsn(205));
        assert_eq!(running.take().await, (vec!["after".to_owned()], Lsn(305)));
        while confirmed.acknowledged() < Lsn(305) {
            confirmed.changed().await;
        }
        drop(sending.await.unwrap());
        running.stop().await;
    }
}

/// CH-57: the server sends it again, and the part that is in the log is not delivered.
#[tokio::test(flavor = "multi_thread")]
async fn passing_transaction_comes_again_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    for (attempt, taken) in [1, 30, 48].into_iter().enumerate() {
        let Running { server: sender, consumer, stop, task } = start(config(folder.path()));
        let sending = send_huge_transaction(sender, Server::default(), if attempt == 0 { 100 } else { 200 });
        let (spare, _) = ChangeStream::channel(1);
        let mut running = Running { server: spare, consumer, stop, task };
        if attempt == 0 {
            assert_eq!(running.take().await.1, Lsn(105));
            running.consumer.acknowledge(Lsn(105));
        }
        let mut changes = 0;
        while changes < taken {
            let event = running.consumer.next().await.unwrap().unwrap();
            changes += usize::from(matches!(event, ChangeEvent::Change(_)));
        }
        sending.abort();
        running.stop().await;
        let spool = Spool::open(config(folder.path())).unwrap();
        assert_eq!(spool.position().map(|position| position.lsn), Some(Lsn(105)), "after {taken} changes");
    }
    let Running { server: sender, consumer, stop, task } = start(config(folder.path()));
    let sending = send_huge_transaction(sender, Server::default(), 200);
    let (spare, _) = ChangeStream::channel(1);
    let mut running = Running { server: spare, consumer, stop, task };
    let (rows, end) = running.take().await;
    assert_eq!((rows.len(), end), (48, Lsn(205)));
    running.consumer.acknowledge(Lsn(205));
    assert_eq!(running.take().await, (vec!["after".to_owned()], Lsn(305)));
    drop(sending.await.unwrap());
    running.stop().await;
    let spool = Spool::open(config(folder.path())).unwrap();
    assert_eq!(spool.position().map(|position| position.lsn), Some(Lsn(305)));
}

/// An orderly stop of a full log loses its end, and leaves no gap in it.
#[tokio::test(flavor = "multi_thread")]
async fn full_log_is_readable_after_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let value = "x".repeat(600_000);
    for _ in 0..2 {
        let spool = Spool::open(config(folder.path())).unwrap();
        let mut is_full = spool.is_full.clone();
        let Running { server: sender, consumer, stop, task } = run(spool);
        let (mut server, value) = (Server::default(), value.clone());
        let sending = tokio::spawn(async move {
            assert!(sender.send(Ok(vec![server.schema(&["a"])])).await);
            for commit in 1..200 {
                let row = if commit % 2 == 0 { &value[..] } else { "small" };
                assert!(sender.send(Ok(server.transaction(commit * 100, &[row]))).await);
            }
        });
        assert!(*is_full.wait_for(|is_full| *is_full).await.unwrap());
        sending.abort();
        let (spare, _) = ChangeStream::channel(1);
        Running { server: spare, consumer, stop, task }.stop().await;
        let spool = Spool::open(config(folder.path())).unwrap();
        assert!(spool.position().is_some());
    }
}

/// The log wraps many times over while the consumer acknowledges: the bound holds, and nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_transactions_make_room() {
    let folder = tempfile::tempdir().unwrap();
    let Running { server: sender, mut consumer, stop, task } = start(config(folder.path()));
    let mut server = Server::default();
    let value: Arc<str> = "x".repeat(10_000).into();
    let first = server.schema(&["a"]);
    let sending = tokio::spawn(async move {
        assert!(sender.send(Ok(vec![first])).await);
        for number in 1..=400 {
            assert!(sender.send(Ok(server.transaction(number * 100, &[&*value; 20]))).await);
        }
        sender
    });
    let mut expected = 105;
    while expected <= 40_005 {
        if let ChangeEvent::Commit(commit) = consumer.next().await.unwrap().unwrap() {
            assert_eq!(commit.end_lsn, Lsn(expected));
            consumer.acknowledge(commit.end_lsn);
            expected += 100;
        }
    }
    drop(sending.await.unwrap());
    drop(stop);
    task.await.unwrap();
}

/// CH-11: a folder of another slot, database or publication is refused, and an older timeline.
#[test]
fn folder_of_another_stream_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Spool::open(config(folder.path())).unwrap();
    let identity = identity();
    open().bind(&SlotIdentity { timeline: 2, ..identity.clone() }, "p").unwrap();
    open().bind(&SlotIdentity { timeline: 3, ..identity.clone() }, "p").unwrap();
    for (other, publication) in [
        (SlotIdentity { timeline: 2, ..identity.clone() }, "p"),
        (SlotIdentity { timeline: 3, system_id: 2, ..identity.clone() }, "p"),
        (SlotIdentity { timeline: 3, slot: "o".into(), ..identity.clone() }, "p"),
        (SlotIdentity { timeline: 3, ..identity.clone() }, "q"),
    ] {
        let error = open().bind(&other, publication).unwrap_err();
        assert!(matches!(error, SpoolError::Foreign { .. }), "{error}");
    }
    let (first, second) = (open(), Spool::open(config(folder.path())));
    assert!(matches!(second, Err(SpoolError::Open(_))), "CH-24");
    drop(first);
}
