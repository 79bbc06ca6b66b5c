//! Figures that each core publishes for the others: its idle connections, its waiting clients, and the wait of the oldest.
//!
//! A core writes its own [`CoreStatus`] and reads those of the others. One core may release a connection while another
//! starts to wait for one. Both publish first and check second, with sequentially consistent operations (as in Dekker's
//! algorithm):
//!
//! - a releasing core stores `idle`, then loads `cores_waiting`;
//! - a waiting core stores `waiting` and increments `cores_waiting`, then loads `idle` of the other cores.
//!
//! At least one of the two therefore sees the other. `incoming` counts the connections on their way to a core, so that two
//! releasing cores do not both serve one waiter; it is incremented only while `incoming < waiting`.

use std::time::Duration;

use crate::sync::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    total_order,
};

/// Time in nanoseconds since the pool was created.
pub(crate) type PoolTime = u64;

/// The nanoseconds of a duration; limited to 584 years.
#[inline]
pub(crate) fn pool_time(duration: Duration) -> PoolTime {
    PoolTime::try_from(duration.as_nanos()).unwrap_or(PoolTime::MAX)
}

/// Published figures of one core. Only `incoming` is written by other cores.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct CoreStatus {
    pub(crate) active: AtomicUsize,
    pub(crate) cleaning: AtomicUsize,
    pub(crate) connecting: AtomicUsize,
    /// Epoch of the control state that this core has applied; `u64::MAX` while the core has no `LocalPool`.
    applied_epoch: AtomicU64,
    idle: AtomicUsize,
    waiting: AtomicUsize,
    /// Arrival of the longest-waiting client.
    oldest: AtomicU64,
    incoming: AtomicUsize,
}

/// A load and a store, because only the owning core writes the figure.
pub(crate) fn increment(figure: &AtomicUsize) {
    figure.store(figure.load(Relaxed) + 1, Relaxed);
}

/// A load and a store, because only the owning core writes the figure. `Release`: a core that reads the lower figure also
/// sees the figure in which the connection is counted next.
pub(crate) fn decrement(figure: &AtomicUsize) {
    figure.store(figure.load(Relaxed) - 1, Release);
}

/// Figures of all cores of one pool.
pub(crate) struct CoreTable {
    cores: Box<[CoreStatus]>,
    cores_waiting: AtomicUsize,
}

impl CoreTable {
    pub(crate) fn new(cores: usize) -> Self {
        let cores: Box<[CoreStatus]> = (0..cores).map(|_| CoreStatus::default()).collect();
        let table = Self { cores, cores_waiting: AtomicUsize::new(0) };
        for core in 0..table.cores.len() {
            table.detach(core);
        }
        table
    }

    pub(crate) fn core(&self, core: usize) -> &CoreStatus {
        &self.cores[core]
    }

    pub(crate) fn cores(&self) -> impl Iterator<Item = &CoreStatus> {
        self.cores.iter()
    }

    /// Returns whether any core has waiting clients. One load: the common case is that none has.
    pub(crate) fn has_waiters(&self) -> bool {
        self.cores_waiting.load(SeqCst) != 0
    }

    /// A connection became idle. The caller must check [`has_waiters`](Self::has_waiters) afterwards.
    pub(crate) fn publish_idle(&self, core: usize, idle: usize) {
        self.cores[core].idle.store(idle, SeqCst);
        total_order();
    }

    /// An idle connection was taken. Relaxed: a core that reads the old figure asks this core, which has none, and then
    /// another one.
    pub(crate) fn publish_taken(&self, core: usize, idle: usize) {
        self.cores[core].idle.store(idle, Relaxed);
    }

    /// The wait queue of this core changed. If it grew, the caller must look for idle connections afterwards.
    pub(crate) fn publish_waiting(&self, core: usize, waiting: usize, oldest: Option<PoolTime>) {
        let status = &self.cores[core];
        let before = status.waiting.load(Relaxed);
        status.oldest.store(oldest.unwrap_or(0), Relaxed);
        status.waiting.store(waiting, SeqCst);
        if before == 0 && waiting > 0 {
            self.cores_waiting.fetch_add(1, SeqCst);
        } else if before > 0 && waiting == 0 {
            self.cores_waiting.fetch_sub(1, SeqCst);
        }
        total_order();
    }

    /// Number of waiting clients of this core beyond the connections that are on their way to it.
    pub(crate) fn unserved(&self, core: usize) -> usize {
        let status = &self.cores[core];
        // Load order: a waiter seen here joined after every arrival that `incoming` no longer counts.
        let waiting = status.waiting.load(SeqCst);
        waiting.saturating_sub(status.incoming.load(SeqCst))
    }

    /// The core other than `core` whose unserved clients have waited longest.
    pub(crate) fn oldest_elsewhere(&self, core: usize) -> Option<(usize, PoolTime)> {
        self.others(core)
            .filter(|&other| self.unserved(other) > 0)
            .map(|other| (other, self.cores[other].oldest.load(Relaxed)))
            .min_by_key(|&(_, oldest)| oldest)
    }

    /// A core other than `core` with idle connections, and the number of idle connections of all such cores.
    pub(crate) fn idle_elsewhere(&self, core: usize) -> Option<(usize, usize)> {
        let mut found = None;
        for other in self.others(core) {
            let idle = self.cores[other].idle.load(SeqCst);
            if idle > 0 {
                let (first, sum) = found.unwrap_or((other, 0));
                found = Some((first, sum + idle));
            }
        }
        found
    }

    /// Counts a connection on its way to `core`. False if one is on its way to each of its waiting clients.
    pub(crate) fn reserve_incoming(&self, core: usize) -> bool {
        let status = &self.cores[core];
        let more = |incoming| (incoming < status.waiting.load(SeqCst)).then_some(incoming + 1);
        status.incoming.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    /// A connection arrived at `core`, or was dropped on the way.
    pub(crate) fn end_incoming(&self, core: usize) {
        self.cores[core].incoming.fetch_sub(1, SeqCst);
    }

    /// This core acts by the control state `epoch` from now on. Its figures contain every connection that it granted before.
    pub(crate) fn apply_epoch(&self, core: usize, epoch: u64) {
        self.cores[core].applied_epoch.store(epoch, Release);
    }

    /// The core has no `LocalPool` any more.
    pub(crate) fn detach(&self, core: usize) {
        self.apply_epoch(core, u64::MAX);
    }

    /// Returns whether all cores act by the control state `epoch` or a later one.
    pub(crate) fn all_applied(&self, epoch: u64) -> bool {
        self.cores().all(|status| status.applied_epoch.load(Acquire) >= epoch)
    }

    /// Other cores, starting with the next one, so that not all cores ask core 0 first.
    fn others(&self, core: usize) -> impl Iterator<Item = usize> {
        let cores = self.cores.len();
        (1..cores).map(move |step| (core + step) % cores)
    }
}

impl CoreStatus {
    pub(crate) fn idle(&self) -> usize {
        self.idle.load(Relaxed)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    pub(crate) fn incoming(&self) -> usize {
        self.incoming.load(Relaxed)
    }

    /// Arrival of the longest-waiting client of this core.
    pub(crate) fn oldest(&self) -> Option<PoolTime> {
        (self.waiting() > 0).then(|| self.oldest.load(Relaxed))
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
