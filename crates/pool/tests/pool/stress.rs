//! Cores as threads: nobody shares a connection, nobody is forgotten.

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

use tidegate_pool::{Checkout, Courier, Fate, Host, Lease, Limits, Local, Pool, Slot};

use crate::fake::{Census, Conn, limits};

/// What the threads know of each other.
struct Threads {
    threads: Vec<OnceLock<Thread>>,
    mail: Vec<AtomicBool>,
    clients: AtomicUsize,
}

impl Threads {
    fn wake(&self, core: usize) {
        self.mail[core].store(true, SeqCst);
        if let Some(thread) = self.threads[core].get() {
            thread.unpark();
        }
    }
}

/// Tasks of one core that can go on.
#[derive(Default)]
struct Ready(Mutex<VecDeque<usize>>);

struct TaskWaker(Arc<Ready>, usize);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.0.0.lock().expect("not poisoned").push_back(self.1);
    }
}

/// Work that a host does not do at once.
#[derive(Default)]
struct Later {
    slots: RefCell<VecDeque<Slot<Conn>>>,
    to_clean: RefCell<VecDeque<Lease<Conn>>>,
    couriers: RefCell<VecDeque<Courier<Conn>>>,
}

impl Host<Conn> for Rc<Later> {
    fn connect(&self, slot: Slot<Conn>) {
        self.slots.borrow_mut().push_back(slot);
    }

    fn clean(&self, lease: Lease<Conn>) {
        self.to_clean.borrow_mut().push_back(lease);
    }

    fn send(&self, courier: Courier<Conn>) {
        self.couriers.borrow_mut().push_back(courier);
    }
}

impl Later {
    fn work(&self, census: &Arc<Census>) -> bool {
        let slot = self.slots.borrow_mut().pop_front();
        let lease = self.to_clean.borrow_mut().pop_front();
        let some = slot.is_some() || lease.is_some();
        if let Some(slot) = slot {
            slot.fulfil(Conn::open(census), Instant::now());
        }
        if let Some(lease) = lease {
            lease.release(Fate::Reuse, Instant::now());
        }
        some
    }
}

/// Let the others run.
async fn pass() {
    let mut passed = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut passed, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A checkout that its client may give up after some polls.
async fn patiently(mut checkout: Checkout<Conn>, mut polls: usize) -> Option<Lease<Conn>> {
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

async fn client(local: Local<Conn>, mut random: fastrand::Rng, rounds: usize) {
    for _ in 0..rounds {
        let polls = if random.u8(..8) == 0 { random.usize(..9) } else { usize::MAX };
        let Some(lease) = patiently(local.checkout(Instant::now()), polls).await else {
            continue;
        };
        assert!(!lease.handle.leased.swap(true, SeqCst), "two clients have one connection");
        for _ in 0..random.usize(..4) {
            pass().await;
        }
        assert!(lease.handle.leased.swap(false, SeqCst));
        match random.u8(..40) {
            0 => drop(lease),
            1..=4 => lease.release(Fate::Clean, Instant::now()),
            5 => {
                lease.handle.dead.store(true, SeqCst);
                lease.release(Fate::Close, Instant::now());
            }
            _ => lease.release(Fate::Reuse, Instant::now()),
        }
        for _ in 0..random.usize(..4) {
            pass().await;
        }
    }
}

type Tasks = Vec<Option<Pin<Box<dyn Future<Output = ()>>>>>;

/// One core: runs its clients, reads its mail, and sleeps when there is nothing to do.
struct Core {
    core: usize,
    threads: Arc<Threads>,
    local: Local<Conn>,
    later: Rc<Later>,
    ready: Arc<Ready>,
    tasks: Tasks,
}

impl Core {
    fn run(&mut self, census: &Arc<Census>) {
        while self.threads.clients.load(SeqCst) > 0 {
            let mail = self.threads.mail[self.core].swap(false, SeqCst);
            if mail {
                self.local.process_mail(Instant::now());
            }
            if !(self.run_task() | self.later.work(census) | mail) {
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
                (0..self.threads.mail.len()).for_each(|core| self.threads.wake(core));
            }
        }
        true
    }

    /// All clients of this core wait. If all others sleep as well, a wake-up was lost.
    fn sleep(&self) {
        let began = Instant::now();
        while !self.threads.mail[self.core].load(SeqCst) {
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
        mail: (0..cores).map(|_| AtomicBool::new(false)).collect(),
        clients: AtomicUsize::new(cores * clients),
    });
    let waker = Arc::clone(&threads);
    let pool = Pool::new(cores, limits, seed, Instant::now(), move |core| waker.wake(core));
    let census = Census::new(limits.size);
    thread::scope(|scope| {
        for core in 0..cores {
            let (threads, pool, census) = (&threads, &pool, &census);
            scope.spawn(move || {
                threads.threads[core].set(thread::current()).expect("set once");
                let later = Rc::new(Later::default());
                let local = pool.local(core, Instant::now(), Rc::clone(&later));
                let tasks = (0..clients).map(|at| {
                    let random = fastrand::Rng::with_seed(seed ^ (core * 1000 + at) as u64);
                    let task: Pin<Box<dyn Future<Output = ()>>> = Box::pin(client(local.clone(), random, 4_000));
                    Some(task)
                });
                let tasks: Tasks = tasks.collect();
                let ready = Arc::new(Ready(Mutex::new((0..clients).collect())));
                Core { core, threads: Arc::clone(threads), local, later, ready, tasks }.run(census);
            });
        }
    });
    assert_eq!((census.open(), pool.counts().open), (0, 0), "all went with their cores");
}

fn seed() -> u64 {
    let given = std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| fastrand::u64(..))
}

#[test]
fn a_few_connections_for_many_clients_on_several_threads() {
    stress(seed(), 3, 12, limits(4));
}

#[test]
fn one_connection_for_all_threads() {
    stress(seed(), 4, 3, limits(1));
}

#[test]
fn connections_enough_for_nearly_all() {
    stress(seed(), 2, 8, Limits { overtake_max: Duration::ZERO, ..limits(14) });
}
