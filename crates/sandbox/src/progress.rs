//! Progress of a start.

use crate::Major;

/// The current step of [`PostgresBuilder::start`](crate::PostgresBuilder::start). Only the download takes more than a second.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartProgress {
    /// Downloading the newest minor version.
    Downloading {
        /// The major version.
        major: Major,
    },
    /// Unpacking the archive into the cache.
    Unpacking {
        /// The full version, such as `18.6.0`.
        version: String,
        /// Size of the archive.
        bytes: u64,
    },
    /// Running `initdb`.
    Initialising,
    /// The server process runs, and does not accept connections yet.
    Starting,
}
