//! Puts transactions together: messages of `pgoutput` in, events in commit order out.
//!
//! Without streaming the server sends a transaction as a whole after its commit; it passes straight through. With
//! streaming the server sends segments of large transactions before they commit; they are kept, in memory or in a
//! [`SpillStore`], and delivered at their commit without the subtransactions that were rolled back.
//!
//! The assembler does no I/O but that of its store, reads no clock and does not wait.

mod open;
mod streamed;

use bytes::Bytes;
use tidegate_wire::replication::{Lsn, pgoutput::PgoutputMessage};

use crate::{
    error::{AssembleError, DecodeChangeError, LostChanges},
    event::{ChangeEvent, LooseMessage, PgTimestamp, TransactionBegin},
    relation::Relations,
    spill::SpillStore,
};
use open::OpenTransaction;
use streamed::{Replay, StreamedTransactions};

/// The progress of the consumer, over connections.
#[derive(Clone, Copy, Debug, Default)]
struct Delivered {
    /// Everything whose record starts before this position was delivered.
    before: Lsn,
    /// A transaction that broke off: its commit position and the number of its delivered changes.
    partial: Option<(Lsn, u64)>,
}

#[derive(Debug)]
enum AssemblerState {
    Outside,
    Transaction(OpenTransaction),
    /// Segment of a streamed transaction, between Stream Start and Stream Stop.
    Segment {
        xid: u32,
    },
}

/// Puts transactions together from the messages of `pgoutput`.
///
/// ```
/// use tidegate_changes::{Assembler, Lsn};
/// use tidegate_wire::replication::pgoutput::encode;
///
/// let mut assembler = Assembler::new(Lsn::ZERO);
/// let (mut message, mut events) = (Vec::new(), Vec::new());
/// encode::begin(Lsn(100), 0, 7, &mut message);
/// assembler.push(message.into(), &mut events)?;
/// let mut message = Vec::new();
/// encode::commit(Lsn(100), Lsn(108), 0, &mut message);
/// assembler.push(message.into(), &mut events)?;
/// // A transaction without changes is progress.
/// assert!(matches!(events[..], [tidegate_changes::ChangeEvent::Progress(Lsn(108))]));
/// # Ok::<(), tidegate_changes::AssembleError>(())
/// ```
pub struct Assembler {
    relations: Relations,
    delivered: Delivered,
    /// Commit position of the last transaction of this connection.
    session_commit: Lsn,
    state: AssemblerState,
    streamed: StreamedTransactions,
    replay: Option<Box<Replay>>,
}

impl std::fmt::Debug for Assembler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Assembler")
            .field("delivered", &self.delivered)
            .field("open_bytes", &self.open_bytes())
            .finish_non_exhaustive()
    }
}

impl Assembler {
    /// Starts at a position: transactions whose commit record starts before it are not delivered (CH-14).
    #[must_use]
    pub fn new(start: Lsn) -> Self {
        Self {
            relations: Relations::default(),
            delivered: Delivered { before: start, partial: None },
            session_commit: Lsn::ZERO,
            state: AssemblerState::Outside,
            streamed: StreamedTransactions::new(),
            replay: None,
        }
    }

    /// Keeps streamed transactions up to `memory_max` bytes over all in memory, and beyond that in `store`; also each that takes
    /// a quarter of the memory.
    #[must_use]
    pub fn with_spill(mut self, store: Box<dyn SpillStore>, memory_max: usize) -> Self {
        self.streamed.set_store(store, memory_max);
        self
    }

    /// Starts with known definitions of tables, so that their versions go on.
    #[must_use]
    pub fn with_relations(mut self, relations: Relations) -> Self {
        self.relations = relations;
        self
    }

    /// The definitions of tables.
    #[must_use]
    pub const fn relations(&self) -> &Relations {
        &self.relations
    }

