//! The endpoints that picks may use, by tier, with the share of each.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_backoff::DURATION_MAX;

use crate::endpoint::{Endpoint, SharedError};
use crate::endpoint_record::EndpointRecord;
use crate::membership::Membership;
use crate::policy::{PolicyMember, RAMP_FULL};

/// Number of steps of a slow start: each is a publication.
const STEPS: u32 = 16;

/// The endpoints that picks may use.
pub(crate) struct Selection<T> {
    /// The serving tier and the lower tiers; at least one, which can be empty.
    pub(crate) tiers: Vec<SelectedTier<T>>,
    pub(crate) cause: Option<SharedError>,
    /// Number of endpoints in the set, ready or not.
    pub(crate) known: usize,
}

/// The endpoints of one tier, in the order of their ids.
pub(crate) struct SelectedTier<T> {
    pub(crate) ready: Box<[Arc<Endpoint<T>>]>,
    pub(crate) members: Vec<PolicyMember>,
}

impl<T> Membership<T> {
    /// Selects endpoints that are ready and not ejected; with too many ejected, the ejected ones as well.
    pub(crate) fn select(&self) -> Selection<T> {
        let hold = self.must_hold();
        let usable: Vec<&EndpointRecord<T>> =
            self.present.iter().filter(|record| record.in_use(hold, self.now)).collect();
        let healthy = usable.iter().filter(|record| !record.ejection.is_ejected()).count();
        let panics = healthy == 0 || (healthy as f64) < self.settings.panic_threshold * usable.len() as f64;
        let selected = |record: &&&EndpointRecord<T>| panics || !record.ejection.is_ejected();
        let mut tiers: BTreeMap<u16, Vec<&EndpointRecord<T>>> = BTreeMap::new();
        usable.iter().filter(selected).for_each(|record| tiers.entry(record.tier).or_default().push(record));
        if tiers.is_empty() {
            tiers.insert(0, Vec::new());
        }
        let stays = |record: &&EndpointRecord<T>| record.leaving.is_none() || record.in_use(hold, self.now);
        Selection {
            cause: if usable.is_empty() { self.cause() } else { None },
            known: self.present.iter().filter(stays).count(),
            tiers: tiers.into_values().map(|records| tier(&records)).collect(),
        }
    }

    /// The last error, once every endpoint has failed. Before that, waiting can succeed, and there is no error.
    fn cause(&self) -> Option<SharedError> {
        if self.present.is_empty() {
            return self.resolve_error.clone();
        }
        let all_failed = self.present.iter().all(|record| record.failures > 0);
        let with_cause = self.present.iter().filter(|record| all_failed && record.cause.is_some());
        with_cause.max_by_key(|record| record.failed_at)?.cause.clone()
    }

    /// Updates the shares of slow starts. Returns whether one changed.
    pub(crate) fn update_ramps(&mut self) -> bool {
        let (now, slow_start) = (self.now, self.settings.slow_start.min(DURATION_MAX));
        let update = |record: &mut EndpointRecord<T>| {
            let ramp = ramp(record.ready_since, now, slow_start);
            mem::replace(&mut record.ramp, ramp) != ramp && record.is_ready()
        };
        self.present.iter_mut().fold(false, |any, record| update(record) | any)
    }

    /// When the next share grows.
    pub(crate) fn next_ramp(&self) -> Option<Instant> {
        let slow_start = self.settings.slow_start.min(DURATION_MAX);
        let ready_since =
            self.present.iter().filter(|record| record.is_ready()).filter_map(|record| record.ready_since);
        let passed = ready_since.map(|since| self.now.saturating_duration_since(since));
        let starting = passed.filter(|passed| *passed < slow_start);
        starting.map(|passed| self.now + until_next_step(passed, slow_start)).min()
    }
}

fn tier<T>(records: &[&EndpointRecord<T>]) -> SelectedTier<T> {
    SelectedTier {
        ready: records.iter().map(|record| Arc::clone(&record.endpoint)).collect(),
        members: records.iter().map(|record| member(record)).collect(),
    }
}

fn member<T>(record: &EndpointRecord<T>) -> PolicyMember {
    let (id, key) = (record.endpoint.id, record.endpoint.key.clone());
    PolicyMember { id, key, weight: record.weight, ramp: record.ramp, rank: record.rank }
}

/// The share of an endpoint in its slow start: from a tenth, in steps.
fn ramp(ready_since: Option<Instant>, now: Instant, slow_start: Duration) -> u32 {
    let passed = ready_since.map_or(Duration::MAX, |since| now.saturating_duration_since(since));
    if passed >= slow_start {
        return RAMP_FULL;
    }
    (step(passed, slow_start) * RAMP_FULL / STEPS).max(RAMP_FULL / 10)
}

fn step(passed: Duration, slow_start: Duration) -> u32 {
    (passed.as_secs_f64() / slow_start.as_secs_f64() * f64::from(STEPS)) as u32
}

fn until_next_step(passed: Duration, slow_start: Duration) -> Duration {
    let next = slow_start.mul_f64(f64::from(step(passed, slow_start) + 1) / f64::from(STEPS));
    // Rounding can make it zero, with which the owner would call `tick` in a loop.
    next.saturating_sub(passed).max(Duration::from_millis(1))
}
