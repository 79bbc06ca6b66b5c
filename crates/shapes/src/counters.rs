//! Counters of a server, for operators.

use std::sync::atomic::{AtomicU64, Ordering};

use http::StatusCode;
use tidegate_changes::ChangeEvent;

/// The statuses of answers; others are counted as the last.
const STATUSES: [u16; 14] = [200, 202, 204, 304, 400, 401, 404, 405, 409, 413, 429, 500, 503, 0];
/// No position is known.
const LAG_UNKNOWN: u64 = u64::MAX;

/// Counts what a server does.
#[derive(Debug)]
pub(crate) struct ShapeCounters {
    answers: [AtomicU64; STATUSES.len()],
    waiting: AtomicU64,
    snapshots_begun: AtomicU64,
    snapshots_complete: AtomicU64,
    snapshots_failed: AtomicU64,
    transactions: AtomicU64,
    changes: AtomicU64,
    removed: AtomicU64,
    reconnects: AtomicU64,
    faults: AtomicU64,
    slot_lag: AtomicU64,
}

impl Default for ShapeCounters {
    fn default() -> Self {
        Self {
            answers: Default::default(),
            waiting: AtomicU64::new(0),
            snapshots_begun: AtomicU64::new(0),
            snapshots_complete: AtomicU64::new(0),
            snapshots_failed: AtomicU64::new(0),
            transactions: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            removed: AtomicU64::new(0),
            reconnects: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            slot_lag: AtomicU64::new(LAG_UNKNOWN),
        }
    }
}

/// A request that waits for a change, until it is dropped. The shape counts it too.
pub(crate) struct WaitingRequest<'a> {
    counters: &'a ShapeCounters,
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.counters.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A snapshot that is being taken. Dropped before it is complete, it has failed.
pub(crate) struct RunningSnapshot<'a> {
    counters: &'a ShapeCounters,
    is_complete: bool,
}

impl RunningSnapshot<'_> {
    /// All chunks are written.
    pub(crate) fn complete(&mut self) {
        self.is_complete = true;
    }
}

impl Drop for RunningSnapshot<'_> {
    fn drop(&mut self) {
        let ended = if self.is_complete { &self.counters.snapshots_complete } else { &self.counters.snapshots_failed };
        ended.fetch_add(1, Ordering::Relaxed);
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl ShapeCounters {
    /// Counts an answer.
    pub(crate) fn answered(&self, status: StatusCode) {
        let last = STATUSES.len() - 1;
        let at = STATUSES.iter().position(|known| *known == status.as_u16()).unwrap_or(last);
        self.answers[at].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that waits for a change.
    pub(crate) fn wait(&self) -> WaitingRequest<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        WaitingRequest { counters: self }
    }

    pub(crate) fn begin_snapshot(&self) -> RunningSnapshot<'_> {
        self.snapshots_begun.fetch_add(1, Ordering::Relaxed);
        RunningSnapshot { counters: self, is_complete: false }
    }

    /// Counts what the stream has delivered.
    pub(crate) fn received(&self, events: &[ChangeEvent]) {
        let count = |is: fn(&ChangeEvent) -> bool| events.iter().filter(|event| is(event)).count() as u64;
        let transactions = count(|event| matches!(event, ChangeEvent::Commit(_)));
        let changes = count(|event| matches!(event, ChangeEvent::Change(_)));
        self.transactions.fetch_add(transactions, Ordering::Relaxed);
        self.changes.fetch_add(changes, Ordering::Relaxed);
    }

    /// Counts removed shapes, whose clients load them again.
    pub(crate) fn removed(&self, shapes: u64) {
        self.removed.fetch_add(shapes, Ordering::Relaxed);
    }

    /// Counts a stream that was lost.
    pub(crate) fn lost_stream(&self) {
        self.reconnects.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a task of a shape that has panicked.
    pub(crate) fn faulted(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the bytes of WAL that the slot holds; `None` if they are unknown.
    pub(crate) fn set_slot_lag(&self, bytes: Option<u64>) {
        self.slot_lag.store(bytes.unwrap_or(LAG_UNKNOWN), Ordering::Relaxed);
    }

    /// The present values.
    pub(crate) fn values(&self) -> ShapeTotals {
        let answers = STATUSES.iter().zip(&self.answers).map(|(status, count)| (*status, read(count)));
        let (complete, failed) = (read(&self.snapshots_complete), read(&self.snapshots_failed));
        ShapeTotals {
            answers: answers.filter(|(_, count)| *count > 0).collect(),
            waiting: read(&self.waiting),
            snapshots_running: read(&self.snapshots_begun).saturating_sub(complete).saturating_sub(failed),
            snapshots_complete: complete,
            snapshots_failed: failed,
            transactions: read(&self.transactions),
            changes: read(&self.changes),
            removed: read(&self.removed),
            reconnects: read(&self.reconnects),
            faults: read(&self.faults),
            slot_lag_bytes: Some(read(&self.slot_lag)).filter(|bytes| *bytes != LAG_UNKNOWN),
        }
    }
}

/// Values of the counters of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShapeTotals {
    /// Answers by status; status 0 counts all that are not listed. `must-refetch` has status 409.
    pub answers: Vec<(u16, u64)>,
    /// Requests that wait for a change.
    pub waiting: u64,
    /// Snapshots that are being taken, or wait for their turn.
    pub snapshots_running: u64,
    /// Snapshots that are complete.
    pub snapshots_complete: u64,
    /// Snapshots that have failed.
    pub snapshots_failed: u64,
    /// Transactions received.
    pub transactions: u64,
    /// Changed rows received.
    pub changes: u64,
    /// Shapes removed: their clients load them again.
    pub removed: u64,
    /// Streams of changes that were lost and opened again.
    pub reconnects: u64,
    /// Tasks of single shapes that have panicked, which ended their shapes.
    pub faults: u64,
    /// Bytes of WAL that the slot holds.
    pub slot_lag_bytes: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_counted_by_their_end() {
        let counters = ShapeCounters::default();
        let mut first = counters.begin_snapshot();
        let second = counters.begin_snapshot();
        assert_eq!(counters.values().snapshots_running, 2);
        first.complete();
        drop((first, second));
        let values = counters.values();
        assert_eq!((values.snapshots_running, values.snapshots_complete, values.snapshots_failed), (0, 1, 1));
    }

    #[test]
    fn answers_are_counted_by_status() {
        let counters = ShapeCounters::default();
        for status in [StatusCode::OK, StatusCode::CONFLICT, StatusCode::OK, StatusCode::IM_A_TEAPOT] {
            counters.answered(status);
        }
        assert_eq!(counters.values().answers, [(200, 2), (409, 1), (0, 1)]);
        assert_eq!(counters.values().slot_lag_bytes, None);
        counters.set_slot_lag(Some(7));
        assert_eq!(counters.values().slot_lag_bytes, Some(7));
    }
}
