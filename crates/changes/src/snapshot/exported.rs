//! Copies tables as they were at one moment: exact, and not resumable.
//!
//! A snapshot is exported, and lives as long as its connection runs no other command. Workers import it and read ranges of
//! pages in parallel, which needs no key. A lost connection ends the copy, which then starts again with a new snapshot.
//!
//! The snapshot is that of a new slot (`CREATE_REPLICATION_SLOT`), whose stream begins exactly behind it, or that of a
//! transaction beside a slot that exists already. The latter makes the server keep no WAL; which transactions it shows is
//! known by their ids ([`PgSnapshot`](super::PgSnapshot)).

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tidegate_wire::replication::{Lsn, check_slot_name, quote_literal};
use tokio::{sync::mpsc, task::JoinSet};

use super::{SnapshotRow, SnapshotRows, TableProgress, plan};
use crate::{
    client::{ClientError, ConnectOptions, PgConnection, ReplicationMode, RowBodies},
    error::ChangeStreamError,
    slots::{NewSlot, create_slot},
};

/// Pages of a range: 32 MiB with pages of 8 KiB.
const RANGE_PAGES: u64 = 4096;
/// Bytes of rows of a batch, about.
const BATCH_BYTES: usize = 1 << 20;

/// An exported snapshot. Dropping the value ends it; a slot that was created with it stays.
#[derive(Debug)]
pub struct ExportedSnapshot {
    /// Keeps the snapshot, as long as it runs no command.
    holder: PgConnection,
    connect: ConnectOptions,
    publications: Vec<String>,
    /// The slot that was created with the snapshot.
    slot: Option<String>,
    snapshot: String,
    consistent_point: Lsn,
    /// The transactions that a snapshot without a slot shows.
    shown: Option<String>,
    /// The number of the next row.
    next_seq: Arc<AtomicU64>,
}

/// Rows of a table that are being read.
#[derive(Debug)]
pub struct ExportedRows {
    batches: mpsc::Receiver<Result<SnapshotRows, ChangeStreamError>>,
    /// Aborts the workers when it is dropped.
    _workers: JoinSet<()>,
}

impl ExportedRows {
    /// Returns the next rows, in no order; `None` at the end of the table.
    ///
    /// # Errors
    /// A worker has lost its connection or the snapshot. The copy has to start again.
    ///
    /// # Cancel safety
    /// No rows are lost if the future is dropped.
    pub async fn next(&mut self) -> Result<Option<SnapshotRows>, ChangeStreamError> {
        self.batches.recv().await.transpose()
    }
}

impl ExportedSnapshot {
    /// Creates the slot. A stream that starts from the slot delivers what committed after the snapshot, and nothing else.
    ///
    /// # Errors
    /// As [`create_slot`].
    pub async fn create(
        connect: ConnectOptions,
        slot: NewSlot,
        publications: Vec<String>,
    ) -> Result<Self, ChangeStreamError> {
        let mut holder = PgConnection::connect(&connect, ReplicationMode::Database).await?;
        stay_open(&mut holder).await?;
        let slot = NewSlot { export_snapshot: true, ..slot };
        let created = create_slot(&mut holder, &slot).await?;
        let Some(snapshot) = created.snapshot else {
            return Err(ClientError::Protocol("the server exported no snapshot".to_owned()).into());
        };
        let (consistent_point, slot, next_seq) = (created.consistent_point, Some(slot.name), Arc::default());
        Ok(Self { holder, connect, publications, slot, snapshot, consistent_point, shown: None, next_seq })
    }

    /// Exports the snapshot of a transaction. Of the transactions in a slot that exists already, those are in the copy that
    /// commit before [`consistent_point`](Self::consistent_point), and that the snapshot shows: `exported_at` and `snapshot`
    /// of the [`TableProgress`].
    ///
    /// # Errors
    /// The server cannot be reached, or is a standby.
    pub async fn open(connect: ConnectOptions, publications: Vec<String>) -> Result<Self, ChangeStreamError> {
        let mut holder = PgConnection::connect(&connect, ReplicationMode::Off).await?;
        stay_open(&mut holder).await?;
        // A transaction that the snapshot shows has written its commit before the position is read.
        let sql = "begin isolation level repeatable read read only; \
                   select pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_snapshot(), \
                   pg_catalog.pg_current_wal_insert_lsn()";
        let row = holder.query(sql).await?.into_iter().next().unwrap_or_default();
        let [snapshot, shown, lsn] = <[Option<String>; 3]>::try_from(row).unwrap_or_default();
        let (Some(snapshot), Some(consistent_point)) = (snapshot, lsn.and_then(|lsn| lsn.parse().ok())) else {
            return Err(ClientError::Protocol("the server exported no snapshot".to_owned()).into());
        };
        let (slot, next_seq) = (None, Arc::default());
        Ok(Self { holder, connect, publications, slot, snapshot, consistent_point, shown, next_seq })
    }

