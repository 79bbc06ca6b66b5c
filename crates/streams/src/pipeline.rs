//! Runs a stream once: opens source and sink, delivers records, and ends.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_lanes::{
    AsyncTasks, Batch, ExhaustedAction, KeylessOrder, OverdueAction, Quota, RecordRetryPolicy, RunError, Source,
    Subscription, SubscriptionBuilder, SubscriptionHandle,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::dead_letter;
use super::error::StreamError;
use super::lane_names::LaneNames;
use super::limits::{StreamLimits, batch_max};
use super::observer::DeliveryObserver;
use super::plan::StreamPlan;
use super::rate::RateMeter;
use super::sink::{self, Sink};
use super::source::{self, LagMeter, OpenSource, postgres::GapRecovery};
use super::status::StreamStatus;
use tidegate_changes::ChangeStreamError;
use tidegate_config::stream::{BatchBy, KeylessOrder as KeylessKey, OnExhausted, StreamKeys, StreamSource};

/// A single run of a stream.
struct StreamRun<'a> {
    plan: &'a StreamPlan,
    status: &'a Arc<StreamStatus>,
    generation: u64,
    /// Whether the run waits for a sink that is away at its start. Otherwise, the run ends and is started again.
    waits_for_sink: bool,
}

/// Part of a stream that has ended.
#[derive(Debug)]
enum PartEnd {
    /// The stream has ended.
    Whole,
    /// The tables were copied, and their changes follow.
    Tables,
    /// The copy of tables has lost its connection, and starts again.
    Interrupted(ChangeStreamError),
}

/// Losses of changes within this time of each other end the stream.
const RECOVERY_MIN: Duration = Duration::from_secs(60);

/// Runs the stream until its source ends, a stop is requested, or it fails. `is_last` if no task starts it again.
pub(super) async fn run(
    plan: &StreamPlan,
    status: &Arc<StreamStatus>,
    generation: u64,
    is_last: bool,
) -> Result<(), StreamError> {
    #[cfg(feature = "kafka")]
    refuse_own_output(plan).await?;
    // A slot holds WAL until the spool takes it, which it does meanwhile.
    let waits_for_sink = is_last || matches!(plan.stream.keys.from, StreamSource::Postgres(_));
    let run = StreamRun { plan, status, generation, waits_for_sink };
    let (mut recovery, mut recovered) = (GapRecovery::None, None::<Instant>);
    let mut failures = 0;
    loop {
        match run.part(std::mem::take(&mut recovery)).await {
            Ok(PartEnd::Tables) if !status.is_stop_requested(generation) => failures = 0,
            Ok(PartEnd::Interrupted(error)) if !status.is_stop_requested(generation) => {
                failures += 1;
                status.record_error(error.to_string());
                tokio::select! {
                    () = source::postgres::wait_for_server(&plan.stream.keys, &error, failures) => {}
                    () = status.stop_requested(generation) => return Ok(()),
                }
            }
            Ok(_) => return Ok(()),
            Err(error) => {
                if source::postgres::is_gap(&error) {
                    status.record_gap();
                }
                let is_again = recovered.is_some_and(|at| at.elapsed() < RECOVERY_MIN);
                if is_again || status.is_stop_requested(generation) {
                    return Err(error);
                }
                recovery = source::postgres::recover(plan, &error).await?;
                if recovery == GapRecovery::None {
                    return Err(error);
                }
                recovered = Some(Instant::now());
            }
        }
    }
}

#[cfg(feature = "kafka")]
async fn refuse_own_output(plan: &StreamPlan) -> Result<(), StreamError> {
    let keys = plan.stream.keys.clone();
    let checked = tokio::task::spawn_blocking(move || source::kafka::refuse_own_output(&keys)).await;
    checked.unwrap_or(Err(StreamError::Aborted))
}

