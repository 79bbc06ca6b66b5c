//! The query log: which client ran which query, when, for how long and with what result.
//!
//! An operator who investigates a slow or failed query needs every query of the time, not a sample. The log of Postgres
//! holds the address of the gateway instead of the client, and a synchronous log would slow down every query. This crate
//! records queries in the gateway, without a wait on the path of a query.
//!
//! [`writer`] runs on the threads of the gateway. A [`QueryLog`](writer::QueryLog) is the log of one gateway. Each thread
//! has a [`Recorder`](writer::Recorder), each session a [`SessionLog`](writer::SessionLog), and each exchange with a server
//! a [`QueryTracker`](writer::QueryTracker) that follows the queries in flight. [`commands`] implements `tidegate journal`,
//! which reads the log; its arguments are in [`options`]. Both sides share the format of a record, [`record::LogRecord`].
//!
//! # Contract
//!
//! - A query never waits for the log. A record that finds no space in memory is dropped and counted, and the count
//!   is written to the log as a gap.
//! - A query is written once: after its ReadyForQuery, or when the exchange ends without one.
//! - Values of parameters, and error texts that may quote them, are written only if the configuration asks for them.
//!   Passwords in statements that set them (`ALTER ROLE ... PASSWORD`) are never written.
//! - `tidegate-journal` stores the records in segments and detects damage. The commands report gaps, missing records and
//!   damage in every view.
//!
//! # Example
//!
//! Records are JSON objects, so other programs can read them too:
//!
//! ```
//! use tidegate_query_log::record::{LogRecord, RecordKind};
//!
//! let line = br#"{"time":"2026-03-01T12:00:00.000042Z","kind":"query","statement":"select 1","total_us":350}"#;
//! let record = LogRecord::from_json(line)?;
//! assert_eq!(record.kind, RecordKind::Query);
//! assert_eq!((record.statement.as_deref(), record.total_us), (Some("select 1"), Some(350)));
//! # Ok::<(), serde_json::Error>(())
//! ```

pub mod commands;
mod json;
pub mod options;
pub mod record;
pub mod spans;
pub mod writer;
