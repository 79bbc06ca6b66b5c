//! The same children under each design: each waits for a stop, runs a cleanup with one await, and counts itself.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use rustix::time::{ClockId, clock_gettime};
use tidegate_supervise::{Bundled, Ctx, Scope, Tokio};
use tokio::sync::Notify;
use tokio::task::{JoinSet, yield_now};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Results of one run of one design.
#[derive(Clone, Copy, Default)]
pub(crate) struct Figures {
    /// Time between the first spawn and the last child's wait.
    pub(crate) start_ms: f64,
    /// Time between the call and the last cleanup, with every child accounted for.
    pub(crate) stop_ms: f64,
    /// CPU time of all threads.
    pub(crate) start_cpu_ns: f64,
    pub(crate) stop_cpu_ns: f64,
    pub(crate) bytes_per_child: f64,
    pub(crate) late_p99_us: f64,
}

impl Figures {
    pub(crate) fn to_line(self) -> String {
        let Self { start_ms, stop_ms, start_cpu_ns, stop_cpu_ns, bytes_per_child, late_p99_us } = self;
        format!("{start_ms} {stop_ms} {start_cpu_ns} {stop_cpu_ns} {bytes_per_child} {late_p99_us}")
    }

    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [start_ms, stop_ms, start_cpu_ns, stop_cpu_ns, bytes_per_child, late_p99_us] = numbers[..] else {
            return None;
        };
        Some(Self { start_ms, stop_ms, start_cpu_ns, stop_cpu_ns, bytes_per_child, late_p99_us })
    }
}

#[derive(Default)]
struct Counters {
    waiting: AtomicU64,
    cleaned: AtomicU64,
}

impl Counters {
    /// Body of a child, the same for every design.
    async fn child(self: Arc<Self>, stopped: impl Future<Output = ()>) {
        self.waiting.fetch_add(1, Relaxed);
        stopped.await;
        yield_now().await;
        self.cleaned.fetch_add(1, Relaxed);
    }
}

/// A design under test.
trait Design {
    fn spawn(&mut self, counters: Arc<Counters>);
    fn stop(self) -> impl Future<Output = ()> + Send;
}

pub(crate) const DESIGNS: [&str; 6] = [
    "bare spawn",
    "JoinSet + token",
    "TaskTracker + token",
    "TaskTracker + child tokens",
    "supervise",
    "supervise, bundled",
];

/// Runs `children` under the design. The caller must run on a worker.
pub(crate) async fn run(design: &str, children: u64) -> Figures {
    match design {
        "bare spawn" => measure(Bare::default(), children).await,
        "JoinSet + token" => measure(Joined::default(), children).await,
        "TaskTracker + token" => measure(Tracked::default(), children).await,
        "TaskTracker + child tokens" => measure(Tree::default(), children).await,
        "supervise" => measure(Supervised::default(), children).await,
        "supervise, bundled" => measure(bundled(), children).await,
        other => panic!("unknown design {other}"),
    }
}

async fn measure<D: Design>(mut design: D, children: u64) -> Figures {
    let counters = Arc::new(Counters::default());
    let rss = resident_bytes();
    let (cpu, began) = (cpu_ns(), Instant::now());
    for _ in 0..children {
        design.spawn(Arc::clone(&counters));
    }
    while counters.waiting.load(Relaxed) < children {
        yield_now().await;
    }
    let start_ms = ms(began);
    let start_cpu = cpu_ns() - cpu;
    let bytes = resident_bytes().saturating_sub(rss);
    let beat = Heartbeat::start().await;
    let (cpu, began) = (cpu_ns(), Instant::now());
    design.stop().await;
    let stop_ms = ms(began);
    let stop_cpu = cpu_ns() - cpu;
    assert_eq!(counters.cleaned.load(Relaxed), children, "every cleanup has completed");
    Figures {
        start_ms,
        stop_ms,
        start_cpu_ns: start_cpu / children as f64,
        stop_cpu_ns: stop_cpu / children as f64,
        bytes_per_child: bytes as f64 / children as f64,
        late_p99_us: beat.finish().await,
    }
}

/// Wakes every millisecond and records the lateness.
struct Heartbeat {
    over: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Vec<f64>>,
}

