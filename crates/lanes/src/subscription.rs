//! A source, a handler, and what is agreed between them.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::Handle as Tokio;
use tokio::task::{JoinError, JoinSet};

use crate::builder::{Builder, NoSource};
use crate::crew::{Crew, Pool, TaskCrew, ThreadCrew, Work};
use crate::error::RunError;
use crate::handle::Handle;
use crate::home::Home;
use crate::intake::{Intake, IntakeSettings};
use crate::runtime::Tasks;
use crate::source::Source;
use crate::tally::Tally;
use crate::worker::{Shared, Worker};

/// A subscription that was built and has not begun. [`run`](Self::run) drives it.
#[must_use = "a subscription does nothing until it is run"]
pub struct Subscription {
    shared: Arc<Shared>,
    tasks: Vec<(Tokio, Task)>,
    pool: Option<Pool>,
    homes: Vec<Home>,
}

type Task = Pin<Box<dyn Future<Output = Result<(), RunError>> + Send>>;

impl Subscription {
    /// Begins to build a subscription. Its name stands in logs, spans, names of threads, and letters to the dead-letter.
    pub fn builder(name: &str) -> Builder<NoSource, Tasks> {
        Builder::new(name)
    }

    pub(crate) fn of_tasks<S, H, F>(
        source: S,
        settings: &IntakeSettings,
        shared: Shared,
        homes: Vec<Home>,
        handler: H,
    ) -> Self
    where
        S: Source,
        H: Fn(Work) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let crew = |tokio: &Tokio| TaskCrew::new(handler.clone(), tokio.clone());
        Self { homes, ..Self::new(source, settings, shared, None, crew) }
    }

    pub(crate) fn of_threads<S: Source>(source: S, settings: &IntakeSettings, shared: Shared, pool: Pool) -> Self {
        let crew: ThreadCrew = pool.crew();
        Self::new(source, settings, shared, Some(pool), |_| crew.another())
    }

    fn new<S: Source, C: Crew>(
        source: S,
        settings: &IntakeSettings,
        shared: Shared,
        pool: Option<Pool>,
        crew: impl Fn(&Tokio) -> C,
    ) -> Self {
        let shared = Arc::new(shared);
        let worker = |number| -> (Tokio, Task) {
            let tokio = shared.home(number);
            let worker = Worker::new(number, crew(tokio), Arc::clone(&shared));
            let task = Box::pin(async {
                worker.run().await;
                Ok(())
            });
            (tokio.clone(), task)
        };
        let mut tasks: Vec<(Tokio, Task)> = (0..shared.shards.len()).map(worker).collect();
        let mut intake = Intake::new(source, settings, Arc::clone(&shared));
        let task = Box::pin(async move {
            let result = poll_fn(|cx| intake.poll(cx)).await;
            intake.dismiss();
            result
        });
        tasks.push((shared.tokio.clone(), task));
        Self { shared, tasks, pool, homes: Vec::new() }
    }

    /// What steers it while it runs.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.shared))
    }

    /// Runs until it was [stopped](Handle::stop), its source came to its end, or it cannot go on. Returns what it has
    /// counted in all.
    ///
    /// # Errors
    /// If it ended otherwise than by being stopped or by the end of its source.
    ///
    /// # Cancel safety
    /// Dropped, it aborts everything that it has started; what was not committed comes again. Handlers that block a
    /// thread end on their own.
    pub async fn run(self) -> Result<Tally, RunError> {
        let mut running = JoinSet::new();
        for (tokio, task) in self.tasks {
            running.spawn_on(task, &tokio);
        }
        let mut result = Ok(());
        while let Some(ended) = running.join_next().await {
            let ended = ended.unwrap_or_else(|error| Err(broken(error)));
            if ended.is_err() && result.is_ok() {
                let is_broken = matches!(ended, Err(RunError::Broken));
                result = ended;
                if is_broken {
                    running.abort_all();
                }
            }
        }
        drop(self.homes);
        self.pool.into_iter().for_each(|pool| pool.end(self.shared.gate.used() == 0));
        result.map(|()| self.shared.board.tally())
    }
}

/// A part has panicked, or its runtime is shutting down.
fn broken(_: JoinError) -> RunError {
    RunError::Broken
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("name", &self.shared.policy.subscription).finish_non_exhaustive()
    }
}
