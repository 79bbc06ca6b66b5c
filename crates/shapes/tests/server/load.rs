//! Many shapes together, long waits, and what they must not hold up.

use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;
use tidegate_shapes::ServerStatus;

use crate::fixture::{Fixture, LIMIT};

const SHAPES: usize = 40;

async fn items(fixture: Fixture) -> Fixture {
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY, name text)").await;
    fixture.sql("INSERT INTO items SELECT n, 'item ' || n FROM generate_series(0, 39) n").await;
    fixture
}

fn shape(number: usize) -> String {
    format!("table=items&where=id%3D{number}")
}

/// Waits until the slot is confirmed up to a position.
async fn confirmed(fixture: &Fixture, lsn: &str) {
    let sql = format!(
        "SELECT confirmed_flush_lsn >= '{lsn}' FROM pg_replication_slots WHERE slot_name LIKE 'tidegate_shapes%'"
    );
    let reached = async {
        while fixture.sql(sql.clone()).await[0][0].as_deref() != Some("t") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, reached).await.unwrap_or_else(|_| panic!("the slot is not confirmed up to {lsn}"));
}

async fn position(fixture: &Fixture) -> String {
    fixture.sql("SELECT pg_current_wal_insert_lsn()").await[0][0].clone().unwrap()
}

/// SH-11, SH-13: a burst of new shapes waits for its turn, and none is removed.
#[tokio::test(flavor = "multi_thread")]
async fn burst_of_new_shapes_waits_for_its_turn() {
    let fixture = Fixture::with(18, |options| options.snapshots_max = 1).await.ready().await;
    let fixture = items(fixture).await;
    let replies = join_all((0..SHAPES).map(|number| {
        let (fixture, query) = (&fixture, format!("{}&offset=-1", shape(number)));
        async move { fixture.get(&query).await }
    }));
    for reply in replies.await {
        assert_eq!((reply.status, reply.changes().len()), (StatusCode::OK, 1), "{reply:?}");
    }
    assert_eq!(fixture.server.shape_count(), SHAPES);
    assert_eq!(fixture.server.snapshot().totals.removed, 0);
}

/// SH-60, SH-61: after a restart, requests for known shapes do not count as new ones, and all are served.
#[tokio::test(flavor = "multi_thread")]
async fn known_shapes_are_served_in_a_burst_after_a_restart() {
    let fixture = Fixture::with(18, |options| options.initial_requests_max = 1).await.ready().await;
    let fixture = items(fixture).await;
    let mut readers = Vec::new();
    for number in 0..SHAPES {
        readers.push(fixture.load(&shape(number)).await);
    }
    let fixture = fixture.restart().await;
    fixture.sql("UPDATE items SET name = 'changed'").await;
    let followed = join_all(readers.iter_mut().map(|reader| {
        let fixture = &fixture;
        async move {
            while reader.column("name") != ["changed"] {
                reader.poll(fixture).await;
            }
            reader.refetches
        }
    }));
    let refetches = tokio::time::timeout(LIMIT, followed).await.expect("all shapes are followed");
    assert_eq!(refetches.iter().sum::<usize>(), 0);
}

/// SH-21: writes of tables without shapes do not keep WAL.
#[tokio::test(flavor = "multi_thread")]
async fn idle_shapes_keep_no_wal() {
    let fixture = items(Fixture::start().await.ready().await).await;
    let _reader = fixture.load("table=items").await;
    fixture.sql("CREATE TABLE other (n int); INSERT INTO other SELECT generate_series(1, 10000)").await;
    let lsn = position(&fixture).await;
    confirmed(&fixture, &lsn).await;
}

/// SH-07, SH-15: a shape that waits for a lock holds up neither other shapes nor the slot.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_shape_holds_nothing_up() {
    let fixture = items(Fixture::start().await.ready().await).await;
    let mut reader = fixture.load("table=items").await;
    fixture.sql("CREATE TABLE locked (id int8 PRIMARY KEY)").await;
    let url = fixture.postgres.url_for("postgres", "postgres");
    let (holder, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    holder.batch_execute("BEGIN; LOCK TABLE locked").await.unwrap();
    let others = async {
        fixture.sql("INSERT INTO items VALUES (100, 'new')").await;
        while reader.column("id").len() != 41 {
            reader.poll(&fixture).await;
        }
        let lsn = position(&fixture).await;
        confirmed(&fixture, &lsn).await;
    };
    let (refused, ()) = tokio::join!(fixture.get("table=locked&offset=-1"), others);
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{refused:?}");
    assert!(refused.header("retry-after").is_some());
    holder.batch_execute("COMMIT").await.unwrap();
    drop(holder);
    connection.await.unwrap().unwrap();
    assert_eq!(fixture.get("table=locked&offset=-1").await.status, StatusCode::OK);
}

