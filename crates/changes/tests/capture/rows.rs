//! Rows: values, identities, definitions, messages.

use tidegate_changes::{ChangeOptions, ChangeStream, Lsn};

use crate::fixture::{Fixture, builder, lines, take, versions};

/// CH-38, CH-43, CH-44, CH-51.
#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_change_is_delivered() {
    for major in versions() {
        let fixture = Fixture::new(major);
        fixture.sql("alter table t alter v set storage external");
        let mut stream = ChangeStream::start(fixture.options());
        fixture.sql("insert into t values (1, repeat('x', 10000)), (2, null)");
        fixture.sql("begin; update t set id = 3 where id = 1; update t set v = 'b' where id = 2; commit");
        fixture.sql("delete from t where id = 3");
        fixture.sql("truncate t");
        let found: Vec<_> = take(&mut stream, 4, true).await.iter().map(lines).collect();
        assert_eq!(found[0], ["0 Insert [id=1 v=xxxxxxxxxxxxxxxxxxxx] was []", "1 Insert [id=2 v=NULL] was []"]);
        assert_eq!(found[1], ["0 Update [id=3 v=unchanged] was [id=1]", "1 Update [id=2 v=b] was []"]);
        assert_eq!(found[2], ["0 Delete [] was [id=3]"]);
        assert_eq!(found[3], ["0 Truncate t"]);
    }
}

/// CH-39.
#[tokio::test(flavor = "multi_thread")]
async fn full_identity_resolves_unchanged_values() {
    for major in versions() {
        let fixture = Fixture::new(major);
        fixture.sql("alter table t alter v set storage external; alter table t replica identity full");
        fixture.sql("alter table t add n int");
        let mut stream = ChangeStream::start(fixture.options());
        fixture.sql("insert into t values (1, repeat('x', 10000), 1)");
        fixture.sql("update t set n = 2");
        let found: Vec<_> = take(&mut stream, 2, true).await.iter().map(lines).collect();
        let x = "x".repeat(20);
        assert_eq!(found[1], [format!("0 Update [id=1 v={x} n=2] was [id=1 v={x} n=1]")]);
    }
}

/// CH-49, CH-50: the rows before and after a change of the table, read after all of it.
#[tokio::test(flavor = "multi_thread")]
async fn rows_keep_the_definition_of_their_time() {
    for major in versions() {
        let fixture = Fixture::new(major);
        fixture.sql("insert into t values (1, 'a')");
        fixture.sql("begin; alter table t drop v; alter table t add \"ö\" int; insert into t values (2, 7); commit");
        fixture.sql("drop table t");
        let mut stream = ChangeStream::start(fixture.options());
        let found = take(&mut stream, 2, true).await;
        assert_eq!(lines(&found[0]), ["0 Insert [id=1 v=a] was []"]);
        assert_eq!(lines(&found[1]), ["0 Insert [id=2 ö=7] was []"]);
        let (at, change) = &found[1].schema_changes[0];
        assert_eq!((*at, change.after.version), (0, 2));
        assert_eq!(change.added_columns().collect::<Vec<_>>(), ["ö"]);
        assert_eq!(change.removed_columns().collect::<Vec<_>>(), ["v"]);
    }
}

/// CH-52: transactional messages have numbers; others arrive outside of transactions.
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_applications_are_delivered() {
    for major in versions() {
        let fixture = Fixture::new(major);
        let mut stream = ChangeStream::start(ChangeOptions { messages: true, ..fixture.options() });
        fixture.sql(
            "begin; insert into t values (1); select pg_logical_emit_message(true, 'app', 'm'); \
             insert into t values (2); commit",
        );
        let found = take(&mut stream, 1, true).await;
        assert_eq!(lines(&found[0])[1], "1 Message m");
        assert_eq!(found[0].commit.changes, 3);
    }
}

