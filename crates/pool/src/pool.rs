//! What all cores share, and the face of the pool to operators and metrics.

use std::{
    fmt,
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    Connection, Host, Limits, Local,
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    backoff::{Backoff, Seeker},
    board::{Board, Stamp},
    local::Inner,
    mail::{Mail, Mailbox},
    permits::Permits,
};

/// Connections to one place, for clients on several cores. What is one place (a database and a user, a host) is the
/// caller's to decide, as is the map from such a key to its pool.
///
/// This handle is for any thread: operators change limits, pause and close; metrics read [`counts`](Self::counts).
/// Clients take connections from the [`Local`] of their core.
pub struct Pool<C: Connection> {
    pub(crate) board: Board,
    pub(crate) permits: Permits,
    epoch: AtomicU64,
    mailboxes: Box<[Mailbox<C>]>,
    // Read when the epoch has changed, written by operators.
    control: Mutex<Control<C::Error>>,
    // Touched once per connect, and by clients that must wait.
    backoff: Mutex<Backoff<C::Error>>,
    wake: Box<dyn Fn(usize) + Send + Sync>,
    base: Instant,
}

/// What operators decide. Every change begins a new epoch, and each core takes it over before it grants anything more.
pub(crate) struct Control<E> {
    pub(crate) limits: Limits,
    pub(crate) paused: bool,
    pub(crate) generation: u64,
    pub(crate) closed: Option<Arc<E>>,
    pub(crate) epoch: u64,
}

impl<E> Clone for Control<E> {
    fn clone(&self) -> Self {
        Self { closed: self.closed.clone(), ..*self }
    }
}

/// A pool in figures, summed over its cores without stopping them; figures of different cores may be some
/// microseconds apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that clients have.
    pub active: usize,
    /// Connections ready for a client.
    pub idle: usize,
    /// Connections being opened.
    pub connecting: usize,
    /// Connections being cleaned by [`Host::clean`].
    pub cleaning: usize,
    /// Connections on the way from one core to another.
    pub moving: usize,
    /// Clients without a connection.
    pub waiting: usize,
    /// Since when the oldest of these waits.
    pub oldest_wait: Option<Instant>,
    /// Permits in use: connections open or being opened, in whatever state.
    pub open: usize,
}

impl<C: Connection> Pool<C> {
    /// A pool for `cores` cores, numbered from 0. `wake(core)` makes that core call [`Local::process_mail`] soon; it is
    /// called from any thread, often in the middle of a pool operation, and must not call the pool itself. `seed`
    /// feeds the jitter of back-off and lifetimes. No later `now` may be before this one.
    #[must_use]
    pub fn new(
        cores: usize,
        limits: Limits,
        seed: u64,
        now: Instant,
        wake: impl Fn(usize) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let control = Control { limits, paused: false, generation: 0, closed: None, epoch: 0 };
        Arc::new(Self {
            board: Board::new(cores),
            permits: Permits::default(),
            epoch: AtomicU64::new(0),
            mailboxes: (0..cores).map(|_| Mailbox::new()).collect(),
            control: Mutex::new(control),
            backoff: Mutex::new(Backoff::new(seed)),
            wake: Box::new(wake),
            base: now,
        })
    }

    /// The pool as seen from one core. The handle stays on the calling thread; clone it as needed.
    ///
    /// # Panics
    ///
    /// If the pool has no such core, or if the core has a `Local` already.
    #[must_use]
    pub fn local(self: &Arc<Self>, core: usize, now: Instant, host: impl Host<C> + 'static) -> Local<C> {
        assert!(core < self.mailboxes.len(), "core {core} of a pool for {} cores", self.mailboxes.len());
        assert!(self.mailboxes[core].open(), "core {core} has a Local already");
        Local::new(Rc::new(Inner::new(Arc::clone(self), core, Box::new(host), now)))
    }

    /// Replace the limits. Connections above a lowered `size` are closed as they are released or become idle.
    pub fn set_limits(&self, limits: Limits) {
        self.change(|control| control.limits = limits);
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.control().limits
    }

    /// Grant no more connections, open no more; clients wait. All is quiet when [`is_quiet`](Self::is_quiet).
    pub fn pause(&self) {
        self.change(|control| control.paused = true);
    }

    /// Undo [`pause`](Self::pause). What failed before is tried at once.
    pub fn resume(&self) {
        self.backoff().clear();
        self.change(|control| control.paused = false);
    }

