//! Runs blocking handlers on a fixed number of threads.
//!
//! The shards decide the order, so the threads share one plain [queue](crate::job_queue), bounded by the permits of the
//! limiter. There are slightly more permits than threads, so that a free thread finds its next job without sleeping.
//! Shards refill the queue once half of that surplus is used.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::thread::JoinHandle;

use crate::executor::{HandlerCall, HandlerExecutor, RunningHandler};
use crate::job_queue::JobQueue;
use crate::panic;

struct Job {
    call: HandlerCall,
    state: JobState,
}

/// The number of permits for a concurrency limit: with threads, at most the threads plus a short queue.
pub(crate) fn permits_for(concurrency: usize, threads: Option<usize>) -> usize {
    match threads {
        Some(threads) if threads <= concurrency => threads + queue_depth(threads),
        _ => concurrency,
    }
}

/// The number of jobs that wait in the queue, so that a free thread does not sleep and wake.
fn queue_depth(threads: usize) -> usize {
    (threads / 8).min(QUEUE_DEPTH_MAX)
}

const QUEUE_DEPTH_MAX: usize = 128;

/// The pool. Dropping it ends each thread after its current job and drops queued jobs.
pub(crate) struct ThreadPool {
    queue: Arc<JobQueue<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl ThreadPool {
    /// # Errors
    /// Returns an error if the system refuses a thread.
    pub(crate) fn start<H>(name: &str, threads: usize, handler: H) -> std::io::Result<Self>
    where
        H: Fn(HandlerCall) + Send + Sync + 'static,
    {
        let mut pool = Self { queue: Arc::new(JobQueue::new(queue_depth(threads) / 2)), threads: Vec::new() };
        let handler = Arc::new(handler);
        for number in 0..threads {
            let (queue, handler) = (Arc::clone(&pool.queue), Arc::clone(&handler));
            let thread = std::thread::Builder::new().name(format!("{name}-{number}"));
            pool.threads.push(thread.spawn(move || run_jobs(&queue, &*handler))?);
        }
        Ok(pool)
    }

    pub(crate) fn executor(&self) -> ThreadExecutor {
        ThreadExecutor { queue: Arc::clone(&self.queue), jobs: Vec::new() }
    }

    /// Ends the threads. Joins them if they are idle; a busy thread ends after its handler.
    pub(crate) fn shut_down(mut self, is_idle: bool) {
        self.close();
        if !is_idle {
            return;
        }
        for thread in self.threads.drain(..) {
            // Handlers' panics are contained, so a thread ends by returning.
            let _ = thread.join();
        }
    }

    fn close(&self) {
        drop(self.queue.close());
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.close();
    }
}

fn run_jobs(queue: &JobQueue<Job>, handler: &dyn Fn(HandlerCall)) {
    while let Some(Job { call, state }) = queue.next() {
        // The record may already be assigned to another consumer.
        if !state.0.is_cancelled.load(Ordering::Acquire) {
            let span = call.span.clone();
            span.in_scope(|| panic::contain(|| handler(call)));
        }
        state.0.has_returned.store(true, Ordering::Release);
    }
}

/// Queues a shard's calls for the pool.
pub(crate) struct ThreadExecutor {
    queue: Arc<JobQueue<Job>>,
    /// Not yet appended to the queue.
    jobs: Vec<Job>,
}

impl ThreadExecutor {
    /// The executor of another shard.
    pub(crate) fn for_shard(&self) -> Self {
        Self { queue: Arc::clone(&self.queue), jobs: Vec::new() }
    }
}

/// The progress of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobState(Arc<JobFlags>);

#[derive(Debug, Default)]
struct JobFlags {
    has_returned: AtomicBool,
    /// The job must not start any more.
    is_cancelled: AtomicBool,
}

impl RunningHandler for JobState {
    fn abort(&self) -> bool {
        self.0.has_returned.load(Ordering::Acquire)
    }

    fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Release);
    }
}

