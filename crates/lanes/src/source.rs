//! Sources of records.
//!
//! A source delivers the records of its lanes. It receives the progress of each lane ([`Source::commit`]) and the end of
//! each revoked lane ([`Source::release`]). No method blocks; a source with a blocking client runs it on its own thread,
//! behind bounded queues.
//!
//! The life cycle of a lane:
//!
//! ```text
//! Assigned ──> Records, Gap ──> Revoked ──> release() ──> gone; may be Assigned again with a higher epoch
//!                           └─> Lost ──> gone; nothing of it is committed any more
//! ```

mod interface;
#[cfg(feature = "kafka")]
pub mod kafka;
mod memory;
mod ndjson;

pub use interface::{LaneCommit, PollLimit, Source, SourceEvent};
pub use memory::{MemorySource, MemorySourceHandle};
pub use ndjson::{FileProgress, NdjsonError, NdjsonFormat, NdjsonSource};
