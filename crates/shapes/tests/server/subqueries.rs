//! Shapes with `column IN (SELECT …)`.

use std::collections::BTreeMap;

use tidegate_shapes::ShapesOptions;

use crate::fixture::{Fixture, LIMIT, ShapeReader};

async fn issues() -> Fixture {
    issues_with(|_| {}).await
}

async fn issues_with(change: fn(&mut ShapesOptions)) -> Fixture {
    let fixture = Fixture::with(18, change).await.ready().await;
    fixture.sql("CREATE TABLE issues (id int8 PRIMARY KEY, project int, title text)").await;
    fixture.sql("CREATE TABLE members (project int, name text, PRIMARY KEY (project, name))").await;
    fixture.sql("INSERT INTO issues VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 2, 'c'), (4, NULL, 'd')").await;
    fixture.sql("INSERT INTO members VALUES (1, 'ann'), (2, 'bob')").await;
    fixture
}

fn shape(condition: &str) -> String {
    let condition: String = condition.bytes().map(|byte| format!("%{byte:02X}")).collect();
    format!("table=issues&where={condition}&params[1]=ann")
}

const ANN: &str = "project IN (SELECT project FROM members WHERE name = $1)";
const NESTED: &str = "project IN (SELECT project FROM members WHERE name IN (SELECT title FROM issues WHERE id > 10)) \
                      AND $1 = 'ann'";

/// The rows that the shape of a condition has to have, sorted.
async fn expected_rows(fixture: &Fixture, condition: &str) -> Vec<Vec<Option<String>>> {
    let sql = format!("SELECT id, title FROM issues WHERE {}", condition.replace("$1", "'ann'"));
    let mut rows = fixture.sql(sql).await;
    rows.sort();
    rows
}

/// The rows of a client, in the form of [`expected_rows`].
fn ids_and_titles(reader: &ShapeReader) -> Vec<Vec<Option<String>>> {
    let mut rows: Vec<_> = reader.rows.values().map(|row| vec![row["id"].clone(), row["title"].clone()]).collect();
    rows.sort();
    rows
}

/// Polls until the shape has these rows.
async fn reaches(reader: &mut ShapeReader, fixture: &Fixture, ids: &[&str]) {
    let reached = async {
        while reader.column("id") != ids {
            // After a 409, the shape is loaded again.
            match reader.offset.as_str() {
                "-1" => reader.catch_up(fixture).await,
                _ => drop(reader.poll(fixture).await),
            }
        }
    };
    let reached = tokio::time::timeout(LIMIT, reached).await;
    assert!(reached.is_ok(), "{ids:?}: {reader:?}");
}

/// SH-56: rows move with the membership, in the same log; a fresh client has the same rows.
#[tokio::test(flavor = "multi_thread")]
async fn rows_move_with_the_result_of_the_subquery() {
    let fixture = issues().await;
    let mut reader = fixture.load(&shape(ANN)).await;
    assert_eq!(reader.column("id"), ["1"]);
    let cases: [(&str, &[&str]); 9] = [
        ("INSERT INTO members VALUES (2, 'ann')", &["1", "2", "3"]),
        ("UPDATE issues SET title = 'new' WHERE id = 2", &["1", "2", "3"]),
        ("DELETE FROM members WHERE project = 1", &["2", "3"]),
        ("INSERT INTO issues VALUES (5, 2, 'e'), (6, 1, 'f')", &["2", "3", "5"]),
        (
            "BEGIN; INSERT INTO members VALUES (1, 'ann'); UPDATE issues SET project = 1 WHERE id = 5; \
          DELETE FROM issues WHERE id = 3; COMMIT",
            &["1", "2", "5", "6"],
        ),
        ("UPDATE members SET name = 'eve' WHERE name = 'ann'", &[]),
        ("INSERT INTO members VALUES (2, 'ann'), (3, 'ann')", &["2"]),
        ("UPDATE issues SET project = 3 WHERE id = 1", &["1", "2"]),
        ("UPDATE members SET project = 4 WHERE (project, name) = (2, 'ann')", &["1"]),
    ];
    for (sql, ids) in cases {
        fixture.sql(sql).await;
        reaches(&mut reader, &fixture, ids).await;
        let fresh = fixture.load(&shape(ANN)).await;
        assert_eq!((&fresh.rows, &fresh.handle), (&reader.rows, &reader.handle), "{sql}");
    }
    assert_eq!(reader.refetches, 0);
}