impl Heartbeat {
    async fn start() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let task = tokio::spawn(async move {
            let mut late = Vec::new();
            while !seen.load(Relaxed) {
                let due = Instant::now() + Duration::from_millis(1);
                tokio::time::sleep(Duration::from_millis(1)).await;
                late.push(due.elapsed().as_secs_f64() * 1e6);
            }
            late
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        Self { over, task }
    }

    async fn finish(self) -> f64 {
        self.over.store(true, Relaxed);
        let mut late = self.task.await.expect("the heartbeat does not panic");
        // The first beats precede the stop.
        late.drain(..late.len().min(15));
        late.sort_by(f64::total_cmp);
        late.get(late.len() * 99 / 100).copied().unwrap_or(0.0)
    }
}

/// The floor: one waker per child, and one sweeping task per worker.
#[derive(Default)]
struct Bare {
    children: Vec<Arc<BareSlot>>,
    left: Arc<Left>,
}

#[derive(Default)]
struct BareSlot {
    stopped: AtomicBool,
    waker: AtomicWaker,
}

#[derive(Default)]
struct Left {
    children: AtomicU64,
    empty: Notify,
}

impl Design for Bare {
    fn spawn(&mut self, counters: Arc<Counters>) {
        let slot = Arc::new(BareSlot::default());
        self.children.push(Arc::clone(&slot));
        let left = Arc::clone(&self.left);
        left.children.fetch_add(1, Relaxed);
        let stopped = std::future::poll_fn(move |cx| {
            slot.waker.register(cx.waker());
            if slot.stopped.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }
        });
        tokio::spawn(async move {
            counters.child(stopped).await;
            if left.children.fetch_sub(1, Relaxed) == 1 {
                left.empty.notify_one();
            }
        });
    }

    async fn stop(self) {
        let workers = tokio::runtime::Handle::current().metrics().num_workers();
        let share = self.children.len().div_ceil(workers).max(1);
        let children: Arc<[Arc<BareSlot>]> = self.children.into();
        for worker in 0..workers {
            let children = Arc::clone(&children);
            tokio::spawn(async move {
                let end = ((worker + 1) * share).min(children.len());
                for turn in children[(worker * share).min(end)..end].chunks(128) {
                    for slot in turn {
                        slot.stopped.store(true, Relaxed);
                        slot.waker.wake();
                    }
                    yield_to_woken().await;
                }
            });
        }
        self.left.empty.notified().await;
    }
}

/// Yields to the end of this worker's queue, behind the tasks that were just woken.
async fn yield_to_woken() {
    let mut first = true;
    std::future::poll_fn(|cx| {
        if std::mem::take(&mut first) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

#[derive(Default)]
struct Joined {
    set: JoinSet<()>,
    token: CancellationToken,
}

impl Design for Joined {
    fn spawn(&mut self, counters: Arc<Counters>) {
        self.set.spawn(counters.child(self.token.clone().cancelled_owned()));
    }

    async fn stop(mut self) {
        self.token.cancel();
        while self.set.join_next().await.is_some() {}
    }
}

#[derive(Default)]
struct Tracked {
    tracker: TaskTracker,
    token: CancellationToken,
}

impl Design for Tracked {
    fn spawn(&mut self, counters: Arc<Counters>) {
        self.tracker.spawn(counters.child(self.token.clone().cancelled_owned()));
    }

    async fn stop(self) {
        self.tracker.close();
        self.token.cancel();
        self.tracker.wait().await;
    }
}

#[derive(Default)]
struct Tree {
    tracker: TaskTracker,
    token: CancellationToken,
}

impl Design for Tree {
    fn spawn(&mut self, counters: Arc<Counters>) {
        self.tracker.spawn(counters.child(self.token.child_token().cancelled_owned()));
    }

    async fn stop(self) {
        self.tracker.close();
        self.token.cancel();
        self.tracker.wait().await;
    }
}

struct Supervised {
    scope: tidegate_supervise::Supervisor<Tokio>,
}

impl Default for Supervised {
    fn default() -> Self {
        Self { scope: Scope::root("bench").on(Tokio::current()) }
    }
}

impl Design for Supervised {
    fn spawn(&mut self, counters: Arc<Counters>) {
        let child = self.scope.spawn(|ctx| async move { counters.child(ctx.cancelled()).await });
        drop(child.expect("the scope is open"));
    }

    async fn stop(self) {
        let report = self.scope.stop(Duration::from_secs(60), Duration::from_secs(1)).await;
        assert_eq!(report.left, 0, "{report}");
    }
}

/// The same design with bundled children.
struct BundledDesign<C, F> {
    scope: tidegate_supervise::Supervisor<Bundled<tidegate_supervise::Supervised<F>>>,
    child: C,
}

fn bundled() -> impl Design {
    let child = |ctx: Ctx, counters: Arc<Counters>| async move { counters.child(ctx.cancelled()).await };
    BundledDesign { scope: Scope::root("bench").on(Bundled::on(Tokio::current())), child }
}

impl<C, F> Design for BundledDesign<C, F>
where
    C: Fn(Ctx, Arc<Counters>) -> F + Send,
    F: Future<Output = ()> + Send + 'static,
{
    fn spawn(&mut self, counters: Arc<Counters>) {
        self.scope.spawn(|ctx| (self.child)(ctx, counters)).expect("the scope is open");
    }

    async fn stop(self) {
        let report = self.scope.stop(Duration::from_secs(60), Duration::from_secs(1)).await;
        assert_eq!(report.left, 0, "{report}");
    }
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}
