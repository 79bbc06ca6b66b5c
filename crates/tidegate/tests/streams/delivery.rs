//! The delivery checker: several writers, and kills of the stream, of the source and of the sink, and a promotion.
//!
//! At the end the sink's table equals the source's. Exactly once (`order = "commit"`) is checked by the sink itself, which
//! refuses a record that it has applied. `TIDEGATE_SEED` repeats a run, `TIDEGATE_DELIVERIES` is the number of runs per test.

use std::thread;
use std::time::Duration;

use fastrand::Rng;
use rustix::process::Signal;
use tidegate_sandbox::{Cluster, Major, Postgres, PostgresBuilder};

use crate::process::{Stream, TempFolder, eventually, random};

const WRITERS: u64 = 3;

/// Applies a record. Its answer to a repeated record depends on the guarantee that is checked.
const APPLY: &str = "create function apply(op text, id text, n text, lsn text, seq text) returns void language plpgsql as $$ \
     begin \
       insert into applied values (lsn, seq, op, coalesce(id, '')); \
       if op = 'truncate' then delete from item; \
       elsif op in ('message', 'schema') then null; \
       elsif op = 'delete' then delete from item where item.id = $2::bigint; \
       else insert into item values ($2::bigint, $3::bigint) on conflict on constraint item_pkey do update set n = excluded.n; \
       end if; \
     end $$";

fn builder(major: u8) -> PostgresBuilder {
    // A commit that a client has seen survives the death of the server.
    Postgres::builder().version(Major(major)).setting("synchronous_commit", "on").setting("max_wal_senders", "10")
}

/// A source with a standby, a sink, and a stream between them.
struct Delivery {
    source: Cluster,
    sink: Postgres,
    _folder: TempFolder,
    arguments: Vec<String>,
    stream: Option<Stream>,
    random: Rng,
    can_promote: bool,
}

impl Delivery {
    fn start(mut random: Rng, order: &str) -> Self {
        let settings = [("wal_level", "logical"), ("hot_standby_feedback", "on"), ("sync_replication_slots", "on")];
        let source = settings.iter().fold(builder(18), |builder, (name, value)| builder.setting(name, value));
        let source = Cluster::start(&source, 1).unwrap();
        for sql in [
            "create table item (id bigint primary key, n bigint)",
            "create publication p for table item",
            "select pg_create_physical_replication_slot('standby')",
            "select pg_create_logical_replication_slot('s', 'pgoutput', false, false, true)",
        ] {
            source.server(0).simple_query(sql).unwrap();
        }
        source.server(1).simple_query("alter system set primary_slot_name = 'standby'").unwrap();
        // The stream must not be ahead of the standby, not even by WAL without transactions.
        source.server(0).simple_query("alter system set synchronized_standby_slots = 'standby'").unwrap();
        for server in [0, 1] {
            source.server(server).simple_query("select pg_reload_conf()").unwrap();
        }
        let sink = builder(if random.bool() { 14 } else { 18 }).start().unwrap();
        let is_once = order == "commit";
        let applied = if is_once { "primary key (lsn, seq, op, id)" } else { "at timestamptz default now()" };
        sink.simple_query("create table item (id bigint primary key, n bigint)").unwrap();
        sink.simple_query(&format!(
            "create table applied (lsn text, seq text, op text, id text default '', {applied})"
        ))
        .unwrap();
        sink.simple_query(APPLY).unwrap();
        let folder = TempFolder::new();
        let [first, second] = [0, 1].map(|index| source.server(index).port());
        let mut arguments: Vec<String> = [
            "--from",
            &format!("postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/postgres?publication=p&slot=s"),
            "--to",
            &sink.url(),
            "--sql",
            "select apply($1, $2, $3, $4, $5)",
            "--order",
            order,
            "--attempts",
            "0",
            "--retry-wait",
            "100ms",
            "--heartbeat",
            "0",
            "--status-interval",
            "100ms",
        ]
        .map(str::to_owned)
        .to_vec();
        for parameter in ["/op", "/key/id", "/after/n", "/commit_lsn", "/seq"] {
            arguments.extend(["--param".to_owned(), parameter.to_owned()]);
        }
        // A commit per record takes minutes on a busy machine.
        arguments.extend(["--batch".to_owned(), random.u32(50..500).to_string()]);
        if random.bool() {
            arguments.extend(["--state".to_owned(), folder.path("state")]);
        }
        let stream = Some(Stream::start(&arguments));
        Self { source, sink, _folder: folder, arguments, stream, random, can_promote: true }
    }

