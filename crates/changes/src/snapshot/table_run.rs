//! The chunks of a table that were started.

use tokio::time::Instant;

use super::chunk::{ChunkRequest, KeyChunk};

/// Rows of the first chunk of a table, from which the size of the rows is known.
const ROWS_FIRST: u32 = 256;
/// A chunk that is this many times larger than expected ends early.
const BYTES_FACTOR: usize = 2;

/// Where the next chunk begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NextChunk {
    /// The chunk begins behind this key, or with the first row.
    After(Option<Vec<String>>),
    /// Known when the chunk before has found its end.
    Unknown,
    /// There is none.
    None,
}

/// A table whose copy is not complete.
#[derive(Debug)]
pub(super) struct TableRun {
    /// Names of the key columns.
    pub(super) key: Vec<String>,
    pub(super) next: NextChunk,
    /// Bytes and rows of a chunk, published or not; no rows if none was read.
    size: (usize, usize),
    /// Consecutive failures.
    pub(super) failures: u32,
    /// The time of the next attempt after a failure.
    pub(super) not_before: Option<Instant>,
}

impl TableRun {
    pub(super) fn new(key: Vec<String>, last_key: Option<Vec<String>>) -> Self {
        Self { key, next: NextChunk::After(last_key), size: (0, 0), failures: 0, not_before: None }
    }

    /// Whether it is known where the next chunk begins.
    pub(super) const fn can_start(&self) -> bool {
        matches!(self.next, NextChunk::After(_))
    }

    /// Takes the next chunk, of about `bytes` bytes.
    pub(super) fn request(&mut self, oid: u32, (rows, bytes): (u32, usize), finds_end: bool) -> Option<ChunkRequest> {
        let NextChunk::After(after) = std::mem::replace(&mut self.next, NextChunk::Unknown) else { return None };
        self.not_before = None;
        let (size, count) = self.size;
        let fitting = if count == 0 { ROWS_FIRST as usize } else { bytes.saturating_mul(count) / size.max(1) };
        let rows_max = u32::try_from(fitting).unwrap_or(u32::MAX).clamp(1, rows);
        // The size of the rows is needed for a chunk that fills its bytes.
        let finds_end = finds_end && count > 0;
        Some(ChunkRequest { oid, after, rows_max, bytes_max: bytes.saturating_mul(BYTES_FACTOR), finds_end })
    }

    /// A chunk of `requested` rows was read: notes the size of rows.
    pub(super) fn on_size(&mut self, chunk: &KeyChunk, requested: u32) {
        // Rows that are not published take part in finding the end.
        let rows = if chunk.end.is_some() && !chunk.is_cut { requested as usize } else { chunk.rows.len() };
        if rows > 0 {
            self.size = (chunk.bytes, rows);
        }
    }

    /// The newest chunk was read: the next one begins behind it.
    pub(super) fn on_newest(&mut self, chunk: &KeyChunk) {
        if chunk.is_last {
            self.next = NextChunk::None;
        } else if chunk.is_cut || self.next == NextChunk::Unknown {
            self.next = NextChunk::After(chunk.last_key());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::{
        relation::Relation,
        snapshot::{plan::TableDefinition, window::PgSnapshot},
    };
    use tidegate_wire::replication::pgoutput::ReplicaIdentity;

    /// Rows with one column of two bytes.
    fn chunk(rows: &[&str], bytes: usize) -> KeyChunk {
        let relation = Arc::new(Relation {
            oid: 1,
            schema: "public".into(),
            name: "t".into(),
            identity: ReplicaIdentity::Default,
            columns: [].into(),
            version: 0,
        });
        let row = |text: &&str| Bytes::from([&[0, 1, 0, 0, 0, 2], text.as_bytes()].concat());
        KeyChunk {
            definition: TableDefinition { relation, types: Vec::new(), key: vec![0], filter: None, rows_estimated: 0 },
            snapshot: PgSnapshot::parse("1:1:").unwrap(),
            rows: rows.iter().map(row).collect(),
            bytes,
            end: None,
            is_cut: false,
            is_last: false,
        }
    }

    fn key(text: &str) -> Vec<String> {
        vec![text.to_owned()]
    }

    #[test]
    fn chunk_after_the_first_fills_its_bytes() {
        let mut run = TableRun::new(key("id"), None);
        let first = run.request(1, (5_000, 10_000), true).unwrap();
        assert_eq!((first.rows_max, first.finds_end, first.after), (256, false, None));
        assert!(!run.can_start() && run.request(1, (5_000, 10_000), true).is_none());
        let read = chunk(&["01", "02"], 200);
        run.on_size(&read, 256);
        run.on_newest(&read);
        let second = run.request(1, (5_000, 10_000), true).unwrap();
        assert_eq!((second.rows_max, second.finds_end, second.after), (100, true, Some(key("02"))));
        assert_eq!(second.bytes_max, 20_000);
        // Two of 100 rows that were counted are published.
        run.on_size(&KeyChunk { end: Some(key("99")), ..chunk(&["03", "04"], 20) }, 100);
        run.next = NextChunk::After(Some(key("99")));
        assert_eq!(run.request(1, (5_000, 10_000), true).unwrap().rows_max, 5_000);
    }

    #[test]
    fn chunk_that_was_cut_is_continued_at_its_last_row() {
        let mut run = TableRun::new(key("id"), Some(key("00")));
        run.next = NextChunk::After(Some(key("99")));
        let read = KeyChunk { end: Some(key("99")), is_cut: true, ..chunk(&["01", "02"], 200) };
        run.on_newest(&read);
        assert_eq!(run.next, NextChunk::After(Some(key("02"))));
        run.next = NextChunk::Unknown;
        run.on_newest(&KeyChunk { is_last: true, ..chunk(&[], 0) });
        assert_eq!(run.next, NextChunk::None);
    }
}
