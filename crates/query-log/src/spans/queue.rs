//! Encoded spans between the journal's thread and the exporter, in bounded memory.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tidegate_config::TracesConfig;
use tidegate_journal::RecordObserver;
use tidegate_sql::trace_parent::TraceParent;

use super::{SpanEncoder, SpanRecord, TraceSampler};

/// Encoded spans of one request: elements of `ScopeSpans.spans`.
#[derive(Debug, Default)]
struct SpanBatch {
    bytes: Vec<u8>,
    count: u64,
}

/// A batch that is being sent. Dropped without an outcome, it returns to the queue.
#[derive(Debug)]
pub struct TakenBatch<'q> {
    queue: &'q SpanQueue,
    batch: Option<SpanBatch>,
}

impl TakenBatch<'_> {
    /// Elements of `ScopeSpans.spans`.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.batch.as_ref().map_or(&[], |batch| &batch.bytes)
    }

    /// Counts the spans as exported, but for those that the collector rejected.
    pub fn set_exported(mut self, rejected: u64) {
        let count = self.batch.take().map_or(0, |batch| batch.count);
        let rejected = rejected.min(count);
        self.queue.exported.fetch_add(count - rejected, Ordering::Relaxed);
        self.queue.dropped_failed.fetch_add(rejected, Ordering::Relaxed);
    }

    /// Counts the spans as dropped.
    pub fn set_dropped(mut self) {
        let count = self.batch.take().map_or(0, |batch| batch.count);
        self.queue.dropped_failed.fetch_add(count, Ordering::Relaxed);
    }
}

impl Drop for TakenBatch<'_> {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            let state = &mut *self.queue.state();
            state.bytes += batch.bytes.len();
            state.full.push_front(batch);
        }
    }
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanCounts {
    /// Accepted by the collector.
    pub exported: u64,
    /// Dropped because the queue was full.
    pub dropped_full: u64,
    /// Dropped because the collector did not accept them.
    pub dropped_failed: u64,
    /// Requests that failed, repeated ones included.
    pub failed_requests: u64,
    /// Bytes in the queue now.
    pub queued_bytes: u64,
}

#[derive(Debug, Default)]
struct QueueState {
    encoder: SpanEncoder,
    scratch: Vec<u8>,
    current: SpanBatch,
    full: VecDeque<SpanBatch>,
    bytes: usize,
}

/// Queue of encoded spans. The journal's thread adds and never waits; the exporter takes batches.
pub struct SpanQueue {
    state: Mutex<QueueState>,
    sampler: TraceSampler,
    batch_spans: u64,
    bytes_max: usize,
    /// Called when a batch is full.
    wake: Box<dyn Fn() + Send + Sync>,
    exported: AtomicU64,
    dropped_full: AtomicU64,
    dropped_failed: AtomicU64,
    failed_requests: AtomicU64,
}

