//! Any sequence of operations, on several cores stepped by hand, keeps the promises.

use std::{
    sync::atomic::Ordering::SeqCst,
    task::{Context, Waker},
    time::{Duration, Instant},
};

use proptest::prelude::*;
use tidegate_pool::{CheckoutError, Fate, Lease, Limits};

use crate::fake::{Bench, Client, Conn, Failure, limits};

const CORES: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Checkout(usize),
    Leave(usize),
    Release(usize, u8),
    Drop(usize),
    Kill(usize),
    Busy(usize),
    Mail(usize),
    Connected(usize),
    Failed(usize),
    Cleaned(usize),
    Courier(usize, bool),
    Sweep(usize),
    Advance(u64),
    Pause(bool),
    Reconnect,
    Resize(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let at = 0..1000usize;
    prop_oneof![
        8 => (0..CORES).prop_map(Step::Checkout),
        2 => at.clone().prop_map(Step::Leave),
        8 => (at.clone(), 0..8u8).prop_map(|(at, fate)| Step::Release(at, fate)),
        1 => at.clone().prop_map(Step::Drop),
        1 => at.clone().prop_map(Step::Kill),
        1 => at.clone().prop_map(Step::Busy),
        6 => at.clone().prop_map(Step::Mail),
        6 => (0..CORES).prop_map(Step::Connected),
        1 => (0..CORES).prop_map(Step::Failed),
        2 => (0..CORES).prop_map(Step::Cleaned),
        2 => (0..CORES, any::<bool>()).prop_map(|(core, arrives)| Step::Courier(core, arrives)),
        1 => (0..CORES).prop_map(Step::Sweep),
        3 => (0..40u64).prop_map(|x| Step::Advance(x * x)),
        1 => any::<bool>().prop_map(Step::Pause),
        1 => Just(Step::Reconnect),
        1 => (1..5usize).prop_map(Step::Resize),
    ]
}

/// A waiting client, with what the pool does not tell of it.
struct Waiting {
    client: Client,
    core: usize,
    since: Instant,
}

struct Model {
    bench: Bench,
    waiting: Vec<Waiting>,
    leases: Vec<Lease<Conn>>,
    size: usize,
    /// More than the size while it has just been lowered.
    allowed: usize,
}

impl Model {
    fn new() -> Self {
        let bench = Bench::new(CORES, Self::limits(4));
        Self { bench, waiting: Vec::new(), leases: Vec::new(), size: 4, allowed: 4 }
    }

    fn limits(size: usize) -> Limits {
        let idle_timeout = Some(Duration::from_secs(3));
        let lifetime = Some(Duration::from_secs(10));
        Limits { connecting_max: 2, idle_timeout, lifetime, ..limits(size) }
    }

    fn apply(&mut self, step: &Step) {
        let now = self.bench.now();
        match *step {
            Step::Checkout(core) => {
                let client = self.bench.ask(core);
                self.waiting.push(Waiting { client, core, since: now });
            }
            Step::Leave(at) => drop(pick(&mut self.waiting, at)),
            Step::Release(at, fate) => self.release(at, [Fate::Clean, Fate::Close].get(fate as usize)),
            Step::Drop(at) => drop(pick(&mut self.leases, at)),
            Step::Kill(at) => self.with_lease(at, |lease| lease.handle.dead.store(true, SeqCst)),
            Step::Busy(at) => self.with_lease(at, |lease| lease.handle.busy.store(true, SeqCst)),
            Step::Mail(which) => drop(self.bench.deliver(which)),
            Step::Connected(core) => drop(self.connect(core)),
            Step::Failed(core) if self.bench.slots(core) > 0 => self.bench.failed(core, 1),
            Step::Cleaned(core) => drop(self.clean(core)),
            Step::Courier(core, arrives) => drop(self.courier(core, arrives)),
            Step::Sweep(core) => self.bench.sweep(core),
            Step::Advance(ms) => self.bench.advance_ms(ms),
            Step::Pause(true) => self.bench.pool.pause(),
            Step::Pause(false) => self.bench.pool.resume(),
            Step::Reconnect => self.bench.pool.reconnect(),
            Step::Resize(size) => self.resize(size),
            Step::Failed(_) => {}
        }
    }

    fn with_lease(&self, at: usize, act: impl Fn(&Lease<Conn>)) {
        if !self.leases.is_empty() {
            act(&self.leases[at % self.leases.len()]);
        }
    }

    /// Release, and check that who gets the connection did not overtake anybody by too much.
    fn release(&mut self, at: usize, fate: Option<&Fate>) {
        let Some(lease) = pick(&mut self.leases, at) else {
            return;
        };
        let core = lease.core();
        let known = self.bench.pool.counts().moving == 0;
        lease.release(fate.copied().unwrap_or(Fate::Reuse), self.bench.now());
        let served = self.collect();
        if known && let Some(&(_, since)) = served.iter().find(|(at, _)| *at == core) {
            let overtaken = |w: &&Waiting| w.core != core && w.since + Limits::default().overtake_max < since;
            assert_eq!(self.waiting.iter().filter(overtaken).count(), 0, "overtaken by too much");
        }
    }

