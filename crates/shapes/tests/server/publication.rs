//! Publications that an administrator has changed.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tidegate_sandbox::Postgres;
use tidegate_shapes::{DatabaseLogin, PublicationMode, ShapesOptions};

use crate::fixture::{Fixture, LIMIT, ShapeReader};

const ADD: &str = "ALTER PUBLICATION tidegate_shapes_default ADD TABLE ONLY items";

/// A server that changes nothing, with a table that is ready but for the publication.
async fn manual(change: fn(&mut ShapesOptions)) -> Fixture {
    let fixture = Fixture::with(18, change).await;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY, n int); ALTER TABLE items REPLICA IDENTITY FULL").await;
    fixture.sql("CREATE PUBLICATION tidegate_shapes_default").await;
    fixture.ready().await
}

/// The statements that the error names.
async fn statements(fixture: &Fixture, table: &str) -> String {
    let refused = fixture.get(&format!("table={table}&offset=-1")).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{refused:?}");
    let message = refused.json()["message"].as_str().unwrap().to_owned();
    message.split_once("run: ").unwrap_or_else(|| panic!("{message}")).1.to_owned()
}

/// Polls until the shape has ended.
async fn ended(reader: &mut ShapeReader, fixture: &Fixture) {
    let before = reader.refetches;
    let ended = async {
        while reader.refetches == before {
            reader.poll(fixture).await;
        }
    };
    tokio::time::timeout(LIMIT, ended).await.expect("the shape ends");
}

async fn reached(reader: &mut ShapeReader, fixture: &Fixture, ids: &[&str]) {
    let reached = async {
        while reader.column("id") != ids {
            reader.poll(fixture).await;
        }
    };
    let found = tokio::time::timeout(LIMIT, reached).await;
    found.unwrap_or_else(|_| panic!("{ids:?}: {:?}", reader.rows));
}

/// [`reached`] while the server may not follow the database.
async fn written(reader: &mut ShapeReader, fixture: &Fixture, ids: &[&str]) {
    let written = async {
        while reader.column("id") != ids {
            let reply = fixture.get(&reader.query(reader.offset != "-1")).await;
            if reply.status != StatusCode::SERVICE_UNAVAILABLE {
                reader.apply(&reply);
            }
        }
    };
    let found = tokio::time::timeout(LIMIT, written).await;
    found.unwrap_or_else(|_| panic!("{ids:?}: {:?} {:?}", reader.rows, fixture.server.status()));
}

/// A row filter leaves out inserts, and a column list makes updates of the table fail.
#[tokio::test(flavor = "multi_thread")]
async fn filtered_publication_is_refused() {
    let fixture = manual(|options| options.publication = PublicationMode::Manual).await;
    for limited in ["items WHERE (id > 10)", "items (id, n)"] {
        fixture.sql(format!("ALTER PUBLICATION tidegate_shapes_default SET TABLE {limited}")).await;
        let statements = statements(&fixture, "items").await;
        fixture.sql(statements).await;
        let mut reader = fixture.load("table=items").await;
        let id = reader.rows.len() + 1;
        fixture.sql(format!("INSERT INTO items VALUES ({id}, {id})")).await;
        while reader.rows.len() < id {
            reader.poll(&fixture).await;
        }
        // A filter that comes later ends the shape.
        fixture.sql(format!("ALTER PUBLICATION tidegate_shapes_default SET TABLE {limited}")).await;
        ended(&mut reader, &fixture).await;
    }
}

/// Otherwise changes of partitions have the name of the partitioned table.
#[tokio::test(flavor = "multi_thread")]
async fn publication_via_root_is_refused() {
    let fixture = manual(|options| options.publication = PublicationMode::Manual).await;
    fixture.sql("CREATE TABLE parts (id int8 PRIMARY KEY) PARTITION BY RANGE (id)").await;
    fixture.sql("CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100)").await;
    fixture.sql("ALTER TABLE parts_1 REPLICA IDENTITY FULL").await;
    fixture.sql("ALTER PUBLICATION tidegate_shapes_default ADD TABLE parts").await;
    fixture.sql("ALTER PUBLICATION tidegate_shapes_default SET (publish_via_partition_root = true)").await;
    fixture.sql(statements(&fixture, "parts").await).await;
    let mut reader = fixture.load("table=parts").await;
    fixture.sql("INSERT INTO parts VALUES (1)").await;
    reached(&mut reader, &fixture, &["1"]).await;
    assert_eq!(reader.refetches, 0);
}

