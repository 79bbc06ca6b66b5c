//! Chunks that are being read, and the events of the stream that wait for them.
//!
//! A chunk has two marks in the stream: one is written before its snapshot is taken, one after its rows are read. Its rows belong
//! directly behind the transaction of the first mark. Events behind that place are held back until the rows are there and the
//! stream has passed the second mark: then it is known which rows changed between the marks. Several chunks, of one table or of
//! several, are open at the same time, and each has a place of its own among the held events.
//!
//! [`Pipeline`] decides, and neither reads a clock nor waits.

use std::collections::VecDeque;

use tidegate_wire::replication::Lsn;

use super::{
    chunk::{ChunkRequest, KeyChunk, MARK_PREFIX},
    window::{ChunkVerdict, DeliveredTransactions, PgSnapshot, TableWindow, Window},
};
use crate::{
    change::{Change, ChangeKind},
    event::ChangeEvent,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkState {
    BeforeLow,
    /// The transaction of the low mark is open.
    Low,
    /// The stream is between the marks.
    Open,
    /// The transaction of the high mark is open.
    High,
    Passed,
}

/// A chunk whose rows were not delivered yet.
#[derive(Debug)]
struct PendingChunk {
    number: u64,
    request: ChunkRequest,
    low: String,
    high: String,
    marks: MarkState,
    /// The position of the low mark.
    low_lsn: Lsn,
    /// The number of the first transaction behind the low mark.
    first_behind: u64,
    window: Window,
    chunk: Option<KeyChunk>,
}

/// An event, or the place of the rows of a chunk.
#[derive(Debug)]
enum HeldItem {
    Event(ChangeEvent),
    /// The place of the rows of a chunk.
    Rows(u64),
}

/// A chunk at the time of its delivery.
#[derive(Debug)]
pub(super) struct ReadChunk {
    pub(super) number: u64,
    pub(super) request: ChunkRequest,
    pub(super) chunk: KeyChunk,
    /// The position of its rows.
    pub(super) lsn: Lsn,
    pub(super) window: TableWindow,
    /// A transaction before the chunk that its snapshot does not show (CH-66).
    pub(super) missing: Option<u32>,
}

impl ReadChunk {
    /// Whether the rows may be delivered.
    pub(super) fn verdict(&self) -> ChunkVerdict {
        if self.missing.is_some() { ChunkVerdict::ReadAgain } else { self.window.verdict() }
    }
}

/// The next thing to deliver.
#[derive(Debug)]
pub(super) enum PipelineItem {
    Event(ChangeEvent),
    Chunk(Box<ReadChunk>),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pipeline {
    /// Pending chunks, in the order of their start.
    chunks: Vec<PendingChunk>,
    held: VecDeque<HeldItem>,
    held_bytes: usize,
    delivered: DeliveredTransactions,
    /// A snapshot, and the last chunk that began before it was known: the snapshots of later chunks are later.
    forget: Option<(PgSnapshot, u64)>,
    last_number: u64,
}

impl Pipeline {
    /// Adds a chunk, before its low mark is written. `key` are the names of the key columns. Numbers rise.
    pub(super) fn start(
        &mut self,
        number: u64,
        request: ChunkRequest,
        key: Vec<String>,
        (low, high): (String, String),
    ) {
        self.last_number = number;
        let window = Window::new(request.oid, key);
        let (marks, low_lsn) = (MarkState::BeforeLow, Lsn::ZERO);
        self.chunks.push(PendingChunk {
            number,
            request,
            low,
            high,
            marks,
            low_lsn,
            first_behind: 0,
            window,
            chunk: None,
        });
    }

    /// Chunks that were read, and wait for the stream or for other chunks.
    pub(super) fn waiting(&self) -> usize {
        self.chunks.iter().filter(|pending| pending.chunk.is_some()).count()
    }

    /// Chunks of a table that are not delivered.
    pub(super) fn of_table(&self, oid: u32) -> usize {
        self.chunks.iter().filter(|pending| pending.request.oid == oid).count()
    }

    /// The last chunk of a table.
    pub(super) fn newest(&self, oid: u32) -> Option<u64> {
        self.chunks.iter().rfind(|pending| pending.request.oid == oid).map(|pending| pending.number)
    }

    /// The request of a chunk that is pending.
    pub(super) fn request(&self, number: u64) -> Option<&ChunkRequest> {
        self.chunks.iter().find(|pending| pending.number == number).map(|pending| &pending.request)
    }

    /// Adds an event of the stream. Returns it if it need not wait; otherwise [`next`](Self::next) is to be called until it
    /// returns nothing.
    pub(super) fn on_event(&mut self, event: ChangeEvent) -> Option<ChangeEvent> {
        if let ChangeEvent::Begin(begin) = &event {
            self.delivered.push(begin.xid);
        }
        if self.chunks.is_empty() && self.held.is_empty() {
            return Some(event);
        }
        if let ChangeEvent::Change(change) = &event {
            self.on_change(change);
        }
        let ends_transaction = matches!(event, ChangeEvent::Commit(_));
        self.held_bytes += held_bytes(&event);
        self.held.push_back(HeldItem::Event(event));
        if ends_transaction {
            self.on_commit();
        }
        None
    }

    /// Looks for marks, and notes the change for the chunks that the stream is within.
    fn on_change(&mut self, change: &Change) {
        for pending in &mut self.chunks {
            if pending.marks == MarkState::Open {
                pending.window.change(change);
            }
        }
        let ChangeKind::Message(message) = &change.kind else { return };
        if message.prefix != MARK_PREFIX.as_bytes() {
            return;
        }
        for pending in &mut self.chunks {
            match pending.marks {
                MarkState::BeforeLow if message.content == pending.low.as_bytes() => {
                    (pending.marks, pending.low_lsn) = (MarkState::Low, change.id.commit_lsn);
                }
                MarkState::Open if message.content == pending.high.as_bytes() => pending.marks = MarkState::High,
                _ => {}
            }
        }
    }

    fn on_commit(&mut self) {
        for pending in &mut self.chunks {
            match pending.marks {
                MarkState::Low => {
                    (pending.marks, pending.first_behind) = (MarkState::Open, self.delivered.next_number());
                    self.held.push_back(HeldItem::Rows(pending.number));
                }
                MarkState::High => pending.marks = MarkState::Passed,
                _ => {}
            }
        }
    }

    /// Adds the rows of a chunk. A chunk that was discarded is dropped.
    pub(super) fn on_chunk(&mut self, number: u64, chunk: KeyChunk) {
        let Some(pending) = self.chunks.iter_mut().find(|pending| pending.number == number) else { return };
        self.forget.get_or_insert_with(|| (chunk.snapshot.clone(), self.last_number));
        pending.chunk = Some(chunk);
    }

    /// Discards the chunks of a table from a number on. Events that waited for them alone are delivered.
    pub(super) fn discard(&mut self, oid: u32, from: u64) {
        self.chunks.retain(|pending| pending.request.oid != oid || pending.number < from);
        self.forget_shown();
    }

    /// If more than `bytes_max` are held back: the first chunk of each table that events wait for, to be discarded.
    pub(super) fn overflow(&self, bytes_max: usize) -> Vec<(u32, u64)> {
        let mut found: Vec<(u32, u64)> = Vec::new();
        if self.held_bytes <= bytes_max {
            return found;
        }
        for pending in &self.chunks {
            let is_passed = pending.marks != MarkState::BeforeLow && pending.marks != MarkState::Low;
            if is_passed && found.iter().all(|(oid, _)| *oid != pending.request.oid) {
                found.push((pending.request.oid, pending.number));
            }
        }
        found
    }

    /// The next event, or the next rows; `None` if it is not known yet what comes next.
    pub(super) fn next(&mut self) -> Option<PipelineItem> {
        loop {
            if let HeldItem::Rows(number) = self.held.front()? {
                let number = *number;
                // A chunk that was discarded has left its place.
                if let Some(at) = self.chunks.iter().position(|pending| pending.number == number) {
                    let chunk = self.take_chunk(at)?;
                    self.held.pop_front();
                    return Some(PipelineItem::Chunk(Box::new(chunk)));
                }
            }
            if let Some(HeldItem::Event(event)) = self.held.pop_front() {
                self.held_bytes = self.held_bytes.saturating_sub(held_bytes(&event));
                return Some(PipelineItem::Event(event));
            }
        }
    }

    /// Removes a chunk that can be delivered.
    fn take_chunk(&mut self, at: usize) -> Option<ReadChunk> {
        let pending = self.chunks.get_mut(at).filter(|pending| pending.marks == MarkState::Passed)?;
        let chunk = pending.chunk.take()?;
        let missing = self.delivered.missing_in(&chunk.snapshot, pending.first_behind);
        let PendingChunk { number, request, low_lsn, window, .. } = self.chunks.remove(at);
        self.forget_shown();
        Some(ReadChunk { number, request, chunk, lsn: low_lsn, window: window.into_table(), missing })
    }

    /// Forgets transactions that the snapshots of all further chunks show.
    fn forget_shown(&mut self) {
        let is_reached = |(_, last): &mut (PgSnapshot, u64)| self.chunks.iter().all(|pending| pending.number > *last);
        if let Some((snapshot, _)) = self.forget.take_if(is_reached) {
            self.delivered.forget_shown(&snapshot);
        }
    }
}

/// Memory of a held event, about.
fn held_bytes(event: &ChangeEvent) -> usize {
    let frame = if let ChangeEvent::Change(change) = event { change.frame().len() } else { 0 };
    size_of::<ChangeEvent>() + frame
}

#[cfg(test)]
mod tests;
