//! Shared by the tests: every policy, sets of endpoints, counts of picks.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_balance::{
    Balancer, BalancerSettings, Candidates, EndpointId, EndpointSpec, ExactRoundRobin, InitialState, LeastRequest,
    PeakEwma, Pick, PickFirst, PickState, PickTable, Picker, Policy, PolicyMember, RingHash, RoundRobin,
    WeightedRoundRobin,
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A custom policy.
#[derive(Debug)]
struct Newest;

impl Policy for Newest {
    fn name(&self) -> &'static str {
        "newest"
    }

    fn table(
        &self,
        _: &[PolicyMember],
        _: Option<&dyn PickTable>,
    ) -> Result<Box<dyn PickTable>, Box<dyn Error + Send + Sync>> {
        Ok(Box::new(Self))
    }
}

impl PickTable for Newest {
    fn pick(&self, candidates: &Candidates<'_>, _: &mut PickState) -> Option<usize> {
        (0..candidates.len()).rev().find(|&index| candidates.allows(index))
    }
}

/// Every policy, and a custom one.
pub(crate) fn policies() -> Vec<Arc<dyn Policy>> {
    vec![
        Arc::new(PickFirst::default()),
        Arc::new(PickFirst { shuffle: true }),
        Arc::new(RoundRobin),
        Arc::new(ExactRoundRobin),
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

pub(crate) fn specs(numbers: impl IntoIterator<Item = usize>) -> Vec<EndpointSpec> {
    numbers.into_iter().map(|number| EndpointSpec::new(key(number).as_str())).collect()
}

pub(crate) fn ready_at_start() -> BalancerSettings {
    BalancerSettings { initial_state: InitialState::Ready, ..BalancerSettings::default() }
}

/// A balancer whose endpoint values are their keys.
pub(crate) type KeyBalancer = Balancer<String>;

pub(crate) fn set(
    balancer: &KeyBalancer,
    now: Instant,
    specs: Vec<EndpointSpec>,
) -> tidegate_balance::UpdateSummary<String> {
    balancer.update(now, specs, |spec, _| spec.key.to_string())
}

/// A balancer with the ready endpoints `0..count`.
pub(crate) fn ready(policy: Arc<dyn Policy>, count: usize) -> KeyBalancer {
    with_settings(policy, count, ready_at_start())
}

pub(crate) fn with_settings(policy: Arc<dyn Policy>, count: usize, settings: BalancerSettings) -> KeyBalancer {
    let now = Instant::now();
    let balancer = Balancer::with_policy(policy, settings, 7, now);
    set(&balancer, now, specs(0..count));
    balancer
}

pub(crate) fn pick_key(balancer: &KeyBalancer) -> String {
    balancer.pick_with(&Pick::new(), |endpoint| endpoint.value().clone()).expect("an endpoint is ready")
}

pub(crate) fn id_of(balancer: &KeyBalancer, number: usize) -> EndpointId {
    let endpoints = balancer.endpoints();
    endpoints.iter().find(|endpoint| endpoint.key().as_str() == key(number)).expect("the endpoint is in the set").id()
}

/// Number of picks of each of `0..count`, in `picks` picks of one picker.
pub(crate) fn counts(balancer: &KeyBalancer, count: usize, picks: usize) -> Vec<usize> {
    let mut picker = Picker::new(balancer, 3);
    let mut found: BTreeMap<String, usize> = (0..count).map(|number| (key(number), 0)).collect();
    for _ in 0..picks {
        let picked = picker.pick_with(&Pick::new(), |endpoint| endpoint.value().clone()).expect("an endpoint is ready");
        *found.get_mut(&picked).expect("an endpoint of the set") += 1;
    }
    (0..count).map(|number| found[&key(number)]).collect()
}