impl HandlerExecutor for ThreadExecutor {
    type Running = JobState;

    fn run(&mut self, call: HandlerCall) -> Option<JobState> {
        let state = JobState::default();
        self.jobs.push(Job { call, state: state.clone() });
        Some(state)
    }

    fn flush(&mut self) {
        self.queue.append(&mut self.jobs);
    }

    fn is_saturated(&self, waker: &Waker) -> bool {
        self.queue.is_saturated(waker)
    }
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPool").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Mutex, mpsc};
    use std::task::Wake;

    use super::*;
    use crate::completion::Completion;
    use crate::mailbox::ShardMailbox;
    use crate::messages::ExecutionId;
    use crate::record::{Epoch, HandlerRecords, Lane, Position, Record};
    use crate::span::AttemptSpan;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn call(at: u32) -> HandlerCall {
        let record = Record::new(Lane(0), Epoch(1), Position(at.into()), None, None);
        let span = AttemptSpan::open("test", &record, 1);
        let completion = Completion::new(ShardMailbox::new(), ExecutionId { slot: at, generation: 1 });
        HandlerCall { records: HandlerRecords::One(record), completion, attempt: 1, span }
    }

    /// A pool whose handler reports its start and then waits for a signal.
    fn gated(threads: usize) -> (ThreadPool, mpsc::Receiver<u64>, mpsc::Sender<()>) {
        let (begun, begins) = mpsc::channel();
        let (go, gate) = mpsc::channel();
        let gate = Mutex::new(gate);
        let handler = move |call: HandlerCall| {
            begun.send(call.records.first().position().0).unwrap();
            gate.lock().unwrap().recv().unwrap();
            call.completion.finish();
        };
        (ThreadPool::start("test", threads, handler).unwrap(), begins, go)
    }

    #[test]
    fn jobs_flushed_together_get_a_thread_each() {
        let (pool, begins, go) = gated(24);
        let mut executor = pool.executor();
        for round in 0..20 {
            (0..24).for_each(|at| assert!(executor.run(call(24 * round + at)).is_some()));
            executor.flush();
            let mut begun: Vec<u64> = begins.iter().take(24).collect();
            begun.sort_unstable();
            assert_eq!(begun, Vec::from_iter(u64::from(24 * round)..u64::from(24 * round + 24)));
            (0..24).for_each(|_| go.send(()).unwrap());
        }
    }

    #[test]
    fn shard_waits_until_half_of_the_queue_has_started() {
        let (pool, begins, go) = gated(32);
        let mut executor = pool.executor();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        assert!(!executor.is_saturated(&waker), "queue is empty");
        (0..36).for_each(|at| assert!(executor.run(call(at)).is_some()));
        executor.flush();
        assert_eq!(begins.iter().take(32).count(), 32);
        assert!(executor.is_saturated(&waker) && executor.is_saturated(&waker), "four jobs are queued");
        go.send(()).unwrap();
        assert_eq!(begins.recv(), Ok(32));
        assert_eq!(woken.0.load(Ordering::SeqCst), 0, "three jobs are queued");
        go.send(()).unwrap();
        assert_eq!(begins.recv(), Ok(33));
        assert_eq!(woken.0.load(Ordering::SeqCst), 1, "woken once for two calls");
        assert!(!executor.is_saturated(&waker), "two jobs are queued");
        (0..34).for_each(|_| go.send(()).unwrap());
        assert_eq!(begins.iter().take(2).collect::<Vec<_>>(), [34, 35]);
    }

    #[test]
    fn surplus_permits_only_if_all_threads_may_run() {
        assert_eq!(permits_for(10_000, None), 10_000);
        assert_eq!(permits_for(31, Some(32)), 31);
        assert_eq!(permits_for(32, Some(32)), 36);
        assert_eq!(permits_for(10_000, Some(32)), 36);
        assert_eq!(permits_for(10_000, Some(4000)), 4128);
    }
}
