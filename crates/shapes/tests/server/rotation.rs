//! Events that end a shape.

use std::time::Duration;

use crate::fixture::{Fixture, ShapeReader};

async fn items() -> Fixture {
    let fixture = Fixture::start().await.ready().await;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY, name text)").await;
    fixture.sql("INSERT INTO items VALUES (1, 'one')").await;
    fixture
}

/// Polls until the shape is loaded again.
async fn refetched(reader: &mut ShapeReader, fixture: &Fixture) {
    let before = reader.refetches;
    let rotated = async {
        while reader.refetches == before {
            reader.poll(fixture).await;
        }
        reader.catch_up(fixture).await;
    };
    tokio::time::timeout(crate::fixture::LIMIT, rotated).await.expect("the shape ends");
}

/// SH-01, SH-02, SH-24, SH-57: truncate, and changes of the table with and without a write.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_the_table_end_its_shapes() {
    let fixture = items().await;
    let mut reader = fixture.load("table=items").await;
    let cases = [
        "TRUNCATE items; INSERT INTO items VALUES (5, 'five')",
        "ALTER TABLE items ADD COLUMN extra int; UPDATE items SET extra = 1",
        "ALTER TABLE items ADD COLUMN silent int",
        "ALTER TABLE items ALTER COLUMN name TYPE varchar(50)",
        "ALTER TABLE items RENAME COLUMN extra TO other",
        "DROP TABLE items; CREATE TABLE items (id int8 PRIMARY KEY, name text); INSERT INTO items VALUES (9, 'new')",
        "ALTER TABLE items RENAME TO items2; CREATE TABLE items (id int8 PRIMARY KEY, z text); \
         INSERT INTO items VALUES (10, 'z')",
    ];
    for sql in cases {
        let old = reader.handle.clone();
        let ((), ()) = tokio::join!(refetched(&mut reader, &fixture), async {
            fixture.sql(sql).await;
        });
        assert_ne!(reader.handle, old, "{sql}");
        let expected = fixture.sql("SELECT id FROM items ORDER BY id::text").await;
        let expected: Vec<String> = expected.into_iter().map(|row| row[0].clone().unwrap()).collect();
        assert_eq!(reader.column("id"), expected, "{sql}");
    }
}

/// SH-12, SH-06: a table that cannot be read is an error with its reason, and no shape is kept.
#[tokio::test(flavor = "multi_thread")]
async fn failed_snapshot_returns_its_reason() {
    let fixture = items().await;
    fixture.sql("ALTER TABLE items REPLICA IDENTITY FULL").await;
    let (locked, reply) = tokio::join!(fixture.sql("BEGIN; LOCK TABLE items; SELECT pg_sleep(8); COMMIT"), async {
        tokio::time::timeout(Duration::from_secs(30), async {
            // Wait for the lock.
            loop {
                let locks = fixture
                    .sql(
                        "SELECT FROM pg_locks WHERE relation = 'items'::regclass AND granted \
                                         AND mode = 'AccessExclusiveLock'",
                    )
                    .await;
                if !locks.is_empty() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            fixture.get("table=items&offset=-1").await
        })
        .await
        .unwrap()
    });
    drop(locked);
    assert_eq!(reply.status, 503, "{reply:?}");
    assert_eq!(
        (reply.header("retry-after"), reply.header("electric-internal-known-error")),
        (Some("10"), Some("true"))
    );
    assert!(reply.json()["message"].as_str().unwrap().contains("locked"), "SH-07: {reply:?}");
    assert_eq!(fixture.server.shape_count(), 0);
    assert_eq!(fixture.get("table=items&offset=-1").await.status, 200);
}

/// Issue 36: in manual mode, nothing is changed unasked, and the error names the statements.
#[tokio::test(flavor = "multi_thread")]
async fn manual_publication_names_the_statements() {
    let fixture = Fixture::with(18, |options| options.publication = tidegate_shapes::PublicationMode::Manual).await;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY)").await;
    let reply = fixture.get("table=items&offset=-1").await;
    assert_eq!(reply.status, 503);
    assert!(
        reply.json()["message"].as_str().unwrap().contains("CREATE PUBLICATION \"tidegate_shapes_default\""),
        "{reply:?}"
    );
    fixture.sql("CREATE PUBLICATION tidegate_shapes_default").await;
    let fixture = fixture.ready().await;
    let reply = fixture.get("table=items&offset=-1").await;
    let message = reply.json()["message"].as_str().unwrap().to_owned();
    assert_eq!(reply.status, 503);
    let (identity, publication) = (
        "ALTER TABLE ONLY \"public\".\"items\" REPLICA IDENTITY FULL",
        "ALTER PUBLICATION \"tidegate_shapes_default\" ADD TABLE ONLY \"public\".\"items\"",
    );
    assert!(message.contains(identity) && message.contains(publication), "{message}");
    fixture.sql(format!("{identity}; {publication}")).await;
    assert_eq!(fixture.get("table=items&offset=-1").await.status, 200);
}

/// SH-01: a transaction that wrote before the table was published is in the snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn open_writer_is_not_lost() {
    let fixture = items().await;
    let writer = fixture.sql("BEGIN; INSERT INTO items VALUES (2, 'two'); SELECT pg_sleep(1); COMMIT");
    let (_, first) = tokio::join!(writer, async {
        while fixture
            .sql("SELECT FROM pg_locks WHERE relation = 'items'::regclass AND mode = 'RowExclusiveLock'")
            .await
            .is_empty()
        {
            tokio::task::yield_now().await;
        }
        fixture.load("table=items").await
    });
    let mut reader = first;
    reader.catch_up(&fixture).await;
    assert_eq!(reader.column("id"), ["1", "2"]);
}

/// Known shapes are served while the database is away; new ones are refused with a reason.
#[tokio::test(flavor = "multi_thread")]
async fn known_shapes_are_served_without_a_database() {
    let fixture = items().await;
    let reader = fixture.load("table=items").await;
    fixture.postgres.suspend();
    let again = fixture.get(&format!("table=items&offset=0_0&handle={}", reader.handle)).await;
    fixture.postgres.resume();
    assert_eq!(again.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn limit_of_shapes_removes_the_least_used() {
    let fixture = Fixture::with(18, |options| options.shapes_max = 2).await.ready().await;
    for name in ["a", "b", "c", "d"] {
        fixture.sql(format!("CREATE TABLE {name} (id int8 PRIMARY KEY)")).await;
        fixture.load(&format!("table={name}")).await;
    }
    let fits = async {
        while fixture.server.shape_count() > 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::fixture::LIMIT, fits).await.unwrap();
    assert_eq!(fixture.get("table=a&offset=-1").await.status, 200);
}
