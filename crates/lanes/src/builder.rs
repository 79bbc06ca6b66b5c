//! From a name, a source and a handler to a subscription.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::runtime::Handle as Tokio;

use crate::bounds::Bounds;
use crate::clock::Clock;
use crate::crew::{self, Pool, Work};
use crate::dead_letter::DeadLetter;
use crate::delivery::{self, Batch, Delivery};
use crate::error::BuildError;
use crate::failure::{Exhausted, Overdue, Retry};
use crate::gate::Gate;
use crate::home::Home;
use crate::intake::IntakeSettings;
use crate::mailbox::Mailbox;
use crate::observe::{Board, Interceptor};
use crate::pace::Pace;
use crate::policy::{Keyless, Policy, Quota};
use crate::record::Record;
use crate::runtime::{Tasks, Threads};
use crate::source::Source;
use crate::subscription::Subscription;
use crate::worker::Shared;

/// No source yet.
#[derive(Clone, Copy, Debug)]
pub struct NoSource;

/// Builds a [`Subscription`]: a source and a handler are needed, all else has a default.
#[must_use = "a builder builds nothing until it gets its handler"]
pub struct Builder<S, R> {
    source: S,
    runtime: R,
    policy: Policy,
    settings: IntakeSettings,
    concurrency: usize,
    rate: Option<f64>,
    shards: usize,
    has_own_threads: bool,
    dead_letter: Option<Arc<dyn DeadLetter>>,
    interceptors: Vec<Arc<dyn Interceptor>>,
}

impl Builder<NoSource, Tasks> {
    pub(crate) fn new(name: &str) -> Self {
        let settings = IntakeSettings {
            bounds: Bounds::default(),
            commit_every: Duration::from_millis(200),
            drain: Duration::from_secs(30),
        };
        Self {
            source: NoSource,
            runtime: Tasks,
            policy: Policy::new(name),
            settings,
            concurrency: 10_000,
            rate: None,
            shards: available_parallelism().map_or(1, usize::from),
            has_own_threads: false,
            dead_letter: None,
            interceptors: Vec::new(),
        }
    }
}

impl<S, R> Builder<S, R> {
    /// All the rest stays as it is.
    fn over<T, Q>(self, change: impl FnOnce(S, R) -> (T, Q)) -> Builder<T, Q> {
        let Self {
            source,
            runtime,
            policy,
            settings,
            concurrency,
            rate,
            shards,
            has_own_threads,
            dead_letter,
            interceptors,
        } = self;
        let (source, runtime) = change(source, runtime);
        Builder {
            source,
            runtime,
            policy,
            settings,
            concurrency,
            rate,
            shards,
            has_own_threads,
            dead_letter,
            interceptors,
        }
    }
}

impl<R> Builder<NoSource, R> {
    /// Where records come from.
    pub fn source<S: Source>(self, source: S) -> Builder<S, R> {
        self.over(|_, runtime| (source, runtime))
    }
}

impl<S> Builder<S, Tasks> {
    /// Gives each [shard](Self::shards) a thread of its own, with a tokio runtime of its own, on which its handlers run.
    /// Without it they run on the runtime on which the subscription is built.
    ///
    /// The workers of one runtime share its timers behind a lock; apart from each other, handlers that sleep or have
    /// timeouts cost about half. In exchange a handler stays on its thread: one that computes for long holds up the other
    /// keys of its shard, and `tokio::task::block_in_place` panics in it. What a handler spawned there and left behind
    /// ends with the subscription. The source stays on the runtime of whoever builds it.
    pub fn own_threads(mut self) -> Self {
        self.has_own_threads = true;
        self
    }

    /// On what handlers run: [`Threads`], instead of [`Tasks`].
    pub fn runtime(self, threads: Threads) -> Builder<S, Threads> {
        self.over(|source, _| (source, threads))
    }
}

impl<S, R> Builder<S, R> {
    /// How many handlers may be under way at once. 10,000 by default. Handlers on threads have their threads for a limit
    /// besides.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// How much may wait.
    pub fn bounds(mut self, bounds: Bounds) -> Self {
        self.settings.bounds = bounds;
        self
    }

    /// How many starts of a handler, with a record or a batch each, there may be in a second; 0 is a pause. Any number by
    /// default.
    pub fn rate(mut self, per_second: f64) -> Self {
        self.rate = Some(per_second);
        self
    }

