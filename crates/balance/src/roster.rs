//! Who is there, in which state, and who of them may be chosen: what the control plane knows.
//!
//! The roster decides; the [`Balancer`](crate::Balancer) publishes what it decided. It reads no clock and draws no
//! random number but from what it was given.
//!
//! Invariant: an endpoint is in `present` or in `departing`, never in both; `present` is in the order of ids.

mod ejections;
mod entry;
mod members;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::balancer::Shared;
use crate::endpoint::{Cause, Endpoint, EndpointId, Key, Spec};
use crate::load::Load;
use crate::moment::after;
use crate::outlier::{Ejection, Outlier};
use crate::policy::{Dials, Policy, RAMP_FULL};
use crate::settings::{Settings, Start};

pub(crate) use self::entry::Entry;
pub use self::entry::{State, Status};
pub(crate) use self::members::Equals;

pub(crate) struct Roster<T> {
    pub(crate) present: Vec<Entry<T>>,
    /// Removed and out of every snapshot; some still have calls in flight.
    pub(crate) departing: Vec<Entry<T>>,
    /// Closed, and not dropped yet: the end of a value is foreign code.
    over: Vec<Entry<T>>,
    pub(crate) policy: Arc<dyn Policy>,
    pub(crate) settings: Settings,
    pub(crate) outlier: Option<Outlier>,
    pub(crate) random: fastrand::Rng,
    /// Somebody has said what there is, be it nothing.
    pub(crate) learnt: bool,
    /// Why the set could not be learnt, the last time.
    pub(crate) unknown: Option<Cause>,
    /// The latest time that anybody told.
    pub(crate) now: Instant,
    /// When the rules over an interval are due.
    pub(crate) interval_ends: Instant,
    pub(crate) closed: bool,
    /// The policy failed: what was decided is published when it is asked again, then at the latest.
    unpublished: Option<Instant>,
    next_id: u64,
    epoch: Instant,
}

/// What an update did.
#[derive(Debug)]
pub struct Update<T> {
    /// New ones, in the order of the update: to be connected, if they do not begin ready.
    pub added: Vec<Arc<Endpoint<T>>>,
    /// How many were known before and stay.
    pub kept: usize,
    /// How many leave; [`Balancer::departed`](crate::Balancer::departed) tells which, once they are out of use.
    pub removed: usize,
}

/// A policy that failed is asked again after so long, if nothing else changes before.
const PUBLISH_AGAIN: Duration = Duration::from_secs(1);

/// Does a change concern those who pick?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Publish,
}

impl Change {
    pub(crate) fn when(needed: bool) -> Self {
        if needed { Self::Publish } else { Self::None }
    }
}

/// A set by its keys, with the rank of each.
type Wanted<'a> = HashMap<&'a Key, (usize, &'a Spec)>;

fn by_key(specs: &[Spec]) -> Wanted<'_> {
    specs.iter().enumerate().map(|(rank, spec)| (&spec.key, (rank, spec))).collect()
}

impl<T> Roster<T> {
    pub(crate) fn new(policy: Arc<dyn Policy>, settings: Settings, seed: u64, now: Instant) -> Self {
        let outlier = settings.outlier;
        Self {
            present: Vec::new(),
            departing: Vec::new(),
            over: Vec::new(),
            policy,
            settings,
            outlier,
            random: fastrand::Rng::with_seed(seed),
            learnt: false,
            unknown: None,
            now,
            interval_ends: after(now, outlier.unwrap_or_default().every()),
            closed: false,
            unpublished: None,
            next_id: 0,
            epoch: now,
        }
    }

