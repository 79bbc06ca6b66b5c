//! What threads take their work from: one plain queue, in which shards put what they were permitted to start.

use std::collections::VecDeque;
use std::mem;
use std::task::Waker;

use super::sync::{Condvar, Mutex, MutexGuard, lock, wait};

#[derive(Debug)]
pub(super) struct Queue<J> {
    state: Mutex<State<J>>,
    work: Condvar,
    /// Few jobs.
    low: usize,
}

#[derive(Debug)]
struct State<J> {
    jobs: VecDeque<J>,
    idle: usize,
    /// One of them was woken, and will wake another if there is more to do.
    is_waking: bool,
    is_closed: bool,
    /// Of shards that rest until few jobs are left.
    resting: Vec<Waker>,
}

impl<J> State<J> {
    /// Whether a thread is to be woken now. One after the other: whoever gives out work is not held up by those who take it.
    fn must_wake(&mut self) -> bool {
        let must_wake = !self.jobs.is_empty() && self.idle > 0 && !self.is_waking;
        self.is_waking |= must_wake;
        must_wake
    }
}

impl<J> Queue<J> {
    pub(super) fn new(low: usize) -> Self {
        let (jobs, resting) = (VecDeque::new(), Vec::new());
        let state = State { jobs, idle: 0, is_waking: false, is_closed: false, resting };
        Self { state: Mutex::new(state), work: Condvar::new(), low }
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        lock(&self.state)
    }

    /// Waits for a job; nothing, when it is closed.
    pub(super) fn next(&self) -> Option<J> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                let must_wake = state.must_wake();
                let roused = if state.jobs.len() > self.low { Vec::new() } else { mem::take(&mut state.resting) };
                drop(state);
                self.wake(must_wake);
                roused.into_iter().for_each(Waker::wake);
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

    pub(super) fn append(&self, jobs: &mut Vec<J>) {
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

    /// Whether many jobs wait. If so, `waker` is woken when they are few.
    pub(super) fn has_enough(&self, waker: &Waker) -> bool {
        let mut state = self.lock();
        let has_enough = state.jobs.len() > self.low;
        if has_enough && !state.resting.iter().any(|known| known.will_wake(waker)) {
            state.resting.push(waker.clone());
        }
        has_enough
    }

    /// Sends everybody away, and returns what nobody had begun.
    pub(super) fn close(&self) -> VecDeque<J> {
        let mut state = self.lock();
        state.is_closed = true;
        let unbegun = mem::take(&mut state.jobs);
        drop(state);
        self.work.notify_all();
        unbegun
    }
}
