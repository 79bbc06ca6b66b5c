//! The pool on one core: which connection goes to which client.
//!
//! Everything a core owns is here and is touched by its thread alone. [`offer`](Inner::offer) is the one place where a
//! free connection finds its next holder, [`seek`](Inner::seek) the one place where a waiting client is sought a
//! connection. No borrow is held while foreign code (the host, a connection, a waker) runs.

use std::{
    cell::{Cell, RefCell},
    fmt,
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Waker},
    time::Instant,
};

use crate::{
    Checkout, CheckoutError, Connection, Courier, Fate, Host, Lease, Limits, Pool, Retirement, Slot,
    backoff::Seeker,
    board::{Line, Stamp, lower, raise},
    checkout::Answer,
    courier::{Parcel, Promise},
    held::{Held, Permit},
    mail::Mail,
    pool::Control,
    queue::{Key, Left, Queue},
};

/// The pool as seen from one core. A handle for the thread it was made on; clones share the same state.
///
/// When the last clone and all its leases, checkouts and slots are gone, its idle connections are closed and the core
/// may get a new `Local`.
pub struct Local<C: Connection>(Rc<Inner<C>>);

impl<C: Connection> Clone for Local<C> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<C: Connection> Local<C> {
    pub(crate) fn new(inner: Rc<Inner<C>>) -> Self {
        Self(inner)
    }

    /// Ask for a connection. The client has its place in the queue at once.
    #[inline]
    pub fn checkout(&self, now: Instant) -> Checkout<C> {
        if let Some(lease) = self.try_checkout(now) {
            return Checkout::decided(Ok(lease), now);
        }
        match self.0.join(now) {
            Ok(key) => Checkout::waiting(Rc::clone(&self.0), key, now),
            Err(error) => Checkout::decided(Err(error), now),
        }
    }

    /// Take an idle connection of this core, unless a client has a better claim to it.
    #[inline]
    pub fn try_checkout(&self, now: Instant) -> Option<Lease<C>> {
        let held = self.0.take(now)?;
        Some(Lease::new(held, Rc::clone(&self.0)))
    }

    /// Handle what other cores and operators have sent. To be called soon after `wake` named this core.
    pub fn process_mail(&self, now: Instant) {
        self.0.process_mail(now);
    }

    /// Close idle connections that are dead, outdated, idle too long or beyond the limits; open up to
    /// [`Limits::min`]; open the reserve for clients that waited long; retry after back-off. To be called about once a
    /// second.
    pub fn sweep(&self, now: Instant) {
        self.0.sweep(now);
    }

    /// Is no connection idle, on any core, and can none be opened now? Then whoever asks waits until a client gives one
    /// back. Whoever could be served from several pools may ask elsewhere first; meanwhile it may have changed.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        let pool = &self.0.pool;
        let size = self.0.control.borrow().limits.size;
        pool.board.lines().all(|line| line.idle() == 0)
            && (pool.permits.open() >= size || pool.backoff().pausing(self.0.now.get(), pool.client()))
    }

    /// Does a connection lie idle on this core?
    #[must_use]
    pub fn has_idle(&self) -> bool {
        !self.0.idle.borrow().is_empty()
    }

    /// Look at every connection that lies idle on this core: when it was opened, and when it was given back last, if it was
    /// ever. `look` must not use the pool.
    pub fn each_idle(&self, mut look: impl FnMut(&C, Instant, Option<Instant>)) {
        let idle = self.0.idle.borrow();
        idle.iter().for_each(|held| look(&held.conn, held.record.born, held.record.released));
    }

    /// The pool this belongs to.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool<C>> {
        &self.0.pool
    }

    /// Number of this core.
    #[must_use]
    pub fn core(&self) -> usize {
        self.0.core
    }
}

impl<C: Connection> fmt::Debug for Local<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("core", &self.0.core).finish_non_exhaustive()
    }
}

