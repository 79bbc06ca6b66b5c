//! How far the copy of tables is, for reports.

use std::time::{Duration, Instant};

use tidegate_changes::SnapshotState;

/// The copy of tables at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyProgress {
    /// Tables that are complete.
    pub tables_done: usize,
    /// All tables of the copy.
    pub tables: usize,
    /// The first table that is not complete.
    pub table: String,
    /// Rows that were read.
    pub rows: u64,
    /// Bytes of these rows.
    pub bytes: u64,
    /// The part of the rows that was read, in percent; `None` without statistics of a table (`ANALYZE`).
    pub percent: Option<u8>,
    /// Time left at the present rate.
    pub left: Option<Duration>,
}

/// Measures the copy of a run.
#[derive(Debug)]
pub(super) struct CopyMeter {
    started: Instant,
    /// Rows that an earlier run has read.
    rows_before: u64,
    logged: Instant,
    progress: CopyProgress,
}

const LOG_INTERVAL: Duration = Duration::from_secs(10);

impl CopyMeter {
    pub(super) fn new(state: &SnapshotState, now: Instant) -> Self {
        let rows_before = state.tables.iter().map(|table| table.rows).sum();
        Self { started: now, rows_before, logged: now, progress: progress(state, rows_before, Duration::ZERO) }
    }

    /// Notes the state. Returns the progress if it is to be logged.
    pub(super) fn update(&mut self, state: &SnapshotState, now: Instant) -> Option<&CopyProgress> {
        self.progress = progress(state, self.rows_before, now.saturating_duration_since(self.started));
        let is_due = now.saturating_duration_since(self.logged) >= LOG_INTERVAL;
        if is_due {
            self.logged = now;
        }
        is_due.then_some(&self.progress)
    }

    pub(super) fn progress(&self) -> CopyProgress {
        self.progress.clone()
    }
}

fn progress(state: &SnapshotState, rows_before: u64, elapsed: Duration) -> CopyProgress {
    let (mut rows, mut bytes, mut expected, mut is_known) = (0_u64, 0_u64, 0_u64, true);
    for table in &state.tables {
        rows = rows.saturating_add(table.rows);
        bytes = bytes.saturating_add(table.bytes);
        // A table may have more rows than at its last ANALYZE.
        let of_table = if table.is_done { table.rows } else { table.rows_estimated.max(table.rows) };
        expected = expected.saturating_add(of_table);
        is_known &= table.is_done || table.rows_estimated > 0;
    }
    let unfinished = state.tables.iter().find(|table| !table.is_done);
    let percent = (is_known && expected > 0).then(|| (rows.saturating_mul(100) / expected).min(100) as u8);
    let left = percent.and_then(|_| {
        let read = rows.saturating_sub(rows_before);
        (read > 0).then(|| elapsed.mul_f64(expected.saturating_sub(rows) as f64 / read as f64))
    });
    CopyProgress {
        tables_done: state.tables.iter().filter(|table| table.is_done).count(),
        tables: state.tables.len(),
        table: unfinished.map(tidegate_changes::TableProgress::full_name).unwrap_or_default(),
        rows,
        bytes,
        percent,
        left,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_changes::TableProgress;

    fn table(rows: u64, rows_estimated: u64, is_done: bool) -> TableProgress {
        TableProgress {
            oid: 1,
            schema: "public".to_owned(),
            name: "t".to_owned(),
            rows,
            bytes: rows * 10,
            rows_estimated,
            is_done,
            ..TableProgress::default()
        }
    }

    #[test]
    fn time_left_follows_from_the_rate_of_this_run() {
        let state = |rows| SnapshotState { tables: vec![table(100, 70, true), table(rows, 300, false)], repeats: 0 };
        let now = Instant::now();
        let mut meter = CopyMeter::new(&state(50), now);
        assert_eq!(meter.update(&state(100), now + Duration::from_secs(1)), None);
        let found = meter.progress();
        assert_eq!((found.rows, found.bytes, found.percent), (200, 2_000, Some(50)));
        assert_eq!(
            (found.left, found.tables_done, found.table.as_str()),
            (Some(Duration::from_secs(4)), 1, "public.t")
        );
        assert!(meter.update(&state(300), now + LOG_INTERVAL).is_some_and(|progress| progress.percent == Some(100)));
    }

    #[test]
    fn tables_without_statistics_have_no_percentage() {
        let state = SnapshotState { tables: vec![table(5, 0, false)], repeats: 0 };
        let found = CopyMeter::new(&state, Instant::now()).progress();
        assert_eq!((found.percent, found.left), (None, None));
    }
}