impl std::fmt::Debug for SpanQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpanQueue").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl SpanQueue {
    /// Creates a queue; `wake` is called on the journal's thread when a batch is full, and must not wait.
    #[must_use]
    pub fn new(config: &TracesConfig, wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            sampler: TraceSampler::new(config),
            batch_spans: config.batch_spans.into(),
            bytes_max: config.queue_bytes as usize,
            wake: Box::new(wake),
            exported: AtomicU64::default(),
            dropped_full: AtomicU64::default(),
            dropped_failed: AtomicU64::default(),
            failed_requests: AtomicU64::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        // A panic leaves at most an incomplete scratch buffer, which is cleared before its next use.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the oldest batch, also if it is not full; `None` if there is no span.
    #[must_use]
    pub fn take(&self) -> Option<TakenBatch<'_>> {
        let state = &mut *self.state();
        let batch = match state.full.pop_front() {
            Some(batch) => batch,
            None => std::mem::take(&mut state.current),
        };
        state.bytes -= batch.bytes.len();
        // Not `then_some`: an empty batch that is dropped would lock the state again.
        (batch.count > 0).then(|| TakenBatch { queue: self, batch: Some(batch) })
    }

    /// Whether at least half of the memory is in use.
    #[must_use]
    pub fn is_half_full(&self) -> bool {
        self.state().bytes >= self.bytes_max / 2
    }

    /// Counts a failed request.
    pub fn count_failed_request(&self) {
        self.failed_requests.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters.
    #[must_use]
    pub fn counts(&self) -> SpanCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SpanCounts {
            exported: of(&self.exported),
            dropped_full: of(&self.dropped_full),
            dropped_failed: of(&self.dropped_failed),
            failed_requests: of(&self.failed_requests),
            queued_bytes: self.state().bytes as u64,
        }
    }

    fn add(&self, record: &SpanRecord<'_>) {
        let parent = record.traceparent.as_ref().and_then(|text| TraceParent::parse(text.as_bytes()));
        let trace_id = parent.map_or_else(|| fastrand::u128(1..).to_be_bytes(), |parent| parent.trace_id);
        if !self.sampler.samples(record, parent.as_ref(), &trace_id) {
            return;
        }
        let span_id = fastrand::u64(1..).to_be_bytes();
        let is_full = {
            let state = &mut *self.state();
            state.scratch.clear();
            state.encoder.write(record, parent.as_ref(), &trace_id, &span_id, &mut state.scratch);
            if state.bytes + state.scratch.len() > self.bytes_max {
                self.dropped_full.fetch_add(1, Ordering::Relaxed);
                return;
            }
            state.bytes += state.scratch.len();
            state.current.bytes.extend_from_slice(&state.scratch);
            state.current.count += 1;
            let is_full = state.current.count >= self.batch_spans;
            if is_full {
                let batch = std::mem::take(&mut state.current);
                state.full.push_back(batch);
            }
            is_full
        };
        if is_full {
            (self.wake)();
        }
    }
}

impl RecordObserver for SpanQueue {
    fn on_record(&self, payload: &[u8]) {
        if let Some(record) = SpanRecord::from_json(payload) {
            self.add(&record);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const RECORD: &[u8] =
        br#"{"time":"2026-03-01T12:00:00Z","kind":"query","statement":"select 1","total_us":9,"tag":"SELECT 1"}"#;

    fn config(batch_spans: u32, queue_bytes: u32) -> TracesConfig {
        TracesConfig { sample_one_in: 1, batch_spans, queue_bytes, ..TracesConfig::default() }
    }

    #[test]
    fn full_batches_wake_the_exporter() {
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        let queue = SpanQueue::new(&config(2, 1 << 20), move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        (0..5).for_each(|_| queue.on_record(RECORD));
        queue.on_record(b"{}");
        queue.on_record(br#"{"time":"2026-03-01T12:00:00Z","kind":"login"}"#);
        assert_eq!(woken.load(Ordering::SeqCst), 2);
        for rest in [3, 1, 0] {
            queue.take().expect("a batch").set_exported(0);
            assert_eq!(queue.counts().exported, 5 - rest);
        }
        assert!(queue.take().is_none());
        assert_eq!(queue.counts(), SpanCounts { exported: 5, ..SpanCounts::default() });
    }

    #[test]
    fn spans_beyond_the_limit_are_dropped_and_counted() {
        let queue = SpanQueue::new(&config(1_000_000, 65_536), || {});
        (0..10_000).for_each(|_| queue.on_record(RECORD));
        let counts = queue.counts();
        assert!(counts.queued_bytes <= 65_536 && counts.dropped_full > 0, "{counts:?}");
        queue.take().expect("a batch").set_dropped();
        let after = queue.counts();
        assert_eq!((after.dropped_full + after.dropped_failed, after.queued_bytes), (10_000, 0));
    }

    #[test]
    fn batch_without_an_outcome_returns_to_the_queue() {
        let queue = SpanQueue::new(&config(1, 1 << 20), || {});
        queue.on_record(RECORD);
        let bytes = queue.take().map(|batch| batch.bytes().to_vec());
        assert_eq!(queue.take().map(|batch| batch.bytes().to_vec()), bytes);
        queue.take().expect("it returned").set_exported(3);
        assert_eq!((queue.counts().exported, queue.counts().dropped_failed), (0, 1), "at most all are rejected");
    }
}
