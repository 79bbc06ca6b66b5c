//! Watches the slot by a second connection, and writes the heartbeat.

use std::{sync::Arc, time::Duration};

use tidegate_wire::replication::Lsn;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use crate::{
    client::{ClientError, ConnectOptions, PgConnection, Replication},
    server_state::invalidation,
    slots,
    status::StreamStatus,
};

/// The slot is looked at this often, at least (CH-64).
const WATCH: Duration = Duration::from_secs(30);
/// The server writes more than this between two heartbeats, or none is necessary: the heartbeat itself writes less.
const QUIET_BYTES: u64 = 16 * 1024;

struct Monitor {
    connect: ConnectOptions,
    slot: String,
    status: Arc<watch::Sender<StreamStatus>>,
    connection: Option<PgConnection>,
    /// Delivered transactions, and the end of the WAL, at the last heartbeat.
    seen: (u64, Lsn),
}

/// Runs until it is dropped. Errors are logged; the stream does not depend on this connection.
pub(crate) async fn monitor(
    connect: ConnectOptions,
    slot: String,
    heartbeat: Option<Duration>,
    status: Arc<watch::Sender<StreamStatus>>,
) {
    let mut monitor = Monitor { connect, slot, status, connection: None, seen: (0, Lsn::ZERO) };
    let mut ticks = interval(heartbeat.unwrap_or(WATCH).clamp(Duration::from_millis(100), WATCH));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = monitor.look(heartbeat.is_some()).await {
            tracing::warn!(slot = monitor.slot, %error, "cannot look at the replication slot");
            monitor.connection = None;
        }
    }
}

impl Monitor {
    async fn look(&mut self, has_heartbeat: bool) -> Result<(), ClientError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            empty => empty.insert(PgConnection::connect(&self.connect, Replication::Off).await?),
        };
        let slot = slots::list_slots(connection, Some(&self.slot)).await?.into_iter().next();
        if let Some(reason) = slot.as_ref().and_then(invalidation) {
            tracing::error!(slot = self.slot, reason, "the replication slot is invalid; changes are lost");
        }
        self.status.send_modify(|status| status.slot = slot);
        if has_heartbeat {
            self.heartbeat().await?;
        }
        Ok(())
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
