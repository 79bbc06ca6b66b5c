//! Slots: create, list, advance, drop.

use tidegate_changes::{
    ChangeOptions, ChangeStream, Lsn,
    slots::{self, NewSlot},
};

use crate::fixture::{Fixture, relay, take, versions, within};

#[tokio::test(flavor = "multi_thread")]
async fn slots_are_created_listed_and_dropped() {
    for major in versions() {
        let fixture = Fixture::new(major);
        let mut connection = fixture.connection().await;
        let failover = major >= 17;
        let created = slots::create_slot(&mut connection, &NewSlot { failover, ..NewSlot::new("new") }).await.unwrap();
        assert!(created.consistent_point > Lsn::ZERO && created.snapshot.is_none());
        let found = slots::list_slots(&mut connection, Some("new")).await.unwrap();
        assert_eq!(found[0].plugin.as_deref(), Some("pgoutput"));
        assert_eq!(found[0].confirmed_flush_lsn, Some(created.consistent_point));
        assert_eq!((found[0].failover, found[0].active_pid), ((major >= 17).then_some(true), None));
        fixture.sql("insert into t values (1)");
        let end: Lsn = fixture.one("select pg_current_wal_lsn()").parse().unwrap();
        assert_eq!(slots::advance_slot(&mut connection, "new", end).await.unwrap(), end);
        slots::drop_slot(&mut connection, "new", false).await.unwrap();
        assert!(slots::list_slots(&mut connection, Some("new")).await.unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_slots_are_refused_with_a_reason() {
    let fixture = Fixture::new(14);
    let mut connection = fixture.connection().await;
    for (slot, part) in [
        (NewSlot::new("Bad-Name"), "a-z"),
        (NewSlot { failover: true, ..NewSlot::new("f") }, "Postgres 17"),
        (NewSlot::new("s"), "already exists"),
    ] {
        let error = slots::create_slot(&mut connection, &slot).await.unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        // Later commands of the connection have no limit for locks.
        assert_eq!(connection.query("show lock_timeout").await.unwrap()[0][0].as_deref(), Some("0"));
    }
    assert!(slots::drop_slot(&mut connection, "missing", true).await.is_err());
}

/// CH-74.
#[tokio::test(flavor = "multi_thread")]
async fn active_slot_is_dropped_only_by_force() {
    for major in versions() {
        let fixture = Fixture::new(major);
        let mut stream = ChangeStream::start(fixture.options());
        fixture.sql("insert into t values (1)");
        take(&mut stream, 1, true).await;
        let mut connection = fixture.connection().await;
        let error = slots::drop_slot(&mut connection, "s", false).await.unwrap_err();
        assert!(error.to_string().contains("is read by process"), "{error}");
        slots::drop_slot(&mut connection, "s", true).await.unwrap();
    }
}

/// CH-26: the creation names the transactions that it waited for.
#[tokio::test(flavor = "multi_thread")]
async fn blocked_creation_names_the_open_transaction() {
    let fixture = Fixture::new(18);
    let mut holder = fixture.connection().await;
    let rows = holder.query("begin; select pg_current_xact_id(); select pg_backend_pid()").await.unwrap();
    let pid = rows[1][0].clone().unwrap();
    let mut connection = fixture.connection().await;
    let slot = NewSlot { wait_max: std::time::Duration::from_millis(200), ..NewSlot::new("new") };
    let error = slots::create_slot(&mut connection, &slot).await.unwrap_err();
    assert!(error.to_string().contains(&format!("pid {pid}")), "{error}");
    assert_eq!(connection.query("show lock_timeout").await.unwrap()[0][0].as_deref(), Some("0"));
    // The failed attempt leaves no slot behind (CH-25).
    assert!(slots::list_slots(&mut connection, Some("new")).await.unwrap().is_empty());
    holder.query("commit").await.unwrap();
    slots::create_slot(&mut connection, &NewSlot::new("new")).await.unwrap();
}

/// The last acknowledgement of another reader, between the look at the slot and the start: the position is read again. From the
/// old one, the stream would count positions that the slot has passed, and a later connection would report lost changes.
#[tokio::test(flavor = "multi_thread")]
async fn slot_is_read_from_where_its_last_reader_left() {
    let fixture = Fixture::new(18);
    let mut first = ChangeStream::start(fixture.options());
    fixture.sql("insert into t values (1)");
    let end = take(&mut first, 1, false).await[0].commit.end_lsn;
    let leave = async move {
        first.acknowledge(end);
        first.stop().await;
    };
    let is_start = |bytes: &[u8]| bytes.windows(17).any(|part| part == b"START_REPLICATION");
    let connect = relay(fixture.postgres.port(), is_start, leave).await;
    let backoff =
        tidegate_backoff::Backoff::new(std::time::Duration::from_millis(20), std::time::Duration::from_millis(200));
    let second = ChangeStream::start(ChangeOptions { backoff, ..ChangeOptions::new(connect, "s", "p") });
    let mut status = second.watch_status();
    let found =
        within("the second stream reads", status.wait_for(|status| status.slot.is_some())).await.unwrap().slot.clone();
    assert!(found.is_some_and(|slot| slot.confirmed_flush_lsn >= Some(end)));
}
