//! Watching a slot: the bound of the WAL that it holds, against a consumer that acknowledges nothing, and its tables.

use std::time::Duration;

use tidegate_changes::{ChangeOptions, ChangeStream, ChangeStreamError, ErrorClass, WalBound, WalFull};

use crate::fixture::{Fixture, failure, take, versions, within};

const BYTES_MAX: u64 = 4 << 20;

fn bounded(fixture: &Fixture, full: WalFull) -> ChangeStream {
    ChangeStream::start(ChangeOptions {
        watch_interval: Duration::from_millis(100),
        wal_bound: Some(WalBound { bytes_max: BYTES_MAX, full }),
        ..fixture.options()
    })
}

/// Writes more WAL than the bound.
fn write(fixture: &Fixture) {
    fixture.sql("insert into t select n, repeat('x', 1000) from generate_series(1, 8000) n");
}

#[tokio::test(flavor = "multi_thread")]
async fn held_wal_ends_the_stream_if_configured() {
    for major in versions() {
        let fixture = Fixture::new(major);
        let mut stream = bounded(&fixture, WalFull::Stop);
        write(&fixture);
        let error = failure(&mut stream).await;
        let ChangeStreamError::WalFull { held_bytes, bytes_max, .. } = &error else { panic!("{error}") };
        assert!(*bytes_max == BYTES_MAX && *held_bytes > BYTES_MAX, "{error}");
        assert!(error.class() == ErrorClass::Stop && error.to_string().contains("raise wal_max"), "{error}");
        fixture.until("select not active from pg_replication_slots where slot_name = 's'").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn held_wal_drops_the_slot_if_configured() {
    for major in versions() {
        let fixture = Fixture::new(major);
        let mut stream = bounded(&fixture, WalFull::DropSlot);
        fixture.sql("insert into t values (0)");
        let first = take(&mut stream, 1, true).await.remove(0);
        fixture
            .until(&format!("select confirmed_flush_lsn >= '{}' from pg_replication_slots", first.commit.end_lsn))
            .await;
        write(&fixture);
        let error = failure(&mut stream).await;
        let text = error.to_string();
        assert!(matches!(error, ChangeStreamError::Gap(_)) && text.contains("was dropped, as configured"), "{text}");
        assert!(text.contains(" after 0/") && text.contains("take a new snapshot"), "{text}");
        assert_eq!(fixture.one("select count(*) from pg_replication_slots"), "0");
    }
}

/// The alarm changes nothing, and the status shows what the slot holds.
#[tokio::test(flavor = "multi_thread")]
async fn held_wal_is_shown() {
    for major in versions() {
        let fixture = Fixture::new(major);
        let mut stream = bounded(&fixture, WalFull::Alarm);
        write(&fixture);
        let held =
            |status: &tidegate_changes::ChangeStreamStatus| status.slot.as_ref().and_then(|slot| slot.held_wal_bytes);
        let mut status = stream.watch_status();
        let is_passed =
            |status: &tidegate_changes::ChangeStreamStatus| held(status).is_some_and(|held| held > BYTES_MAX);
        within("the bound is passed", status.wait_for(is_passed)).await.unwrap();
        assert_eq!(take(&mut stream, 1, true).await[0].changes.len(), 8000);
        fixture.sql("insert into t values (-1)");
        assert_eq!(take(&mut stream, 1, true).await[0].changes.len(), 1);
    }
}

/// CH-31: a table that is published later has no history in the stream.
#[tokio::test(flavor = "multi_thread")]
async fn added_and_removed_tables_are_noticed() {
    for major in versions() {
        let fixture = Fixture::new(major);
        let stream = bounded(&fixture, WalFull::Alarm);
        let mut status = stream.watch_status();
        within("the tables are read", status.wait_for(|status| status.published_tables.is_some())).await.unwrap();
        for (number, sql) in [
            (1, "create table u (id int primary key); alter publication p add table u"),
            (2, "alter publication p drop table u"),
        ] {
            fixture.sql(sql);
            within("the change is noticed", status.wait_for(|status| status.published_changes == number))
                .await
                .unwrap();
        }
    }
}

/// CH-28: the connection that watches the slot is opened again.
#[tokio::test(flavor = "multi_thread")]
async fn watching_goes_on_after_a_lost_connection() {
    for major in versions() {
        let fixture = Fixture::new(major);
        let stream = bounded(&fixture, WalFull::Alarm);
        let mut status = stream.watch_status();
        within("the tables are read", status.wait_for(|status| status.published_tables.is_some())).await.unwrap();
        let terminated = fixture.one(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity \
             where backend_type = 'client backend' and pid <> pg_backend_pid()",
        );
        assert_ne!(terminated, "0");
        fixture.sql("create table u (id int primary key); alter publication p add table u");
        within("the change is noticed", status.wait_for(|status| status.published_changes == 1)).await.unwrap();
    }
}
