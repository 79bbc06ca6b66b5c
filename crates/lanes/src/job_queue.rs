//! The queue between shards and the threads of a pool.

use std::collections::VecDeque;
use std::mem;
use std::task::Waker;

use super::sync::{Condvar, Mutex, MutexGuard, lock, wait};

#[derive(Debug)]
pub(crate) struct JobQueue<J> {
    state: Mutex<QueueState<J>>,
    work: Condvar,
    /// The low-water mark: at this many jobs or fewer, saturated shards are woken.
    low: usize,
}

#[derive(Debug)]
struct QueueState<J> {
    jobs: VecDeque<J>,
    idle: usize,
    /// A woken thread has not run yet; it wakes the next one if there are more jobs.
    is_waking: bool,
    is_closed: bool,
    /// Wakers of shards that wait until few jobs are left.
    saturated: Vec<Waker>,
}

impl<J> QueueState<J> {
    /// Whether to wake a thread now. Threads wake each other one by one, so that a shard that appends is not slowed by
    /// wake-ups.
    fn must_wake(&mut self) -> bool {
        let must_wake = !self.jobs.is_empty() && self.idle > 0 && !self.is_waking;
        self.is_waking |= must_wake;
        must_wake
    }
}

impl<J> JobQueue<J> {
    pub(crate) fn new(low: usize) -> Self {
        let (jobs, saturated) = (VecDeque::new(), Vec::new());
        let state = QueueState { jobs, idle: 0, is_waking: false, is_closed: false, saturated };
        Self { state: Mutex::new(state), work: Condvar::new(), low }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<J>> {
        lock(&self.state)
    }

    /// Waits for a job; `None` once the queue is closed.
    pub(crate) fn next(&self) -> Option<J> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                let must_wake = state.must_wake();
                let wakers = if state.jobs.len() > self.low { Vec::new() } else { mem::take(&mut state.saturated) };
                drop(state);
                self.wake(must_wake);
                wakers.into_iter().for_each(Waker::wake);
                return Some(job);
            }
            if state.is_closed {
                return None;
            }
            state.idle += 1;
            state = wait(&self.work, state);
            state.idle -= 1;
            state.is_waking = false;
        }
    }

    pub(crate) fn append(&self, jobs: &mut Vec<J>) {
        let mut state = self.lock();
        state.jobs.extend(jobs.drain(..));
        let must_wake = state.must_wake();
        drop(state);
        self.wake(must_wake);
    }

    fn wake(&self, must_wake: bool) {
        if must_wake {
            self.work.notify_one();
        }
    }

    /// Whether many jobs are queued. If so, `waker` is woken once few are left.
    pub(crate) fn is_saturated(&self, waker: &Waker) -> bool {
        let mut state = self.lock();
        let is_saturated = state.jobs.len() > self.low;
        if is_saturated && !state.saturated.iter().any(|known| known.will_wake(waker)) {
            state.saturated.push(waker.clone());
        }
        is_saturated
    }

    /// Closes the queue and returns the jobs that did not start.
    pub(crate) fn close(&self) -> VecDeque<J> {
        let mut state = self.lock();
        state.is_closed = true;
        let not_started = mem::take(&mut state.jobs);
        drop(state);
        self.work.notify_all();
        not_started
    }
}