impl StreamRun<'_> {
    /// Runs the source that the state of the stream asks for next.
    async fn part(&self, recovery: GapRecovery) -> Result<PartEnd, StreamError> {
        match source::open(self.plan, self.status, self.generation, recovery).await? {
            OpenSource::Ndjson(lines, lanes) => self.deliver(lines, &lanes).await,
            OpenSource::DeadLetters(letters, lanes) => self.deliver(*letters, &lanes).await,
            #[cfg(feature = "kafka")]
            OpenSource::Topics(topics, lanes) => self.deliver(*topics, &lanes).await,
            OpenSource::Changes(changes) => self.changes(*changes).await,
            OpenSource::Copy(copy) => return self.copy(*copy).await,
            OpenSource::Ended | OpenSource::Stopped => Ok(()),
        }?;
        Ok(PartEnd::Whole)
    }

    async fn changes(&self, changes: source::postgres::OpenChanges) -> Result<(), StreamError> {
        let source::postgres::OpenChanges { source, lanes, spool, control } = changes;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let deliver = async {
            let result = self.deliver(source, &lanes).await;
            drop(stop);
            result
        };
        let run_spool = async {
            if let Some(spool) = spool {
                spool.run(async { drop(stopped.await) }).await;
            }
        };
        let serve = async {
            match &control {
                Some(control) => control.run(self.status).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            (result, ()) = async { tokio::join!(deliver, run_spool) } => result,
            never = serve => match never {},
        }
    }

    /// Copies tables. A stop leaves the copy incomplete.
    async fn copy(&self, copy: source::postgres::OpenCopy) -> Result<PartEnd, StreamError> {
        let source::postgres::OpenCopy { source, lanes, end, meanwhile } = copy;
        let delivered = match meanwhile {
            None => self.deliver(source, &lanes).await,
            Some(meanwhile) => self.deliver_beside(source, &lanes, meanwhile).await,
        };
        if delivered.is_err() || self.status.is_stop_requested(self.generation) {
            end.abandon().await;
            return match delivered {
                Ok(()) => Ok(PartEnd::Whole),
                Err(error) => source::postgres::interruption(error).map(PartEnd::Interrupted),
            };
        }
        let is_all = end.is_all;
        end.finish(self.status).await?;
        Ok(if is_all { PartEnd::Whole } else { PartEnd::Tables })
    }

    /// Delivers the rows of tables while the spool takes the changes. The first error ends both.
    async fn deliver_beside<S: Source>(
        &self,
        source: S,
        lanes: &LaneNames,
        meanwhile: source::postgres::SpoolMeanwhile,
    ) -> Result<(), StreamError> {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let mut deliver = pin!(self.deliver(source, lanes));
        let mut capture = pin!(meanwhile.run(async { drop(stopped.await) }));
        tokio::select! {
            delivered = &mut deliver => {
                drop(stop);
                // The spool is closed before it is opened again.
                let captured = capture.await;
                delivered.and(captured)
            }
            captured = &mut capture => match captured {
                Ok(()) => deliver.await,
                Err(error) => Err(error),
            },
        }
    }

    async fn deliver<S: Source>(&self, source: S, lanes: &LaneNames) -> Result<(), StreamError> {
        let keys = &self.plan.stream.keys;
        self.status.set_capture(lanes.capture().cloned());
        let sink = tokio::select! {
            opened = self.open_sink(lanes) => Arc::new(opened?),
            () = self.status.stop_requested(self.generation) => return Ok(()),
        };
        let builder = self.builder(source, &sink).interceptor(DeliveryObserver::new(self.status, keys));
        let builder = match dead_letter::open(keys, lanes)? {
            Some(dead_letters) => builder.dead_letter_queue(dead_letters),
            None => builder,
        };
        let (handler_sink, limit) = (Arc::clone(&sink), keys.timeout);
        let subscription = builder.batches(batch_max(keys), move |batch: Batch| {
            let sink = Arc::clone(&handler_sink);
            async move { sink.deliver_batch(batch, limit).await }
        })?;
        let result = self.drive(subscription, &sink, Monitor::new(lag(keys, lanes))).await;
        sink.close(keys.drain).await;
        result
    }

    /// Opens the sink. Tries again while it is away.
    async fn open_sink(&self, lanes: &LaneNames) -> Result<Sink, StreamError> {
        let mut failures = 0;
        loop {
            match Sink::open(&self.plan.stream, lanes, &self.plan.access).await {
                Err(error @ StreamError::SinkAway(_)) if self.waits_for_sink => {
                    failures += 1;
                    self.status.record_error(error.error_chain());
                    sink::away::wait_for_sink(&self.plan.stream.keys, &error, failures).await;
                }
                opened => return opened,
            }
        }
    }

    fn builder<S: Source>(&self, source: S, sink: &Sink) -> SubscriptionBuilder<S, AsyncTasks> {
        let keys = &self.plan.stream.keys;
        let overdue = if sink.is_never_overdue() { OverdueAction::Extend } else { OverdueAction::Retry };
        let limits = StreamLimits::of(&self.plan.stream);
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
            .commit_every(source::commit_every(keys))
            .drain(keys.drain);
        let builder = if keys.batch_by == BatchBy::Lane { builder.batches_across_keys() } else { builder };
        let quota = Quota { records: keys.quota, window: keys.quota_window };
        let builder = if keys.quota > 0 { builder.quota(quota) } else { builder };
        if keys.compact { builder.compact() } else { builder }
    }

    /// Drives the subscription and reports its progress.
    async fn drive(&self, subscription: Subscription, sink: &Sink, mut monitor: Monitor) -> Result<(), StreamError> {
        let handle = subscription.handle();
        // Also applies the rate.
        self.status.begin(self.generation, handle.clone());
        let mut stop = RequestedStop::new(self.plan.stream.keys.drain);
        let mut running = pin!(subscription.run());
        let mut ticks = tokio::time::interval(MEASURE_INTERVAL);
        let mut failed = None;
        let result = loop {
            tokio::select! {
                ended = &mut running => break ended,
                reason = sink.failed(), if failed.is_none() => {
                    failed = Some(reason);
                    handle.stop(Duration::ZERO);
                }
                () = self.status.stop_requested(self.generation), if !stop.has_begun() => {
                    stop.begin(&handle, self.status.is_paused());
                }
                () = stop.over() => stop.stop(&handle),
                _ = ticks.tick() => monitor.measure(&handle, self.status),
            }
        };
        if result.is_ok() && failed.is_none() && !stop.has_begun() {
            monitor.end(self.status).await;
        }
        match failed {
            Some(reason) => Err(StreamError::SinkGone(reason)),
            // Parked records were not committed, as expected of a stop.
            None if stop.has_begun() && matches!(result, Err(RunError::Unfinished { .. })) => Ok(()),
            None => result.map(drop).map_err(StreamError::from),
        }
    }
}

