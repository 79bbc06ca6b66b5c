//! The errors of the journal.

use std::{io, path::PathBuf};

/// An error that prevents an append. The record is in no file and will not be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The journal is at its bound and the class drops records. The loss is counted and recorded in a gap record.
    #[error("the journal is full, so the record was dropped by the overload policy of its class")]
    Dropped,
    /// The journal stayed at its bound until the deadline of the class. The loss is counted and recorded in a gap record.
    #[error("the journal stayed full until the deadline; check whether the disk is slow or full")]
    TimedOut,
    /// The record is larger than the configuration allows. The loss is counted and recorded in a gap record.
    #[error("a record of {bytes} bytes is larger than the limit of {max}; raise record_bytes_max")]
    TooLarge {
        /// The size of the payload, in bytes.
        bytes: usize,
        /// The configured `record_bytes_max`.
        max: usize,
    },
    /// The configuration has no such class.
    #[error("class {index} does not exist; the configuration has {classes} classes")]
    UnknownClass {
        /// The index of the class.
        index: u8,
        /// The number of configured classes.
        classes: usize,
    },
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
}

/// An accepted record did not reach the ack level that its producer waited for, and will not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the record was accepted but lost: the disk failed until the journal was closed, or a segment failed to sync")]
pub struct RecordLost;

/// An error that prevents a commit: the record did not reach its ack level.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The record was never accepted.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The record was accepted and lost.
    #[error(transparent)]
    Lost(#[from] RecordLost),
}

/// An error that prevents opening a journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The configuration is invalid.
    #[error("journal: {0}")]
    Config(String),
    /// Another process, or another journal of this process, owns the folder.
    #[error("another journal owns {}; use one folder per journal", .0.display())]
    InUse(PathBuf),
    /// The folder or a file in it could not be read or written.
    #[error("cannot open the journal: {}", path.display())]
    Io {
        /// The path of the failed operation.
        path: PathBuf,
        /// The error of the operating system.
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

/// An error that ends reading or verifying a journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The folder or a file could not be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The path of the failed operation.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The segment is compressed, and this build cannot decompress.
    #[error("{} is compressed; build with the feature `zstd` to read it", .0.display())]
    Compressed(PathBuf),
    /// Another process owns the folder, and the operation needs exclusive access.
    #[error("a journal owns {}; close it first", .0.display())]
    InUse(PathBuf),
    /// The name of the file is not a segment name.
    #[error(
        "{} is not a segment; segment names look like `journal-00-0000000001.tgj` (or .jsonl, .log, with .zst if compressed)",
        .0.display()
    )]
    NotASegment(PathBuf),
    /// The segment of a position does not exist in the folder.
    #[error("stripe {stripe} has no segment {segment}; it was removed, or the position belongs to another journal")]
    SegmentMissing {
        /// The stripe.
        stripe: u16,
        /// The number of the segment.
        segment: u64,
    },
}

impl ReadError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
