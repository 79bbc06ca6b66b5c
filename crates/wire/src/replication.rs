//! Logical replication: WAL positions, commands, the payloads of CopyData, and the messages of `pgoutput`.
//!
//! A walsender sends CopyData messages whose payload is XLogData (`w`) or a keepalive (`k`); the client sends status
//! updates (`r`). XLogData carries one message of the output plugin, which [`pgoutput`] decodes.
//!
//! ```
//! use tidegate_wire::replication::{Lsn, ServerMessage, StatusUpdate, keepalive};
//!
//! let mut payload = Vec::new();
//! keepalive(Lsn(0x16B_3748), 0, true, &mut payload);
//! let ServerMessage::Keepalive { end, reply_requested, .. } = ServerMessage::decode(&payload)? else { panic!() };
//! assert_eq!((end.to_string().as_str(), reply_requested), ("0/16B3748", true));
//!
//! let mut reply = Vec::new();
//! StatusUpdate { write: end, flush: end, apply: end, time: 0, reply_requested: false }.encode(&mut reply);
//! assert_eq!(reply.len(), 34);
//! # Ok::<(), tidegate_wire::DecodeError>(())
//! ```

mod command;
mod copy;
mod lsn;
pub mod pgoutput;

pub use command::{
    CreateSlot, PluginOption, SlotNameError, SlotSnapshot, check_slot_name, drop_slot, publication_list, quote_ident,
    quote_literal, start_replication,
};
pub use copy::{ServerMessage, StatusUpdate, keepalive, xlog_data};
pub use lsn::{Lsn, ParseLsnError};

/// Microseconds from 1970-01-01 to 2000-01-01, the epoch of Postgres' timestamps.
pub const POSTGRES_EPOCH_MICROS: i64 = 946_684_800_000_000;
