//! Stop of a tree of scopes: grace period, abort, report.
//!
//! A *sweep* sends one signal to every child of a set of scopes. A sweep visits the slots in address order, wakes at most
//! [`WAKES_PER_TURN`] children and then yields, so that the children run while their memory is cached and the worker's queue
//! does not overflow. Sweeps share one cursor over all shards; one sweep per worker runs in parallel.
//!
//! The tree stops in *waves*: first the leaf scopes, phase by phase, then their parents. One sleep covers the grace period
//! and one the abort, whatever the number of children. Waves that were not reached within the grace period are signalled when
//! the others are aborted, and get the same grace period, but at most half of the remaining time.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::hub::StopTree;
use crate::node::{Members, Node};
use crate::runtime::Timer;
use crate::shard::{ChildChunk, Counts, Mode, sweep};
use crate::slot::{CHUNK_SLOTS, StopSignal};
use crate::stuck::Stuck;
use crate::{Exit, Exits};

/// A quarter of a tokio worker's local queue, so that children of two turns do not overflow into the shared queue: newly
/// woken ones, and ones woken again after an await of their cleanup.
const WAKES_PER_TURN: usize = 64;

/// Maximum number of stuck children in a report.
const STUCK_LISTED_MAX: usize = 1000;

/// Below this number of children, handing parts to other workers costs more than the sweep.
const LEND_FROM: usize = 256;

/// Result of a stop or a drain.
#[derive(Clone, Default, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Children that ended since the call, by cause.
    pub exits: Exits,
    /// Number of children that remain.
    pub left: usize,
    /// The children that remain; at most 1,000 of them.
    pub stuck: Vec<Stuck>,
    /// Time between the call and the report.
    pub took: Duration,
}

impl Report {
    /// Returns whether every child has ended, with [`Exit::Returned`] or [`Exit::Failed`].
    pub fn is_clean(&self) -> bool {
        self.left == 0 && self.clean() == self.exits.total()
    }

    /// Number of children that returned, including failures.
    pub fn clean(&self) -> u64 {
        self.exits[Exit::Returned] + self.exits[Exit::Failed]
    }

    /// Number of aborted children.
    pub fn aborted(&self) -> u64 {
        self.exits[Exit::Aborted]
    }

    /// Number of panicked children.
    pub fn panicked(&self) -> u64 {
        self.exits[Exit::Panicked]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (clean, aborted, panicked) = (self.clean(), self.aborted(), self.panicked());
        write!(f, "{clean} clean, {aborted} aborted, {panicked} panicked, {} left in {:?}", self.left, self.took)?;
        for stuck in &self.stuck {
            write!(f, "\n  {stuck}")?;
        }
        Ok(())
    }
}

/// A part of a sweep; runs on any worker. Dropping it signals the remaining children immediately, so no child is missed.
#[must_use = "a sweep signals children only when polled or dropped"]
pub struct Sweep {
    plan: Arc<Plan>,
    signal: StopSignal,
    at: Option<(usize, usize)>,
    chunks: Vec<Arc<ChildChunk>>,
}

struct Plan {
    jobs: Vec<(Arc<dyn Members>, usize)>,
    next: AtomicUsize,
}

impl Plan {
    fn new(nodes: &[Arc<Node>]) -> Self {
        let mut jobs: Vec<(Arc<dyn Members>, usize)> = Vec::new();
        for node in nodes.iter().filter(|node| node.members.live() > 0) {
            jobs.extend((0..node.members.shards()).map(|shard| (Arc::clone(&node.members), shard)));
        }
        Self { jobs, next: AtomicUsize::new(0) }
    }
}

impl fmt::Debug for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sweep").field("signal", &self.signal).field("at", &self.at).finish_non_exhaustive()
    }
}

impl Sweep {
    fn new(plan: &Arc<Plan>, signal: StopSignal) -> Self {
        Self { plan: Arc::clone(plan), signal, at: None, chunks: Vec::new() }
    }

    /// Signals the next few children; `false` if none are left.
    fn turn(&mut self) -> bool {
        let Some((job, page)) = self.at.take().or_else(|| Some((self.plan.next.fetch_add(1, Relaxed), 0))) else {
            return false;
        };
        let Some((members, shard)) = self.plan.jobs.get(job) else { return false };
        let many = WAKES_PER_TURN / CHUNK_SLOTS;
        members.chunks(*shard, page, many, &mut self.chunks);
        if self.chunks.len() == many {
            self.at = Some((job, page + many));
        }
        for chunk in self.chunks.drain(..) {
            sweep(&chunk, self.signal);
        }
        true
    }
}

impl Future for Sweep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if !self.turn() {
            return Poll::Ready(());
        }
        // A task that is woken while it runs moves to the end of its worker's queue, behind the children that it just woke.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        while self.turn() {}
    }
}

