//! SHOW JOURNAL: state of the query journal.

use tidegate_journal::{JournalStats, LossCause};

use super::super::table::{TableCell, TableColumn, row, text};
use tidegate_query_log::writer::QueryLog;

pub(super) const COLUMNS: &[TableColumn] = &[text("key"), text("value")];

pub(super) fn rows(query_log: Option<&QueryLog>) -> Vec<Vec<TableCell>> {
    let Some(query_log) = query_log else { return vec![row!["state", "off"]] };
    let Some(stats) = query_log.stats() else { return vec![row!["state", "closed"]] };
    let mut rows = vec![
        row!["state", stats.state.name()],
        row!["folder", query_log.folder().map_or_else(String::new, |folder| folder.display().to_string())],
        row!["last_error", stats.last_error.clone().unwrap_or_default()],
        row!["disk_bytes", stats.disk_bytes.to_string()],
        row!["segments", stats.segments.to_string()],
        row!["queued_bytes", stats.queued_bytes.to_string()],
        row!["reserved_bytes", stats.reserved_bytes.to_string()],
        row!["reserved_bytes_max", stats.reserved_bytes_max.to_string()],
        row!["lag_us", stats.lag.as_micros().to_string()],
        row!["written", stats.written.to_string()],
        row!["written_bytes", stats.written_bytes.to_string()],
        row!["writes", stats.writes.to_string()],
        row!["durable", stats.durable.to_string()],
        row!["syncs", stats.syncs.to_string()],
        row!["sync_time_last_us", stats.sync_time_last.as_micros().to_string()],
        row!["poisoned", stats.segments_abandoned.to_string()],
    ];
    rows.extend(classes(&stats));
    rows
}

/// Counters of each class of records.
fn classes(stats: &JournalStats) -> Vec<Vec<TableCell>> {
    let mut rows = Vec::new();
    for class in &stats.classes {
        rows.push(row![format!("{}.offered", class.name), class.offered().to_string()]);
        rows.push(row![format!("{}.accepted", class.name), class.accepted.to_string()]);
        for cause in LossCause::ALL {
            rows.push(row![format!("{}.lost.{}", class.name, cause.name()), class.lost(cause).to_string()]);
        }
    }
    rows
}
