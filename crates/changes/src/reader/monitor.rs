//! Watches the slot by a second connection, enforces the bound of its WAL, and writes the heartbeat.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidegate_wire::replication::{Lsn, quote_literal};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use super::StopRequest;
use crate::{
    client::{ClientError, ConnectOptions, PgConnection, ReplicationMode},
    options::ChangeOptions,
    server_state::{SlotState, invalidation},
    slots,
    status::ChangeStreamStatus,
    wal_bound::{FillLevel, WalBound, WalFull},
};

/// Limits of the time between two looks at the slot (CH-64).
const WATCH: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// The server writes more than this between two heartbeats, or none is necessary: the heartbeat itself writes less.
const QUIET_BYTES: u64 = 16 * 1024;
/// A slot with less than this share of the server's own limit left is about to be invalidated.
const SAFE_PERCENT_MIN: u64 = 20;

/// Watches one slot.
pub(crate) struct SlotMonitor {
    connect: ConnectOptions,
    slot: String,
    heartbeat: Option<Duration>,
    watch_interval: Duration,
    bound: Option<WalBound>,
    status: Arc<watch::Sender<ChangeStreamStatus>>,
    stop: watch::Sender<StopRequest>,
    connection: Option<PgConnection>,
    /// Delivered transactions, and the end of the WAL, at the last heartbeat.
    seen: (u64, Lsn),
    /// The server's `max_slot_wal_keep_size` in bytes, once it is known.
    server_limit: Option<Option<u64>>,
    level: FillLevel,
    server_level: FillLevel,
    publications: Vec<String>,
    publishes_tables: bool,
    tables: Option<PublishedTables>,
}

/// Tables of the publications, and a digest that changes with them.
struct PublishedTables {
    digest: String,
    names: BTreeSet<String>,
}

impl SlotMonitor {
    pub(crate) fn new(
        options: &ChangeOptions,
        status: Arc<watch::Sender<ChangeStreamStatus>>,
        stop: watch::Sender<StopRequest>,
    ) -> Self {
        Self {
            connect: options.connect.clone(),
            slot: options.slot.clone(),
            heartbeat: options.heartbeat,
            watch_interval: options.watch_interval,
            bound: options.wal_bound,
            status,
            stop,
            connection: None,
            seen: (0, Lsn::ZERO),
            server_limit: None,
            level: FillLevel::Low,
            server_level: FillLevel::Low,
            publications: options.publications.clone(),
            publishes_tables: options.publishes_tables,
            tables: None,
        }
    }

