//! Builds a subscription from a name, a source and a handler.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::runtime::Handle as Tokio;

use crate::backpressure::ReadyLimit;
use crate::bounds::Bounds;
use crate::clock::Clock;
use crate::dead_letter::DeadLetterQueue;
use crate::delivery::{self, Batch, Delivery};
use crate::error::BuildError;
use crate::executor::HandlerCall;
use crate::failure::{ExhaustedAction, OverdueAction, RecordRetryPolicy};
use crate::intake::IntakeSettings;
use crate::interceptor::Interceptor;
use crate::limiter::Limiter;
use crate::mailbox::ShardMailbox;
use crate::metrics::MetricsStore;
use crate::policy::{KeylessOrder, Quota, SubscriptionPolicy};
use crate::record::Record;
use crate::runtime::{AsyncTasks, BlockingThreads};
use crate::shard_runtime::ShardRuntime;
use crate::source::Source;
use crate::subscription::Subscription;
use crate::thread_executor::{self, ThreadPool};
use crate::worker::SubscriptionContext;

/// The source type of a builder without a source.
#[derive(Clone, Copy, Debug)]
pub struct NoSource;

/// Builds a [`Subscription`]. A source and a handler are required; everything else has a default.
#[must_use = "a builder does nothing until it gets a handler"]
pub struct SubscriptionBuilder<S, R> {
    source: S,
    runtime: R,
    policy: SubscriptionPolicy,
    settings: IntakeSettings,
    concurrency: usize,
    rate: Option<f64>,
    shards: usize,
    has_own_threads: bool,
    dead_letter_queue: Option<Arc<dyn DeadLetterQueue>>,
    interceptors: Vec<Arc<dyn Interceptor>>,
}

impl Subscription {
    /// Starts a builder. The name appears in logs, spans, thread names and dead letters.
    pub fn builder(name: &str) -> SubscriptionBuilder<NoSource, AsyncTasks> {
        SubscriptionBuilder::new(name)
    }
}

impl SubscriptionBuilder<NoSource, AsyncTasks> {
    fn new(name: &str) -> Self {
        let settings = IntakeSettings {
            bounds: Bounds::default(),
            commit_every: Duration::from_millis(200),
            drain: Duration::from_secs(30),
        };
        Self {
            source: NoSource,
            runtime: AsyncTasks,
            policy: SubscriptionPolicy::new(name),
            settings,
            concurrency: 10_000,
            rate: None,
            shards: available_parallelism().map_or(1, usize::from),
            has_own_threads: false,
            dead_letter_queue: None,
            interceptors: Vec::new(),
        }
    }
}

impl<S, R> SubscriptionBuilder<S, R> {
    fn map_parts<T, Q>(self, change: impl FnOnce(S, R) -> (T, Q)) -> SubscriptionBuilder<T, Q> {
        let Self {
            source,
            runtime,
            policy,
            settings,
            concurrency,
            rate,
            shards,
            has_own_threads,
            dead_letter_queue,
            interceptors,
        } = self;
        let (source, runtime) = change(source, runtime);
        SubscriptionBuilder {
            source,
            runtime,
            policy,
            settings,
            concurrency,
            rate,
            shards,
            has_own_threads,
            dead_letter_queue,
            interceptors,
        }
    }
}

impl<R> SubscriptionBuilder<NoSource, R> {
    /// Sets the source of the records.
    pub fn source<S: Source>(self, source: S) -> SubscriptionBuilder<S, R> {
        self.map_parts(|_, runtime| (source, runtime))
    }
}

impl<S> SubscriptionBuilder<S, AsyncTasks> {
    /// Gives each [shard](Self::shards) a thread with its own tokio runtime, on which its handlers run. By default
    /// handlers run on the runtime on which the subscription is built.
    ///
    /// Workers of one runtime share its timers behind a lock; without that lock, handlers that sleep or use timeouts cost
    /// about half. In exchange a handler is bound to its thread: a handler that computes for long delays the other keys of its
    /// shard, and `tokio::task::block_in_place` panics. Tasks that a handler spawns end with the subscription. The source
    /// stays on the runtime on which the subscription is built.
    pub fn own_threads(mut self) -> Self {
        self.has_own_threads = true;
        self
    }

    /// Runs handlers on [`BlockingThreads`] instead of [`AsyncTasks`].
    pub fn runtime(self, threads: BlockingThreads) -> SubscriptionBuilder<S, BlockingThreads> {
        self.map_parts(|source, _| (source, threads))
    }
}

impl<S, R> SubscriptionBuilder<S, R> {
    /// Sets how many handlers may run at a time. Default: 10,000. With [`BlockingThreads`] the number of threads is a
    /// further limit.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Sets the limits on queued records.
    pub fn bounds(mut self, bounds: Bounds) -> Self {
        self.settings.bounds = bounds;
        self
    }