    fn connect(&self, core: usize) -> bool {
        let some = self.bench.slots(core) > 0;
        if some {
            self.bench.connected(core);
        }
        some
    }

    fn clean(&self, core: usize) -> bool {
        let lease = self.bench.asked[core].to_clean.borrow_mut().pop_front();
        lease.map(|lease| lease.release(Fate::Reuse, self.bench.now())).is_some()
    }

    fn courier(&self, core: usize, arrives: bool) -> bool {
        let courier = self.bench.asked[core].couriers.borrow_mut().pop_front();
        let Some(mut courier) = courier else {
            return false;
        };
        if arrives {
            self.bench.census.parkable.store(true, SeqCst);
            let mut cx = Context::from_waker(Waker::noop());
            assert!(Future::poll(std::pin::Pin::new(&mut courier), &mut cx).is_ready());
            self.bench.census.parkable.store(false, SeqCst);
        }
        true
    }

    fn resize(&mut self, size: usize) {
        self.bench.pool.set_limits(Self::limits(size));
        self.size = size;
    }

    /// Collect the answers; returns core and arrival of those who got a connection.
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
                    assert!(!lease.handle.dead.load(SeqCst) || waiting.client.rings() > 0, "dead");
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
        let counts = self.bench.pool.counts();
        let asked = |count: fn(&crate::fake::Asked) -> usize| -> usize {
            self.bench.asked.iter().map(|asked| count(asked)).sum()
        };
        assert_eq!(counts.active, self.leases.len());
        assert_eq!(counts.waiting, self.waiting.len());
        assert_eq!(counts.connecting, asked(|asked| asked.slots.borrow().len()));
        assert_eq!(counts.cleaning, asked(|asked| asked.to_clean.borrow().len()));
        assert_eq!(counts.open, self.bench.census.open() + counts.connecting);
        let sum = counts.active + counts.idle + counts.cleaning + counts.connecting + counts.moving;
        assert_eq!(counts.open, sum, "{counts:?}");
        self.allowed = self.size.max(self.allowed.min(counts.open));
        assert!(counts.open <= self.allowed, "{} open of {}", counts.open, self.allowed);
        assert_eq!(counts.oldest_wait, self.waiting.iter().map(|waiting| waiting.since).min());
    }

    /// Do all that is asked until nothing is.
    fn quiesce(&mut self) {
        loop {
            self.bench.settle();
            let work = |core| self.connect(core) || self.clean(core) || self.courier(core, true);
            if !(0..CORES).any(work) {
                break;
            }
        }
        self.check();
    }

    /// Whatever has happened, in the end every client is served.
    fn finish(&mut self) {
        self.bench.pool.resume();
        self.quiesce();
        self.bench.advance_ms(20_000);
        (0..CORES).for_each(|core| self.bench.sweep(core));
        self.quiesce();
        loop {
            let counts = self.bench.pool.counts();
            if counts.waiting == 0 {
                break;
            }
            assert_eq!(counts.idle, 0, "a client waits beside an idle connection");
            assert!(counts.open >= self.size, "a client waits though one may be opened");
            self.release(0, None);
            self.quiesce();
        }
        while !self.leases.is_empty() {
            self.release(0, None);
        }
        self.quiesce();
        assert_eq!(self.bench.census.open(), self.bench.pool.counts().idle);
        self.bench.locals.clear();
        assert_eq!((self.bench.census.open(), self.bench.pool.counts().open), (0, 0));
    }
}

fn pick<T>(from: &mut Vec<T>, at: usize) -> Option<T> {
    if from.is_empty() { None } else { Some(from.remove(at % from.len())) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_operations_keeps_the_promises(steps in prop::collection::vec(step(), 1..200)) {
        let mut model = Model::new();
        for step in &steps {
            model.apply(step);
            model.check();
        }
        model.finish();
    }
}

/// With mail delivered at once, each hand-over is within the bound.
#[test]
fn no_hand_over_overtakes_an_older_client_by_more_than_overtake_max() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut model = Model::new();
    let mut hand_overs = 0;
    while hand_overs < 3_000 {
        model.bench.advance(Duration::from_micros(random.u64(..500)));
        if model.waiting.len() < 60 {
            // One core gets most of the clients.
            model.apply(&Step::Checkout(random.usize(..4) % CORES));
        }
        if random.bool() && !model.leases.is_empty() {
            hand_overs += model.waiting.len().min(1);
            model.release(random.usize(..100), None);
        }
        model.quiesce();
    }
    model.finish();
}
