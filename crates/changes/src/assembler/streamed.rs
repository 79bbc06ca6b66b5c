//! Streamed transactions: kept until they commit or abort.
//!
//! A transaction is a list of chunks, the older ones in the store. A chunk holds whole records: the id of the
//! subtransaction, the length of the message, and the message in its form outside of streams. In the store, each chunk
//! follows its length.

use std::{
    collections::VecDeque,
    io::{self, Read},
    sync::Arc,
};

use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};
use tidegate_wire::replication::{Lsn, pgoutput::PgoutputMessage};

use super::open::{OpenTransaction, origin_name};
use crate::{
    error::AssembleError,
    event::ChangeEvent,
    relation::Relations,
    spill::{SpillFile, SpillStore},
};

/// Bytes after which a chunk is complete. A longer message has a chunk of its own.
const CHUNK: usize = 256 * 1024;
/// A transaction of this part of the memory goes to the store immediately: what is freed before the commit may stay with the
/// allocator, beside the memory of the delivery.
const LARGE_PART: usize = 4;
/// Bytes of a record before its message.
const RECORD_HEAD: usize = 8;

/// Everything that is open.
pub(super) struct StreamedTransactions {
    by_xid: FxHashMap<u32, StreamedTransaction>,
    store: Option<(Box<dyn SpillStore>, usize)>,
    memory: usize,
    spilled_total: u64,
}

#[derive(Default)]
pub(super) struct StreamedTransaction {
    pub(super) origin: Option<Arc<str>>,
    chunks: VecDeque<Vec<u8>>,
    memory: usize,
    spilled: Option<Box<dyn SpillFile>>,
    aborted: FxHashSet<u32>,
}

impl StreamedTransactions {
    pub(super) fn new() -> Self {
        Self { by_xid: FxHashMap::default(), store: None, memory: 0, spilled_total: 0 }
    }

    pub(super) fn set_store(&mut self, store: Box<dyn SpillStore>, memory_max: usize) {
        self.store = Some((store, memory_max));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_xid.is_empty()
    }

    pub(super) const fn memory_bytes(&self) -> usize {
        self.memory
    }

    pub(super) const fn spilled_bytes_total(&self) -> u64 {
        self.spilled_total
    }

    pub(super) fn start(&mut self, xid: u32, first: bool) -> Result<(), AssembleError> {
        match (first, self.by_xid.contains_key(&xid)) {
            (true, false) => {
                self.by_xid.insert(xid, StreamedTransaction::default());
                Ok(())
            }
            (false, true) => Ok(()),
            (first, _) => Err(AssembleError::Segment { xid, first }),
        }
    }

    /// Keeps a message of a segment.
    pub(super) fn append(&mut self, xid: u32, data: &Bytes) -> Result<(), AssembleError> {
        let Some(transaction) = self.by_xid.get_mut(&xid) else {
            return Err(AssembleError::Segment { xid, first: false });
        };
        let decoded = PgoutputMessage::decode(data, true)?;
        let subxid = match (decoded.xid, decoded.message) {
            (_, PgoutputMessage::Origin { name, .. }) => {
                transaction.origin = Some(origin_name(name));
                return Ok(());
            }
            (_, PgoutputMessage::Type { .. }) => return Ok(()),
            (Some(subxid), _) => subxid,
            (None, _) => return Err(super::unexpected(data, "a stream segment")),
        };
        let added = transaction.append(subxid, data);
        self.memory += added;
        self.limit(xid).map_err(AssembleError::Spill)
    }

    /// Moves transactions to the store: large ones, and while memory is above its bound the largest first. A transaction that
    /// is in the store already goes there chunk by chunk.
    fn limit(&mut self, xid: u32) -> io::Result<()> {
        let Some((store, memory_max)) = &mut self.store else { return Ok(()) };
        let spill = |xid: u32, transaction: &mut StreamedTransaction, store: &mut dyn SpillStore| {
            let bytes = transaction.spill(xid, store)?;
            Ok::<_, io::Error>(bytes)
        };
        let large = CHUNK.max(*memory_max / LARGE_PART);
        let most = |transaction: &StreamedTransaction| if transaction.spilled.is_some() { CHUNK } else { large };
        if let Some(transaction) = self.by_xid.get_mut(&xid)
            && transaction.memory >= most(transaction)
        {
            let bytes = spill(xid, transaction, store.as_mut())?;
            self.memory -= bytes;
            self.spilled_total += bytes as u64;
        }
        while self.memory > *memory_max {
            let largest = self.by_xid.iter_mut().max_by_key(|(_, transaction)| transaction.memory);
            let Some((xid, transaction)) = largest.filter(|(_, transaction)| transaction.memory > 0) else { break };
            let bytes = spill(*xid, transaction, store.as_mut())?;
            self.memory -= bytes;
            self.spilled_total += bytes as u64;
        }
        Ok(())
    }

    /// Drops a transaction, or the changes of a subtransaction. A transaction without changes is unknown here.
    pub(super) fn abort(&mut self, xid: u32, subxid: u32) {
        if xid == subxid {
            self.memory -= self.by_xid.remove(&xid).map_or(0, |transaction| transaction.memory);
        } else if let Some(transaction) = self.by_xid.get_mut(&xid) {
            transaction.aborted.insert(subxid);
        }
    }

