//! Copies of tables before and beside their changes, against Postgres 14 and 18.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tidegate_sandbox::{Major, Postgres};
use tidegate_testkit::poll;

use crate::http_server::{HttpServer, Reply};
use crate::process::{Stream, StreamOutput, TIMEOUT, TempFolder, eventually, random, versions};

/// Tables with a key, with a key of two columns, and without a key; and their copies.
const TABLES: &str = "
    create table t (id bigint primary key, v int, pad text);
    alter table t alter pad set storage external;
    create table c (a int, b text, v int, primary key (b, a));
    create table k (n bigint);
    create schema sink;
    create table sink.t (id bigint primary key, v int, pad text);
    create table sink.c (a int, b text, v int, primary key (b, a));
    create table sink.k (n bigint);
    insert into t select n, 0, repeat('p', 3000) from generate_series(1, 400) n;
    insert into t select n, 0, 'short' from generate_series(401, 3000) n;
    insert into c select n % 7, 'key ' || n, 0 from generate_series(1, 2000) n;
    insert into k select n from generate_series(1, 2000) n;
    analyze";

/// Applies a record to the copy of its table, as often as it comes.
const APPLY: &str = "
    create function sink.apply(r jsonb) returns void language plpgsql as $$
    declare
        after jsonb := r->'after';
        row_key jsonb := r->'key';
    begin
        if r->>'op' = 'truncate' then
            execute format('truncate sink.%I', r->>'table');
        elsif r->>'table' = 'k' then
            insert into sink.k select (after->>'n')::bigint on conflict do nothing;
        elsif r->>'table' = 't' and r->>'op' = 'delete' then
            delete from sink.t where id = (row_key->>'id')::bigint;
        elsif r->>'table' = 't' then
            insert into sink.t select * from jsonb_populate_record(
                coalesce((select t from sink.t t where t.id = (after->>'id')::bigint), null::sink.t), after)
            on conflict (id) do update set v = excluded.v, pad = excluded.pad;
        elsif r->>'table' = 'c' and r->>'op' = 'delete' then
            delete from sink.c where b = row_key->>'b' and a = (row_key->>'a')::int;
        elsif r->>'table' = 'c' then
            insert into sink.c select * from jsonb_populate_record(null::sink.c, after)
            on conflict (b, a) do update set v = excluded.v;
        end if;
    end $$";

/// A server with tables, their copies in the schema `sink`, and streams between them.
struct CopyServer {
    server: Postgres,
    folder: TempFolder,
}

impl CopyServer {
    fn new(major: u8, sql: &str) -> Self {
        let builder = Postgres::builder().version(Major(major)).setting("wal_level", "logical");
        let server = builder.setting("max_wal_senders", "20").start().unwrap();
        let copy = Self { server, folder: TempFolder::new() };
        copy.sql(sql);
        copy
    }

