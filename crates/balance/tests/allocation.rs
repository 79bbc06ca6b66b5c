//! A pick allocates nothing, by any policy. Alone in its program, because it counts what the whole program allocates.

use std::alloc::System;
use std::sync::Arc;
use std::time::Instant;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate_balance::{
    Balancer, Exact, LeastRequest, Outcome, PeakEwma, Pick, PickFirst, Policy, RingHash, RoundRobin, Settings, Spec,
    Start, WeightedRoundRobin,
};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn t64_no_pick_allocates() {
    let policies: [Arc<dyn Policy>; 7] = [
        Arc::new(PickFirst::default()),
        Arc::new(RoundRobin),
        Arc::new(Exact),
        Arc::new(WeightedRoundRobin),
        Arc::new(LeastRequest::default()),
        Arc::new(PeakEwma),
        Arc::new(RingHash::default()),
    ];
    for policy in policies {
        let now = Instant::now();
        let settings = Settings { start: Start::Ready, ..Settings::default() };
        let balancer = Balancer::with_policy(Arc::clone(&policy), settings, 1, now);
        balancer.update(now, (0..10).map(|number| Spec::new(format!("{number}").as_str())), |_, _| ());
        let tried = [balancer.endpoints()[3].id()];
        let mut picker = balancer.picker(1);
        let pick = Pick::new().at(now).hash(3);
        balancer.pick_with(&pick, |_| ()).unwrap();
        // The test harness has threads of its own, so the best of a few tries counts.
        let allocations = (0..5).map(|_| {
            let region = Region::new(ALLOCATOR);
            for _ in 0..1000 {
                balancer.pick_with(&pick, |_| ()).unwrap();
                picker.pick_with(&pick.tried(&tried), |_| ()).unwrap();
                picker.pick(&pick).unwrap().finish(Some(now), Outcome::Success);
                drop(balancer.pick(&pick.tried(&tried)).unwrap());
            }
            region.change().allocations
        });
        assert_eq!(allocations.min(), Some(0), "{policy:?}");
    }
}
