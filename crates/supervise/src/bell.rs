//! A deadline that rings though nobody of the runtime can look at the clock.
//!
//! Tokio's timers ring when a worker that has nothing else to do looks at them. A stop is for the day when children
//! block all workers, and has to say so by its deadlines: so these ring from a thread of their own as well, a little
//! later.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::sync::{Mutex, lock};

/// The runtime comes first if it can.
const LATER: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
struct State {
    waker: Option<Waker>,
    rung: bool,
    /// Nobody listens any more.
    over: bool,
}

#[derive(Debug)]
pub(crate) struct Bell {
    state: Arc<Mutex<State>>,
    thread: Thread,
}

impl Bell {
    /// `None`: there is no thread to be had, and the runtime's own clock has to do.
    pub(crate) fn hang(duration: Duration) -> Option<Self> {
        let until = Instant::now().checked_add(duration)?.checked_add(LATER)?;
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let keeper =
            thread::Builder::new().name("supervise-bell".to_owned()).spawn(move || ring(&shared, until)).ok()?;
        Some(Self { state, thread: keeper.thread().clone() })
    }

    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.rung {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        lock(&self.state).over = true;
        self.thread.unpark();
    }
}

fn ring(state: &Mutex<State>, until: Instant) {
    let waker = loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut state = lock(state);
        if state.over {
            return;
        }
        if left.is_zero() {
            state.rung = true;
            break state.waker.take();
        }
        drop(state);
        thread::park_timeout(left);
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}
