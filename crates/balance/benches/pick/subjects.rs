//! Ways to choose one of N, measured in nanoseconds of one thread per pick.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, RwLock};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tidegate_balance::{
    Balancer, BalancerSettings, EndpointSpec, ExactRoundRobin, InitialState, LeastRequest, PeakEwma, Pick, Picker,
    Policy, RingHash, RoundRobin, WeightedRoundRobin,
};
use tidegate_figures::median;
use tower::Service;
use tower::balance::p2c::Balance;
use tower::buffer::Buffer;
use tower::discover::ServiceList;
use tower::load::{CompleteOnResponse, PendingRequests};
use tower::util::BoxService;

/// Picks in a slice.
const SLICE: u32 = 256;

#[derive(Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) backends: usize,
    pub(crate) threads: usize,
    pub(crate) time: Duration,
    /// Another thread replaces the set every millisecond.
    pub(crate) updated: bool,
}

pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) measure: fn(Cell) -> Measured,
}

/// Nanoseconds per pick of one thread: the mean over the threads.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    /// NaN if the threads did not run at the same time.
    pub(crate) ns: f64,
    /// The same pickers, one thread at a time.
    pub(crate) alone_ns: f64,
}

pub(crate) const PICK_WITH: &str = "pick_with, own picker";
pub(crate) const BY_THREAD: &str = "pick_with, the thread's";
pub(crate) const ARC_SWAP: &str = "ArcSwap + shared cursor";

/// A round robin over a constant list with a cursor per thread: the limit of the machine.
pub(crate) const FLOOR: &str = "a list and a cursor of one's own";

pub(crate) const SUBJECTS: [Subject; 13] = [
    Subject { name: FLOOR, measure: floor },
    Subject { name: PICK_WITH, measure: |cell| picker(cell, Arc::new(RoundRobin)) },
    Subject { name: BY_THREAD, measure: by_thread },
    Subject { name: "pick (lease)", measure: lease },
    Subject { name: "pick_with, exact", measure: |cell| picker(cell, Arc::new(ExactRoundRobin)) },
    Subject { name: "pick_with, weighted", measure: |cell| picker(cell, Arc::new(WeightedRoundRobin)) },
    Subject { name: "pick_with, least request", measure: |cell| picker(cell, Arc::new(LeastRequest::default())) },
    Subject { name: "pick_with, peak EWMA", measure: |cell| picker(cell, Arc::new(PeakEwma)) },
    Subject { name: "pick_with, ring hash", measure: |cell| picker(cell, Arc::new(RingHash::default())) },
    Subject { name: ARC_SWAP, measure: arc_swap },
    Subject { name: "ArcSwap + shared cursor, owned", measure: arc_swap_owned },
    Subject { name: "RwLock<Vec> + shared cursor", measure: rw_lock },
    Subject { name: "tower p2c, one per thread", measure: tower_per_thread },
];

/// A backend as large as an endpoint with a handle.
#[derive(Debug)]
struct Backend(usize);

/// Runs the work on the threads of the cell, first one at a time and then together, with an updater if the cell has one.
///
/// Both use the same processors: on a virtual machine, one processor can be twice as fast as another while a different guest
/// uses the other half of its core.
fn on_threads<W: FnMut() -> usize>(cell: Cell, update: impl Fn() + Sync, make: impl Fn(u64) -> W + Sync) -> Measured {
    let (start, stop) = (Barrier::new(cell.threads), AtomicBool::new(false));
    let progress: Vec<Progress> = (0..cell.threads).map(|_| Progress::default()).collect();
    thread::scope(|scope| {
        if cell.updated {
            let (stop, update) = (&stop, &update);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    update();
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let run = |thread: usize| {
            let (start, make, progress) = (&start, &make, &progress);
            scope.spawn(move || {
                stay_on(thread);
                let mut work = make(thread as u64);
                let alone = (cell.threads > 1).then(|| in_turn(cell, thread, start, &mut work));
                start.wait();
                let together = timed(cell.time, thread, progress, &mut work);
                (alone.unwrap_or(together), together)
            })
        };
        let running: Vec<_> = (0..cell.threads).map(run).collect();
        let measured = running.into_iter().map(|thread| thread.join().expect("a bench thread does not panic"));
        let (alone, together): (Vec<f64>, Vec<f64>) = measured.unzip();
        stop.store(true, Ordering::Relaxed);
        let mean = |ns: Vec<f64>| ns.iter().sum::<f64>() / cell.threads as f64;
        Measured { ns: mean(together), alone_ns: mean(alone) }
    })
}

/// Measures one thread at a time.
fn in_turn(cell: Cell, thread: usize, start: &Barrier, pick: &mut impl FnMut() -> usize) -> f64 {
    let mut ns = f64::NAN;
    for turn in 0..cell.threads {
        start.wait();
        if turn == thread {
            ns = timed(cell.time, 0, &[Progress::default()], pick);
        }
    }
    ns
}

/// Pins each thread to its own processor. Two threads on one processor would run in turn, and the scheduler can leave them there
/// while other work runs on the second one. Figures of two processors are not comparable.
fn stay_on(thread: usize) {
    #[cfg(target_os = "linux")]
    if let Ok(allowed) = rustix::thread::sched_getaffinity(None) {
        let mut processors = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor));
        let mut own = rustix::thread::CpuSet::new();
        processors.nth(thread).into_iter().for_each(|processor| own.set(processor));
        // If pinning fails, the threads seldom run together, and the figure is missing.
        let _ = rustix::thread::sched_setaffinity(None, &own);
    }
}

