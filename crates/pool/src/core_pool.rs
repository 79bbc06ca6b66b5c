//! The pool's state on one core: which connection goes to which client.
//!
//! Only the thread of the core uses this state. [`offer`](CorePool::offer) alone assigns a free connection, and
//! [`find_connections`](CorePool::find_connections) alone looks for connections for waiting clients.
//! No `RefCell` is borrowed while foreign code (the manager, a connection, a waker) runs.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Waker,
    time::Instant,
};

use crate::{
    CheckoutError, CloseReason, Connection, Limits, Pool, ReleaseAction,
    connect_backoff::ConnectDemand,
    core_table::{CoreStatus, PoolTime, decrement, increment, pool_time},
    mailbox::{CoreMessage, DetachedConnection, TransferReservation},
    permit::OpenPermit,
    pool::PoolControl,
    pooled::{ConnectionRecord, PooledConnection},
    wait_queue::{WaitQueue, WaiterId, WaiterLeft},
};

/// Result of a checkout that waited.
pub(crate) type CheckoutAnswer<C> = Result<Box<PooledConnection<C>>, CheckoutError<<C as Connection>::Error>>;

/// Calls of a core to its [`ManageConnection`](crate::ManageConnection), with the core's own types.
pub(crate) trait CoreCallbacks<C: Connection> {
    fn connect(&self, core: Rc<CorePool<C>>, permit: OpenPermit, generation: u64);
    fn clean(&self, core: Rc<CorePool<C>>, connection: Box<PooledConnection<C>>);
    fn closing(&self, conn: &C, reason: CloseReason);
    fn transfer(&self, core: Rc<CorePool<C>>, connection: Box<PooledConnection<C>>, reservation: TransferReservation);
}

/// State of one core.
pub(crate) struct CorePool<C: Connection> {
    pub(crate) pool: Arc<Pool<C>>,
    pub(crate) core: usize,
    callbacks: Box<dyn CoreCallbacks<C>>,
    /// Last in, first out: the most recently used connection is warm, and those at the bottom can reach their idle timeout.
    pub(crate) idle: RefCell<Vec<Box<PooledConnection<C>>>>,
    queue: RefCell<WaitQueue<CheckoutAnswer<C>>>,
    control: RefCell<PoolControl<C::Error>>,
    epoch: Cell<u64>,
    /// The [`generation`](PoolControl::generation) for which replaced idle connections were closed.
    pub(crate) swept_generation: Cell<u64>,
    /// Neither paused nor closed.
    granting: Cell<bool>,
    /// Maximum number of open connections, the reserve included.
    open_max: Cell<usize>,
    /// See [`Limits::oldest_first`].
    oldest_first: Cell<bool>,
    now: Cell<Instant>,
}

impl<C: Connection> CorePool<C> {
    pub(crate) fn new(pool: Arc<Pool<C>>, core: usize, callbacks: Box<dyn CoreCallbacks<C>>, now: Instant) -> Self {
        let control = pool.control().clone();
        let core_pool = Self {
            pool,
            core,
            callbacks,
            idle: RefCell::new(Vec::new()),
            queue: RefCell::new(WaitQueue::new()),
            control: RefCell::new(control),
            epoch: Cell::new(0),
            swept_generation: Cell::new(0),
            granting: Cell::new(false),
            open_max: Cell::new(0),
            oldest_first: Cell::new(false),
            now: Cell::new(now),
        };
        core_pool.apply_control();
        core_pool
    }

    pub(crate) fn status(&self) -> &CoreStatus {
        self.pool.core_table.core(self.core)
    }

    pub(crate) fn limits(&self) -> Limits {
        self.control.borrow().limits
    }

    pub(crate) fn generation(&self) -> u64 {
        self.control.borrow().generation
    }

    /// The latest time that a caller passed in.
    pub(crate) fn now(&self) -> Instant {
        self.now.get()
    }

    pub(crate) fn granting(&self) -> bool {
        self.granting.get()
    }

    /// Stores the time and applies changes by operators.
    #[inline]
    pub(crate) fn refresh(&self, now: Instant) {
        self.now.set(now);
        if self.pool.epoch() != self.epoch.get() {
            self.apply_control();
        }
    }