/// NULL in the result makes NOT IN true for no row.
#[tokio::test(flavor = "multi_thread")]
async fn negated_subquery_follows_nulls() {
    let fixture = issues().await;
    fixture.sql("CREATE TABLE hidden (project int)").await;
    let mut reader = fixture.load(&shape("project NOT IN (SELECT project FROM hidden) AND $1 = 'ann'")).await;
    assert_eq!(reader.column("id"), ["1", "2", "3", "4"], "nothing is hidden");
    fixture.sql("INSERT INTO hidden VALUES (2)").await;
    reaches(&mut reader, &fixture, &["1"]).await;
    fixture.sql("INSERT INTO hidden VALUES (NULL)").await;
    reaches(&mut reader, &fixture, &[]).await;
    fixture.sql("DELETE FROM hidden WHERE project IS NULL").await;
    reaches(&mut reader, &fixture, &["1"]).await;
    assert_eq!(reader.refetches, 0);
}

/// Rows move by the transaction that changes the result, after its own changes.
#[tokio::test(flavor = "multi_thread")]
async fn moved_rows_belong_to_their_transaction() {
    let fixture = issues().await;
    let mut reader = fixture.load(&shape(ANN)).await;
    let sql = "BEGIN; INSERT INTO members VALUES (2, 'ann'); DELETE FROM members WHERE project = 1; \
               UPDATE issues SET title = 'new' WHERE id = 1; COMMIT";
    let (reply, _) = tokio::join!(reader.poll(&fixture), fixture.sql(sql));
    let messages = reply.json().as_array().unwrap().clone();
    let (up_to_date, changes) = messages.split_last().unwrap();
    assert_eq!(up_to_date["headers"]["control"], "up-to-date");
    let of = |name: &str| -> Vec<String> {
        changes.iter().map(|message| message["headers"][name].to_string().replace('"', "")).collect()
    };
    assert_eq!(of("operation"), ["update", "delete", "insert", "insert"]);
    assert_eq!(of("last"), ["null", "null", "null", "true"]);
    let (txids, lsns) = (of("txids"), of("lsn"));
    assert!(txids[0] != "null" && txids.iter().all(|txid| *txid == txids[0]), "{messages:?}");
    assert!(lsns.iter().all(|lsn| *lsn == lsns[0]), "{messages:?}");
}

/// Where all rows may move, they have no transaction IDs; the snapshot that follows names the transactions.
#[tokio::test(flavor = "multi_thread")]
async fn compared_rows_end_with_their_snapshot() {
    let fixture = issues().await;
    fixture.sql("CREATE TABLE hidden (project int); INSERT INTO hidden VALUES (1), (NULL)").await;
    let condition = "project NOT IN (SELECT project FROM hidden) AND $1 = 'ann'";
    let mut reader = fixture.load(&shape(condition)).await;
    let (reply, _) = tokio::join!(reader.poll(&fixture), fixture.sql("DELETE FROM hidden WHERE project IS NULL"));
    let messages = reply.json().as_array().unwrap().clone();
    let [first, second, end, up_to_date] = messages.as_slice() else { panic!("{messages:?}") };
    for message in [first, second] {
        assert_eq!(message["headers"]["operation"], "insert");
        assert!(message["headers"].get("txids").is_none() && message["headers"]["lsn"].is_string(), "{message}");
    }
    assert_eq!((&second["headers"]["last"], &end["headers"]["control"]), (&true.into(), &"snapshot-end".into()));
    assert_eq!(up_to_date["headers"]["control"], "up-to-date");
}

/// A result inside of another one moves rows by value as well.
#[tokio::test(flavor = "multi_thread")]
async fn nested_result_moves_rows_of_its_transaction() {
    let fixture = issues().await;
    let mut reader = fixture.load(&shape(NESTED)).await;
    let (reply, _) = tokio::join!(reader.poll(&fixture), fixture.sql("INSERT INTO issues VALUES (11, NULL, 'bob')"));
    let messages = reply.json().as_array().unwrap().clone();
    let [first, second, up_to_date] = messages.as_slice() else { panic!("{messages:?}") };
    for message in [first, second] {
        assert_eq!(message["headers"]["operation"], "insert");
        assert!(message["headers"]["txids"].is_array(), "{message}");
    }
    assert_eq!((&second["headers"]["last"], reader.column("id")), (&true.into(), vec!["2".to_owned(), "3".to_owned()]));
    assert_eq!(up_to_date["headers"]["control"], "up-to-date");
}

