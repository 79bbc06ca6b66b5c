//! Postgres change data capture: committed transactions in commit order, acknowledged when they are durable.
//!
//! # Contract
//!
//! - **Order.** Transactions arrive in commit order, changes of a transaction in the order of their execution. Rolled-back
//!   transactions and savepoints never arrive.
//! - **At least once.** The replication slot is confirmed only up to what the consumer has acknowledged. A restart
//!   repeats transactions that were not acknowledged, with the same [`ChangeId`]s.
//! - **No guesses.** An unchanged TOAST value is [`ColumnValue::Unchanged`], never NULL. A column that is not part of the
//!   key of an old row is absent.
//!
//! # Events
//!
//! ```text
//! Begin  (Schema | Change)*  Commit      a transaction; Schema precedes the first row of a new table definition
//! Message                                a non-transactional pg_logical_emit_message
//! Progress                               every transaction that committed before this position has arrived
//! ```
//!
//! # Example
//!
//! Print the changes of a table. The publication and the slot exist: `create publication orders for table orders`, then
//! `select pg_create_logical_replication_slot('orders', 'pgoutput')`.
//! ```no_run
//! use tidegate_changes::{ChangeEvent, ChangeOptions, ChangeStream, ConnectOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let connect = ConnectOptions::from_url("postgres://cdc:secret@127.0.0.1/shop")?;
//! let mut stream = ChangeStream::start(ChangeOptions::new(connect, "orders", "orders"));
//! while let Some(event) = stream.next().await? {
//!     match event {
//!         ChangeEvent::Change(change) => {
//!             let Some(row) = change.row() else { continue };
//!             println!("{} {:?} {}", change.id, row.operation(), row.relation().name);
//!             for (column, value) in row.after() {
//!                 println!("  {} = {value:?}", column.name);
//!             }
//!         }
//!         // Printed is durable enough here.
//!         ChangeEvent::Commit(commit) => stream.acknowledge(commit.end_lsn),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Layers
//!
//! [`ChangeStream`] is the driver: a task that owns the replication connection, and a bounded channel. The decisions are
//! pure and usable alone: [`Assembler`] (transactions), [`Relations`] (table definitions), [`AckTracker`] (the flush
//! position), [`check_start`] (gaps).

mod ack;
mod assembler;
mod change;
mod client;
mod error;
mod event;
mod options;
mod position;
pub mod preflight;
mod reader;
mod relation;
mod server_state;
pub mod slots;
mod snapshot;
mod spill;
#[cfg(feature = "spool")]
pub mod spool;
#[cfg(feature = "spool")]
mod spool_error;
mod status;
mod stream;
mod wal_bound;

pub use ack::{AckTracker, Acknowledge, IdleAck};
pub use assembler::Assembler;
pub use change::{Change, ChangeId, ChangeKind, OldRow, RowChange, RowOperation, TransactionMessage, TruncateChange};
pub use client::{ClientError, ConnectOptions, PgConnection, QueryRow, QueryTable, ReplicationMode, ServerReport};
pub use error::{AssembleError, ChangeStreamError, DecodeChangeError, ErrorClass, LostChanges, classify};
pub use event::{
    ChangeEvent, LooseMessage, PgTimestamp, Transaction, TransactionBegin, TransactionCollector, TransactionCommit,
};
pub use options::{ChangeOptions, StreamingOptions};
pub use position::{SlotIdentity, StreamPosition};
pub use relation::{Relation, RelationColumn, Relations, SchemaChange};
pub use server_state::{
    ServerState, SlotState, StartCheck, TimelineSwitch, check_start, invalidation, parse_timeline_history,
};
pub use snapshot::{
    ExportedRows, ExportedSnapshot, PgSnapshot, SnapshotEvent, SnapshotOptions, SnapshotRow, SnapshotRows,
    SnapshotState, SnapshotStream, TableProgress,
};
pub use spill::{FileSpill, SpillFile, SpillStore};
pub use status::{ChangeCounts, ChangeStreamStatus, ConnectionState};
pub use stream::{ChangeStream, EventSender};
pub use tidegate_backoff::{Backoff, Jitter};
pub use tidegate_config::{Host, Secret, SessionAttrs};
pub use tidegate_wire::replication::{
    Lsn,
    pgoutput::{ColumnValue, ReplicaIdentity, TupleData},
};
pub use wal_bound::{WalBound, WalFull};
