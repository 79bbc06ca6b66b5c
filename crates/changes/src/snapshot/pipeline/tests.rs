use std::sync::Arc;

use bytes::Bytes;
use tidegate_wire::replication::pgoutput::{ColumnValue, LogicalMessage, ReplicaIdentity, encode};

use super::*;
use crate::{
    change::ChangeId,
    event::{PgTimestamp, TransactionBegin, TransactionCommit},
    relation::{Relation, RelationColumn, Relations},
    snapshot::plan::TableDefinition,
};

/// A pipeline, the stream in front of it, and what came out of it as words.
#[derive(Default)]
struct Fixture {
    pipeline: Pipeline,
    next_xid: u32,
    found: Vec<String>,
}

fn relation() -> Arc<Relation> {
    let column =
        |name: &str| RelationColumn { name: name.into(), type_oid: 25, type_modifier: -1, is_key: name == "id" };
    Arc::new(Relation {
        oid: 1,
        schema: "public".into(),
        name: "t".into(),
        identity: ReplicaIdentity::Default,
        columns: [column("id")].into(),
        version: 1,
    })
}

fn request(oid: u32) -> ChunkRequest {
    ChunkRequest { oid, after: None, rows_max: 10, bytes_max: 100, finds_end: false }
}

fn chunk(snapshot: &str) -> KeyChunk {
    let relation = relation();
    let definition = TableDefinition { relation, types: Vec::new(), key: vec![0], filter: None, rows_estimated: 0 };
    KeyChunk {
        definition,
        snapshot: PgSnapshot::parse(snapshot).unwrap(),
        rows: Vec::new(),
        bytes: 0,
        end: None,
        is_cut: false,
        is_last: false,
    }
}

impl Fixture {
    fn start(&mut self, number: u64, oid: u32) {
        let marks = (format!("{number}:low"), format!("{number}:high"));
        self.pipeline.start(number, request(oid), vec!["id".to_owned()], marks);
    }

    /// A transaction with one change, which comes out as its first word.
    fn transaction(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.next_xid += 1;
        let (xid, commit_lsn) = (self.next_xid, Lsn(u64::from(self.next_xid) * 100));
        let mut relations = Relations::default();
        relations.restore(relation());
        let mut frame = Vec::new();
        write(&mut frame);
        let change = Change::decode(ChangeId { commit_lsn, seq: 0 }, &Bytes::from(frame), &relations).unwrap();
        let commit_time = PgTimestamp(0);
        let commit = TransactionCommit { commit_lsn, end_lsn: Lsn(commit_lsn.0 + 1), commit_time, xid, changes: 1 };
        for event in [
            ChangeEvent::Begin(TransactionBegin { commit_lsn, commit_time, xid, origin: None }),
            ChangeEvent::Change(change),
            ChangeEvent::Commit(commit),
        ] {
            let passed = self.pipeline.on_event(event);
            self.found.extend(passed.as_ref().and_then(word));
            self.drain();
        }
    }

    fn mark(&mut self, content: &str) {
        let (prefix, content) = (MARK_PREFIX.as_bytes(), content.as_bytes());
        self.transaction(|out| {
            encode::logical(None, LogicalMessage { transactional: true, lsn: Lsn(1), prefix, content }, out);
        });
    }

    fn insert(&mut self, id: &str) {
        self.transaction(|out| encode::insert(None, 1, &[ColumnValue::Text(id.as_bytes())], out));
    }

    fn read(&mut self, number: u64, snapshot: &str) {
        self.pipeline.on_chunk(number, chunk(snapshot));
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(item) = self.pipeline.next() {
            match item {
                PipelineItem::Event(event) => self.found.extend(word(&event)),
                PipelineItem::Chunk(read) => {
                    let verdict = if read.verdict() == ChunkVerdict::Keep { "rows" } else { "again" };
                    self.found.push(format!("{} {verdict} at {}", read.number, read.lsn.0));
                }
            }
        }
    }

    fn found(&mut self) -> Vec<String> {
        std::mem::take(&mut self.found)
    }
}

