//! `tidegate journal`: reading, checking and mending a query journal.
//!
//! `source` finds the journals that are asked for and gives their entries in one order; `sieve` says which are wanted;
//! `print` shows them. The commands (`cat`, `tail`, `top`, `stats`, `verify`) put the three together. Records that
//! were lost, are missing or damaged pass every sieve: no view may look whole that is not.

mod cat;
mod durations;
mod item;
mod print;
mod progress;
mod sieve;
mod source;
mod stats;
mod tail;
mod top;
mod units;
mod verify;
mod zone;

use std::io;

use anyhow::Result;

use crate::options::{self, JournalCommand};

/// Carries a command out; whether all is well with the journal, as far as the command looks.
///
/// # Errors
/// What kept it from being read or written, and what to do about it.
pub fn run(journal: &options::Journal) -> Result<bool> {
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

/// Whoever read our output has seen enough (`| head`): that is an end like any other.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
