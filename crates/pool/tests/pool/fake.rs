//! A connection that is a number, a host that notes what it is asked, and cores stepped by hand.

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

use tidegate_pool::{Checkout, CheckoutError, Connection, Courier, Host, Lease, Limits, Local, Pool, Slot};

/// Why a fake connect fails.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("fake failure {0}")]
pub(crate) struct Failure(pub(crate) u32);

/// How a test bends one connection.
#[derive(Debug, Default)]
pub(crate) struct Handle {
    pub(crate) dead: AtomicBool,
    /// It is not ready to park at once.
    pub(crate) busy: AtomicBool,
    /// A client has it.
    pub(crate) leased: AtomicBool,
}

/// Counts the open connections and refuses to count more than allowed.
#[derive(Debug)]
pub(crate) struct Census {
    pub(crate) open: AtomicUsize,
    pub(crate) opened: AtomicUsize,
    pub(crate) most: AtomicUsize,
    /// Busy connections are ready to park after all.
    pub(crate) parkable: AtomicBool,
}

impl Census {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { open: 0.into(), opened: 0.into(), most: most.into(), parkable: false.into() })
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(SeqCst)
    }
}

/// A connection. Its parts are not `Send`, as with one bound to its core's I/O.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) id: usize,
    pub(crate) handle: Arc<Handle>,
    parcel: Option<Parked>,
    _bound: Rc<()>,
}

#[derive(Debug)]
pub(crate) struct Parked {
    id: usize,
    handle: Arc<Handle>,
    census: Arc<Census>,
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.census.open.fetch_sub(1, SeqCst);
    }
}

impl Conn {
    pub(crate) fn open(census: &Arc<Census>) -> Self {
        let open = census.open.fetch_add(1, SeqCst) + 1;
        assert!(open <= census.most.load(SeqCst), "{open} connections open");
        let id = census.opened.fetch_add(1, SeqCst);
        Self::unpark(Parked { id, handle: Arc::default(), census: Arc::clone(census) })
    }
}

impl Connection for Conn {
    type Parked = Parked;
    type Error = Failure;

    fn is_usable(&mut self) -> bool {
        !self.handle.dead.load(SeqCst)
    }

    fn poll_park(&mut self, _: &mut Context<'_>) -> Poll<()> {
        let parkable = self.parcel.as_ref().is_some_and(|p| p.census.parkable.load(SeqCst));
        if self.handle.busy.load(SeqCst) && !parkable { Poll::Pending } else { Poll::Ready(()) }
    }

    fn park(mut self) -> Parked {
        self.parcel.take().expect("parked once")
    }

    fn unpark(parked: Parked) -> Self {
        let handle = Arc::clone(&parked.handle);
        Self { id: parked.id, handle, parcel: Some(parked), _bound: Rc::new(()) }
    }
}

/// What a host was asked, to be answered by the test.
#[derive(Default)]
pub(crate) struct Asked {
    pub(crate) slots: RefCell<VecDeque<Slot<Conn>>>,
    pub(crate) to_clean: RefCell<VecDeque<Lease<Conn>>>,
    pub(crate) couriers: RefCell<VecDeque<Courier<Conn>>>,
    /// Answer connects at once.
    pub(crate) eager: Cell<bool>,
}

pub(crate) struct Notes {
    asked: Rc<Asked>,
    census: Arc<Census>,
    now: Rc<Cell<Instant>>,
}

impl Host<Conn> for Notes {
    fn connect(&self, slot: Slot<Conn>) {
        if self.asked.eager.get() {
            slot.fulfil(Conn::open(&self.census), self.now.get());
        } else {
            self.asked.slots.borrow_mut().push_back(slot);
        }
    }

    fn clean(&self, lease: Lease<Conn>) {
        self.asked.to_clean.borrow_mut().push_back(lease);
    }

    fn send(&self, courier: Courier<Conn>) {
        self.asked.couriers.borrow_mut().push_back(courier);
    }
}