/// Number of slices of a thread, and of its batches that count; on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Progress(AtomicUsize, AtomicUsize);

/// Slices in a batch.
const BATCH: usize = 8;
/// Minimum number of batches of a measurement.
const BATCHES_MIN: usize = 20;
/// Maximum duration of a measurement, as a multiple of its time.
const TIME_FACTOR_MAX: u32 = 10;

/// The median over batches that are short enough to run mostly uninterrupted.
///
/// With several threads, only batches count during which all threads ran. On a busy machine two threads mostly run in turn on
/// one core. Nothing is contended then, and every design seems to scale.
fn timed(time: Duration, own: usize, progress: &[Progress], pick: &mut impl FnMut() -> usize) -> f64 {
    let done = |thread: usize| progress[thread].0.load(Ordering::Relaxed);
    let others: Vec<usize> = (0..progress.len()).filter(|&thread| thread != own).collect();
    let (begun, mut batches) = (Instant::now(), Vec::new());
    // Longer, if the threads seldom run together: all run until each has enough batches.
    let enough = || progress.iter().all(|thread| thread.1.load(Ordering::Relaxed) >= BATCHES_MIN);
    while begun.elapsed() < time || (begun.elapsed() < time * TIME_FACTOR_MAX && !enough()) {
        let before: Vec<usize> = others.iter().map(|&thread| done(thread)).collect();
        let (start, mut sum) = (Instant::now(), 0);
        for _ in 0..BATCH {
            for _ in 0..SLICE {
                sum ^= pick();
            }
            progress[own].0.fetch_add(1, Ordering::Relaxed);
        }
        let took = start.elapsed();
        black_box(sum);
        // Accepted: at least half of the batch, because one slice may have ended just after the other thread was stopped; at most
        // four times the batch: more means that this thread was stopped.
        let like_this = BATCH / 2..=BATCH * 4;
        let together = others.iter().zip(&before).all(|(&thread, before)| like_this.contains(&(done(thread) - before)));
        if together {
            progress[own].1.fetch_add(1, Ordering::Relaxed);
            batches.push(took.as_nanos() as f64 / (f64::from(SLICE) * BATCH as f64));
        }
    }
    if batches.len() < BATCHES_MIN { f64::NAN } else { median(batches) }
}

pub(crate) fn balancer(backends: usize, policy: Arc<dyn Policy>) -> Balancer<Handle> {
    let now = Instant::now();
    let settings = BalancerSettings { initial_state: InitialState::Ready, ..BalancerSettings::default() };
    let balancer = Balancer::with_policy(policy, settings, 1, now);
    balancer.update(now, specs(backends, 0), |_, _| Handle(1));
    balancer
}

/// The value of an endpoint.
pub(crate) struct Handle(usize);

fn specs(backends: usize, first: usize) -> impl Iterator<Item = EndpointSpec> {
    (first..first + backends)
        .map(|number| EndpointSpec::new(format!("10.0.0.{number}:1").as_str()).weight(1 + number as u32 % 3))
}

/// Replaces half of the set in every second call.
fn replace(balancer: &Balancer<Handle>, backends: usize, turn: &AtomicUsize) {
    let first = turn.fetch_add(1, Ordering::Relaxed) % 2 * (backends / 2 + 1);
    balancer.update(Instant::now(), specs(backends, first), |_, _| Handle(1));
    balancer.take_departed();
}

fn picker(cell: Cell, policy: Arc<dyn Policy>) -> Measured {
    let (balancer, turn) = (balancer(cell.backends, policy), AtomicUsize::new(0));
    on_threads(
        cell,
        || replace(&balancer, cell.backends, &turn),
        |seed| {
            let mut picker = Picker::new(&balancer, seed);
            let pick = Pick::new();
            move || picker.pick_with(&pick, |endpoint| endpoint.value().0).unwrap_or(0)
        },
    )
}

fn by_thread(cell: Cell) -> Measured {
    let (balancer, turn) = (balancer(cell.backends, Arc::new(RoundRobin)), AtomicUsize::new(0));
    on_threads(
        cell,
        || replace(&balancer, cell.backends, &turn),
        |_| {
            let (balancer, pick) = (&balancer, Pick::new());
            move || balancer.pick_with(&pick, |endpoint| endpoint.value().0).unwrap_or(0)
        },
    )
}