    pub(crate) fn pass(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    pub(crate) fn find(&mut self, id: EndpointId) -> Option<&mut Entry<T>> {
        self.present.iter_mut().chain(&mut self.departing).find(|entry| entry.endpoint.id == id)
    }

    /// Takes a new set over: who is in it and was not is added, who was and is not begins to leave.
    pub(crate) fn update(
        &mut self,
        specs: Vec<Spec>,
        owner: &Weak<Shared<T>>,
        mut make: impl FnMut(&Spec, EndpointId) -> T,
    ) -> (Update<T>, Change) {
        if self.closed {
            return (Update { added: Vec::new(), kept: 0, removed: 0 }, Change::None);
        }
        let specs = self.in_order(specs);
        // Before it is known who is new: a drain that ends meanwhile closes what could not be brought back any more.
        let revived = self.revive(&by_key(&specs));
        let known: HashSet<Key> = self.present.iter().map(|entry| entry.endpoint.key.clone()).collect();
        // Foreign code runs before anything else is changed, should it panic.
        let mut added = Vec::new();
        for spec in specs.iter().filter(|spec| !known.contains(&spec.key)) {
            let id = EndpointId(self.next_id + added.len() as u64);
            let load = Load::new(self.epoch, self.settings.latency_decay);
            let value = make(spec, id);
            added.push(Arc::new(Endpoint { id, key: spec.key.clone(), value, load, owner: owner.clone() }));
        }
        self.next_id += added.len() as u64;
        let kept = specs.len() - added.len();
        let (removed, changed) = self.keep(&specs);
        let news = self.learn() && self.present.is_empty();
        let change = Change::when(revived || changed || news || !added.is_empty());
        self.add(&specs, &added);
        (Update { added, kept, removed }, change)
    }

    /// The set is known: does that change what is told of one that is empty?
    fn learn(&mut self) -> bool {
        let was_unknown = self.unknown.take().is_some();
        !std::mem::replace(&mut self.learnt, true) || was_unknown
    }

    /// What was known is too old: everybody leaves, and whether there is anybody is not known.
    #[cfg(feature = "tonic")]
    pub(crate) fn forget(&mut self) -> Change {
        self.learnt = false;
        Change::when(self.keep(&[]).1)
    }

    /// Without doubles; shuffled if the policy wants it.
    fn in_order(&mut self, mut specs: Vec<Spec>) -> Vec<Spec> {
        let mut seen = HashSet::new();
        specs.retain(|spec| seen.insert(spec.key.clone()));
        if self.policy.shuffles() {
            self.random.shuffle(&mut specs);
        }
        specs
    }

    /// Brings who was known in line with the new set: how many of them leave, and whether those who pick must know.
    fn keep(&mut self, specs: &[Spec]) -> (usize, bool) {
        let (wanted, mut changed) = (by_key(specs), false);
        let shuffles = self.policy.shuffles();
        let until = after(self.now, self.settings.replace_within);
        let mut removed = 0;
        for entry in &mut self.present {
            let Some(&(rank, spec)) = wanted.get(&entry.endpoint.key) else {
                removed += usize::from(entry.leaving.is_none());
                changed |= entry.leaving.is_none();
                entry.leaving.get_or_insert(until);
                continue;
            };
            changed |= entry.leaving.take().is_some() || entry.weight != spec.weight || entry.tier != spec.tier;
            // An order of one's own stays as it is drawn.
            entry.rank = if shuffles { entry.rank } else { rank };
            (entry.weight, entry.tier) = (spec.weight, spec.tier);
        }
        (removed, changed)
    }

    /// Brings those back who are wanted again before they were closed.
    fn revive(&mut self, wanted: &Wanted<'_>) -> bool {
        let again =
            |entry: &mut Entry<T>| wanted.contains_key(&entry.endpoint.key) && entry.endpoint.load.slot.revive();
        let revived: Vec<Entry<T>> = self.departing.extract_if(.., again).collect();
        let any = !revived.is_empty();
        // Who is ready because it is there is ready anew; a connection that was kept is as warm as it was.
        let anew = (self.settings.start == Start::Ready).then_some(self.now);
        self.present.extend(revived.into_iter().map(|entry| entry.returned(anew)));
        self.present.sort_unstable_by_key(|entry| entry.endpoint.id);
        any
    }

    fn add(&mut self, specs: &[Spec], added: &[Arc<Endpoint<T>>]) {
        let wanted = by_key(specs);
        for endpoint in added {
            let Some(&(rank, spec)) = wanted.get(&endpoint.key) else { continue };
            let state = match self.settings.start {
                Start::Ready => State::Ready,
                Start::Idle => State::Idle,
            };
            self.present.push(Entry {
                endpoint: Arc::clone(endpoint),
                weight: spec.weight,
                tier: spec.tier,
                rank,
                state,
                settled: state == State::Ready,
                ready_since: (state == State::Ready).then_some(self.now),
                ramp: RAMP_FULL,
                failures: 0,
                cause: None,
                failed_at: None,
                ejection: Ejection::default(),
                leaving: None,
                handed_over: false,
            });
        }
    }

    pub(crate) fn set_weight(&mut self, key: &Key, weight: u32) -> Change {
        let entry = self.present.iter_mut().find(|entry| entry.endpoint.key == *key);
        let changed = entry.is_some_and(|entry| std::mem::replace(&mut entry.weight, weight) != weight);
        Change::when(changed)
    }

    pub(crate) fn set_state(&mut self, id: EndpointId, state: State) -> Change {
        let now = self.now;
        let Some(entry) = self.find(id) else { return Change::None };
        let (was_ready, was_settled) = (entry.state == State::Ready, entry.settled);
        entry.enter(state, now);
        Change::when(was_ready != (state == State::Ready) || was_settled != entry.settled)
    }

    pub(crate) fn lose(&mut self, id: EndpointId, cause: Cause) -> Change {
        if let Some(entry) = self.find(id) {
            entry.cause = Some(cause);
        }
        self.set_state(id, State::Connecting)
    }

    /// When it is to be tried again, if it is known. It failed so many `times` in a row at least.
    pub(crate) fn fail(&mut self, id: EndpointId, cause: Cause, times: u32) -> (Option<Instant>, Change) {
        let (now, random, backoff) = (self.now, self.random.f64(), self.settings.backoff);
        let none_ready = !self.present.iter().any(Entry::is_ready);
        let Some(entry) = self.find(id) else { return (None, Change::None) };
        let (was_ready, was_settled) = (entry.state == State::Ready, entry.settled);
        entry.failures = entry.failures.saturating_add(1).max(times);
        entry.cause = Some(cause);
        let retry_at = after(now, backoff.pause(entry.failures, random));
        entry.enter(State::Failed { retry_at }, now);
        // Who fails fast wants to know the latest cause.
        (Some(retry_at), Change::when(was_ready || !was_settled || none_ready))
    }

    /// What was decided could not be published: the policy failed.
    pub(crate) fn retry_publication(&mut self) {
        self.unpublished = Some(after(self.now, PUBLISH_AGAIN));
    }

    pub(crate) fn published(&mut self) {
        self.unpublished = None;
    }

    /// Everybody leaves at once, and nobody comes any more.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        for entry in &mut self.present {
            entry.leaving = Some(self.now);
        }
    }

    /// Moves those who leave and are out of use. Called when a snapshot without them is published, never before.
    pub(crate) fn depart(&mut self) {
        let now = self.now;
        let hold = self.must_hold();
        let gone = self.present.extract_if(.., |entry| !entry.in_use(hold, now) && entry.leaving.is_some());
        for entry in gone {
            entry.endpoint.load.slot.drain();
            self.departing.push(entry);
        }
        self.over.extend(self.departing.extract_if(.., |entry| entry.is_over()));
    }

    /// What is to be dropped where nothing is locked.
    pub(crate) fn take_over(&mut self) -> Vec<Entry<T>> {
        std::mem::take(&mut self.over)
    }

    /// Those who departed since the last call, to be drained and closed.
    pub(crate) fn take_departed(&mut self) -> Vec<Arc<Endpoint<T>>> {
        let new = self.departing.iter_mut().filter(|entry| !entry.handed_over);
        new.map(|entry| {
            entry.handed_over = true;
            Arc::clone(&entry.endpoint)
        })
        .collect()
    }

    /// Do those who leave stay in use, because their replacements are not there yet?
    pub(crate) fn must_hold(&self) -> bool {
        let staying = || self.present.iter().filter(|entry| entry.leaving.is_none());
        let any_ready = staying().any(Entry::is_ready);
        // A policy that connects to one at a time never tries the rest.
        let settled = self.policy.dials() == Dials::First || staying().all(|entry| entry.settled);
        staying().next().is_some() && !(any_ready && settled)
    }
}
