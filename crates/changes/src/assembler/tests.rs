use tidegate_wire::replication::pgoutput::{
    ColumnValue, LogicalMessage, RelationField, ReplicaIdentity,
    encode::{self, OldColumns, RelationFields},
};

use super::*;
use crate::{change::ChangeKind, spill::FileSpill};

const TABLE: u32 = 16_384;

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut out = Vec::new();
    write(&mut out);
    out.into()
}

fn relation(xid: Option<u32>, columns: &[&str]) -> Bytes {
    let column = |name: &&'static str| RelationField {
        is_key: *name == "id",
        name: name.as_bytes(),
        type_oid: 25,
        type_modifier: -1,
    };
    let names: Vec<&'static str> = columns.iter().map(|name| if *name == "id" { "id" } else { "v" }).collect();
    let columns: Vec<_> = names.iter().map(column).collect();
    let fields = RelationFields {
        oid: TABLE,
        schema: b"public",
        name: b"t",
        identity: ReplicaIdentity::Default,
        columns: &columns,
    };
    written(|out| encode::relation(xid, &fields, out))
}

fn insert(xid: Option<u32>, value: &str) -> Bytes {
    written(|out| encode::insert(xid, TABLE, &[ColumnValue::Text(value.as_bytes())], out))
}

fn begin(commit: u64, xid: u32) -> Bytes {
    written(|out| encode::begin(Lsn(commit), 0, xid, out))
}

fn commit(commit: u64) -> Bytes {
    written(|out| encode::commit(Lsn(commit), Lsn(commit + 8), 0, out))
}

fn message(message: PgoutputMessage<'_>) -> Bytes {
    written(|out| {
        encode::message(tidegate_wire::replication::pgoutput::TaggedMessage { xid: None, message }, out);
    })
}

fn stream_start(xid: u32, first: bool) -> Bytes {
    message(PgoutputMessage::StreamStart { xid, first })
}

fn stream_stop() -> Bytes {
    message(PgoutputMessage::StreamStop)
}

fn stream_abort(xid: u32, subxid: u32) -> Bytes {
    message(PgoutputMessage::StreamAbort { xid, subxid, aborted_at: None })
}

fn stream_commit(xid: u32, commit: u64) -> Bytes {
    message(PgoutputMessage::StreamCommit { xid, commit_lsn: Lsn(commit), end_lsn: Lsn(commit + 8), commit_time: 0 })
}

/// A line per event.
fn shown(events: &[ChangeEvent]) -> Vec<String> {
    let line = |event: &ChangeEvent| match event {
        ChangeEvent::Begin(begin) => format!("begin {} xid {}", begin.commit_lsn.0, begin.xid),
        ChangeEvent::Schema(change) => format!("schema v{}", change.after.version),
        ChangeEvent::Change(change) => {
            let value = match &change.kind {
                ChangeKind::Row(row) => {
                    let first = row.after().chain(row.before()).next().and_then(|(_, value)| value.bytes());
                    String::from_utf8_lossy(first.unwrap_or_default()).into_owned()
                }
                ChangeKind::Truncate(truncate) => format!("truncate {}", truncate.relations.len()),
                ChangeKind::Message(message) => String::from_utf8_lossy(&message.content).into_owned(),
            };
            format!("{}/{} {value}", change.id.commit_lsn.0, change.id.seq)
        }
        ChangeEvent::Commit(commit) => format!("commit {} n {}", commit.end_lsn.0, commit.changes),
        ChangeEvent::Message(message) => format!("message {}", message.lsn.0),
        ChangeEvent::Progress(lsn) => format!("progress {}", lsn.0),
    };
    events.iter().map(line).collect()
}

fn feed(assembler: &mut Assembler, messages: &[Bytes], step: usize) -> Result<Vec<ChangeEvent>, AssembleError> {
    let mut out = Vec::new();
    for data in messages {
        assembler.push(data.clone(), &mut out)?;
        while assembler.is_replaying() {
            assembler.replay(step, &mut out)?;
        }
    }
    Ok(out)
}

fn run(messages: &[Bytes]) -> Vec<String> {
    shown(&feed(&mut Assembler::new(Lsn::ZERO), messages, 1000).unwrap())
}

