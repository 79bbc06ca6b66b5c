//! Ending a tree of scopes: grace, abort, report.
//!
//! A *sweep* tells every child of a set of scopes one signal. It walks the slots in the order of their addresses, wakes
//! at most [`WAKES_PER_TURN`] children and then yields, so that they run while their memory is warm and the worker's
//! queue never overflows. Sweeps share one cursor over all shards: as many as there are workers go at once.
//!
//! The tree stops in *waves*: first the scopes without scopes below them, phase by phase, then their parents. There is
//! one sleep for the grace and one for the abort, whatever the number of children. Waves that were not reached within the
//! grace are told to stop when the others are aborted, and have the same grace, but no more than half of the time that is left.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::node::{Members, Node};
use crate::runtime::Timer;
use crate::shard::{Chunk, Counts, Mode, sweep};
use crate::slot::{CHUNK_SLOTS, Signal};
use crate::{Exit, Exits};

/// A quarter of a tokio worker's local queue, so that it does not spill into the shared one when children of two turns
/// are in it: some for the first time, some again after an await of their clean-up.
const WAKES_PER_TURN: usize = 64;

/// A report names at most so many stuck children.
const STUCK_LISTED_MAX: usize = 1000;

/// Below so many children, handing parts to other workers costs more than the sweep.
const LEND_FROM: usize = 256;

/// How a stop or a drain went.
#[derive(Clone, Default, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Children that ended meanwhile, by cause.
    pub exits: Exits,
    /// How many children are left.
    pub left: usize,
    /// The children that are left; at most 1,000 of them.
    pub stuck: Vec<Stuck>,
    /// From the call to the report.
    pub took: Duration,
}

impl Report {
    /// Whether every child is gone and none had to be aborted or panicked.
    pub fn is_clean(&self) -> bool {
        self.left == 0 && self.clean() == self.exits.total()
    }

    /// Children that ended by themselves.
    pub fn clean(&self) -> u64 {
        self.exits[Exit::Returned] + self.exits[Exit::Failed]
    }

    /// Children that had to be aborted.
    pub fn aborted(&self) -> u64 {
        self.exits[Exit::Aborted]
    }

    /// Children that panicked.
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

/// A child that did not end in time. It blocks its thread, or nobody polls it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stuck {
    /// The path of its scope.
    pub scope: Arc<str>,
    /// Its key, as `Debug` shows it.
    pub key: Option<String>,
    /// Its number, if it was given one.
    pub number: Option<u64>,
    /// Where in the source it was spawned.
    pub spawned_at: &'static Location<'static>,
    /// How long ago it was spawned.
    pub age: Duration,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.scope)?;
        match (&self.key, self.number) {
            (Some(key), _) => write!(f, " {key}")?,
            (None, Some(number)) => write!(f, " {number}")?,
            (None, None) => f.write_str(" -")?,
        }
        write!(f, ", spawned {:?} ago at {}", self.age, self.spawned_at)
    }
}

/// A part of a sweep, to be run on any worker. Dropped, it finishes at once: no child is left untold.
#[must_use = "a sweep tells children only when it is polled or dropped"]
pub struct Sweep {
    plan: Arc<Plan>,
    signal: Signal,
    at: Option<(usize, usize)>,
    chunks: Vec<Arc<Chunk>>,
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
    fn new(plan: &Arc<Plan>, signal: Signal) -> Self {
        Self { plan: Arc::clone(plan), signal, at: None, chunks: Vec::new() }
    }

    /// Tells the next few children; `false` if none are left.
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
        // Woken while it runs, a task goes to the end of its worker's queue: behind the children it has just woken.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        while self.turn() {}
    }
}

/// Closes a tree and tells all its children to stop, at once and on this thread.
pub(crate) fn tell(root: &Arc<Node>) {
    root.advance(Mode::Stopping);
    for wave in root.waves() {
        drop(Sweep::new(&Arc::new(Plan::new(&wave)), Signal::Stop));
    }
}

/// Tells every child of `nodes`, on as many workers as the runtime lends.
async fn deliver<T: Timer>(nodes: &[Arc<Node>], signal: Signal, timer: &T) {
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

/// Whether all of `nodes` are empty before `deadline` is.
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

/// Stops the tree. Its scopes take no more children already.
pub(crate) fn stop<T: Timer>(
    root: &Arc<Node>,
    timer: T,
    grace: Duration,
    abort: Duration,
) -> impl Future<Output = Report> + use<T> {
    // What ends between the call and the first poll belongs to the stop.
    let began = Began::new(root, timer.now());
    end(began, timer, grace, abort)
}

async fn end<T: Timer>(began: Began, timer: T, grace: Duration, abort: Duration) -> Report {
    if let Some(untold) = overrun(&began.waves, &timer, grace).await {
        let told = began.waves.len() - untold.len();
        for wave in &began.waves[..told] {
            deliver(wave, Signal::Abort, &timer).await;
        }
        // They are not to blame: they have the same grace, but no more than half of the time that is left.
        let second = if untold.is_empty() { Duration::ZERO } else { grace.min(abort / 2) };
        if overrun(untold, &timer, second).await.is_some() {
            for wave in untold {
                deliver(wave, Signal::Abort, &timer).await;
            }
        }
        began.all_emptied(pin!(timer.deadline(abort - second))).await;
    }
    began.report(timer.now())
}

/// Tells the waves to stop, one after the other, for so long. If one of them takes all of it, those that come after.
async fn overrun<'a, T: Timer>(
    waves: &'a [Vec<Arc<Node>>],
    timer: &T,
    grace: Duration,
) -> Option<&'a [Vec<Arc<Node>>]> {
    let mut deadline = pin!(timer.deadline(grace));
    for (index, wave) in waves.iter().enumerate() {
        deliver(wave, Signal::Stop, timer).await;
        if !emptied(wave, deadline.as_mut()).await {
            return Some(&waves[index + 1..]);
        }
    }
    None
}

/// Waits until the tree is empty. Its scopes take no more children already.
pub(crate) fn drain<T: Timer>(root: &Arc<Node>, timer: T, deadline: Duration) -> impl Future<Output = Report> + use<T> {
    let began = Began::new(root, timer.now());
    async move {
        began.all_emptied(pin!(timer.deadline(deadline))).await;
        began.report(timer.now())
    }
}

/// What a report is measured against.
struct Began {
    waves: Vec<Vec<Arc<Node>>>,
    exits: Exits,
    at: Instant,
}

impl Began {
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