    /// Sets how many handler calls may start per second, each with a record or a batch; 0 pauses the subscription.
    /// A negative number and NaN count as 0. Default: no limit.
    pub fn rate(mut self, per_second: f64) -> Self {
        self.rate = Some(per_second);
        self
    }

    /// Sets how often and when a failed record is retried.
    pub fn retry(mut self, retry: RecordRetryPolicy) -> Self {
        self.policy.retry = retry;
        self
    }

    /// Sets what happens to a record that has no attempts left. Default: [`ExhaustedAction::Stop`].
    pub fn exhausted(mut self, exhausted: ExhaustedAction) -> Self {
        self.policy.exhausted = exhausted;
        self
    }

    /// Sets how long an attempt may take from its start to its completion, and what happens at the deadline. Default: 5
    /// minutes, [`OverdueAction::Retry`].
    pub fn deadline(mut self, deadline: Duration, overdue: OverdueAction) -> Self {
        self.policy.deadline = deadline;
        self.policy.overdue = overdue;
        self
    }

    /// Sets the dead-letter queue. It is used only if [`exhausted`](Self::exhausted) or [`deadline`](Self::deadline)
    /// selects it.
    pub fn dead_letter_queue(mut self, dead_letter_queue: impl DeadLetterQueue) -> Self {
        self.dead_letter_queue = Some(Arc::new(dead_letter_queue));
        self
    }

    /// Sets the order of records without a key. Default: [`KeylessOrder::Unordered`].
    pub fn keyless(mut self, keyless: KeylessOrder) -> Self {
        self.policy.keyless = keyless;
        self
    }

    /// Limits how many records of one key may start within a time window. Each key that was active in the last window
    /// costs memory.
    pub fn quota(mut self, quota: Quota) -> Self {
        self.policy.quota = Some(quota);
        self
    }

    /// Processes only the newest queued record of a key; it replaces the queued record before it. For records that hold
    /// the whole state of their key.
    pub fn compact(mut self) -> Self {
        self.policy.compact = true;
        self
    }

    /// Lets a [batch](Self::batches) have records of several keys of a lane, so that batches form although keys have few queued
    /// records. A key is still processed in order: its next record waits for the batch. A batch does not wait until it is
    /// full, so fewer concurrent handlers mean larger batches.
    pub fn batches_across_keys(mut self) -> Self {
        self.policy.batches_across_keys = true;
        self
    }

    /// Sets how long finished records may wait for their commit. Default: 200 ms.
    pub fn commit_every(mut self, interval: Duration) -> Self {
        self.settings.commit_every = interval;
        self
    }

    /// Sets how long running handlers may take when the subscription stops because of an error. Default: 30 s.
    pub fn drain(mut self, within: Duration) -> Self {
        self.settings.drain = within;
        self
    }

    /// Sets the number of shards, among which the keys are divided. Default: one per core.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = shards;
        self
    }

    /// Adds an interceptor, called after those added before.
    pub fn interceptor(mut self, interceptor: impl Interceptor) -> Self {
        self.interceptors.push(Arc::new(interceptor));
        self
    }

    fn check(&self) -> Result<(), BuildError> {
        let SubscriptionPolicy { exhausted, overdue, batch_max, .. } = self.policy;
        let sends_dead_letters = exhausted == ExhaustedAction::DeadLetter || overdue == OverdueAction::DeadLetter;
        let bounds = self.settings.bounds;
        let numbers = [
            ("shards", self.shards),
            ("concurrency", self.concurrency),
            ("batch", batch_max),
            ("records_max", bounds.records_max),
            ("bytes_max", bounds.bytes_max),
            ("lane_records_max", bounds.lane_records_max),
            ("lane_span_max", bounds.lane_span_max),
            ("ready_max", bounds.ready_max),
        ];
        if sends_dead_letters && self.dead_letter_queue.is_none() {
            return Err(BuildError::NoDeadLetterQueue);
        }
        numbers.iter().find(|(_, number)| *number == 0).map_or(Ok(()), |(name, _)| Err(BuildError::Zero(name)))
    }

    fn context(&mut self, threads: Option<usize>) -> Result<SubscriptionContext, BuildError> {
        self.check()?;
        let permits = thread_executor::permits_for(self.concurrency, threads);
        let tokio = Tokio::try_current().map_err(|_| BuildError::NoRuntime)?;
        Ok(SubscriptionContext {
            policy: Arc::new(self.policy.clone()),
            limiter: Limiter::new(permits, self.rate),
            threads,
            ready_limit: ReadyLimit::new(self.settings.bounds.ready_max, self.shards, self.policy.limits_ready_keys()),
            shards: (0..self.shards).map(|_| ShardMailbox::new()).collect(),
            intake: ShardMailbox::new(),
            metrics: MetricsStore::new(self.shards),
            clock: Clock::start(),
            dead_letter_queue: self.dead_letter_queue.take(),
            interceptors: std::mem::take(&mut self.interceptors),
            tokio,
            shard_runtimes: Vec::new(),
        })
    }
}