/// The rows of the table between two subqueries are read in parts, and move more values than are searched for.
#[tokio::test(flavor = "multi_thread")]
async fn nested_result_of_many_rows_moves_rows() {
    let fixture = issues().await;
    fixture.sql("INSERT INTO members SELECT number, 'bob' FROM generate_series(100, 50000) number").await;
    for log in ["", "&log=changes_only"] {
        fixture.sql("DELETE FROM issues WHERE id = 11").await;
        let mut reader = fixture.load(&(shape(NESTED) + log)).await;
        fixture.sql("INSERT INTO issues VALUES (11, 200, 'bob')").await;
        reaches(&mut reader, &fixture, &["11", "2", "3"]).await;
        fixture.sql("UPDATE issues SET title = 'eve' WHERE id = 11").await;
        reaches(&mut reader, &fixture, &[]).await;
        assert_eq!(reader.refetches, 0);
    }
}

/// How often a log has each row of a table without primary key.
async fn row_counts(fixture: &Fixture, shape: &str) -> (String, BTreeMap<String, i64>) {
    let (mut query, mut counts) = (format!("{shape}&offset=-1"), BTreeMap::new());
    loop {
        let reply = fixture.get(&query).await;
        for message in reply.changes() {
            let count = match message["headers"]["operation"].as_str().unwrap() {
                "insert" => 1,
                "delete" => -1,
                other => panic!("unknown operation {other}"),
            };
            *counts.entry(message["value"]["title"].as_str().unwrap().to_owned()).or_default() += count;
        }
        if reply.is_up_to_date() {
            counts.retain(|_, count| *count != 0);
            return (reply.handle().to_owned(), counts);
        }
        query = format!("{shape}&handle={}&offset={}", reply.handle(), reply.offset());
    }
}

/// SH-62: equal rows move together, and are counted after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn equal_rows_without_key_are_counted() {
    let mut fixture = issues().await;
    fixture.sql("DELETE FROM members WHERE name = 'ann'; CREATE TABLE notes (project int, title text)").await;
    fixture.sql("INSERT INTO notes VALUES (1, 'a'), (2, 'b'), (2, 'b'), (2, 'c')").await;
    let shapes = ["", "&log=changes_only"].map(|log| shape(ANN).replace("issues", "notes") + log);
    let mut handles = Vec::new();
    for shape in &shapes {
        handles.push(fixture.load(shape).await.handle);
    }
    let one = "DELETE FROM notes WHERE ctid = (SELECT min(ctid) FROM notes WHERE title = 'b')";
    let cases = [
        ("INSERT INTO members VALUES (2, 'ann')".to_owned(), vec![("b", 2), ("c", 1)]),
        (one.to_owned(), vec![("b", 1), ("c", 1)]),
        (
            "INSERT INTO notes VALUES (2, 'b'), (2, 'b'); UPDATE notes SET title = 'b' WHERE title = 'c'".to_owned(),
            vec![("b", 4)],
        ),
        ("UPDATE members SET project = 1 WHERE name = 'ann'".to_owned(), vec![("a", 1)]),
        (format!("UPDATE members SET project = 2 WHERE name = 'ann'; {one}"), vec![("b", 3)]),
    ];
    for (number, (sql, expected)) in cases.into_iter().enumerate() {
        match number % 2 {
            0 => drop(fixture.sql(sql.clone()).await),
            _ => fixture = fixture.restart_after(&sql).await,
        }
        let expected: BTreeMap<String, i64> =
            expected.iter().map(|(title, count)| ((*title).to_owned(), *count)).collect();
        for (shape, handle) in shapes.iter().zip(&handles) {
            let reached = async {
                while row_counts(&fixture, shape).await != (handle.clone(), expected.clone()) {
                    tokio::task::yield_now().await;
                }
            };
            let reached = tokio::time::timeout(LIMIT, reached).await;
            assert!(reached.is_ok(), "{sql}, {shape}: {:?}", row_counts(&fixture, shape).await);
        }
    }
}

