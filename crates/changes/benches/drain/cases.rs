//! The loads.

use tidegate_sandbox::Postgres;

/// A load.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The number of rows or transactions of a full run.
    pub(crate) rows: u64,
    /// Rows of about 200 bytes, which the bar for CPU time is about.
    pub(crate) is_narrow: bool,
    prepare: &'static str,
    /// SQL that writes `{rows}` rows.
    write: &'static str,
    /// Changes per row.
    changes: u64,
}

pub(crate) const CASES: &[Case] = &[
    Case {
        name: "inserts, 1,000 per transaction",
        rows: 2_000_000,
        is_narrow: true,
        prepare: "create table t (id bigint generated always as identity primary key, v text)",
        write: "do $$ begin for i in 1 .. {rows} / 1000 loop \
                insert into t (v) select repeat('x', 200) from generate_series(1, 1000); commit; end loop; end $$",
        changes: 1,
    },
    Case {
        name: "inserts, one per transaction",
        rows: 500_000,
        is_narrow: true,
        prepare: "create table t (id bigint generated always as identity primary key, v text)",
        write: "do $$ begin for i in 1 .. {rows} loop \
                insert into t (v) values (repeat('x', 200)); commit; end loop; end $$",
        changes: 1,
    },
    Case {
        name: "TPC-B",
        rows: 200_000,
        is_narrow: false,
        prepare: "create table accounts (aid int primary key, bid int, abalance int, filler char(84)); \
                  create table tellers (tid int primary key, bid int, tbalance int, filler char(84)); \
                  create table branches (bid int primary key, bbalance int, filler char(88)); \
                  create table history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22)); \
                  insert into accounts select i, 1, 0, '' from generate_series(1, 500000) i; \
                  insert into tellers select i, 1, 0, '' from generate_series(1, 500) i; \
                  insert into branches select i, 0, '' from generate_series(1, 50) i",
        write: "do $$ declare a int; t int; b int; d int; begin for i in 1 .. {rows} loop \
                a := 1 + random() * 499999; t := 1 + random() * 499; b := 1 + random() * 49; d := random() * 1000; \
                update accounts set abalance = abalance + d where aid = a; \
                update tellers set tbalance = tbalance + d where tid = t; \
                update branches set bbalance = bbalance + d where bid = b; \
                insert into history values (t, b, a, d, now()); commit; end loop; end $$",
        changes: 4,
    },
    Case {
        name: "one transaction of 1,000,000 rows",
        rows: 1_000_000,
        is_narrow: true,
        prepare: "create table t (id bigint generated always as identity primary key, v text)",
        write: "insert into t (v) select repeat('x', 200) from generate_series(1, {rows})",
        changes: 1,
    },
    Case {
        name: "updates beside a TOAST value of 100 KB",
        rows: 100_000,
        is_narrow: false,
        prepare: "create table t (id int primary key, n int, big text); alter table t alter big set storage external; \
                  insert into t select i, 0, repeat('x', 100000) from generate_series(1, 100) i",
        write: "do $$ begin for i in 1 .. {rows} loop \
                update t set n = n + 1 where id = 1 + i % 100; commit; end loop; end $$",
        changes: 1,
    },
];

impl Case {
    /// Creates the tables and the publication `bench`.
    pub(crate) fn prepare(&self, server: &Postgres) {
        for statement in self.prepare.split("; ").chain(["create publication bench for all tables", "checkpoint"]) {
            server.simple_query(statement).expect("the load is prepared");
        }
    }

    /// Writes the load and returns the number of changes.
    pub(crate) fn write(&self, server: &Postgres, rows: u64) -> u64 {
        server.simple_query(&self.write.replace("{rows}", &rows.to_string())).expect("the load is written");
        rows * self.changes
    }
}
