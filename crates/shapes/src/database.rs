//! The database, apart from its replication stream: catalogue, publication, snapshots.

mod catalogue;
mod connect;
mod publication;
mod snapshot;

pub(crate) use catalogue::{Catalogue, CatalogueError, DatabaseInfo};
pub(crate) use connect::DatabaseClient;
pub use connect::{ConnectionError, DatabaseLogin, GatewaySocket};
pub use publication::PublicationMode;
pub(crate) use publication::{Membership, Publication, ensure_published, wait_for_commits, wait_for_writers};
pub(crate) use snapshot::{SnapshotQuery, SnapshotRowStream, query_text, rows_text};

use std::error::Error;

/// An error with its causes, or the message of the server.
pub(crate) fn error_text(error: &tokio_postgres::Error) -> String {
    if let Some(reply) = error.as_db_error() {
        let detail = reply.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
        return format!("{}{detail}", reply.message());
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let source_text = source.to_string();
        if !text.contains(&source_text) {
            text = format!("{text}: {source_text}");
        }
        cause = source.source();
    }
    text
}

/// A literal of SQL.
pub(crate) fn literal(text: &str) -> String {
    // E'' strings do not depend on standard_conforming_strings.
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}
