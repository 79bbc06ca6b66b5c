//! One run of a stream: its ends are opened, records flow, and it ends.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_lanes::{
    AsyncTasks, Batch, ExhaustedAction, KeylessOrder, OverdueAction, Quota, RetryPolicy, RunError, Source,
    Subscription, SubscriptionBuilder, SubscriptionHandle,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::board::Pace;
use super::ear::Ear;
use super::error::StreamError;
use super::letters;
use super::limits::{Limits, Width};
use super::place::Places;
use super::plan::Plan;
use super::sink::Sink;
use super::source::{self, Lag, Opened};
use super::status::Status;
use tidegate_config::stream::{Keyless as KeylessKey, OnExhausted, StreamKeys};

/// One run of a stream: what it goes by, and what it writes down.
struct Run<'a> {
    plan: &'a Plan,
    status: &'a Arc<Status>,
    turn: u64,
}

/// Runs the stream until its source ends, it is told to end, or it cannot go on.
pub(super) async fn run(plan: &Plan, status: &Arc<Status>, turn: u64) -> Result<(), StreamError> {
    let run = Run { plan, status, turn };
    match source::open(&plan.stream.keys)? {
        Opened::Lines(lines, places) => run.flow(lines, &places).await,
        #[cfg(feature = "kafka")]
        Opened::Topics(topics, places) => run.flow(*topics, &places).await,
    }
}

impl Run<'_> {
    async fn flow<S: Source>(&self, source: S, places: &Places) -> Result<(), StreamError> {
        let keys = &self.plan.stream.keys;
        let sink = tokio::select! {
            opened = Sink::open(&self.plan.stream, places, &self.plan.doors) => Arc::new(opened?),
            () = self.status.told_to_end(self.turn) => return Ok(()),
        };
        let builder = self.builder(source, &sink).interceptor(Ear::new(self.status, keys));
        let builder = match letters::open(keys, places)? {
            Some(letters) => builder.dead_letter_queue(letters),
            None => builder,
        };
        let (taker, limit) = (Arc::clone(&sink), keys.timeout);
        let subscription = builder.batches(keys.batch as usize, move |batch: Batch| {
            let sink = Arc::clone(&taker);
            async move { sink.take(batch, limit).await }
        })?;
        let result = self.attend(subscription, &sink, Watch::new(lag(keys, places))).await;
        sink.close(keys.drain).await;
        result
    }

    fn builder<S: Source>(&self, source: S, sink: &Sink) -> SubscriptionBuilder<S, AsyncTasks> {
        let keys = &self.plan.stream.keys;
        let overdue = if sink.is_patient() { OverdueAction::Extend } else { OverdueAction::Retry };
        let limits = Limits::of(&self.plan.stream, width(sink));
        let builder = Subscription::builder(&keys.name)
            .source(source)
            .concurrency(limits.concurrency)
            .bounds(limits.bounds)
            .retry(retry(keys))
            .exhausted(exhausted(keys.exhausted))
            .deadline(deadline(keys.timeout), overdue)
            .keyless(match keys.keyless {
                KeylessKey::Unordered => KeylessOrder::Unordered,
                KeylessKey::Lane => KeylessOrder::PerLane,
            })
            .commit_every(keys.commit_every)
            .drain(keys.drain);
        let quota = Quota { records: keys.quota, window: keys.quota_window };
        let builder = if keys.quota > 0 { builder.quota(quota) } else { builder };
        if keys.compact { builder.compact() } else { builder }
    }

    /// Drives the subscription, and writes down how it goes.
    async fn attend(&self, subscription: Subscription, sink: &Sink, mut watch: Watch) -> Result<(), StreamError> {
        let handle = subscription.handle();
        // Sets the rate, too.
        self.status.begin(self.turn, handle.clone(), width(sink));
        let mut ending = Ending::new(self.plan.stream.keys.drain);
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
                () = self.status.told_to_end(self.turn), if !ending.has_begun() => {
                    ending.begin(&handle, self.status.is_paused());
                }
                () = ending.over() => ending.stop(&handle),
                _ = ticks.tick() => watch.look(&handle, self.status),
            }
        };
        if result.is_ok() && gone.is_none() && !ending.has_begun() {
            watch.end(self.status).await;
        }
        match gone {
            Some(reason) => Err(StreamError::SinkGone(reason)),
            // They were not committed, which is what whoever stops a stream expects of parked records.
            None if ending.has_begun() && matches!(result, Err(RunError::Unfinished { .. })) => Ok(()),
            None => result.map(drop).map_err(StreamError::from),
        }
    }
}

fn width(sink: &Sink) -> Width {
    Width { hands: sink.hands(), is_wide: sink.is_wide() }
}

fn retry(keys: &StreamKeys) -> RetryPolicy {
    RetryPolicy {
        attempts_max: (keys.attempts > 0).then_some(keys.attempts),
        age_max: (!keys.age_max.is_zero()).then_some(keys.age_max),
        wait_min: keys.retry_wait,
        wait_max: keys.retry_wait_max.max(keys.retry_wait),
        ..RetryPolicy::default()
    }
}

fn exhausted(key: OnExhausted) -> ExhaustedAction {
    match key {
        OnExhausted::Stop => ExhaustedAction::Stop,
        OnExhausted::HaltLane => ExhaustedAction::HaltLane,
        OnExhausted::Park => ExhaustedAction::Park,
        OnExhausted::Skip => ExhaustedAction::Skip,
        OnExhausted::DeadLetter => ExhaustedAction::DeadLetter,
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
        Places::Kafka(partition_map) => match &keys.from {
            tidegate_config::stream::Origin::Kafka(topics) => {
                let watermarks = source::kafka::Watermarks::new(topics, keys, partition_map.clone());
                watermarks.map_or(Lag::Unknown, Lag::Kafka)
            }
            _ => Lag::Unknown,
        },
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
/// Later than anybody waits for.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

impl Ending {
    fn new(drain: Duration) -> Self {
        Self { drain, by: None }
    }

    /// While it is paused, what was read would not be delivered in that time either.
    fn begin(&mut self, handle: &SubscriptionHandle, is_paused: bool) {
        if is_paused {
            self.by = Some(Instant::now() + FAR);
            handle.stop(self.drain);
        } else {
            self.by = Some(Instant::now() + self.drain.mul_f64(PART_FOR_WAITING));
            handle.finish();
        }
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

    fn stop(&mut self, handle: &SubscriptionHandle) {
        // It is said once.
        self.by = Some(Instant::now() + FAR);
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

    fn look(&mut self, handle: &SubscriptionHandle, status: &Arc<Status>) {
        let metrics = handle.metrics();
        status.note_rate(self.pace.rate(metrics.counters.done));
        if self.asked.as_ref().is_none_or(JoinHandle::is_finished) {
            let (lag, status) = (Arc::clone(&self.lag), Arc::clone(status));
            let ask = move || status.note_lag(lag.measure(&metrics.lanes));
            self.asked = Some(tokio::task::spawn_blocking(ask));
        }
    }

    /// The source came to its end: there is nothing behind what is done, whatever was seen last.
    async fn end(&mut self, status: &Status) {
        if let Some(asked) = self.asked.take() {
            // It has nothing to say but what it notes.
            let _ = asked.await;
        }
        if !matches!(*self.lag, Lag::Unknown) {
            status.note_lag(Some(0));
        }
    }
}
