//! A bounded, crash-safe log for many producers: append, written, durable, read, merge, repair.
//!
//! # The problem
//!
//! Thousands of tasks say what they did, and one place writes it down. If they do not wait for it, its queue has no end: a
//! published account counts 68,487 messages and 72 MB in it, and the whole 2.5 times slower than with senders that wait.
//! If they wait for each line, all are as slow as the disk. If lines are dropped, nobody knows which. And what was written
//! when the machine died, nobody knows either.
//!
//! # The contract
//!
//! - A [`Producer`] takes a [`Note`], frames it and copies it into bounded memory: [`Producer::offer`] never waits,
//!   [`Producer::append`] waits for room, [`Producer::commit`] waits until the record is as safe as it asks: [`Ack`].
//! - **The bound is in bytes, over all producers** ([`Config::bytes_max`]). What happens at the bound is the choice of the
//!   record's class: [`Overload`]. Every loss is counted ([`ClassStats`]) and told in the log ([`Gap`]).
//! - **accepted ⊇ recovered ⊇ written** when the process dies, and **⊇ durable** when the power fails; each record once.
//! - A segment that could not be written or synced is given up, and all that was not as safe as asked goes to a fresh one. A
//!   full disk is a [`State`]: records wait in memory until there is room.
//! - Records of one producer are in their order. A [`Reader`] merges stripes, follows a live journal, and never shows half a
//!   record. [`verify()`] says what is damaged, [`repair`] writes the good records anew.
//! - [`Journal::close`] says exactly what was written and what was not.
//!
//! It needs no runtime: futures are woken from its own threads, one writer for each stripe, one for deadlines, one for
//! upkeep. It locks the folder, and holds it until the last writer has ended.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use tidegate_journal::{Ack, AtEnd, Class, ClassConfig, Config, Entry, Journal, Note, Overload, Reader, Start};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let mut config = Config::new(folder);
//! config.classes = vec![
//!     ClassConfig::new("audit").ack(Ack::Durable),
//!     ClassConfig::new("queries").overload(Overload::DropOldest),
//! ];
//! let (journal, _recovery) = Journal::open(config)?;
//! let (audit, queries) = (Class::new(0), Class::new(1));
//!
//! let producer = journal.producer();
//! producer.commit_blocking(Note::new(audit, b"login"))?; // it is on the disk now
//! producer.offer(Note::new(queries, b"select 1"))?; // it will be
//! let report = journal.close(Duration::from_secs(5));
//! assert!(report.is_complete());
//!
//! let mut reader = Reader::open(folder, &Start::Beginning, AtEnd::Stop)?;
//! let Some(Entry::Record(first)) = reader.read()? else { panic!("there are two records") };
//! assert_eq!(first.payload, b"login");
//! # Ok(())
//! # }
//! ```

mod acks;
mod budget;
mod chunk;
mod clock;
mod config;
mod error;
mod folder;
mod frame;
mod gap;
mod health;
mod inside;
#[cfg(all(test, loom))]
mod interleavings;
mod journal;
mod keeper;
mod line;
mod lines;
mod note;
mod pack;
mod prefix;
mod producer;
mod reader;
mod recovery;
mod scan;
mod segment;
mod sink;
mod staging;
mod stats;
mod storage;
mod stretches;
mod stripe;
mod sync;
mod time;
#[cfg(feature = "tracing")]
pub mod trace;
mod verify;
mod waiting;

pub use config::{ClassConfig, Config, Format, Overload, Pack, Retention, Space, Times};
pub use error::{CommitError, Lost, OpenError, ReadError, Refused};
pub use folder::{is_open, was_opened};
pub use gap::{Cause, Gap};
pub use health::{Event, State};
pub use journal::{CloseReport, Journal};
pub use note::{Ack, Class, Note, Ticket};
pub use producer::{Acked, Appending, Producer};
pub use reader::{AtEnd, Clock, Entry, NoPosition, Position, Reader, Record, Start};
pub use recovery::{Damage, DamageKind, Recovery};
pub use segment::{Segment, segments};
pub use stats::{ClassStats, Stats};
pub use storage::{Disk, SegmentFile, Storage};
pub use time::Time;
pub use verify::{Repaired, Verdict, repair, verify};