    /// The position of the snapshot.
    #[must_use]
    pub const fn consistent_point(&self) -> Lsn {
        self.consistent_point
    }

    /// The published tables, with their rows as the statistics estimate them.
    ///
    /// # Errors
    /// The snapshot is gone, or the tables cannot be listed.
    pub async fn tables(&self) -> Result<Vec<TableProgress>, ChangeStreamError> {
        let mut connection = self.import().await?;
        let mut found = Vec::new();
        let published = plan::published_tables(&mut connection, &self.publications).await?;
        let oids: Vec<u32> = published.iter().map(|(_, _, oid)| *oid).collect();
        let definitions = plan::definitions(&mut connection, &oids, &self.publications).await?;
        for table in published {
            let definition = definitions.get(&table.2).ok_or_else(|| plan::not_published(table.2))?;
            let progress = TableProgress::new(table, definition.rows_estimated)?;
            let (exported_at, snapshot) = (Some(self.consistent_point.0), self.shown.clone());
            found.push(TableProgress { exported_at, snapshot, ..progress });
        }
        connection.close().await;
        Ok(found)
    }

    /// Creates a permanent slot that begins at the snapshot, from a temporary one: a copy that ends early leaves nothing behind.
    ///
    /// # Errors
    /// The snapshot has no slot, or its connection has ended, a slot of this name exists, or the server is too old for
    /// `failover`.
    pub async fn keep(&self, name: &str, failover: bool) -> Result<(), ChangeStreamError> {
        let Some(from) = &self.slot else {
            return Err(ChangeStreamError::Refused("the snapshot was exported without a slot".to_owned()));
        };
        check_slot_name(name).map_err(|error| ChangeStreamError::Refused(error.to_string()))?;
        let mut connection = PgConnection::connect(&self.connect, ReplicationMode::Database).await?;
        let (from, to) = (quote_literal(from), quote_literal(name));
        connection.query(&format!("select pg_catalog.pg_copy_logical_replication_slot({from}, {to}, false)")).await?;
        if failover {
            connection.query(&format!("ALTER_REPLICATION_SLOT {name} (FAILOVER true)")).await?;
        }
        connection.close().await;
        Ok(())
    }

    /// Reads a table by `parallel` connections. At most two batches of each wait for the consumer. If `table` replaces an earlier
    /// copy, the first batch has no rows and [`clears`](SnapshotRows::clears) set.
    ///
    /// # Errors
    /// The snapshot is gone, or the table is not published.
    pub async fn read(&self, table: &TableProgress, parallel: usize) -> Result<ExportedRows, ChangeStreamError> {
        let parallel = parallel.max(1);
        let (sender, batches) = mpsc::channel(parallel * 2);
        let (mut workers, next_range) = (JoinSet::new(), Arc::new(AtomicU64::new(0)));
        let mut pages = 0;
        for number in 0..parallel {
            let mut connection = self.import().await?;
            let definition = plan::definition(&mut connection, table.oid, &self.publications).await?;
            if number == 0 {
                pages = page_count(&mut connection, table.oid).await?;
            }
            let worker = Worker {
                connection,
                definition,
                progress: TableProgress { replaces: false, ..table.clone() },
                ranges: pages.div_ceil(RANGE_PAGES).max(1),
                next_range: Arc::clone(&next_range),
                // A transaction may commit at the consistent point itself.
                lsn: Lsn(self.consistent_point.0.saturating_sub(1)),
                next_seq: Arc::clone(&self.next_seq),
                sender: sender.clone(),
            };
            if number == 0 && table.replaces {
                // The channel is empty, and the workers have not begun.
                let _ = sender.try_send(Ok(worker.clearing()));
            }
            workers.spawn(worker.run());
        }
        Ok(ExportedRows { batches, _workers: workers })
    }

