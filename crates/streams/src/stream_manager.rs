//! Starts, restarts, changes and stops the streams of a process, on their own threads.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate_supervise::{
    self as supervise, Backoff, Budget, ChildClass, Exit, Report, RestartPolicy, Scope, Timer, Tokio,
};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::error::StreamError;
use super::gateway_access::GatewayAccess;
use super::pipeline;
use super::plan::StreamPlan;
use super::status::{RunOutcome, StreamStatus};
use super::status_table::StatusTable;
use tidegate_config::StreamConfig;

/// Handling of a stream that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartMode {
    /// Restarts after a transient error, with exponential backoff. Otherwise, an operator has to start the stream.
    Always,
    /// No restart: the caller gets the result.
    Never,
}

type StreamHandle = JoinHandle<Result<Result<(), StreamError>, Exit>>;

/// The streams of a process, each a child of one scope by its name. Aborts them when dropped.
pub struct StreamManager {
    scope: Scope<String>,
    status_table: StatusTable,
    restart: RestartMode,
    threads: usize,
    tasks: Vec<(Arc<StreamStatus>, StreamHandle)>,
    /// Created for the first stream.
    runtime: Option<Runtime>,
}

const WAIT_MIN: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(60);
/// A stream that has run this long starts over at the shortest wait.
const RECOVERED_AFTER: Duration = Duration::from_secs(10);

impl StreamManager {
    /// Starts the streams as children of `scope`, on `threads` threads.
    ///
    /// # Errors
    /// If threads cannot be created.
    pub fn start(
        streams: &[StreamConfig],
        access: &GatewayAccess,
        restart: RestartMode,
        threads: usize,
        scope: Scope<String>,
    ) -> std::io::Result<Self> {
        let mut manager =
            Self { scope, status_table: StatusTable::default(), restart, threads, tasks: Vec::new(), runtime: None };
        manager.apply(streams, access)?;
        Ok(manager)
    }

    /// Applies a new configuration. New streams start; missing ones end; changed ones end and start again. Limits change while a
    /// stream runs.
    ///
    /// If threads cannot be created; nothing has changed then.
    pub fn apply(&mut self, streams: &[StreamConfig], access: &GatewayAccess) -> std::io::Result<()> {
        if self.runtime.is_none() && !streams.is_empty() {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            self.runtime =
                Some(builder.worker_threads(self.threads.max(1)).thread_name("streams").enable_all().build()?);
        }
        let mut before = self.status_table.all();
        let mut statuses = Vec::with_capacity(streams.len());
        for stream in streams {
            let plan = StreamPlan { stream: stream.clone(), access: access.clone() };
            match before.iter().position(|status| status.name() == stream.keys.name) {
                Some(known) => {
                    let status = before.remove(known);
                    status.apply(plan);
                    statuses.push(status);
                }
                None => statuses.extend(self.spawn(plan)),
            }
        }
        before.iter().for_each(|status| status.remove());
        statuses.extend(before);
        self.status_table.replace(statuses);
        Ok(())
    }

    fn spawn(&mut self, plan: StreamPlan) -> Option<Arc<StreamStatus>> {
        let runtime = self.runtime.as_ref()?;
        let status = Arc::new(StreamStatus::new(plan));
        let stream_task = Arc::new(StreamTask {
            status: Arc::clone(&status),
            restart: self.restart,
            has_started: AtomicBool::new(false),
            generation: AtomicU64::new(0),
        });
        let restart_delay =
            RestartDelay { stream_task: Arc::clone(&stream_task), clock: Tokio::new(runtime.handle().clone()) };
        let class = ChildClass::new(policy(self.restart), move |_: &String, _| run_stream(Arc::clone(&stream_task)));
        // Rejected while the process is stopping.
        let task = self.scope.wrap_kept(status.name().to_owned(), &class, restart_delay).ok()?;
        // Forget removed streams that have ended.
        self.tasks.retain(|(status, task)| !(status.is_gone() && task.is_finished()));
        self.tasks.push((Arc::clone(&status), runtime.spawn(task)));
        Some(status)
    }

    /// The status of the streams.
    #[must_use]
    pub fn status_table(&self) -> &StatusTable {
        &self.status_table
    }