/// SH-27: the creation of the slot waits for transactions that are open; requests get status 503 meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn start_waits_for_open_transactions() {
    let postgres = tokio::task::spawn_blocking(|| crate::fixture::postgres(18)).await.unwrap();
    let url = postgres.url_for("postgres", "postgres");
    let (holder, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    holder
        .batch_execute("CREATE TABLE items (id int8 PRIMARY KEY); BEGIN; INSERT INTO items VALUES (1)")
        .await
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(postgres, folder.path().to_owned(), |_| {}).await;
    let refused = fixture.get("table=items&offset=-1").await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{refused:?}");
    assert!(matches!(fixture.server.status(), ServerStatus::Starting(_)));
    holder.batch_execute("COMMIT").await.unwrap();
    drop(holder);
    connection.await.unwrap().unwrap();
    let fixture = fixture.ready().await;
    assert_eq!(fixture.load("table=items").await.column("id"), ["1"]);
}

/// SH-25, SH-30: a slot that was dropped ends all shapes, and no position of the old one is used.
#[tokio::test(flavor = "multi_thread")]
async fn lost_slot_ends_all_shapes() {
    let fixture = items(Fixture::start().await.ready().await).await;
    let mut reader = fixture.load("table=items").await;
    let old = reader.handle.clone();
    let sql = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots";
    let dropped = async {
        // The reader may be back before the slot is dropped.
        loop {
            fixture.sql(sql).await;
            let drop = "DO $$ BEGIN PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots; \
                        EXCEPTION WHEN object_in_use THEN NULL; END $$";
            fixture.sql(drop).await;
            if fixture.sql("SELECT FROM pg_replication_slots").await.is_empty() || reader.refetches > 0 {
                break;
            }
        }
    };
    tokio::time::timeout(LIMIT, dropped).await.expect("the slot is dropped");
    fixture.sql("UPDATE items SET name = 'after the loss' WHERE id = 1").await;
    let reloaded = async {
        while reader.refetches == 0 {
            reader.poll(&fixture).await;
        }
        reader.catch_up(&fixture).await;
    };
    tokio::time::timeout(LIMIT, reloaded).await.expect("the shape is loaded again");
    assert_ne!(reader.handle, old);
    while !reader.column("name").contains(&"after the loss".to_owned()) {
        reader.poll(&fixture).await;
    }
}

/// SH-22: a transaction of many megabytes arrives whole, its shapes stay, and others go on.
#[tokio::test(flavor = "multi_thread")]
async fn large_transaction_ends_no_shape() {
    const ROWS: usize = 30_000;
    let fixture = items(Fixture::start().await.ready().await).await;
    fixture.sql("CREATE TABLE other (id int8 PRIMARY KEY)").await;
    let mut reader = fixture.load("table=items").await;
    let mut other = fixture.load("table=other").await;
    // 45 MB: more than is kept in memory for one shape.
    let sql =
        format!("INSERT INTO items SELECT n, repeat(md5(n::text), 40) FROM generate_series(100, {}) n", ROWS + 99);
    fixture.sql(sql).await;
    fixture.sql("INSERT INTO other VALUES (1)").await;
    let read = async {
        while reader.rows.len() < ROWS + SHAPES {
            reader.poll(&fixture).await;
        }
        while other.rows.is_empty() {
            other.poll(&fixture).await;
        }
    };
    tokio::time::timeout(LIMIT, read).await.expect("both shapes go on");
    assert_eq!((reader.refetches, other.refetches), (0, 0));
    let fixture = fixture.restart().await;
    let fresh = fixture.load("table=items").await;
    assert_eq!((fresh.handle == reader.handle, fresh.rows.len()), (true, ROWS + SHAPES));
}
