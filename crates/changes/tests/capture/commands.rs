//! Commands of a connection, and options at the ends of their ranges.

use std::time::Duration;

use tidegate_changes::{
    ChangeOptions, ChangeStream, ChangeStreamError, ClientError, SnapshotOptions, SnapshotState, SnapshotStream,
    slots::{self, NewSlot},
};

use crate::fixture::{Fixture, builder, take};

/// The answer of the dropped query would otherwise be taken for that of the next one.
#[tokio::test(flavor = "multi_thread")]
async fn command_after_a_dropped_query_is_refused() {
    let fixture = Fixture::new(18);
    let mut connection = fixture.connection().await;
    // Polled once, which sends the query.
    let dropped = tokio::time::timeout(Duration::ZERO, connection.query("select 'first' from pg_sleep(1)"));
    assert!(dropped.await.is_err());
    let next = connection.query("select 'second'").await;
    assert!(matches!(next, Err(ClientError::Unanswered { .. })), "{next:?}");
    let table = connection.query_table("select 'third'", Duration::MAX).await;
    assert!(matches!(table, Err(ClientError::Unanswered { .. })), "{table:?}");

    let mut connection = fixture.connection().await;
    assert!(connection.query("select 1/0").await.is_err(), "an error is an answer");
    assert_eq!(connection.query("select 'second'").await.unwrap(), [[Some("second".to_owned())]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn options_may_be_the_largest_numbers() {
    let fixture = Fixture::with(builder(18).setting("wal_sender_timeout", "0"));
    let mut connection = fixture.connection().await;
    let new = NewSlot { wait_max: Duration::MAX, ..NewSlot::new("largest") };
    slots::create_slot(&mut connection, &new).await.unwrap();
    let options = ChangeOptions {
        slot: "largest".to_owned(),
        status_interval: Duration::MAX,
        watch_interval: Duration::MAX,
        heartbeat: Some(Duration::MAX),
        slot_busy_max: Duration::MAX,
        batches_max: usize::MAX,
        ..fixture.options()
    };
    let mut stream = ChangeStream::start(options);
    fixture.sql("insert into t values (1, 'one')");
    take(&mut stream, 1, true).await;
    stream.stop().await;
}

/// The copy would be complete without the table.
#[tokio::test(flavor = "multi_thread")]
async fn snapshot_of_an_unpublished_table_is_refused() {
    let fixture = Fixture::new(18);
    fixture.sql("create table other (id bigint primary key)");
    for table in ["t", "public.absent", "public.other"] {
        let tables = vec!["public.t".to_owned(), table.to_owned()];
        let options = SnapshotOptions { tables, ..SnapshotOptions::default() };
        let started = SnapshotStream::start(fixture.options(), options, SnapshotState::default()).await;
        let error = started.map(drop).unwrap_err();
        assert!(matches!(&error, ChangeStreamError::Refused(text) if text.contains(table)), "{error}");
    }
}
