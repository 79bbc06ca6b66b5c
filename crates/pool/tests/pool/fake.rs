//! A fake connection with a number, a manager that records its calls, and cores that the test runs step by step.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use tidegate_pool::{
    Checkout, CheckoutError, Connection, Lease, Limits, LocalPool, ManageConnection, PendingConnect, Pool, Transfer,
};

/// Why a fake connect fails.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("fake failure {0}")]
pub(crate) struct Failure(pub(crate) u32);

/// Behaviour of one connection, set by the test.
#[derive(Debug, Default)]
pub(crate) struct Handle {
    pub(crate) dead: AtomicBool,
    /// `poll_detach` is pending.
    pub(crate) busy: AtomicBool,
    /// Leased by a client.
    pub(crate) leased: AtomicBool,
}

/// Counts open connections and asserts their maximum.
#[derive(Debug)]
pub(crate) struct OpenCounter {
    pub(crate) open: AtomicUsize,
    pub(crate) opened: AtomicUsize,
    pub(crate) open_max: AtomicUsize,
    /// Busy connections can be detached.
    pub(crate) detachable: AtomicBool,
}

impl OpenCounter {
    pub(crate) fn new(open_max: usize) -> Arc<Self> {
        Arc::new(Self { open: 0.into(), opened: 0.into(), open_max: open_max.into(), detachable: false.into() })
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(SeqCst)
    }
}

/// A fake connection, not `Send`, like a connection bound to the I/O of its core.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) id: usize,
    pub(crate) handle: Arc<Handle>,
    detached: Option<Detached>,
    _bound: Rc<()>,
}

#[derive(Debug)]
pub(crate) struct Detached {
    id: usize,
    handle: Arc<Handle>,
    counter: Arc<OpenCounter>,
}

impl Drop for Detached {
    fn drop(&mut self) {
        self.counter.open.fetch_sub(1, SeqCst);
    }
}

impl Conn {
    pub(crate) fn open(counter: &Arc<OpenCounter>) -> Self {
        let open = counter.open.fetch_add(1, SeqCst) + 1;
        assert!(open <= counter.open_max.load(SeqCst), "{open} connections open");
        let id = counter.opened.fetch_add(1, SeqCst);
        Self::attach(Detached { id, handle: Arc::default(), counter: Arc::clone(counter) })
    }
}

impl Connection for Conn {
    type Detached = Detached;
    type Error = Failure;

    fn is_usable(&mut self) -> bool {
        !self.handle.dead.load(SeqCst)
    }

    fn poll_detach(&mut self, _: &mut Context<'_>) -> Poll<()> {
        let detachable = self.detached.as_ref().is_some_and(|p| p.counter.detachable.load(SeqCst));
        if self.handle.busy.load(SeqCst) && !detachable { Poll::Pending } else { Poll::Ready(()) }
    }

    fn detach(mut self) -> Detached {
        self.detached.take().expect("detached once")
    }

    fn attach(detached: Detached) -> Self {
        let handle = Arc::clone(&detached.handle);
        Self { id: detached.id, handle, detached: Some(detached), _bound: Rc::new(()) }
    }
}

/// Calls to the manager, answered by the test.
#[derive(Default)]
pub(crate) struct ManagerCalls {
    pub(crate) pending: RefCell<VecDeque<PendingConnect<Conn>>>,
    pub(crate) to_clean: RefCell<VecDeque<Lease<Conn>>>,
    pub(crate) transfers: RefCell<VecDeque<Transfer<Conn>>>,
    /// Connects succeed in the call.
    pub(crate) eager: Cell<bool>,
}

pub(crate) struct RecordingManager {
    calls: Rc<ManagerCalls>,
    counter: Arc<OpenCounter>,
    now: Rc<Cell<Instant>>,
}

impl ManageConnection<Conn> for RecordingManager {
    fn connect(&self, pending: PendingConnect<Conn>) {
        if self.calls.eager.get() {
            pending.succeed(Conn::open(&self.counter), self.now.get());
        } else {
            self.calls.pending.borrow_mut().push_back(pending);
        }
    }

    fn clean(&self, lease: Lease<Conn>) {
        self.calls.to_clean.borrow_mut().push_back(lease);
    }

    fn run_transfer(&self, transfer: Transfer<Conn>) {
        self.calls.transfers.borrow_mut().push_back(transfer);
    }
}

/// Counts wake-ups.
#[derive(Debug, Default)]
pub(crate) struct WakeCounter(pub(crate) AtomicUsize);

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A client with its checkout.
pub(crate) struct Client {
    pub(crate) checkout: Checkout<Conn>,
    pub(crate) wakes: Arc<WakeCounter>,
}

pub(crate) type Outcome = Result<Lease<Conn>, CheckoutError<Failure>>;

