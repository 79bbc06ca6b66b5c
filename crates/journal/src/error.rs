//! Why something was refused, lost, or could not be opened or read.

use std::{io, path::PathBuf};

/// Why a record was not taken. It is in no file and will not be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The journal is at its bound and the class says not to wait. Counted, and told in a gap record.
    #[error("the journal is full and the record was dropped, as its class says; a gap record will tell")]
    Dropped,
    /// The journal stayed at its bound until the deadline of the class. Counted, and told in a gap record.
    #[error("the journal stayed full until the deadline; a gap record will tell. Is the disk slow or full?")]
    TimedOut,
    /// The record is larger than the configuration allows. Counted, and told in a gap record.
    #[error("a record of {bytes} bytes is larger than {max}; raise record_bytes_max or write less")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The `record_bytes_max` of the configuration.
        max: usize,
    },
    /// The configuration has no such class.
    #[error("there is no class {index}; the configuration lists {classes}")]
    UnknownClass {
        /// The index asked for.
        index: u8,
        /// How many there are.
        classes: usize,
    },
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
}

/// An accepted record did not become as safe as was waited for, and will not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the record was accepted but lost: the disk failed until the journal was closed, or while a segment was synced"
)]
pub struct Lost;

/// Why a record did not become as safe as its class or its producer asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// It was never accepted.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It was accepted and lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// Why a journal could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The configuration contradicts itself.
    #[error("journal: {0}")]
    Config(String),
    /// Another process, or another journal of this one, owns the folder.
    #[error("another journal owns {}; give each its own folder", .0.display())]
    Owned(PathBuf),
    /// The folder or a file in it could not be read or written.
    #[error("cannot open the journal: {}", path.display())]
    Io {
        /// What was touched.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread of the journal")]
    Thread(#[source] io::Error),
}

impl OpenError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}

/// Why a journal could not be read on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system could not read the folder or a file.
    #[error("cannot read {}", path.display())]
    Io {
        /// What was read.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A packed segment, and this build cannot unpack.
    #[error("{} is packed; build with the feature `zstd` to read it", .0.display())]
    Packed(PathBuf),
    /// Another process owns the folder, and the operation needs it alone.
    #[error("a journal owns {}; close it first", .0.display())]
    Owned(PathBuf),
    /// A file whose name is not that of a segment.
    #[error("{} is no segment: those are called `journal-00-0000000001.tgj` (or .jsonl, .log, and .zst behind it)", .0.display())]
    NotASegment(PathBuf),
    /// A position that is of no segment of this folder.
    #[error("stripe {stripe} has no segment {segment}; it was removed, or the position is of another journal")]
    NoSegment {
        /// The stripe.
        stripe: u16,
        /// The segment's number.
        segment: u64,
    },
}

impl ReadError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
