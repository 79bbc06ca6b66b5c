//! Tables with generated columns, partitions, and rows without a primary key.

use http::StatusCode;

use crate::fixture::{Fixture, LIMIT, ShapeReader};

/// SH-62: rows without a primary key are identified by all their values.
#[tokio::test(flavor = "multi_thread")]
async fn rows_without_a_primary_key_are_followed() {
    let fixture = Fixture::start().await.ready().await;
    fixture.sql("CREATE TABLE loose (b bool, t text, n numeric)").await;
    fixture.sql("INSERT INTO loose VALUES (true, 'a/b', 1.50), (NULL, NULL, NULL), (false, '', 'NaN')").await;
    let mut reader = fixture.load("table=loose").await;
    assert_eq!(reader.rows.len(), 3, "{:?}", reader.rows);
    fixture.sql("DELETE FROM loose WHERE t IS NULL; UPDATE loose SET b = NULL WHERE n = 1.5").await;
    while reader.rows.len() != 2 || reader.rows.values().any(|row| row["b"].as_deref() == Some("t")) {
        reader.poll(&fixture).await;
    }
    fixture.sql("DELETE FROM loose").await;
    while !reader.rows.is_empty() {
        reader.poll(&fixture).await;
    }
}

/// A table that was altered without a write is as the catalogue has it, for its first shape and for further ones.
#[tokio::test(flavor = "multi_thread")]
async fn refused_definition_is_compared_with_the_catalogue() {
    let fixture = Fixture::with(18, |options| options.catalogue_interval = std::time::Duration::from_secs(3600));
    let fixture = fixture.await.ready().await;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY, a int); INSERT INTO items VALUES (1, 1)").await;
    fixture.sql("CREATE TABLE groups (a int PRIMARY KEY)").await;
    let mut reader = fixture.load("table=items").await;
    for query in ["columns=id,b", "where=b%3D7", "where=a%20IN%20(SELECT%20a%20FROM%20groups%20WHERE%20b%3D7)"] {
        assert_eq!(fixture.get(&format!("table=items&offset=-1&{query}")).await.status, StatusCode::BAD_REQUEST);
    }
    fixture.sql("ALTER TABLE items ADD COLUMN b int DEFAULT 7; ALTER TABLE groups ADD COLUMN b int DEFAULT 7").await;
    let inner = "table=items&where=a%20IN%20(SELECT%20a%20FROM%20groups%20WHERE%20b%3D7)";
    assert_eq!(fixture.load(inner).await.rows.len(), 0);
    assert_eq!(fixture.load("table=items&columns=id,b").await.column("b"), ["7"]);
    assert_eq!(fixture.load("table=items&where=b%3D7").await.column("id"), ["1"]);
    let ended = async {
        while reader.refetches == 0 {
            reader.poll(&fixture).await;
        }
        reader.catch_up(&fixture).await;
    };
    tokio::time::timeout(LIMIT, ended).await.expect("the shape of the former definition ends");
    assert_eq!(reader.column("b"), ["7"]);
}

const PRICED: &str =
    "CREATE TABLE priced (id int8 PRIMARY KEY, price int, twice int GENERATED ALWAYS AS (price * 2) STORED)";

/// Stored generated columns are in the stream since Postgres 18. Writes of the application go on.
#[tokio::test(flavor = "multi_thread")]
async fn stored_generated_columns_are_followed() {
    let fixture = Fixture::start().await.ready().await;
    fixture.sql(PRICED).await;
    fixture.sql("INSERT INTO priced VALUES (1, 10)").await;
    let mut all = fixture.load("table=priced").await;
    let mut dear = fixture.load("table=priced&where=twice%3E30").await;
    fixture.sql("UPDATE priced SET price = 11; INSERT INTO priced VALUES (2, 20)").await;
    while all.column("twice") != ["22", "40"] {
        all.poll(&fixture).await;
    }
    while dear.column("twice") != ["40"] {
        dear.poll(&fixture).await;
    }
    fixture.sql("CREATE TABLE virtual (id int8 PRIMARY KEY, v int GENERATED ALWAYS AS (1) VIRTUAL)").await;
    let refused = fixture.get("table=virtual&offset=-1").await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.json().to_string().contains("virtual generated column v"), "{refused:?}");
}