    /// Handles one message of `pgoutput`. Appends the events that follow from it.
    ///
    /// After the commit of a streamed transaction, [`Assembler::replay`] delivers its events; until it has delivered all
    /// of them, no message is accepted.
    ///
    /// # Errors
    /// The message is malformed or does not fit the ones before, a transaction cannot be stored, or a partly
    /// delivered transaction did not come again. The connection cannot go on.
    pub fn push(&mut self, data: Bytes, out: &mut Vec<ChangeEvent>) -> Result<(), AssembleError> {
        if self.replay.is_some() {
            return Err(AssembleError::Unexpected { tag: data.first().copied().unwrap_or(0), state: "a replay" });
        }
        match &mut self.state {
            AssemblerState::Transaction(open) => match data.first() {
                Some(b'C') => self.commit(&data, out),
                Some(b'O') => open.origin(&data),
                _ => open.change(data, &mut self.relations, out),
            },
            AssemblerState::Segment { xid } => {
                if data.first() == Some(&b'E') {
                    PgoutputMessage::decode(&data, true)?;
                    self.state = AssemblerState::Outside;
                    return Ok(());
                }
                self.streamed.append(*xid, &data)
            }
            AssemblerState::Outside => self.outside(&data, out),
        }
    }

    fn outside(&mut self, data: &Bytes, out: &mut Vec<ChangeEvent>) -> Result<(), AssembleError> {
        match PgoutputMessage::decode(data, false)?.message {
            PgoutputMessage::Begin { commit_lsn, commit_time, xid } => {
                let commit_time = PgTimestamp(commit_time);
                let begin = TransactionBegin { commit_lsn, commit_time, xid, origin: None };
                self.state = AssemblerState::Transaction(self.open(begin)?);
            }
            PgoutputMessage::StreamStart { xid, first } => {
                self.streamed.start(xid, first)?;
                self.state = AssemblerState::Segment { xid };
            }
            PgoutputMessage::StreamAbort { xid, subxid, .. } => self.streamed.abort(xid, subxid),
            PgoutputMessage::StreamCommit { xid, commit_lsn, end_lsn, commit_time } => {
                let commit_time = PgTimestamp(commit_time);
                let streamed = self.streamed.take(xid)?;
                let begin = TransactionBegin { commit_lsn, commit_time, xid, origin: streamed.origin.clone() };
                let open = self.open(begin)?;
                if open.is_skipped() {
                    self.delivered.before = self.delivered.before.max(end_lsn);
                } else {
                    self.replay = Some(Box::new(streamed.into_replay(open, end_lsn)?));
                }
            }
            PgoutputMessage::Logical(found) if !found.transactional => {
                if found.lsn >= self.delivered.before {
                    let end_lsn = Lsn(found.lsn.0.saturating_add(1));
                    let (prefix, content) = (data.slice_ref(found.prefix), data.slice_ref(found.content));
                    self.delivered.before = end_lsn;
                    out.push(ChangeEvent::Message(LooseMessage { lsn: found.lsn, end_lsn, prefix, content }));
                }
            }
            // Definitions and types may also come between transactions.
            PgoutputMessage::Relation(found) => open::update_relation(&found, &mut self.relations)?,
            PgoutputMessage::Type { .. } => {}
            _ => return Err(unexpected(data, "no transaction")),
        }
        Ok(())
    }

    /// Opens a transaction, and decides what of it the consumer has already.
    fn open(&mut self, begin: TransactionBegin) -> Result<OpenTransaction, AssembleError> {
        let commit_lsn = begin.commit_lsn;
        if commit_lsn <= self.session_commit {
            return Err(AssembleError::Order { commit_lsn, after: self.session_commit });
        }
        self.session_commit = commit_lsn;
        if commit_lsn < self.delivered.before {
            return Ok(OpenTransaction::skipped(begin));
        }
        match self.delivered.partial {
            None => Ok(OpenTransaction::new(begin)),
            Some((partial, changes)) if partial == commit_lsn => Ok(OpenTransaction::resumed(begin, changes)),
            Some((partial, changes)) => Err(LostChanges {
                reason: format!(
                    "the transaction at {partial}, of which {changes} changes were delivered, did not come again after \
                     a reconnect; the next one is at {commit_lsn}"
                ),
                remedy: "take a new snapshot of the tables".to_owned(),
            }
            .into()),
        }
    }