/// What one core owns.
pub(crate) struct Inner<C: Connection> {
    pub(crate) pool: Arc<Pool<C>>,
    pub(crate) core: usize,
    host: Box<dyn Host<C>>,
    /// The last one put down is taken first: it is warm, and those at the bottom can grow old and be closed.
    pub(crate) idle: RefCell<Vec<Box<Held<C>>>>,
    queue: RefCell<Queue<Answer<C>>>,
    control: RefCell<Control<C::Error>>,
    epoch: Cell<u64>,
    /// Neither paused nor closed.
    granting: Cell<bool>,
    /// Most connections there may be, reserve included.
    ceiling: Cell<usize>,
    /// See [`Limits::oldest_first`].
    oldest_first: Cell<bool>,
    now: Cell<Instant>,
}

impl<C: Connection> Inner<C> {
    pub(crate) fn new(pool: Arc<Pool<C>>, core: usize, host: Box<dyn Host<C>>, now: Instant) -> Self {
        let control = pool.control().clone();
        let inner = Self {
            pool,
            core,
            host,
            idle: RefCell::new(Vec::new()),
            queue: RefCell::new(Queue::new()),
            control: RefCell::new(control),
            epoch: Cell::new(0),
            granting: Cell::new(false),
            ceiling: Cell::new(0),
            oldest_first: Cell::new(false),
            now: Cell::new(now),
        };
        inner.follow();
        inner
    }

    pub(crate) fn line(&self) -> &Line {
        self.pool.board.line(self.core)
    }

    pub(crate) fn limits(&self) -> Limits {
        self.control.borrow().limits
    }

    /// The latest moment this core was told.
    pub(crate) fn now(&self) -> Instant {
        self.now.get()
    }

    pub(crate) fn granting(&self) -> bool {
        self.granting.get()
    }

    /// Take over the time and what operators have changed.
    #[inline]
    pub(crate) fn observe(&self, now: Instant) {
        self.now.set(now);
        if self.pool.epoch() != self.epoch.get() {
            self.follow();
        }
    }

    #[cold]
    fn follow(&self) {
        let control = self.pool.control().clone();
        self.granting.set(!control.paused && control.closed.is_none());
        self.ceiling.set(control.limits.size + control.limits.reserve);
        self.oldest_first.set(control.limits.oldest_first);
        self.epoch.set(control.epoch);
        self.pool.board.acknowledge(self.core, control.epoch);
        self.control.replace(control);
    }

    /// The fast way: an idle connection of this core for a client that comes now.
    #[inline]
    fn take(self: &Rc<Self>, now: Instant) -> Option<Box<Held<C>>> {
        self.observe(now);
        if !self.granting.get() || self.pool.board.somebody_waits() && !self.may_take(now) {
            return None;
        }
        let held = self.pop_usable()?;
        raise(&self.line().active);
        Some(held)
    }

    /// Somebody waits, perhaps here, perhaps elsewhere: may a client that comes now take an idle connection?
    #[cold]
    fn may_take(self: &Rc<Self>, now: Instant) -> bool {
        self.share_idle(self.pool.stamp(now));
        self.queue.borrow().is_empty()
    }

    /// The warmest idle connection that is still good, or the coldest if all are to be used in turn.
    #[inline]
    fn pop_usable(self: &Rc<Self>) -> Option<Box<Held<C>>> {
        loop {
            let mut idle = self.idle.borrow_mut();
            let mut held = match self.oldest_first.get() && !idle.is_empty() {
                true => idle.remove(0),
                false => idle.pop()?,
            };
            self.pool.board.publish_taken(self.core, idle.len());
            drop(idle);
            match self.usable(&mut held) {
                Ok(()) => return Some(held),
                Err(why) => self.retire(&held, why),
            }
        }
    }

    /// A client may have the connection, or it is to be closed.
    #[inline]
    pub(crate) fn usable(&self, held: &mut Held<C>) -> Result<(), Retirement> {
        self.current(held)?;
        if held.conn.is_usable() { Ok(()) } else { Err(Retirement::Unusable) }
    }