    #[cold]
    fn apply_control(&self) {
        let control = self.pool.control().clone();
        self.granting.set(!control.paused && control.closed.is_none());
        self.open_max.set(control.limits.open_max());
        self.oldest_first.set(control.limits.oldest_first);
        self.epoch.set(control.epoch);
        self.pool.core_table.apply_epoch(self.core, control.epoch);
        self.control.replace(control);
    }

    /// Fast path: an idle connection of this core for a new client.
    #[inline]
    pub(crate) fn take(self: &Rc<Self>, now: Instant) -> Option<Box<PooledConnection<C>>> {
        self.refresh(now);
        if !self.granting.get() || self.pool.core_table.has_waiters() && !self.may_take(now) {
            return None;
        }
        let connection = self.pop_usable()?;
        increment(&self.status().active);
        Some(connection)
    }

    /// Clients wait on this or another core. Returns whether a new client may take an idle connection of this core.
    #[cold]
    fn may_take(self: &Rc<Self>, now: Instant) -> bool {
        self.share_idle(self.pool.pool_time(now));
        self.queue.borrow().is_empty()
    }

    /// Takes the most recently used idle connection that is usable, or with [`Limits::oldest_first`] the least recently used.
    #[inline]
    fn pop_usable(self: &Rc<Self>) -> Option<Box<PooledConnection<C>>> {
        loop {
            let mut idle = self.idle.borrow_mut();
            let mut connection = match self.oldest_first.get() && !idle.is_empty() {
                true => idle.remove(0),
                false => idle.pop()?,
            };
            self.pool.core_table.publish_taken(self.core, idle.len());
            drop(idle);
            match self.check_usable(&mut connection) {
                Ok(()) => return Some(connection),
                Err(reason) => self.report_closing(&connection, reason),
            }
        }
    }

    /// Returns why a connection must be closed instead of granted.
    #[inline]
    pub(crate) fn check_usable(&self, connection: &mut PooledConnection<C>) -> Result<(), CloseReason> {
        self.check_current(connection)?;
        if connection.conn.is_usable() { Ok(()) } else { Err(CloseReason::Unusable) }
    }

    /// Reports a connection that is about to be dropped.
    #[cold]
    pub(crate) fn report_closing(&self, connection: &PooledConnection<C>, reason: CloseReason) {
        self.callbacks.closing(&connection.conn, reason);
    }

    /// Checks that the connection is of the current generation and within its lifetime.
    #[inline]
    fn check_current(&self, connection: &mut PooledConnection<C>) -> Result<(), CloseReason> {
        self.check_generation(connection)?;
        match connection.record.expires_at {
            Some(expires_at) if self.now.get() >= expires_at => Err(CloseReason::Lifetime),
            _ => Ok(()),
        }
    }

    /// Checks that the connection is of the current generation, and that the pool is not closed.
    #[inline]
    fn check_generation(&self, connection: &mut PooledConnection<C>) -> Result<(), CloseReason> {
        let record = &mut connection.record;
        if record.checked_epoch != Some(self.epoch.get()) {
            let control = self.control.borrow();
            if record.generation != control.generation || control.closed.is_some() {
                return Err(CloseReason::Replaced);
            }
            let lifetime = control.limits.jittered_lifetime(record.jitter_share);
            record.expires_at = lifetime.and_then(|lifetime| record.opened_at.checked_add(lifetime));
            record.checked_epoch = Some(control.epoch);
        }
        Ok(())
    }

    /// A client, or the cleaner, releases a connection.
    #[inline]
    pub(crate) fn release(
        self: &Rc<Self>,
        mut connection: Box<PooledConnection<C>>,
        action: ReleaseAction,
        now: Instant,
    ) {
        self.refresh(now);
        let status = self.status();
        let was = if connection.cleaning { &status.cleaning } else { &status.active };
        let stays =
            if action == ReleaseAction::Close { Err(CloseReason::Released) } else { self.check_keep(&mut connection) };
        if let Err(reason) = stays {
            self.report_closing(&connection, reason);
            // Closed before it is discounted, so that a quiescent pool has no connection in use.
            drop(connection);
            decrement(was);
            self.find_connections();
        } else if action == ReleaseAction::Clean {
            // Incremented first: every reader of the figures counts the connection at least once.
            increment(&status.cleaning);
            decrement(was);
            connection.cleaning = true;
            self.callbacks.clean(Rc::clone(self), connection);
        } else {
            decrement(was);
            connection.cleaning = false;
            connection.record.released_at = Some(now);
            self.offer(connection);
        }
    }

