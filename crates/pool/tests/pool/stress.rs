//! Cores as threads: no two clients share a connection, and every client is served.

use std::{
    cell::RefCell,
    collections::VecDeque,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use tidegate_pool::{
    Checkout, Lease, Limits, LocalPool, ManageConnection, PendingConnect, Pool, ReleaseAction, Transfer,
};

use crate::fake::{Conn, OpenCounter, limits};

/// Shared state of the threads.
struct Threads {
    threads: Vec<OnceLock<Thread>>,
    woken: Vec<AtomicBool>,
    clients: AtomicUsize,
}

impl Threads {
    fn wake(&self, core: usize) {
        self.woken[core].store(true, SeqCst);
        if let Some(thread) = self.threads[core].get() {
            thread.unpark();
        }
    }
}

/// Tasks of one core that are ready to run.
#[derive(Default)]
struct Ready(Mutex<VecDeque<usize>>);

struct TaskWaker(Arc<Ready>, usize);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.0.0.lock().expect("not poisoned").push_back(self.1);
    }
}

/// Manager calls that the core handles later.
#[derive(Default)]
struct DeferredCalls {
    pending: RefCell<VecDeque<PendingConnect<Conn>>>,
    to_clean: RefCell<VecDeque<Lease<Conn>>>,
    transfers: RefCell<VecDeque<Transfer<Conn>>>,
}

impl ManageConnection<Conn> for Rc<DeferredCalls> {
    fn connect(&self, pending: PendingConnect<Conn>) {
        self.pending.borrow_mut().push_back(pending);
    }

    fn clean(&self, lease: Lease<Conn>) {
        self.to_clean.borrow_mut().push_back(lease);
    }

    fn run_transfer(&self, transfer: Transfer<Conn>) {
        self.transfers.borrow_mut().push_back(transfer);
    }
}

impl DeferredCalls {
    fn work(&self, counter: &Arc<OpenCounter>) -> bool {
        let pending = self.pending.borrow_mut().pop_front();
        let lease = self.to_clean.borrow_mut().pop_front();
        let some = pending.is_some() || lease.is_some();
        if let Some(pending) = pending {
            pending.succeed(Conn::open(counter), Instant::now());
        }
        if let Some(lease) = lease {
            lease.release(ReleaseAction::Reuse, Instant::now());
        }
        some
    }
}

/// Yields to the other tasks.
async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Polls a checkout; gives up after `polls` polls.
async fn poll_at_most(mut checkout: Checkout<Conn>, mut polls: usize) -> Option<Lease<Conn>> {
    std::future::poll_fn(|cx| match Pin::new(&mut checkout).poll(cx) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome.expect("connects do not fail here"))),
        Poll::Pending if polls == 0 => Poll::Ready(None),
        Poll::Pending => {
            polls -= 1;
            if polls < 10 {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        }
    })
    .await
}

async fn client(local: LocalPool<Conn>, mut random: fastrand::Rng, rounds: usize) {
    for _ in 0..rounds {
        let polls = if random.u8(..8) == 0 { random.usize(..9) } else { usize::MAX };
        let Some(lease) = poll_at_most(local.checkout(Instant::now()), polls).await else {
            continue;
        };
        assert!(!lease.handle.leased.swap(true, SeqCst), "two clients hold one connection");
        for _ in 0..random.usize(..4) {
            yield_now().await;
        }
        assert!(lease.handle.leased.swap(false, SeqCst));
        match random.u8(..40) {
            0 => drop(lease),
            1..=4 => lease.release(ReleaseAction::Clean, Instant::now()),
            5 => {
                lease.handle.dead.store(true, SeqCst);
                lease.release(ReleaseAction::Close, Instant::now());
            }
            _ => lease.release(ReleaseAction::Reuse, Instant::now()),
        }
        for _ in 0..random.usize(..4) {
            yield_now().await;
        }
    }
}

