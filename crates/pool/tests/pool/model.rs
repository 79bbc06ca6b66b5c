//! Property test: any sequence of operations on several cores keeps the contract.

use std::{
    sync::atomic::Ordering::SeqCst,
    task::{Context, Waker},
    time::{Duration, Instant},
};

use proptest::prelude::*;
use tidegate_pool::{CheckoutError, Lease, Limits, ReleaseAction};

use crate::fake::{Client, Conn, Failure, Fixture, limits};

const CORES: usize = 3;

#[derive(Clone, Debug)]
enum Operation {
    Checkout(usize),
    Leave(usize),
    Release(usize, u8),
    Drop(usize),
    Kill(usize),
    Busy(usize),
    Deliver(usize),
    Connected(usize),
    Failed(usize),
    Cleaned(usize),
    Transfer(usize, bool),
    Sweep(usize),
    Advance(u64),
    Pause(bool),
    Reconnect,
    Resize(usize),
}

fn operation() -> impl Strategy<Value = Operation> {
    let at = 0..1000usize;
    prop_oneof![
        8 => (0..CORES).prop_map(Operation::Checkout),
        2 => at.clone().prop_map(Operation::Leave),
        8 => (at.clone(), 0..8u8).prop_map(|(at, action)| Operation::Release(at, action)),
        1 => at.clone().prop_map(Operation::Drop),
        1 => at.clone().prop_map(Operation::Kill),
        1 => at.clone().prop_map(Operation::Busy),
        6 => at.clone().prop_map(Operation::Deliver),
        6 => (0..CORES).prop_map(Operation::Connected),
        1 => (0..CORES).prop_map(Operation::Failed),
        2 => (0..CORES).prop_map(Operation::Cleaned),
        2 => (0..CORES, any::<bool>()).prop_map(|(core, arrives)| Operation::Transfer(core, arrives)),
        1 => (0..CORES).prop_map(Operation::Sweep),
        3 => (0..40u64).prop_map(|x| Operation::Advance(x * x)),
        1 => any::<bool>().prop_map(Operation::Pause),
        1 => Just(Operation::Reconnect),
        1 => (1..5usize).prop_map(Operation::Resize),
    ]
}

/// A waiting client with its core and its arrival.
struct Waiting {
    client: Client,
    core: usize,
    since: Instant,
}

struct Model {
    fixture: Fixture,
    waiting: Vec<Waiting>,
    leases: Vec<Lease<Conn>>,
    size: usize,
    /// Above `size` after `size` was lowered, until connections are closed.
    allowed: usize,
}

impl Model {
    fn new() -> Self {
        let fixture = Fixture::new(CORES, Self::limits(4));
        Self { fixture, waiting: Vec::new(), leases: Vec::new(), size: 4, allowed: 4 }
    }

    fn limits(size: usize) -> Limits {
        let idle_timeout = Some(Duration::from_secs(3));
        let lifetime = Some(Duration::from_secs(10));
        Limits { connecting_max: 2, idle_timeout, lifetime, ..limits(size) }
    }

    fn apply(&mut self, step: &Operation) {
        let now = self.fixture.now();
        match *step {
            Operation::Checkout(core) => {
                let client = self.fixture.request(core);
                self.waiting.push(Waiting { client, core, since: now });
            }
            Operation::Leave(at) => drop(pick(&mut self.waiting, at)),
            Operation::Release(at, action) => {
                self.release(at, [ReleaseAction::Clean, ReleaseAction::Close].get(action as usize));
            }
            Operation::Drop(at) => drop(pick(&mut self.leases, at)),
            Operation::Kill(at) => self.with_lease(at, |lease| lease.handle.dead.store(true, SeqCst)),
            Operation::Busy(at) => self.with_lease(at, |lease| lease.handle.busy.store(true, SeqCst)),
            Operation::Deliver(which) => drop(self.fixture.deliver(which)),
            Operation::Connected(core) => drop(self.connect(core)),
            Operation::Failed(core) if self.fixture.pending(core) > 0 => self.fixture.failed(core, 1),
            Operation::Cleaned(core) => drop(self.clean(core)),
            Operation::Transfer(core, arrives) => drop(self.transfer(core, arrives)),
            Operation::Sweep(core) => self.fixture.maintain(core),
            Operation::Advance(ms) => self.fixture.advance_ms(ms),
            Operation::Pause(true) => self.fixture.pool.pause(),
            Operation::Pause(false) => self.fixture.pool.resume(),
            Operation::Reconnect => self.fixture.pool.reconnect(),
            Operation::Resize(size) => self.resize(size),
            Operation::Failed(_) => {}
        }
    }

    fn with_lease(&self, at: usize, act: impl Fn(&Lease<Conn>)) {
        if !self.leases.is_empty() {
            act(&self.leases[at % self.leases.len()]);
        }
    }

    /// Releases a lease, and checks that the served client overtook no other one by more than `overtake_max`.
    fn release(&mut self, at: usize, action: Option<&ReleaseAction>) {
        let Some(lease) = pick(&mut self.leases, at) else {
            return;
        };
        let core = lease.core();
        let known = self.fixture.pool.counts().moving == 0;
        lease.release(action.copied().unwrap_or(ReleaseAction::Reuse), self.fixture.now());
        let served = self.collect();
        if known && let Some(&(_, since)) = served.iter().find(|(at, _)| *at == core) {
            let overtaken = |w: &&Waiting| w.core != core && w.since + Limits::default().overtake_max < since;
            assert_eq!(self.waiting.iter().filter(overtaken).count(), 0, "overtaken by more than overtake_max");
        }
    }