/// SH-01: the stream has no changes from before the statement, and the snapshot none of a transaction that is open.
#[tokio::test(flavor = "multi_thread")]
async fn open_writer_is_not_lost_when_others_publish() {
    let fixture = manual(|options| options.publication = PublicationMode::Manual).await;
    let url = fixture.postgres.url_for("postgres", "postgres");
    let (writer, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    writer.batch_execute("BEGIN; INSERT INTO items VALUES (1, 1)").await.unwrap();
    fixture.sql(ADD).await;
    let mut reader = ShapeReader::new("table=items");
    let waits = "SELECT FROM pg_stat_activity WHERE application_name = 'tidegate shapes' AND query LIKE '%pg_locks%'";
    let ((), ()) = tokio::join!(reader.catch_up(&fixture), async {
        let asked = async {
            while fixture.sql(waits).await.is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LIMIT, asked).await.expect("the snapshot waits for the writer");
        writer.batch_execute("COMMIT").await.unwrap();
    });
    assert_eq!(reader.column("id"), ["1"]);
    // A transaction that began later is awaited by no snapshot.
    writer.batch_execute("BEGIN; INSERT INTO items VALUES (2, 2)").await.unwrap();
    let mut other = fixture.load("table=items&where=n%3E0").await;
    writer.batch_execute("COMMIT").await.unwrap();
    reached(&mut other, &fixture, &["1", "2"]).await;
    reached(&mut reader, &fixture, &["1", "2"]).await;
    drop(writer);
    connection.await.unwrap().unwrap();
}

/// SH-25: what was written meanwhile is in no stream.
#[tokio::test(flavor = "multi_thread")]
async fn table_that_is_published_again_ends_its_shapes() {
    let fixture = Fixture::start().await.ready().await;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY, n int)").await;
    let mut reader = fixture.load("table=items").await;
    let statements = [
        "BEGIN; ALTER PUBLICATION tidegate_shapes_default DROP TABLE ONLY items",
        "INSERT INTO items VALUES (1, 1)",
        ADD,
        "COMMIT",
    ];
    fixture.sql(statements.join("; ")).await;
    ended(&mut reader, &fixture).await;
    reader.catch_up(&fixture).await;
    assert_eq!(reader.column("id"), ["1"]);
}

/// SH-25: the slot cannot deliver changes from before the publication; it is created again, and shapes are loaded again.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_publication_is_created_again() {
    for major in [14, 18] {
        let hour = |options: &mut ShapesOptions| options.catalogue_interval = Duration::from_secs(3600);
        let fixture = Fixture::with(major, hour).await.ready().await;
        fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY, n int)").await;
        let mut reader = fixture.load("table=items").await;
        fixture.sql("DROP PUBLICATION tidegate_shapes_default").await;
        fixture.sql("INSERT INTO items VALUES (1, 1)").await;
        written(&mut reader, &fixture, &["1"]).await;
        fixture.sql("INSERT INTO items VALUES (2, 2)").await;
        written(&mut reader, &fixture, &["1", "2"]).await;
        assert!(reader.refetches > 0, "{major}");
    }
}

/// The errors of a database that is not set up name what to do.
#[tokio::test(flavor = "multi_thread")]
async fn errors_of_the_set_up_name_the_remedy() {
    let postgres = || Arc::new(Postgres::builder().setting("wal_level", "replica").start().unwrap());
    let postgres = tokio::task::spawn_blocking(postgres).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(postgres, folder.path().to_owned(), |_| {}).await;
    let refused = fixture.get("table=items&offset=-1").await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.json()["message"].as_str().unwrap().contains("set wal_level = logical"), "{refused:?}");

    let postgres = tokio::task::spawn_blocking(|| crate::fixture::postgres(18)).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let login = DatabaseLogin::from_url(&postgres.url_for("reader", "postgres")).unwrap();
    let manual: fn(&mut ShapesOptions) = |options| options.publication = PublicationMode::Manual;
    let fixture = Fixture::with_login(postgres, folder.path().to_owned(), manual, login).await;
    fixture.sql("CREATE ROLE reader LOGIN; CREATE TABLE items (id int8 PRIMARY KEY)").await;
    fixture.sql("ALTER TABLE items REPLICA IDENTITY FULL; CREATE PUBLICATION tidegate_shapes_default").await;
    fixture.sql(ADD).await;
    let fixture = fixture.ready().await;
    let refused = fixture.get("table=items&offset=-1").await;
    assert!(refused.json()["message"].as_str().unwrap().contains("grant SELECT"), "{refused:?}");
    fixture.sql("GRANT SELECT ON items TO reader").await;
    assert_eq!(fixture.get("table=items&offset=-1").await.status, StatusCode::OK);
}
