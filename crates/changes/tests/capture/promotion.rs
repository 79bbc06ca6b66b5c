//! Standbys: promotion with and without a failover slot, and reading from a standby.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::time::Duration;

use tidegate_changes::{
    ChangeOptions, ChangeStream, ChangeStreamError, ConnectOptions, ErrorClass, PgConnection, ReplicationMode,
    slots::{self, NewSlot},
};
use tidegate_sandbox::Cluster;

use crate::fixture::{builder, failure, lines, relay, take, versions, within};

/// A primary and a standby that streams from a slot, and synchronises failover slots.
struct Pair {
    cluster: Cluster,
}

impl Pair {
    fn new(major: u32) -> Self {
        let builder = builder(major).setting("hot_standby_feedback", "on").setting("fsync", "on");
        let builder = if major >= 17 { builder.setting("sync_replication_slots", "on") } else { builder };
        let pair = Self { cluster: Cluster::start(&builder, 1).unwrap() };
        pair.sql(0, "create table t (id bigint primary key, v text)");
        pair.sql(0, "create publication p for table t");
        pair.sql(0, "select pg_create_physical_replication_slot('standby')");
        pair.sql(1, "alter system set primary_slot_name = 'standby'");
        if major >= 17 {
            // The stream must not be ahead of the standby, not even by WAL without transactions.
            pair.sql(0, "alter system set synchronized_standby_slots = 'standby'");
            pair.sql(0, "select pg_reload_conf()");
        }
        pair.sql(1, "select pg_reload_conf()");
        pair
    }

    fn sql(&self, server: usize, sql: &str) -> Vec<Vec<Option<String>>> {
        self.cluster.server(server).simple_query(sql).unwrap()
    }