    fn commit(&mut self, data: &Bytes, out: &mut Vec<ChangeEvent>) -> Result<(), AssembleError> {
        let PgoutputMessage::Commit { commit_lsn, end_lsn, .. } = PgoutputMessage::decode(data, false)?.message else {
            return Err(unexpected(data, "a transaction"));
        };
        let AssemblerState::Transaction(open) = std::mem::replace(&mut self.state, AssemblerState::Outside) else {
            return Err(unexpected(data, "no transaction"));
        };
        if commit_lsn != open.commit_lsn() || end_lsn < commit_lsn {
            return Err(AssembleError::Order { commit_lsn, after: open.commit_lsn() });
        }
        self.finish(open, end_lsn, out)
    }

    fn finish(&mut self, open: OpenTransaction, end_lsn: Lsn, out: &mut Vec<ChangeEvent>) -> Result<(), AssembleError> {
        self.delivered.before = self.delivered.before.max(end_lsn);
        if !open.is_skipped() {
            self.delivered.partial = None;
        }
        open.finish(end_lsn, out)
    }

    /// Whether a streamed transaction has committed and [`Assembler::replay`] has to be called.
    #[must_use]
    pub const fn is_replaying(&self) -> bool {
        self.replay.is_some()
    }

    /// Delivers events of a committed streamed transaction, from about `bytes_max` bytes of messages. To be called until
    /// [`Assembler::is_replaying`] is false.
    ///
    /// # Errors
    /// A message is malformed, or the store cannot be read.
    pub fn replay(&mut self, bytes_max: usize, out: &mut Vec<ChangeEvent>) -> Result<(), AssembleError> {
        let Some(replay) = &mut self.replay else { return Ok(()) };
        if replay.step(bytes_max, &mut self.relations, out)? {
            return Ok(());
        }
        match self.replay.take() {
            Some(replay) => self.finish(replay.open, replay.end_lsn, out),
            None => Ok(()),
        }
    }

    /// Whether parts of a transaction are here that is not delivered completely.
    #[must_use]
    pub fn is_in_transaction(&self) -> bool {
        !matches!(self.state, AssemblerState::Outside) || self.replay.is_some() || !self.streamed.is_empty()
    }

    /// Forgets everything of the connection that has ended: all open transactions come again (CH-57). The next
    /// connection goes on after the last delivered change.
    pub fn disconnect(&mut self) {
        let open = match (std::mem::replace(&mut self.state, AssemblerState::Outside), self.replay.take()) {
            (AssemblerState::Transaction(open), _) => Some(open),
            (_, Some(replay)) => Some(replay.open),
            _ => None,
        };
        // Changes are skipped up to the larger number, if the connection broke again while it repeated the first ones.
        if let Some(partial) = open.and_then(|open| open.partial()) {
            let earlier = self.delivered.partial.map_or(0, |(_, changes)| changes);
            self.delivered.partial = Some((partial.0, partial.1.max(earlier)));
        }
        self.streamed.clear();
        self.session_commit = Lsn::ZERO;
    }

    /// Bytes of open streamed transactions in memory.
    #[must_use]
    pub const fn open_bytes(&self) -> usize {
        self.streamed.memory_bytes()
    }

    /// Bytes that were written to the store since the start.
    #[must_use]
    pub const fn spilled_bytes_total(&self) -> u64 {
        self.streamed.spilled_bytes_total()
    }
}

fn unexpected(data: &Bytes, state: &'static str) -> AssembleError {
    AssembleError::Unexpected { tag: data.first().copied().unwrap_or(0), state }
}

impl From<tidegate_wire::DecodeError> for AssembleError {
    fn from(error: tidegate_wire::DecodeError) -> Self {
        Self::Decode(DecodeChangeError::Malformed(error))
    }
}

#[cfg(test)]
mod tests;
