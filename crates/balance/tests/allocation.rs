//! No policy allocates in a pick. A test program of its own, because it counts the allocations of the whole process.

use std::alloc::System;
use std::sync::Arc;
use std::time::Instant;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate_balance::{
    Balancer, BalancerSettings, CallOutcome, EndpointSpec, ExactRoundRobin, InitialState, LeastRequest, PeakEwma, Pick,
    PickFirst, Picker, Policy, RingHash, RoundRobin, WeightedRoundRobin,
};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// BA-64.
#[test]
fn pick_does_not_allocate() {
    let policies: [Arc<dyn Policy>; 7] = [
        Arc::new(PickFirst::default()),
        Arc::new(RoundRobin),
        Arc::new(ExactRoundRobin),
        Arc::new(WeightedRoundRobin),
        Arc::new(LeastRequest::default()),
        Arc::new(PeakEwma),
        Arc::new(RingHash::default()),
    ];
    for policy in policies {
        let now = Instant::now();
        let settings = BalancerSettings { initial_state: InitialState::Ready, ..BalancerSettings::default() };
        let balancer = Balancer::with_policy(Arc::clone(&policy), settings, 1, now);
        balancer.update(now, (0..10).map(|number| EndpointSpec::new(format!("{number}").as_str())), |_, _| ());
        let tried = [balancer.endpoints()[3].id()];
        let mut picker = Picker::new(&balancer, 1);
        let pick = Pick::new().at(now).hash(3);
        balancer.pick_with(&pick, |_| ()).unwrap();
        // The test harness allocates on its own threads, so the minimum of several rounds counts.
        let allocations = (0..5).map(|_| {
            let region = Region::new(ALLOCATOR);
            for _ in 0..1000 {
                balancer.pick_with(&pick, |_| ()).unwrap();
                picker.pick_with(&pick.tried(&tried), |_| ()).unwrap();
                picker.pick(&pick).unwrap().finish(Some(now), CallOutcome::Success);
                drop(balancer.pick(&pick.tried(&tried)).unwrap());
            }
            region.change().allocations
        });
        assert_eq!(allocations.min(), Some(0), "{policy:?}");
    }
}