impl<S: Source> SubscriptionBuilder<S, AsyncTasks> {
    /// Builds the subscription with a handler that ends its [`Delivery`], now or later.
    ///
    /// # Errors
    /// Returns a [`BuildError`] if the settings contradict each other.
    pub fn handler<H, F>(self, handler: H) -> Result<Subscription, BuildError>
    where
        H: Fn(Delivery) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let handler = Arc::new(handler);
        self.with_calls(move |call| handler(call.into_delivery()))
    }

    /// Builds the subscription with a function of a record whose result finishes or fails the record. An error is
    /// retryable, unless it is a permanent [`RecordFailure`](crate::RecordFailure).
    ///
    /// # Errors
    /// Returns a [`BuildError`] if the settings contradict each other.
    pub fn process<H, F, E>(self, process: H) -> Result<Subscription, BuildError>
    where
        H: Fn(Record) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + 'static,
    {
        self.handler(move |delivery| {
            let Delivery { record, completion, .. } = delivery;
            let processed = process(record);
            async move { delivery::end(completion, processed.await) }
        })
    }

    /// Builds the subscription with a handler of up to `most` queued records of one key. A batch does not wait until it
    /// is full.
    ///
    /// # Errors
    /// Returns a [`BuildError`] if the settings contradict each other.
    pub fn batches<H, F>(mut self, most: usize, handler: H) -> Result<Subscription, BuildError>
    where
        H: Fn(Batch) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.policy.batch_max = most;
        let handler = Arc::new(handler);
        self.with_calls(move |call| handler(call.into_batch()))
    }

    fn shard_runtimes(&self) -> Result<Vec<ShardRuntime>, BuildError> {
        let count = if self.has_own_threads { self.shards } else { 0 };
        let shard_runtimes = (0..count).map(|number| ShardRuntime::start(&self.policy.subscription, number));
        shard_runtimes.collect::<io::Result<_>>().map_err(|_| BuildError::NoThreads(count))
    }

    fn with_calls<H, F>(mut self, handler: H) -> Result<Subscription, BuildError>
    where
        H: Fn(HandlerCall) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let mut context = self.context(None)?;
        let shard_runtimes = self.shard_runtimes()?;
        context.shard_runtimes = shard_runtimes.iter().map(ShardRuntime::tokio).collect();
        Ok(Subscription::with_tasks(self.source, &self.settings, context, shard_runtimes, handler))
    }
}

impl<S: Source> SubscriptionBuilder<S, BlockingThreads> {
    /// Builds the subscription with a blocking function of a record whose result finishes or fails the record. An error
    /// is retryable, unless it is a permanent [`RecordFailure`](crate::RecordFailure).
    ///
    /// # Errors
    /// Returns a [`BuildError`] if the settings contradict each other or a thread cannot be started.
    pub fn process<H, E>(self, process: H) -> Result<Subscription, BuildError>
    where
        H: Fn(Record) -> Result<(), E> + Send + Sync + 'static,
        E: fmt::Display + 'static,
    {
        self.handler(move |delivery| {
            let Delivery { record, completion, .. } = delivery;
            delivery::end(completion, process(record));
        })
    }

    /// Builds the subscription with a blocking handler that ends its [`Delivery`], now or later.
    ///
    /// # Errors
    /// Returns a [`BuildError`] if the settings contradict each other or a thread cannot be started.
    pub fn handler<H>(self, handler: H) -> Result<Subscription, BuildError>
    where
        H: Fn(Delivery) + Send + Sync + 'static,
    {
        self.with_calls(move |call| handler(call.into_delivery()))
    }

    /// Builds the subscription with a blocking handler of up to `most` queued records of one key.
    ///
    /// # Errors
    /// Returns a [`BuildError`] if the settings contradict each other or a thread cannot be started.
    pub fn batches<H>(mut self, most: usize, handler: H) -> Result<Subscription, BuildError>
    where
        H: Fn(Batch) + Send + Sync + 'static,
    {
        self.policy.batch_max = most;
        self.with_calls(move |call| handler(call.into_batch()))
    }

    fn with_calls<H>(mut self, handler: H) -> Result<Subscription, BuildError>
    where
        H: Fn(HandlerCall) + Send + Sync + 'static,
    {
        let BlockingThreads(threads) = self.runtime;
        if threads == 0 {
            return Err(BuildError::Zero("threads"));
        }
        let context = self.context(Some(threads))?;
        let pool = ThreadPool::start(&self.policy.subscription, threads, handler)
            .map_err(|_| BuildError::NoThreads(threads))?;
        Ok(Subscription::with_threads(self.source, &self.settings, context, pool))
    }
}

impl<S, R: fmt::Debug> fmt::Debug for SubscriptionBuilder<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubscriptionBuilder")
            .field("policy", &self.policy)
            .field("runtime", &self.runtime)
            .finish_non_exhaustive()
    }
}
