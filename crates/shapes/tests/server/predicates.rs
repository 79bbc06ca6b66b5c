//! Shapes with a predicate.

use serde_json::json;

use crate::fixture::Fixture;

async fn items() -> Fixture {
    let fixture = Fixture::start().await.ready().await;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY, owner text, n int)").await;
    fixture.sql("INSERT INTO items VALUES (1, 'ann', 1), (2, 'bob', 2), (3, NULL, NULL)").await;
    fixture
}

/// An update into the shape is an insert, an update out of it a delete; NULL is not in the shape.
#[tokio::test(flavor = "multi_thread")]
async fn rows_move_into_the_shape_and_out_of_it() {
    let fixture = items().await;
    let mut reader = fixture.load("table=items&where=owner%20%3D%20%241&params[1]=ann").await;
    assert_eq!(reader.column("id"), ["1"]);
    for (sql, operation, ids) in [
        ("UPDATE items SET owner = 'ann' WHERE id = 2", "insert", &["1", "2"][..]),
        ("UPDATE items SET n = 9 WHERE id = 2", "update", &["1", "2"]),
        ("UPDATE items SET owner = NULL WHERE id = 1", "delete", &["2"]),
        ("INSERT INTO items VALUES (4, 'ann', 0)", "insert", &["2", "4"]),
        ("DELETE FROM items WHERE id = 2", "delete", &["4"]),
    ] {
        fixture.sql("UPDATE items SET n = n WHERE owner = 'bob'").await;
        let (reply, ()) = tokio::join!(reader.poll(&fixture), async {
            fixture.sql(sql).await;
        });
        let changes = reply.changes();
        assert_eq!((changes.len(), changes[0]["headers"]["operation"].as_str()), (1, Some(operation)), "{sql}");
        assert_eq!(reader.column("id"), ids, "{sql}");
    }
    let fresh = fixture.load("table=items&where=owner%20%3D%20%241&params[1]=ann").await;
    assert_eq!(fresh.rows, reader.rows);
}

/// Predicates that differ in spelling only are one shape.
#[tokio::test(flavor = "multi_thread")]
async fn equal_predicates_are_one_shape() {
    let fixture = items().await;
    let queries = ["where=n%3D1", "where=%20n%20%3D%20%201%20", "where=n%3D%241&params[1]=1"];
    let mut handles = std::collections::BTreeSet::new();
    for query in queries {
        handles.insert(fixture.get(&format!("table=items&{query}&offset=-1")).await.handle().to_owned());
    }
    assert_eq!(handles.len(), 1);
}

/// The texts of the protocol: locations count from the start of the predicate, and from `SELECT 1 WHERE ` for syntax errors.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_predicates_get_the_location() {
    let fixture = items().await;
    let reply = fixture.get("table=items&offset=-1&where=1%20x%201").await;
    let expected = json!({"where": ["At location 17: syntax error at or near \"x\""]});
    assert_eq!((reply.status.as_u16(), &reply.json()["errors"]), (400, &expected));
    for predicate in
        ["nope%20%3D%201", "id%20IN%20(SELECT%201)", "n%20%3D%20%241", "random()%20%3E%200", "n", "true)%20OR%20(true"]
    {
        let reply = fixture.get(&format!("table=items&offset=-1&where={predicate}")).await;
        assert_eq!(reply.status, 400, "{predicate}: {reply:?}");
        assert!(reply.json()["errors"]["where"].is_array(), "{predicate}: {reply:?}");
    }
}

/// SH-53: a predicate that fails on a row ends its own shape.
#[tokio::test(flavor = "multi_thread")]
async fn failing_predicate_ends_its_own_shape() {
    let fixture = items().await;
    let mut failing = fixture.load("table=items&where=10%20%2F%20n%20%3E%200").await;
    let mut other = fixture.load("table=items").await;
    let (failed, reply, ()) = tokio::join!(failing.poll(&fixture), other.poll(&fixture), async {
        fixture.sql("INSERT INTO items VALUES (5, 'x', 0)").await;
    });
    assert_eq!((failed.status.as_u16(), reply.status.as_u16()), (409, 200));
    let refused = fixture.get("table=items&offset=-1&where=10%20%2F%20n%20%3E%200").await;
    assert_eq!(refused.status, 400, "the snapshot fails as well: {refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn subset_is_limited_to_the_shape() {
    let fixture = items().await;
    let path = "table=items&where=n%20%3E%201&offset=now&subset__where=id%20%3C%20%241&subset__params=%7B%221%22%3A%2210%22%7D";
    let reply = fixture.get(path).await;
    let rows = reply.json()["data"].as_array().unwrap().len();
    assert_eq!((reply.status.as_u16(), rows), (200, 1), "{reply:?}");
    let wrong = fixture.get("table=items&offset=now&subset__where=1%20x%201").await;
    assert!(wrong.json()["errors"]["subset"]["where"].is_array(), "{wrong:?}");
    let hidden = fixture.get("table=items&queryable_columns=id&offset=now&subset__where=n%20%3D%201").await;
    assert_eq!(hidden.status, 400);
}

/// The database evaluates the predicate of a subset, so its collations hold, for constants as well.
#[tokio::test(flavor = "multi_thread")]
async fn subset_has_the_collations_of_the_database() {
    let fixture = Fixture::start().await.ready().await;
    fixture.sql("CREATE TABLE words (id int8 PRIMARY KEY, word text COLLATE pg_c_utf8)").await;
    fixture.sql("INSERT INTO words VALUES (1, 'Anna'), (2, 'bob'), (3, 'élan')").await;
    for (predicate, ids) in [
        ("word%20%3E%20%24%31&subset__params=%7B%221%22%3A%22b%22%7D", &["2", "3"][..]),
        ("word%20ILIKE%20'B%25'", &["2"]),
        ("lower(word)%20%3D%20'anna'", &["1"]),
        ("'%C3%89LAN'%20ILIKE%20word", &["3"]),
        ("word%20BETWEEN%20'A'%20AND%20'c'", &["1", "2"]),
        ("greatest(word,%20'b')%20%3D%20'b'", &["1"]),
    ] {
        let reply = fixture.get(&format!("table=words&offset=now&subset__where={predicate}")).await;
        assert_eq!(reply.status, 200, "{predicate}: {reply:?}");
        let data = reply.json()["data"].as_array().unwrap().clone();
        let found: Vec<&str> = data.iter().map(|row| row["value"]["id"].as_str().unwrap()).collect();
        assert_eq!(found, ids, "{predicate}");
    }
    // The predicate of a shape is evaluated here.
    assert_eq!(fixture.get("table=words&offset=-1&where=word%20%3E%20'b'").await.status, 400);
    let fails = fixture.get("table=words&offset=now&subset__where=id%20%3D%201%2F0").await;
    assert_eq!((fails.status.as_u16(), fails.json()["errors"]["subset"]["where"].is_array()), (400, true), "{fails:?}");
}
