//! The fast path recognises the most common sequence of messages as a whole. With a Flush in it, the same sequence is
//! handled message by message. The difference must not be visible: not to the client, its next request, another client,
//! the counters or the log.

use tidegate_query_log::record::LogRecord;
use tidegate_testkit::{Fixture, Frames, RawClient, on_each_postgres};

use crate::logging_gateway::{LoggingGateway, queries};

/// A statement, its values, the row limit of Execute, and the expected messages.
type Case<'a> = (&'a str, &'a [&'a str], u32, &'a str);

const CASES: &[Case<'_>] = &[
    ("select $1::int", &["7"], 0, "1 2 T D:7 C:SELECT_1 Z:I"),
    ("select $1::int", &["8"], 0, "1 2 T D:8 C:SELECT_1 Z:I"),
    ("select generate_series(1, $1::int)", &["3"], 0, "1 2 T D:1 D:2 D:3 C:SELECT_3 Z:I"),
    ("select generate_series(1, 3)", &[], 2, "1 2 T D:1 D:2 s Z:I"),
    ("selct", &[], 0, "E:42601 Z:I"),
    ("select $1::int", &["x"], 0, "1 E:22P02 Z:I"),
    ("select 1 / $1::int", &["0"], 0, "1 E:22012 Z:I"),
    ("select 1 / (random() * 0)::int", &[], 0, "1 2 T E:22012 Z:I"),
    ("", &[], 0, "1 2 n I Z:I"),
    ("begin", &[], 0, "1 2 n C:BEGIN Z:T"),
    ("select 'within'", &[], 0, "1 2 T D:within C:SELECT_1 Z:T"),
    ("select 1 / 0", &[], 0, "1 E:22012 Z:E"),
    ("select 'too late'", &[], 0, "E:25P02 Z:E"),
    ("rollback", &[], 0, "1 2 n C:ROLLBACK Z:I"),
    ("set extra_float_digits = 1", &[], 0, "1 2 n C:SET Z:I"),
    ("discard all", &[], 0, "1 2 n C:DISCARD_ALL Z:I"),
    ("select 'again'", &[], 0, "1 2 T D:again C:SELECT_1 Z:I"),
];

fn messages(&(sql, values, rows, _): &Case<'_>, flushed: bool) -> Frames {
    let parsed = Frames::new().parse("", sql);
    let parsed = if flushed { parsed.flush() } else { parsed };
    parsed.bind("", values).describe_portal("").execute_portal("", rows).sync()
}

/// The outcome of executing the current unnamed statement.
fn run_unnamed(client: &mut RawClient, values: &[&str]) -> String {
    client.send(&Frames::new().bind("", values).execute().sync());
    let outcome = client.until_ready();
    format!("{outcome:?}")
}

/// Runs all cases. After each, another client prepares its own statement on the same server if it is free, and the
/// first client executes its unnamed statement.
fn play(fixture: &Fixture, flushed: bool) -> (Vec<String>, Vec<String>, Vec<LogRecord>) {
    let logged = LoggingGateway::new(fixture, "size = 1\n", "");
    let (mut client, mut other) = (logged.gateway.client("postgres"), logged.gateway.client("postgres"));
    let mut outcomes = Vec::new();
    for case in CASES {
        client.send(&messages(case, flushed));
        client.expect(case.3);
        if case.3.ends_with("Z:I") {
            other.send(&messages(&("select 'other'", &[], 0, ""), flushed));
            other.expect("1 2 T D:other C:SELECT_1 Z:I");
            outcomes.push(run_unnamed(&mut client, case.1));
        }
    }
    let stats = logged.gateway.show("STATS").into_iter().find(|row| row["database"] == "postgres").expect("a row");
    let counts = ["xact", "query", "client_parse", "server_parse", "bind"];
    let counts = counts.map(|count| format!("{count}: {}", stats[&format!("total_{count}_count")]));
    drop((client, other));
    (outcomes, counts.to_vec(), logged.end())
}

/// The fields of a record that do not depend on time. The number of bytes from the client is excluded, because it
/// contains the Flush.
fn stable_fields(entry: &LogRecord) -> String {
    let LogRecord { statement, tag, rows, sqlstate, message, transaction, fingerprint, bytes_out, .. } = entry;
    format!("{statement:?} {tag:?} {rows:?} {sqlstate:?} {message:?} {transaction:?} {fingerprint:?} {bytes_out:?}")
}

/// The number of bytes from the client in all records.
fn bytes_in(entries: &[LogRecord]) -> u64 {
    queries(entries).into_iter().filter_map(|entry| entry.bytes_in).sum()
}

on_each_postgres! {
    fn fast_path_has_no_visible_effect(fixture) {
        let (whole, flushed) = (play(fixture, false), play(fixture, true));
        assert_eq!(whole.0, flushed.0, "outcomes of later requests");
        assert_eq!(whole.1, flushed.1, "counters");
        let records = |entries: &[LogRecord]| -> Vec<String> { queries(entries).into_iter().map(stable_fields).collect() };
        assert_eq!(records(&whole.2), records(&flushed.2), "records");
        let cases = CASES.len() + CASES.iter().filter(|case| case.3.ends_with("Z:I")).count();
        assert_eq!(bytes_in(&whole.2) + 5 * cases as u64, bytes_in(&flushed.2), "a Flush has five bytes");
    }
}