    /// Releases a connection whose client left before it collected its answer.
    pub(crate) fn pass_on(self: &Rc<Self>, connection: Box<PooledConnection<C>>) {
        self.release(connection, ReleaseAction::Reuse, self.now.get());
    }

    /// A connect succeeded.
    pub(crate) fn opened(self: &Rc<Self>, mut connection: Box<PooledConnection<C>>, now: Instant) {
        self.refresh(now);
        match self.check_new(&mut connection) {
            Ok(()) => self.offer(connection),
            Err(reason) => {
                self.report_closing(&connection, reason);
                drop(connection);
            }
        }
        self.pool.notify_waiting_cores();
        self.find_connections();
        self.open_min();
    }

    /// Adds a connection that was opened elsewhere, as one in use.
    pub(crate) fn adopt(self: &Rc<Self>, conn: C, opened_at: Instant, now: Instant) -> Box<PooledConnection<C>> {
        self.refresh(now);
        let record = ConnectionRecord {
            opened_at,
            released_at: None,
            jitter_share: self.pool.backoff().random(),
            generation: self.generation(),
            checked_epoch: None,
            expires_at: None,
            permit: OpenPermit::opened(&self.pool),
        };
        increment(&self.status().active);
        Box::new(PooledConnection { conn, cleaning: false, record })
    }

    /// Checks that the connection is current, and that no more connections are open than the limits allow.
    #[inline]
    fn check_keep(&self, connection: &mut PooledConnection<C>) -> Result<(), CloseReason> {
        self.check_current(connection)?;
        self.check_surplus(connection)
    }

    /// Like [`check_keep`](Self::check_keep), for a connection that no client has had: its lifetime does not count. A lifetime
    /// below the duration of a connect would otherwise close each connection before a client gets it.
    fn check_new(&self, connection: &mut PooledConnection<C>) -> Result<(), CloseReason> {
        self.check_generation(connection)?;
        self.check_surplus(connection)
    }

    #[inline]
    fn check_surplus(&self, connection: &mut PooledConnection<C>) -> Result<(), CloseReason> {
        let open_max = self.open_max.get();
        let is_surplus = self.pool.open() > open_max && connection.record.permit.release_above(open_max);
        if is_surplus { Err(CloseReason::Surplus) } else { Ok(()) }
    }

    /// Assigns a free connection: to the oldest client of this core, unless a client of another core has waited longer by
    /// more than `overtake_max`. Without a client here, makes it idle, and then checks for clients of other cores.
    #[inline]
    fn offer(self: &Rc<Self>, mut connection: Box<PooledConnection<C>>) {
        let oldest = if self.granting.get() { self.queue.borrow().oldest() } else { None };
        if let Some(since) = oldest {
            return self.grant(connection, since);
        }
        connection.conn.on_idle();
        let mut idle = self.idle.borrow_mut();
        idle.push(connection);
        self.pool.core_table.publish_idle(self.core, idle.len());
        drop(idle);
        if self.pool.core_table.has_waiters() {
            self.share_idle(PoolTime::MAX);
        }
    }

    /// Grants a connection while clients wait here, the oldest since `since`.
    fn grant(self: &Rc<Self>, connection: Box<PooledConnection<C>>, since: PoolTime) {
        if let Some(reservation) = self.reserve_elsewhere(since) {
            return self.send(connection, reservation);
        }
        increment(&self.status().active);
        match self.answer(Ok(connection)) {
            Ok(waker) => waker.into_iter().for_each(Waker::wake),
            Err(_) => unreachable!("the queue had an oldest waiter"),
        }
    }