/// Closes a tree and signals all its children to stop, synchronously on this thread.
pub(crate) fn stop_now(root: &Arc<Node>) {
    root.advance(Mode::Stopping);
    for wave in root.waves() {
        drop(Sweep::new(&Arc::new(Plan::new(&wave)), StopSignal::Stop));
    }
}

impl StopTree for Node {
    fn stop_tree(self: Arc<Self>) {
        stop_now(&self);
    }
}

/// Signals every child of `nodes`, on all workers that the runtime lends.
async fn send<T: Timer>(nodes: &[Arc<Node>], signal: StopSignal, timer: &T) {
    let many = nodes.iter().map(|node| node.members.live()).sum::<usize>() >= LEND_FROM;
    let plan = Arc::new(Plan::new(nodes));
    let parts = if many { timer.workers().clamp(1, plan.jobs.len().max(1)) } else { 1 };
    for _ in 0..parts {
        let part = Sweep::new(&plan, signal);
        match if many { timer.lend(part) } else { Some(part) } {
            Some(own) => return own.await,
            None => continue,
        }
    }
}

/// Returns whether all of `nodes` are empty before `deadline`.
async fn emptied<S: Future<Output = ()>>(nodes: &[Arc<Node>], mut deadline: Pin<&mut S>) -> bool {
    let mut next = 0;
    poll_fn(|cx| {
        while let Some(node) = nodes.get(next) {
            if node.poll_empty(cx).is_pending() {
                return deadline.as_mut().poll(cx).map(|()| false);
            }
            next += 1;
        }
        Poll::Ready(true)
    })
    .await
}

/// Stops the tree. The caller has closed its scopes.
pub(crate) fn stop<T: Timer>(
    root: &Arc<Node>,
    timer: T,
    grace: Duration,
    abort: Duration,
) -> impl Future<Output = Report> + use<T> {
    // Exits between the call and the first poll count as part of the stop.
    let baseline = Baseline::new(root, timer.now());
    end(baseline, timer, grace, abort)
}

async fn end<T: Timer>(baseline: Baseline, timer: T, grace: Duration, abort: Duration) -> Report {
    if let Some(unreached) = overrun(&baseline.waves, &timer, grace).await {
        let reached = baseline.waves.len() - unreached.len();
        for wave in &baseline.waves[..reached] {
            send(wave, StopSignal::Abort, &timer).await;
        }
        // These waves did not cause the delay: they get the same grace period, but at most half of the remaining time.
        let second = if unreached.is_empty() { Duration::ZERO } else { grace.min(abort / 2) };
        if overrun(unreached, &timer, second).await.is_some() {
            for wave in unreached {
                send(wave, StopSignal::Abort, &timer).await;
            }
        }
        baseline.all_emptied(pin!(timer.deadline(abort - second))).await;
    }
    baseline.report(timer.now())
}

/// Stops the waves one after the other within `grace`. Returns the waves that were not reached, if one wave does not end in
/// time.
async fn overrun<'a, T: Timer>(
    waves: &'a [Vec<Arc<Node>>],
    timer: &T,
    grace: Duration,
) -> Option<&'a [Vec<Arc<Node>>]> {
    let mut deadline = pin!(timer.deadline(grace));
    for (index, wave) in waves.iter().enumerate() {
        send(wave, StopSignal::Stop, timer).await;
        if !emptied(wave, deadline.as_mut()).await {
            return Some(&waves[index + 1..]);
        }
    }
    None
}

/// Waits until the tree is empty. The caller has set its scopes to draining.
pub(crate) fn drain<T: Timer>(root: &Arc<Node>, timer: T, deadline: Duration) -> impl Future<Output = Report> + use<T> {
    let baseline = Baseline::new(root, timer.now());
    async move {
        baseline.all_emptied(pin!(timer.deadline(deadline))).await;
        baseline.report(timer.now())
    }
}

/// Baseline of a report.
struct Baseline {
    waves: Vec<Vec<Arc<Node>>>,
    exits: Exits,
    at: Instant,
}

impl Baseline {
    fn new(root: &Arc<Node>, at: Instant) -> Self {
        let waves = root.waves();
        let exits = counts(&waves).exits;
        Self { waves, exits, at }
    }

    async fn all_emptied<S: Future<Output = ()>>(&self, mut deadline: Pin<&mut S>) {
        for wave in &self.waves {
            if !emptied(wave, deadline.as_mut()).await {
                return;
            }
        }
    }

    fn report(&self, now: Instant) -> Report {
        let sum = counts(&self.waves);
        let mut stuck = Vec::new();
        for node in self.waves.iter().flatten() {
            node.members.stuck(&node.hub.path, STUCK_LISTED_MAX - stuck.len(), &mut stuck);
        }
        let took = now.saturating_duration_since(self.at);
        Report { exits: sum.exits - self.exits, left: sum.live, stuck, took }
    }
}

fn counts(waves: &[Vec<Arc<Node>>]) -> Counts {
    let mut sum = Counts::default();
    for node in waves.iter().flatten() {
        sum.add(&node.members.counts());
    }
    sum
}
