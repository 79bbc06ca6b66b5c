//! All streams of a process, on threads of their own: started, started again, changed, stopped.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate_supervise::{self as supervise, Backoff, Budget, Class, Exit, Report, RestartPolicy, Scope, Timer, Tokio};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::board::Board;
use super::door::Doors;
use super::error::StreamError;
use super::pipeline;
use super::plan::Plan;
use super::status::{Outcome, Status};
use tidegate_config::Stream;

/// What happens to a stream that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// If it failed for a reason that may pass, it is started again, after a wait that doubles. Else it waits for an operator.
    Always,
    /// Whoever runs it shall know.
    Never,
}

type Ending = JoinHandle<Result<Result<(), StreamError>, Exit>>;

/// Streams that run, each a child of one scope by its name. Dropped, it aborts them.
pub struct Fleet {
    scope: Scope<String>,
    board: Board,
    restart: Restart,
    threads: usize,
    tasks: Vec<(Arc<Status>, Ending)>,
    /// Made when there is a stream.
    runtime: Option<Runtime>,
}

const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Who has run for so long begins again at the first wait.
const RECOVERED_AFTER: Duration = Duration::from_secs(10);

impl Fleet {
    /// Starts these streams as children of `scope`, on so many threads.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn start(
        streams: &[Stream],
        doors: &Doors,
        restart: Restart,
        threads: usize,
        scope: Scope<String>,
    ) -> std::io::Result<Self> {
        let mut fleet = Self { scope, board: Board::default(), restart, threads, tasks: Vec::new(), runtime: None };
        fleet.adopt(streams, doors)?;
        Ok(fleet)
    }

    /// These are the streams from now on: new ones are started, those that are not named any more come to their end, and those
    /// that are described otherwise come to their end and begin anew. Limits change while a stream runs.
    ///
    /// # Errors
    /// If the system gives no threads; then nothing has changed.
    pub fn adopt(&mut self, streams: &[Stream], doors: &Doors) -> std::io::Result<()> {
        if self.runtime.is_none() && !streams.is_empty() {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            self.runtime =
                Some(builder.worker_threads(self.threads.max(1)).thread_name("streams").enable_all().build()?);
        }
        let mut before = self.board.all();
        let mut statuses = Vec::with_capacity(streams.len());
        for stream in streams {
            let plan = Plan { stream: stream.clone(), doors: doors.clone() };
            match before.iter().position(|status| status.name() == stream.keys.name) {
                Some(known) => {
                    let status = before.remove(known);
                    status.adopt(plan);
                    statuses.push(status);
                }
                None => statuses.extend(self.spawn(plan)),
            }
        }
        before.iter().for_each(|status| status.remove());
        statuses.extend(before);
        self.board.replace(statuses);
        Ok(())
    }

    fn spawn(&mut self, plan: Plan) -> Option<Arc<Status>> {
        let runtime = self.runtime.as_ref()?;
        let status = Arc::new(Status::new(plan));
        let life = Arc::new(Life {
            status: Arc::clone(&status),
            restart: self.restart,
            has_begun: AtomicBool::new(false),
            turn: AtomicU64::new(0),
        });
        let pause = Pause { life: Arc::clone(&life), clock: Tokio::new(runtime.handle().clone()) };
        let class = Class::new(policy(self.restart), move |_: &String, _| live(Arc::clone(&life)));
        // It is refused when the process is ending already.
        let task = self.scope.wrap_kept(status.name().to_owned(), &class, pause).ok()?;
        // Of those that were taken out of the configuration, and have come to their end, nobody asks any more.
        self.tasks.retain(|(status, task)| !(status.is_forgotten() && task.is_finished()));
        self.tasks.push((Arc::clone(&status), runtime.spawn(task)));
        Some(status)
    }

    /// What there is to know of them.
    #[must_use]
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Whether one of them has not ended for good.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.tasks.iter().any(|(_, task)| !task.is_finished())
    }

    /// Waits until all have ended for good, and says how each did, by its name.
    ///
    /// # Cancel safety
    /// Not cancel safe: an ending that was heard is lost.
    pub async fn ended(&mut self) -> Vec<(String, Result<(), StreamError>)> {
        let mut endings = Vec::new();
        for (status, task) in self.tasks.drain(..) {
            let ended = match task.await {
                Ok(Ok(ended)) => ended,
                Ok(Err(_)) | Err(_) => Err(StreamError::Aborted),
            };
            endings.push((status.name().to_owned(), ended));
        }
        endings
    }

    /// Aborts those that still run, and waits `within` for them to be gone. What they did not commit comes again.
    pub async fn abort(&self, within: Duration) -> Report {
        self.scope.stop(Tokio::current(), Duration::ZERO, within).await
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|(_, task)| task.abort());
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Fleet").field(&self.board).finish()
    }
}

