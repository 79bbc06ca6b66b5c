//! Status, headers and bodies.

use http::Method;
use serde_json::json;

use crate::fixture::{Fixture, ShapeReader};

async fn items() -> Fixture {
    let fixture = Fixture::with(18, |options| {
        options.allow_deletion = true;
        options.chunk_bytes = 10_000;
    });
    let fixture = fixture.await.ready().await;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY, name text)").await;
    fixture.sql("INSERT INTO items VALUES (1, 'one')").await;
    fixture
}

/// SH-32, SH-46: each malformed request is a 400 that no cache keeps.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_requests_get_the_reason() {
    let fixture = items().await;
    let missing = "Table \"public\".\"nope\" does not exist. If the table name contains capitals or special characters you must \
                   quote it.";
    let cases = [
        ("", json!({"offset": ["can't be blank"]})),
        ("table=nope&offset=-1", json!({"table": [missing]})),
        ("table=items&offset=1_1", json!({"handle": ["can't be blank when offset != -1"]})),
        ("table=items&offset=-1_0", json!({"offset": ["has invalid format"]})),
        (
            "table=items&offset=-1&columns=name",
            json!({"columns": ["The list of columns must include all primary key columns, missing: id"]}),
        ),
        (
            "table=items&offset=-1&columns=id,nope",
            json!({"columns": ["The following columns are not found on the table: nope"]}),
        ),
    ];
    for (query, errors) in cases {
        let reply = fixture.get(query).await;
        assert_eq!(reply.status, 400, "{query}");
        assert_eq!(reply.json(), json!({"message": "Invalid request", "errors": errors}), "{query}");
        assert_eq!(reply.header("cache-control"), Some("no-store"));
    }
    fixture.sql("CREATE VIEW v AS SELECT 1 AS id; CREATE UNLOGGED TABLE u (id int8 PRIMARY KEY)").await;
    for table in ["v", "u"] {
        let reply = fixture.get(&format!("table={table}&offset=-1")).await;
        assert_eq!(reply.status, 400, "{reply:?}");
    }
    let body = fixture.request(Method::POST, "/v1/shape?table=items&offset=-1", &[], "[1]").await;
    assert_eq!(
        (body.status.as_u16(), body.json()["message"].as_str()),
        (400, Some("Request body must be a JSON object"))
    );
    let large = "x".repeat(2 << 20);
    let body = fixture.request(Method::POST, "/v1/shape?table=items&offset=-1", &[], &large).await;
    assert_eq!(body.status, 413);
    assert_eq!(fixture.request(Method::GET, "/v2/shape", &[], "").await.status, 404);
    assert_eq!(fixture.request(Method::PUT, "/v1/shape", &[], "").await.status, 405);
}

/// Section 2.5 of the protocol.
#[tokio::test(flavor = "multi_thread")]
async fn answers_have_the_headers_of_their_kind() {
    let fixture = items().await;
    let first = fixture.get("table=items&offset=-1").await;
    let handle = first.handle().to_owned();
    assert_eq!(first.header("content-type"), Some("application/json"));
    let public = "public, max-age=604800, s-maxage=3600, stale-while-revalidate=2629746";
    assert_eq!(first.header("cache-control"), Some(public));
    assert_eq!(first.header("etag"), Some(format!("\"{handle}:-1:0_0\"").as_str()));
    assert_eq!(first.header("access-control-allow-origin"), Some("*"));
    assert!(first.header("access-control-expose-headers").unwrap().contains("electric-handle"));
    assert_eq!(first.header("electric-cursor"), None);
    let end = fixture.get(&format!("table=items&offset=0_0&handle={handle}")).await;
    assert_eq!(end.header("cache-control"), Some("public, max-age=60, stale-while-revalidate=300"));
    assert_eq!((end.offset(), end.header("electric-has-data")), ("0_inf", Some("false")));
    assert_eq!(end.header("electric-up-to-date"), Some(""));
    let control = end.json();
    assert_eq!(control[0]["headers"]["control"], "up-to-date");
    assert!(control[0]["headers"]["global_last_seen_lsn"].as_str().unwrap().parse::<u64>().is_ok());
    let live = format!("table=items&offset=0_inf&handle={handle}&live=true");
    let (live, ()) = tokio::join!(fixture.get(&live), async {
        fixture.sql("INSERT INTO items VALUES (2, 'two')").await;
    });
    assert_eq!(live.header("cache-control"), Some("public, max-age=5, stale-while-revalidate=5"));
    assert!(live.header("electric-cursor").unwrap().parse::<u64>().is_ok());
    assert_eq!(live.header("electric-schema"), None);
    let lsn = live.offset().split_once('_').unwrap().0.to_owned();
    assert_eq!(live.json()[1]["headers"]["global_last_seen_lsn"], json!(lsn));
    assert_eq!(live.json()[0]["headers"]["lsn"], json!(lsn));
    // The first chunk is the same for ever.
    let again = fixture.get("table=items&offset=-1").await;
    assert_eq!((&again.body, again.header("etag")), (&first.body, first.header("etag")));
    let etag = first.header("etag").unwrap();
    let unchanged =
        fixture.request(Method::GET, "/v1/shape?table=items&offset=-1", &[("if-none-match", etag)], "").await;
    assert_eq!((unchanged.status.as_u16(), unchanged.body.len()), (304, 0));
    assert_eq!(unchanged.header("cache-control"), Some(public));
    let head = fixture.request(Method::HEAD, "/v1/shape?table=items&offset=-1", &[], "").await;
    assert_eq!((head.status.as_u16(), head.body.len(), head.header("etag")), (200, 0, Some(etag)));
    let post = fixture.request(Method::POST, "/v1/shape?table=items&offset=-1", &[], "").await;
    assert_eq!((&post.body, post.header("cache-control")), (&first.body, Some("no-cache")));
}

