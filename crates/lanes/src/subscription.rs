//! A subscription: a source, a handler, and their settings.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::Handle as Tokio;
use tokio::task::{JoinError, JoinSet};

use crate::counters::SubscriptionCounters;
use crate::error::RunError;
use crate::executor::{HandlerCall, HandlerExecutor};
use crate::handle::SubscriptionHandle;
use crate::intake::{Intake, IntakeSettings};
use crate::shard_runtime::ShardRuntime;
use crate::source::Source;
use crate::task_executor::TaskExecutor;
use crate::thread_executor::{ThreadExecutor, ThreadPool};
use crate::worker::{LaneWorker, SubscriptionContext};

/// A subscription that has been built and not started. [`run`](Self::run) drives it.
#[must_use = "a subscription does nothing until `run` is awaited"]
pub struct Subscription {
    context: Arc<SubscriptionContext>,
    tasks: Vec<(Tokio, Task)>,
    pool: Option<ThreadPool>,
    shard_runtimes: Vec<ShardRuntime>,
}

type Task = Pin<Box<dyn Future<Output = Result<(), RunError>> + Send>>;

impl Subscription {
    pub(crate) fn with_tasks<S, H, F>(
        source: S,
        settings: &IntakeSettings,
        context: SubscriptionContext,
        shard_runtimes: Vec<ShardRuntime>,
        handler: H,
    ) -> Self
    where
        S: Source,
        H: Fn(HandlerCall) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let executor = |tokio: &Tokio| TaskExecutor::new(handler.clone(), tokio.clone());
        Self { shard_runtimes, ..Self::new(source, settings, context, None, executor) }
    }

    pub(crate) fn with_threads<S: Source>(
        source: S,
        settings: &IntakeSettings,
        context: SubscriptionContext,
        pool: ThreadPool,
    ) -> Self {
        let executor: ThreadExecutor = pool.executor();
        Self::new(source, settings, context, Some(pool), |_| executor.for_shard())
    }

    fn new<S: Source, C: HandlerExecutor>(
        source: S,
        settings: &IntakeSettings,
        context: SubscriptionContext,
        pool: Option<ThreadPool>,
        executor: impl Fn(&Tokio) -> C,
    ) -> Self {
        let context = Arc::new(context);
        let worker = |number| -> (Tokio, Task) {
            let tokio = context.runtime_of(number);
            let worker = LaneWorker::new(number, executor(tokio), Arc::clone(&context));
            let task = Box::pin(async {
                worker.run().await;
                Ok(())
            });
            (tokio.clone(), task)
        };
        let mut tasks: Vec<(Tokio, Task)> = (0..context.shards.len()).map(worker).collect();
        let mut intake = Intake::new(source, settings, Arc::clone(&context));
        let task = Box::pin(async move {
            let result = poll_fn(|cx| intake.poll(cx)).await;
            intake.stop_shards();
            result
        });
        tasks.push((context.tokio.clone(), task));
        Self { context, tasks, pool, shard_runtimes: Vec::new() }
    }

    /// Returns a handle that controls the subscription while it runs.
    #[must_use]
    pub fn handle(&self) -> SubscriptionHandle {
        SubscriptionHandle::new(Arc::clone(&self.context))
    }

    /// Runs until [`stop`](SubscriptionHandle::stop), the end of the source, or an error. Returns the counters.
    ///
    /// # Errors
    /// Returns a [`RunError`] if the source fails, if a record stops the subscription, or if uncommitted records are left
    /// at the end of the source.
    ///
    /// # Cancel safety
    /// Dropping the future aborts all handlers that it has started; uncommitted records will be delivered again. Handlers
    /// that block a thread end on their own.
    pub async fn run(self) -> Result<SubscriptionCounters, RunError> {
        let mut running = JoinSet::new();
        for (tokio, task) in self.tasks {
            running.spawn_on(task, &tokio);
        }
        let mut result = Ok(());
        while let Some(ended) = running.join_next().await {
            let ended = ended.unwrap_or_else(|error| Err(internal_error(error)));
            if ended.is_err() && result.is_ok() {
                let is_broken = matches!(ended, Err(RunError::Internal));
                result = ended;
                if is_broken {
                    running.abort_all();
                }
            }
        }
        drop(self.shard_runtimes);
        self.pool.into_iter().for_each(|pool| pool.shut_down(self.context.limiter.in_use() == 0));
        result.map(|()| self.context.metrics.counters())
    }
}

/// A component panicked, or its runtime is shutting down.
fn internal_error(_: JoinError) -> RunError {
    RunError::Internal
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("name", &self.context.policy.subscription).finish_non_exhaustive()
    }
}