    /// Is the pool paused?
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.control().paused
    }

    /// Has every core learned of the last change, and does no client have a connection? After [`pause`](Self::pause)
    /// this stays true once it is, until the pool is resumed.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let all_follow = self.board.all_follow(self.epoch.load(Acquire));
        let counts = self.counts();
        all_follow && counts.active + counts.cleaning == 0
    }

    /// Close every connection opened before now: the idle ones soon, the others when they are released. Of a connect that
    /// began before now nobody hears if it fails: it is tried again at once.
    pub fn reconnect(&self) {
        self.backoff().clear();
        self.change(|control| control.generation += 1);
    }

    /// How often [`reconnect`](Self::reconnect) was called. A lease of an earlier [`generation`](crate::Lease::generation)
    /// is closed when it is released.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.control().generation
    }

    /// Close one connection that lies idle, the one put down first on the core that has the most of them, to make room
    /// elsewhere. Nothing happens if none is idle any more when that core looks.
    pub fn evict_idle(&self) {
        let fullest = self.board.lines().enumerate().max_by_key(|(_, line)| line.idle());
        if let Some((core, _)) = fullest.filter(|(_, line)| line.idle() > 0) {
            self.post(core, Mail::Evict);
        }
    }

    /// Close all connections, the leased ones when they are released, and answer waiting and future clients with
    /// `error`. For good.
    pub fn close(&self, error: C::Error) {
        let error = Arc::new(error);
        self.change(|control| {
            control.closed.get_or_insert(error);
        });
    }

    /// Was it closed?
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.control().closed.is_some()
    }

    /// The pool in figures.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts { open: self.permits.open(), ..Counts::default() };
        let mut oldest: Option<Stamp> = None;
        for line in self.board.lines() {
            counts.active += line.active.load(Acquire);
            counts.idle += line.idle();
            counts.connecting += line.connecting.load(Relaxed);
            counts.cleaning += line.cleaning.load(Relaxed);
            counts.moving += line.coming();
            counts.waiting += line.waiting();
            oldest = oldest.into_iter().chain(line.oldest()).min();
        }
        counts.oldest_wait = oldest.map(|stamp| self.base + Duration::from_nanos(stamp));
        counts
    }

    pub(crate) fn stamp(&self, at: Instant) -> Stamp {
        at.saturating_duration_since(self.base).as_nanos() as Stamp
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    pub(crate) fn control(&self) -> MutexGuard<'_, Control<C::Error>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn backoff(&self) -> MutexGuard<'_, Backoff<C::Error>> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn mailbox(&self, core: usize) -> &Mailbox<C> {
        &self.mailboxes[core]
    }

    /// Send a message. If nobody works on that core, it is dropped, and a connection in it closed.
    /// Returns whether it will be read.
    pub(crate) fn post(&self, core: usize, mail: Mail<C>) -> bool {
        let posted = self.mailboxes[core].post(mail);
        if let Ok(true) = posted {
            (self.wake)(core);
        }
        posted.is_ok()
    }

    /// Something became free that waiting clients may use: let their cores look.
    pub(crate) fn nudge_waiting(&self) {
        if !self.board.somebody_waits() {
            return;
        }
        for (core, line) in self.board.lines().enumerate() {
            if line.waiting() > 0 {
                self.post(core, Mail::Look);
            }
        }
    }

    /// Returns the new connection's share of the jitter, 0 to 1.
    pub(crate) fn connect_succeeded(&self) -> f64 {
        let mut backoff = self.backoff();
        backoff.clear();
        backoff.share()
    }

    pub(crate) fn connect_failed(&self, error: Option<C::Error>, is_refusal: bool, now: Instant, limits: &Limits) {
        let (error, mut backoff) = (error.map(Arc::new), self.backoff());
        if is_refusal {
            backoff.refused(now, error, limits.retry_start, limits.retry_max);
        } else {
            backoff.failed(now, error, limits.retry_start, limits.retry_max);
        }
    }

    /// A client that waits.
    pub(crate) fn client(&self) -> Seeker {
        if self.permits.has_established() { Seeker::ClientBehindOthers } else { Seeker::Client }
    }

    fn change(&self, apply: impl FnOnce(&mut Control<C::Error>)) {
        let mut control = self.control();
        apply(&mut control);
        control.epoch += 1;
        self.epoch.store(control.epoch, Release);
        drop(control);
        for core in 0..self.mailboxes.len() {
            self.post(core, Mail::Look);
        }
    }
}

impl<C: Connection> fmt::Debug for Pool<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