#[test]
fn transaction_passes_straight_through() {
    let messages = [
        begin(100, 7),
        relation(None, &["id"]),
        insert(None, "a"),
        written(|out| encode::truncate(None, &[TABLE], false, false, out)),
        written(|out| encode::delete(None, TABLE, OldColumns::Key(&[ColumnValue::Text(b"a")]), out)),
        commit(100),
        begin(108, 8),
        insert(None, "b"),
        commit(108),
    ];
    let expected = "begin 100 xid 7|schema v1|100/0 a|100/1 truncate 1|100/2 a|commit 108 n 3|\
                    begin 108 xid 8|108/0 b|commit 116 n 1";
    assert_eq!(run(&messages).join("|"), expected);
}

/// CH-52: a transactional message has a number; one outside of transactions has not.
#[test]
fn messages_are_delivered_and_numbered() {
    let logical = |transactional, lsn| {
        let fields = LogicalMessage { transactional, lsn: Lsn(lsn), prefix: b"p", content: b"m" };
        written(|out| encode::logical(None, fields, out))
    };
    let messages =
        [logical(false, 90), begin(100, 7), logical(true, 95), relation(None, &["id"]), insert(None, "a"), commit(100)];
    assert_eq!(run(&messages).join("|"), "message 90|begin 100 xid 7|100/0 m|schema v1|100/1 a|commit 108 n 2");
    let mut assembler = Assembler::new(Lsn(91));
    assert!(feed(&mut assembler, &messages[..1], 1).unwrap().is_empty());
}

/// CH-03: they join the frontier as progress.
#[test]
fn empty_transactions_are_progress() {
    let messages = [begin(100, 7), commit(100), begin(200, 8), relation(None, &["id"]), commit(200)];
    assert_eq!(run(&messages), ["progress 208"]);
}

/// CH-56, CH-54: the last row of each segment is there, rolled-back subtransactions are not.
#[test]
fn streamed_transaction_leaves_out_rolled_back_parts() {
    let messages = [
        stream_start(7, true),
        relation(Some(7), &["id"]),
        insert(Some(7), "a"),
        insert(Some(8), "lost"),
        stream_stop(),
        begin(100, 9),
        relation(None, &["id"]),
        insert(None, "other"),
        commit(100),
        stream_start(7, false),
        insert(Some(8), "lost too"),
        stream_stop(),
        stream_abort(7, 8),
        stream_start(7, false),
        insert(Some(10), "b"),
        stream_stop(),
        stream_commit(7, 200),
    ];
    let expected =
        "begin 100 xid 9|schema v1|100/0 other|commit 108 n 1|begin 200 xid 7|200/0 a|200/1 b|commit 208 n 2";
    assert_eq!(run(&messages).join("|"), expected);
}

#[test]
fn aborted_streamed_transaction_leaves_nothing() {
    let mut assembler = Assembler::new(Lsn::ZERO);
    let messages = [stream_start(7, true), relation(Some(7), &["id", "v"]), insert(Some(7), "a"), stream_stop()];
    assert!(feed(&mut assembler, &messages, 1).unwrap().is_empty());
    assert!(assembler.is_in_transaction() && assembler.open_bytes() > 0);
    assert!(feed(&mut assembler, &[stream_abort(7, 7)], 1).unwrap().is_empty());
    assert!(!assembler.is_in_transaction() && assembler.open_bytes() == 0);
    // The definition of the table is gone, too.
    assert!(assembler.relations().is_empty());
}

/// CH-49: rows keep the definition that they were written with.
#[test]
fn rows_refer_to_their_version_of_the_table() {
    let two = |one: &str, other: &str| {
        let columns = [ColumnValue::Text(one.as_bytes()), ColumnValue::Text(other.as_bytes())];
        written(|out| encode::insert(None, TABLE, &columns, out))
    };
    let messages = [
        begin(100, 7),
        relation(None, &["id"]),
        insert(None, "a"),
        relation(None, &["id", "v"]),
        two("b", "c"),
        relation(None, &["id", "v"]),
        two("d", "e"),
        commit(100),
    ];
    let expected = "begin 100 xid 7|schema v1|100/0 a|schema v2|100/1 b|100/2 d|commit 108 n 3";
    assert_eq!(run(&messages).join("|"), expected);
}

