//! The publication, and the replica identity of its tables.
//!
//! A table is never removed from the publication (SH-01): a transaction that is open while a table is removed and added again
//! would be missing in the stream and in the snapshot.

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::catalogue::{rows, text};
use super::{error_text, literal};
use crate::identifier::quote;
use crate::shape::SnapshotFailure;
use crate::table::TableInfo;

/// Limit of waiting for locks (SH-07).
const LOCK_LIMIT: &str = "5s";
/// Limit of waiting for transactions that began before the table was published.
const BARRIER_LIMIT: Duration = Duration::from_secs(20);
/// Limit of waiting for commits to become visible, without a synchronous standby.
const VISIBLE_LIMIT: Duration = Duration::from_secs(1);
const BARRIER_PAUSE: Duration = Duration::from_millis(50);

/// Whether the server changes the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PublicationMode {
    /// Tables are added to the publication, with REPLICA IDENTITY FULL, when their first shape is requested.
    #[default]
    Managed,
    /// The administrator does that; missing statements are named in errors.
    Manual,
}

/// Makes sure that the stream has all changes of a table.
///
/// # Errors
/// [`SnapshotFailure`], with the statements that an administrator has to run.
pub(crate) async fn ensure_published(
    client: &Client,
    publication: &str,
    mode: PublicationMode,
    table: &TableInfo,
) -> Result<(), SnapshotFailure> {
    let sql = format!(
        "SELECT (SELECT c.relkind FROM pg_catalog.pg_class c WHERE c.oid = {oid}), \
         EXISTS (SELECT FROM pg_catalog.pg_publication p WHERE p.pubname = {name}), \
         EXISTS (SELECT FROM pg_catalog.pg_publication p LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid \
           WHERE p.pubname = {name} AND (p.puballtables OR r.prrelid = {oid})), \
         (SELECT p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate FROM pg_catalog.pg_publication p \
           WHERE p.pubname = {name}), \
         (SELECT pg_catalog.string_agg(pg_catalog.format('%I.%I', n.nspname, c.relname), E'\\n' ORDER BY c.oid) \
           FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
           WHERE c.oid = ANY ('{{{rows}}}'::pg_catalog.oid[]) AND c.relreplident <> 'f'), \
         (SELECT pg_catalog.to_jsonb(p) ->> 'pubgencols' = 's' FROM pg_catalog.pg_publication p WHERE p.pubname = {name})",
        oid = table.oid,
        rows = table.row_tables().iter().map(u32::to_string).collect::<Vec<_>>().join(","),
        name = literal(publication),
    );
    let unavailable = |error: super::CatalogueError| SnapshotFailure::Unavailable(error.to_string());
    let found = rows(client, &sql).await.map_err(unavailable)?;
    let row = found.first().ok_or(SnapshotFailure::Changed)?;
    if row.get(0).is_none() {
        return Err(SnapshotFailure::Changed);
    }
    let (has_publication, is_published) = (text(row, 1) == "t", text(row, 2) == "t");
    let without_identity = text(row, 4);
    let without_identity: Vec<&str> = without_identity.lines().collect();
    if has_publication && text(row, 3) != "t" {
        let text = format!(
            "publication {publication} leaves out some changes; run: ALTER PUBLICATION {} SET (publish = 'insert, update, \
             delete, truncate')",
            quote(publication)
        );
        return Err(SnapshotFailure::Unavailable(text));
    }
    // Otherwise REPLICA IDENTITY FULL makes every UPDATE of the table fail.
    let needs_generated = table.has_published_generated && text(row, 5) != "t";
    if without_identity.is_empty() && is_published && !needs_generated {
        return Ok(());
    }
    let mut statements = statements(publication, table, &without_identity, has_publication, is_published);
    if needs_generated {
        let at = statements.len() - usize::from(!is_published);
        let statement = format!("ALTER PUBLICATION {} SET (publish_generated_columns = stored)", quote(publication));
        statements.insert(at, statement);
    }
    if mode == PublicationMode::Manual {
        let text = format!("table {} is not ready for shapes; run: {}", table.name.quoted(), statements.join("; "));
        return Err(SnapshotFailure::Unavailable(text));
    }
    let batch = format!("BEGIN; SET LOCAL lock_timeout = '{LOCK_LIMIT}'; {}; COMMIT", statements.join("; "));
    if let Err(error) = client.simple_query(&batch).await {
        let _ = client.simple_query("ROLLBACK").await;
        return Err(refused(&error, table, &statements));
    }
    tracing::info!(table = table.name.quoted(), publication, "table is published");
    wait_for_writers(client).await
}