/// Events of the table of a subquery end the shape.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_the_inner_table_end_the_shape() {
    let fixture = issues().await;
    let mut reader = fixture.load(&shape(ANN)).await;
    for (round, sql) in ["TRUNCATE members", "ALTER TABLE members ADD COLUMN more int"].into_iter().enumerate() {
        fixture.sql(sql).await;
        while reader.refetches <= round {
            reader.poll(&fixture).await;
        }
        reader.catch_up(&fixture).await;
    }
    fixture.sql("INSERT INTO members VALUES (2, 'ann')").await;
    reaches(&mut reader, &fixture, &["2", "3"]).await;
    assert_eq!(reader.refetches, 2);
}

/// SH-09, SH-60: a shape goes on after a restart, with what has changed meanwhile in both tables and without it.
#[tokio::test(flavor = "multi_thread")]
async fn shapes_with_subqueries_survive_a_restart() {
    let conditions = [
        ANN,
        "project NOT IN (SELECT project FROM members WHERE name = $1)",
        "project IN (SELECT project FROM members WHERE name IN (SELECT title FROM issues)) OR $1 = 'eve'",
    ];
    survive_restarts(issues().await, &conditions, "").await;
}

/// The hashes of all rows do not fit into memory: a part of the rows is compared at a time.
#[tokio::test(flavor = "multi_thread")]
async fn rows_are_compared_in_parts() {
    let fixture = issues_with(|options| options.comparison_bytes_max = 300).await;
    let conditions = [ANN, "project NOT IN (SELECT project FROM members WHERE name = $1) OR id > 3"];
    survive_restarts(fixture, &conditions, "").await;
}

/// SH-09: no row is in the shape when its log begins, so that a client of the changes has all of them.
#[tokio::test(flavor = "multi_thread")]
async fn log_of_changes_survives_a_restart() {
    let fixture = issues().await;
    fixture.sql("DELETE FROM members WHERE name = 'ann'").await;
    let conditions = [
        ANN,
        "id > 4 AND project NOT IN (SELECT project FROM members WHERE name = $1)",
        "title = 'e' OR project IN (SELECT project FROM members WHERE name = $1)",
        "project IN (SELECT project FROM members WHERE name IN (SELECT title FROM issues)) AND $1 = 'ann'",
        "project IN (SELECT project FROM members WHERE name NOT IN (SELECT title FROM issues WHERE title <> 'e')) AND id > 4 \
         AND $1 = 'ann'",
    ];
    survive_restarts(fixture, &conditions, "&log=changes_only").await;
}

