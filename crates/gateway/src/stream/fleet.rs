//! All streams of a process, on threads of their own: started, started again, stopped.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::board::{Board, State, Status};
use super::door::Doors;
use super::error::StreamError;
use super::pipeline;
use crate::config::Stream;

/// What happens to a stream that fails for a reason that may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// It is started again, after a wait that doubles.
    Always,
    /// Whoever runs it shall know.
    Never,
}

/// Streams that run. Dropped, it aborts them.
pub struct Fleet {
    board: Board,
    tasks: Vec<JoinHandle<Result<(), StreamError>>>,
    runtime: Option<Runtime>,
}

const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Fleet {
    /// Starts all streams on so many threads.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn start(streams: &[Stream], doors: &Doors, restart: Restart, threads: usize) -> std::io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(threads.max(1)).thread_name("streams").enable_all().build()?;
        let board = Board::new(streams);
        let start = |(stream, status): (&Stream, &Arc<Status>)| {
            runtime.spawn(keep_running(stream.clone(), doors.clone(), Arc::clone(status), restart))
        };
        let tasks = streams.iter().zip(board.statuses()).map(start).collect();
        Ok(Self { board, tasks, runtime: Some(runtime) })
    }

    /// What there is to know of them.
    #[must_use]
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Whether one of them has not ended.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.tasks.iter().any(|task| !task.is_finished())
    }

    /// Waits until all have ended, and says how each did, by its name.
    ///
    /// # Cancel safety
    /// Not cancel safe: an ending that was heard is lost.
    pub async fn ended(&mut self) -> Vec<(String, Result<(), StreamError>)> {
        let mut endings = Vec::new();
        for (task, status) in self.tasks.drain(..).zip(self.board.statuses()) {
            let ended = task.await.unwrap_or(Err(StreamError::Aborted));
            endings.push((status.snapshot().name, ended));
        }
        endings
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
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

async fn keep_running(stream: Stream, doors: Doors, status: Arc<Status>, restart: Restart) -> Result<(), StreamError> {
    let name = stream.keys.name.as_str();
    let mut wait = FIRST_WAIT;
    loop {
        tracing::info!(stream = name, "stream starts");
        let before = status.sum().done;
        let result = pipeline::run(&stream, &doors, &status).await;
        let Err(error) = result else {
            status.end(State::Ended);
            log_end(name, &status);
            return Ok(());
        };
        status.note_error(error.whole());
        let again = restart == Restart::Always && error.may_pass() && !status.is_stopping();
        status.end(if again { State::Waiting } else { State::Failed });
        if !again {
            if restart == Restart::Always {
                tracing::error!(stream = name, error = error.whole(), "stream failed");
            }
            return Err(error);
        }
        wait = if status.sum().done > before { FIRST_WAIT } else { wait };
        tracing::error!(stream = name, error = error.whole(), again_in = ?wait, "stream failed, and is started again");
        if stopped_within(&status, wait).await {
            status.end(State::Ended);
            return Ok(());
        }
        wait = (wait * 2).min(LONGEST_WAIT);
        status.restarted();
    }
}

/// Looks ten times a second: a stream that waits has nothing else to do.
async fn stopped_within(status: &Status, wait: Duration) -> bool {
    let until = tokio::time::Instant::now() + wait;
    while tokio::time::Instant::now() < until {
        if status.is_stopping() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    status.is_stopping()
}

fn log_end(stream: &str, status: &Status) {
    let sum = status.sum();
    let (done, retried, dead_lettered, skipped) = (sum.done, sum.retried, sum.dead_lettered, sum.skipped);
    tracing::info!(stream, done, retried, dead_lettered, skipped, "stream ended");
}