fn lease(cell: Cell) -> Measured {
    let (balancer, turn) = (balancer(cell.backends, Arc::new(RoundRobin)), AtomicUsize::new(0));
    on_threads(
        cell,
        || replace(&balancer, cell.backends, &turn),
        |seed| {
            let mut picker = Picker::new(&balancer, seed);
            let pick = Pick::new();
            move || picker.pick(&pick).map_or(0, |lease| lease.0)
        },
    )
}

fn list(backends: usize) -> Vec<Arc<Backend>> {
    (0..backends).map(|number| Arc::new(Backend(number))).collect()
}

fn floor(cell: Cell) -> Measured {
    let set = list(cell.backends);
    on_threads(
        cell,
        || (),
        |_| {
            let (set, mut cursor) = (&set, 0);
            move || {
                let turn = if cursor < set.len() { cursor } else { 0 };
                cursor = turn + 1;
                set.get(turn).map_or(0, |backend| backend.0)
            }
        },
    )
}

fn arc_swap(cell: Cell) -> Measured {
    let (set, cursor) = (ArcSwap::from_pointee(list(cell.backends)), AtomicUsize::new(0));
    on_threads(
        cell,
        || set.store(Arc::new(list(cell.backends))),
        |_| {
            || {
                let set = set.load();
                set[cursor.fetch_add(1, Ordering::Relaxed) % set.len()].0
            }
        },
    )
}

fn arc_swap_owned(cell: Cell) -> Measured {
    let (set, cursor) = (ArcSwap::from_pointee(list(cell.backends)), AtomicUsize::new(0));
    on_threads(
        cell,
        || set.store(Arc::new(list(cell.backends))),
        |_| {
            || {
                let set = set.load();
                let owned = Arc::clone(&set[cursor.fetch_add(1, Ordering::Relaxed) % set.len()]);
                black_box(owned).0
            }
        },
    )
}

fn rw_lock(cell: Cell) -> Measured {
    let (set, cursor) = (RwLock::new(list(cell.backends)), AtomicUsize::new(0));
    let update = || *set.write().expect("not poisoned") = list(cell.backends);
    on_threads(cell, update, |_| {
        || {
            let set = set.read().expect("not poisoned");
            set[cursor.fetch_add(1, Ordering::Relaxed) % set.len()].0
        }
    })
}

/// A service that is always ready and returns its number.
#[derive(Debug)]
struct Number(usize);

impl Service<()> for Number {
    type Response = usize;
    type Error = Infallible;
    type Future = Ready<Result<usize, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(Ok(self.0))
    }
}

type Loaded = PendingRequests<Number>;

fn services(backends: usize) -> ServiceList<Vec<Loaded>> {
    let load = |number| PendingRequests::new(Number(number), CompleteOnResponse::default());
    ServiceList::new((0..backends).map(load).collect::<Vec<_>>())
}

fn tower_per_thread(cell: Cell) -> Measured {
    on_threads(
        cell,
        || (),
        |_| {
            let mut balance = Balance::new(services(cell.backends));
            move || {
                let mut cx = Context::from_waker(Waker::noop());
                if Service::<()>::poll_ready(&mut balance, &mut cx).is_pending() {
                    return 0;
                }
                let mut answer = std::pin::pin!(balance.call(()));
                match answer.as_mut().poll(&mut cx) {
                    Poll::Ready(Ok(number)) => number,
                    _ => 0,
                }
            }
        },
    )
}

/// Picks per second of 32 tasks on a runtime of `threads` workers, through tower's buffer or a balancer.
pub(crate) fn on_tasks(cell: Cell, tower: bool) -> f64 {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(cell.threads).build().expect("a runtime is built");
    let balancer = balancer(cell.backends, Arc::new(RoundRobin));
    let done = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    runtime.block_on(async {
        // The discovery of a list is `Unpin` only if it is boxed.
        let boxed = BoxService::new(Balance::new(services(cell.backends)));
        let (buffer, buffer_worker) = Buffer::pair(boxed, 1024);
        let worker = tokio::spawn(buffer_worker);
        let task = |_| {
            let (mut buffer, balancer, done) = (buffer.clone(), balancer.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                let pick = Pick::new();
                while start.elapsed() < cell.time {
                    for _ in 0..32 {
                        if tower {
                            std::future::poll_fn(|cx| Service::<()>::poll_ready(&mut buffer, cx)).await.expect("ready");
                            black_box(buffer.call(()).await.expect("a response"));
                        } else {
                            black_box(balancer.pick(&pick).map_or(0, |lease| lease.0));
                        }
                    }
                    done.fetch_add(32, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            })
        };
        let tasks: Vec<_> = (0..32).map(task).collect();
        for task in tasks {
            task.await.expect("a task does not panic");
        }
        worker.abort();
    });
    done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}
