//! One run of a stream: its ends are opened, records flow, and it ends.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_lanes::{
    Batch, Bounds, Builder, Exhausted, Handle, Keyless, Overdue, Quota, Retry, RunError, Source, Subscription, Tasks,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::board::{Ear, Pace, Status};
use super::door::Doors;
use super::error::StreamError;
use super::letters;
use super::place::Places;
use super::sink::Sink;
use super::source::{self, Lag, Opened};
use crate::config::Stream;
use crate::config::stream::{Keyless as KeylessKey, OnExhausted, StreamKeys};

/// Runs the stream until its source ends, it is stopped, or it cannot go on.
pub(super) async fn run(stream: &Stream, doors: &Doors, status: &Arc<Status>) -> Result<(), StreamError> {
    match source::open(&stream.keys)? {
        Opened::Lines(lines, places) => flow(stream, lines, &places, doors, status).await,
        #[cfg(feature = "kafka")]
        Opened::Topics(topics, places) => flow(stream, *topics, &places, doors, status).await,
    }
}

async fn flow<S: Source>(
    stream: &Stream,
    source: S,
    places: &Places,
    doors: &Doors,
    status: &Arc<Status>,
) -> Result<(), StreamError> {
    let keys = &stream.keys;
    let sink = Arc::new(Sink::open(stream, places, doors).await?);
    let builder = builder(keys, source, &sink, stream).interceptor(Ear(Arc::clone(status)));
    let builder = match letters::open(keys, places)? {
        Some(letters) => builder.dead_letter(letters),
        None => builder,
    };
    let (taker, limit) = (Arc::clone(&sink), keys.timeout);
    let subscription = builder.batches(keys.batch as usize, move |batch: Batch| {
        let sink = Arc::clone(&taker);
        async move { sink.take(batch, limit).await }
    })?;
    let ending = Ending::new(keys.drain);
    let result = attend(subscription, &sink, status, Watch::new(lag(keys, places)), ending).await;
    sink.close(keys.drain).await;
    result
}

fn builder<S: Source>(keys: &StreamKeys, source: S, sink: &Sink, stream: &Stream) -> Builder<S, Tasks> {
    let is_free = sink.is_wide() && stream.written.concurrency.is_none();
    let concurrency = if is_free { WIDE } else { keys.concurrency as usize };
    let bytes_max = usize::try_from(keys.bytes_max).unwrap_or(usize::MAX);
    let records_max = keys.records_max as usize;
    let overdue = if sink.is_patient() { Overdue::Extend } else { Overdue::Retry };
    let builder = Subscription::builder(&keys.name)
        .source(source)
        .concurrency(sink.hands().map_or(concurrency, |hands| hands.min(concurrency)))
        .bounds(Bounds { records_max, bytes_max, lane_records_max: records_max, lane_span_max: keys.span_max as usize })
        .retry(retry(keys))
        .exhausted(exhausted(keys.exhausted))
        .deadline(deadline(keys.timeout), overdue)
        .keyless(match keys.keyless {
            KeylessKey::Unordered => Keyless::Unordered,
            KeylessKey::Lane => Keyless::InLane,
        })
        .commit_every(keys.commit_every)
        .drain(keys.drain);
    let builder = if keys.rate > 0 { builder.rate(f64::from(keys.rate)) } else { builder };
    let quota = Quota { records: keys.quota, window: keys.quota_window };
    let builder = if keys.quota > 0 { builder.quota(quota) } else { builder };
    if keys.compact { builder.compact() } else { builder }
}

/// Deliveries at a time where each is but a place in a queue.
const WIDE: usize = 10_000;

fn retry(keys: &StreamKeys) -> Retry {
    Retry {
        attempts: (keys.attempts > 0).then_some(keys.attempts),
        age_max: (!keys.age_max.is_zero()).then_some(keys.age_max),
        first_wait: keys.retry_wait,
        longest_wait: keys.retry_wait_max.max(keys.retry_wait),
        ..Retry::default()
    }
}

fn exhausted(key: OnExhausted) -> Exhausted {
    match key {
        OnExhausted::Stop => Exhausted::Stop,
        OnExhausted::HaltLane => Exhausted::HaltLane,
        OnExhausted::Park => Exhausted::Park,
        OnExhausted::Skip => Exhausted::Skip,
        OnExhausted::DeadLetter => Exhausted::DeadLetter,
    }
}