    fn sql(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.server.simple_query(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    fn one(&self, sql: &str) -> String {
        self.sql(sql)[0][0].clone().unwrap_or_default()
    }

    fn is_true(&self, sql: &str) -> bool {
        self.one(sql) == "t"
    }

    fn has_slot(&self) -> bool {
        self.is_true("select exists (select from pg_replication_slots where slot_name = 'tidegate_copy')")
    }

    fn state(&self) -> String {
        self.folder.path("state")
    }

    fn arguments(&self, more: &[&str]) -> Vec<String> {
        let mut url = self.server.url();
        url.push_str(if url.contains('?') { "&publication=p" } else { "?publication=p" });
        let fixed =
            ["--name", "copy", "--heartbeat", "0", "--status-interval", "100ms", "--snapshot-chunk-rows", "150"];
        let mut arguments = vec!["--from".to_owned(), url];
        // Only streams that copy have chunks.
        let fixed = if more.contains(&"none") { &fixed[..6] } else { &fixed[..] };
        arguments.extend(fixed.iter().chain(more).map(|argument| (*argument).to_owned()));
        arguments
    }

    fn start(&self, more: &[&str]) -> Stream {
        Stream::start(self.arguments(more))
    }

    /// Starts a stream that applies its records to the copies.
    fn apply(&self, more: &[&str]) -> Stream {
        let (to, sql) = (self.server.url(), "select sink.apply($1::jsonb)");
        let sink = ["--to", &to, "--sql", sql, "--param", "value", "--attempts", "0", "--create"];
        let tables = ["--tables", "public.t", "--tables", "public.c", "--tables", "public.k"];
        self.start(&[&sink[..], &tables, more].concat())
    }

    /// Runs a stream to standard output until `records` have arrived.
    fn read(&self, records: usize, more: &[&str]) -> Vec<Value> {
        let stream = self.start(&[&["--to", "-", "-q"], more].concat());
        eventually("the records arrive", || stream.lines().len() >= records);
        values(&stop(stream))
    }

    /// Waits until the copies equal the tables; rows without a key may be repeated if they were delivered twice.
    fn until_equal(&self, exactly: bool) {
        let all = if exactly { "all" } else { "" };
        let differences = |table: &str| {
            let differ = |one: &str, other: &str| format!("(table {one} except {all} table {other})");
            let (lacks, has) = (differ(table, &format!("sink.{table}")), differ(&format!("sink.{table}"), table));
            format!(
                "select 'sink.{table} lacks ' || left(r::text, 60) as difference from {lacks} r \
                 union all select 'sink.{table} has ' || left(r::text, 60) from {has} r"
            )
        };
        let sql = ["t", "c", "k"].map(differences).join(" union all ");
        if !poll(TIMEOUT, || self.is_true(&format!("select not exists ({sql})"))) {
            panic!("the copies do not equal the tables: {:?}", self.sql(&format!("{sql} limit 10")));
        }
    }

    /// Waits until the statements that a killed stream has sent have ended, so that none follows those of the next stream.
    fn end_sessions(&self) {
        let left = "from pg_stat_activity where application_name like 'tidegate stream%'";
        self.sql(&format!("select pg_terminate_backend(pid) {left}"));
        eventually("the sessions have ended", || self.is_true(&format!("select count(*) = 0 {left}")));
    }

    /// A table with a key in place of the one without: a copy by chunks, into a sink that takes a row twice as one. A row that is
    /// inserted during the copy of its table comes as a change, and is then read.
    fn give_k_a_key(&self) {
        self.sql(
            "drop table k, sink.k; create table k (n bigint primary key); create table sink.k (like k including all)",
        );
        self.sql("insert into k select n from generate_series(1, 2000) n; analyze k");
    }

    /// Drops the slot, and deletes, truncates and updates rows that the sink has.
    fn lose_changes(&self) {
        self.sql("select pg_drop_replication_slot('tidegate_copy')");
        self.sql("delete from t where id % 3 = 0; delete from c where a = 2");
        self.sql("truncate k; insert into k select n from generate_series(1, 500) n");
        self.sql("update t set v = 7 where id < 100");
    }

    fn write(&self, random: &mut fastrand::Rng, next_k: &mut u64) {
        let (id, other) = (random.u32(1..3300), random.u32(1..3300));
        let v = random.u32(..);
        let sql = match random.u8(..12) {
            0 => format!("delete from t where id = {id}"),
            1 => {
                format!("insert into t values ({id}, {other}, repeat('q', 2500)) on conflict (id) do update set v = 1")
            }
            2 | 3 => format!("update c set v = v + 1 where b = 'key {id}'"),
            // The new key may exist.
            4 => format!("update c set a = a + 100 where b = 'key {id}' and a < 100"),
            5 => format!("delete from c where b = 'key {other}'"),
            6 => format!("insert into c values ({id} % 7, 'key {id}', 5) on conflict do nothing"),
            7 => format!("begin; update t set v = {other} where id between {id} and {id} + 20; rollback"),
            8 => {
                *next_k += 10;
                format!("insert into k select n from generate_series({next_k} - 9, {next_k}) n")
            }
            9 if random.u8(..10) == 0 => "truncate c".to_owned(),
            // The large value is not sent again.
            _ => format!("update t set v = {} where id in ({id}, {other})", v >> 1),
        };
        self.sql(&sql);
    }
}

fn stop(stream: Stream) -> StreamOutput {
    stream.signal(Signal::TERM);
    stream.wait().expect(0)
}

fn values(output: &StreamOutput) -> Vec<Value> {
    output.lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Rounds of the test with kills; `cargo xtask soak` runs more.
fn kill_rounds() -> usize {
    std::env::var("TIDEGATE_COPY_KILLS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(4)
}

/// CH-42, CH-59, CH-60, CH-66: copy and changes together give the tables, while they change and the stream is killed.
#[test]
fn copy_under_load_equals_the_tables_after_kills() {
    let mut random = random();
    for major in versions() {
        let copy = CopyServer::new(major, &format!("{TABLES};{APPLY}"));
        let (state, mut next_k) = (copy.state(), 2000);
        for _ in 0..kill_rounds() {
            let (stream, writes) = (copy.apply(&["--state", &state]), random.usize(1..150));
            eventually("the stream has a slot", || {
                copy.write(&mut random, &mut next_k);
                copy.has_slot()
            });
            (0..writes).for_each(|_| copy.write(&mut random, &mut next_k));
            stream.kill9();
            copy.end_sessions();
        }
        let stream = copy.apply(&["--state", &state]);
        eventually("the copy ends", || {
            copy.write(&mut random, &mut next_k);
            stream.errors().contains("copy of tables is complete") || stream.errors().contains("change stream started")
        });
        copy.until_equal(false);
        (0..30).for_each(|_| copy.write(&mut random, &mut next_k));
        copy.until_equal(false);
        stop(stream);
        let text = std::fs::read_to_string(copy.folder.path("state/copy/copy.json")).unwrap();
        let stored: Value = serde_json::from_str(&text).unwrap();
        let tables = stored["tables"].as_array().unwrap();
        assert!(tables.len() == 3 && tables.iter().all(|table| table["is_done"] == true), "{stored}");
    }
}

/// Each row is read once, and each change applied once: nothing is repeated that has no key to recognise it by.
#[test]
fn copy_without_a_kill_repeats_no_row() {
    let mut random = random();
    for major in versions() {
        let copy = CopyServer::new(major, &format!("{TABLES};{APPLY}"));
        let (state, mut next_k) = (copy.state(), 2000);
        let stream = copy.apply(&["--state", &state, "--order", "table"]);
        eventually("the copy ends", || {
            copy.write(&mut random, &mut next_k);
            stream.errors().matches("copy of tables is complete").count() == 2
        });
        copy.until_equal(true);
        stop(stream);
    }
}

/// A table without a key is copied again as a whole after each kill: a record empties it in the sink first, so that it
/// has each row once. The rows that are written meanwhile come from the spool.
#[test]
fn kills_during_a_keyless_copy_repeat_no_row() {
    let mut random = random();
    for major in versions() {
        let copy = CopyServer::new(major, &format!("{TABLES};{APPLY}"));
        copy.sql("insert into k select n from generate_series(2001, 6000) n");
        let (state, mut next_k) = (copy.state(), 6000);
        let count = || copy.one("select count(*) from sink.k").parse::<u64>().unwrap();
        for _ in 0..kill_rounds() {
            let (stream, until) = (copy.apply(&["--state", &state]), random.u64(1..4000));
            eventually("rows of the copy arrive", || {
                copy.write(&mut random, &mut next_k);
                count() >= until
            });
            assert!(!stream.errors().contains("copy of tables is complete"), "the kill is too late");
            stream.kill9();
            copy.end_sessions();
        }
        let stream = copy.apply(&["--state", &state]);
        eventually("the copy ends", || {
            copy.write(&mut random, &mut next_k);
            stream.errors().matches("copy of tables is complete").count() == 2
        });
        copy.until_equal(true);
        stop(stream);
    }
}

/// CH-63: changes go to the spool while a table without a key is copied, however long the sink takes; the slot is
/// confirmed, and no other slot holds WAL. Time-outs of the server end neither the copy nor the stream after it.
#[test]
fn changes_go_to_the_spool_during_a_copy() {
    for major in versions() {
        let copy = CopyServer::new(major, &format!("{TABLES};{APPLY}"));
        copy.sql("alter system set wal_sender_timeout = '1s'");
        copy.sql("alter system set idle_in_transaction_session_timeout = '500ms'");
        copy.sql("select pg_reload_conf()");
        let is_open = Arc::new(AtomicBool::new(false));
        let opened = Arc::clone(&is_open);
        let server = HttpServer::start(move |_| Reply::Status(if opened.load(Ordering::SeqCst) { 200 } else { 503 }));
        let (url, state) = (server.url("/"), copy.state());
        let tables = ["--tables", "public.t", "--tables", "public.c", "--tables", "public.k"];
        let arguments =
            ["--to", &url, "--attempts", "0", "--retry-wait", "50ms", "--retry-wait-max", "50ms", "--create"];
        let stream = copy.start(&[&arguments[..], &tables, &["--state", &state]].concat());
        eventually("the copy runs", || !server.bodies().is_empty());
        for id in 10_000..10_020 {
            copy.sql(&format!("insert into t values ({id}, 0, 'during the copy'); insert into k values ({id})"));
        }
        let end = copy.one("select pg_current_wal_lsn()");
        let confirmed = format!(
            "select count(*) = 1 and bool_and(confirmed_flush_lsn >= '{end}' and slot_name = 'tidegate_copy') \
             from pg_replication_slots"
        );
        eventually("the slot is confirmed", || copy.is_true(&confirmed));
        // Longer than the time-outs of the server.
        let (first, longer) = (std::time::Instant::now(), std::time::Duration::from_millis(2500));
        eventually("the sink has refused for long", || first.elapsed() > longer);
        is_open.store(true, Ordering::SeqCst);
        let accepted = || {
            let records = server.bodies().into_iter().map(|body| serde_json::from_str::<Value>(&body).unwrap());
            let of_k = records.filter(|record| record["table"] == "k");
            of_k.map(|record| record["after"]["n"].as_u64().unwrap()).collect::<BTreeSet<_>>()
        };
        let expected: BTreeSet<_> = (1..=2000).chain(10_000..10_020).collect();
        eventually("all rows arrive", || accepted() == expected);
        assert!(!stream.errors().contains("the server cannot be used yet"), "{}", stream.errors());
        stop(stream);
    }
}

/// The rows that were deleted while changes were lost do not stay in the sink, with each guarantee.
#[test]
fn new_copy_removes_rows_of_the_old_one() {
    let mut random = random();
    for (major, order) in versions().into_iter().flat_map(|major| [(major, "key"), (major, "table"), (major, "commit")])
    {
        let copy = CopyServer::new(major, &format!("{TABLES};{APPLY}"));
        let (state, mut next_k) = (copy.state(), 2000);
        if order == "commit" {
            // A table without a key cannot be copied exactly once.
            copy.give_k_a_key();
        }
        let options = ["--state", &state, "--order", order, "--batch", "100", "--changes-lost", "resnapshot"];
        let stream = copy.apply(&options);
        copy.until_equal(true);
        stop(stream);
        copy.lose_changes();
        let stream = copy.apply(&options);
        eventually("the loss is reported", || {
            copy.write(&mut random, &mut next_k);
            stream.errors().contains("the tables are copied again")
        });
        (0..100).for_each(|_| copy.write(&mut random, &mut next_k));
        copy.until_equal(true);
        stop(stream);
    }
}

/// A new copy that is killed at any time, also before it has a slot, goes on as a copy that replaces rows.
#[test]
fn kills_of_a_new_copy_leave_no_old_row() {
    let mut random = random();
    for (major, order) in versions().into_iter().flat_map(|major| [(major, "key"), (major, "table"), (major, "commit")])
    {
        let copy = CopyServer::new(major, &format!("{TABLES};{APPLY}"));
        let (state, mut next_k) = (copy.state(), 2000);
        if order == "commit" {
            copy.give_k_a_key();
        }
        let options = ["--state", &state, "--order", order, "--batch", "100", "--changes-lost", "resnapshot"];
        let stream = copy.apply(&options);
        copy.until_equal(true);
        stop(stream);
        copy.lose_changes();
        for _ in 0..kill_rounds() {
            let (stream, writes) = (copy.apply(&options), random.usize(..100));
            eventually("the stream starts", || stream.errors().contains("stream starts"));
            (0..writes).for_each(|_| copy.write(&mut random, &mut next_k));
            stream.kill9();
            copy.end_sessions();
        }
        let stream = copy.apply(&options);
        (0..30).for_each(|_| copy.write(&mut random, &mut next_k));
        // Changes of the table without a key may come again after a kill.
        copy.until_equal(order == "commit");
        stop(stream);
    }
}

/// The state that a kill leaves when it comes between the loss of changes and the new slot: the spool of the lost slot is there.
#[test]
fn interrupted_recovery_begins_a_replacing_copy() {
    for order in ["key", "commit"] {
        let copy = CopyServer::new(18, &format!("{TABLES};{APPLY}"));
        copy.give_k_a_key();
        let state = copy.state();
        let options = ["--state", &state, "--order", order, "--batch", "100", "--changes-lost", "resnapshot"];
        let stream = copy.apply(&options);
        copy.until_equal(true);
        copy.sql("insert into t values (5000, 1, 'a change for the spool')");
        copy.until_equal(true);
        stop(stream);
        copy.lose_changes();
        if order == "commit" {
            copy.sql("truncate tidegate_copies, tidegate_positions");
            copy.sql("insert into tidegate_copies values ('copy', 0, 'begun 1')");
        } else {
            std::fs::write(copy.folder.path("state/copy/copy.json"), "{\"tables\":[],\"repeats\":1}").unwrap();
        }
        let stream = copy.apply(&options);
        copy.until_equal(true);
        assert!(!stream.errors().contains("changes are lost"), "{}", stream.errors());
        stop(stream);
    }
}

/// A statement for rows gets no record that empties its table, and the log names the table.
#[test]
fn new_copy_into_a_statement_for_rows_warns() {
    let copy = CopyServer::new(18, "create table t (id int primary key); create table sink (id int primary key)");
    copy.sql("insert into t values (1), (2)");
    let (to, state) = (copy.server.url(), copy.state());
    let sink = ["--to", &to, "--sql", "insert into sink values ($1) on conflict do nothing", "--param", "/after/id"];
    let options = ["--create", "--tables", "public.t", "--state", &state, "--changes-lost", "resnapshot"];
    let start = || copy.start(&[&sink[..], &options].concat());
    let stream = start();
    eventually("the rows arrive", || copy.one("select count(*) from sink") == "2");
    stop(stream);
    copy.sql("select pg_drop_replication_slot('tidegate_copy'); insert into t values (3)");
    let stream = start();
    eventually("the new row arrives", || copy.one("select count(*) from sink") == "3");
    assert!(stream.errors().contains("rows of an earlier copy stay"), "{}", stream.errors());
    stop(stream);
}

/// Exactly once into Postgres: the progress of the copy is stored in the transaction of its rows, with or without a spool.
#[test]
fn kills_repeat_no_row_with_order_commit() {
    let mut random = random();
    for major in versions() {
        for has_state in [false, true] {
            let sql = "create table t (id bigint primary key, v int); create schema sink; \
                       create table sink.t (id bigint, op text); insert into t select n, 0 from generate_series(1, 3000) n; \
                       create table empty (id int primary key); create publication p for table t, empty";
            let copy = CopyServer::new(major, sql);
            copy.sql("select pg_create_logical_replication_slot('tidegate_copy', 'pgoutput')");
            let (to, insert, state) = (copy.server.url(), "insert into sink.t values ($1, $2)", copy.state());
            let mut arguments = vec!["--to", &to, "--sql", insert, "--param", "/after/id", "--param", "header:op"];
            arguments.extend(["--order", "commit", "--batch", "40", "--attempts", "0", "--snapshot", "initial"]);
            if has_state {
                arguments.extend(["--state", state.as_str()]);
            }
            let mut next = 3000;
            let mut write = || {
                next += 1;
                copy.sql(&format!("insert into t values ({next}, 0)"));
            };
            let count = || copy.one("select count(*) from sink.t").parse::<usize>().unwrap();
            for _ in 0..kill_rounds() {
                let (stream, until) = (copy.start(&arguments), count() + random.usize(1..900));
                eventually("more rows arrive", || {
                    write();
                    count() >= until
                });
                stream.kill9();
            }
            let stream = copy.start(&arguments);
            let missing = "select not exists (select id from t except select id from sink.t)";
            eventually("all rows arrive", || copy.is_true(missing));
            stop(stream);
            let repeated = "select count(*) - count(distinct id) from sink.t where op = 'insert'";
            assert_eq!(copy.one(repeated), "0", "changes were applied twice");
            let repeated = "select count(*) - count(distinct id) from sink.t where op = 'read'";
            assert_eq!(copy.one(repeated), "0", "rows were read twice");
            // The next start copies no row.
            let before = count();
            let stream = copy.start(&arguments);
            write();
            eventually("the next change arrives", || count() > before);
            stop(stream);
            assert_eq!(count(), before + 1);
        }
    }
}

/// The slot shows that a copy with no folder has ended: a copy that was killed leaves none behind, and starts again.
#[test]
fn slot_is_created_by_the_copy() {
    let mut random = random();
    for major in versions() {
        let copy = CopyServer::new(major, &format!("{TABLES};{APPLY}"));
        let mut next_k = 2000;
        // A sink that takes nothing.
        let stream = copy.start(&["--to", "http://127.0.0.1:1/", "--attempts", "0", "--create"]);
        let is_copying = "select exists (select from pg_replication_slots where temporary)";
        eventually("the copy runs", || copy.is_true(is_copying));
        assert!(!copy.has_slot());
        stream.kill9();
        eventually("the temporary slot is gone", || !copy.is_true(is_copying));
        copy.sql("drop publication p");
        let stream = copy.apply(&[]);
        eventually("the copy ends", || {
            copy.write(&mut random, &mut next_k);
            copy.has_slot()
        });
        copy.until_equal(true);
        let log = stream.errors();
        let complete = log.lines().find(|line| line.contains("copy of tables is complete")).unwrap_or_default();
        assert!(complete.contains("rows=") && !complete.contains("rows=0") && !complete.contains("bytes=0"), "{log}");
        stop(stream);
        let again = copy.apply(&[]);
        copy.write(&mut random, &mut next_k);
        copy.until_equal(true);
        assert!(!again.errors().contains("copy of tables begins"), "{}", again.errors());
        stop(again);
    }
}

#[test]
fn read_rows_are_marked_in_each_envelope() {
    for major in versions() {
        let copy = CopyServer::new(
            major,
            "create table t (id int primary key, d date, x bytea); insert into t values (1, '1970-01-02', '\\x00ff'); \
             create table k (v text); insert into k values ('a'); create publication p for table t, k",
        );
        let records = copy.read(2, &["--state", &copy.state(), "--create"]);
        let of = |table: &str| records.iter().find(|record| record["table"] == table).unwrap();
        let read = of("t");
        assert_eq!(
            (&read["op"], &read["key"], &read["after"]),
            (&json!("read"), &json!({"id": 1}), &json!({"id": 1, "d": "1970-01-02", "x": "AP8="}))
        );
        assert!(read["commit_lsn"].is_string() && read["seq"] == 1 && read.get("xid").is_none(), "{read}");
        assert_eq!(
            (&of("k")["op"], &of("k")["key"], &of("k")["after"]["v"]),
            (&json!("read"), &Value::Null, &json!("a"))
        );
        // Both ways to copy, in the envelope of Debezium.
        let folder = copy.folder.path("other");
        let debezium = ["--state", &folder, "--create", "--slot", "d", "--envelope", "debezium"];
        let records = copy.read(2, &debezium);
        let of = |table: &str| records.iter().find(|record| record["source"]["table"] == table).unwrap();
        let (read, exported) = (of("t"), of("k"));
        assert_eq!((&read["op"], &read["before"], &read["after"]["d"]), (&json!("r"), &Value::Null, &json!(1)));
        assert_eq!((&read["source"]["snapshot"], &read["transaction"]), (&json!("incremental"), &Value::Null));
        assert_eq!((&exported["op"], &exported["source"]["snapshot"]), (&json!("r"), &json!("true")));
    }
}

/// The copy alone: it ends, and a later stream goes on at its snapshot.
#[test]
fn copy_alone_ends_where_a_stream_begins() {
    for major in versions() {
        let copy = CopyServer::new(
            major,
            "create table t (id int primary key); insert into t select generate_series(1, 500); \
             create publication p for table t",
        );
        let arguments = ["--to", "-", "--snapshot", "initial_only", "--create"];
        let output = copy.start(&arguments).wait().expect(0);
        assert_eq!(output.lines.len(), 500, "{}", output.errors);
        assert!(copy.has_slot());
        copy.sql("insert into t values (501)");
        let records = copy.read(1, &["--snapshot", "none"]);
        assert_eq!((records.len(), &records[0]["op"], &records[0]["key"]["id"]), (1, &json!("insert"), &json!(501)));
        // The server keeps a slot only if create is set.
        copy.sql("select pg_drop_replication_slot('tidegate_copy')");
        let output = copy.start(&["--to", "-", "--snapshot", "initial_only"]).wait().expect(0);
        assert_eq!((output.lines.len(), copy.has_slot()), (501, false));
    }
}

/// The statement of each error, run as it is, lets the stream start.
#[test]
fn errors_before_the_start_name_the_statement() {
    for major in versions() {
        let copy = CopyServer::new(major, "create table t (id int primary key); create table u (id int primary key)");
        copy.sql("create role cdc login; create table r (id int primary key); alter table r enable row level security");
        let state = copy.state();
        let url = copy.server.url().replacen("postgres://postgres", "postgres://cdc", 1);
        let arguments = |more: &[&str]| {
            let fixed = ["--from", &url, "--publication", "p", "--slot", "s", "--to", "-", "--state", &state];
            fixed.iter().chain(more).map(|argument| (*argument).to_owned()).collect::<Vec<_>>()
        };
        let fails = |part: &str, statement: &str| {
            let errors = Stream::run(arguments(&["--tables", "public.t"])).expect(1).errors;
            assert!(errors.contains(part) && errors.contains(statement), "{part}: {errors}");
            copy.sql(statement);
        };
        fails("cdc", "ALTER ROLE \"cdc\" REPLICATION;");
        let errors = Stream::run(arguments(&[])).expect(1).errors;
        assert!(errors.contains("CREATE PUBLICATION \"p\" FOR TABLE"), "{errors}");
        copy.sql("create publication p for table u, r");
        fails("public.t is not in the publication", "ALTER PUBLICATION \"p\" ADD TABLE \"public\".\"t\"");
        fails("may not read", "GRANT SELECT ON public.t TO \"cdc\"");
        fails("\"s\" does not exist", "SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
        copy.sql("grant select on r, u to cdc");
        let errors = Stream::run(arguments(&[])).expect(1).errors;
        assert!(errors.contains("public.r") && errors.contains("ALTER ROLE \"cdc\" BYPASSRLS"), "{errors}");
        copy.sql("alter role cdc bypassrls; insert into t values (1)");
        let stream = Stream::start(arguments(&[]));
        // The stream, the copy or both deliver it: the slot is older than the row.
        eventually("the row arrives", || !stream.lines().is_empty());
        stop(stream);
        copy.sql("select pg_drop_replication_slot('s'), pg_create_logical_replication_slot('s', 'test_decoding')");
        let other = copy.folder.path("other");
        let errors =
            Stream::run(arguments(&[]).iter().map(|argument| argument.replace(&state, &other))).expect(1).errors;
        assert!(errors.contains("output plugin test_decoding"), "{errors}");
    }
    let server = Postgres::builder().version(Major(18)).setting("wal_level", "replica").start().unwrap();
    server.simple_query("create table t (id int primary key)").unwrap();
    let url = server.url();
    let run = Stream::run(["--from", &url, "--publication", "p", "--to", "-", "--create"]).expect(1);
    assert!(run.errors.contains("ALTER SYSTEM SET wal_level = logical"), "{}", run.errors);
}

#[test]
fn settings_of_a_copy_are_checked() {
    let run = |more: &[&str]| {
        let fixed = ["--from", "postgres://h/d?publication=p", "--to", "-"];
        Stream::run(fixed.iter().chain(more)).expect(1).errors
    };
    let errors = run(&["--snapshot", "initial"]);
    assert!(errors.contains("create = true"), "{errors}");
    let errors = run(&["--snapshot", "initial_only", "--order", "commit"]);
    assert!(errors.contains("no order of commits"), "{errors}");
    let errors = run(&["--tables", "orders"]);
    assert!(errors.contains("public.orders"), "{errors}");
    let both = ["--from", "postgres://h/d?publication=p&snapshot=none", "--to", "-", "--snapshot", "initial_only"];
    let errors = Stream::run(both).expect(1).errors;
    assert!(errors.contains("differs from the snapshot in the URL"), "{errors}");
}

/// CH-10, CH-67, CH-71: a slot that is gone ends the stream, or what is configured happens.
#[test]
fn lost_slot_is_handled_as_configured() {
    for major in versions() {
        let copy = CopyServer::new(major, "create table t (id int primary key); create publication p for table t");
        let state = copy.state();
        let arguments = |lost| ["--state", &state, "--create", "--changes-lost", lost];
        copy.sql("insert into t values (1)");
        assert_eq!(copy.read(1, &arguments("stop"))[0]["op"], "read");
        let lose = |id: u32| {
            copy.sql("select pg_drop_replication_slot('tidegate_copy')");
            copy.sql(&format!("insert into t values ({id})"));
        };
        lose(2);
        let errors = copy.start(&[&["--to", "-"], &arguments("stop")[..]].concat()).wait().expect(1).errors;
        assert!(errors.contains("changes are lost") && errors.contains("changes_lost = \"resnapshot\""), "{errors}");
        assert!(!copy.has_slot(), "a slot is never created again unasked");
        let records = copy.read(3, &arguments("resnapshot"));
        assert_eq!((&records[0]["op"], &records[0]["copy"]), (&json!("truncate"), &json!(true)));
        let mut ids: Vec<_> =
            records[1..].iter().map(|record| (record["op"].clone(), record["key"]["id"].clone())).collect();
        ids.sort_by_key(|(_, id)| id.as_u64());
        assert_eq!(ids, [(json!("read"), json!(1)), (json!("read"), json!(2))]);
        lose(3);
        let stream = copy.start(&[&["--to", "-"], &arguments("skip")[..]].concat());
        // A slot is seen before it is created to the end.
        let is_ready =
            "select count(confirmed_flush_lsn) = 1 from pg_replication_slots where slot_name = 'tidegate_copy'";
        eventually("the slot is ready", || copy.is_true(is_ready));
        copy.sql("insert into t values (4)");
        eventually("the next change arrives", || !stream.lines().is_empty());
        let output = stop(stream);
        assert_eq!(values(&output)[0]["key"]["id"], 4, "the lost change is not delivered");
        assert!(output.errors.contains("goes on without them"), "{}", output.errors);
    }
}

/// CH-64: the server invalidates the slot of a stream that is away.
#[test]
fn invalid_slot_is_replaced_by_a_new_copy() {
    let builder = Postgres::builder().version(Major(18)).setting("wal_level", "logical");
    let server = builder.setting("max_slot_wal_keep_size", "1MB").start().unwrap();
    let copy = CopyServer { server, folder: TempFolder::new() };
    copy.sql("create table t (id int primary key); create publication p for table t; insert into t values (1)");
    let state = copy.state();
    let arguments = ["--state", &state, "--create", "--changes-lost", "resnapshot"];
    copy.read(1, &arguments);
    let lost = "select wal_status = 'lost' from pg_replication_slots where slot_name = 'tidegate_copy'";
    eventually("the slot is lost", || {
        copy.sql("select pg_logical_emit_message(false, 'x', repeat('x', 100000)); select pg_switch_wal()");
        copy.sql("checkpoint");
        copy.is_true(lost)
    });
    copy.sql("insert into t values (2)");
    let records = copy.read(3, &arguments);
    assert!(records[0]["op"] == "truncate" && records[1..].iter().all(|record| record["op"] == "read"), "{records:?}");
}

/// CH-31: the rows that a table had before it was published.
#[test]
fn added_table_is_copied_at_the_next_start() {
    let copy = CopyServer::new(
        18,
        "create table t (id int primary key); create table u (id int primary key); create table k (n int); \
         insert into t values (1); insert into u values (2); create publication p for table t",
    );
    let state = copy.state();
    let arguments = ["--state", state.as_str(), "--create"];
    assert_eq!(copy.read(1, &arguments)[0]["table"], "t");
    copy.sql("alter publication p add table u");
    let records = copy.read(1, &arguments);
    assert_eq!((records.len(), &records[0]["op"], &records[0]["table"]), (1, &json!("read"), &json!("u")));
    // A table without a key is copied as a whole, which does not fit to exactly once.
    copy.sql("alter publication p add table k; create schema sink; create table sink.t (v text)");
    let to = copy.server.url();
    let mut once = vec!["--to", &to, "--sql", "insert into sink.t values ($1)", "--param", "value"];
    once.extend(["--order", "commit", "--snapshot", "initial"]);
    let errors = copy.start(&once).wait().expect(1).errors;
    assert!(errors.contains("public.k has no key") && errors.contains("ADD PRIMARY KEY"), "{errors}");
}

/// The begin and the end of each transaction, with the number of its records.
#[test]
fn markers_announce_transactions() {
    let copy = CopyServer::new(
        18,
        "create table t (id int primary key); create table u (id int primary key); create publication p for all tables",
    );
    copy.sql("select pg_create_logical_replication_slot('tidegate_copy', 'pgoutput')");
    let markers = ["--snapshot", "none", "--order", "commit", "--tx-markers"];
    copy.sql("begin; insert into t values (3), (4); insert into u values (2); commit");
    let records = copy.read(5, &markers);
    let ops: Vec<_> = records.iter().map(|record| record["op"].as_str().unwrap()).collect();
    assert_eq!(ops, ["begin", "insert", "insert", "insert", "end"]);
    let end = &records[4];
    assert_eq!((&end["records"], &end["tables"]), (&json!(3), &json!({"public.t": 2, "public.u": 1})));
    assert_eq!((&end["commit_lsn"], &end["xid"]), (&records[0]["commit_lsn"], &records[1]["xid"]));
    copy.sql("begin; insert into t values (5); insert into u values (3); commit");
    let records = copy.read(4, &[&markers[..], &["--envelope", "debezium"]].concat());
    let name = records[1]["transaction"]["id"].clone();
    assert_eq!(
        records[0],
        json!({"status": "BEGIN", "id": name, "event_count": null, "data_collections": null, "ts_ms": records[0]["ts_ms"]})
    );
    assert_eq!(
        (&records[3]["status"], &records[3]["id"], &records[3]["event_count"]),
        (&json!("END"), &name, &json!(2))
    );
    assert_eq!(
        records[3]["data_collections"],
        json!([
            {"data_collection": "public.t", "event_count": 1}, {"data_collection": "public.u", "event_count": 1}
        ])
    );
    assert_eq!(records[2]["transaction"]["data_collection_order"], 1);
}

/// `tidegate backfill` asks a stream without a console.
#[test]
fn backfill_from_the_command_line() {
    let copy = CopyServer::new(18, &format!("{TABLES};{APPLY}; create publication p for table t, c, k"));
    copy.sql("select pg_create_logical_replication_slot('tidegate_copy', 'pgoutput')");
    let (to, sql, state) = (copy.server.url(), "select sink.apply($1::jsonb)", copy.state());
    let backfill = |name: &str, table: &str| {
        let mut command = std::process::Command::new(crate::process::binary());
        let output = command.args(["backfill", "--state", &state, "--name", name, table]).output().unwrap();
        (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let (is_ok, text) = backfill("copy", "t");
    assert!(!is_ok && text.contains("no stream that can copy a table listens at"), "{text}");
    let sink = ["--to", &to, "--sql", sql, "--param", "value", "--state", &state, "--snapshot", "none"];
    let stream = copy.start(&sink);
    eventually("the stream runs", || backfill("copy", "public.t").0);
    eventually("the copy equals the table", || copy.is_true("select not exists (table t except table sink.t)"));
    for (name, table, reason) in [
        ("copy", "absent", "is not published"),
        ("copy", "k", "without a key"),
        ("other", "t", "no stream that can copy a table listens at"),
    ] {
        let (is_ok, text) = backfill(name, table);
        assert!(!is_ok && text.contains(reason), "{text}");
    }
    // A request that is no request is answered, and the next one is served.
    let mut socket = std::os::unix::net::UnixStream::connect(copy.folder.path("state/copy/control")).unwrap();
    std::io::Write::write_all(&mut socket, b"{}\n").unwrap();
    let mut reply = String::new();
    std::io::Read::read_to_string(&mut socket, &mut reply).unwrap();
    assert!(reply.contains("is not understood"), "{reply}");
    stream.kill9();
    assert!(!backfill("copy", "c").0, "a socket that was left behind");
    let stream = copy.start(&sink);
    eventually("the stream runs", || backfill("copy", "c").0);
    eventually("the copy equals the table", || copy.is_true("select not exists (table c except table sink.c)"));
    stop(stream);
    assert!(!std::path::Path::new(&copy.folder.path("state/copy/control")).exists());
}

/// A table is copied again while the stream runs, and the copy goes on after a kill.
#[test]
fn backfill_copies_a_table_beside_its_changes() {
    let copy = CopyServer::new(18, &format!("{TABLES};{APPLY}; create publication p for table t, c, k"));
    copy.sql("select pg_create_logical_replication_slot('tidegate_copy', 'pgoutput')");
    let (from, to, state) = (copy.server.url(), copy.server.url(), copy.state());
    let config = format!(
        "[auth]\nmethod = \"trust\"\n[admin]\nusers = [\"postgres\"]\n[databases.none]\nhost = \"127.0.0.1\"\nport = 1\n\
         [[streams]]\nname = \"copy\"\nfrom = \"{from}\"\npublication = \"p\"\nsnapshot = \"none\"\nstate = \"{state}\"\n\
         to = \"{to}\"\nsql = \"select sink.apply($1::jsonb)\"\nparams = [\"value\"]\n"
    );
    let gateway = tidegate_testkit::Gateway::start(env!("CARGO_BIN_EXE_tidegate"), &config);
    let mut console = gateway.console();
    eventually("the stream runs", || {
        let streams: Vec<BTreeMap<String, String>> = gateway.show("STREAMS");
        streams.iter().any(|stream| stream["state"] == "running")
    });
    assert_eq!(console.query("STREAM BACKFILL copy absent").code(), "55000");
    assert_eq!(console.query("STREAM BACKFILL none t").code(), "42704");
    assert_eq!(console.query("STREAM BACKFILL copy k").code(), "55000", "a table without a key");
    console.ok("STREAM BACKFILL copy t");
    console.ok("STREAM BACKFILL copy public.c");
    let equal = |table: &str| format!("select not exists (table {table} except table sink.{table})");
    eventually("the copies equal the tables", || copy.is_true(&equal("t")) && copy.is_true(&equal("c")));
    assert_eq!(copy.one("select count(*) from sink.k"), "0");
}
