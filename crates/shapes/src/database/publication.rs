//! The publication, and the replica identity of its tables.
//!
//! A table is never removed from the publication (SH-01): a transaction that is open while a table is removed and added again
//! would be missing in the stream and in the snapshot.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::catalogue::{number, rows, text};
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

/// The publication as the catalogue has it.
#[derive(Debug)]
pub(crate) struct Publication {
    oid: u32,
    has_all_tables: bool,
    publishes_all_changes: bool,
    /// Changes of a partition have the name of the partitioned table.
    uses_roots: bool,
    /// Since Postgres 18.
    publishes_generated: bool,
    /// Entries of tables, keyed by OID.
    members: BTreeMap<u32, Member>,
}

/// An entry of `pg_publication_rel`.
#[derive(Debug)]
struct Member {
    oid: u32,
    /// The table, if a row filter or a column list leaves out changes of it.
    limited_name: Option<String>,
}

/// The entry that publishes a table: it changes when the table is removed from the publication and added again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    publication: u32,
    entry: u32,
}

impl Publication {
    /// Reads the publication; `None` if there is none.
    ///
    /// # Errors
    /// If the query fails.
    pub(crate) async fn read(client: &Client, name: &str) -> Result<Option<Self>, super::CatalogueError> {
        let sql = format!(
            "SELECT p.oid, p.puballtables, p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate, p.pubviaroot, \
             pg_catalog.to_jsonb(p) ->> 'pubgencols' = 's', r.prrelid, r.oid, \
             CASE WHEN coalesce(pg_catalog.to_jsonb(r) ->> 'prqual', pg_catalog.to_jsonb(r) ->> 'prattrs') IS NOT NULL \
               THEN (SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c \
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = r.prrelid) END \
             FROM pg_catalog.pg_publication p LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid \
             WHERE p.pubname = {}",
            literal(name)
        );
        let found = rows(client, &sql).await?;
        let Some(first) = found.first() else { return Ok(None) };
        let mut members = BTreeMap::new();
        for row in found.iter().filter(|row| row.get(5).is_some()) {
            let limited_name = row.get(7).map(str::to_owned);
            members.insert(number(row, 5)?, Member { oid: number(row, 6)?, limited_name });
        }
        Ok(Some(Self {
            oid: number(first, 0)?,
            has_all_tables: text(first, 1) == "t",
            publishes_all_changes: text(first, 2) == "t",
            uses_roots: text(first, 3) == "t",
            publishes_generated: text(first, 4) == "t",
            members,
        }))
    }

    /// How a table is published; `None` if it is not.
    pub(crate) fn membership(&self, table: &TableInfo) -> Option<Membership> {
        let entry = match self.members.get(&table.oid) {
            Some(member) => member.oid,
            None if self.has_all_tables => 0,
            None => return None,
        };
        Some(Membership { publication: self.oid, entry })
    }

    /// Why the stream does not have all changes of a table that is published.
    pub(crate) fn defect(&self, name: &str, table: &TableInfo) -> Option<String> {
        let quoted = quote(name);
        if !self.publishes_all_changes {
            let statement = format!("ALTER PUBLICATION {quoted} SET (publish = 'insert, update, delete, truncate')");
            return Some(format!("publication {name} leaves out some changes; run: {statement}"));
        }
        if self.uses_roots && table.is_partitioned() {
            let statement = format!("ALTER PUBLICATION {quoted} SET (publish_via_partition_root = false)");
            return Some(format!("publication {name} does not name the partitions of changes; run: {statement}"));
        }
        let mut own = std::iter::once(&table.oid).chain(table.row_tables());
        let limited = own.find_map(|oid| self.members.get(oid)?.limited_name.as_ref())?;
        let only = if table.is_partitioned() { limited.clone() } else { table.only() };
        Some(format!(
            "publication {name} has a row filter or a column list for {limited}, which leaves out changes; run: ALTER \
             PUBLICATION {quoted} DROP TABLE {only}; ALTER PUBLICATION {quoted} ADD TABLE {only}"
        ))
    }
}

