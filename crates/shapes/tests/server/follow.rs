//! Snapshot, log, live requests.

use crate::fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_and_changes_are_followed() {
    for major in [14, 18] {
        let fixture = Fixture::with(major, |_| {}).await.ready().await;
        fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY, name text)").await;
        fixture.sql("INSERT INTO items VALUES (1, 'one'), (2, NULL)").await;
        let first = fixture.get("table=items&offset=-1").await;
        assert_eq!(first.status, 200, "{first:?}");
        assert_eq!((first.offset(), first.is_up_to_date()), ("0_0", false));
        assert_eq!(first.header("electric-has-data"), Some("true"));
        let schema = r#"{"id":{"type":"int8","pk_index":0,"not_null":true},"name":{"type":"text"}}"#;
        assert_eq!(first.header("electric-schema"), Some(schema));
        let mut reader = fixture.load("table=items").await;
        assert_eq!(reader.column("name"), ["NULL", "one"]);
        assert_eq!(reader.offset, "0_inf");
        let (polled, ()) = tokio::join!(reader.poll(&fixture), async {
            fixture
                .sql("BEGIN; UPDATE items SET name = 'two' WHERE id = 2; INSERT INTO items VALUES (3, 'x'); COMMIT")
                .await;
        });
        assert!(polled.is_up_to_date(), "{polled:?}");
        assert_eq!(reader.column("name"), ["one", "two", "x"]);
        let changes = polled.changes();
        assert_eq!(changes[1]["headers"]["last"], true);
        assert_eq!(changes[0]["headers"].get("last"), None);
        assert_eq!(changes[1]["headers"]["op_position"], 2);
        let again = fixture.load("table=items").await;
        assert_eq!((again.rows, again.offset, again.handle), (reader.rows, reader.offset, reader.handle));
    }
}

/// SH-14: a shape is kept although no transaction came before the end of its server.
#[tokio::test(flavor = "multi_thread")]
async fn shape_before_the_first_change_survives() {
    let fixture = Fixture::start().await.ready().await;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY); INSERT INTO items VALUES (1)").await;
    let mut reader = fixture.load("table=items").await;
    let fixture = fixture.restart().await;
    fixture.sql("INSERT INTO items VALUES (2)").await;
    while reader.column("id") != ["1", "2"] {
        reader.catch_up(&fixture).await;
    }
    assert_eq!(reader.refetches, 0);
}

/// SH-09, SH-14, SH-18: handles, offsets and contents are the same after a restart, with changes meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn readers_go_on_after_a_restart() {
    let mut fixture = Fixture::start().await.ready().await;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY, name text)").await;
    fixture.sql("INSERT INTO items SELECT n, 'row ' || n FROM generate_series(1, 10) n").await;
    let mut reader = fixture.load("table=items").await;
    for round in 0..3 {
        fixture.sql(format!("UPDATE items SET name = 'round {round}' WHERE id <= 3")).await;
        let reply = reader.poll(&fixture).await;
        assert_eq!(reply.changes().len(), 3);
        fixture = fixture.restart().await;
        fixture.sql(format!("UPDATE items SET name = 'again {round}' WHERE id = 4")).await;
        let reply = reader.poll(&fixture).await;
        assert_eq!(reply.changes().len(), 1, "no operation comes twice: {reply:?}");
        let fresh = fixture.load("table=items").await;
        assert_eq!((&fresh.rows, &fresh.offset, &fresh.handle), (&reader.rows, &reader.offset, &reader.handle));
    }
    assert_eq!(reader.refetches, 0);
}
