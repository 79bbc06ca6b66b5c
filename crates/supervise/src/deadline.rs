//! A deadline that fires even if all workers of the runtime are blocked.
//!
//! Tokio's timers fire when an idle worker polls the driver. A stop must report by its deadlines even when children block all
//! workers, so a separate thread also fires each deadline, a little later.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::sync::{Mutex, lock};

/// Delay behind the runtime's own timer, which fires first if it can.
const EXTRA_DELAY: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
struct DeadlineState {
    waker: Option<Waker>,
    fired: bool,
    /// The `DeadlineThread` was dropped.
    dropped: bool,
}

#[derive(Debug)]
pub(crate) struct DeadlineThread {
    state: Arc<Mutex<DeadlineState>>,
    thread: Thread,
}

impl DeadlineThread {
    /// `None` if no thread can be started; the runtime's own timer then has to suffice.
    pub(crate) fn start(duration: Duration) -> Option<Self> {
        let deadline = Instant::now().checked_add(duration)?.checked_add(EXTRA_DELAY)?;
        let state = Arc::new(Mutex::new(DeadlineState::default()));
        let shared = Arc::clone(&state);
        let handle =
            thread::Builder::new().name("supervise-timer".to_owned()).spawn(move || run(&shared, deadline)).ok()?;
        Some(Self { state, thread: handle.thread().clone() })
    }

    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.fired {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for DeadlineThread {
    fn drop(&mut self) {
        lock(&self.state).dropped = true;
        self.thread.unpark();
    }
}

fn run(state: &Mutex<DeadlineState>, deadline: Instant) {
    let waker = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut state = lock(state);
        if state.dropped {
            return;
        }
        if left.is_zero() {
            state.fired = true;
            break state.waker.take();
        }
        drop(state);
        thread::park_timeout(left);
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}
