//! The timer thread: expires deadlines of waiting producers, allocates the spare chunk before it is needed, and wakes
//! waiters that the chain of wake-ups has not reached.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

use crate::memory_budget::MemoryBudget;

/// How long the woken waiters may take to wake the next ones. The timer thread wakes the rest afterwards.
const WAKE_DELAY: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(crate) struct WakeTimer {
    thread: OnceLock<Thread>,
    /// The timer thread has waiters to wake.
    has_wakes: AtomicBool,
}

impl WakeTimer {
    /// Wakes the timer thread because a deadline is nearer than its current one.
    pub(crate) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Hands the remaining wake-ups to the timer thread, so that the writer can continue.
    pub(crate) fn request_wakes(&self) {
        if !self.has_wakes.swap(true, Ordering::SeqCst) {
            self.wake();
        }
    }

    pub(crate) fn start(
        self: &Arc<Self>,
        budget: &Arc<MemoryBudget>,
        wake_all: impl Fn() + Send + 'static,
        stopped: Arc<AtomicBool>,
        end: mpsc::Sender<()>,
    ) -> std::io::Result<JoinHandle<()>> {
        let (clock, expiring) = (Arc::clone(self), Arc::clone(budget));
        let handle = thread::Builder::new().name("journal-clock".to_owned()).spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                expiring.prepare_spare();
                let next = expiring.expire(Instant::now());
                clock.sleep(next, &wake_all);
            }
            let _ = end.send(());
        })?;
        let _ = self.thread.set(handle.thread().clone());
        budget.set_preparer(handle.thread().clone());
        Ok(handle)
    }

    fn sleep(&self, next: Option<Duration>, wake_all: &impl Fn()) {
        if self.has_wakes.load(Ordering::SeqCst) {
            thread::park_timeout(next.map_or(WAKE_DELAY, |next| next.min(WAKE_DELAY)));
            // Requests from here on set the flag again.
            self.has_wakes.store(false, Ordering::SeqCst);
            wake_all();
            return;
        }
        match next {
            Some(next) => thread::park_timeout(next),
            None => thread::park(),
        }
    }
}