impl Client {
    pub(crate) fn poll(&mut self) -> Option<Outcome> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        match Pin::new(&mut self.checkout).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    pub(crate) fn lease(&mut self) -> Lease<Conn> {
        self.poll().expect("granted").expect("a lease")
    }

    pub(crate) fn wakes(&self) -> usize {
        self.wakes.0.load(SeqCst)
    }
}

/// Several cores on one thread, run step by step.
pub(crate) struct Fixture {
    pub(crate) pool: Arc<Pool<Conn>>,
    pub(crate) locals: Vec<LocalPool<Conn>>,
    pub(crate) calls: Vec<Rc<ManagerCalls>>,
    pub(crate) counter: Arc<OpenCounter>,
    woken: Arc<Mutex<VecDeque<usize>>>,
    now: Rc<Cell<Instant>>,
}

impl Fixture {
    pub(crate) fn new(cores: usize, limits: Limits) -> Self {
        let now = Rc::new(Cell::new(Instant::now()));
        let woken = Arc::new(Mutex::new(VecDeque::new()));
        let wakes = Arc::clone(&woken);
        let wake = move |core| wakes.lock().expect("not poisoned").push_back(core);
        let pool = Pool::new(cores, limits, 1, now.get(), wake);
        let counter = OpenCounter::new(limits.size.saturating_add(limits.reserve));
        let calls: Vec<Rc<ManagerCalls>> = (0..cores).map(|_| Rc::default()).collect();
        let locals = calls.iter().enumerate().map(|(core, calls)| {
            let (calls, counter, now) = (Rc::clone(calls), Arc::clone(&counter), Rc::clone(&now));
            LocalPool::new(&pool, core, now.get(), RecordingManager { calls, counter, now })
        });
        let locals = locals.collect();
        Self { locals, pool, calls, counter, woken, now }
    }

    /// A fixture whose connects succeed in the call.
    pub(crate) fn eager(cores: usize, limits: Limits) -> Self {
        let fixture = Self::new(cores, limits);
        fixture.calls.iter().for_each(|calls| calls.eager.set(true));
        fixture
    }

    pub(crate) fn now(&self) -> Instant {
        self.now.get()
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.now.set(self.now.get() + by);
    }

    pub(crate) fn advance_ms(&self, by: u64) {
        self.advance(Duration::from_millis(by));
    }

    /// A client that has polled once, and the result.
    pub(crate) fn client(&self, core: usize) -> (Client, Option<Outcome>) {
        let mut client = self.request(core);
        let outcome = client.poll();
        (client, outcome)
    }

    pub(crate) fn request(&self, core: usize) -> Client {
        Client { checkout: self.locals[core].checkout(self.now()), wakes: Arc::default() }
    }

    /// A client that has to wait.
    pub(crate) fn waiter(&self, core: usize) -> Client {
        let (client, outcome) = self.client(core);
        assert!(outcome.is_none(), "must wait, but got {outcome:?}");
        client
    }

    /// The lease of a client that does not wait.
    pub(crate) fn lease(&self, core: usize) -> Lease<Conn> {
        self.request(core).lease()
    }

    /// A connection that was opened elsewhere.
    pub(crate) fn adopt(&self, core: usize) -> Lease<Conn> {
        self.locals[core].adopt(Conn::open(&self.counter), self.now(), self.now())
    }

    pub(crate) fn next_pending(&self, core: usize) -> PendingConnect<Conn> {
        self.calls[core].pending.borrow_mut().pop_front().expect("connect was called")
    }

    pub(crate) fn pending(&self, core: usize) -> usize {
        self.calls[core].pending.borrow().len()
    }

    pub(crate) fn connected(&self, core: usize) {
        self.next_pending(core).succeed(Conn::open(&self.counter), self.now());
    }

    pub(crate) fn failed(&self, core: usize, number: u32) {
        self.next_pending(core).fail(Failure(number), self.now());
    }

    pub(crate) fn maintain(&self, core: usize) {
        self.locals[core].maintain(self.now());
    }

    /// Lets one woken core read its messages. Returns false if no core is woken.
    pub(crate) fn deliver(&self, which: usize) -> bool {
        let core = {
            let mut woken = self.woken.lock().expect("not poisoned");
            if woken.is_empty() {
                return false;
            }
            let at = which % woken.len();
            woken.remove(at).expect("an index within")
        };
        self.locals[core].process_messages(self.now());
        true
    }

    /// Lets all woken cores read their messages until no core is woken.
    pub(crate) fn deliver_all(&self) {
        let calm = (0..100_000).any(|_| !self.deliver(0));
        assert!(calm, "cores wake each other without end");
    }
}

/// Numbers of the connections.
pub(crate) fn ids(leases: &[Lease<Conn>]) -> Vec<usize> {
    leases.iter().map(|lease| lease.id).collect()
}

pub(crate) fn limits(size: usize) -> Limits {
    Limits { size, connecting_max: size, lifetime: None, idle_timeout: None, ..Limits::default() }
}