fn retry(keys: &StreamKeys) -> RecordRetryPolicy {
    RecordRetryPolicy {
        attempts_max: (keys.attempts > 0).then_some(keys.attempts),
        age_max: (!keys.age_max.is_zero()).then_some(keys.age_max),
        wait_min: keys.retry_wait,
        wait_max: keys.retry_wait_max.max(keys.retry_wait),
        ..RecordRetryPolicy::default()
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

/// Sinks enforce their own limit; this longer one catches defects.
fn deadline(limit: Duration) -> Duration {
    const SLACK: Duration = Duration::from_secs(60);
    const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
    if limit.is_zero() { LONGEST } else { limit.saturating_mul(2).saturating_add(SLACK).min(LONGEST) }
}

#[cfg_attr(not(feature = "kafka"), expect(unused_variables, reason = "only the lag of Kafka needs the keys"))]
fn lag(keys: &StreamKeys, lanes: &LaneNames) -> LagMeter {
    match lanes {
        LaneNames::Changes { capture, .. } => LagMeter::Changes(capture.clone()),
        LaneNames::File { progress, .. } => progress.clone().map_or(LagMeter::Unknown, LagMeter::File),
        #[cfg(feature = "kafka")]
        LaneNames::Kafka(partition_map) => match &keys.from {
            StreamSource::Kafka(topics) => {
                let watermarks = source::kafka::Watermarks::new(topics, keys, partition_map.clone());
                watermarks.map_or(LagMeter::Unknown, LagMeter::Kafka)
            }
            _ => LagMeter::Unknown,
        },
    }
}

/// A requested stop. Nothing more is read, and records that were read are delivered. When the time for that is over, the
/// subscription is stopped and drops deliveries that have not started; records that are not done are delivered again.
struct RequestedStop {
    drain: Duration,
    by: Option<Instant>,
}

/// Part of the time for records that were read; the rest is for deliveries in flight at that point.
const DRAIN_SHARE: f64 = 0.7;
/// Later than any deadline.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

impl RequestedStop {
    fn new(drain: Duration) -> Self {
        Self { drain, by: None }
    }

    /// A paused stream stops immediately, because it would not deliver the records that were read.
    fn begin(&mut self, handle: &SubscriptionHandle, is_paused: bool) {
        if is_paused {
            self.by = Some(Instant::now() + FAR);
            handle.stop(self.drain);
        } else {
            self.by = Some(Instant::now() + self.drain.mul_f64(DRAIN_SHARE));
            handle.finish();
        }
    }

    fn has_begun(&self) -> bool {
        self.by.is_some()
    }

    /// Completes when the time for records that were read is over.
    async fn over(&self) {
        match self.by {
            Some(by) => tokio::time::sleep_until(by).await,
            None => std::future::pending().await,
        }
    }

    fn stop(&mut self, handle: &SubscriptionHandle) {
        // Request the stop only once.
        self.by = Some(Instant::now() + FAR);
        handle.stop(self.drain.mul_f64(1.0 - DRAIN_SHARE));
    }
}

/// Interval of rate measurements.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// Measures rate and lag. A slow answer about the lag delays the value, not the stream.
struct Monitor {
    rate: RateMeter,
    lag: Arc<LagMeter>,
    lag_task: Option<JoinHandle<()>>,
}

impl Monitor {
    fn new(lag: LagMeter) -> Self {
        Self { rate: RateMeter::new(), lag: Arc::new(lag), lag_task: None }
    }

    fn measure(&mut self, handle: &SubscriptionHandle, status: &Arc<StreamStatus>) {
        let metrics = handle.metrics();
        status.record_rate(self.rate.rate(metrics.counters.done));
        if self.lag_task.as_ref().is_none_or(JoinHandle::is_finished) {
            let (lag, status) = (Arc::clone(&self.lag), Arc::clone(status));
            let measure_lag = move || status.record_lag(lag.measure(&metrics.lanes));
            self.lag_task = Some(tokio::task::spawn_blocking(measure_lag));
        }
    }

    /// Sets the lag to zero, because the source has ended.
    async fn end(&mut self, status: &StreamStatus) {
        if let Some(lag_task) = self.lag_task.take() {
            // The task reports its result itself.
            let _ = lag_task.await;
        }
        if !matches!(*self.lag, LagMeter::Unknown) {
            status.record_lag(Some(0));
        }
    }
}