/// CH-34, and rows that do not fit their table.
#[test]
fn row_of_unknown_table_or_other_width_is_an_error() {
    let error = |messages: &[Bytes]| feed(&mut Assembler::new(Lsn::ZERO), messages, 1).unwrap_err();
    let unknown = error(&[begin(100, 7), insert(None, "a")]);
    assert!(matches!(unknown, AssembleError::Decode(DecodeChangeError::UnknownRelation { oid: TABLE })));
    let width = error(&[begin(100, 7), relation(None, &["id", "v"]), insert(None, "a")]);
    assert!(matches!(width, AssembleError::Decode(DecodeChangeError::ColumnCount { oid: TABLE })));
}

#[test]
fn messages_out_of_place_are_errors() {
    let cases: &[&[Bytes]] = &[
        &[commit(100)],
        &[insert(None, "a")],
        &[stream_stop()],
        &[begin(100, 7), begin(101, 8)],
        &[begin(100, 7), stream_start(8, true)],
        &[begin(100, 7), commit(101)],
        &[begin(100, 7), commit(100), begin(100, 8)],
        &[begin(100, 7), commit(100), begin(99, 8)],
        &[stream_start(7, true), stream_start(8, true)],
        &[stream_start(7, true), begin(100, 8)],
        &[stream_start(7, true), stream_stop(), stream_start(7, true)],
        // CH-57: the second half of a transaction whose first half came on another connection.
        &[stream_start(7, false)],
        &[stream_commit(7, 100)],
        &[Bytes::from_static(b"B")],
        &[Bytes::from_static(b"Z")],
        &[Bytes::new()],
    ];
    for (number, messages) in cases.iter().enumerate() {
        assert!(feed(&mut Assembler::new(Lsn::ZERO), messages, 1).is_err(), "case {number}");
    }
}

/// CH-06, CH-07, CH-14: what the consumer has is not delivered again, and what starts at its position is.
#[test]
fn start_position_decides_by_the_commit_record() {
    let messages = |lsn| [begin(lsn, 7), relation(None, &["id"]), insert(None, "a"), commit(lsn)];
    for (start, delivered) in [(100, true), (101, false), (108, false), (99, true)] {
        let events = feed(&mut Assembler::new(Lsn(start)), &messages(100), 1).unwrap();
        assert_eq!(!events.is_empty(), delivered, "start {start}");
    }
    // The end of one commit is the position of the next (CH-07).
    let mut assembler = Assembler::new(Lsn(108));
    assert!(feed(&mut assembler, &messages(100), 1).unwrap().is_empty());
    assert_eq!(feed(&mut assembler, &messages(108), 1).unwrap().len(), 4);
}

#[test]
fn partly_delivered_transaction_must_come_again() {
    let mut assembler = Assembler::new(Lsn::ZERO);
    feed(&mut assembler, &[begin(100, 7), relation(None, &["id"]), insert(None, "a")], 1).unwrap();
    assembler.disconnect();
    let error = feed(&mut assembler, &[begin(200, 8)], 1).unwrap_err();
    assert!(matches!(error, AssembleError::Gap(_)), "{error}");

    let mut assembler = Assembler::new(Lsn::ZERO);
    feed(&mut assembler, &[begin(100, 7), relation(None, &["id"]), insert(None, "a")], 1).unwrap();
    assembler.disconnect();
    let error = feed(&mut assembler, &[begin(100, 7), commit(100)], 1).unwrap_err();
    assert!(matches!(error, AssembleError::Shortened { before: 1, now: 0, .. }), "{error}");
}

#[test]
fn spill_beyond_its_bound_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let store = FileSpill::new(folder.path(), 2_000).unwrap();
    let mut assembler = Assembler::new(Lsn::ZERO).with_spill(Box::new(store), 1_000);
    let row = insert(Some(7), &"x".repeat(900));
    let mut messages = vec![stream_start(7, true), relation(Some(7), &["id"])];
    messages.extend(std::iter::repeat_n(row, 4));
    let error = feed(&mut assembler, &messages, 1).unwrap_err();
    assert!(matches!(error, AssembleError::Spill(_)), "{error}");
}