    /// Tells the host of a connection that is about to be dropped.
    #[cold]
    pub(crate) fn retire(&self, held: &Held<C>, why: Retirement) {
        self.host.retire(&held.conn, why);
    }

    /// The connection is of the present generation and within its lifetime, or why it is not.
    #[inline]
    fn current(&self, held: &mut Held<C>) -> Result<(), Retirement> {
        let record = &mut held.record;
        if record.judged != Some(self.epoch.get()) {
            let control = self.control.borrow();
            if record.generation != control.generation || control.closed.is_some() {
                return Err(Retirement::Replaced);
            }
            record.expires = control.limits.life(record.early).and_then(|life| record.born.checked_add(life));
            record.judged = Some(control.epoch);
        }
        match record.expires {
            Some(expires) if self.now.get() >= expires => Err(Retirement::Lifetime),
            _ => Ok(()),
        }
    }

    /// A client, or the cleaner, gives a connection back.
    #[inline]
    pub(crate) fn release(self: &Rc<Self>, mut held: Box<Held<C>>, fate: Fate, now: Instant) {
        self.observe(now);
        let line = self.line();
        let was = if held.cleaning { &line.cleaning } else { &line.active };
        let stays = if fate == Fate::Close { Err(Retirement::Released) } else { self.stays(&mut held) };
        if let Err(why) = stays {
            self.retire(&held, why);
            // Closed before it is no longer counted, so that a quiet pool is quiet.
            drop(held);
            lower(was);
            self.seek();
        } else if fate == Fate::Clean {
            // In this order: nobody who counts misses it.
            raise(&line.cleaning);
            lower(was);
            held.cleaning = true;
            self.host.clean(Lease::new(held, Rc::clone(self)));
        } else {
            lower(was);
            held.cleaning = false;
            held.record.released = Some(now);
            self.offer(held);
        }
    }

    /// A connection was handed to a client who has left in the meantime.
    pub(crate) fn pass_on(self: &Rc<Self>, held: Box<Held<C>>) {
        self.release(held, Fate::Reuse, self.now.get());
    }

    /// A connection was opened.
    pub(crate) fn opened(self: &Rc<Self>, mut held: Box<Held<C>>, now: Instant) {
        self.observe(now);
        match self.stays(&mut held) {
            Ok(()) => self.offer(held),
            Err(why) => {
                self.retire(&held, why);
                drop(held);
            }
        }
        self.pool.nudge_waiting();
        self.seek();
        self.open_min();
    }

    #[inline]
    fn stays(&self, held: &mut Held<C>) -> Result<(), Retirement> {
        self.current(held)?;
        let ceiling = self.ceiling.get();
        let is_surplus = self.pool.permits.open() > ceiling && held.record.permit.shed(ceiling);
        if is_surplus { Err(Retirement::Surplus) } else { Ok(()) }
    }

    /// A connection is free: give it to the oldest client here, unless one elsewhere has waited notably longer; with
    /// no client here, put it down and then see whether one waits elsewhere.
    #[inline]
    fn offer(self: &Rc<Self>, mut held: Box<Held<C>>) {
        let oldest = if self.granting.get() { self.queue.borrow().oldest() } else { None };
        if let Some(stamp) = oldest {
            return self.hand_over(held, stamp);
        }
        held.conn.rest();
        let mut idle = self.idle.borrow_mut();
        idle.push(held);
        self.pool.board.publish_idle(self.core, idle.len());
        drop(idle);
        if self.pool.board.somebody_waits() {
            self.share_idle(Stamp::MAX);
        }
    }

    /// Clients wait here, the oldest since `stamp`.
    fn hand_over(self: &Rc<Self>, held: Box<Held<C>>, stamp: Stamp) {
        if let Some(promise) = self.promise_elsewhere(stamp) {
            return self.send(held, promise);
        }
        raise(&self.line().active);
        match self.answer(Ok(held)) {
            Ok(waker) => waker.into_iter().for_each(Waker::wake),
            Err(_) => unreachable!("the queue had an oldest waiter"),
        }
    }