/// The content of a mark, or the key of a row.
fn word(event: &ChangeEvent) -> Option<String> {
    let ChangeEvent::Change(change) = event else { return None };
    let bytes = match &change.kind {
        ChangeKind::Message(message) => &message.content[..],
        _ => change.row()?.after().next()?.1.bytes()?,
    };
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// The rows of each chunk come behind its low mark, whichever chunk was read first.
#[test]
fn overlapping_chunks_keep_their_places() {
    let mut fixture = Fixture::default();
    fixture.start(1, 1);
    fixture.insert("a");
    fixture.mark("1:low");
    assert_eq!(fixture.found(), ["a", "1:low"]);
    fixture.insert("b");
    fixture.start(2, 1);
    fixture.mark("2:low");
    fixture.insert("c");
    fixture.read(2, "90:90:");
    fixture.mark("2:high");
    assert!(fixture.found().is_empty(), "the first chunk is not there");
    fixture.mark("1:high");
    assert!(fixture.found().is_empty());
    assert_eq!((fixture.pipeline.waiting(), fixture.pipeline.of_table(1), fixture.pipeline.newest(1)), (1, 2, Some(2)));
    fixture.read(1, "90:90:");
    let expected = ["1 rows at 200", "b", "2:low", "2 rows at 400", "c", "2:high", "1:high"];
    assert_eq!(fixture.found(), expected);
    fixture.insert("d");
    assert_eq!(fixture.found(), ["d"]);
    assert_eq!((fixture.pipeline.held_bytes, fixture.pipeline.of_table(1)), (0, 0));
}

/// A chunk is compared with the changes between its own marks.
#[test]
fn each_chunk_has_its_own_window() {
    let mut pipeline = Fixture::default();
    pipeline.start(1, 1);
    pipeline.start(2, 1);
    pipeline.mark("1:low");
    pipeline.insert("a");
    pipeline.mark("2:low");
    pipeline.insert("b");
    pipeline.mark("1:high");
    pipeline.insert("c");
    pipeline.mark("2:high");
    let keeps = |window: TableWindow| {
        ["a", "b", "c"].map(|id| {
            let key = super::super::window::row_key([Some(ColumnValue::Text(id.as_bytes()))].into_iter());
            window.keeps(key.as_ref())
        })
    };
    let mut take = |number| {
        pipeline.pipeline.on_chunk(number, chunk("90:90:"));
        loop {
            if let PipelineItem::Chunk(read) = pipeline.pipeline.next().unwrap() {
                return keeps(read.window);
            }
        }
    };
    assert_eq!(take(1), [false, false, true]);
    assert_eq!(take(2), [true, false, false]);
}

/// CH-66: also a transaction that the stream has, and that was not delivered because of an earlier chunk.
#[test]
fn chunk_without_an_earlier_transaction_is_read_again() {
    let mut fixture = Fixture::default();
    fixture.start(1, 1);
    fixture.mark("1:low");
    fixture.insert("a");
    fixture.start(2, 1);
    fixture.mark("2:low");
    fixture.mark("1:high");
    fixture.mark("2:high");
    // The snapshots do not show transaction 2, which comes behind the first low mark, and before the second one.
    fixture.read(1, "2:90:2");
    fixture.read(2, "2:90:2");
    assert_eq!(fixture.found()[1..], ["1 rows at 100", "a", "2:low", "2 again at 300", "1:high", "2:high"]);
}

/// A later snapshot may be known first; transactions that it shows are needed for the chunk with the earlier one.
#[test]
fn transaction_is_remembered_for_earlier_snapshots() {
    let mut fixture = Fixture::default();
    fixture.insert("a");
    fixture.start(1, 1);
    fixture.start(2, 2);
    for mark in ["1:low", "2:low", "1:high", "2:high"] {
        fixture.mark(mark);
    }
    fixture.read(1, "90:90:");
    fixture.read(2, "1:90:1");
    assert!(fixture.found().contains(&"2 again at 300".to_owned()));
    assert_eq!(fixture.pipeline.delivered.missing_in(&PgSnapshot::parse("1:1:").unwrap(), 9), None);
}

/// Events do not wait for a chunk that is discarded.
#[test]
fn discarded_chunks_release_their_events() {
    let mut fixture = Fixture::default();
    for (number, oid) in [(1, 1), (2, 2), (3, 1)] {
        fixture.start(number, oid);
        fixture.mark(&format!("{number}:low"));
    }
    fixture.insert("a");
    assert_eq!(fixture.found(), ["1:low"]);
    assert!(fixture.pipeline.overflow(1 << 20).is_empty());
    assert_eq!(fixture.pipeline.overflow(100), [(1, 1), (2, 2)]);
    fixture.pipeline.discard(1, 1);
    fixture.drain();
    assert_eq!(fixture.found(), ["2:low"]);
    assert_eq!((fixture.pipeline.of_table(1), fixture.pipeline.request(1).is_none()), (0, true));
    fixture.pipeline.discard(2, 2);
    fixture.drain();
    assert_eq!(fixture.found(), ["3:low", "a"]);
    // The task of a discarded chunk ends later.
    fixture.read(1, "90:90:");
    fixture.mark("1:high");
    assert_eq!(fixture.found(), ["1:high"]);
}