/// Restarts a server, with changes while it does not run. No client has to load its shape again.
async fn survive_restarts(mut fixture: Fixture, conditions: &[&str], more: &str) {
    let shape = |condition: &str| shape(condition) + more;
    let mut readers = Vec::new();
    for condition in conditions {
        readers.push(fixture.load(&shape(condition)).await);
    }
    let changes = [
        "SELECT",
        "INSERT INTO members VALUES (2, 'ann')",
        "UPDATE issues SET title = 'bob' WHERE id = 1; DELETE FROM members WHERE project = 1",
        "INSERT INTO issues VALUES (5, 2, 'e'); DELETE FROM issues WHERE id = 2; UPDATE issues SET project = 1 WHERE id = 3",
        "INSERT INTO members VALUES (1, 'ann'); DELETE FROM members WHERE project = 2; \
         INSERT INTO issues VALUES (6, 2, 'e'), (7, 1, 'f')",
        "SELECT",
    ];
    for (round, sql) in changes.into_iter().enumerate() {
        // The slot keeps what happens while no server runs.
        fixture = fixture.restart_after(sql).await;
        fixture.sql(format!("UPDATE issues SET title = 'round {round}' WHERE id = 4")).await;
        for (condition, reader) in conditions.iter().zip(&mut readers) {
            let expected = expected_rows(&fixture, condition).await;
            let reached = async {
                loop {
                    if ids_and_titles(reader) == expected {
                        break;
                    }
                    reader.poll(&fixture).await;
                }
            };
            let reached = tokio::time::timeout(LIMIT, reached).await;
            assert!(reached.is_ok(), "round {round}, {condition}: {expected:?} {:?}", reader.rows);
            let fresh = fixture.load(&shape(condition)).await;
            assert_eq!((&fresh.rows, &fresh.handle), (&reader.rows, &reader.handle), "round {round}, {condition}");
        }
    }
    assert!(readers.iter().all(|reader| reader.refetches == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_subqueries_are_refused() {
    let fixture = issues().await;
    for (condition, part) in [
        ("project IN (SELECT project FROM nothing) AND $1 = ''", "does not exist"),
        ("project IN (SELECT m.project FROM members m JOIN members n ON $1 = '')", "a join in a subquery"),
        ("EXISTS (SELECT FROM members WHERE name = $1)", "EXISTS (SELECT …)"),
        ("project IN (SELECT project FROM members WHERE title = $1)", "outer query"),
    ] {
        let reply = fixture.get(&format!("{}&offset=-1", shape(condition))).await;
        assert_eq!(reply.status, 400, "{condition}: {reply:?}");
        let texts = reply.json()["errors"]["where"].to_string();
        assert!(texts.contains(part), "{condition}: {texts}");
    }
    let subset = "table=issues&offset=now&subset__where=project%20IN%20(SELECT%20project%20FROM%20members)";
    let reply = fixture.get(subset).await;
    assert_eq!(reply.status, 400);
    assert!(reply.json()["errors"]["subset"]["where"].to_string().contains("subquery"), "{reply:?}");
}

/// Transactions of both tables, each with one statement per table, so that writers cannot deadlock.
async fn write(fixture: &Fixture, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..60 {
        let (project, name) = (rng.u8(1..6), ["ann", "bob", "eve"][rng.usize(..3)]);
        let (id, other) = (rng.u8(1..30), rng.u8(1..6));
        let members = match rng.u8(..4) {
            0 => format!("DELETE FROM members WHERE project = {project} AND name = '{name}'"),
            1 => format!("INSERT INTO members VALUES ({project}, '{name}') ON CONFLICT DO NOTHING"),
            _ => "SELECT".to_owned(),
        };
        let issues = match rng.u8(..5) {
            0 => format!("DELETE FROM issues WHERE id = {id}"),
            1 => format!("UPDATE issues SET project = {other} WHERE id = {id}"),
            2 => format!("UPDATE issues SET title = '{name}', project = NULL WHERE id = {id}"),
            _ => format!("INSERT INTO issues VALUES ({id}, {other}, '{name}') ON CONFLICT DO NOTHING"),
        };
        fixture
            .sql(format!("BEGIN; {members}; {issues}; {}", if rng.u8(..8) == 0 { "ROLLBACK" } else { "COMMIT" }))
            .await;
    }
}

/// SH-55, SH-56: after transactions of concurrent writers, a client that follows a shape has the rows of the query.
#[tokio::test(flavor = "multi_thread")]
async fn rows_equal_the_query_after_concurrent_writes() {
    let fixture = issues().await;
    let seed = fastrand::u64(..1 << 32);
    println!("seed {seed}");
    let conditions = [
        ANN,
        "project NOT IN (SELECT project FROM members WHERE name = $1)",
        "project IN (SELECT project FROM members WHERE name = $1) OR title = 'eve'",
        "project IN (SELECT project FROM members WHERE name IN (SELECT title FROM issues WHERE id < 15)) AND $1 = 'ann'",
    ];
    let mut readers = Vec::new();
    for condition in conditions {
        readers.push(fixture.load(&shape(condition)).await);
    }
    let writers = async {
        tokio::join!(write(&fixture, seed), write(&fixture, seed + 1));
    };
    let follow = async {
        loop {
            let polls = readers.iter_mut().map(|reader| async {
                match reader.offset.as_str() {
                    "-1" => reader.catch_up(&fixture).await,
                    _ => drop(reader.poll(&fixture).await),
                }
            });
            futures_util::future::join_all(polls).await;
        }
    };
    tokio::select! {
        () = writers => {}
        () = follow => {}
    }
    for (condition, reader) in conditions.into_iter().zip(&mut readers) {
        let expected = expected_rows(&fixture, condition).await;
        let reached = async {
            loop {
                // A row that moves twice may have its last state in a later message.
                if ids_and_titles(reader) == expected && fixture.load(&shape(condition)).await.rows == reader.rows {
                    break;
                }
                reader.catch_up(&fixture).await;
            }
        };
        let reached = tokio::time::timeout(LIMIT, reached).await;
        assert!(reached.is_ok(), "seed {seed}, {condition}: {expected:?}");
    }
}