    pub(super) fn take(&mut self, xid: u32) -> Result<StreamedTransaction, AssembleError> {
        let transaction = self.by_xid.remove(&xid).ok_or(AssembleError::Segment { xid, first: false })?;
        self.memory -= transaction.memory;
        Ok(transaction)
    }

    pub(super) fn clear(&mut self) {
        self.by_xid.clear();
        self.memory = 0;
    }
}

impl StreamedTransaction {
    /// Returns the bytes that memory grew by.
    fn append(&mut self, subxid: u32, data: &[u8]) -> usize {
        // The tag and the fields after the transaction id: the form outside of streams.
        let (tag, fields) = (data.get(..1).unwrap_or_default(), data.get(5..).unwrap_or_default());
        let len = RECORD_HEAD + tag.len() + fields.len();
        if self.chunks.back().is_none_or(|chunk| chunk.len() + len > CHUNK) {
            self.chunks.push_back(Vec::new());
        }
        if let Some(chunk) = self.chunks.back_mut() {
            // Doubled, but not beyond a whole chunk.
            if chunk.capacity() - chunk.len() < len {
                let capacity = (chunk.capacity() * 2).clamp(chunk.len() + len, CHUNK.max(len));
                chunk.reserve_exact(capacity - chunk.len());
            }
            chunk.extend_from_slice(&subxid.to_be_bytes());
            chunk.extend_from_slice(&u32::try_from(len - RECORD_HEAD).unwrap_or(u32::MAX).to_be_bytes());
            chunk.extend_from_slice(tag);
            chunk.extend_from_slice(fields);
        }
        self.memory += len;
        len
    }

    /// Returns the bytes that were moved.
    fn spill(&mut self, xid: u32, store: &mut dyn SpillStore) -> io::Result<usize> {
        let file = match &mut self.spilled {
            Some(file) => file,
            empty => empty.insert(store.create(xid)?),
        };
        let moved = self.memory;
        for chunk in self.chunks.drain(..) {
            file.append(&u32::try_from(chunk.len()).unwrap_or(u32::MAX).to_be_bytes())?;
            file.append(&chunk)?;
        }
        self.memory = 0;
        Ok(moved)
    }

    pub(super) fn into_replay(self, open: OpenTransaction, end_lsn: Lsn) -> Result<Replay, AssembleError> {
        let stored = self.spilled.map(SpillFile::into_reader).transpose().map_err(AssembleError::Spill)?;
        Ok(Replay { open, end_lsn, stored, chunks: self.chunks, current: Bytes::new(), aborted: self.aborted })
    }
}

/// A committed streamed transaction that is being delivered.
pub(super) struct Replay {
    pub(super) open: OpenTransaction,
    pub(super) end_lsn: Lsn,
    stored: Option<Box<dyn Read + Send + Sync>>,
    chunks: VecDeque<Vec<u8>>,
    current: Bytes,
    aborted: FxHashSet<u32>,
}

impl Replay {
    /// Delivers changes of about `bytes_max` bytes. Returns whether there are more.
    pub(super) fn step(
        &mut self,
        bytes_max: usize,
        relations: &mut Relations,
        out: &mut Vec<ChangeEvent>,
    ) -> Result<bool, AssembleError> {
        let mut bytes = 0;
        while bytes < bytes_max {
            if self.current.is_empty() && !self.next_chunk().map_err(AssembleError::Spill)? {
                return Ok(false);
            }
            let Some((subxid, frame)) = take_record(&mut self.current) else {
                return Err(AssembleError::Spill(io::ErrorKind::InvalidData.into()));
            };
            bytes += RECORD_HEAD + frame.len();
            if !self.aborted.contains(&subxid) {
                self.open.change(frame, relations, out)?;
            }
        }
        Ok(true)
    }

    fn next_chunk(&mut self) -> io::Result<bool> {
        if let Some(reader) = &mut self.stored {
            if let Some(chunk) = read_chunk(reader)? {
                self.current = chunk;
                return Ok(true);
            }
            self.stored = None;
        }
        match self.chunks.pop_front() {
            Some(chunk) => {
                self.current = chunk.into();
                Ok(true)
            }
            None => Ok(false),
        }
    }
}

fn read_chunk(reader: &mut impl Read) -> io::Result<Option<Bytes>> {
    let mut head = [0; 4];
    if reader.read(&mut head[..1])? == 0 {
        return Ok(None);
    }
    reader.read_exact(&mut head[1..])?;
    let len = u32::from_be_bytes(head) as usize;
    // Beyond a usual chunk it grows with what is there, so that a damaged length does not allocate.
    let mut chunk = Vec::with_capacity(len.min(CHUNK));
    if reader.take(len as u64).read_to_end(&mut chunk)? == len {
        return Ok(Some(chunk.into()));
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

fn take_record(chunk: &mut Bytes) -> Option<(u32, Bytes)> {
    let (head, _) = chunk.split_first_chunk::<RECORD_HEAD>()?;
    let [a, b, c, d, e, f, g, h] = *head;
    let (subxid, len) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]) as usize);
    if chunk.len() < RECORD_HEAD + len {
        return None;
    }
    let mut record = chunk.split_to(RECORD_HEAD + len);
    Some((subxid, record.split_off(RECORD_HEAD)))
}