/// CH-53: a transaction that takes a quarter of the memory goes to the store, chunk by chunk from then on.
#[test]
fn large_transaction_leaves_memory_early() {
    const MEMORY: usize = 8 << 20;
    let folder = tempfile::tempdir().unwrap();
    let store = FileSpill::new(folder.path(), u64::MAX).unwrap();
    let mut assembler = Assembler::new(Lsn::ZERO).with_spill(Box::new(store), MEMORY);
    let (row, small) = (insert(Some(7), &"x".repeat(1_000)), insert(Some(8), "small"));
    feed(&mut assembler, &[stream_start(8, true), relation(Some(8), &["id"]), small, stream_stop()], 1).unwrap();
    feed(&mut assembler, &[stream_start(7, true), relation(Some(7), &["id"])], 1).unwrap();
    let mut most = 0;
    for _ in 0..10_000 {
        feed(&mut assembler, std::slice::from_ref(&row), 1).unwrap();
        most = most.max(assembler.open_bytes());
    }
    assert!((MEMORY / 8..=MEMORY / 4 + 1_000).contains(&most), "{most}");
    assert!(assembler.open_bytes() < MEMORY / 8 && assembler.spilled_bytes_total() > 9_000_000);
    let events = feed(&mut assembler, &[stream_stop(), stream_commit(7, 100), stream_commit(8, 200)], 1 << 20).unwrap();
    let changes = events.iter().filter(|event| matches!(event, ChangeEvent::Change(_)));
    assert_eq!((changes.count(), assembler.open_bytes()), (10_001, 0));
}

/// A random history: concurrent transactions with nested savepoints.
struct History {
    /// Messages as the server sends them with and without streaming.
    streamed: Vec<Bytes>,
    plain: Vec<Bytes>,
}

struct RandomTransaction {
    xid: u32,
    /// Open savepoints: the id of the subtransaction, and the number of surviving rows at its start.
    savepoints: Vec<(u32, usize)>,
    survivors: Vec<String>,
    /// Rows that were not sent yet.
    pending: Vec<(u32, String)>,
    is_streamed: bool,
}

struct Generator {
    random: fastrand::Rng,
    next_xid: u32,
    lsn: u64,
    history: History,
}

impl Generator {
    fn xid(&mut self) -> u32 {
        self.next_xid += 1;
        self.next_xid
    }

    /// Sends the pending rows as a segment.
    fn flush(&mut self, transaction: &mut RandomTransaction) {
        if transaction.pending.is_empty() {
            return;
        }
        self.history.streamed.push(stream_start(transaction.xid, !transaction.is_streamed));
        self.history.streamed.push(relation(Some(transaction.xid), &["id"]));
        transaction.is_streamed = true;
        for (subxid, value) in transaction.pending.drain(..) {
            self.history.streamed.push(insert(Some(subxid), &value));
        }
        self.history.streamed.push(stream_stop());
    }

    fn rollback_to(&mut self, transaction: &mut RandomTransaction, depth: usize) {
        self.flush(transaction);
        for (subxid, survivors) in transaction.savepoints.drain(depth..).rev() {
            transaction.survivors.truncate(survivors);
            if transaction.is_streamed {
                self.history.streamed.push(stream_abort(transaction.xid, subxid));
            }
        }
    }

    fn step(&mut self, transaction: &mut RandomTransaction) {
        match self.random.u8(..8) {
            0 => {
                let subxid = self.xid();
                transaction.savepoints.push((subxid, transaction.survivors.len()));
            }
            1 if !transaction.savepoints.is_empty() => {
                let depth = self.random.usize(..transaction.savepoints.len());
                self.rollback_to(transaction, depth);
            }
            2 => self.flush(transaction),
            _ => {
                let subxid = transaction.savepoints.last().map_or(transaction.xid, |(subxid, _)| *subxid);
                let value = format!("{subxid}-{}", "x".repeat(self.random.usize(..40)));
                transaction.survivors.push(value.clone());
                transaction.pending.push((subxid, value));
            }
        }
    }

    fn commit(&mut self, mut transaction: RandomTransaction) {
        self.lsn += 16;
        let lsn = self.lsn;
        self.history.plain.extend([begin(lsn, transaction.xid), relation(None, &["id"])]);
        self.history.plain.extend(transaction.survivors.iter().map(|value| insert(None, value)));
        self.history.plain.push(commit(lsn));
        if transaction.is_streamed {
            self.flush(&mut transaction);
            self.history.streamed.push(stream_commit(transaction.xid, lsn));
        } else {
            let plain = self.history.plain.len() - transaction.survivors.len() - 3;
            let messages = self.history.plain[plain..].to_vec();
            self.history.streamed.extend(messages);
        }
    }
}

