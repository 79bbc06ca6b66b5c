//! SHOW STREAMS: state and counters of each stream.

use super::super::table::{TableCell, TableColumn, int8, row, text};
use super::slots::lag_ms;
use tidegate_streams::{StatusTable, StreamSnapshot};

pub(super) const COLUMNS: &[TableColumn] = &[
    text("name"),
    text("state"),
    text("source"),
    text("sink"),
    int8("done"),
    int8("rate"),
    int8("lag"),
    int8("pending"),
    int8("in_flight"),
    int8("oldest_ms"),
    int8("retried"),
    int8("dead_lettered"),
    int8("skipped"),
    int8("parked"),
    int8("restarts"),
    text("last_error"),
    text("slot"),
    text("slot_state"),
    int8("held_wal_bytes"),
    text("confirmed_lsn"),
    int8("lag_bytes"),
    int8("lag_ms"),
    int8("spool_bytes"),
    int8("gaps"),
];

pub(super) fn rows(streams: Option<&StatusTable>) -> Vec<Vec<TableCell>> {
    let snapshots = streams.map(StatusTable::snapshots).unwrap_or_default();
    snapshots.into_iter().map(row_of).collect()
}

fn row_of(stream: StreamSnapshot) -> Vec<TableCell> {
    let oldest_ms = stream.oldest.map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    let capture = stream.capture.as_ref();
    row![
        stream.name,
        stream.state.name(),
        stream.from,
        stream.to,
        stream.done,
        stream.rate,
        stream.lag,
        stream.pending as u64,
        stream.in_flight as u64,
        oldest_ms,
        stream.retried,
        stream.dead_lettered,
        stream.skipped,
        stream.parked as u64,
        stream.restarts,
        stream.last_error,
        capture.map(|capture| capture.slot.clone()),
        capture.map(|capture| capture.state),
        capture.and_then(|capture| capture.server.as_ref()?.held_wal_bytes),
        capture.map(|capture| capture.confirmed_lsn.to_string()),
        capture.map(|capture| capture.lag_bytes),
        capture.map(lag_ms),
        capture.and_then(|capture| Some(capture.spool?.0)),
        stream.gaps,
    ]
}
