//! Handlers that block, on a fixed number of threads of their own.
//!
//! The shards decide what is next, so the threads share one plain queue, and it is never longer than what the shards were
//! permitted to start.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::{Crew, Running, Work};
use crate::panic;

struct Job {
    work: Work,
    returned: Returned,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

/// The threads. Dropped, they end after what they are doing; what they had not begun is dropped.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// # Errors
    /// If the system does not give so many threads.
    pub(crate) fn start<H>(name: &str, threads: usize, handler: H) -> std::io::Result<Self>
    where
        H: Fn(Work) + Send + Sync + 'static,
    {
        let mut pool = Self { shared: Arc::new(Shared::default()), threads: Vec::new() };
        let handler = Arc::new(handler);
        for number in 0..threads {
            let (shared, handler) = (Arc::clone(&pool.shared), Arc::clone(&handler));
            let thread = std::thread::Builder::new().name(format!("{name}-{number}"));
            pool.threads.push(thread.spawn(move || shared.work_off(&*handler))?);
        }
        Ok(pool)
    }

    pub(crate) fn crew(&self) -> ThreadCrew {
        ThreadCrew(Arc::clone(&self.shared))
    }

    /// Ends the threads, and waits for them if they are idle. One that still runs a handler ends after it.
    pub(crate) fn end(mut self, is_idle: bool) {
        self.close();
        if !is_idle {
            return;
        }
        for thread in self.threads.drain(..) {
            // A handler's panic is contained, so a thread ends by returning.
            let _ = thread.join();
        }
    }

    fn close(&self) {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.closed = true;
        let unbegun = std::mem::take(&mut queue.jobs);
        drop(queue);
        drop(unbegun);
        self.shared.work.notify_all();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn work_off(&self, handler: &dyn Fn(Work)) {
        while let Some(Job { work, returned }) = self.next() {
            let span = work.span.clone();
            span.inside(|| panic::contain(|| handler(work)));
            returned.0.store(true, Ordering::Release);
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.closed {
                return None;
            }
            queue.idle += 1;
            queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }

    fn push(&self, job: Job) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.jobs.push_back(job);
        let is_somebody_idle = queue.idle > 0;
        drop(queue);
        if is_somebody_idle {
            self.work.notify_one();
        }
    }
}

/// What hands a shard's work to the threads.
#[derive(Clone)]
pub(crate) struct ThreadCrew(Arc<Shared>);

/// Whether a handler on a thread has returned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Returned(Arc<AtomicBool>);

impl Running for Returned {
    fn abort(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Crew for ThreadCrew {
    type Running = Returned;

    fn run(&mut self, work: Work) -> Option<Returned> {
        let returned = Returned::default();
        self.0.push(Job { work, returned: returned.clone() });
        Some(returned)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}
