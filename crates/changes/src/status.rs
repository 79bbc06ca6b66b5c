//! State of a stream, for metrics and logs.

use tidegate_wire::replication::Lsn;

use crate::{
    change::{ChangeKind, RowOperation},
    event::{ChangeEvent, PgTimestamp},
    position::SlotIdentity,
    server_state::SlotState,
};

/// The connection of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionState {
    /// No connection yet, or a new one is being opened.
    #[default]
    Connecting,
    /// Changes are received.
    Streaming,
    /// The next attempt waits for its delay.
    Waiting,
    /// The stream has ended.
    Ended,
}

/// Counts of delivered changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeCounts {
    /// Inserted rows.
    pub inserts: u64,
    /// Updated rows.
    pub updates: u64,
    /// Deleted rows.
    pub deletes: u64,
    /// TRUNCATE commands.
    pub truncates: u64,
    /// Messages of `pg_logical_emit_message`.
    pub messages: u64,
}

/// A snapshot of a stream's state.
#[derive(Clone, Debug, Default)]
pub struct ChangeStreamStatus {
    /// The connection.
    pub connection: ConnectionState,
    /// The server and slot; `None` before the first connection.
    pub identity: Option<SlotIdentity>,
    /// End of the WAL that the server has sent or decoded.
    pub received_lsn: Lsn,
    /// The highest acknowledged position.
    pub durable_lsn: Lsn,
    /// The position that the slot is confirmed up to.
    pub flushed_lsn: Lsn,
    /// Commit time of the newest transaction.
    pub commit_time: Option<PgTimestamp>,
    /// Bytes of unfinished transactions in memory.
    pub open_tx_bytes: u64,
    /// Bytes of unfinished transactions that were written to their store.
    pub spilled_bytes_total: u64,
    /// Delivered transactions.
    pub transactions_total: u64,
    /// Delivered changes.
    pub changes_total: ChangeCounts,
    /// Connections after the first.
    pub reconnects_total: u64,
    /// Number of published tables; `None` before they were first read.
    pub published_tables: Option<u64>,
    /// Changes of the set of published tables since they were first read.
    pub published_changes: u64,
    /// The error that ended the last connection.
    pub last_error: Option<String>,
    /// Whether that error is that another process reads the slot.
    pub is_slot_busy: bool,
    /// The slot, as the server showed it last, each [`ChangeOptions::watch_interval`](crate::ChangeOptions::watch_interval);
    /// `None` before the first time.
    pub slot: Option<SlotState>,
}

impl ChangeStreamStatus {
    pub(crate) fn count(&mut self, events: &[ChangeEvent]) {
        for event in events {
            match event {
                ChangeEvent::Change(change) => match &change.kind {
                    ChangeKind::Row(row) => match row.operation() {
                        RowOperation::Insert => self.changes_total.inserts += 1,
                        RowOperation::Update => self.changes_total.updates += 1,
                        RowOperation::Delete => self.changes_total.deletes += 1,
                    },
                    ChangeKind::Truncate(_) => self.changes_total.truncates += 1,
                    ChangeKind::Message(_) => self.changes_total.messages += 1,
                },
                ChangeEvent::Message(_) => self.changes_total.messages += 1,
                ChangeEvent::Commit(commit) => {
                    self.transactions_total += 1;
                    self.commit_time = Some(commit.commit_time);
                }
                ChangeEvent::Begin(_) | ChangeEvent::Schema(_) | ChangeEvent::Progress(_) => {}
            }
        }
    }
}