/// Counts its wakes.
#[derive(Debug, Default)]
pub(crate) struct Bell(pub(crate) AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A waiting client.
pub(crate) struct Client {
    pub(crate) checkout: Checkout<Conn>,
    pub(crate) bell: Arc<Bell>,
}

pub(crate) type Outcome = Result<Lease<Conn>, CheckoutError<Failure>>;

impl Client {
    pub(crate) fn poll(&mut self) -> Option<Outcome> {
        let waker = Waker::from(Arc::clone(&self.bell));
        match Pin::new(&mut self.checkout).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    pub(crate) fn lease(&mut self) -> Lease<Conn> {
        self.poll().expect("served").expect("with a lease")
    }

    pub(crate) fn rings(&self) -> usize {
        self.bell.0.load(SeqCst)
    }
}

/// Several cores on one thread, stepped by hand.
pub(crate) struct Bench {
    pub(crate) pool: Arc<Pool<Conn>>,
    pub(crate) locals: Vec<Local<Conn>>,
    pub(crate) asked: Vec<Rc<Asked>>,
    pub(crate) census: Arc<Census>,
    woken: Arc<Mutex<VecDeque<usize>>>,
    now: Rc<Cell<Instant>>,
}

impl Bench {
    pub(crate) fn new(cores: usize, limits: Limits) -> Self {
        let now = Rc::new(Cell::new(Instant::now()));
        let woken = Arc::new(Mutex::new(VecDeque::new()));
        let bell = Arc::clone(&woken);
        let wake = move |core| bell.lock().expect("not poisoned").push_back(core);
        let pool = Pool::new(cores, limits, 1, now.get(), wake);
        let census = Census::new(limits.size + limits.reserve);
        let asked: Vec<Rc<Asked>> = (0..cores).map(|_| Rc::default()).collect();
        let locals = asked.iter().enumerate().map(|(core, asked)| {
            let (asked, census, now) = (Rc::clone(asked), Arc::clone(&census), Rc::clone(&now));
            pool.local(core, now.get(), Notes { asked, census, now })
        });
        let locals = locals.collect();
        Self { locals, pool, asked, census, woken, now }
    }

    /// One core whose connects succeed at once.
    pub(crate) fn eager(cores: usize, limits: Limits) -> Self {
        let bench = Self::new(cores, limits);
        bench.asked.iter().for_each(|asked| asked.eager.set(true));
        bench
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

    /// A client that has polled once.
    pub(crate) fn client(&self, core: usize) -> (Client, Option<Outcome>) {
        let mut client = self.ask(core);
        let outcome = client.poll();
        (client, outcome)
    }

    pub(crate) fn ask(&self, core: usize) -> Client {
        Client { checkout: self.locals[core].checkout(self.now()), bell: Arc::default() }
    }

    /// A client that has to wait.
    pub(crate) fn waiter(&self, core: usize) -> Client {
        let (client, outcome) = self.client(core);
        assert!(outcome.is_none(), "has to wait, but got {outcome:?}");
        client
    }

    /// A client that is served at once.
    pub(crate) fn lease(&self, core: usize) -> Lease<Conn> {
        self.ask(core).lease()
    }

    pub(crate) fn slot(&self, core: usize) -> Slot<Conn> {
        self.asked[core].slots.borrow_mut().pop_front().expect("asked to connect")
    }

    pub(crate) fn slots(&self, core: usize) -> usize {
        self.asked[core].slots.borrow().len()
    }

    pub(crate) fn connected(&self, core: usize) {
        self.slot(core).fulfil(Conn::open(&self.census), self.now());
    }

    pub(crate) fn failed(&self, core: usize, number: u32) {
        self.slot(core).fail(Failure(number), self.now());
    }

    pub(crate) fn sweep(&self, core: usize) {
        self.locals[core].sweep(self.now());
    }

    /// Let one woken core read its mail. False: all is read.
    pub(crate) fn deliver(&self, which: usize) -> bool {
        let core = {
            let mut woken = self.woken.lock().expect("not poisoned");
            if woken.is_empty() {
                return false;
            }
            let at = which % woken.len();
            woken.remove(at).expect("an index within")
        };
        self.locals[core].process_mail(self.now());
        true
    }

    /// Let all woken cores read their mail until nothing more happens.
    pub(crate) fn settle(&self) {
        let calm = (0..100_000).any(|_| !self.deliver(0));
        assert!(calm, "cores keep waking each other for nothing");
    }
}

/// The numbers of the connections.
pub(crate) fn ids(leases: &[Lease<Conn>]) -> Vec<usize> {
    leases.iter().map(|lease| lease.id).collect()
}

pub(crate) fn limits(size: usize) -> Limits {
    Limits { size, connecting_max: size, lifetime: None, idle_timeout: None, ..Limits::default() }
}