fn policy(restart: Restart) -> RestartPolicy {
    match restart {
        Restart::Always => RestartPolicy::new(supervise::Restart::Transient)
            .budget(Budget::unlimited())
            .backoff(Backoff::new(FIRST_WAIT, LONGEST_WAIT))
            .reset_after(RECOVERED_AFTER),
        Restart::Never => RestartPolicy::new(supervise::Restart::Temporary),
    }
}

/// What the lives of one stream share.
struct Life {
    status: Arc<Status>,
    restart: Restart,
    has_begun: AtomicBool,
    /// Of the last run.
    turn: AtomicU64,
}

/// One stream, run after run, until it is to end for good; `Err` if it is to be started again after a wait. Orders of an
/// operator end a run and begin another within one life.
async fn live(life: Arc<Life>) -> Result<(), StreamError> {
    let (status, restart) = (&life.status, life.restart);
    let mut over = None;
    while let Some((turn, plan)) = status.next_run(over).await {
        if life.has_begun.swap(true, Ordering::Relaxed) {
            status.note_restart();
        }
        life.turn.store(turn, Ordering::Relaxed);
        tracing::info!(stream = status.name(), "stream starts");
        // Whatever is said of a run that panics, it is this.
        let mut run = Run { status, turn, outcome: Outcome::Passing };
        let result = pipeline::run(&plan, status, turn).await;
        let may_pass = restart == Restart::Always && result.as_ref().is_err_and(StreamError::may_pass);
        let is_again = may_pass && !status.is_to_end(turn);
        run.outcome = match &result {
            Ok(()) => Outcome::Done,
            Err(_) if may_pass => Outcome::Passing,
            Err(_) => Outcome::Failed,
        };
        log_end(status, &result, is_again, restart);
        drop(run);
        if is_again || restart == Restart::Never {
            return result;
        }
        over = Some(turn);
    }
    Ok(())
}

/// A run, which has ended when this is dropped.
struct Run<'a> {
    status: &'a Status,
    turn: u64,
    outcome: Outcome,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.status.note_error("it panicked: see the log".to_owned());
        }
        self.status.end(self.turn, self.outcome);
    }
}

/// The wait before the next life of a stream. An order of the operator's ends it.
struct Pause {
    life: Arc<Life>,
    clock: Tokio,
}

impl Timer for Pause {
    type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

    fn sleep(&self, wait: Duration) -> Self::Sleep {
        let life = Arc::clone(&self.life);
        let (stream, error) = (life.status.name(), life.status.last_error());
        tracing::error!(stream, error, again_in = ?wait, "stream failed, and is started again");
        let sleep = self.clock.sleep(wait);
        Box::pin(async move {
            tokio::select! {
                () = sleep => {}
                () = life.status.told_to_end(life.turn.load(Ordering::Relaxed)) => {}
            }
        })
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }
}

/// Keeps what was wrong, and tells the log of it, unless that is told together with the wait for the next run.
fn log_end(status: &Status, result: &Result<(), StreamError>, is_again: bool, restart: Restart) {
    let (stream, sum) = (status.name(), status.sum());
    let Err(error) = result.as_ref().map_err(StreamError::whole) else {
        let (done, retried, dead_lettered, skipped) = (sum.done, sum.retried, sum.dead_lettered, sum.skipped);
        tracing::info!(stream, done, retried, dead_lettered, skipped, "stream ended");
        return;
    };
    // Whoever runs it alone is told.
    if !is_again && restart == Restart::Always {
        tracing::error!(stream, error, "stream failed");
    }
    status.note_error(error);
}
