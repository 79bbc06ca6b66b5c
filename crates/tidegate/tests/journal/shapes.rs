//! A flight of the shape that most have is recognised whole; with a Flush in it, the same flight goes message by message. Nobody
//! may be able to tell: not the client, not its next flight, not another client, not the counters, not the journal.

use tidegate_query_log::entry::Entry;
use tidegate_testkit::{Fixture, Frames, RawClient};

use crate::kept::{Kept, queries};

/// A flight with its values, how many rows are asked for, and what comes of it.
type Scene<'a> = (&'a str, &'a [&'a str], u32, &'a str);

const SCENES: &[Scene<'_>] = &[
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

fn flight(&(sql, values, rows, _): &Scene<'_>, flushed: bool) -> Frames {
    let parsed = Frames::new().parse("", sql);
    let parsed = if flushed { parsed.flush() } else { parsed };
    parsed.bind("", values).describe_portal("").execute_portal("", rows).sync()
}

/// What a client is told that uses the unnamed statement, whichever it is.
fn use_of_unnamed(client: &mut RawClient, values: &[&str]) -> String {
    client.send(&Frames::new().bind("", values).execute().sync());
    let outcome = client.until_ready();
    format!("{outcome:?}")
}

/// Plays all scenes; after each, another client prepares its own on the same server, if that is free, and the first one uses
/// what it has left.
fn play(fixture: &Fixture, flushed: bool) -> (Vec<String>, Vec<String>, Vec<Entry>) {
    let kept = Kept::new(fixture, "size = 1\n", "");
    let (mut client, mut other) = (kept.gateway.client("postgres"), kept.gateway.client("postgres"));
    let mut told = Vec::new();
    for scene in SCENES {
        client.send(&flight(scene, flushed));
        client.expect(scene.3);
        if scene.3.ends_with("Z:I") {
            other.send(&flight(&("select 'other'", &[], 0, ""), flushed));
            other.expect("1 2 T D:other C:SELECT_1 Z:I");
            told.push(use_of_unnamed(&mut client, scene.1));
        }
    }
    let stats = kept.gateway.show("STATS").into_iter().find(|row| row["database"] == "postgres").expect("a row");
    let counts = ["xact", "query", "client_parse", "server_parse", "bind"];
    let counts = counts.map(|count| format!("{count}: {}", stats[&format!("total_{count}_count")]));
    drop((client, other));
    (told, counts.to_vec(), kept.end())
}

/// What a record says that is not of its moment. The Flush is among the bytes of the client.
fn essence(entry: &Entry) -> String {
    let Entry { statement, tag, rows, sqlstate, message, transaction, fingerprint, bytes_out, .. } = entry;
    format!("{statement:?} {tag:?} {rows:?} {sqlstate:?} {message:?} {transaction:?} {fingerprint:?} {bytes_out:?}")
}

/// Bytes that the client has sent for all that stands in the journal.
fn heard(entries: &[Entry]) -> u64 {
    queries(entries).into_iter().filter_map(|entry| entry.bytes_in).sum()
}

on_each_postgres! {
    fn nothing_depends_on_whether_a_flight_was_recognised(fixture) {
        let (whole, flushed) = (play(fixture, false), play(fixture, true));
        assert_eq!(whole.0, flushed.0, "what later flights find");
        assert_eq!(whole.1, flushed.1, "counters");
        let records = |entries: &[Entry]| -> Vec<String> { queries(entries).into_iter().map(essence).collect() };
        assert_eq!(records(&whole.2), records(&flushed.2), "records");
        let scenes = SCENES.len() + SCENES.iter().filter(|scene| scene.3.ends_with("Z:I")).count();
        assert_eq!(heard(&whole.2) + 5 * scenes as u64, heard(&flushed.2), "a Flush has five bytes");
    }
}
