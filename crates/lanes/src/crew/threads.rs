//! Handlers that block, on a fixed number of threads of their own.
//!
//! The shards decide what is next, so the threads share one plain [queue](super::queue), and it is never longer than what the
//! shards were permitted to start. That is a little more than there are threads, so that one that comes free finds its next
//! work there; and until half of that is used up, nobody need look after it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::thread::JoinHandle;

use super::queue::Queue;
use super::{Crew, Running, Work};
use crate::panic;

struct Job {
    work: Work,
    course: Course,
}

/// How many records may be under way, if so many handlers may: as many, or on threads as there are threads, and a few more,
/// which wait in their queue.
pub(crate) fn permits(concurrency: usize, threads: Option<usize>) -> usize {
    match threads {
        Some(threads) if threads <= concurrency => threads + ahead(threads),
        _ => concurrency,
    }
}

/// How many records wait in the queue of so many threads, so that one that comes free need not sleep and be woken.
fn ahead(threads: usize) -> usize {
    (threads / 8).min(AHEAD_MAX)
}

const AHEAD_MAX: usize = 128;

/// The threads. Dropped, they end after what they are doing; what they had not begun is dropped.
pub(crate) struct Pool {
    queue: Arc<Queue<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// # Errors
    /// If the system does not give so many threads.
    pub(crate) fn start<H>(name: &str, threads: usize, handler: H) -> std::io::Result<Self>
    where
        H: Fn(Work) + Send + Sync + 'static,
    {
        let mut pool = Self { queue: Arc::new(Queue::new(ahead(threads) / 2)), threads: Vec::new() };
        let handler = Arc::new(handler);
        for number in 0..threads {
            let (queue, handler) = (Arc::clone(&pool.queue), Arc::clone(&handler));
            let thread = std::thread::Builder::new().name(format!("{name}-{number}"));
            pool.threads.push(thread.spawn(move || work_off(&queue, &*handler))?);
        }
        Ok(pool)
    }

    pub(crate) fn crew(&self) -> ThreadCrew {
        ThreadCrew { queue: Arc::clone(&self.queue), jobs: Vec::new() }
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
        drop(self.queue.close());
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
    }
}

fn work_off(queue: &Queue<Job>, handler: &dyn Fn(Work)) {
    while let Some(Job { work, course }) = queue.next() {
        // Somebody else may have its record already.
        if !course.0.is_given_up.load(Ordering::Acquire) {
            let span = work.span.clone();
            span.inside(|| panic::contain(|| handler(work)));
        }
        course.0.has_returned.store(true, Ordering::Release);
    }
}

/// What hands a shard's work to the threads.
pub(crate) struct ThreadCrew {
    queue: Arc<Queue<Job>>,
    /// Not handed over yet.
    jobs: Vec<Job>,
}

impl ThreadCrew {
    /// For another shard.
    pub(crate) fn another(&self) -> Self {
        Self { queue: Arc::clone(&self.queue), jobs: Vec::new() }
    }
}

/// How far a handler on a thread is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Course(Arc<Marks>);

#[derive(Debug, Default)]
struct Marks {
    has_returned: AtomicBool,
    /// It is not to begin any more.
    is_given_up: AtomicBool,
}

impl Running for Course {
    fn abort(&self) -> bool {
        self.0.has_returned.load(Ordering::Acquire)
    }

    fn give_up(&self) {
        self.0.is_given_up.store(true, Ordering::Release);
    }
}

impl Crew for ThreadCrew {
    type Running = Course;

    fn run(&mut self, work: Work) -> Option<Course> {
        let course = Course::default();
        self.jobs.push(Job { work, course: course.clone() });
        Some(course)
    }

    fn hand_over(&mut self) {
        self.queue.append(&mut self.jobs);
    }

    fn has_enough(&self, waker: &Waker) -> bool {
        self.queue.has_enough(waker)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Mutex, mpsc};
    use std::task::Wake;

    use super::*;
    use crate::completion::{Completion, Ticket};
    use crate::mailbox::Mailbox;
    use crate::record::{Epoch, Lane, Position, Record};
    use crate::shard::Records;
    use crate::span::AttemptSpan;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn work(at: u32) -> Work {
        let record = Record::new(Lane(0), Epoch(1), Position(at.into()), None, None);
        let span = AttemptSpan::open("test", &record, 1);
        let completion = Completion::new(Mailbox::new(), Ticket { flight: at, start: 1 });
        Work { records: Records::One(record), completion, attempt: 1, span }
    }

    /// Threads that say what they have begun, and end it when they are told.
    fn gated(threads: usize) -> (Pool, mpsc::Receiver<u64>, mpsc::Sender<()>) {
        let (begun, begins) = mpsc::channel();
        let (go, gate) = mpsc::channel();
        let gate = Mutex::new(gate);
        let handler = move |work: Work| {
            begun.send(work.records.first().position().0).unwrap();
            gate.lock().unwrap().recv().unwrap();
            work.completion.finish();
        };
        (Pool::start("test", threads, handler).unwrap(), begins, go)
    }

    #[test]
    fn what_is_handed_over_at_once_gets_a_thread_each() {
        let (pool, begins, go) = gated(24);
        let mut crew = pool.crew();
        for round in 0..20 {
            (0..24).for_each(|at| assert!(crew.run(work(24 * round + at)).is_some()));
            crew.hand_over();
            let mut begun: Vec<u64> = begins.iter().take(24).collect();
            begun.sort_unstable();
            assert_eq!(begun, Vec::from_iter(u64::from(24 * round)..u64::from(24 * round + 24)));
            (0..24).for_each(|_| go.send(()).unwrap());
        }
    }

    #[test]
    fn a_shard_may_rest_until_half_of_what_waits_has_begun() {
        let (pool, begins, go) = gated(32);
        let mut crew = pool.crew();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        assert!(!crew.has_enough(&waker), "there is nothing to do");
        (0..36).for_each(|at| assert!(crew.run(work(at)).is_some()));
        crew.hand_over();
        assert_eq!(begins.iter().take(32).count(), 32);
        assert!(crew.has_enough(&waker) && crew.has_enough(&waker), "four wait");
        go.send(()).unwrap();
        assert_eq!(begins.recv(), Ok(32));
        assert_eq!(woken.0.load(Ordering::SeqCst), 0, "three wait");
        go.send(()).unwrap();
        assert_eq!(begins.recv(), Ok(33));
        assert_eq!(woken.0.load(Ordering::SeqCst), 1, "once, though it was said twice");
        assert!(!crew.has_enough(&waker), "two wait");
        (0..34).for_each(|_| go.send(()).unwrap());
        assert_eq!(begins.iter().take(2).collect::<Vec<_>>(), [34, 35]);
    }

    #[test]
    fn more_is_permitted_than_threads_can_do_only_if_all_of_them_may() {
        assert_eq!(permits(10_000, None), 10_000);
        assert_eq!(permits(31, Some(32)), 31);
        assert_eq!(permits(32, Some(32)), 36);
        assert_eq!(permits(10_000, Some(32)), 36);
        assert_eq!(permits(10_000, Some(4000)), 4128);
    }
}
