//! Errors of the NDJSON source.

use std::io;
use std::path::PathBuf;

/// Why lines cannot be read or progress cannot be stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NdjsonError {
    /// A read failed.
    #[error("cannot read {what}")]
    Read {
        /// The file, or `standard input`.
        what: String,
        /// The error of the system.
        #[source]
        error: io::Error,
    },
    /// The key is not a JSON pointer. All lines would have no key, and so no order.
    #[error("`{pointer}` is not a JSON pointer to the key; write `/` before each part, as in `/user/id`")]
    KeyPointer {
        /// The text.
        pointer: String,
    },
    /// The checkpoint cannot be read or written.
    #[error("cannot read or write the checkpoint {path}: check that its directory exists and is writable")]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        error: io::Error,
    },
    /// Another process uses the checkpoint.
    #[error("checkpoint {path} is in use by another stream; use a checkpoint per stream")]
    CheckpointInUse {
        /// The file.
        path: PathBuf,
    },
    /// The checkpoint does not hold a position in this file.
    #[error("{path} is not a checkpoint of this file; remove it to start from the beginning")]
    ForeignCheckpoint {
        /// The file.
        path: PathBuf,
    },
}
