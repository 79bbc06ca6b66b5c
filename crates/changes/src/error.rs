//! Errors, and what follows from them.

use std::io;

use tidegate_wire::{DecodeError, replication::Lsn};

use crate::client::{ClientError, ServerReport};

/// A frame that is not a change.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeChangeError {
    /// The frame violates the protocol of `pgoutput`.
    #[error("malformed message of pgoutput: {0}")]
    Malformed(#[from] DecodeError),
    /// The table was not described before its first row.
    #[error("a change refers to the unknown table with OID {oid}")]
    UnknownRelation {
        /// OID of the table.
        oid: u32,
    },
    /// A row has another number of columns than its table.
    #[error("a row has another number of columns than its table with OID {oid}")]
    ColumnCount {
        /// OID of the table.
        oid: u32,
    },
    /// A name of the table is not UTF-8.
    #[error("a name of the table with OID {oid} is not UTF-8; the database needs an encoding other than SQL_ASCII")]
    Name {
        /// OID of the table.
        oid: u32,
    },
    /// The frame is another message.
    #[error("the message is not a {0}")]
    Unexpected(&'static str),
}

/// Consequence of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The connection is opened again after a delay; nothing is lost.
    Retry,
    /// The stream ends. Nothing is lost, and it can go on after the cause is removed.
    Stop,
    /// Changes are missing from the stream for ever. It ends, and only a new snapshot repairs its consumers.
    Gap,
}

/// Changes that the stream can never deliver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("changes are lost: {reason}; {remedy}")]
pub struct LostChanges {
    /// The finding.
    pub reason: String,
    /// The remedy.
    pub remedy: String,
}

/// A message that does not fit the ones before it, or a transaction that cannot be kept.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    /// The message is malformed.
    #[error(transparent)]
    Decode(DecodeChangeError),
    /// The message is not allowed here.
    #[error("message '{}' of pgoutput is not allowed within {state}", char::from(*tag).escape_default())]
    Unexpected {
        /// The tag of the message.
        tag: u8,
        /// The state of the assembler.
        state: &'static str,
    },
    /// Commit positions do not rise.
    #[error("commit position {commit_lsn} does not follow {after}")]
    Order {
        /// The position.
        commit_lsn: Lsn,
        /// The position before it.
        after: Lsn,
    },
    /// A segment does not belong to an open transaction, or claims to be the first segment of an open one.
    #[error("stream segment of transaction {xid} (first: {first}) does not fit the segments before")]
    Segment {
        /// The transaction.
        xid: u32,
        /// Whether the server calls it the first.
        first: bool,
    },
    /// A transaction that was sent again has fewer changes than were delivered before.
    #[error("the transaction at {commit_lsn} had at least {before} changes before a reconnect, and has {now} now")]
    Shortened {
        /// Position of its commit.
        commit_lsn: Lsn,
        /// Delivered changes.
        before: u64,
        /// Changes that were sent again.
        now: u64,
    },
    /// The store of unfinished transactions failed.
    #[error("cannot store unfinished transactions: {0}; free space, or give tx_memory or the store a higher bound")]
    Spill(#[source] io::Error),
    /// Changes are missing.
    #[error(transparent)]
    Gap(#[from] LostChanges),
}

/// Why a stream, an attempt to connect, or a command of a slot failed.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum ChangeStreamError {
    /// Changes are missing.
    #[error(transparent)]
    Gap(#[from] LostChanges),
    /// The server sent a message that cannot be used, or a transaction cannot be kept.
    #[error(transparent)]
    Assemble(AssembleError),
    /// The stream cannot use this server or slot.
    #[error("{0}")]
    Refused(String),
    /// The server cannot be used at present.
    #[error("{0}")]
    NotReady(String),
    /// The connection failed, or the server answered with an error.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The server answered with an error, whose cause is known.
    #[error("{report}; {remedy}")]
    Server {
        /// The error.
        report: Box<ServerReport>,
        /// The remedy.
        remedy: String,
        /// The consequence.
        class: ErrorClass,
    },
    /// The slot holds more WAL than its bound allows.
    #[error(
        "replication slot \"{slot}\" holds {held_bytes} bytes of WAL, more than its bound of {bytes_max} bytes: let the consumer \
         catch up, raise wal_max, or drop the slot to free the WAL"
    )]
    WalFull {
        /// Name of the slot.
        slot: String,
        /// Bytes of WAL that it holds.
        held_bytes: u64,
        /// The bound.
        bytes_max: u64,
    },
    /// No connection worked for as long as the configuration allows.
    #[error("gave up after {attempts} attempts; the last error: {last}")]
    GaveUp {
        /// Consecutive failed attempts.
        attempts: u32,
        /// The last error.
        last: Box<Self>,
    },
    /// The spool cannot go on.
    #[cfg(feature = "spool")]
    #[error(transparent)]
    Spool(#[from] crate::spool_error::SpoolError),
    /// The task that reads the connection has ended without a result.
    #[error("the reader of the replication connection has ended without a result")]
    Ended,
}

/// SQLSTATE `object_in_use`: another process reads the slot.
pub(crate) const OBJECT_IN_USE: &str = "55006";
/// SQLSTATE `undefined_object`.
const UNDEFINED_OBJECT: &str = "42704";

impl ChangeStreamError {
    /// Whether another process reads the slot.
    #[must_use]
    pub fn is_slot_busy(&self) -> bool {
        matches!(self, Self::Server { report, .. } if report.code == OBJECT_IN_USE)
    }

