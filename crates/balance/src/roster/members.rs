//! Who of those known may be chosen now, and with which share.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Entry, Roster};
use crate::endpoint::{Cause, Endpoint};
use crate::moment::bounded;
use crate::policy::{Member, RAMP_FULL};

/// A slow start goes up in so many steps: each is a publication.
const STEPS: u32 = 16;

/// Those who may be chosen.
pub(crate) struct Chosen<T> {
    /// The one that serves, and those that stand in for it; one at least, which may be empty.
    pub(crate) tiers: Vec<Equals<T>>,
    pub(crate) cause: Option<Cause>,
    /// How many are in the set, ready or not.
    pub(crate) known: usize,
}

/// Those of one tier, in the order of their ids.
pub(crate) struct Equals<T> {
    pub(crate) ready: Box<[Arc<Endpoint<T>>]>,
    pub(crate) members: Vec<Member>,
}

impl<T> Roster<T> {
    /// Ready and not ejected, by tier; or, if too many are ejected, the ejected ones as well.
    pub(crate) fn choose(&self) -> Chosen<T> {
        let hold = self.must_hold();
        let usable: Vec<&Entry<T>> = self.present.iter().filter(|entry| entry.in_use(hold, self.now)).collect();
        let healthy = usable.iter().filter(|entry| !entry.ejection.is_out()).count();
        let panics = healthy == 0 || (healthy as f64) < self.settings.panic_threshold * usable.len() as f64;
        let fit = |entry: &&&Entry<T>| panics || !entry.ejection.is_out();
        let mut tiers: BTreeMap<u16, Vec<&Entry<T>>> = BTreeMap::new();
        usable.iter().filter(fit).for_each(|entry| tiers.entry(entry.tier).or_default().push(entry));
        if tiers.is_empty() {
            tiers.insert(0, Vec::new());
        }
        let stays = |entry: &&Entry<T>| entry.leaving.is_none() || entry.in_use(hold, self.now);
        Chosen {
            cause: if usable.is_empty() { self.cause() } else { None },
            known: self.present.iter().filter(stays).count(),
            tiers: tiers.into_values().map(|entries| equals(&entries)).collect(),
        }
    }

    /// Why there is none, once everybody was tried: until then it is worth waiting, and there is no cause.
    fn cause(&self) -> Option<Cause> {
        if self.present.is_empty() {
            return self.unknown.clone();
        }
        let all_failed = self.present.iter().all(|entry| entry.failures > 0);
        let latest =
            self.present.iter().filter(|entry| all_failed && entry.cause.is_some()).max_by_key(|entry| entry.failed_at);
        latest?.cause.clone()
    }

    /// Brings the shares of slow starts up to date; did any change?
    pub(crate) fn grow_shares(&mut self) -> bool {
        let (now, slow_start) = (self.now, bounded(self.settings.slow_start));
        let grow = |entry: &mut Entry<T>| {
            let share = ramp(entry.ready_since, now, slow_start);
            mem::replace(&mut entry.ramp, share) != share && entry.is_ready()
        };
        self.present.iter_mut().fold(false, |any, entry| grow(entry) | any)
    }

    /// When the share of somebody grows next.
    pub(crate) fn next_ramp(&self) -> Option<Instant> {
        let slow_start = bounded(self.settings.slow_start);
        let starting = self.present.iter().filter(|entry| entry.is_ready()).filter_map(|entry| entry.ready_since);
        let rest =
            starting.map(|since| self.now.saturating_duration_since(since)).filter(|passed| *passed < slow_start);
        rest.map(|passed| self.now + until_next_step(passed, slow_start)).min()
    }
}

fn equals<T>(entries: &[&Entry<T>]) -> Equals<T> {
    Equals {
        ready: entries.iter().map(|entry| Arc::clone(&entry.endpoint)).collect(),
        members: entries.iter().map(|entry| member(entry)).collect(),
    }
}

fn member<T>(entry: &Entry<T>) -> Member {
    let (id, key) = (entry.endpoint.id, entry.endpoint.key.clone());
    Member { id, key, weight: entry.weight, ramp: entry.ramp, rank: entry.rank }
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
    // Never zero, whatever rounding does: the owner would tick without an end.
    next.saturating_sub(passed).max(Duration::from_millis(1))
}
