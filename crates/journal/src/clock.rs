//! The thread that keeps the journal's time: for producers in line whose deadline passes, for memory that is to be ready
//! before it is needed, and for those who are still to be told that their record is safe.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

use crate::{budget::Budget, stripe::Stripe};

/// How long those who were told may take to tell the others. Only where none of them comes to run does it take longer.
const CALLS_TAKE: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(crate) struct Clock {
    thread: OnceLock<Thread>,
    /// It looks after those who are to be told.
    minds_calls: AtomicBool,
}

impl Clock {
    /// A deadline came that is nearer than the one that it waits for.
    pub(crate) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Some are to be told yet, and the writer has to go on.
    pub(crate) fn mind_calls(&self) {
        if !self.minds_calls.swap(true, Ordering::SeqCst) {
            self.wake();
        }
    }

    pub(crate) fn start(
        self: &Arc<Self>,
        budget: &Arc<Budget>,
        stripes: Box<[Arc<Stripe>]>,
        stopped: Arc<AtomicBool>,
        end: mpsc::Sender<()>,
    ) -> std::io::Result<JoinHandle<()>> {
        let (clock, keeping) = (Arc::clone(self), Arc::clone(budget));
        let handle = thread::Builder::new().name("journal-clock".to_owned()).spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                keeping.prepare();
                let next = keeping.expire(Instant::now());
                clock.sleep(next, &stripes);
            }
            let _ = end.send(());
        })?;
        let _ = self.thread.set(handle.thread().clone());
        budget.set_maker(handle.thread().clone());
        Ok(handle)
    }

    fn sleep(&self, next: Option<Duration>, stripes: &[Arc<Stripe>]) {
        if self.minds_calls.load(Ordering::SeqCst) {
            thread::park_timeout(next.map_or(CALLS_TAKE, |next| next.min(CALLS_TAKE)));
            // Whoever leaves calls behind from here on says so again.
            self.minds_calls.store(false, Ordering::SeqCst);
            stripes.iter().for_each(|stripe| while stripe.acks.tell() {});
            return;
        }
        match next {
            Some(next) => thread::park_timeout(next),
            None => thread::park(),
        }
    }
}
