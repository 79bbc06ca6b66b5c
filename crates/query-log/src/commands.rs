//! `tidegate journal`: commands that read, check and repair a query log.
//!
//! `source` finds the logs and merges their entries by time, `filter` selects entries, and `print` formats them. The
//! commands (`cat`, `tail`, `top`, `stats`, `verify`) combine the three. Lost, missing and damaged records pass every
//! filter, because no view may look complete when it is not.

mod cat;
mod durations;
mod filter;
mod latest;
mod log_entry;
mod print;
mod progress;
mod source;
mod stats;
mod tail;
mod top;
pub mod units;
mod verify;
mod zone;

use std::io;

use anyhow::Result;

use crate::options::{self, JournalCommand};

pub use latest::{LatestRecords, latest_records};
pub use top::slow_queries;

/// Runs a command. Returns whether the log is complete, as far as the command checks it.
///
/// # Errors
/// Why the log could not be read or the output could not be written, and what to do.
pub fn run(journal: &options::JournalArgs) -> Result<bool> {
    let outcome = match &journal.command {
        JournalCommand::Cat(cat) => cat::cat(cat).map(|()| true),
        JournalCommand::Tail(tail) => tail::run(tail).map(|()| true),
        JournalCommand::Top(top) => top::run(top).map(|()| true),
        JournalCommand::Stats(stats) => stats::run(stats).map(|()| true),
        JournalCommand::Verify(verify) => verify::verify(verify),
        JournalCommand::Repair(repair) => verify::repair(repair),
        JournalCommand::Merge(merge) => cat::merge(merge).map(|()| true),
        JournalCommand::Export(export) => cat::export(export).map(|()| true),
    };
    outcome.or_else(|error| if is_closed_pipe(&error) { Ok(true) } else { Err(error) })
}

/// A closed pipe (`| head`) is a normal end of a command.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