/// CH-05, CH-06, CH-07, CH-16: what was acknowledged does not come again, the rest comes with the same identities.
#[tokio::test(flavor = "multi_thread")]
async fn restart_goes_on_after_the_acknowledged_transaction() {
    for major in versions() {
        let fixture = Fixture::new(major);
        for id in 1..=3 {
            fixture.sql(&format!("insert into t values ({id}), (10 + {id})"));
        }
        let mut stream = ChangeStream::start(fixture.options());
        let first = take(&mut stream, 3, false).await;
        stream.acknowledge(first[0].commit.end_lsn);
        let status = stream.stop().await;
        assert_eq!(status.flushed_lsn, first[0].commit.end_lsn);
        let confirmed: Lsn =
            fixture.one("select confirmed_flush_lsn from pg_replication_slots where slot_name = 's'").parse().unwrap();
        assert_eq!(confirmed, first[0].commit.end_lsn);

        let mut stream = ChangeStream::start(fixture.options());
        let second = take(&mut stream, 2, true).await;
        let ids = |transactions: &[tidegate_changes::Transaction]| -> Vec<_> {
            transactions.iter().flat_map(|found| found.changes.iter().map(|change| change.id)).collect()
        };
        assert_eq!(ids(&second), ids(&first[1..]));
    }
}

/// CH-02, CH-22: the slot moves on while only other tables change, also if the server never asks for a status.
#[tokio::test(flavor = "multi_thread")]
async fn idle_tables_do_not_hold_wal() {
    for (major, timeout) in versions().into_iter().flat_map(|major| [(major, "60s"), (major, "0")]) {
        let fixture = Fixture::with(builder(major).setting("wal_sender_timeout", timeout));
        fixture.sql("create table other (n int)");
        let stream = ChangeStream::start(ChangeOptions {
            status_interval: std::time::Duration::from_millis(50),
            ..fixture.options()
        });
        // The server has answered more statuses than events wait for a consumer that does not read.
        let answered =
            "select coalesce(bool_or(reply_time > backend_start + interval '1 s'), false) from pg_stat_replication";
        fixture.until(answered).await;
        fixture.sql("insert into other select generate_series(1, 1000)");
        let end = fixture.one("select pg_current_wal_lsn()");
        fixture
            .until(&format!("select confirmed_flush_lsn >= '{end}' from pg_replication_slots where slot_name = 's'"))
            .await;
        stream.stop().await;
    }
}

/// CH-35, CH-36: a heartbeat needs no table, and no publication of one.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_is_a_transactional_message() {
    for major in versions() {
        let fixture = Fixture::new(major);
        fixture.sql("create table other (v text)");
        let mut stream = ChangeStream::start(ChangeOptions {
            messages: true,
            heartbeat: Some(std::time::Duration::from_millis(100)),
            ..fixture.options()
        });
        fixture.sql("insert into other select repeat('x', 100) from generate_series(1, 1000)");
        let found = take(&mut stream, 1, true).await;
        assert_eq!(lines(&found[0]), ["0 Message heartbeat"]);
    }
}

/// CH-08: transactions come in the order of their commits, whichever wrote first; the order of their identities is the same.
#[tokio::test(flavor = "multi_thread")]
async fn interleaved_transactions_come_by_commit() {
    for major in versions() {
        let fixture = Fixture::new(major);
        let mut stream = ChangeStream::start(fixture.options());
        let (mut first, mut second) = (fixture.connection().await, fixture.connection().await);
        first.query("begin; insert into t values (1)").await.unwrap();
        second.query("begin; insert into t values (2)").await.unwrap();
        first.query("insert into t values (3)").await.unwrap();
        second.query("insert into t values (4); commit").await.unwrap();
        first.query("commit").await.unwrap();
        let found = take(&mut stream, 2, true).await;
        assert_eq!(lines(&found[0]), ["0 Insert [id=2 v=NULL] was []", "1 Insert [id=4 v=NULL] was []"]);
        assert_eq!(lines(&found[1]), ["0 Insert [id=1 v=NULL] was []", "1 Insert [id=3 v=NULL] was []"]);
        let ids: Vec<_> = found.iter().flat_map(|found| found.changes.iter().map(|change| change.id)).collect();
        assert!(ids.is_sorted(), "{ids:?}");
    }
}
