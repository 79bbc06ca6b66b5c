//! The query log: which client ran what, when, for how long and with what result.
//!
//! [`record`] writes it on the threads of the gateway: an [`Archive`](record::Archive) is the log of one gateway. Each thread
//! has a [`Recorder`](record::Recorder) that appends without waiting, each session a [`Witness`](record::Witness), and each
//! exchange a [`Ledger`](record::Ledger) that tracks the queries in flight. [`read`] implements the commands that read the log;
//! their options are in [`options`]. Both sides share the form of a record, [`entry::Entry`].
//!
//! The log is kept in segments by `tidegate-journal`. A record that finds no space in memory is dropped and counted; a query
//! never waits for the log.

pub mod entry;
mod json;
pub mod options;
pub mod read;
pub mod record;