/// A sink keeps its own limit; this one is for a defect of ours.
fn deadline(limit: Duration) -> Duration {
    const SLACK: Duration = Duration::from_secs(60);
    const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
    if limit.is_zero() { LONGEST } else { limit.saturating_mul(2).saturating_add(SLACK).min(LONGEST) }
}

fn lag(keys: &StreamKeys, places: &Places) -> Lag {
    match places {
        Places::File { path, .. } => path.as_ref().map_or(Lag::Unknown, |path| Lag::of_file(path, keys)),
        #[cfg(feature = "kafka")]
        Places::Kafka(roster) => match &keys.from {
            crate::config::stream::Origin::Kafka(topics) => {
                let watermarks = source::kafka::Watermarks::new(topics, keys, roster.clone());
                watermarks.map_or(Lag::Unknown, Lag::Kafka)
            }
            _ => Lag::Unknown,
        },
    }
}

/// Drives the subscription, and writes down how it goes.
async fn attend(
    subscription: Subscription,
    sink: &Sink,
    status: &Arc<Status>,
    mut watch: Watch,
    mut ending: Ending,
) -> Result<(), StreamError> {
    let handle = subscription.handle();
    status.begin(handle.clone());
    let mut running = pin!(subscription.run());
    let mut ticks = tokio::time::interval(TICK);
    let mut gone = None;
    let result = loop {
        tokio::select! {
            ended = &mut running => break ended,
            reason = sink.gone(), if gone.is_none() => {
                gone = Some(reason);
                handle.stop(Duration::ZERO);
            }
            () = status.told_to_stop() => ending.begin(&handle),
            () = ending.over() => ending.stop(&handle),
            _ = ticks.tick() => watch.look(&handle, status),
        }
    };
    match gone {
        Some(reason) => Err(StreamError::SinkGone(reason)),
        // They were not committed, which is what whoever stops a stream expects of parked records.
        None if ending.has_begun() && matches!(result, Err(RunError::HeldBack { .. })) => Ok(()),
        None => result.map(drop).map_err(StreamError::from),
    }
}

/// A stop that was asked for: nothing more is read, and what was read is delivered. Only when the time for that is over, the
/// subscription is stopped, which drops what has not begun; what is done behind that comes again.
struct Ending {
    drain: Duration,
    by: Option<Instant>,
}

/// What was read has so much of the time; the rest is for what is under way then.
const PART_FOR_WAITING: f64 = 0.7;

impl Ending {
    fn new(drain: Duration) -> Self {
        Self { drain, by: None }
    }

    fn begin(&mut self, handle: &Handle) {
        self.by = Some(Instant::now() + self.drain.mul_f64(PART_FOR_WAITING));
        handle.finish();
    }

    fn has_begun(&self) -> bool {
        self.by.is_some()
    }

    /// Completes when the time is over.
    async fn over(&self) {
        match self.by {
            Some(by) => tokio::time::sleep_until(by).await,
            None => std::future::pending().await,
        }
    }

    fn stop(&mut self, handle: &Handle) {
        // Far away: it is said once.
        self.by = Some(Instant::now() + Duration::from_secs(365 * 24 * 3600));
        handle.stop(self.drain.mul_f64(1.0 - PART_FOR_WAITING));
    }
}

/// Rates are of so much time.
const TICK: Duration = Duration::from_secs(1);

/// Rate and lag. Whoever is asked for the lag may be slow: then the figure is older.
struct Watch {
    pace: Pace,
    lag: Arc<Lag>,
    asked: Option<JoinHandle<()>>,
}

impl Watch {
    fn new(lag: Lag) -> Self {
        Self { pace: Pace::new(), lag: Arc::new(lag), asked: None }
    }

    fn look(&mut self, handle: &Handle, status: &Arc<Status>) {
        let metrics = handle.metrics();
        status.note_rate(self.pace.rate(metrics.tally.done));
        if self.asked.as_ref().is_none_or(JoinHandle::is_finished) {
            let (lag, status) = (Arc::clone(&self.lag), Arc::clone(status));
            let ask = move || status.note_lag(lag.measure(&metrics.lanes));
            self.asked = Some(tokio::task::spawn_blocking(ask));
        }
    }
}