    fn connect(&self, core: usize) -> bool {
        let some = self.fixture.pending(core) > 0;
        if some {
            self.fixture.connected(core);
        }
        some
    }

    fn clean(&self, core: usize) -> bool {
        let lease = self.fixture.calls[core].to_clean.borrow_mut().pop_front();
        lease.map(|lease| lease.release(ReleaseAction::Reuse, self.fixture.now())).is_some()
    }

    fn transfer(&self, core: usize, arrives: bool) -> bool {
        let transfer = self.fixture.calls[core].transfers.borrow_mut().pop_front();
        let Some(mut transfer) = transfer else {
            return false;
        };
        if arrives {
            self.fixture.counter.detachable.store(true, SeqCst);
            let mut cx = Context::from_waker(Waker::noop());
            assert!(Future::poll(std::pin::Pin::new(&mut transfer), &mut cx).is_ready());
            self.fixture.counter.detachable.store(false, SeqCst);
        }
        true
    }

    fn resize(&mut self, size: usize) {
        self.fixture.pool.set_limits(Self::limits(size));
        self.size = size;
    }

    /// Collects answers; returns core and arrival of each served client.
    fn collect(&mut self) -> Vec<(usize, Instant)> {
        let mut served = Vec::new();
        let mut still: Vec<Waiting> = Vec::new();
        for mut waiting in std::mem::take(&mut self.waiting) {
            let Some(outcome) = waiting.client.poll() else {
                still.push(waiting);
                continue;
            };
            assert!(still.iter().all(|older| older.core != waiting.core), "not first in, first out");
            match outcome {
                Ok(lease) => {
                    assert!(
                        !lease.handle.dead.load(SeqCst) || waiting.client.wakes() > 0,
                        "unusable connection granted"
                    );
                    served.push((waiting.core, waiting.since));
                    self.leases.push(lease);
                }
                Err(CheckoutError::Connect(error)) => assert_eq!(*error, Failure(1)),
                Err(error) => panic!("{error}"),
            }
        }
        self.waiting = still;
        served
    }

    fn check(&mut self) {
        self.collect();
        let counts = self.fixture.pool.counts();
        let total = |count: fn(&crate::fake::ManagerCalls) -> usize| -> usize {
            self.fixture.calls.iter().map(|calls| count(calls)).sum()
        };
        assert_eq!(counts.active, self.leases.len());
        assert_eq!(counts.waiting, self.waiting.len());
        assert_eq!(counts.connecting, total(|calls| calls.pending.borrow().len()));
        assert_eq!(counts.cleaning, total(|calls| calls.to_clean.borrow().len()));
        assert_eq!(counts.open, self.fixture.counter.open() + counts.connecting);
        let sum = counts.active + counts.idle + counts.cleaning + counts.connecting + counts.moving;
        assert_eq!(counts.open, sum, "{counts:?}");
        self.allowed = self.size.max(self.allowed.min(counts.open));
        assert!(counts.open <= self.allowed, "{} open of {}", counts.open, self.allowed);
        assert_eq!(counts.oldest_wait, self.waiting.iter().map(|waiting| waiting.since).min());
    }

    /// Answers all manager calls until there are none.
    fn answer_all(&mut self) {
        loop {
            self.fixture.deliver_all();
            let work = |core| self.connect(core) || self.clean(core) || self.transfer(core, true);
            if !(0..CORES).any(work) {
                break;
            }
        }
        self.check();
    }

    /// Checks that every client is served in the end.
    fn finish(&mut self) {
        self.fixture.pool.resume();
        self.answer_all();
        self.fixture.advance_ms(20_000);
        (0..CORES).for_each(|core| self.fixture.maintain(core));
        self.answer_all();
        loop {
            let counts = self.fixture.pool.counts();
            if counts.waiting == 0 {
                break;
            }
            assert_eq!(counts.idle, 0, "client waits beside an idle connection");
            assert!(counts.open >= self.size, "client waits while a permit is free");
            self.release(0, None);
            self.answer_all();
        }
        while !self.leases.is_empty() {
            self.release(0, None);
        }
        self.answer_all();
        assert_eq!(self.fixture.counter.open(), self.fixture.pool.counts().idle);
        self.fixture.locals.clear();
        assert_eq!((self.fixture.counter.open(), self.fixture.pool.counts().open), (0, 0));
    }
}

fn pick<T>(from: &mut Vec<T>, at: usize) -> Option<T> {
    if from.is_empty() { None } else { Some(from.remove(at % from.len())) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_operations_keeps_the_contract(steps in prop::collection::vec(operation(), 1..200)) {
        let mut model = Model::new();
        for step in &steps {
            model.apply(step);
            model.check();
        }
        model.finish();
    }
}

/// Each grant, with messages delivered immediately, is within the bound.
#[test]
fn grants_overtake_by_at_most_overtake_max() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut model = Model::new();
    let mut grants = 0;
    while grants < 3_000 {
        model.fixture.advance(Duration::from_micros(random.u64(..500)));
        if model.waiting.len() < 60 {
            // Core 0 gets half of the clients.
            model.apply(&Operation::Checkout(random.usize(..4) % CORES));
        }
        if random.bool() && !model.leases.is_empty() {
            grants += model.waiting.len().min(1);
            model.release(random.usize(..100), None);
        }
        model.answer_all();
    }
    model.finish();
}
