//! What the tests share: every policy, sets of endpoints, counts of picks.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_balance::{
    Balancer, EndpointId, Exact, LeastRequest, Local, Member, PeakEwma, Pick, PickFirst, Policy, RingHash, RoundRobin,
    Settings, Spec, Start, Table, View, WeightedRoundRobin,
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A policy of a user's own.
#[derive(Debug)]
struct Newest;

impl Policy for Newest {
    fn name(&self) -> &'static str {
        "newest"
    }

    fn table(&self, _: &[Member], _: Option<&dyn Table>) -> Result<Box<dyn Table>, Box<dyn Error + Send + Sync>> {
        Ok(Box::new(Self))
    }
}

impl Table for Newest {
    fn pick(&self, view: &View<'_>, _: &mut Local) -> Option<usize> {
        (0..view.len()).rev().find(|&index| view.allows(index))
    }
}

/// Every policy there is, and one of a user's own.
pub(crate) fn policies() -> Vec<Arc<dyn Policy>> {
    vec![
        Arc::new(PickFirst::default()),
        Arc::new(PickFirst { shuffle: true }),
        Arc::new(RoundRobin),
        Arc::new(Exact),
        Arc::new(WeightedRoundRobin),
        Arc::new(LeastRequest::default()),
        Arc::new(LeastRequest::new(5)),
        Arc::new(PeakEwma),
        Arc::new(RingHash::default()),
        Arc::new(Newest),
    ]
}

pub(crate) fn key(number: usize) -> String {
    format!("10.0.{}.{}:5432", number / 256, number % 256)
}

pub(crate) fn specs(numbers: impl IntoIterator<Item = usize>) -> Vec<Spec> {
    numbers.into_iter().map(|number| Spec::new(key(number).as_str())).collect()
}

pub(crate) fn at_once() -> Settings {
    Settings { start: Start::Ready, ..Settings::default() }
}

/// The value of an endpoint is its key.
pub(crate) type Keys = Balancer<String>;

pub(crate) fn set(balancer: &Keys, now: Instant, specs: Vec<Spec>) -> tidegate_balance::Update<String> {
    balancer.update(now, specs, |spec, _| spec.key.to_string())
}

/// Ready endpoints 0 to `count`.
pub(crate) fn ready(policy: Arc<dyn Policy>, count: usize) -> Keys {
    with_settings(policy, count, at_once())
}

pub(crate) fn with_settings(policy: Arc<dyn Policy>, count: usize, settings: Settings) -> Keys {
    let now = Instant::now();
    let balancer = Balancer::with_policy(policy, settings, 7, now);
    set(&balancer, now, specs(0..count));
    balancer
}

pub(crate) fn pick_key(balancer: &Keys) -> String {
    balancer.pick_with(&Pick::new(), |endpoint| endpoint.value().clone()).expect("an endpoint is ready")
}

pub(crate) fn id_of(balancer: &Keys, number: usize) -> EndpointId {
    let endpoints = balancer.endpoints();
    endpoints.iter().find(|endpoint| endpoint.key().as_str() == key(number)).expect("it is in the set").id()
}

/// How often each of `0..count` is chosen in so many picks of one picker.
pub(crate) fn counts(balancer: &Keys, count: usize, picks: usize) -> Vec<usize> {
    let mut picker = balancer.picker(3);
    let mut found: BTreeMap<String, usize> = (0..count).map(|number| (key(number), 0)).collect();
    for _ in 0..picks {
        let chosen = picker.pick_with(&Pick::new(), |endpoint| endpoint.value().clone()).expect("one is ready");
        *found.get_mut(&chosen).expect("one of the set") += 1;
    }
    (0..count).map(|number| found[&key(number)]).collect()
}
