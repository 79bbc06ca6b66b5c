//! A bounded, crash-safe log for many producers: append, group commit, read, merge, repair.
//!
//! # The problem
//!
//! Thousands of tasks record events, and one place writes them. If producers do not wait, the queue in memory has no
//! bound: one published account counts 68,487 messages and 72 MB in the queue, and 2.5 times less throughput than with
//! producers that wait. If producers wait for each line, all are as slow as the disk. If records are dropped without a
//! trace, the log cannot be trusted. After a crash, the part that was written is unknown.
//!
//! # The contract
//!
//! - A [`Producer`] frames a [`ProducerRecord`] and copies it into bounded memory. [`Producer::offer`] never waits,
//!   [`Producer::append`] waits for room, [`Producer::commit`] waits until the record reaches its [`Ack`] level.
//! - **The bound is in bytes, over all producers** ([`JournalConfig::bytes_max`]). The [`OverloadPolicy`] of the class of
//!   a record decides what happens at the bound. Every loss is counted ([`ClassStats`]) and recorded in the log
//!   ([`Gap`]).
//! - **accepted ⊇ recovered ⊇ written** after the process dies, and **⊇ durable** after a power failure; each record
//!   once.
//! - If a write or a sync of a segment fails, the writer abandons the segment and writes all records that have not
//!   reached their ack level to a new one. A full disk is a [`JournalState`]: records wait in memory until there is room.
//! - The records of one producer stay in order. A [`JournalReader`] merges stripes, follows a live journal, and never
//!   returns a partial record. [`verify()`] reports damage, [`repair`] copies the intact records to a new segment.
//! - [`Journal::close`] reports exactly which records were written and which were not.
//!
//! The journal needs no async runtime: its own threads wake the futures. It runs one writer thread per stripe, one for
//! deadlines and one for maintenance. It locks the folder until the last writer thread has ended.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use tidegate_journal::{
//!     Ack, AtEnd, Class, ClassConfig, Journal, JournalConfig, JournalEntry, JournalReader, OverloadPolicy,
//!     ProducerRecord, ReadFrom,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let mut config = JournalConfig::new(folder);
//! config.classes = vec![
//!     ClassConfig::new("audit").ack(Ack::Durable),
//!     ClassConfig::new("queries").overload(OverloadPolicy::DropOldest),
//! ];
//! let (journal, _recovery) = Journal::open(config)?;
//! let (audit, queries) = (Class::new(0), Class::new(1));
//!
//! let producer = journal.producer();
//! producer.commit_blocking(ProducerRecord::new(audit, b"login"))?; // durable when this returns
//! producer.offer(ProducerRecord::new(queries, b"select 1"))?; // written later
//! let report = journal.close(Duration::from_secs(5));
//! assert!(report.is_complete());
//!
//! let mut reader = JournalReader::open(folder, &ReadFrom::Beginning, AtEnd::Stop)?;
//! let Some(JournalEntry::Record(first)) = reader.read()? else { panic!("the journal has two records") };
//! assert_eq!(first.payload, b"login");
//! # Ok(())
//! # }
//! ```

mod blocking;
mod catalog;
mod chunk;
mod compressed_file;
mod compression;
mod config;
mod crc_index;
mod disk_bound;
mod durability_tracker;
mod error;
mod folder;
mod frame;
mod gap_record;
mod health;
mod journal;
mod journal_context;
mod line_format;
#[cfg(all(test, loom))]
mod loom_tests;
mod maintenance;
mod memory_budget;
mod observer;
mod producer;
mod producer_record;
mod range_set;
mod reader;
mod recovery;
mod reentrancy;
mod segment;
mod segment_format;
mod segment_scanner;
mod segment_writer;
mod staging;
mod stats;
mod storage;
mod stripe;
mod sync;
mod timer;
mod timestamp;
#[cfg(feature = "tracing")]
pub mod trace;
mod verify;
mod wait_queue;
mod write_watch;

pub use catalog::{Segment, segments};
pub use config::{ClassConfig, Compression, JournalConfig, OverloadPolicy, Retention, SegmentPolicy};
pub use error::{AppendError, CommitError, OpenError, ReadError, RecordLost};
pub use folder::{is_open, was_opened};
pub use gap_record::{Gap, LossCause};
pub use health::{JournalEvent, JournalState};
pub use journal::{CloseReport, Journal};
pub use observer::RecordObserver;
pub use producer::{AckFuture, AppendFuture, Producer};
pub use producer_record::{Ack, Class, ProducerRecord, RecordId};
pub use reader::{
    AtEnd, JournalEntry, JournalReader, JournalRecord, LineTimestamp, ParsePositionError, ReadFrom, ReaderPosition,
};
pub use recovery::{DamageKind, DamagedRange, RecoveryReport};
pub use segment_format::SegmentFormat;
pub use stats::{ClassStats, JournalStats};
pub use storage::{FileStorage, SegmentFile, Storage};
pub use timestamp::{Timestamp, TimestampPrecision};
pub use verify::{RepairedSegment, VerifyReport, repair, verify};
pub use write_watch::WriteWatch;