    /// Promise a connection to the core whose oldest client precedes one that came at `stamp` by more than
    /// `overtake_max`; at `Stamp::MAX`, to the core with the oldest client.
    fn promise_elsewhere(&self, stamp: Stamp) -> Option<Promise<C>> {
        let overtake_max = self.control.borrow().limits.overtake_max.as_nanos() as Stamp;
        loop {
            let (core, oldest) = self.pool.board.oldest_elsewhere(self.core)?;
            if oldest.saturating_add(overtake_max) >= stamp {
                return None;
            }
            // Refused: another core was faster. Then somebody else is the oldest.
            if let Some(promise) = Promise::to(&self.pool, core) {
                return Some(promise);
            }
        }
    }

    /// Give idle connections to clients elsewhere that precede one who came here at `stamp`.
    pub(crate) fn share_idle(self: &Rc<Self>, stamp: Stamp) {
        while self.granting.get() && !self.idle.borrow().is_empty() {
            let Some(promise) = self.promise_elsewhere(stamp) else {
                return;
            };
            match self.pop_usable() {
                Some(held) => self.send(held, promise),
                None => return,
            }
        }
    }

    fn send(self: &Rc<Self>, held: Box<Held<C>>, promise: Promise<C>) {
        let mut courier = Courier::new(held, promise, Rc::clone(self));
        let mut cx = Context::from_waker(Waker::noop());
        if Future::poll(std::pin::Pin::new(&mut courier), &mut cx).is_pending() {
            self.host.send(courier);
        }
    }

    fn receive(self: &Rc<Self>, parcel: Parcel<C>) {
        let Parcel { parked, record, promise } = parcel;
        promise.keep();
        let conn = C::unpark(parked);
        let mut held = Box::new(Held { conn, cleaning: false, record });
        match self.stays(&mut held) {
            Ok(()) if held.conn.is_usable() => self.offer(held),
            Ok(()) => self.retire(&held, Retirement::Unusable),
            Err(why) => self.retire(&held, why),
        }
    }

    pub(crate) fn process_mail(self: &Rc<Self>, now: Instant) {
        self.observe(now);
        let letters = self.pool.mailbox(self.core).take();
        for parcel in letters.parcels {
            self.receive(parcel);
        }
        if letters.evict {
            self.evict_one();
        }
        self.serve(now);
        if letters.wanted {
            self.pass_request_on();
        }
    }

    /// Somebody asked for an idle connection, and those here did not suffice: ask the next core that has some, or tell
    /// the cores with clients that none is left, so that they may open one.
    fn pass_request_on(&self) {
        if !self.granting.get() {
            return;
        }
        let Some((waiting, _)) = self.pool.board.oldest_elsewhere(self.core) else {
            return;
        };
        match self.pool.board.idle_elsewhere(self.core) {
            Some((idle, _)) if idle != waiting && self.pool.post(idle, Mail::Wanted) => {}
            // All of them: several may have asked here, and been content with what was idle.
            _ => self.pool.nudge_waiting(),
        }
    }

    /// Something has changed: whoever waits here may be served now.
    pub(crate) fn serve(self: &Rc<Self>, now: Instant) {
        self.observe(now);
        if let Some(error) = self.closed() {
            self.answer_all(&CheckoutError::Closed(error));
            drop(self.idle.take());
            self.pool.board.publish_taken(self.core, 0);
            return;
        }
        while self.granting.get() && !self.queue.borrow().is_empty() {
            let Some(held) = self.pop_usable() else { break };
            self.offer(held);
        }
        if self.pool.board.somebody_waits() {
            self.share_idle(Stamp::MAX);
        }
        self.seek();
    }