    /// Opens a connection that sees the snapshot.
    async fn import(&self) -> Result<PgConnection, ChangeStreamError> {
        let mut connection = PgConnection::connect(&self.connect, ReplicationMode::Off).await?;
        stay_open(&mut connection).await?;
        let snapshot = quote_literal(&self.snapshot);
        let sql = format!(
            "set row_security = off; begin isolation level repeatable read read only; \
             set transaction snapshot {snapshot}"
        );
        match connection.query(&sql).await {
            Ok(_) => Ok(connection),
            // Since Postgres 17, a snapshot that does not exist has a code of its own.
            Err(error) if matches!(error.code(), Some("22023" | "42704")) => Err(ChangeStreamError::NotReady(format!(
                "the exported snapshot is gone: its connection to {} has ended, or this is another server; the copy has to \
                 start again",
                self.holder.address()
            ))),
            Err(error) => Err(error.into()),
        }
    }
}

/// Keeps the server from ending a transaction that waits for a slow consumer.
async fn stay_open(connection: &mut PgConnection) -> Result<(), ClientError> {
    let of_transaction = if connection.major_version()? >= 17 { "; set transaction_timeout = 0" } else { "" };
    let sql = format!("set idle_in_transaction_session_timeout = 0; set statement_timeout = 0{of_transaction}");
    connection.query(&sql).await.map(drop)
}

/// Pages of a plain table; 0 for a partitioned one, which is read as a whole.
async fn page_count(connection: &mut PgConnection, oid: u32) -> Result<u64, ClientError> {
    let sql = format!(
        "select case when relkind = 'r' then \
         pg_catalog.pg_relation_size(oid) / pg_catalog.current_setting('block_size')::int else 0 end \
         from pg_catalog.pg_class where oid = {oid}"
    );
    let rows = connection.query(&sql).await?;
    let text = rows.first().and_then(|row| row.first()?.as_deref());
    Ok(text.and_then(|text| text.parse().ok()).unwrap_or(0))
}

struct Worker {
    connection: PgConnection,
    definition: plan::TableDefinition,
    progress: TableProgress,
    ranges: u64,
    next_range: Arc<AtomicU64>,
    lsn: Lsn,
    next_seq: Arc<AtomicU64>,
    sender: mpsc::Sender<Result<SnapshotRows, ChangeStreamError>>,
}

impl Worker {
    async fn run(mut self) {
        if let Err(error) = self.read_ranges().await {
            // The consumer may be gone.
            let _ = self.sender.send(Err(error)).await;
        }
    }

    async fn read_ranges(&mut self) -> Result<(), ChangeStreamError> {
        loop {
            let range = self.next_range.fetch_add(1, Ordering::Relaxed);
            if range >= self.ranges {
                self.connection.query("rollback").await?;
                return Ok(());
            }
            let sql = self.definition.range_sql(range * RANGE_PAGES, (range + 1 < self.ranges).then_some(RANGE_PAGES));
            let limit = std::time::Duration::from_secs(600);
            self.connection.query_within(&format!("declare tidegate_range no scroll cursor for {sql}"), limit).await?;
            let mut fetch = 256;
            loop {
                let sql = format!("fetch forward {fetch} from tidegate_range");
                let RowBodies { rows: found, bytes, .. } = self.connection.query_rows(&sql, usize::MAX, limit).await?;
                let is_last = found.len() < fetch;
                fetch = (BATCH_BYTES / (bytes / found.len().max(1)).max(1)).clamp(1, 10_000);
                self.progress.rows += found.len() as u64;
                self.progress.bytes += bytes as u64;
                let rows: Vec<_> = found.into_iter().map(|body| SnapshotRow { body }).collect();
                if !rows.is_empty() && self.sender.send(Ok(self.batch(rows, bytes as u64))).await.is_err() {
                    return Ok(());
                }
                if is_last {
                    break;
                }
            }
            self.connection.query("close tidegate_range").await?;
        }
    }

    /// A batch without rows, before the first one: rows of an earlier copy are to be removed.
    fn clearing(&self) -> SnapshotRows {
        self.next_seq.fetch_add(1, Ordering::Relaxed);
        SnapshotRows { clears: true, ..self.batch(Vec::new(), 0) }
    }

    fn batch(&self, rows: Vec<SnapshotRow>, bytes: u64) -> SnapshotRows {
        SnapshotRows {
            relation: Arc::clone(&self.definition.relation),
            clears: false,
            first_seq: self.next_seq.fetch_add(rows.len() as u64, Ordering::Relaxed),
            rows,
            bytes,
            lsn: self.lsn,
            key: Arc::default(),
            progress: self.progress.clone(),
        }
    }
}