    async fn until(&self, server: usize, sql: &str) {
        within(sql, async {
            while self.sql(server, sql)[0][0].as_deref() != Some("t") {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    fn connect_options(&self, parameters: &str) -> ConnectOptions {
        let [first, second] = [0, 1].map(|index| self.cluster.server(index).port());
        let url = format!("postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/postgres{parameters}");
        ConnectOptions::from_url(&url).unwrap()
    }

    fn stream(&self) -> ChangeStream {
        let backoff = tidegate_backoff::Backoff::new(Duration::from_millis(20), Duration::from_millis(200));
        ChangeStream::start(ChangeOptions { backoff, ..ChangeOptions::new(self.connect_options(""), "s", "p") })
    }

    async fn create_slot(&self, failover: bool) {
        let options = self.connect_options("");
        let mut connection = PgConnection::connect(&options, ReplicationMode::Database).await.unwrap();
        slots::create_slot(&mut connection, &NewSlot { failover, ..NewSlot::new("s") }).await.unwrap();
    }

    /// Kills the primary, and promotes the standby.
    fn promote(&mut self) {
        self.cluster.server_mut(0).kill9().unwrap();
        self.cluster.promote(1).unwrap();
    }
}

/// The stream goes on at the promoted standby, without a loss or a repetition.
#[tokio::test(flavor = "multi_thread")]
async fn failover_slot_continues_after_a_promotion() {
    let mut pair = Pair::new(18);
    pair.create_slot(true).await;
    let mut stream = pair.stream();
    for id in 0..5 {
        pair.sql(0, &format!("insert into t values ({id}, 'before')"));
    }
    let before = take(&mut stream, 5, true).await;
    assert_eq!(lines(&before[4]), ["0 Insert [id=4 v=before] was []"]);
    // A synchronised slot can be used once it is no longer temporary.
    let ready = "select count(*) = 1 from pg_replication_slots where slot_name = 's' and synced and not temporary and \
                 invalidation_reason is null";
    pair.until(1, ready).await;
    pair.cluster.catch_up(1).unwrap();
    pair.promote();
    for id in 5..10 {
        pair.sql(1, &format!("insert into t values ({id}, 'after')"));
    }
    let after = take(&mut stream, 5, true).await;
    let found: Vec<String> = after.iter().flat_map(lines).collect();
    let expected: Vec<String> = (5..10).map(|id| format!("0 Insert [id={id} v=after] was []")).collect();
    assert_eq!(found, expected);
}

/// CH-67: a slot that was not synchronised is a gap, with the remedy: nothing is skipped silently.
#[tokio::test(flavor = "multi_thread")]
async fn slot_without_failover_is_a_gap_after_a_promotion() {
    for major in versions() {
        let mut pair = Pair::new(major);
        pair.create_slot(false).await;
        let mut stream = pair.stream();
        pair.sql(0, "insert into t values (1, 'before')");
        take(&mut stream, 1, true).await;
        pair.cluster.catch_up(1).unwrap();
        pair.promote();
        let error = failure(&mut stream).await;
        assert!(matches!(error, ChangeStreamError::Gap(_)), "{error}");
        assert!(error.to_string().contains("not synchronised before a failover"), "{error}");
    }
}

/// CH-68: the promoted standby lacks transactions that were delivered.
#[tokio::test(flavor = "multi_thread")]
async fn promoted_server_behind_the_stream_is_a_gap() {
    let mut pair = Pair::new(18);
    pair.create_slot(true).await;
    let mut stream = pair.stream();
    pair.sql(0, "insert into t values (1, 'on both')");
    take(&mut stream, 1, true).await;
    let ready = "select count(*) = 1 from pg_replication_slots where slot_name = 's' and synced and not temporary";
    pair.until(1, ready).await;
    pair.cluster.catch_up(1).unwrap();
    // The standby receives no more, and the stream does not wait for it: what follows is on the primary alone.
    pair.sql(0, "alter system reset synchronized_standby_slots");
    pair.sql(0, "select pg_reload_conf()");
    pair.sql(1, "alter system set primary_conninfo = ''");
    pair.sql(1, "select pg_reload_conf()");
    pair.until(0, "select count(*) = 0 from pg_stat_replication where application_name = 'walreceiver'").await;
    pair.sql(0, "insert into t select n, repeat('x', 100) from generate_series(2, 2000) n");
    take(&mut stream, 1, true).await;
    pair.promote();
    let error = failure(&mut stream).await;
    assert!(matches!(error, ChangeStreamError::Gap(_)), "{error}");
}

/// CH-69: a standby, or a former primary that follows, is not read in place of the primary.
#[tokio::test(flavor = "multi_thread")]
async fn stream_prefers_the_primary_among_hosts() {
    let pair = Pair::new(18);
    let [first, second] = [0, 1].map(|index| pair.cluster.server(index).port());
    let url = format!("postgres://postgres@127.0.0.1:{second},127.0.0.1:{first}/postgres");
    let options = ConnectOptions::from_url(&url).unwrap();
    let connection = PgConnection::connect(&options, ReplicationMode::Off).await.unwrap();
    assert!(!connection.is_standby(), "the standby is the first host");
    let options = ConnectOptions::from_url(&format!("{url}?target_session_attrs=standby")).unwrap();
    assert!(PgConnection::connect(&options, ReplicationMode::Off).await.unwrap().is_standby());
}

/// CH-27: a slot on an idle standby waits for the primary, and the error names the statement.
#[tokio::test(flavor = "multi_thread")]
async fn changes_are_read_from_a_standby() {
    let pair = Pair::new(18);
    let options = pair.connect_options("?target_session_attrs=standby");
    let mut connection = PgConnection::connect(&options, ReplicationMode::Database).await.unwrap();
    let new_slot = NewSlot { wait_max: Duration::from_millis(300), ..NewSlot::new("idle") };
    let error = slots::create_slot(&mut connection, &new_slot).await.unwrap_err();
    assert!(error.to_string().contains("pg_log_standby_snapshot()"), "{error}");

    let mut connection = PgConnection::connect(&options, ReplicationMode::Database).await.unwrap();
    let new_slot = NewSlot::new("s");
    let creation = slots::create_slot(&mut connection, &new_slot);
    let logging = async {
        loop {
            pair.sql(0, "select pg_log_standby_snapshot()");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within("a slot on the standby", async {
        tokio::select! {
            created = creation => drop(created.unwrap()),
            () = logging => {}
        }
    })
    .await;
    let mut stream = ChangeStream::start(ChangeOptions::new(options, "s", "p"));
    pair.sql(0, "insert into t values (1, 'from standby')");
    let found = take(&mut stream, 1, true).await;
    assert_eq!(lines(&found[0]), ["0 Insert [id=1 v=from standby] was []"]);
    pair.sql(0, "drop publication p");
    pair.sql(0, "insert into t values (2, 'x')");
    let error = failure(&mut stream).await;
    assert_ne!(error.class(), ErrorClass::Retry, "{error}");
}

/// A promotion between the questions about a server: it never looks like a primary of the timeline that it has left, because
/// positions of the new timeline would be stored with the old one, and a later start would report them as lost.
#[tokio::test(flavor = "multi_thread")]
async fn promotion_during_the_check_keeps_the_timeline() {
    let pair = Pair::new(18);
    pair.cluster.catch_up(1).unwrap();
    let standby = pair.cluster.server(1);
    let url = standby.url();
    let promote = async move {
        let options = ConnectOptions::from_url(&url).unwrap();
        let mut connection = PgConnection::connect(&options, ReplicationMode::Off).await.unwrap();
        connection.query("select pg_promote(true, 60)").await.unwrap();
    };
    let is_armed = Arc::new(AtomicBool::new(false));
    let (armed, mut queries) = (Arc::clone(&is_armed), 0);
    // Before the second question.
    let is_due = move |_: &[u8]| {
        queries += usize::from(armed.load(Ordering::Acquire));
        queries == 2
    };
    let options = relay(standby.port(), is_due, promote).await;
    let mut connection = PgConnection::connect(&options, ReplicationMode::Database).await.unwrap();
    is_armed.store(true, Ordering::Release);
    let first = slots::server_state(&mut connection).await.unwrap();
    assert!(first.in_recovery || first.timeline == 2, "{first:?}");
    let later = slots::server_state(&mut connection).await.unwrap();
    assert_eq!((later.in_recovery, later.timeline), (false, 2));
}