fn statements(
    publication: &str,
    table: &TableInfo,
    without_identity: &[&str],
    has_publication: bool,
    is_published: bool,
) -> Vec<String> {
    let publication = quote(publication);
    let mut statements = Vec::new();
    for name in without_identity {
        // A table as the client writes it, or a partition.
        let name = if table.is_partitioned() { (*name).to_owned() } else { table.name.quoted() };
        statements.push(format!("ALTER TABLE ONLY {name} REPLICA IDENTITY FULL"));
    }
    if !has_publication {
        statements.push(format!("CREATE PUBLICATION {publication}"));
    }
    if !is_published {
        statements.push(format!("ALTER PUBLICATION {publication} ADD TABLE {}", table.only()));
    }
    statements
}

fn refused(error: &tokio_postgres::Error, table: &TableInfo, statements: &[String]) -> SnapshotFailure {
    let name = table.name.quoted();
    let text = match error.code() {
        Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            format!(
                "table {name} is locked by another transaction for more than {LOCK_LIMIT}; its shapes have to wait for it"
            )
        }
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => format!(
            "no privilege to publish table {name} ({}); its owner has to run: {}",
            error_text(error),
            statements.join("; ")
        ),
        Some(&SqlState::UNDEFINED_TABLE) => return SnapshotFailure::Changed,
        _ => format!("cannot publish table {name}: {}", error_text(error)),
    };
    SnapshotFailure::Unavailable(text)
}

/// Waits until all transactions that run now have ended: what they wrote before the table was published is not in the stream,
/// so it has to be in the snapshot (SH-01).
async fn wait_for_writers(client: &Client) -> Result<(), SnapshotFailure> {
    match wait_for_transactions(client, BARRIER_LIMIT).await? {
        None => Ok(()),
        Some(pid) => {
            let text = format!("a transaction of process {pid} has been open since before the table was published");
            Err(SnapshotFailure::Unavailable(text))
        }
    }
}

/// Waits until the commits that were decoded are visible (SH-05): for as long as a synchronous standby takes, and for a moment
/// without one.
///
/// # Errors
/// If a transaction that may wait for a standby does not end.
pub(crate) async fn wait_for_commits(client: &Client) -> Result<(), SnapshotFailure> {
    let sql = "SELECT pg_catalog.current_setting('synchronous_standby_names') <> ''";
    let found = rows(client, sql).await.map_err(|error| SnapshotFailure::Unavailable(error.to_string()))?;
    let is_synchronous = found.first().is_some_and(|row| text(row, 0) == "t");
    let limit = if is_synchronous { BARRIER_LIMIT } else { VISIBLE_LIMIT };
    match wait_for_transactions(client, limit).await? {
        Some(pid) if is_synchronous => {
            let text = format!("a transaction of process {pid} may wait for a synchronous standby");
            Err(SnapshotFailure::Unavailable(text))
        }
        _ => Ok(()),
    }
}

/// Waits until all transactions that run now have ended, at most `limit`. Returns the process of a transaction that has not.
async fn wait_for_transactions(client: &Client, limit: Duration) -> Result<Option<String>, SnapshotFailure> {
    let unavailable = |error: super::CatalogueError| SnapshotFailure::Unavailable(error.to_string());
    let sql = "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())";
    let found = rows(client, sql).await.map_err(unavailable)?;
    let barrier = found.first().map(|row| text(row, 0)).unwrap_or_default();
    let sql = format!(
        "SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::numeric >= {}::numeric, \
         (SELECT a.pid FROM pg_catalog.pg_stat_activity a WHERE a.backend_xid IS NOT NULL \
          ORDER BY pg_catalog.age(a.backend_xid) DESC LIMIT 1)",
        literal(&barrier)
    );
    let started = Instant::now();
    loop {
        let found = rows(client, &sql).await.map_err(unavailable)?;
        let row = found.first().ok_or(SnapshotFailure::Changed)?;
        if text(row, 0) == "t" {
            return Ok(None);
        }
        if started.elapsed() > limit {
            return Ok(Some(text(row, 1)));
        }
        tokio::time::sleep(BARRIER_PAUSE).await;
    }
}