    /// Reserves a connection for the core whose oldest client arrived more than `overtake_max` before `since`. With
    /// `PoolTime::MAX`: for the core with the oldest client.
    fn reserve_elsewhere(&self, since: PoolTime) -> Option<TransferReservation> {
        let overtake_max = pool_time(self.control.borrow().limits.overtake_max);
        loop {
            let (core, oldest) = self.pool.core_table.oldest_elsewhere(self.core)?;
            if oldest.saturating_add(overtake_max) >= since {
                return None;
            }
            // Refused if another core reserved first; then another client is the oldest unserved one.
            if let Some(reservation) = TransferReservation::new(&self.pool, core) {
                return Some(reservation);
            }
        }
    }

    /// Sends idle connections to clients of other cores that arrived more than `overtake_max` before `since`.
    pub(crate) fn share_idle(self: &Rc<Self>, since: PoolTime) {
        while self.granting.get() && !self.idle.borrow().is_empty() {
            let Some(reservation) = self.reserve_elsewhere(since) else {
                return;
            };
            match self.pop_usable() {
                Some(connection) => self.send(connection, reservation),
                None => return,
            }
        }
    }

    fn send(self: &Rc<Self>, connection: Box<PooledConnection<C>>, reservation: TransferReservation) {
        self.callbacks.transfer(Rc::clone(self), connection, reservation);
    }

    fn receive(self: &Rc<Self>, detached: DetachedConnection<C>) {
        let DetachedConnection { conn, record, reservation } = detached;
        reservation.arrived();
        let conn = C::attach(conn);
        let mut connection = Box::new(PooledConnection { conn, cleaning: false, record });
        let is_new = connection.record.released_at.is_none();
        let kept = if is_new { self.check_new(&mut connection) } else { self.check_keep(&mut connection) };
        match kept {
            Ok(()) if connection.conn.is_usable() => self.offer(connection),
            Ok(()) => self.report_closing(&connection, CloseReason::Unusable),
            Err(reason) => self.report_closing(&connection, reason),
        }
    }

    pub(crate) fn process_messages(self: &Rc<Self>, now: Instant) {
        self.refresh(now);
        self.close_replaced();
        let unread = self.pool.mailbox(self.core).take();
        for connection in unread.connections {
            self.receive(connection);
        }
        if unread.evict {
            self.evict_one();
        }
        self.serve(now);
        if unread.idle_requested {
            self.forward_request();
        }
    }

    /// Another core asked for an idle connection, and those of this core were not enough. Asks the next core with idle
    /// connections, or makes the cores with waiting clients check, so that they open one.
    fn forward_request(&self) {
        if !self.granting.get() {
            return;
        }
        let Some((waiting, _)) = self.pool.core_table.oldest_elsewhere(self.core) else {
            return;
        };
        match self.pool.core_table.idle_elsewhere(self.core) {
            Some((idle, _)) if idle != waiting && self.pool.post(idle, CoreMessage::RequestIdle) => {}
            // All cores with waiting clients: several may have asked this core and opened none.
            _ => self.pool.notify_waiting_cores(),
        }
    }

    /// Serves waiting clients after a change.
    pub(crate) fn serve(self: &Rc<Self>, now: Instant) {
        self.refresh(now);
        if let Some(error) = self.closed() {
            self.answer_all(&CheckoutError::Closed(error));
            drop(self.idle.take());
            self.pool.core_table.publish_taken(self.core, 0);
            return;
        }
        while self.granting.get() && !self.queue.borrow().is_empty() {
            let Some(connection) = self.pop_usable() else { break };
            self.offer(connection);
        }
        if self.pool.core_table.has_waiters() {
            self.share_idle(PoolTime::MAX);
        }
        self.find_connections();
    }

    /// Looks for connections for the clients that wait here: idle ones of other cores first, then new ones.
    pub(crate) fn find_connections(self: &Rc<Self>) {
        while self.granting.get() {
            let connecting = self.status().connecting.load(Relaxed);
            let missing = self.pool.core_table.unserved(self.core).saturating_sub(connecting);
            if missing == 0 {
                return;
            }
            if let Some((other, idle)) = self.pool.core_table.idle_elsewhere(self.core) {
                // A core without a `LocalPool` refuses the message, and has no idle connections any more.
                if !self.pool.post(other, CoreMessage::RequestIdle) {
                    continue;
                }
                if idle >= missing {
                    return;
                }
            }
            if self.is_backing_off(self.pool.client_demand()) || !self.connect(self.limits().size) {
                return;
            }
        }
    }

