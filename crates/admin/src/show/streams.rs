//! SHOW STREAMS: state and counters of each stream.

use super::super::table::{Cell, Column, int8, row, text};
use tidegate_proxy::plane::Gateway;
use tidegate_streams::StreamSnapshot;

pub(super) const COLUMNS: &[Column] = &[
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
];

pub(super) fn rows(gateway: &Gateway) -> Vec<Vec<Cell>> {
    let snapshots = gateway.streams.get().map(tidegate_streams::StatusTable::snapshots).unwrap_or_default();
    snapshots.into_iter().map(row_of).collect()
}

fn row_of(stream: StreamSnapshot) -> Vec<Cell> {
    let oldest_ms = stream.oldest.map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
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
    ]
}
