//! State of the change capture of a stream: slot, spool, and how far the sink is.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use tidegate_changes::{
    ChangeCounts, ChangeStreamStatus as ReaderStatus, ConnectionState, Lsn, PgTimestamp, SlotState, spool::SpoolStatus,
};
use tokio::sync::watch;

/// State of the change capture of a stream at one moment.
#[derive(Debug, Clone, Default)]
pub struct CaptureSnapshot {
    /// Name of the slot.
    pub slot: String,
    /// `connecting`, `streaming`, `waiting` or `ended`; `lost` for a slot that the server has invalidated, or that lacks changes.
    pub state: &'static str,
    /// The slot, as the server showed it last.
    pub server: Option<SlotState>,
    /// End of the WAL that the server has sent.
    pub received_lsn: Lsn,
    /// The position that is durable in the spool, or acknowledged by the sink without one.
    pub durable_lsn: Lsn,
    /// The position that the slot is confirmed up to.
    pub confirmed_lsn: Lsn,
    /// The position that the sink has everything before.
    pub delivered_lsn: Lsn,
    /// WAL that the sink has not everything of, in bytes.
    pub lag_bytes: u64,
    /// Age of the oldest transaction that was read and that the sink does not have; zero if there is none.
    pub lag: Duration,
    /// Configured bound of the WAL that the slot holds, in bytes.
    pub wal_max: Option<u64>,
    /// Size of the spool and its bound, in bytes.
    pub spool: Option<(u64, u64)>,
    /// Unfinished transactions in memory, in bytes.
    pub open_tx_bytes: u64,
    /// Unfinished transactions that were written to files, in bytes, since the start.
    pub spilled_bytes: u64,
    /// Transactions read.
    pub transactions: u64,
    /// Changes read.
    pub changes: ChangeCounts,
    /// Connections after the first.
    pub reconnects: u64,
}

/// Commit time if no transaction is unfinished.
const NO_COMMIT: i64 = i64::MIN;

/// Progress of the sink, shared with the source.
#[derive(Debug)]
pub(crate) struct DeliveryProgress {
    delivered: AtomicU64,
    /// Commit time of the oldest unfinished transaction, or [`NO_COMMIT`].
    oldest: AtomicI64,
    /// The run has found that changes are lost.
    is_lost: AtomicBool,
    /// The run has ended.
    has_ended: AtomicBool,
}

impl Default for DeliveryProgress {
    fn default() -> Self {
        let (is_lost, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { delivered: AtomicU64::new(0), oldest: AtomicI64::new(NO_COMMIT), is_lost, has_ended }
    }
}

/// Transactions that were read and are not finished.
#[derive(Debug)]
pub(crate) struct UnfinishedCommits {
    commits: VecDeque<(Lsn, PgTimestamp)>,
    progress: Arc<DeliveryProgress>,
}

impl UnfinishedCommits {
    pub(crate) fn new(progress: Arc<DeliveryProgress>) -> Self {
        Self { commits: VecDeque::new(), progress }
    }

    /// A transaction was read.
    pub(crate) fn push(&mut self, end: Lsn, commit_time: PgTimestamp) {
        self.commits.push_back((end, commit_time));
        if self.commits.len() == 1 {
            self.progress.oldest.store(commit_time.0, Ordering::Relaxed);
        }
    }

    /// The sink has everything before `lsn`.
    pub(crate) fn finish(&mut self, lsn: Lsn) {
        while self.commits.pop_front_if(|(end, _)| *end <= lsn).is_some() {}
        let oldest = self.commits.front().map_or(NO_COMMIT, |(_, time)| time.0);
        self.progress.oldest.store(oldest, Ordering::Relaxed);
        self.progress.delivered.fetch_max(lsn.0, Ordering::Relaxed);
    }
}

/// Shows the change capture of one run.
#[derive(Clone)]
pub(crate) struct CaptureHandle {
    slot: Arc<str>,
    wal_max: Option<u64>,
    reader: watch::Receiver<ReaderStatus>,
    spool: Arc<OnceLock<SpoolStatus>>,
    progress: Arc<DeliveryProgress>,
}

impl CaptureHandle {
    pub(crate) fn new(slot: &str, wal_max: Option<u64>, reader: watch::Receiver<ReaderStatus>) -> Self {
        Self { slot: slot.into(), wal_max, reader, spool: Arc::default(), progress: Arc::default() }
    }

    /// Shows a spool from now on.
    pub(crate) fn set_spool(&self, spool: SpoolStatus) {
        // A run has one spool.
        let _ = self.spool.set(spool);
    }

