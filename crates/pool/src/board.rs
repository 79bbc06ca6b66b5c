//! What each core tells the others: how many connections lie idle here, how many clients wait, since when.
//!
//! A core writes its own [`Line`] and reads the others'. Two cores must never miss each other, one putting a connection
//! down while the other begins to wait for one, so both sides publish first and look second, with sequentially
//! consistent operations (Dekker):
//!
//! - a releasing core stores `idle`, then loads `cores_waiting`;
//! - a waiting core stores `waiting` and raises `cores_waiting`, then loads `idle` of the others.
//!
//! At least one of the two sees the other. `coming` counts connections under way to a core, so that two givers do not
//! both serve the same waiter; it is raised only while `coming < waiting`, never on trial.

use crate::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    total_order,
};

/// Moment in nanoseconds since the pool was made.
pub(crate) type Stamp = u64;

/// The published figures of one core. Only `coming` is written by other cores.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Line {
    pub(crate) active: AtomicUsize,
    pub(crate) cleaning: AtomicUsize,
    pub(crate) connecting: AtomicUsize,
    /// Epoch of the control state that this core has taken over; `u64::MAX` while nobody works on this core.
    seen: AtomicU64,
    idle: AtomicUsize,
    waiting: AtomicUsize,
    oldest: AtomicU64,
    coming: AtomicUsize,
}

/// Plain addition: only the owner of the line writes this figure.
pub(crate) fn raise(figure: &AtomicUsize) {
    figure.store(figure.load(Relaxed) + 1, Relaxed);
}

/// Plain subtraction: only the owner of the line writes this figure. Who sees it also sees what the connection became.
pub(crate) fn lower(figure: &AtomicUsize) {
    figure.store(figure.load(Relaxed) - 1, Release);
}

/// The lines of all cores of one pool.
pub(crate) struct Board {
    lines: Box<[Line]>,
    cores_waiting: AtomicUsize,
}

impl Board {
    pub(crate) fn new(cores: usize) -> Self {
        let board = Self { lines: (0..cores).map(|_| Line::default()).collect(), cores_waiting: AtomicUsize::new(0) };
        for core in 0..cores {
            board.leave(core);
        }
        board
    }

    pub(crate) fn line(&self, core: usize) -> &Line {
        &self.lines[core]
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter()
    }

    /// Is there a core with waiting clients? One load; everything else is for the case that there is.
    pub(crate) fn somebody_waits(&self) -> bool {
        self.cores_waiting.load(SeqCst) != 0
    }

    /// A connection was put down. Afterwards the caller must ask [`somebody_waits`](Self::somebody_waits).
    pub(crate) fn publish_idle(&self, core: usize, idle: usize) {
        self.lines[core].idle.store(idle, SeqCst);
        total_order();
    }

    /// A connection was taken. Nobody can miss that: who comes too late finds none and asks elsewhere.
    pub(crate) fn publish_taken(&self, core: usize, idle: usize) {
        self.lines[core].idle.store(idle, Relaxed);
    }

    /// The queue of this core changed. If it grew, the caller must look for idle connections afterwards.
    pub(crate) fn publish_waiting(&self, core: usize, waiting: usize, oldest: Option<Stamp>) {
        let line = &self.lines[core];
        let before = line.waiting.load(Relaxed);
        line.oldest.store(oldest.unwrap_or(0), Relaxed);
        line.waiting.store(waiting, SeqCst);
        if before == 0 && waiting > 0 {
            self.cores_waiting.fetch_add(1, SeqCst);
        } else if before > 0 && waiting == 0 {
            self.cores_waiting.fetch_sub(1, SeqCst);
        }
        total_order();
    }

    /// Clients of this core for whom no connection is under way from another core.
    pub(crate) fn unserved(&self, core: usize) -> usize {
        let line = &self.lines[core];
        // In this order: a waiter seen here queued after every arrival that `coming` no longer counts.
        let waiting = line.waiting.load(SeqCst);
        waiting.saturating_sub(line.coming.load(SeqCst))
    }

    /// The core other than `core` whose unserved clients have waited longest.
    pub(crate) fn oldest_elsewhere(&self, core: usize) -> Option<(usize, Stamp)> {
        self.others(core)
            .filter(|&other| self.unserved(other) > 0)
            .map(|other| (other, self.lines[other].oldest.load(Relaxed)))
            .min_by_key(|&(_, stamp)| stamp)
    }

    /// A core other than `core` with idle connections, and how many all of those hold.
    pub(crate) fn idle_elsewhere(&self, core: usize) -> Option<(usize, usize)> {
        let mut found = None;
        for other in self.others(core) {
            let idle = self.lines[other].idle.load(SeqCst);
            if idle > 0 {
                let (first, sum) = found.unwrap_or((other, 0));
                found = Some((first, sum + idle));
            }
        }
        found
    }

    /// Promise a connection to `core`. False if all its clients are promised one already.
    pub(crate) fn promise(&self, core: usize) -> bool {
        let line = &self.lines[core];
        let more = |coming| (coming < line.waiting.load(SeqCst)).then_some(coming + 1);
        line.coming.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    /// A promised connection arrived at `core`, or never will.
    pub(crate) fn promise_ends(&self, core: usize) {
        self.lines[core].coming.fetch_sub(1, SeqCst);
    }

    /// From now on this core acts by the control state `epoch`. All it granted before is in its figures.
    pub(crate) fn acknowledge(&self, core: usize, epoch: u64) {
        self.lines[core].seen.store(epoch, Release);
    }

    /// Nobody works on this core any more.
    pub(crate) fn leave(&self, core: usize) {
        self.acknowledge(core, u64::MAX);
    }

    /// Do all cores act by the control state `epoch` or a later one?
    pub(crate) fn all_follow(&self, epoch: u64) -> bool {
        self.lines().all(|line| line.seen.load(Acquire) >= epoch)
    }

    /// Other cores, beginning with the next one, so that not all turn to core 0.
    fn others(&self, core: usize) -> impl Iterator<Item = usize> {
        let cores = self.lines.len();
        (1..cores).map(move |step| (core + step) % cores)
    }
}

impl Line {
    pub(crate) fn idle(&self) -> usize {
        self.idle.load(Relaxed)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    pub(crate) fn coming(&self) -> usize {
        self.coming.load(Relaxed)
    }

    /// Since when the oldest client of this core waits.
    pub(crate) fn oldest(&self) -> Option<Stamp> {
        (self.waiting() > 0).then(|| self.oldest.load(Relaxed))
    }
}

#[cfg(all(test, loom))]
mod interleavings;