    /// Seek connections for the clients that wait here: idle ones of other cores first, then new ones.
    pub(crate) fn seek(self: &Rc<Self>) {
        while self.granting.get() {
            let connecting = self.line().connecting.load(Relaxed);
            let unmet = self.pool.board.unserved(self.core).saturating_sub(connecting);
            if unmet == 0 {
                return;
            }
            if let Some((other, idle)) = self.pool.board.idle_elsewhere(self.core) {
                // Nobody there any more: then nothing is idle there any more either.
                if !self.pool.post(other, Mail::Wanted) {
                    continue;
                }
                if idle >= unmet {
                    return;
                }
            }
            if self.is_backing_off(self.pool.client()) || !self.connect(self.limits().size) {
                return;
            }
        }
    }

    /// Is it too early to connect? If so, and nothing is open that could serve the waiting clients, they get the error of the
    /// last attempt.
    pub(crate) fn is_backing_off(&self, seeker: Seeker) -> bool {
        let backoff = self.pool.backoff();
        if !backoff.pausing(self.now.get(), seeker) {
            return false;
        }
        let error = backoff.error().filter(|_| seeker != Seeker::Nobody);
        drop(backoff);
        if let Some(error) = error
            && self.pool.permits.open() == 0
        {
            self.answer_all(&CheckoutError::Connect(error));
        }
        true
    }

    /// Open one more, if fewer than `open_max` are open in the whole pool.
    pub(crate) fn connect(self: &Rc<Self>, open_max: usize) -> bool {
        let connecting_max = self.control.borrow().limits.connecting_max;
        let Some(permit) = Permit::take(&self.pool, open_max, connecting_max) else {
            return false;
        };
        raise(&self.line().connecting);
        let generation = self.control.borrow().generation;
        self.host.connect(Slot::new(Rc::clone(self), permit, generation));
        true
    }

    /// A client that must wait joins the queue.
    #[cold]
    fn join(self: &Rc<Self>, now: Instant) -> Result<Key, CheckoutError<C::Error>> {
        if let Some(error) = self.closed() {
            return Err(CheckoutError::Closed(error));
        }
        let waiting: usize = self.pool.board.lines().map(Line::waiting).sum();
        if waiting >= self.control.borrow().limits.waiting_max {
            return Err(CheckoutError::Full);
        }
        let key = self.queue.borrow_mut().join(self.pool.stamp(now));
        self.publish_waiting();
        self.seek();
        Ok(key)
    }

    pub(crate) fn poll_answer(&self, key: Key, waker: &Waker) -> Option<Answer<C>> {
        // The former waker goes when the queue is no longer borrowed: with it may go a task and its checkouts.
        let (answer, _former) = self.queue.borrow_mut().poll(key, waker);
        answer
    }

    pub(crate) fn leave(&self, key: Key) -> Left<Answer<C>> {
        let (left, _waker) = self.queue.borrow_mut().leave(key);
        self.publish_waiting();
        left
    }

    pub(crate) fn ahead(&self, key: Key) -> usize {
        self.queue.borrow().ahead(key)
    }

    /// Clients here who have waited since `stamp` or longer, at most `most`.
    pub(crate) fn waiting_since(&self, stamp: Stamp, most: usize) -> usize {
        self.queue.borrow().waiting_since(stamp, most)
    }

    fn answer(&self, answer: Answer<C>) -> Result<Option<Waker>, Answer<C>> {
        let waker = self.queue.borrow_mut().answer(answer)?;
        self.publish_waiting();
        Ok(waker)
    }

    fn answer_all(&self, error: &CheckoutError<C::Error>) {
        while let Ok(waker) = self.answer(Err(error.clone())) {
            waker.into_iter().for_each(Waker::wake);
        }
    }

    fn publish_waiting(&self) {
        let queue = self.queue.borrow();
        self.pool.board.publish_waiting(self.core, queue.len(), queue.oldest());
    }

    fn closed(&self) -> Option<Arc<C::Error>> {
        self.control.borrow().closed.clone()
    }
}

impl<C: Connection> Drop for Inner<C> {
    fn drop(&mut self) {
        self.pool.board.publish_taken(self.core, 0);
        self.idle.get_mut().clear();
        self.pool.board.leave(self.core);
        drop(self.pool.mailbox(self.core).close());
    }
}