    /// Runs until it is dropped. Errors are logged; the stream does not depend on this connection.
    pub(crate) async fn run(mut self) {
        let every = self.heartbeat.map_or(self.watch_interval, |heartbeat| heartbeat.min(self.watch_interval));
        let mut ticks = interval(every.clamp(WATCH.0, WATCH.1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.look().await {
                tracing::warn!(slot = self.slot, %error, "cannot look at the replication slot");
                self.connection = None;
            }
        }
    }

    async fn look(&mut self) -> Result<(), ClientError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            empty => empty.insert(PgConnection::connect(&self.connect, ReplicationMode::Off).await?),
        };
        if self.server_limit.is_none() {
            let limit = server_limit(connection).await?;
            self.server_limit = Some(limit);
            check_limits(&self.slot, self.bound, limit);
        }
        let slot = slots::list_slots(connection, Some(&self.slot)).await?.into_iter().next();
        if let Some(slot) = &slot {
            if let Some(reason) = invalidation(slot) {
                tracing::error!(slot = slot.name, reason, "the replication slot is invalid; changes are lost");
            }
            self.check_server_limit(slot);
            self.check_bound(slot);
        }
        self.check_tables().await?;
        self.status.send_modify(|status| status.slot = slot);
        if self.heartbeat.is_some() {
            self.heartbeat().await?;
        }
        Ok(())
    }

    /// Compares the WAL that the slot holds with the bound of the configuration.
    fn check_bound(&mut self, slot: &SlotState) {
        let (Some(WalBound { bytes_max, full }), Some(held_bytes)) = (self.bound, slot.held_wal_bytes) else { return };
        let level = self.level.update(held_bytes, bytes_max);
        match level {
            Some(FillLevel::Full) => {
                tracing::error!(slot = slot.name, held_bytes, bytes_max, "the slot holds more WAL than wal_max");
            }
            Some(level) => {
                let percent = level.percent();
                tracing::warn!(slot = slot.name, held_bytes, bytes_max, percent, "the slot holds much WAL");
            }
            None => {}
        }
        if self.level == FillLevel::Full && full != WalFull::Alarm {
            // A stop of the consumer comes first.
            self.stop.send_if_modified(|request| {
                let is_new = *request == StopRequest::None;
                if is_new {
                    *request = StopRequest::WalFull(held_bytes);
                }
                is_new
            });
        }
    }

    /// Warns before the server invalidates the slot.
    fn check_server_limit(&mut self, slot: &SlotState) {
        let (Some(Some(limit)), Some(safe)) = (self.server_limit, slot.safe_wal_size) else { return };
        let safe_bytes = u64::try_from(safe).unwrap_or(0);
        let used = limit.saturating_sub(safe_bytes);
        // The last share of the limit counts as full.
        let bound = limit / 100 * (100 - SAFE_PERCENT_MIN);
        if self.server_level.update(used, bound) == Some(FillLevel::Full) {
            tracing::error!(
                slot = slot.name,
                safe_bytes,
                max_slot_wal_keep_size = limit,
                "the server is about to invalidate the slot, and its changes would be lost"
            );
        }
    }

    /// Reports tables that were added to the publications or removed: the stream has no history of the former, and no
    /// changes of the latter (CH-31).
    async fn check_tables(&mut self) -> Result<(), ClientError> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let names: Vec<String> = self.publications.iter().map(|name| quote_literal(name)).collect();
        // All names are read only when they have changed: there may be ten thousand.
        let from = format!("from pg_catalog.pg_publication_tables where pubname in ({})", names.join(", "));
        let table = "schemaname || '.' || tablename";
        let digest =
            format!("select coalesce(pg_catalog.md5(pg_catalog.string_agg({table}, ',' order by {table})), '') {from}");
        let digest = connection.query(&digest).await?.into_iter().flatten().next().flatten().unwrap_or_default();
        if self.tables.as_ref().is_some_and(|known| known.digest == digest) {
            return Ok(());
        }
        let rows = connection.query(&format!("select distinct {table} {from}")).await?;
        let now = PublishedTables { digest, names: rows.into_iter().flatten().flatten().collect() };
        let tables = now.names.len() as u64;
        let before = self.tables.replace(now);
        if let Some(before) = &before {
            self.report_tables(&before.names);
        }
        self.status.send_modify(|status| {
            status.published_tables = Some(tables);
            status.published_changes += u64::from(before.is_some());
        });
        Ok(())
    }

    fn report_tables(&self, before: &BTreeSet<String>) {
        let Some(PublishedTables { names, .. }) = &self.tables else { return };
        for table in names.difference(before) {
            if self.publishes_tables {
                tracing::info!(slot = self.slot, table, "a table was published");
                continue;
            }
            tracing::warn!(slot = self.slot, table, "a table was published: rows from before are not in the stream");
        }
        for table in before.difference(names) {
            tracing::warn!(slot = self.slot, table, "a table is not published any more: its changes end");
        }
    }

    /// A message needs no table and no publication. It is transactional, because a fresh server frees no WAL for others
    /// (CH-35, CH-36).
    async fn heartbeat(&mut self) -> Result<(), ClientError> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let rows = connection
            .query(
                "select pg_catalog.pg_is_in_recovery(), case when not pg_catalog.pg_is_in_recovery() \
                 then pg_catalog.pg_current_wal_lsn() end",
            )
            .await?;
        let wal_end = rows.first().and_then(|row| row.get(1).cloned().flatten());
        let Some(wal_end) = wal_end.and_then(|text| text.parse::<Lsn>().ok()) else { return Ok(()) };
        let transactions = self.status.borrow().transactions_total;
        let is_due = transactions == self.seen.0 && wal_end.bytes_since(self.seen.1) > QUIET_BYTES;
        if is_due {
            connection.query("select pg_catalog.pg_logical_emit_message(true, 'tidegate', 'heartbeat')").await?;
        }
        if is_due || transactions != self.seen.0 {
            self.seen = (transactions, wal_end);
        }
        Ok(())
    }
}

/// The server's `max_slot_wal_keep_size` in bytes; `None` without a limit.
async fn server_limit(connection: &mut PgConnection) -> Result<Option<u64>, ClientError> {
    let sql = "select setting from pg_catalog.pg_settings where name = 'max_slot_wal_keep_size'";
    let rows = connection.query(sql).await?;
    let setting = rows.into_iter().next().and_then(|row| row.into_iter().next().flatten());
    // The unit is a megabyte, and -1 is no limit.
    let megabytes = setting.and_then(|text| text.parse::<u64>().ok());
    Ok(megabytes.map(|megabytes| megabytes.saturating_mul(1 << 20)))
}

/// Warns of bounds that do not protect the disk of the server, or that never act.
fn check_limits(slot: &str, bound: Option<WalBound>, server_limit: Option<u64>) {
    match (bound, server_limit) {
        (None, None) => tracing::warn!(
            slot,
            "nothing bounds the WAL that the slot makes Postgres keep; set max_slot_wal_keep_size, or wal_max of a stream"
        ),
        (Some(bound), Some(limit)) if bound.bytes_max >= limit => tracing::warn!(
            slot,
            wal_max = bound.bytes_max,
            max_slot_wal_keep_size = limit,
            "wal_max never acts: the server invalidates the slot first; lower wal_max, or raise max_slot_wal_keep_size"
        ),
        _ => {}
    }
}