    /// Several writers, each with keys of its own, and a kill of the stream amid their transactions.
    fn write(&mut self) {
        let seeds: Vec<u64> = (0..WRITERS).map(|_| self.random.u64(..)).collect();
        let (primary, kills) = (self.source.primary(), self.random.u8(..3) == 0);
        let pause = Duration::from_millis(self.random.u64(..200));
        thread::scope(|scope| {
            for (writer, seed) in (0..WRITERS).zip(seeds) {
                scope.spawn(move || write_some(primary, writer, Rng::with_seed(seed)));
            }
            if kills {
                thread::sleep(pause);
                restart(&mut self.stream, &self.arguments);
            }
        });
    }

    fn fault(&mut self) {
        match self.random.u8(..6) {
            0 => {
                let primary = self.source.primary_index();
                self.source.server_mut(primary).kill9().unwrap();
                self.source.server_mut(primary).restart().unwrap();
            }
            1 | 2 => {
                self.sink.kill9().unwrap();
                self.sink.restart().unwrap();
            }
            3 if self.can_promote => self.promote(),
            _ => restart(&mut self.stream, &self.arguments),
        }
    }

    fn promote(&mut self) {
        let ready = "select count(*) = 1 from pg_replication_slots where slot_name = 's' and synced and not temporary and \
                     invalidation_reason is null";
        eventually("the slot is synchronised", || {
            self.source.server(1).simple_query(ready).unwrap()[0][0].as_deref() == Some("t")
        });
        self.source.catch_up(1).unwrap();
        self.source.server_mut(0).kill9().unwrap();
        self.source.promote(1).unwrap();
        self.can_promote = false;
    }

    fn check(mut self) {
        // A row that was never there before: the sink has an earlier state again while records are repeated, and a table is empty
        // after each TRUNCATE.
        self.source.primary().simple_query("insert into item values (-1, 0)").unwrap();
        let rows = |server: &Postgres| server.simple_query("select id, n from item order by id").ok();
        let expected = rows(self.source.primary()).unwrap();
        eventually("the sink equals the source", || {
            assert!(!self.stream.as_mut().is_some_and(Stream::has_ended), "the stream has ended");
            rows(&self.sink).as_ref() == Some(&expected)
        });
        let end = self.source.primary().simple_query("select pg_current_wal_lsn()").unwrap()[0][0].clone().unwrap();
        let confirmed =
            format!("select confirmed_flush_lsn >= '{end}' from pg_replication_slots where slot_name = 's'");
        eventually("the slot is confirmed", || {
            self.source.primary().simple_query(&confirmed).unwrap()[0][0].as_deref() == Some("t")
        });
        let stream = self.stream.take().unwrap();
        stream.signal(Signal::TERM);
        stream.wait().expect(0);
        assert_eq!(rows(&self.sink).unwrap(), expected, "the sink has changed after it was equal");
    }
}

fn restart(stream: &mut Option<Stream>, arguments: &[String]) {
    if let Some(running) = stream.take() {
        running.kill9();
    }
    *stream = Some(Stream::start(arguments));
}

/// Executes random transactions on the keys of a writer. An error of one, such as a row that is gone, rolls it back.
fn write_some(server: &Postgres, writer: u64, mut random: Rng) {
    for _ in 0..random.usize(1..8) {
        let mut sql = "begin;".to_owned();
        for _ in 0..random.usize(1..6) {
            let [id, other] = [0; 2].map(|_| random.u64(..30) * WRITERS + writer);
            sql += &match random.u8(..12) {
                0..4 => format!("insert into item values ({id}, 0) on conflict do nothing;"),
                4..7 => format!("update item set n = n + 1 where id = {id};"),
                7 => format!(
                    "update item set id = {other} where id = {id} and not exists (select from item where id = {other});"
                ),
                8 => format!("delete from item where id = {id};"),
                9 => format!("savepoint a; update item set n = -1 where id % {WRITERS} = {writer}; rollback to a;"),
                10 => format!("update item set n = n + 1 where id % {WRITERS} = {writer};"),
                _ => {
                    let from = 1_000 + random.u64(..50) * WRITERS;
                    format!(
                        "insert into item select {from} + g * {WRITERS} + {writer}, 1 from generate_series(0, 500) g \
                         on conflict do nothing;"
                    )
                }
            };
        }
        if random.u8(..40) == 0 {
            sql += "truncate item;";
        }
        if random.u8(..40) == 0 {
            sql += &format!("alter table item add column if not exists c{} text;", random.u8(..5));
        }
        // A deadlock with a truncate, or a key that exists, rolls back.
        drop(server.simple_query(&(sql + if random.u8(..6) == 0 { "rollback" } else { "commit" })));
    }
}

