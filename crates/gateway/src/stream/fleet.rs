//! All streams of a process, on threads of their own: started, started again, changed, stopped.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::board::Board;
use super::door::Doors;
use super::error::StreamError;
use super::pipeline;
use super::plan::Plan;
use super::status::{Outcome, Status};
use crate::config::Stream;

/// What happens to a stream that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// If it failed for a reason that may pass, it is started again, after a wait that doubles. Else it waits for an operator.
    Always,
    /// Whoever runs it shall know.
    Never,
}

type Ending = JoinHandle<Result<(), StreamError>>;

/// Streams that run. Dropped, it aborts them.
pub struct Fleet {
    board: Board,
    restart: Restart,
    threads: usize,
    tasks: Vec<(Arc<Status>, Ending)>,
    /// Made when there is a stream.
    runtime: Option<Runtime>,
}

const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Fleet {
    /// Starts these streams, on so many threads.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn start(streams: &[Stream], doors: &Doors, restart: Restart, threads: usize) -> std::io::Result<Self> {
        let mut fleet = Self { board: Board::default(), restart, threads, tasks: Vec::new(), runtime: None };
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
        let task = runtime.spawn(keep_running(Arc::clone(&status), self.restart));
        self.tasks.push((Arc::clone(&status), task));
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
            let ended = task.await.unwrap_or(Err(StreamError::Aborted));
            endings.push((status.name().to_owned(), ended));
        }
        endings
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

/// One stream, run after run, until it is to end for good.
async fn keep_running(status: Arc<Status>, restart: Restart) -> Result<(), StreamError> {
    let (mut wait, mut over, mut result) = (FIRST_WAIT, None, Ok(()));
    let mut is_first = true;
    while let Some((turn, plan)) = status.next_run(over).await {
        if !std::mem::replace(&mut is_first, false) {
            status.note_restart();
        }
        tracing::info!(stream = status.name(), "stream starts");
        let before = status.sum().done;
        result = pipeline::run(&plan, &status, turn).await;
        if status.sum().done > before {
            wait = FIRST_WAIT;
        }
        let may_pass = restart == Restart::Always && result.as_ref().is_err_and(StreamError::may_pass);
        let again_in = (may_pass && !status.is_to_end(turn)).then_some(wait);
        log_end(&status, &result, again_in, restart);
        status.end(
            turn,
            match &result {
                Ok(()) => Outcome::Done,
                Err(_) if may_pass => Outcome::Passing,
                Err(_) => Outcome::Failed,
            },
        );
        if restart == Restart::Never {
            return result;
        }
        over = Some(turn);
        if let Some(this_time) = again_in {
            let was_told = tokio::time::timeout(this_time, status.told_to_end(turn)).await.is_ok();
            wait = if was_told { FIRST_WAIT } else { (wait * 2).min(LONGEST_WAIT) };
            over = None;
        }
    }
    result
}

/// Keeps what was wrong, and tells the log of it.
fn log_end(status: &Status, result: &Result<(), StreamError>, again_in: Option<Duration>, restart: Restart) {
    let (stream, sum) = (status.name(), status.sum());
    let Err(error) = result.as_ref().map_err(StreamError::whole) else {
        let (done, retried, dead_lettered, skipped) = (sum.done, sum.retried, sum.dead_lettered, sum.skipped);
        tracing::info!(stream, done, retried, dead_lettered, skipped, "stream ended");
        return;
    };
    match again_in {
        Some(wait) => tracing::error!(stream, error, again_in = ?wait, "stream failed, and is started again"),
        None if restart == Restart::Always => tracing::error!(stream, error, "stream failed"),
        // Whoever runs it is told.
        None => {}
    }
    status.note_error(error);
}