    pub(crate) fn progress(&self) -> Arc<DeliveryProgress> {
        Arc::clone(&self.progress)
    }

    /// Shows that changes are lost, until the next run.
    pub(crate) fn record_loss(&self) {
        self.progress.is_lost.store(true, Ordering::Relaxed);
    }

    /// Shows that the run has ended.
    pub(crate) fn record_end(&self) {
        self.progress.has_ended.store(true, Ordering::Relaxed);
    }

    /// WAL that the sink has not everything of; `None` before the first connection.
    pub(crate) fn lag_bytes(&self) -> Option<u64> {
        let status = self.reader.borrow();
        status.identity.as_ref()?;
        Some(wal_end(&status).bytes_since(self.delivered(&status)))
    }

    fn delivered(&self, status: &ReaderStatus) -> Lsn {
        let before = self.spool.get().map_or(status.flushed_lsn, SpoolStatus::acknowledged_lsn);
        Lsn(self.progress.delivered.load(Ordering::Relaxed)).max(before)
    }

    pub(crate) fn snapshot(&self) -> CaptureSnapshot {
        let status = self.reader.borrow().clone();
        let delivered_lsn = self.delivered(&status);
        let oldest = self.progress.oldest.load(Ordering::Relaxed);
        let age = PgTimestamp::from_system_time(SystemTime::now()).micros_since(PgTimestamp(oldest));
        let is_lost = self.progress.is_lost.load(Ordering::Relaxed)
            || status.slot.as_ref().is_some_and(|slot| slot.wal_status.as_deref() == Some("lost"));
        CaptureSnapshot {
            slot: self.slot.to_string(),
            state: match status.connection {
                _ if is_lost => "lost",
                _ if self.progress.has_ended.load(Ordering::Relaxed) => "ended",
                ConnectionState::Connecting => "connecting",
                ConnectionState::Streaming => "streaming",
                ConnectionState::Waiting => "waiting",
                ConnectionState::Ended => "ended",
            },
            received_lsn: status.received_lsn,
            durable_lsn: status.durable_lsn,
            confirmed_lsn: status.flushed_lsn,
            delivered_lsn,
            lag_bytes: wal_end(&status).bytes_since(delivered_lsn),
            lag: if oldest == NO_COMMIT { Duration::ZERO } else { Duration::from_micros(age) },
            wal_max: self.wal_max,
            spool: self.spool.get().map(|spool| (spool.bytes(), spool.bytes_max())),
            open_tx_bytes: status.open_tx_bytes,
            spilled_bytes: status.spilled_bytes_total,
            transactions: status.transactions_total,
            changes: status.changes_total,
            reconnects: status.reconnects_total,
            server: status.slot,
        }
    }
}

/// End of the WAL, as far as it is known.
fn wal_end(status: &ReaderStatus) -> Lsn {
    let of_slot = |slot: &SlotState| Lsn(slot.confirmed_flush_lsn?.0.saturating_add(slot.lag_bytes?)).into();
    let seen: Option<Lsn> = status.slot.as_ref().and_then(of_slot);
    seen.unwrap_or_default().max(status.received_lsn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_the_age_of_the_oldest_unfinished_commit() {
        let (sender, reader) = watch::channel(ReaderStatus::default());
        let handle = CaptureHandle::new("s", None, reader);
        assert_eq!(handle.snapshot().lag, Duration::ZERO);
        let mut commits = UnfinishedCommits::new(handle.progress());
        assert_eq!((handle.snapshot().lag, handle.lag_bytes()), (Duration::ZERO, None));
        let now = PgTimestamp::from_system_time(SystemTime::now());
        commits.push(Lsn(100), PgTimestamp(now.0 - 60_000_000));
        commits.push(Lsn(200), PgTimestamp(now.0 - 30_000_000));
        let lag = || handle.snapshot().lag.as_secs();
        assert!((60..90).contains(&lag()));
        commits.finish(Lsn(100));
        assert!((30..60).contains(&lag()));
        commits.finish(Lsn(200));
        assert_eq!(lag(), 0);
        sender.send_modify(|status| status.received_lsn = Lsn(250));
        let snapshot = handle.snapshot();
        assert_eq!((snapshot.delivered_lsn, snapshot.lag_bytes), (Lsn(200), 50));
        let slot = SlotState { confirmed_flush_lsn: Some(Lsn(100)), lag_bytes: Some(400), ..SlotState::default() };
        sender.send_modify(|status| status.slot = Some(slot));
        assert_eq!(handle.snapshot().lag_bytes, 300, "the server has more than it has sent");
    }
}
