//! The errors of a spool.

use std::{io, path::PathBuf};

use tidegate_journal::{OpenError, ReadError};

/// The reason why a spool cannot be opened or continued.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The log cannot be opened.
    #[error("cannot open the spool")]
    Open(#[from] OpenError),
    /// The log cannot be read.
    #[error("cannot read the spool")]
    Read(#[from] ReadError),
    /// A file beside the log cannot be read or written.
    #[error("cannot use the spool in {}", folder.display())]
    Io {
        /// The folder.
        folder: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The folder belongs to another stream.
    #[error(
        "the spool in {} belongs to {found}, and not to {expected}; use another folder, or remove it to start over",
        folder.display()
    )]
    Foreign {
        /// The folder.
        folder: PathBuf,
        /// The stream of the folder.
        found: String,
        /// This stream.
        expected: String,
    },
    /// The layout of the folder is not known.
    #[error("the spool in {} has layout {version}, which this version cannot read", folder.display())]
    Layout {
        /// The folder.
        folder: PathBuf,
        /// The layout of the folder.
        version: u32,
    },
    /// Transactions in the log cannot be read, although the slot was confirmed past them.
    #[error("transactions in the spool are lost: {0}; fill the consumers again, and remove the folder")]
    Damaged(String),
    /// The disk lost records; they come again from the slot.
    #[error("the disk failed to store the spool; the stream continues from the slot after a restart")]
    Lost,
    /// The log has reached its bound.
    #[error("the spool is full ({bytes_max} bytes) and spool_full is stop; raise spool_bytes, or repair the sink")]
    Full {
        /// The bound.
        bytes_max: u64,
    },
    /// A change does not fit.
    #[error("a single change has more than half of the {bytes_max} bytes of the spool; raise spool_bytes")]
    ChangeTooLarge {
        /// The bound.
        bytes_max: u64,
    },
}