    /// Returns whether a connect must wait after a failed one. If it would be for the waiting clients, and no connection is
    /// open that could serve them, they get the error of the failed connect.
    pub(crate) fn is_backing_off(&self, demand: ConnectDemand) -> bool {
        let backoff = self.pool.backoff();
        if !backoff.is_pausing(self.now.get(), demand) {
            return false;
        }
        let error = backoff.last_error().filter(|_| demand != ConnectDemand::Minimum);
        drop(backoff);
        if let Some(error) = error
            && !self.pool.may_serve_waiters()
        {
            self.answer_all(&CheckoutError::Connect(error));
        }
        true
    }

    /// Starts a connect, if fewer than `open_max` connections are open on all cores.
    pub(crate) fn connect(self: &Rc<Self>, open_max: usize) -> bool {
        let connecting_max = self.control.borrow().limits.connecting_max;
        let Some(permit) = OpenPermit::take(&self.pool, open_max, connecting_max) else {
            return false;
        };
        increment(&self.status().connecting);
        self.callbacks.connect(Rc::clone(self), permit, self.generation());
        true
    }

    /// Adds a client to the queue.
    #[cold]
    pub(crate) fn join(self: &Rc<Self>, now: Instant) -> Result<WaiterId, CheckoutError<C::Error>> {
        if let Some(error) = self.closed() {
            return Err(CheckoutError::Closed(error));
        }
        let waiting: usize = self.pool.core_table.cores().map(CoreStatus::waiting).sum();
        if waiting >= self.control.borrow().limits.waiting_max {
            return Err(CheckoutError::QueueFull);
        }
        let waiter = self.queue.borrow_mut().join(self.pool.pool_time(now));
        self.publish_waiting();
        self.find_connections();
        Ok(waiter)
    }

    pub(crate) fn poll_answer(&self, waiter: WaiterId, waker: &Waker) -> Option<CheckoutAnswer<C>> {
        // The previous waker is dropped after the borrow ends: its drop may drop a task and that task's checkouts.
        let (answer, _previous) = self.queue.borrow_mut().poll(waiter, waker);
        answer
    }

    pub(crate) fn leave(&self, waiter: WaiterId) -> WaiterLeft<CheckoutAnswer<C>> {
        let (left, _waker) = self.queue.borrow_mut().leave(waiter);
        self.publish_waiting();
        left
    }

    pub(crate) fn clients_ahead(&self, waiter: WaiterId) -> usize {
        self.queue.borrow().ahead(waiter)
    }

    /// Number of clients of this core, at most `max`, that arrived at `since` or earlier.
    pub(crate) fn waiting_since(&self, since: PoolTime, max: usize) -> usize {
        self.queue.borrow().waiting_since(since, max)
    }

    /// Returns whether no connection is idle on any core and none can be opened now.
    pub(crate) fn is_exhausted(&self) -> bool {
        let size = self.control.borrow().limits.size;
        self.pool.core_table.cores().all(|status| status.idle() == 0)
            && (self.pool.open() >= size || self.pool.backoff().is_pausing(self.now.get(), self.pool.client_demand()))
    }

    fn answer(&self, answer: CheckoutAnswer<C>) -> Result<Option<Waker>, CheckoutAnswer<C>> {
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
        self.pool.core_table.publish_waiting(self.core, queue.len(), queue.oldest());
    }

    fn closed(&self) -> Option<Arc<C::Error>> {
        self.control.borrow().closed.clone()
    }
}

impl<C: Connection> Drop for CorePool<C> {
    fn drop(&mut self) {
        self.pool.core_table.publish_taken(self.core, 0);
        self.idle.get_mut().clear();
        self.pool.core_table.detach(self.core);
        drop(self.pool.mailbox(self.core).close());
    }
}
