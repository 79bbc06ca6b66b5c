//! The set of endpoints with the state of each, as the owner of the balancer changes it.
//!
//! [`BalancerShared`](crate::shared::BalancerShared) publishes what changes here. `Membership` reads no clock; its random numbers
//! come from the balancer's seed.
//!
//! Invariant: an endpoint is in `present` or in `departing`, never in both. `present` is in the order of ids.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tidegate_backoff::instant_after;

use crate::endpoint::{Endpoint, EndpointId, EndpointKey, EndpointSpec, FailureObserver, SharedError};
use crate::endpoint_record::{ConnectivityState, EndpointRecord};
use crate::load::EndpointLoad;
use crate::outlier::{EjectionState, OutlierDetection};
use crate::policy::{ConnectStrategy, Policy, RAMP_FULL};
use crate::settings::{BalancerSettings, InitialState};

pub(crate) struct Membership<T> {
    pub(crate) present: Vec<EndpointRecord<T>>,
    /// Removed, and in no snapshot; some have calls in flight.
    pub(crate) departing: Vec<EndpointRecord<T>>,
    /// Closed, and not dropped yet: the drop of a value is foreign code.
    over: Vec<EndpointRecord<T>>,
    pub(crate) policy: Arc<dyn Policy>,
    pub(crate) settings: BalancerSettings,
    pub(crate) outlier_detection: Option<OutlierDetection>,
    pub(crate) random: fastrand::Rng,
    /// The set is known, even if it is empty.
    pub(crate) known: bool,
    /// Why the set could not be resolved, the last time.
    pub(crate) resolve_error: Option<SharedError>,
    /// The latest time that a caller passed in.
    pub(crate) now: Instant,
    /// When the interval rules of outlier detection are due.
    pub(crate) interval_ends: Instant,
    pub(crate) closed: bool,
    /// Set while the policy fails: when it is asked again for the unpublished changes.
    pub(crate) retry_publication_at: Option<Instant>,
    next_id: u64,
    epoch: Instant,
}

/// Result of an update.
#[derive(Debug)]
pub struct UpdateSummary<T> {
    /// New endpoints, in the order of the update: to be connected, unless [`InitialState::Ready`] applies.
    pub added: Vec<Arc<Endpoint<T>>>,
    /// Number of endpoints that were in the set before.
    pub kept: usize,
    /// Number of removed endpoints. [`Balancer::take_departed`](crate::Balancer::take_departed) returns them once they are out of
    /// use.
    pub removed: usize,
}

/// Delay before a failed policy is asked again, unless the set changes before.
const PUBLICATION_RETRY: Duration = Duration::from_secs(1);

/// Whether a change affects picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotChange {
    None,
    Publish,
}

impl SnapshotChange {
    pub(crate) fn when(needed: bool) -> Self {
        if needed { Self::Publish } else { Self::None }
    }
}

/// A set by key, with the rank of each endpoint.
type SpecsByKey<'a> = HashMap<&'a EndpointKey, (usize, &'a EndpointSpec)>;

fn by_key(specs: &[EndpointSpec]) -> SpecsByKey<'_> {
    specs.iter().enumerate().map(|(rank, spec)| (&spec.key, (rank, spec))).collect()
}

impl<T> Membership<T> {
    pub(crate) fn new(policy: Arc<dyn Policy>, settings: BalancerSettings, seed: u64, now: Instant) -> Self {
        let outlier_detection = settings.outlier_detection;
        Self {
            present: Vec::new(),
            departing: Vec::new(),
            over: Vec::new(),
            policy,
            settings,
            outlier_detection,
            random: fastrand::Rng::with_seed(seed),
            known: false,
            resolve_error: None,
            now,
            interval_ends: instant_after(now, outlier_detection.unwrap_or_default().interval_bounded()),
            closed: false,
            retry_publication_at: None,
            next_id: 0,
            epoch: now,
        }
    }

