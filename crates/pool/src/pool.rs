//! The state that all cores share, and the handle for operators and metrics.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    Connection, Limits,
    connect_backoff::{ConnectBackoff, ConnectDemand},
    core_table::{CoreTable, PoolTime, pool_time},
    mailbox::{CoreMailbox, CoreMessage, NotifiesCores, Posted},
    permit::{CountsOpen, OpenCount},
    sync::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// Connections to one destination, for clients on several cores. The caller decides what a destination is (a database and a
/// user, a host), and keeps the map from destinations to pools.
///
/// This handle is for any thread: operators change limits, pause and close; metrics read [`counts`](Self::counts). Clients
/// take connections from the [`LocalPool`](crate::LocalPool) of their core.
pub struct Pool<C: Connection> {
    pub(crate) core_table: CoreTable,
    open_count: OpenCount,
    epoch: AtomicU64,
    // The generation of the newest connection.
    connected_generation: AtomicU64,
    mailboxes: Box<[CoreMailbox<C>]>,
    // Read by a core when the epoch has changed, written by operators.
    control: Mutex<PoolControl<C::Error>>,
    // Locked once per connect, and by clients that must wait.
    backoff: Mutex<ConnectBackoff<C::Error>>,
    wake: Box<dyn Fn(usize) + Send + Sync>,
    created_at: Instant,
}

/// Settings of operators. Every change starts a new epoch, which each core applies before it grants another connection.
pub(crate) struct PoolControl<E> {
    pub(crate) limits: Limits,
    pub(crate) paused: bool,
    pub(crate) generation: u64,
    pub(crate) closed: Option<Arc<E>>,
    pub(crate) epoch: u64,
}

impl<E> Clone for PoolControl<E> {
    fn clone(&self) -> Self {
        Self { closed: self.closed.clone(), ..*self }
    }
}

/// Figures of a pool, summed over its cores without stopping them. Figures of different cores can be some microseconds
/// apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Connections leased by clients.
    pub active: usize,
    /// Connections ready for a client.
    pub idle: usize,
    /// Connects in progress.
    pub connecting: usize,
    /// Connections in [`ManageConnection::clean`](crate::ManageConnection::clean).
    pub cleaning: usize,
    /// Connections on the way from one core to another.
    pub moving: usize,
    /// Clients waiting for a connection.
    pub waiting: usize,
    /// When the longest-waiting client arrived.
    pub oldest_wait: Option<Instant>,
    /// Connections open or being opened, in any state.
    pub open: usize,
}

impl<C: Connection> Pool<C> {
    /// Creates a pool for `cores` cores, numbered from 0.
    ///
    /// `wake(core)` makes that core call [`LocalPool::process_messages`](crate::LocalPool::process_messages) soon. It is called
    /// from any thread, also in the middle of a pool operation, and must not call the pool. `seed` is for the jitter of
    /// retries and lifetimes. No later `now` may be before this one.
    #[must_use]
    pub fn new(
        cores: usize,
        limits: Limits,
        seed: u64,
        now: Instant,
        wake: impl Fn(usize) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let control = PoolControl { limits, paused: false, generation: 0, closed: None, epoch: 0 };
        Arc::new(Self {
            core_table: CoreTable::new(cores),
            open_count: OpenCount::default(),
            epoch: AtomicU64::new(0),
            connected_generation: AtomicU64::new(0),
            mailboxes: (0..cores).map(|_| CoreMailbox::new()).collect(),
            control: Mutex::new(control),
            backoff: Mutex::new(ConnectBackoff::new(seed)),
            wake: Box::new(wake),
            created_at: now,
        })
    }

