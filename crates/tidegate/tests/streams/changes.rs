//! Changes of Postgres as the source, against Postgres 14 and 18.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use tidegate_sandbox::{Major, Postgres};
use tidegate_testkit::Fixture;

use crate::http_server::{HttpServer, Reply};
use crate::process::{Stream, StreamOutput, TempFolder, binary, eventually, http_get, random, versions};

struct Source {
    server: Postgres,
}

impl Source {
    /// A server with the tables of `sql`, a publication for all tables, and a slot.
    fn new(major: u8, sql: &str) -> Self {
        let builder = Postgres::builder().version(Major(major)).setting("wal_level", "logical");
        let source = Self { server: builder.setting("max_wal_senders", "10").start().unwrap() };
        source.sql(sql);
        source.sql("create publication p for all tables");
        source.sql("select pg_create_logical_replication_slot('s', 'pgoutput')");
        source
    }

    fn sql(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.server.simple_query(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    fn one(&self, sql: &str) -> String {
        self.sql(sql)[0][0].clone().unwrap_or_default()
    }

    fn from(&self) -> String {
        let url = self.server.url();
        format!("{url}{}publication=p&slot=s", if url.contains('?') { '&' } else { '?' })
    }

    fn start(&self, more: &[&str]) -> Stream {
        let from = self.from();
        let fixed = ["--from", &from, "--snapshot", "none", "--heartbeat", "0", "--status-interval", "100ms"];
        Stream::start(fixed.iter().chain(more))
    }

    /// Runs a stream to standard output until `records` have arrived.
    fn read(&self, records: usize, more: &[&str]) -> Vec<Value> {
        let stream = self.start(&[&["--to", "-", "-q"], more].concat());
        eventually("the records arrive", || stream.lines().len() >= records);
        let ended = stop(stream);
        ended.lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until the slot is confirmed up to the current end of the WAL.
    fn until_confirmed(&self) {
        let end = self.one("select pg_current_wal_lsn()");
        let sql = format!("select confirmed_flush_lsn >= '{end}' from pg_replication_slots where slot_name = 's'");
        eventually("the slot is confirmed", || self.one(&sql) == "t");
    }
}

fn stop(stream: Stream) -> StreamOutput {
    stream.signal(Signal::TERM);
    stream.wait().expect(0)
}

/// The members of a record that do not depend on the run.
fn stable(record: &Value) -> Value {
    let mut record = record.clone();
    for name in ["commit_lsn", "xid", "commit_time"] {
        assert!(record.as_object_mut().unwrap().remove(name).is_some(), "{name} is missing in {record}");
    }
    record
}

/// CH-38, CH-43, CH-46, CH-47: every operation, an unchanged TOAST value, and values of all kinds of types.
#[test]
fn records_describe_each_operation() {
    for major in versions() {
        let source = Source::new(
            major,
            "create table t (id int primary key, b bool, n numeric, f float8, at timestamptz, j jsonb, a text[], x bytea, \
             doc text)",
        );
        source.sql("alter table t alter doc set storage external");
        source.sql(
            "insert into t values (1, true, 'NaN', 1.5, '2026-01-31T12:00:00.5Z', '{\"a\":[1,null]}', '{x,\"y,z\",null}', \
             '\\x00ff', repeat('d', 5000))",
        );
        source.sql("update t set b = null where id = 1");
        source.sql("delete from t where id = 1");
        source.sql("truncate t restart identity");
        source
            .sql("begin; select pg_logical_emit_message(true, 'note', 'héllo'); insert into t (id) values (2); commit");
        let records = source.read(6, &["--name", "orders"]);
        let doc = "d".repeat(5_000);
        assert_eq!(
            stable(&records[0]),
            json!({
                "op": "insert", "schema": "public", "table": "t", "key": {"id": 1}, "before": null,
                "after": {
                    "id": 1, "b": true, "n": "NaN", "f": 1.5, "at": "2026-01-31T12:00:00.5Z", "j": {"a": [1, null]},
                    "a": ["x", "y,z", null], "x": "AP8=", "doc": doc
                },
                "seq": 0, "last": true
            })
        );
        let update = stable(&records[1]);
        assert_eq!((&update["unchanged"], &update["after"]["b"]), (&json!(["doc"]), &Value::Null));
        assert!(update["after"].get("doc").is_none(), "a value that was not sent is absent: {update}");
        assert_eq!(
            stable(&records[2]),
            json!({
                "op": "delete", "schema": "public", "table": "t", "key": {"id": 1}, "after": null,
                "before": {"id": 1}, "before_is": "key", "seq": 0, "last": true
            })
        );
        assert_eq!((&records[3]["op"], &records[3]["restart_identity"]), (&json!("truncate"), &json!(true)));
        // A message has no key, so either of the two may arrive first.
        let is_message = records[4]["op"] == "message";
        let (message, insert) = if is_message { (&records[4], &records[5]) } else { (&records[5], &records[4]) };
        assert_eq!(
            (&message["content"], &message["seq"], &message["last"]),
            (&json!("héllo"), &json!(0), &json!(false))
        );
        assert_eq!((&insert["op"], &insert["seq"], &insert["last"]), (&json!("insert"), &json!(1), &json!(true)));
        source.until_confirmed();
        let again = source.start(&["--to", "-", "-q"]);
        source.sql("insert into t (id) values (3)");
        eventually("the next change arrives", || !again.lines().is_empty());
        let lines = stop(again).lines;
        assert_eq!(lines.len(), 1, "acknowledged changes do not come again (CH-05)");
    }
}

/// CH-44: the delete of the old key and the insert of the new one, between the changes of both.
#[test]
fn key_change_is_a_delete_and_an_insert() {
    for major in versions() {
        let source = Source::new(major, "create table t (id int primary key, v int)");
        source.sql("insert into t values (1, 0), (2, 0)");
        source.sql(
            "begin; delete from t where id = 2; update t set id = 2, v = 1 where id = 1; update t set v = 2; commit",
        );
        let records = source.read(6, &[]);
        // The first insert may arrive late: it has another key.
        let is_second = |record: &&Value| record["commit_lsn"] == records[5]["commit_lsn"];
        let second: Vec<_> = records.iter().filter(is_second).collect();
        let found: Vec<_> =
            second.iter().map(|record| (record["op"].as_str().unwrap(), &record["key"]["id"])).collect();
        assert_eq!(
            found,
            [("delete", &json!(2)), ("delete", &json!(1)), ("insert", &json!(2)), ("update", &json!(2))],
            "{records:?}"
        );
        assert_eq!(second[1]["seq"], second[2]["seq"]);
    }
}

/// CH-49, CH-50: rows keep the columns that they were written with, and a record announces the new ones.
#[test]
fn new_columns_are_announced_before_their_rows() {
    for major in versions() {
        let source = Source::new(major, "create table t (id int primary key)");
        source.sql("insert into t values (1)");
        source.sql("alter table t add c text default 'x'");
        source.sql("insert into t values (2)");
        let records = source.read(3, &[]);
        assert_eq!(records[0]["after"], json!({"id": 1}));
        assert_eq!((&records[1]["op"], &records[1]["added"]), (&json!("schema"), &json!(["c"])));
        assert_eq!(records[2]["after"], json!({"id": 2, "c": "x"}));
    }
}

#[test]
fn schema_change_stops_if_configured() {
    let source = Source::new(18, "create table t (id int primary key)");
    let stream = source.start(&["--to", "-", "--schema-change", "stop"]);
    source.sql("insert into t values (1)");
    source.sql("alter table t add c text");
    source.sql("insert into t values (2)");
    let ended = stream.wait().expect(1);
    assert_eq!(ended.lines.len(), 1);
    assert!(ended.errors.contains("columns added: c"), "{}", ended.errors);
}

#[test]
fn debezium_and_cloudevents_envelopes_are_complete() {
    let source = Source::new(18, "create table t (id int primary key, d date, doc text)");
    source.sql("alter table t alter doc set storage external; alter table t replica identity default");
    source.sql("insert into t values (1, '1970-01-02', repeat('d', 5000))");
    source.sql("update t set d = null");
    let records = source.read(2, &["--envelope", "debezium", "--name", "orders"]);
    let insert = &records[0];
    assert_eq!((&insert["op"], &insert["before"], &insert["after"]["d"]), (&json!("c"), &Value::Null, &json!(1)));
    let from = &insert["source"];
    assert_eq!(
        (&from["connector"], &from["name"], &from["db"]),
        (&json!("postgresql"), &json!("orders"), &json!("postgres"))
    );
    assert_eq!((&from["schema"], &from["table"], &from["snapshot"]), (&json!("public"), &json!("t"), &json!("false")));
    assert!(from["lsn"].is_u64() && from["txId"].is_u64() && insert["ts_ms"].is_i64(), "{insert}");
    assert_eq!((&records[1]["op"], &records[1]["after"]["doc"]), (&json!("u"), &json!("__debezium_unavailable_value")));
    source.sql("insert into t values (2)");
    let events = source.read(1, &["--envelope", "cloudevents", "--name", "orders"]);
    let event = events.last().unwrap();
    assert_eq!((&event["specversion"], &event["type"]), (&json!("1.0"), &json!("tidegate.change.insert")));
    assert_eq!((&event["source"], &event["subject"]), (&json!("/tidegate/orders"), &json!("public.t")));
    assert_eq!(event["data"]["after"]["id"], 2);
}

/// CH-40, CH-48: values that were not sent have no placeholder, whatever their type; and types need no registry, so that those
/// that are made or changed later are known.
#[test]
fn types_need_no_placeholder_and_no_registry() {
    for major in versions() {
        let source = Source::new(
            major,
            "create type mood as enum ('ok'); \
             create table t (id int primary key, n int, a text[], u uuid[], j jsonb, x bytea, m mood)",
        );
        for column in ["a", "u", "j", "x"] {
            source.sql(&format!("alter table t alter {column} set storage external"));
        }
        let stream = source.start(&["--to", "-", "-q"]);
        source.sql(
            "insert into t select 1, 0, array[repeat('a', 5000)], array_agg(gen_random_uuid()), \
             to_jsonb(repeat('j', 5000)), decode(repeat('00', 5000), 'hex'), 'ok' from generate_series(1, 500)",
        );
        source.sql("update t set n = 1");
        source.sql("alter type mood add value 'new'");
        source.sql("create type pair as (a int, b text); alter table t add p pair");
        source.sql("insert into t (id, m, p) values (2, 'new', row(1, 'b'))");
        eventually("the records arrive", || stream.lines().len() >= 4);
        let lines = stop(stream).lines;
        let records: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let update = records.iter().find(|record| record["op"] == "update").unwrap();
        assert_eq!(
            (&update["unchanged"], &update["after"]),
            (&json!(["a", "u", "j", "x"]), &json!({"id": 1, "n": 1, "m": "ok"}))
        );
        let last = records.iter().find(|record| record["key"]["id"] == 2).unwrap();
        assert_eq!((&last["after"]["m"], &last["after"]["p"]), (&json!("new"), &json!("(1,b)")));
    }
}

/// CH-32: a publication that exists is not altered, so that the start waits for no lock of its tables.
#[test]
fn existing_publication_is_not_altered() {
    let source = Source::new(18, "create table t (id int primary key); create table u (id int primary key)");
    source.sql("drop publication p; create publication p for table t");
    source.sql("select pg_drop_replication_slot('s'), pg_create_logical_replication_slot('s', 'pgoutput')");
    let version =
        "select concat(xmin, ' ', (select string_agg(xmin::text, ',') from pg_publication_rel)) from pg_publication";
    let before = source.one(version);
    let address = (std::net::Ipv4Addr::LOCALHOST, source.server.port()).into();
    let mut lock = tidegate_testkit::Startup::tcp(address, "postgres", "postgres").connect();
    lock.ok("begin; lock table t, u in share row exclusive mode; insert into t values (1)");
    let state = TempFolder::new();
    let stream = source.start(&["--to", "-", "--create", "--tables", "public.t", "--state", &state.path("state")]);
    eventually("the stream runs", || stream.errors().contains("change stream started"));
    lock.ok("commit");
    eventually("the record arrives", || stream.lines().len() == 1);
    stop(stream);
    assert_eq!(source.one(version), before);
}

/// CH-73: a record that the sink refuses holds neither the others nor the slot.
#[test]
fn refused_record_does_not_hold_the_slot() {
    let source = Source::new(18, "create table t (id bigint primary key)");
    let server = HttpServer::start(|request| {
        let record: Value = serde_json::from_str(&request.body).unwrap();
        Reply::Status(if record["key"]["id"] == 3 { 400 } else { 200 })
    });
    let folder = TempFolder::new();
    let (url, dead) = (server.url("/"), folder.path("dead"));
    let accepted = |before: usize| {
        let bodies = server.bodies().into_iter().skip(before);
        let records = bodies.map(|body| serde_json::from_str::<Value>(&body).unwrap());
        let inserts = records.filter(|record| record["op"] == "insert" && record["key"]["id"] != 3);
        inserts.map(|record| record["key"]["id"].as_u64()).collect::<BTreeSet<_>>().len()
    };
    // The position of the server is that of the commit.
    let commit = |sql: &str| source.sql(&format!("begin; set local synchronous_commit = on; {sql}; commit"));
    commit("insert into t select generate_series(1, 10)");
    let stream = source.start(&["--to", &url, "--dead-letter", &dead]);
    eventually("the others arrive", || accepted(0) == 9);
    source.until_confirmed();
    stream.signal(Signal::TERM);
    stream.wait().expect(3);
    assert_eq!((accepted(0), folder.read("dead").lines().count()), (9, 1));
    // A parked record stays in the spool.
    let before = server.bodies().len();
    commit("delete from t; insert into t select generate_series(1, 10)");
    let state = folder.path("state");
    let stream = source.start(&["--to", &url, "--exhausted", "park", "--attempts", "1", "--state", &state]);
    eventually("the others arrive", || accepted(before) == 9);
    source.until_confirmed();
    stop(stream);
}

/// A loss of changes is counted, and the slot is shown as lost. The gateway stays ready: clients do not need the stream.
#[test]
fn lost_slot_is_shown_and_counted() {
    let source = Source::new(18, "create table t (id bigint primary key)");
    let fixture = Fixture::new(env!("CARGO_BIN_EXE_tidegate"), 18);
    let (table, folder) = (fixture.create_table("id bigint"), TempFolder::new());
    // The range of ports is used by this test alone.
    let address = tidegate_testkit::free_address(10_100..10_500);
    let gateway = fixture.gateway(&format!(
        "[metrics]\naddresses = [\"{address}\"]\n[[streams]]\nname = \"orders\"\nfrom = \"{}\"\n\
         to = \"gateway://postgres@postgres\"\nstate = \"{}\"\nsql = \"insert into {table} values ($1)\"\n\
         params = [\"/after/id\"]\nsnapshot = \"none\"\n",
        source.from(),
        folder.path("state"),
    ));
    let row = || gateway.show("STREAMS").into_iter().next().unwrap_or_default();
    source.sql("insert into t values (1)");
    eventually("the row arrives", || row().get("done").is_some_and(|done| done == "1"));
    assert_eq!(row()["gaps"], "0");
    gateway.console().ok("STREAM STOP orders");
    source.sql("select pg_drop_replication_slot('s')");
    gateway.console().ok("STREAM START orders");
    eventually("the stream has failed", || row()["state"] == "failed");
    assert_eq!((row()["gaps"].as_str(), row()["slot_state"].as_str()), ("1", "lost"), "{:?}", row());
    assert_eq!(gateway.show("SLOTS")[0]["state"], "lost");
    let metrics = http_get(address, "/metrics");
    assert!(metrics.contains("tidegate_stream_gaps_total{name=\"orders\"} 1"), "{metrics}");
    assert!(http_get(address, "/ready").starts_with("HTTP/1.1 200 "));
}

/// CH-41 among them: compaction would lose values that an update does not have.
#[test]
fn errors_name_the_cause_and_the_remedy() {
    let source = Source::new(18, "create table t (id int primary key)");
    let url = source.server.url();
    let run = |more: &[&str]| Stream::run(["--from", &url, "--to", "-"].iter().chain(more)).expect(1).errors;
    let errors = run(&[]);
    assert!(errors.contains("the stream has no publication") && errors.contains("CREATE PUBLICATION"), "{errors}");
    let errors = run(&["--publication", "p", "--slot", "none"]);
    assert!(errors.contains("slot"), "{errors}");
    let errors = run(&["--publication", "p", "--slot", "No"]);
    assert!(errors.contains("is not a name of a slot"), "{errors}");
    let errors = run(&["--publication", "p", "--compact"]);
    assert!(errors.contains("compact would lose values"), "{errors}");
}

/// The keys and numbers of a ledger that random transactions wrote, and those that were committed.
struct Ledger {
    next: BTreeMap<u64, u64>,
    committed: BTreeSet<(u64, u64)>,
}

impl Ledger {
    const TABLE: &str = "create table ledger (k bigint, n bigint, pad text, primary key (k, n))";

    fn new() -> Self {
        Self { next: BTreeMap::new(), committed: BTreeSet::new() }
    }

    /// Writes a random transaction; a fifth is rolled back, and some have a savepoint that is rolled back.
    fn write(&mut self, source: &Source, random: &mut fastrand::Rng) {
        let mut sql = "begin;".to_owned();
        let mut written = Vec::new();
        for _ in 0..random.usize(1..20) {
            let key = random.u64(0..10);
            let n = self.next.entry(key).or_default();
            *n += 1;
            let insert = format!("insert into ledger values ({key}, {n}, repeat('x', {}));", random.usize(0..3_000));
            if random.u8(..8) == 0 {
                sql += &format!("savepoint a; {insert} rollback to a;");
            } else {
                sql += &insert;
                written.push((key, *n));
            }
        }
        if random.u8(..5) == 0 {
            source.sql(&(sql + "rollback"));
        } else {
            source.sql(&(sql + "commit"));
            self.committed.extend(written);
        }
    }

    /// Asserts that `delivered` has each committed row, nothing else, and the first deliveries of a key in order.
    #[track_caller]
    fn check(&self, delivered: impl IntoIterator<Item = (u64, u64)>) {
        let (mut seen, mut newest) = (BTreeSet::new(), BTreeMap::new());
        for (key, n) in delivered {
            assert!(self.committed.contains(&(key, n)), "({key}, {n}) was not committed");
            if seen.insert((key, n)) {
                let before = newest.insert(key, n);
                assert!(before.is_none_or(|before| before < n), "{key}: {n} first came after {before:?}");
            }
        }
        let missing: Vec<_> = self.committed.difference(&seen).collect();
        assert!(missing.is_empty(), "lost: {missing:?}");
    }
}

/// Kills the stream at random times while transactions are written, and returns what was delivered, in order.
fn deliver_despite_kills(major: u8, more: &[&str], rounds: usize) -> Vec<(u64, u64)> {
    let mut random = random();
    let source = Source::new(major, Ledger::TABLE);
    source.sql("create table sink (id bigserial primary key, k bigint, n bigint)");
    source.sql("drop publication p; create publication p for table ledger");
    source.sql("select pg_drop_replication_slot('s'), pg_create_logical_replication_slot('s', 'pgoutput')");
    let (to, sql) = (source.server.url(), "insert into sink (k, n) values ($1, $2)");
    let sink = [
        "--to",
        &to,
        "--sql",
        sql,
        "--param",
        "/after/k",
        "--param",
        "/after/n",
        "--key",
        "/after/k",
        "--attempts",
        "0",
    ];
    let mut ledger = Ledger::new();
    let count = || source.one("select count(*) from sink").parse::<usize>().unwrap();
    for _ in 0..rounds {
        let (stream, until) = (source.start(&[&sink, more].concat()), count() + random.usize(1..60));
        eventually("more records arrive", || {
            ledger.write(&source, &mut random);
            count() >= until
        });
        stream.kill9();
    }
    let stream = source.start(&[&sink, more].concat());
    let distinct = "select count(distinct (k, n)) from sink";
    eventually("all records arrive", || source.one(distinct) == ledger.committed.len().to_string());
    source.until_confirmed();
    stop(stream);
    let number = |text: &Option<String>| text.as_deref().unwrap().parse::<u64>().unwrap();
    let rows = source.sql("select k, n from sink order by id");
    let delivered: Vec<_> = rows.iter().map(|row| (number(&row[0]), number(&row[1]))).collect();
    ledger.check(delivered.iter().copied());
    delivered
}

/// The delivery checker without a spool: the slot is confirmed when the sink has the records.
#[test]
fn kills_lose_nothing_and_keep_order() {
    for major in versions() {
        deliver_despite_kills(major, &[], 4);
    }
}

/// The delivery checker with a spool.
#[test]
fn kills_with_a_spool_lose_nothing_and_keep_order() {
    for major in versions() {
        let folder = TempFolder::new();
        deliver_despite_kills(major, &["--state", &folder.path("state"), "--spool-bytes", "16777216"], 4);
    }
}

/// Exactly once into Postgres: the position is stored in the transaction of the records.
#[test]
fn kills_repeat_nothing_with_order_commit() {
    for major in versions() {
        let folder = TempFolder::new();
        for more in [&[][..], &["--state", &folder.path("state")]] {
            let once = [&["--order", "commit", "--batch", "50"], more].concat();
            let delivered = deliver_despite_kills(major, &once, 4);
            let distinct: BTreeSet<_> = delivered.iter().copied().collect();
            assert_eq!(distinct.len(), delivered.len(), "records were applied twice");
        }
    }
}

/// The sink is away: the slot is confirmed by the spool until that is full, and everything arrives later.
#[test]
fn spool_takes_what_the_sink_does_not() {
    let source = Source::new(18, "create table t (id bigint primary key, pad text)");
    let folder = TempFolder::new();
    let state = ["--state", &folder.path("state"), "--spool-bytes", "16777216", "--name", "away"];
    let away = ["--to", "http://127.0.0.1:1/", "--attempts", "0", "--retry-wait", "1s"];
    let stream = source.start(&[&away[..], &state].concat());
    source.sql("insert into t select n, repeat('x', 1000) from generate_series(1, 2000) n");
    source.until_confirmed();
    let lag =
        "select pg_current_wal_lsn() - confirmed_flush_lsn > 8000000 from pg_replication_slots where slot_name = 's'";
    let mut next = 2_000;
    eventually("the spool is full, and Postgres keeps the WAL", || {
        source.sql(&format!(
            "insert into t select n, repeat('x', 1000) from generate_series({next} + 1, {next} + 2000) n"
        ));
        next += 2_000;
        source.one(lag) == "t"
    });
    stream.kill9();
    // The sink acknowledged no record, so each record comes once, also the records of the transaction that the kill has cut.
    let records = source.read(next, &state);
    let ids: BTreeSet<_> = records.iter().map(|record| record["after"]["id"].as_u64().unwrap()).collect();
    assert_eq!((records.len(), ids.len()), (next, next), "records are lost or repeated");
    assert_eq!(ids, (1..=next as u64).collect());
}

#[test]
fn full_spool_stops_the_stream_if_configured() {
    let source = Source::new(18, "create table t (id bigint primary key, pad text)");
    let folder = TempFolder::new();
    let state = ["--state", &folder.path("state"), "--spool-bytes", "16777216", "--spool-full", "stop"];
    let away = ["--to", "http://127.0.0.1:1/", "--attempts", "0", "--retry-wait", "1s", "--drain", "0s"];
    let stream = source.start(&[&away[..], &state].concat());
    for start in 0..30 {
        source.sql(&format!(
            "insert into t select {start} * 1000 + n, repeat('x', 1000) from generate_series(1, 1000) n"
        ));
    }
    let ended = stream.wait().expect(1);
    assert!(ended.errors.contains("the spool is full"), "{}", ended.errors);
}

/// CH-24: two processes on one spool; and a spool of another stream is refused.
#[test]
fn spool_belongs_to_one_stream() {
    let source = Source::new(18, "create table t (id bigint primary key)");
    source.sql("create publication q for table t");
    let folder = TempFolder::new();
    let state = folder.path("state");
    let arguments = ["--to", "-", "--state", &state, "--name", "one"];
    let first = source.start(&arguments);
    source.sql("insert into t values (1)");
    eventually("the record arrives", || first.lines().len() == 1);
    let from = source.from();
    let second = Stream::run(["--from", &from].iter().chain(&arguments)).expect(1);
    assert!(second.errors.contains("another journal owns"), "{}", second.errors);
    stop(first);
    let from = from.replace("publication=p", "publication=q");
    let other = Stream::run(["--from", &from].iter().chain(&arguments)).expect(1);
    assert!(other.errors.contains("publication p") && other.errors.contains("publication q"), "{}", other.errors);
}

fn slots(source: &Source, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(binary());
    let output = command.arg("slots").arg(source.server.url()).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// CH-74: slots are listed, created, advanced and dropped, and not by mistake.
#[test]
fn slots_are_managed_with_refusals() {
    for major in versions() {
        let source = Source::new(major, "create table t (id bigint primary key)");
        let (is_ok, text) = slots(&source, &[]);
        assert!(is_ok && text.lines().count() == 2 && text.lines().all(|line| line.len() <= 80), "{text}");
        let (is_ok, text) = slots(&source, &["create", "tidegate_a", "--publication", "none"]);
        assert!(!is_ok && text.contains("CREATE PUBLICATION none"), "{text}");
        let (is_ok, text) = slots(&source, &["create", "tidegate_a", "--publication", "p"]);
        assert!(is_ok && text.contains("created tidegate_a"), "{text}");
        let (is_ok, text) = slots(&source, &["--json"]);
        let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert!(is_ok && first["slot"] == "s" && first["held_wal_bytes"].is_u64(), "{text}");
        // The servers of the tests do not wait for the WAL of a commit otherwise, and their position is behind.
        source.sql("begin; set local synchronous_commit = on; insert into t values (1); commit");
        let end = source.one("select pg_current_wal_lsn()");
        let (is_ok, text) = slots(&source, &["advance", "tidegate_a", &end]);
        assert!(!is_ok && text.contains("never delivered") && text.contains("--force"), "{text}");
        let (is_ok, text) = slots(&source, &["advance", "tidegate_a", &end, "--force"]);
        assert!(is_ok && text.contains("skipped"), "{text}");
        let reached = "select confirmed_flush_lsn from pg_replication_slots where slot_name = 'tidegate_a'";
        let (is_ok, text) = slots(&source, &["advance", "tidegate_a", &source.one(reached)]);
        assert!(is_ok && text.contains("nothing to do"), "{text}");
        assert!(!slots(&source, &["advance", "tidegate_a", "0/1", "--force"]).0, "a slot does not go back");
        let (is_ok, text) = slots(&source, &["drop", "absent"]);
        assert!(!is_ok && text.contains("slot absent does not exist"), "{text}");
        let (is_ok, text) = slots(&source, &["drop", "s"]);
        assert!(!is_ok && text.contains("another program"), "{text}");
        assert!(slots(&source, &["drop", "tidegate_a"]).0);
        let stream = source.start(&["--to", "-"]);
        eventually("the slot is read", || {
            source.one("select active from pg_replication_slots where slot_name = 's'") == "t"
        });
        let (is_ok, text) = slots(&source, &["advance", "s", "FFFF/0", "--force"]);
        assert!(!is_ok && text.contains("is read by process"), "{text}");
        stop(stream);
        assert!(slots(&source, &["drop", "s", "--force"]).0);
        assert_eq!(slots(&source, &[]).1, "no replication slots\n");
    }
}

/// The console shows slot and spool. A statement for rows gets neither messages nor definitions nor
/// markers, and refuses a TRUNCATE.
#[test]
fn console_shows_the_slot_and_rows_stay_rows() {
    let source = Source::new(18, "create table t (id bigint primary key)");
    let fixture = Fixture::new(env!("CARGO_BIN_EXE_tidegate"), 18);
    let (table, folder) = (fixture.create_table("id bigint"), TempFolder::new());
    let gateway = fixture.gateway(&format!(
        "[[streams]]\nname = \"orders\"\nfrom = \"{}\"\nto = \"gateway://postgres@postgres\"\nstate = \"{}\"\n\
         sql = \"insert into {table} values ($1)\"\nparams = [\"/after/id\"]\nsnapshot = \"none\"\ntx_markers = true\n\
         wal_max = 1000000000\n\
         status_interval = \"100ms\"\nheartbeat = \"200ms\"\n",
        source.from(),
        folder.path("state"),
    ));
    let count = || fixture.server.value(&format!("select count(*) from {table} where id is not null"));
    source.sql("insert into t select generate_series(1, 10)");
    eventually("the rows arrive", || count() == "10");
    let slot = || gateway.show("SLOTS").into_iter().next().unwrap_or_default();
    let number = |row: &BTreeMap<String, String>, column: &str| row[column].parse::<u64>().unwrap_or(0);
    eventually("the slot is shown", || {
        let row = slot();
        row.get("inserts").is_some_and(|inserts| inserts == "10")
            && row["lag_ms"] == "0"
            && number(&row, "held_wal_bytes") > 0
            && row["delivered_lsn"] != "0/0"
    });
    let row = slot();
    let texts = ["stream", "slot", "state", "wal_status", "wal_max", "failover", "updates", "open_tx_bytes"];
    let expected = ["orders", "s", "streaming", "reserved", "1000000000", "no", "0", "0"];
    assert_eq!(texts.map(|column| row[column].as_str()), expected, "{row:?}");
    assert!(number(&row, "spool_bytes") > 0 && row["spool_bytes_max"] == "10737418240", "{row:?}");
    let stream = gateway.show("STREAMS").into_iter().next().unwrap();
    assert_eq!((stream["slot"].as_str(), stream["slot_state"].as_str()), ("s", "streaming"), "{stream:?}");
    source.sql("select pg_logical_emit_message(true, 'p', 'x'), pg_logical_emit_message(false, 'p', 'x')");
    source.sql("alter table t add column v text; insert into t values (11, 'x')");
    eventually("the next row arrives", || count() == "11");
    assert_eq!(fixture.server.value(&format!("select count(*) from {table}")), "11", "a record became a row of NULLs");
    source.sql("truncate t");
    let is_refused = || gateway.show("STREAMS")[0]["last_error"].contains("TRUNCATE of public.t has no row");
    eventually("the TRUNCATE is refused", is_refused);
}

/// The WAL that the slot holds has a bound, and passing it is an error that names the loss.
#[test]
fn held_wal_drops_the_slot_if_configured() {
    let source = Source::new(18, "create table t (id bigint primary key, pad text)");
    let away = ["--to", "http://127.0.0.1:1/", "--attempts", "0", "--retry-wait", "1s", "--drain", "0s"];
    let bound = ["--wal-max", "1048576", "--wal-full", "drop_slot"];
    source.sql("insert into t select n, repeat('x', 1000) from generate_series(1, 3000) n");
    let stream = source.start(&[&away[..], &bound].concat());
    let ended = stream.wait().expect(1);
    assert!(ended.errors.contains("was dropped, as configured"), "{}", ended.errors);
    assert_eq!(source.one("select count(*) from pg_replication_slots"), "0");
}

/// CH-53: a transaction of more than the spool, streamed by the server before its commit.
#[test]
fn transaction_larger_than_the_spool_is_delivered() {
    for major in versions() {
        let source = Source::new(major, "create table t (id bigint primary key, pad text)");
        source.sql("alter system set logical_decoding_work_mem = '64kB'");
        source.sql("select pg_reload_conf()");
        let folder = TempFolder::new();
        let state = ["--state", &folder.path("state"), "--spool-bytes", "16777216", "--tx-memory", "1048576"];
        let rows = 30_000;
        source.sql(&format!("insert into t select n, repeat('x', 1000) from generate_series(1, {rows}) n"));
        let records = source.read(rows, &[&state[..], &["--order", "commit"]].concat());
        let ids: Vec<_> = records.iter().map(|record| record["after"]["id"].as_u64().unwrap()).collect();
        assert!(ids == (1..=rows as u64).collect::<Vec<_>>(), "{} records", ids.len());
    }
}