    pub(crate) fn set_now(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    pub(crate) fn find(&mut self, id: EndpointId) -> Option<&mut EndpointRecord<T>> {
        self.present.iter_mut().chain(&mut self.departing).find(|record| record.endpoint.id == id)
    }

    /// Replaces the set: adds new endpoints, and starts to remove endpoints that are not in it.
    pub(crate) fn update(
        &mut self,
        specs: Vec<EndpointSpec>,
        observer: &Weak<dyn FailureObserver>,
        mut make: impl FnMut(&EndpointSpec, EndpointId) -> T,
    ) -> (UpdateSummary<T>, SnapshotChange) {
        if self.closed {
            return (UpdateSummary { added: Vec::new(), kept: 0, removed: 0 }, SnapshotChange::None);
        }
        let specs = self.deduplicated(specs);
        // Revived before new endpoints are determined: an endpoint whose drain ends meanwhile is closed, and is a new one.
        let revived = self.revive(&by_key(&specs));
        let present: HashSet<EndpointKey> = self.present.iter().map(|record| record.endpoint.key.clone()).collect();
        // `make` is foreign code and can panic, so it runs before anything else changes.
        let mut added = Vec::new();
        for spec in specs.iter().filter(|spec| !present.contains(&spec.key)) {
            let id = EndpointId(self.next_id + added.len() as u64);
            let load = EndpointLoad::new(self.epoch, self.settings.latency_decay);
            let value = make(spec, id);
            added.push(Arc::new(Endpoint { id, key: spec.key.clone(), value, load, observer: observer.clone() }));
        }
        self.next_id += added.len() as u64;
        let kept = specs.len() - added.len();
        let (removed, changed) = self.keep(&specs);
        let became_known = self.set_known() && self.present.is_empty();
        let change = SnapshotChange::when(revived || changed || became_known || !added.is_empty());
        self.add(&specs, &added);
        (UpdateSummary { added, kept, removed }, change)
    }

    /// The set is known now. Returns whether that changes the error of picks from an empty set.
    fn set_known(&mut self) -> bool {
        let had_error = self.resolve_error.take().is_some();
        !std::mem::replace(&mut self.known, true) || had_error
    }

    /// The set is too old: removes all endpoints, and the set is unknown again.
    pub(crate) fn discard(&mut self) -> SnapshotChange {
        self.known = false;
        SnapshotChange::when(self.keep(&[]).1)
    }

    /// Removes duplicates, and shuffles if the policy asks for it.
    fn deduplicated(&mut self, mut specs: Vec<EndpointSpec>) -> Vec<EndpointSpec> {
        let mut seen = HashSet::new();
        specs.retain(|spec| seen.insert(spec.key.clone()));
        if self.policy.shuffles() {
            self.random.shuffle(&mut specs);
        }
        specs
    }

    /// Applies the new set to the endpoints that are present. Returns the number of removed endpoints, and whether picks are
    /// affected.
    fn keep(&mut self, specs: &[EndpointSpec]) -> (usize, bool) {
        let (specs, mut changed) = (by_key(specs), false);
        let shuffles = self.policy.shuffles();
        let until = instant_after(self.now, self.settings.replace_timeout);
        let mut removed = 0;
        for record in &mut self.present {
            let Some(&(rank, spec)) = specs.get(&record.endpoint.key) else {
                removed += usize::from(record.leaving.is_none());
                changed |= record.leaving.is_none();
                record.leaving.get_or_insert(until);
                continue;
            };
            changed |= record.leaving.take().is_some() || record.weight != spec.weight || record.tier != spec.tier;
            // A shuffled order stays as it was drawn.
            record.rank = if shuffles { record.rank } else { rank };
            (record.weight, record.tier) = (spec.weight, spec.tier);
        }
        (removed, changed)
    }

    /// Restores endpoints that are in the set again and not closed yet.
    fn revive(&mut self, specs: &SpecsByKey<'_>) -> bool {
        let again = |record: &mut EndpointRecord<T>| {
            specs.contains_key(&record.endpoint.key) && record.endpoint.load.in_flight.revive()
        };
        let revived: Vec<EndpointRecord<T>> = self.departing.extract_if(.., again).collect();
        let any = !revived.is_empty();
        // `InitialState::Ready`: it becomes ready now, and starts slowly. A connection that was kept is warm.
        let ready_since = (self.settings.initial_state == InitialState::Ready).then_some(self.now);
        self.present.extend(revived.into_iter().map(|record| record.revived(ready_since)));
        self.present.sort_unstable_by_key(|record| record.endpoint.id);
        any
    }

    fn add(&mut self, specs: &[EndpointSpec], added: &[Arc<Endpoint<T>>]) {
        let specs = by_key(specs);
        for endpoint in added {
            let Some(&(rank, spec)) = specs.get(&endpoint.key) else { continue };
            let state = match self.settings.initial_state {
                InitialState::Ready => ConnectivityState::Ready,
                InitialState::Idle => ConnectivityState::Idle,
            };
            self.present.push(EndpointRecord {
                endpoint: Arc::clone(endpoint),
                weight: spec.weight,
                tier: spec.tier,
                rank,
                state,
                settled: state == ConnectivityState::Ready,
                ready_since: (state == ConnectivityState::Ready).then_some(self.now),
                ramp: RAMP_FULL,
                failures: 0,
                cause: None,
                failed_at: None,
                ejection: EjectionState::default(),
                leaving: None,
                handed_over: false,
            });
        }
    }

    pub(crate) fn set_weight(&mut self, key: &EndpointKey, weight: u32) -> SnapshotChange {
        let record = self.present.iter_mut().find(|record| record.endpoint.key == *key);
        let changed = record.is_some_and(|record| std::mem::replace(&mut record.weight, weight) != weight);
        SnapshotChange::when(changed)
    }

    pub(crate) fn set_state(&mut self, id: EndpointId, state: ConnectivityState) -> SnapshotChange {
        let now = self.now;
        let Some(record) = self.find(id) else { return SnapshotChange::None };
        let (was_ready, was_settled) = (record.is_ready(), record.settled);
        record.enter(state, now);
        SnapshotChange::when(was_ready != (state == ConnectivityState::Ready) || was_settled != record.settled)
    }

    pub(crate) fn mark_lost(&mut self, id: EndpointId, cause: SharedError) -> SnapshotChange {
        if let Some(record) = self.find(id) {
            record.cause = Some(cause);
        }
        self.set_state(id, ConnectivityState::Connecting)
    }

    /// Records a failed connect, and sets the number of consecutive failures to `failures_min` at least. Returns when the next
    /// connect is due, if the endpoint is present.
    pub(crate) fn mark_failed(
        &mut self,
        id: EndpointId,
        cause: SharedError,
        failures_min: u32,
    ) -> (Option<Instant>, SnapshotChange) {
        let (now, random, backoff) = (self.now, self.random.f64(), self.settings.backoff);
        let none_ready = !self.present.iter().any(EndpointRecord::is_ready);
        let Some(record) = self.find(id) else { return (None, SnapshotChange::None) };
        let (was_ready, was_settled) = (record.is_ready(), record.settled);
        record.failures = record.failures.saturating_add(1).max(failures_min);
        record.cause = Some(cause);
        let retry_at = instant_after(now, backoff.delay(record.failures, random));
        record.enter(ConnectivityState::Failed { retry_at }, now);
        // Picks that fail fast return the latest error if no endpoint is ready.
        (Some(retry_at), SnapshotChange::when(was_ready || !was_settled || none_ready))
    }

    /// The policy failed: the changes are published later.
    pub(crate) fn publication_failed(&mut self) {
        self.retry_publication_at = Some(instant_after(self.now, PUBLICATION_RETRY));
    }

    pub(crate) fn published(&mut self) {
        self.retry_publication_at = None;
    }

    /// Removes all endpoints, without waiting for replacements, and ignores later updates.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        for record in &mut self.present {
            record.leaving = Some(self.now);
        }
    }

    /// Moves removed endpoints that are out of use to `departing`. Called after a snapshot without them was published, never
    /// before.
    pub(crate) fn depart(&mut self) {
        let now = self.now;
        let hold = self.must_hold();
        let gone = self.present.extract_if(.., |record| !record.in_use(hold, now) && record.leaving.is_some());
        for record in gone {
            record.endpoint.load.in_flight.drain();
            self.departing.push(record);
        }
        self.over.extend(self.departing.extract_if(.., |record| record.is_over()));
    }

    /// Records to be dropped outside the lock.
    pub(crate) fn take_over(&mut self) -> Vec<EndpointRecord<T>> {
        std::mem::take(&mut self.over)
    }

    /// Endpoints that departed since the last call.
    pub(crate) fn take_departed(&mut self) -> Vec<Arc<Endpoint<T>>> {
        let new = self.departing.iter_mut().filter(|record| !record.handed_over);
        new.map(|record| {
            record.handed_over = true;
            Arc::clone(&record.endpoint)
        })
        .collect()
    }

    /// Returns whether removed endpoints stay in use because their replacements are not ready.
    pub(crate) fn must_hold(&self) -> bool {
        let staying = || self.present.iter().filter(|record| record.leaving.is_none());
        let any_ready = staying().any(EndpointRecord::is_ready);
        // `ConnectStrategy::First` never tries the remaining endpoints, so they never settle.
        let settled =
            self.policy.connect_strategy() == ConnectStrategy::First || staying().all(|record| record.settled);
        staying().next().is_some() && !(any_ready && settled)
    }
}