    /// Whether only a new slot delivers changes again: this one lacks WAL, or its changes are older than the publication.
    #[must_use]
    pub fn needs_new_slot(&self) -> bool {
        match self {
            Self::Server { report, class, .. } => {
                *class == ErrorClass::Gap || report.code == UNDEFINED_OBJECT && report.message.contains("publication")
            }
            _ => false,
        }
    }

    /// The consequence of the error.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Gap(_) | Self::Assemble(AssembleError::Gap(_)) => ErrorClass::Gap,
            Self::Assemble(AssembleError::Spill(_))
            | Self::Refused(_)
            | Self::Ended
            | Self::WalFull { .. }
            | Self::GaveUp { .. } => ErrorClass::Stop,
            // A damaged message may be whole on the next connection; the reader stops at the third of its kind.
            Self::Assemble(_) | Self::NotReady(_) => ErrorClass::Retry,
            Self::Server { class, .. } => *class,
            #[cfg(feature = "spool")]
            Self::Spool(error) => class_of_spool_error(error),
            Self::Client(error) => class_of_client_error(error),
        }
    }
}

#[cfg(feature = "spool")]
const fn class_of_spool_error(error: &crate::spool_error::SpoolError) -> ErrorClass {
    use crate::spool_error::SpoolError;
    match error {
        SpoolError::Damaged(_) => ErrorClass::Gap,
        SpoolError::Lost | SpoolError::Io { .. } | SpoolError::Read(_) => ErrorClass::Retry,
        _ => ErrorClass::Stop,
    }
}

fn class_of_client_error(error: &ClientError) -> ErrorClass {
    match error {
        ClientError::Server(report) => classify(report).0,
        ClientError::Option(_) | ClientError::Login(_) => ErrorClass::Stop,
        _ => ErrorClass::Retry,
    }
}

/// Consequence and remedy of an error of the server, by SQLSTATE (CH-29).
#[must_use]
pub fn classify(report: &ServerReport) -> (ErrorClass, &'static str) {
    let message = report.message.as_str();
    match report.code.as_str() {
        // `can no longer get changes from replication slot`, `cannot read from logical replication slot`: invalidated.
        "55000" if message.contains("replication slot") && !message.contains("recovery") => {
            (ErrorClass::Gap, "the slot is invalid: drop it, create it again, and take a new snapshot of the tables")
        }
        "55000" if message.contains("skipped loading publication") => (
            ErrorClass::Gap,
            "create the publication before the slot; then drop the slot, create it again, and take a new snapshot",
        ),
        "55000" => (ErrorClass::Retry, "set wal_level = logical if it is not, and restart the server"),
        "55006" => (ErrorClass::Retry, "another process reads the slot; stop it if it does not end by itself"),
        "42704" if message.contains("publication") => (
            ErrorClass::Stop,
            "the publication did not exist when these changes were written: create the publication first, then drop the \
             slot, create it again, and take a new snapshot",
        ),
        "42704" if message.contains("slot") => (ErrorClass::Stop, "create the slot before the stream starts"),
        "42501" => (
            ErrorClass::Stop,
            "ALTER ROLE name REPLICATION (rds_replication on RDS), and GRANT SELECT on the tables for snapshots",
        ),
        "0A000" => (ErrorClass::Stop, "use Postgres 14 or newer"),
        "28000" | "28P01" => (ErrorClass::Stop, "check user, password, and the line of pg_hba.conf for the database"),
        "3D000" => (ErrorClass::Stop, "check the name of the database"),
        "22023" | "42601" | "42602" | "42809" | "42P01" | "42883" => {
            (ErrorClass::Stop, "check the options of the stream")
        }
        "53300" | "53400" => (ErrorClass::Retry, "raise max_wal_senders, max_replication_slots or max_connections"),
        "58P01" => (
            ErrorClass::Gap,
            "WAL that the slot needs was removed: drop the slot, create it again, and take a new snapshot",
        ),
        "XX000" if message.contains("unrecognized pgoutput option") => {
            (ErrorClass::Stop, "the server does not know an option of the stream; leave it out or upgrade the server")
        }
        _ => (ErrorClass::Retry, "the stream connects again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CH-29, CH-30.
    #[test]
    fn errors_are_classified_by_sqlstate() {
        use ErrorClass::{Gap, Retry, Stop};
        let cases = [
            ("57P01", "terminating connection due to administrator command", Retry),
            ("57P03", "the database system is starting up", Retry),
            ("55006", "replication slot \"s\" is active for PID 7", Retry),
            ("55000", "can no longer get changes from replication slot \"s\"", Gap),
            ("55000", "can no longer access replication slot \"s\"", Gap),
            ("55000", "skipped loading publication \"p\"", Gap),
            ("42704", "publication \"p\" does not exist", Stop),
            ("42704", "replication slot \"s\" does not exist", Stop),
            ("42501", "permission denied to start WAL sender", Stop),
            ("28P01", "password authentication failed for user \"u\"", Stop),
            ("53300", "number of requested standby connections exceeds max_wal_senders", Retry),
            ("XX000", "unrecognized pgoutput option: origin", Stop),
            ("58P01", "requested WAL segment 0 has already been removed", Gap),
        ];
        for (code, message, class) in cases {
            let report = ServerReport { code: code.to_owned(), message: message.to_owned(), ..ServerReport::default() };
            assert_eq!(classify(&report).0, class, "{code} {message}");
        }
    }
}