type Tasks = Vec<Option<Pin<Box<dyn Future<Output = ()>>>>>;

/// A core: runs its clients, reads its messages, and sleeps without work.
struct Core {
    core: usize,
    threads: Arc<Threads>,
    local: LocalPool<Conn>,
    deferred: Rc<DeferredCalls>,
    ready: Arc<Ready>,
    tasks: Tasks,
}

impl Core {
    fn run(&mut self, counter: &Arc<OpenCounter>) {
        while self.threads.clients.load(SeqCst) > 0 {
            let woken = self.threads.woken[self.core].swap(false, SeqCst);
            if woken {
                self.local.process_messages(Instant::now());
            }
            if !(self.run_task() | self.deferred.work(counter) | woken) {
                self.sleep();
            }
        }
    }

    fn run_task(&mut self) -> bool {
        let Some(at) = self.ready.0.lock().expect("not poisoned").pop_front() else {
            return false;
        };
        let waker = Waker::from(Arc::new(TaskWaker(Arc::clone(&self.ready), at)));
        let Some(task) = self.tasks[at].as_mut() else {
            return true;
        };
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            self.tasks[at] = None;
            if self.threads.clients.fetch_sub(1, SeqCst) == 1 {
                (0..self.threads.woken.len()).for_each(|core| self.threads.wake(core));
            }
        }
        true
    }

    /// All clients of this core wait. If all other cores sleep as well, a wake-up was lost.
    fn sleep(&self) {
        let began = Instant::now();
        while !self.threads.woken[self.core].load(SeqCst) {
            thread::park_timeout(Duration::from_secs(30));
            let counts = self.local.pool().counts();
            assert!(began.elapsed() < Duration::from_secs(30), "a wake-up was lost: {counts:?}");
        }
    }
}

fn stress(seed: u64, cores: usize, clients: usize, limits: Limits) {
    println!("seed {seed}, {cores} cores, {clients} clients, size {}", limits.size);
    let threads = Arc::new(Threads {
        threads: (0..cores).map(|_| OnceLock::new()).collect(),
        woken: (0..cores).map(|_| AtomicBool::new(false)).collect(),
        clients: AtomicUsize::new(cores * clients),
    });
    let waker = Arc::clone(&threads);
    let pool = Pool::new(cores, limits, seed, Instant::now(), move |core| waker.wake(core));
    let counter = OpenCounter::new(limits.size);
    thread::scope(|scope| {
        for core in 0..cores {
            let (threads, pool, counter) = (&threads, &pool, &counter);
            scope.spawn(move || {
                threads.threads[core].set(thread::current()).expect("set once");
                let deferred = Rc::new(DeferredCalls::default());
                let local = LocalPool::new(pool, core, Instant::now(), Rc::clone(&deferred));
                let tasks = (0..clients).map(|at| {
                    let random = fastrand::Rng::with_seed(seed ^ (core * 1000 + at) as u64);
                    let task: Pin<Box<dyn Future<Output = ()>>> = Box::pin(client(local.clone(), random, 4_000));
                    Some(task)
                });
                let tasks: Tasks = tasks.collect();
                let ready = Arc::new(Ready(Mutex::new((0..clients).collect())));
                Core { core, threads: Arc::clone(threads), local, deferred, ready, tasks }.run(counter);
            });
        }
    });
    assert_eq!((counter.open(), pool.counts().open), (0, 0), "connections left after their cores");
}

fn seed() -> u64 {
    let given = std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| fastrand::u64(..))
}

#[test]
fn few_connections_for_many_clients() {
    stress(seed(), 3, 12, limits(4));
}

#[test]
fn one_connection_for_all_threads() {
    stress(seed(), 4, 3, limits(1));
}

#[test]
fn connections_for_nearly_all_clients() {
    stress(seed(), 2, 8, Limits { overtake_max: Duration::ZERO, ..limits(14) });
}