    /// Whether any stream has not ended permanently.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.tasks.iter().any(|(_, task)| !task.is_finished())
    }

    /// Waits until all streams have ended permanently. Returns the result of each by name.
    ///
    /// # Cancel safety
    /// Not cancel safe: results that were received are lost.
    pub async fn ended(&mut self) -> Vec<(String, Result<(), StreamError>)> {
        let mut results = Vec::new();
        for (status, task) in self.tasks.drain(..) {
            let ended = match task.await {
                Ok(Ok(ended)) => ended,
                Ok(Err(_)) | Err(_) => Err(StreamError::Aborted),
            };
            results.push((status.name().to_owned(), ended));
        }
        results
    }

    /// Aborts the running streams and waits up to `within` for their end. Uncommitted records are delivered again.
    pub async fn abort(&self, within: Duration) -> Report {
        self.scope.stop(Tokio::current(), Duration::ZERO, within).await
    }
}

impl Drop for StreamManager {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|(_, task)| task.abort());
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl std::fmt::Debug for StreamManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StreamManager").field(&self.status_table).finish()
    }
}

fn policy(restart: RestartMode) -> RestartPolicy {
    match restart {
        RestartMode::Always => RestartPolicy::new(supervise::Restart::Transient)
            .budget(Budget::unlimited())
            .backoff(Backoff::new(WAIT_MIN, WAIT_MAX))
            .reset_after(RECOVERED_AFTER),
        RestartMode::Never => RestartPolicy::new(supervise::Restart::Temporary),
    }
}

/// Shared state of the restarts of one stream.
struct StreamTask {
    status: Arc<StreamStatus>,
    restart: RestartMode,
    has_started: AtomicBool,
    /// Generation of the last run.
    generation: AtomicU64,
}

/// Runs one stream again and again until it ends permanently; `Err` requests a restart after a delay. Commands of an operator end
/// a run and start another one without a restart.
async fn run_stream(stream_task: Arc<StreamTask>) -> Result<(), StreamError> {
    let (status, restart) = (&stream_task.status, stream_task.restart);
    let mut last_generation = None;
    while let Some((generation, plan)) = status.next_run(last_generation).await {
        if stream_task.has_started.swap(true, Ordering::Relaxed) {
            status.record_restart();
        }
        stream_task.generation.store(generation, Ordering::Relaxed);
        tracing::info!(stream = status.name(), "stream starts");
        // The outcome if the run panics.
        let mut run = RunGuard { status, generation, outcome: RunOutcome::Transient };
        let result = pipeline::run(&plan, status, generation, restart == RestartMode::Never).await;
        let is_transient = restart == RestartMode::Always && result.as_ref().is_err_and(StreamError::is_transient);
        let restarts = is_transient && !status.is_stop_requested(generation);
        run.outcome = match &result {
            Ok(()) => RunOutcome::Done,
            Err(_) if is_transient => RunOutcome::Transient,
            Err(_) => RunOutcome::Failed,
        };
        log_end(status, &result, restarts, restart);
        drop(run);
        if restarts || restart == RestartMode::Never {
            return result;
        }
        last_generation = Some(generation);
    }
    Ok(())
}

/// Ends a run when dropped.
struct RunGuard<'a> {
    status: &'a StreamStatus,
    generation: u64,
    outcome: RunOutcome,
}

impl Drop for RunGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.status.record_error("panicked: see the log".to_owned());
        }
        self.status.end(self.generation, self.outcome);
    }
}

/// The delay before a restart. A command of an operator ends it.
struct RestartDelay {
    stream_task: Arc<StreamTask>,
    clock: Tokio,
}

impl Timer for RestartDelay {
    type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

    fn sleep(&self, wait: Duration) -> Self::Sleep {
        let stream_task = Arc::clone(&self.stream_task);
        let (stream, error) = (stream_task.status.name(), stream_task.status.last_error());
        tracing::error!(stream, error, again_in = ?wait, "stream failed, restarting");
        let sleep = self.clock.sleep(wait);
        Box::pin(async move {
            tokio::select! {
                () = sleep => {}
                () = stream_task.status.stop_requested(stream_task.generation.load(Ordering::Relaxed)) => {}
            }
        })
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }
}

/// Records the result and logs it, unless the log of the restart contains it.
fn log_end(status: &StreamStatus, result: &Result<(), StreamError>, restarts: bool, restart: RestartMode) {
    let (stream, totals) = (status.name(), status.totals());
    let Err(error) = result.as_ref().map_err(StreamError::error_chain) else {
        let (done, retried, dead_lettered, skipped) =
            (totals.done, totals.retried, totals.dead_lettered, totals.skipped);
        tracing::info!(stream, done, retried, dead_lettered, skipped, "stream ended");
        return;
    };
    // The caller gets the error.
    if !restarts && restart == RestartMode::Always {
        tracing::error!(stream, error, "stream failed");
    }
    status.record_error(error);
}