fn history(seed: u64) -> History {
    let history = History { streamed: Vec::new(), plain: Vec::new() };
    let random = fastrand::Rng::with_seed(seed);
    let mut generator = Generator { random, next_xid: 700, lsn: 1_000, history };
    let mut open: Vec<RandomTransaction> = Vec::new();
    for _ in 0..generator.random.usize(20..200) {
        if open.is_empty() || generator.random.u8(..10) == 0 {
            let xid = generator.xid();
            open.push(RandomTransaction {
                xid,
                savepoints: Vec::new(),
                survivors: Vec::new(),
                pending: Vec::new(),
                is_streamed: false,
            });
        }
        let at = generator.random.usize(..open.len());
        match generator.random.u8(..20) {
            0 => {
                let transaction = open.swap_remove(at);
                generator.commit(transaction);
            }
            1 => {
                let transaction = open.swap_remove(at);
                if transaction.is_streamed {
                    generator.history.streamed.push(stream_abort(transaction.xid, transaction.xid));
                }
            }
            _ => {
                let mut transaction = open.swap_remove(at);
                generator.step(&mut transaction);
                open.push(transaction);
            }
        }
    }
    while let Some(transaction) = open.pop() {
        generator.commit(transaction);
    }
    generator.history
}

/// Changes and commits: without progress, whose position depends on where empty transactions stand.
fn lines(events: &[ChangeEvent]) -> Vec<String> {
    shown(events).into_iter().filter(|line| !line.starts_with("progress")).collect()
}

/// CH-53, CH-54, CH-55, CH-56: every bound of memory and of a step gives the events of non-streamed mode.
#[test]
fn streamed_and_plain_histories_give_equal_events() {
    let folder = tempfile::tempdir().unwrap();
    let first = fastrand::u64(..u64::MAX - 300);
    for seed in first..first + 300 {
        let history = history(seed);
        let plain = lines(&feed(&mut Assembler::new(Lsn::ZERO), &history.plain, 1).unwrap());
        for (memory, step) in [(usize::MAX, 1), (0, 100), (200, 1), (1_000, 10_000)] {
            let store = FileSpill::new(folder.path(), u64::MAX).unwrap();
            let mut assembler = Assembler::new(Lsn::ZERO).with_spill(Box::new(store), memory);
            let streamed = feed(&mut assembler, &history.streamed, step).expect("the history is sound");
            assert_eq!(lines(&streamed), plain, "seed {seed}, memory {memory}, step {step}");
            assert_eq!(assembler.open_bytes(), 0, "seed {seed}");
        }
    }
}

/// CH-57, and duplicates after a reconnect: a connection that breaks anywhere, and sends from the start again, adds and
/// removes nothing.
#[test]
fn reconnects_neither_lose_nor_repeat_events() {
    let first = fastrand::u64(..u64::MAX - 200);
    for seed in first..first + 200 {
        let history = history(seed);
        let expected = shown(&feed(&mut Assembler::new(Lsn::ZERO), &history.plain, 1).unwrap());
        let mut random = fastrand::Rng::with_seed(seed);
        let mut assembler = Assembler::new(Lsn::ZERO);
        let mut found = Vec::new();
        for _ in 0..6 {
            let messages = if random.bool() { &history.streamed } else { &history.plain };
            let end = random.usize(..=messages.len());
            for data in &messages[..end] {
                assembler.push(data.clone(), &mut found).expect("the history is sound");
                // Breaks off in the middle of a replay, too.
                while assembler.is_replaying() && random.u8(..50) > 0 {
                    assembler.replay(1, &mut found).unwrap();
                }
                if assembler.is_replaying() {
                    break;
                }
            }
            assembler.disconnect();
        }
        found.extend(feed(&mut assembler, &history.plain, 1).unwrap());
        let without = |lines: Vec<String>| -> Vec<String> {
            lines.into_iter().filter(|line| !line.starts_with("progress")).collect()
        };
        assert_eq!(without(shown(&found)), without(expected), "seed {seed}");
    }
}
