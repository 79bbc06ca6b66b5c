//! SHOW SLOTS: replication slots that streams read, and how far each is.

use super::super::table::{TableCell, TableColumn, int8, row, text};
use tidegate_streams::{CaptureSnapshot, StatusTable, StreamSnapshot};

pub(super) const COLUMNS: &[TableColumn] = &[
    text("stream"),
    text("slot"),
    text("state"),
    text("wal_status"),
    int8("held_wal_bytes"),
    int8("wal_max"),
    int8("safe_wal_bytes"),
    int8("lag_bytes"),
    int8("lag_ms"),
    text("received_lsn"),
    text("durable_lsn"),
    text("confirmed_lsn"),
    text("delivered_lsn"),
    int8("spool_bytes"),
    int8("spool_bytes_max"),
    int8("open_tx_bytes"),
    int8("spilled_bytes"),
    int8("transactions"),
    int8("inserts"),
    int8("updates"),
    int8("deletes"),
    int8("truncates"),
    int8("messages"),
    int8("reconnects"),
    text("failover"),
    text("invalidation"),
];

pub(super) fn rows(streams: Option<&StatusTable>) -> Vec<Vec<TableCell>> {
    let snapshots = streams.map(StatusTable::snapshots).unwrap_or_default();
    snapshots.into_iter().filter_map(row_of).collect()
}

fn row_of(stream: StreamSnapshot) -> Option<Vec<TableCell>> {
    let capture: CaptureSnapshot = stream.capture?;
    let lag_ms = lag_ms(&capture);
    let server = capture.server.unwrap_or_default();
    let (spool_bytes, spool_bytes_max) = capture.spool.unzip();
    let failover = match (server.failover, server.synced) {
        (_, Some(true)) => "synced",
        (Some(true), _) => "yes",
        (Some(false), _) => "no",
        (None, _) => "",
    };
    Some(row![
        stream.name,
        capture.slot,
        capture.state,
        server.wal_status.unwrap_or_default(),
        server.held_wal_bytes,
        capture.wal_max,
        server.safe_wal_size.map(|safe| u64::try_from(safe).unwrap_or(0)),
        capture.lag_bytes,
        lag_ms,
        capture.received_lsn.to_string(),
        capture.durable_lsn.to_string(),
        capture.confirmed_lsn.to_string(),
        capture.delivered_lsn.to_string(),
        spool_bytes,
        spool_bytes_max,
        capture.open_tx_bytes,
        capture.spilled_bytes,
        capture.transactions,
        capture.changes.inserts,
        capture.changes.updates,
        capture.changes.deletes,
        capture.changes.truncates,
        capture.changes.messages,
        capture.reconnects,
        failover,
        server.invalidation_reason.unwrap_or_default(),
    ])
}

pub(super) fn lag_ms(capture: &CaptureSnapshot) -> u64 {
    u64::try_from(capture.lag.as_millis()).unwrap_or(u64::MAX)
}
