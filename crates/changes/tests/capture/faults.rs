//! Lost connections, crashes, slots and publications that are gone.

use std::{collections::HashSet, time::Duration};

use tidegate_changes::{ChangeEvent, ChangeOptions, ChangeStream, ErrorClass, IdleAck, StreamPosition};

use tidegate_sandbox::ShutdownMode;

use crate::fixture::{Fixture, builder, failure, take, versions, within};

fn quick(options: ChangeOptions) -> ChangeOptions {
    let backoff = tidegate_backoff::Backoff::new(Duration::from_millis(20), Duration::from_millis(200));
    ChangeOptions { backoff, ..options }
}

const TERMINATE: &str = "select pg_terminate_backend(active_pid) from pg_replication_slots where active";

/// Connections that break within transactions: every change arrives once, in order.
#[tokio::test(flavor = "multi_thread")]
async fn lost_connections_neither_lose_nor_repeat_changes() {
    for major in versions() {
        let fixture = Fixture::new(major);
        for start in 0..20 {
            let from = start * 1000;
            fixture.sql(&format!("insert into t select n, 'x' from generate_series({from}, {from} + 999) n"));
        }
        let mut stream = ChangeStream::start(ChangeOptions { batches_max: 1, ..quick(fixture.options()) });
        let (mut last, mut seen) = (None, 0);
        while seen < 20_000 {
            let event = within("a change", stream.next()).await.unwrap().unwrap();
            match event {
                ChangeEvent::Change(change) => {
                    assert!(Some(change.id) > last, "{} after {last:?}", change.id);
                    last = Some(change.id);
                    seen += 1;
                    if seen % 3_300 == 0 {
                        fixture.sql(TERMINATE);
                    }
                }
                ChangeEvent::Commit(commit) => stream.acknowledge(commit.end_lsn),
                _ => {}
            }
        }
        assert!(stream.status().reconnects_total > 0);
    }
}

/// CH-14, CH-21: the server is killed; its slot may go back.
#[tokio::test(flavor = "multi_thread")]
async fn server_crash_loses_and_repeats_nothing() {
    for major in versions() {
        let mut fixture = Fixture::with(builder(major).setting("fsync", "on"));
        let mut stream = ChangeStream::start(quick(fixture.options()));
        let mut ids = HashSet::new();
        for round in 0..3 {
            fixture.sql(&format!("insert into t values ({round}), ({round} + 100)"));
            let found = take(&mut stream, 1, true).await;
            assert!(found[0].changes.iter().all(|change| ids.insert(change.id)), "a change came twice");
            fixture.postgres.kill9().unwrap();
            fixture.postgres.restart().unwrap();
        }
        assert_eq!(ids.len(), 6);
    }
}

/// CH-17: a walsender waits at a shutdown until its client has confirmed all WAL; the stream goes on with the next server.
#[tokio::test(flavor = "multi_thread")]
async fn clean_shutdown_is_not_held_up() {
    for major in versions() {
        let mut fixture = Fixture::with(builder(major).setting("wal_sender_timeout", "0"));
        let mut stream = ChangeStream::start(quick(fixture.options()));
        fixture.sql("insert into t values (1)");
        take(&mut stream, 1, true).await;
        fixture.postgres.begin_shutdown(ShutdownMode::Fast);
        fixture.postgres.wait_for_shutdown().unwrap();
        fixture.postgres.restart().unwrap();
        fixture.sql("insert into t values (2)");
        assert_eq!(take(&mut stream, 1, true).await[0].changes.len(), 1);
    }
}