/// Makes sure that the stream has all changes of a table. Returns how it is published.
///
/// # Errors
/// [`SnapshotFailure`], with the statements that an administrator has to run.
pub(crate) async fn ensure_published(
    client: &Client,
    publication: &str,
    mode: PublicationMode,
    table: &TableInfo,
) -> Result<Membership, SnapshotFailure> {
    let unavailable = |error: super::CatalogueError| SnapshotFailure::Unavailable(error.to_string());
    let found = Publication::read(client, publication).await.map_err(unavailable)?;
    let without_identity = without_identity(client, table).await?;
    if let Some(defect) = found.as_ref().and_then(|found| found.defect(publication, table)) {
        return Err(SnapshotFailure::Unavailable(defect));
    }
    let membership = found.as_ref().and_then(|found| found.membership(table));
    // Otherwise REPLICA IDENTITY FULL makes every UPDATE of the table fail.
    let needs_generated =
        table.has_published_generated && !found.as_ref().is_some_and(|found| found.publishes_generated);
    if let Some(membership) = membership
        && without_identity.is_empty()
        && !needs_generated
    {
        return Ok(membership);
    }
    let mut statements = statements(publication, table, &without_identity, found.is_some(), membership.is_some());
    if needs_generated {
        let at = statements.len() - usize::from(membership.is_none());
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
    let found = Publication::read(client, publication).await.map_err(unavailable)?;
    found.and_then(|found| found.membership(table)).ok_or(SnapshotFailure::Changed)
}

/// The tables with rows of `table` that do not have REPLICA IDENTITY FULL.
async fn without_identity(client: &Client, table: &TableInfo) -> Result<Vec<String>, SnapshotFailure> {
    let sql = format!(
        "SELECT (SELECT c.relkind FROM pg_catalog.pg_class c WHERE c.oid = {}), \
         (SELECT pg_catalog.string_agg(pg_catalog.format('%I.%I', n.nspname, c.relname), E'\\n' ORDER BY c.oid) \
           FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
           WHERE c.oid = ANY ('{{{}}}'::pg_catalog.oid[]) AND c.relreplident <> 'f')",
        table.oid,
        row_tables(table),
    );
    let found = rows(client, &sql).await.map_err(|error| SnapshotFailure::Unavailable(error.to_string()))?;
    let row = found.first().filter(|row| row.get(0).is_some()).ok_or(SnapshotFailure::Changed)?;
    Ok(text(row, 1).lines().map(str::to_owned).collect())
}

fn row_tables(table: &TableInfo) -> String {
    table.row_tables().iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn statements(
    publication: &str,
    table: &TableInfo,
    without_identity: &[String],
    has_publication: bool,
    is_published: bool,
) -> Vec<String> {
    let publication = quote(publication);
    let mut statements = Vec::new();
    for name in without_identity {
        // A table as the client writes it, or a partition.
        let name = if table.is_partitioned() { name.clone() } else { table.name.quoted() };
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

/// Waits until the transactions that have written to the table have ended: what they wrote before the table was published is not
/// in the stream, so it has to be in the snapshot (SH-01). A transaction that writes holds a lock until its end is visible.
///
/// # Errors
/// If a writer does not end.
pub(crate) async fn wait_for_writers(client: &Client, table: &TableInfo) -> Result<(), SnapshotFailure> {
    let writers = format!(
        "SELECT coalesce('process ' || pid, 'a prepared transaction'), virtualtransaction FROM pg_catalog.pg_locks \
         WHERE locktype = 'relation' AND granted AND relation = ANY ('{{{}}}'::pg_catalog.oid[]) \
         AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) \
         AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')",
        row_tables(table)
    );
    let started = Instant::now();
    let mut awaited: Option<Vec<String>> = None;
    loop {
        let found = rows(client, &writers).await.map_err(|error| SnapshotFailure::Unavailable(error.to_string()))?;
        let mut running: Vec<(String, String)> = found.iter().map(|row| (text(row, 0), text(row, 1))).collect();
        if let Some(awaited) = &awaited {
            running.retain(|(_, transaction)| awaited.contains(transaction));
        }
        let Some((writer, _)) = running.first() else { return Ok(()) };
        if started.elapsed() > BARRIER_LIMIT {
            let text = format!(
                "{writer} has written to table {} in a transaction that has been open since before the table was published; \
                 its shapes wait for the end of the transaction",
                table.name.quoted()
            );
            return Err(SnapshotFailure::Unavailable(text));
        }
        awaited = Some(running.into_iter().map(|(_, transaction)| transaction).collect());
        tokio::time::sleep(BARRIER_PAUSE).await;
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