    /// Number of cores.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.mailboxes.len()
    }

    /// Replaces the limits. Connections above a lowered `size` are closed when they are released or idle.
    pub fn set_limits(&self, limits: Limits) {
        self.change(|control| control.limits = limits);
    }

    /// The current limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.control().limits
    }

    /// Stops granting and opening connections; clients wait. [`is_quiescent`](Self::is_quiescent) is true once all clients
    /// have released theirs.
    pub fn pause(&self) {
        self.change(|control| control.paused = true);
    }

    /// Ends a [`pause`](Self::pause). A connect that failed before is retried without a delay.
    pub fn resume(&self) {
        self.backoff().reset();
        self.change(|control| control.paused = false);
    }

    /// Returns whether the pool is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.control().paused
    }

    /// Returns whether every core has applied the last change and no client has a connection. After [`pause`](Self::pause),
    /// it stays true until the pool is resumed.
    #[must_use]
    pub fn is_quiescent(&self) -> bool {
        let all_applied = self.core_table.all_applied(self.epoch.load(Acquire));
        let counts = self.counts();
        all_applied && counts.active + counts.cleaning == 0
    }

    /// Closes every connection opened before now: idle ones when their core processes its messages, leased ones when they are
    /// released. A connect that started before now and fails is retried without an error to clients.
    pub fn reconnect(&self) {
        self.backoff().reset();
        self.change(|control| control.generation += 1);
    }

    /// Number of [`reconnect`](Self::reconnect) calls. A lease of an earlier [`generation`](crate::Lease::generation) is closed
    /// when it is released.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.control().generation
    }

    /// Closes one idle connection, to make room in another pool: the least recently used one of the core with the most idle
    /// connections. Does nothing if that core has no idle connection when it reads the message.
    pub fn evict_idle(&self) {
        let fullest = self.core_table.cores().enumerate().max_by_key(|(_, status)| status.idle());
        if let Some((core, _)) = fullest.filter(|(_, status)| status.idle() > 0) {
            self.post(core, CoreMessage::Evict);
        }
    }

    /// Closes the pool for good: idle connections now, leased ones when they are released. Waiting and later clients get
    /// `error`.
    pub fn close(&self, error: C::Error) {
        let error = Arc::new(error);
        self.change(|control| {
            control.closed.get_or_insert(error);
        });
    }

    /// Returns whether the pool is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.control().closed.is_some()
    }

    /// Current figures.
    #[must_use]
    pub fn counts(&self) -> PoolCounts {
        let mut counts = PoolCounts { open: self.open_count.open(), ..PoolCounts::default() };
        let mut oldest: Option<PoolTime> = None;
        for status in self.core_table.cores() {
            counts.active += status.active.load(Acquire);
            counts.idle += status.idle();
            counts.connecting += status.connecting.load(Relaxed);
            counts.cleaning += status.cleaning.load(Relaxed);
            counts.moving += status.incoming();
            counts.waiting += status.waiting();
            oldest = oldest.into_iter().chain(status.oldest()).min();
        }
        counts.oldest_wait = oldest.map(|since| self.created_at + Duration::from_nanos(since));
        counts
    }

    /// Number of connections open or being opened.
    pub(crate) fn open(&self) -> usize {
        self.open_count.open()
    }

    pub(crate) fn pool_time(&self, at: Instant) -> PoolTime {
        pool_time(at.saturating_duration_since(self.created_at))
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    pub(crate) fn control(&self) -> MutexGuard<'_, PoolControl<C::Error>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn backoff(&self) -> MutexGuard<'_, ConnectBackoff<C::Error>> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn mailbox(&self, core: usize) -> &CoreMailbox<C> {
        &self.mailboxes[core]
    }

    /// Sends a message and returns whether the core will read it. Without a `LocalPool` on that core the message is dropped,
    /// and a connection in it closed.
    pub(crate) fn post(&self, core: usize, message: CoreMessage<C>) -> bool {
        let posted = self.mailboxes[core].post(message);
        if posted == Posted::First {
            (self.wake)(core);
        }
        posted != Posted::Dropped
    }

    /// Makes every core with waiting clients check whether it can serve them.
    pub(crate) fn notify_waiting_cores(&self) {
        if !self.core_table.has_waiters() {
            return;
        }
        for (core, status) in self.core_table.cores().enumerate() {
            if status.waiting() > 0 {
                self.post(core, CoreMessage::Check);
            }
        }
    }

    /// Returns whether a waiting client may get one of the connections that are open or being opened. Those that
    /// [`reconnect`](Self::reconnect) has replaced are closed when they are released; a later connect means that others exist.
    pub(crate) fn may_serve_waiters(&self) -> bool {
        let has_current = || self.connected_generation.load(Relaxed) == self.generation();
        self.open_count.is_connecting() || self.open_count.has_established() && has_current()
    }

    /// Ends the pause after failed connects. Returns the lifetime jitter of the new connection, from 0 to 1.
    pub(crate) fn connect_succeeded(&self, generation: u64) -> f64 {
        self.connected_generation.fetch_max(generation, Relaxed);
        let mut backoff = self.backoff();
        backoff.reset();
        backoff.random()
    }

    pub(crate) fn connect_failed(&self, error: Option<C::Error>, is_refusal: bool, now: Instant, limits: &Limits) {
        let (error, mut backoff) = (error.map(Arc::new), self.backoff());
        if is_refusal {
            backoff.refused(now, error, limits.connect_backoff());
        } else {
            backoff.failed(now, error, limits.connect_backoff());
        }
    }

    /// The demand of a waiting client.
    pub(crate) fn client_demand(&self) -> ConnectDemand {
        if self.open_count.has_established() { ConnectDemand::BesideOpen } else { ConnectDemand::OnlyChance }
    }

    fn change(&self, apply: impl FnOnce(&mut PoolControl<C::Error>)) {
        let mut control = self.control();
        apply(&mut control);
        control.epoch += 1;
        self.epoch.store(control.epoch, Release);
        drop(control);
        for core in 0..self.mailboxes.len() {
            self.post(core, CoreMessage::Check);
        }
    }
}

impl<C: Connection> CountsOpen for Pool<C> {
    fn open_count(&self) -> &OpenCount {
        &self.open_count
    }

    fn permit_released(&self) {
        self.notify_waiting_cores();
    }
}

impl<C: Connection> NotifiesCores for Pool<C> {
    fn core_table(&self) -> &CoreTable {
        &self.core_table
    }

    fn notify_core(&self, core: usize) {
        self.post(core, CoreMessage::Check);
    }
}

impl<C: Connection> fmt::Debug for Pool<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