fn deliver(order: &str) {
    let runs = std::env::var("TIDEGATE_DELIVERIES").ok().and_then(|runs| runs.parse().ok()).unwrap_or(1_u32);
    let mut seeds = random();
    for run in 0..runs {
        // The first run has the printed seed.
        let random = if run == 0 { seeds.clone() } else { Rng::with_seed(seeds.u64(..)) };
        println!("run {run}, order {order}, seed {}", random.get_seed());
        let mut delivery = Delivery::start(random, order);
        for _ in 0..12 {
            delivery.write();
            delivery.fault();
        }
        delivery.write();
        delivery.check();
    }
}

#[test]
fn faults_lose_nothing_with_order_key() {
    deliver("key");
}

#[test]
fn faults_repeat_nothing_with_order_commit() {
    deliver("commit");
}

/// Kills the stream while a transaction passes through a spool that is smaller than it, with transactions before and after it.
fn deliver_past_the_spool(order: &str) {
    // 24 MB, beside a spool of 16 MiB.
    const ROWS: u64 = 6_000;
    let mut random = random();
    let (source, sink) = (builder(18).setting("wal_level", "logical"), builder(14).start().unwrap());
    let source = source.setting("logical_decoding_work_mem", "64kB").start().unwrap();
    let sql = |server: &Postgres, sql: &str| server.simple_query(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    for statement in [
        "create table item (id bigint primary key, pad text)",
        "create publication p for table item",
        "select pg_create_logical_replication_slot('s', 'pgoutput')",
    ] {
        sql(&source, statement);
    }
    sql(&sink, "create table item (id bigint)");
    let (folder, from, to) = (TempFolder::new(), source.url(), sink.url());
    let state = folder.path("state");
    let mut arguments = vec!["--from", &from, "--publication", "p", "--slot", "s", "--to", &to];
    arguments.extend(["--sql", "insert into item values ($1)", "--param", "/key/id", "--order", order]);
    arguments.extend(["--batch", "200", "--attempts", "0", "--heartbeat", "0", "--status-interval", "100ms"]);
    arguments.extend(["--state", &state, "--spool-bytes", "16777216", "--snapshot", "none"]);
    if order == "key" {
        // A commit per row takes minutes on a busy machine.
        arguments.extend(["--batch-by", "lane"]);
    }
    // The server keeps the transaction until it commits, unless this is set.
    let tx_memory = if random.bool() { "1048576" } else { "0" };
    arguments.extend(["--tx-memory", tx_memory]);
    let start = || Stream::start(&arguments);
    let count = || sql(&sink, "select count(*) from item")[0][0].as_deref().unwrap().parse::<u64>().unwrap();
    sql(&source, "insert into item values (1)");
    let mut stream = start();
    eventually("the first row arrives", || count() == 1);
    sql(&source, &format!("insert into item select n, repeat('x', 4000) from generate_series(2, {ROWS}) n"));
    sql(&source, &format!("insert into item values ({ROWS} + 1)"));
    for _ in 0..3 {
        let until = count() + random.u64(1..ROWS / 6);
        eventually("more rows arrive", || count() >= until);
        stream.kill9();
        stream = start();
    }
    let all = format!("select count(distinct id) = {ROWS} + 1 from item");
    eventually("all rows arrive", || sql(&sink, &all)[0][0].as_deref() == Some("t"));
    let end = sql(&source, "select pg_current_wal_lsn()")[0][0].clone().unwrap();
    let confirmed = format!("select confirmed_flush_lsn >= '{end}' from pg_replication_slots");
    eventually("the slot is confirmed", || sql(&source, &confirmed)[0][0].as_deref() == Some("t"));
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
    if order == "commit" {
        assert_eq!(count(), ROWS + 1, "rows were applied twice");
        // The sink has them in the order of the commits.
        let order = "select bool_and(id > before) \
                     from (select id, lag(id, 1, 0::bigint) over (order by ctid) before from item) i";
        assert_eq!(sql(&sink, order)[0][0].as_deref(), Some("t"));
    }
}

#[test]
fn kills_of_a_passing_transaction_lose_nothing() {
    deliver_past_the_spool("key");
}

#[test]
fn kills_of_a_passing_transaction_repeat_nothing() {
    deliver_past_the_spool("commit");
}
