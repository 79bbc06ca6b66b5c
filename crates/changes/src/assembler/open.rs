//! The transaction that is being delivered.

use std::sync::Arc;

use bytes::Bytes;
use tidegate_wire::replication::{
    Lsn,
    pgoutput::{PgoutputMessage, RelationMessage},
};

use crate::{
    change::{Change, ChangeId, ChangeKind},
    error::{AssembleError, DecodeChangeError},
    event::{ChangeEvent, TransactionBegin, TransactionCommit},
    relation::{Relation, Relations},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    /// All changes from this number on are delivered; `begun` states whether Begin was.
    From { seq: u64, begun: bool },
    /// The consumer has the whole transaction.
    Skip,
}

#[derive(Debug)]
pub(super) struct OpenTransaction {
    begin: TransactionBegin,
    delivery: Delivery,
    /// Number of the next change.
    seq: u64,
}

impl OpenTransaction {
    pub(super) const fn new(begin: TransactionBegin) -> Self {
        Self { begin, delivery: Delivery::From { seq: 0, begun: false }, seq: 0 }
    }

    pub(super) const fn skipped(begin: TransactionBegin) -> Self {
        Self { begin, delivery: Delivery::Skip, seq: 0 }
    }

    /// A transaction of which the first `changes` were delivered, after Begin.
    pub(super) const fn resumed(begin: TransactionBegin, changes: u64) -> Self {
        Self { begin, delivery: Delivery::From { seq: changes, begun: true }, seq: 0 }
    }

    pub(super) fn is_skipped(&self) -> bool {
        self.delivery == Delivery::Skip
    }

    pub(super) const fn commit_lsn(&self) -> Lsn {
        self.begin.commit_lsn
    }

    /// The delivered part of an unfinished transaction; `None` if the consumer has received nothing.
    pub(super) fn partial(&self) -> Option<(Lsn, u64)> {
        match self.delivery {
            Delivery::From { seq, begun: true } => Some((self.commit_lsn(), self.seq.max(seq))),
            _ => None,
        }
    }

    pub(super) fn origin(&mut self, data: &[u8]) -> Result<(), AssembleError> {
        let PgoutputMessage::Origin { name, .. } = PgoutputMessage::decode(data, false)?.message else {
            return Err(AssembleError::Unexpected { tag: b'O', state: "a transaction" });
        };
        self.begin.origin = Some(origin_name(name));
        Ok(())
    }

    /// Handles a change, a definition or a type.
    pub(super) fn change(
        &mut self,
        frame: Bytes,
        relations: &mut Relations,
        out: &mut Vec<ChangeEvent>,
    ) -> Result<(), AssembleError> {
        match frame.first() {
            Some(b'I' | b'U' | b'D' | b'T' | b'M') => self.row(frame, relations, out),
            Some(b'R' | b'Y') => match PgoutputMessage::decode(&frame, false)?.message {
                PgoutputMessage::Relation(found) => update_relation(&found, relations),
                _ => Ok(()),
            },
            other => Err(AssembleError::Unexpected { tag: other.copied().unwrap_or(0), state: "a transaction" }),
        }
    }

    fn row(
        &mut self,
        frame: Bytes,
        relations: &mut Relations,
        out: &mut Vec<ChangeEvent>,
    ) -> Result<(), AssembleError> {
        let id = ChangeId { commit_lsn: self.begin.commit_lsn, seq: self.seq };
        self.seq += 1;
        let Delivery::From { seq, begun } = &mut self.delivery else { return Ok(()) };
        if id.seq < *seq {
            return Ok(());
        }
        let change = Change::from_frame(id, frame, relations)?;
        if !*begun {
            *begun = true;
            out.push(ChangeEvent::Begin(self.begin.clone()));
        }
        if relations.has_unannounced() {
            match &change.kind {
                ChangeKind::Row(row) => announce(relations, row.relation(), out),
                ChangeKind::Truncate(truncate) => {
                    truncate.relations.iter().for_each(|relation| announce(relations, relation, out));
                }
                ChangeKind::Message(_) => {}
            }
        }
        out.push(ChangeEvent::Change(change));
        Ok(())
    }

    /// Delivers the end. A transaction without a change is progress.
    pub(super) fn finish(self, end_lsn: Lsn, out: &mut Vec<ChangeEvent>) -> Result<(), AssembleError> {
        let TransactionBegin { commit_lsn, commit_time, xid, .. } = self.begin;
        match self.delivery {
            Delivery::Skip => {}
            Delivery::From { seq, .. } if self.seq < seq => {
                return Err(AssembleError::Shortened { commit_lsn, before: seq, now: self.seq });
            }
            Delivery::From { begun: true, .. } => {
                let changes = self.seq;
                out.push(ChangeEvent::Commit(TransactionCommit { commit_lsn, end_lsn, commit_time, xid, changes }));
            }
            Delivery::From { begun: false, .. } => match out.last_mut() {
                Some(ChangeEvent::Progress(last)) => *last = end_lsn,
                _ => out.push(ChangeEvent::Progress(end_lsn)),
            },
        }
        Ok(())
    }
}

/// Delivers a new definition before the first change that uses it. Definitions of rolled-back transactions, and of
/// transactions that the consumer has already, are not events.
fn announce(relations: &mut Relations, relation: &Arc<Relation>, out: &mut Vec<ChangeEvent>) {
    if let Some(change) = relations.announce(relation.oid) {
        out.push(ChangeEvent::Schema(change));
    }
}

pub(super) fn update_relation(found: &RelationMessage<'_>, relations: &mut Relations) -> Result<(), AssembleError> {
    relations.receive(Relation::from_message(found, 0)?);
    Ok(())
}

pub(super) fn origin_name(name: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(name).into()
}

impl From<DecodeChangeError> for AssembleError {
    fn from(error: DecodeChangeError) -> Self {
        Self::Decode(error)
    }
}