    /// How often and when a failed record is tried again.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.policy.retry = retry;
        self
    }

    /// What becomes of a record whose attempts are used up. The subscription stops, by default.
    pub fn exhausted(mut self, exhausted: Exhausted) -> Self {
        self.policy.exhausted = exhausted;
        self
    }

    /// How long a record may take from its start to its completion (5 minutes by default), and what becomes of it then.
    pub fn deadline(mut self, deadline: Duration, overdue: Overdue) -> Self {
        self.policy.deadline = deadline;
        self.policy.overdue = overdue;
        self
    }

    /// Where records go that could not be done, if [`exhausted`](Self::exhausted) or [`deadline`](Self::deadline) say so: by
    /// itself it changes nothing.
    pub fn dead_letter(mut self, dead_letter: impl DeadLetter) -> Self {
        self.dead_letter = Some(Arc::new(dead_letter));
        self
    }

    /// How records without a key are ordered: not at all, by default.
    pub fn keyless(mut self, keyless: Keyless) -> Self {
        self.policy.keyless = keyless;
        self
    }

    /// How many records of one key may start within a window of time. Costs some memory for each key of the last window.
    pub fn quota(mut self, quota: Quota) -> Self {
        self.policy.quota = Some(quota);
        self
    }

    /// Of the waiting records of a key, only the newest is run: it takes the place of the one before. For records that
    /// hold the whole state of their key.
    pub fn compact(mut self) -> Self {
        self.policy.compact = true;
        self
    }

    /// How long what is done may wait to be committed. 200 ms by default.
    pub fn commit_every(mut self, interval: Duration) -> Self {
        self.settings.commit_every = interval;
        self
    }

    /// How long what runs may take to end when the subscription stops by itself. 30 s by default.
    pub fn drain(mut self, within: Duration) -> Self {
        self.settings.drain = within;
        self
    }

    /// Into how many parts the keys are divided, each with an owner of its own: one for each core, by default.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = shards;
        self
    }

    /// One more that is told of every attempt, after those before.
    pub fn interceptor(mut self, interceptor: impl Interceptor) -> Self {
        self.interceptors.push(Arc::new(interceptor));
        self
    }

    fn check(&self) -> Result<(), BuildError> {
        let Policy { exhausted, overdue, batch_max, .. } = self.policy;
        let buries = exhausted == Exhausted::DeadLetter || overdue == Overdue::DeadLetter;
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
        if buries && self.dead_letter.is_none() {
            return Err(BuildError::NoDeadLetter);
        }
        numbers.iter().find(|(_, number)| *number == 0).map_or(Ok(()), |(name, _)| Err(BuildError::Zero(name)))
    }

    fn shared(&mut self, threads: Option<usize>) -> Result<Shared, BuildError> {
        self.check()?;
        let permits = crew::permits(self.concurrency, threads);
        let tokio = Tokio::try_current().map_err(|_| BuildError::NoRuntime)?;
        Ok(Shared {
            policy: Arc::new(self.policy.clone()),
            gate: Gate::new(permits, self.rate),
            threads,
            pace: Pace::new(self.settings.bounds.ready_max, self.shards, self.policy.wants_pace()),
            shards: (0..self.shards).map(|_| Mailbox::new()).collect(),
            intake: Mailbox::new(),
            board: Board::new(self.shards),
            clock: Clock::start(),
            dead_letter: self.dead_letter.take(),
            interceptors: std::mem::take(&mut self.interceptors),
            tokio,
            homes: Vec::new(),
        })
    }
}

impl<S: Source> Builder<S, Tasks> {
    /// With a handler that finishes what it is delivered, now or later.
    ///
    /// # Errors
    /// If what was agreed does not fit together.
    pub fn handler<H, F>(self, handler: H) -> Result<Subscription, BuildError>
    where
        H: Fn(Delivery) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let handler = Arc::new(handler);
        self.with_work(move |work| handler(work.into_delivery()))
    }

    /// With a function of a record, whose result says whether it is done. An error is tried again, unless it is a
    /// [`Failure`](crate::Failure) that says otherwise.
    ///
    /// # Errors
    /// If what was agreed does not fit together.
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

    /// With a handler of up to `most` waiting records of one key at a time. Nothing waits for a batch to be full.
    ///
    /// # Errors
    /// If what was agreed does not fit together.
    pub fn batches<H, F>(mut self, most: usize, handler: H) -> Result<Subscription, BuildError>
    where
        H: Fn(Batch) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.policy.batch_max = most;
        let handler = Arc::new(handler);
        self.with_work(move |work| handler(work.into_batch()))
    }

    fn homes(&self) -> Result<Vec<Home>, BuildError> {
        let count = if self.has_own_threads { self.shards } else { 0 };
        let homes = (0..count).map(|number| Home::start(&self.policy.subscription, number));
        homes.collect::<io::Result<_>>().map_err(|_| BuildError::NoThreads(count))
    }

    fn with_work<H, F>(mut self, handler: H) -> Result<Subscription, BuildError>
    where
        H: Fn(Work) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let mut shared = self.shared(None)?;
        let homes = self.homes()?;
        shared.homes = homes.iter().map(Home::tokio).collect();
        Ok(Subscription::of_tasks(self.source, &self.settings, shared, homes, handler))
    }
}

impl<S: Source> Builder<S, Threads> {
    /// With a function of a record that blocks, whose result says whether it is done. An error is tried again, unless it is
    /// a [`Failure`](crate::Failure) that says otherwise.
    ///
    /// # Errors
    /// If what was agreed does not fit together, or the system does not give so many threads.
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

    /// With a handler that blocks, and finishes what it is delivered, now or later.
    ///
    /// # Errors
    /// If what was agreed does not fit together, or the system does not give so many threads.
    pub fn handler<H>(self, handler: H) -> Result<Subscription, BuildError>
    where
        H: Fn(Delivery) + Send + Sync + 'static,
    {
        self.with_work(move |work| handler(work.into_delivery()))
    }

    /// With a handler that blocks, of up to `most` waiting records of one key at a time.
    ///
    /// # Errors
    /// If what was agreed does not fit together, or the system does not give so many threads.
    pub fn batches<H>(mut self, most: usize, handler: H) -> Result<Subscription, BuildError>
    where
        H: Fn(Batch) + Send + Sync + 'static,
    {
        self.policy.batch_max = most;
        self.with_work(move |work| handler(work.into_batch()))
    }

    fn with_work<H>(mut self, handler: H) -> Result<Subscription, BuildError>
    where
        H: Fn(Work) + Send + Sync + 'static,
    {
        let Threads(threads) = self.runtime;
        if threads == 0 {
            return Err(BuildError::Zero("threads"));
        }
        let shared = self.shared(Some(threads))?;
        let pool =
            Pool::start(&self.policy.subscription, threads, handler).map_err(|_| BuildError::NoThreads(threads))?;
        Ok(Subscription::of_threads(self.source, &self.settings, shared, pool))
    }
}

impl<S, R: fmt::Debug> fmt::Debug for Builder<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("policy", &self.policy).field("runtime", &self.runtime).finish_non_exhaustive()
    }
}