#[tokio::test(flavor = "multi_thread")]
async fn now_starts_at_the_end() {
    let fixture = items().await;
    let now = fixture.get("table=items&offset=now").await;
    assert!(now.is_up_to_date() && now.changes().is_empty(), "{now:?}");
    assert_eq!(now.offset(), "0_inf");
    let live = format!("table=items&offset=0_inf&handle={}&live=true", now.handle());
    let (live, ()) = tokio::join!(fixture.get(&live), async {
        fixture.sql("INSERT INTO items VALUES (2, 'two')").await;
    });
    assert_eq!(live.changes().len(), 1);
    let later = fixture.get("table=items&offset=now").await;
    assert_eq!((later.offset(), later.changes().len()), (live.offset(), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_only_has_no_snapshot() {
    let fixture = items().await;
    let first = fixture.get("table=items&log=changes_only&offset=-1").await;
    assert_eq!((first.json(), first.offset(), first.header("electric-has-data")), (json!([]), "0_0", Some("false")));
    let mut reader = fixture.load("table=items&log=changes_only").await;
    assert!(reader.rows.is_empty());
    let (reply, ()) = tokio::join!(reader.poll(&fixture), async {
        fixture.sql("INSERT INTO items VALUES (2, 'two')").await;
    });
    assert_eq!(reply.changes().len(), 1);
}

/// Large answers come in chunks whose ends never change.
#[tokio::test(flavor = "multi_thread")]
async fn chunks_have_fixed_ends() {
    let fixture = items().await;
    fixture.sql("INSERT INTO items SELECT n, repeat('x', 1000) FROM generate_series(2, 50) n").await;
    let mut reader = fixture.load("table=items").await;
    assert_eq!(reader.rows.len(), 50);
    fixture.sql("UPDATE items SET name = repeat('y', 1000)").await;
    fixture.sql("UPDATE items SET name = repeat('z', 1000)").await;
    while !reader.column("name").iter().all(|name| name.starts_with('z')) {
        reader.poll(&fixture).await;
    }
    let walk = async || {
        let mut walker = ShapeReader::new("table=items");
        let mut chunks = Vec::new();
        loop {
            let reply = fixture.get(&walker.query(false)).await;
            walker.apply(&reply);
            chunks.push((reply.body.len(), reply.offset().to_owned()));
            if reply.is_up_to_date() {
                return (walker.rows, chunks);
            }
        }
    };
    let (rows, chunks) = walk().await;
    assert_eq!(rows, reader.rows);
    let inner = &chunks[..chunks.len() - 1];
    // The last chunk of the snapshot is what is left.
    let full = inner.iter().filter(|(len, _)| (8_000..12_000).contains(len)).count();
    assert!(inner.len() > 12 && full >= inner.len() - 1, "{chunks:?}");
    assert_eq!(walk().await.1[..inner.len()], *inner);
    let fixture = fixture.restart().await;
    let mut after = Vec::new();
    let mut walker = ShapeReader::new("table=items");
    for _ in inner {
        let reply = fixture.get(&walker.query(false)).await;
        walker.apply(&reply);
        after.push((reply.body.len(), reply.offset().to_owned()));
    }
    assert_eq!(after, inner, "the same after a restart");
}

/// SH-31, SH-37: a deleted shape is answered by the handle of the next one, also to requests that wait.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_shape_gets_a_new_handle() {
    let fixture = items().await;
    let mut reader = fixture.load("table=items").await;
    let old = reader.handle.clone();
    let path = format!("/v1/shape?table=items&handle={old}");
    let (polled, deleted) = tokio::join!(reader.poll(&fixture), fixture.request(Method::DELETE, &path, &[], ""));
    assert_eq!((deleted.status.as_u16(), deleted.body.len()), (202, 0));
    assert_eq!(polled.status, 409, "{polled:?}");
    assert_eq!(polled.json(), json!([{"headers": {"control": "must-refetch"}}]));
    assert_eq!(polled.header("cache-control"), Some("public, max-age=60, must-revalidate"));
    let new = polled.handle().to_owned();
    assert_ne!(new, old);
    let stale = fixture.get(&format!("table=items&offset=0_inf&handle={old}")).await;
    assert_eq!((stale.status.as_u16(), stale.handle()), (409, new.as_str()));
    reader.catch_up(&fixture).await;
    assert_eq!((reader.handle.as_str(), reader.rows.len()), (new.as_str(), 1));
    for handle in ["1-1", "nonsense", ""] {
        let unknown = fixture.get(&format!("table=items&offset=0_inf&handle={handle}x")).await;
        assert_eq!((unknown.status.as_u16(), unknown.handle()), (409, new.as_str()));
    }
    let other = fixture.get(&format!("table=items&columns=id&offset=0_inf&handle={new}")).await;
    assert_eq!(other.status, 409, "the handle is of another definition");
    assert_ne!(other.handle(), new);
    assert_eq!(fixture.request(Method::DELETE, "/v1/shape?handle=1-1", &[], "").await.status, 404);
    assert_eq!(fixture.request(Method::DELETE, "/v1/shape", &[], "").await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn position_beyond_the_log_is_refused() {
    let fixture =
        Fixture::with(18, |options| options.long_poll = std::time::Duration::from_secs(1)).await.ready().await;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY)").await;
    let reader = fixture.load("table=items").await;
    for live in ["", "&live=true"] {
        let query = format!("table=items&handle={}&offset=9999999999999_0{live}", reader.handle);
        let reply = fixture.get(&query).await;
        assert_eq!(reply.status, 400);
        assert_eq!(reply.json()["errors"], json!({"offset": ["out of bounds for this shape"]}));
    }
    let idle = fixture.get(&format!("table=items&handle={}&offset=0_inf&live=true", reader.handle)).await;
    assert_eq!((idle.status.as_u16(), idle.header("electric-has-data")), (200, Some("false")));
    let again = fixture.get(&format!("table=items&handle={}&offset=0_inf&live=true", reader.handle)).await;
    assert_ne!(idle.header("etag"), again.header("etag"), "SH-36");
}

#[tokio::test(flavor = "multi_thread")]
async fn secret_and_preflight() {
    let fixture = Fixture::with(18, |options| options.secret = Some("s3".to_owned())).await.ready().await;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY)").await;
    for path in
        ["/v1/shape?table=items&offset=-1", "//v1/shape/?table=items&offset=-1&secret=x", "/v1/%73hape?offset=-1"]
    {
        let reply = fixture.request(Method::GET, path, &[], "").await;
        assert_eq!((reply.status.as_u16(), reply.header("cache-control")), (401, Some("no-store")), "{path}");
        assert!(reply.json()["message"].is_string());
    }
    assert_eq!(fixture.get("table=items&offset=-1&secret=s3").await.status, 200);
    assert_eq!(fixture.get("table=items&offset=-1&api_secret=s3").await.status, 200);
    let headers = [("origin", "https://a.example"), ("access-control-request-headers", "authorization, x-y")];
    let preflight = fixture.request(Method::OPTIONS, "/v1/shape", &headers, "").await;
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.header("access-control-allow-headers"), Some("authorization,x-y"));
    assert_eq!(preflight.header("access-control-allow-origin"), Some("https://a.example"));
    assert_eq!(preflight.header("access-control-max-age"), Some("86400"));
    let health = fixture.request(Method::GET, "/v1/health", &[], "").await;
    assert_eq!((health.status.as_u16(), health.json()), (200, json!({"status": "active"})));
    assert_eq!(fixture.request(Method::GET, "/", &[], "").await.status, 200);
    let denied = fixture.request(Method::DELETE, "/v1/shape?table=items&secret=s3", &[], "").await;
    assert_eq!(denied.status, 405);
}

/// SH-43: a subset is an answer of its own, with rows at a known position.
#[tokio::test(flavor = "multi_thread")]
async fn subset_is_read_from_the_database() {
    let fixture = items().await;
    fixture.sql("INSERT INTO items SELECT n, 'row ' || n FROM generate_series(2, 20) n").await;
    let path = "/v1/shape?table=items&offset=now&log=changes_only";
    let body = json!({"order_by": "id DESC", "limit": 3, "offset": 1}).to_string();
    let reply = fixture.request(Method::POST, path, &[], &body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!((reply.header("electric-snapshot"), reply.header("cache-control")), (Some("true"), Some("no-cache")));
    assert!(reply.header("electric-handle").is_some() && reply.header("electric-offset").is_some());
    assert!(reply.header("electric-schema").is_some());
    let answer = reply.json();
    let ids: Vec<&str> =
        answer["data"].as_array().unwrap().iter().map(|row| row["value"]["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["19", "18", "17"]);
    let metadata = &answer["metadata"];
    assert_eq!(answer["data"][0]["headers"]["snapshot_mark"], metadata["snapshot_mark"]);
    for name in ["xmin", "xmax", "database_lsn"] {
        assert!(metadata[name].as_str().unwrap().parse::<u64>().is_ok(), "{metadata}");
    }
    assert!(metadata["xip_list"].is_array());
    let wrong = fixture.get("table=items&offset=now&subset__order_by=id;DROP").await;
    assert_eq!(wrong.status, 400);
    assert!(wrong.json()["errors"]["subset"]["order_by"].is_array(), "SH-34");
}

/// SH-10, SH-62: snapshot and log have one text form of each type, also in keys.
#[tokio::test(flavor = "multi_thread")]
async fn snapshot_and_log_write_values_alike() {
    let fixture = items().await;
    fixture
        .sql(
            "CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE DOMAIN positive AS int CHECK (VALUE > 0); \
             CREATE TABLE kinds (b bool, c char(5), f4 float4, f8 float8, n numeric(10, 3), d date, ts timestamptz, i interval, \
             y bytea, j jsonb, a int[], t text[], m mood, p positive, u uuid, PRIMARY KEY (b, c)); \
             INSERT INTO kinds VALUES (true, 'ab', 0.1, 1e300, 1.5, '2024-02-29', '2024-01-01 12:00+02', \
             '1 day 02:03:04', '\\xdeadbeef', '{\"a\": [1, null]}', '{1,NULL,3}', '{\"a b\",\"c\\\"d\"}', 'happy', 5, \
             '00000000-0000-0000-0000-000000000001')",
        )
        .await;
    let mut reader = fixture.load("table=kinds").await;
    let snapshot = reader.rows.clone();
    let (reply, ()) = tokio::join!(reader.poll(&fixture), async {
        fixture
            .sql("BEGIN; CREATE TEMP TABLE t AS TABLE kinds; DELETE FROM kinds; INSERT INTO kinds TABLE t; COMMIT")
            .await;
    });
    assert_eq!(reply.changes().len(), 2);
    assert_eq!(reader.rows, snapshot);
    let row = snapshot.values().next().unwrap();
    assert_eq!(
        (row["b"].as_deref(), row["c"].as_deref(), row["i"].as_deref()),
        (Some("t"), Some("ab   "), Some("P1DT2H3M4S"))
    );
    assert_eq!((row["ts"].as_deref(), row["f4"].as_deref()), (Some("2024-01-01 10:00:00+00"), Some("0.1")));
}