/// CH-20: the consumer takes nothing for longer than the server waits for a reply.
#[tokio::test(flavor = "multi_thread")]
async fn slow_consumer_keeps_the_connection() {
    for major in versions() {
        let fixture = Fixture::with(builder(major).setting("wal_sender_timeout", "1s"));
        fixture.sql("insert into t select n, repeat('x', 1000) from generate_series(1, 30000) n");
        let mut stream = ChangeStream::start(ChangeOptions { batches_max: 1, ..quick(fixture.options()) });
        let pid = within("a walsender", async {
            loop {
                let rows = fixture.sql("select active_pid from pg_replication_slots where active");
                if let Some(pid) = rows.first().and_then(|row| row[0].clone()) {
                    return pid;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
        fixture
            .until(&format!(
                "select coalesce((select reply_time - backend_start > interval '3s' \
                 from pg_stat_replication where pid = {pid}), false)"
            ))
            .await;
        assert_eq!(take(&mut stream, 1, true).await[0].changes.len(), 30_000);
        assert_eq!(stream.status().reconnects_total, 0);
    }
}

/// CH-30: a publication that did not exist when the changes were written.
#[tokio::test(flavor = "multi_thread")]
async fn missing_publication_ends_the_stream() {
    for major in versions() {
        let class = if major >= 18 { ErrorClass::Gap } else { ErrorClass::Stop };
        let fixture = Fixture::new(major);
        fixture.sql("insert into t values (1)");
        let options = ChangeOptions { publications: vec!["late".to_owned()], ..fixture.options() };
        fixture.sql("create publication late for table t");
        let error = failure(&mut ChangeStream::start(options)).await;
        assert_eq!(error.class(), class, "{error}");
        assert!(error.to_string().contains("publication"), "{error}");
    }
}

/// CH-37: the publication is dropped and made again between two transactions.
#[tokio::test(flavor = "multi_thread")]
async fn publication_made_again_ends_the_stream() {
    for major in versions() {
        let fixture = Fixture::new(major);
        let mut stream = ChangeStream::start(fixture.options());
        fixture.sql("insert into t values (1)");
        take(&mut stream, 1, true).await;
        fixture.sql("drop publication p");
        fixture.sql("insert into t values (2)");
        fixture.sql("create publication p for table t");
        let error = failure(&mut stream).await;
        assert_ne!(error.class(), ErrorClass::Retry, "{error}");
    }
}

/// CH-10, CH-67, CH-71: a slot that is gone, or was made again, is a gap and not a new start.
#[tokio::test(flavor = "multi_thread")]
async fn lost_slot_is_a_gap() {
    for major in versions() {
        let fixture = Fixture::new(major);
        let mut stream = ChangeStream::start(quick(fixture.options()));
        fixture.sql("insert into t values (1)");
        let found = take(&mut stream, 1, true).await;
        let position = stream.position(found[0].commit.end_lsn).unwrap();
        stream.stop().await;
        let resumed = |position: &StreamPosition| ChangeOptions {
            resume: Some(position.clone()),
            idle_ack: IdleAck::Consumer,
            ..quick(fixture.options())
        };
        // The stream goes on without a loss.
        fixture.sql("insert into t values (2)");
        let mut stream = ChangeStream::start(resumed(&position));
        assert_eq!(take(&mut stream, 1, false).await.len(), 1);
        stream.stop().await;

        fixture.until("select active_pid is null from pg_replication_slots where slot_name = 's'").await;
        fixture.sql("select pg_drop_replication_slot('s')");
        let error = failure(&mut ChangeStream::start(resumed(&position))).await;
        assert_eq!(error.class(), ErrorClass::Gap, "{error}");
        fixture.sql("select pg_create_logical_replication_slot('s', 'pgoutput')");
        let error = failure(&mut ChangeStream::start(resumed(&position))).await;
        assert_eq!(error.class(), ErrorClass::Gap, "{error}");
        assert!(error.to_string().contains("created again"), "{error}");
    }
}

/// CH-64: the slot is invalidated because the consumer holds too much WAL.
#[tokio::test(flavor = "multi_thread")]
async fn invalidated_slot_is_a_gap() {
    for major in versions() {
        let builder = builder(major).setting("max_slot_wal_keep_size", "1MB").setting("max_wal_size", "32MB");
        let fixture = Fixture::with(builder.setting("min_wal_size", "32MB"));
        fixture.sql("insert into t values (1)");
        for _ in 0..5 {
            fixture.sql("select pg_switch_wal()");
            fixture.sql("insert into t select coalesce(max(id), 0) + 1 from t");
        }
        fixture.sql("checkpoint");
        fixture.until("select wal_status = 'lost' from pg_replication_slots where slot_name = 's'").await;
        let error = failure(&mut ChangeStream::start(quick(fixture.options()))).await;
        assert_eq!(error.class(), ErrorClass::Gap, "{error}");
    }
}

/// CH-23, CH-24: a slot that another stream reads.
#[tokio::test(flavor = "multi_thread")]
async fn slot_in_use_names_its_reader() {
    let fixture = Fixture::new(18);
    let mut first = ChangeStream::start(fixture.options());
    fixture.sql("insert into t values (1)");
    take(&mut first, 1, true).await;
    let pid = fixture.one("select active_pid from pg_replication_slots where slot_name = 's'");
    let options = ChangeOptions { slot_busy_max: Duration::ZERO, ..quick(fixture.options()) };
    let error = failure(&mut ChangeStream::start(options)).await;
    assert_eq!(error.class(), ErrorClass::Stop, "{error}");
    assert!(error.to_string().contains(&format!("pid {pid}")), "{error}");
}

/// CH-19: the end of a consumer releases the slot for the next one, without a last status.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_stream_releases_its_slot() {
    for major in versions() {
        let fixture = Fixture::new(major);
        fixture.sql("insert into t values (1)");
        let mut stream = ChangeStream::start(quick(fixture.options()));
        let first = take(&mut stream, 1, false).await;
        drop(stream);
        fixture.until("select active_pid is null from pg_replication_slots where slot_name = 's'").await;
        let mut stream = ChangeStream::start(quick(fixture.options()));
        assert_eq!(take(&mut stream, 1, true).await[0].changes[0].id, first[0].changes[0].id);
    }
}