/// Before, they cannot be selected or used in the predicate, and the rest of the table can.
#[tokio::test(flavor = "multi_thread")]
async fn generated_columns_are_left_out_before_18() {
    let fixture = Fixture::with(14, |_| {}).await.ready().await;
    fixture.sql(PRICED).await;
    fixture.sql("INSERT INTO priced VALUES (1, 10)").await;
    for query in ["columns=id,twice", "", "columns=id,price&where=twice%3D20"] {
        let refused = fixture.get(&format!("table=priced&offset=-1&{query}")).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{query}");
        let text = refused.json().to_string();
        assert!(text.contains("twice") && text.contains("generated"), "{text}");
    }
    let mut reader = fixture.load("table=priced&columns=id,price").await;
    fixture.sql("UPDATE priced SET price = 11; INSERT INTO priced VALUES (2, 20)").await;
    while reader.column("price") != ["11", "20"] {
        reader.poll(&fixture).await;
    }
}

/// SH-57: partitions are routed by their OIDs; each change of the set of partitions ends the shapes.
#[tokio::test(flavor = "multi_thread")]
async fn partitioned_tables_are_followed() {
    let fixture = Fixture::start().await.ready().await;
    fixture
        .sql("CREATE TABLE events (id int8, kind text, n int, PRIMARY KEY (id, kind)) PARTITION BY LIST (kind)")
        .await;
    fixture.sql("CREATE TABLE events_a PARTITION OF events FOR VALUES IN ('a')").await;
    // A partition with its columns in another order, and one with partitions of its own.
    fixture.sql("CREATE TABLE events_b (n int, kind text NOT NULL, id int8 NOT NULL)").await;
    fixture.sql("ALTER TABLE events ATTACH PARTITION events_b FOR VALUES IN ('b')").await;
    fixture.sql("CREATE TABLE events_c PARTITION OF events FOR VALUES IN ('c') PARTITION BY RANGE (id)").await;
    fixture.sql("CREATE TABLE events_c1 PARTITION OF events_c FOR VALUES FROM (0) TO (1000)").await;
    fixture.sql("INSERT INTO events VALUES (1, 'a', 10), (2, 'b', 20), (3, 'c', 30)").await;
    let (mut all, mut some) = (fixture.load("table=events").await, fixture.load("table=events&where=n%3E15").await);
    assert_eq!((all.column("n"), some.column("n")), (numbers(&[10, 20, 30]), numbers(&[20, 30])));
    // An update moves a row to another partition.
    fixture.sql("UPDATE events SET kind = 'b', n = 11 WHERE id = 1; UPDATE events SET n = 21 WHERE id = 2").await;
    fixture.sql("DELETE FROM events WHERE id = 3; INSERT INTO events VALUES (4, 'c', 40)").await;
    followed(&fixture, &mut all, &[11, 21, 40]).await;
    followed(&fixture, &mut some, &[21, 40]).await;
    assert_eq!(all.refetches, 0);
    let refused = fixture.get("table=events_a&offset=-1").await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.json().to_string().contains("is a partition"), "{refused:?}");
    let changes = [
        ("TRUNCATE events_c1", &[11, 21][..]),
        (
            "CREATE TABLE events_d PARTITION OF events FOR VALUES IN ('d'); INSERT INTO events VALUES (5, 'd', 50)",
            &[11, 21, 50],
        ),
        ("ALTER TABLE events DETACH PARTITION events_b", &[50]),
        ("DROP TABLE events_d", &[]),
    ];
    for (number, (sql, expected)) in changes.into_iter().enumerate() {
        fixture.sql(sql).await;
        followed(&fixture, &mut all, expected).await;
        assert_eq!(all.refetches, number + 1, "{sql}");
    }
    fixture.sql("INSERT INTO events VALUES (6, 'a', 60)").await;
    followed(&fixture, &mut all, &[60]).await;
}

fn numbers(values: &[i32]) -> Vec<String> {
    values.iter().map(i32::to_string).collect()
}

async fn followed(fixture: &Fixture, reader: &mut ShapeReader, expected: &[i32]) {
    let reached = async {
        while reader.column("n") != numbers(expected) {
            reader.poll(fixture).await;
            reader.catch_up(fixture).await;
        }
    };
    let found = tokio::time::timeout(LIMIT, reached).await;
    found.unwrap_or_else(|_| panic!("{expected:?}: {:?}", reader.rows));
}
