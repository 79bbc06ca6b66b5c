//! Slow start and weights.

use std::sync::Arc;
use std::time::Instant;

use tidegate_balance::{
    Balancer, BalancerSettings, LeastRequest, PeakEwma, Pick, PickFirst, Picker, Policy, RoundRobin, WeightedRoundRobin,
};

use crate::fixture::{SECOND, counts, key, policies, ready_at_start, set, specs};

/// BA-58.
#[test]
fn share_of_a_new_endpoint_grows() {
    for policy in [Arc::new(RoundRobin) as Arc<dyn Policy>, Arc::new(WeightedRoundRobin)] {
        let mut now = Instant::now();
        let balancer =
            Balancer::with_policy(policy, BalancerSettings { slow_start: 16 * SECOND, ..ready_at_start() }, 1, now);
        set(&balancer, now, specs(0..1));
        now += 20 * SECOND;
        balancer.tick(now);
        set(&balancer, now, specs(0..2));
        let mut shares = Vec::new();
        for _ in 0..6 {
            shares.push(counts(&balancer, 2, 1000)[1]);
            now += 4 * SECOND;
            balancer.tick(now);
        }
        assert!(shares.is_sorted(), "{shares:?}");
        assert!(shares[0] < 120 && (180..220).contains(&shares[1]), "a tenth of a share, then a quarter: {shares:?}");
        assert_eq!(shares[4..], [500, 500], "{shares:?}");
        assert_eq!(balancer.tick(now), None, "nothing is due");
    }
}

/// BA-58.
#[test]
fn returning_endpoint_starts_slowly_again() {
    // The endpoint has a lease, is in a snapshot of a reader, or neither.
    for (leased, cached) in [(true, true), (false, true), (false, false)] {
        let mut now = Instant::now();
        let balancer =
            Balancer::new(RoundRobin, BalancerSettings { slow_start: 16 * SECOND, ..ready_at_start() }, 1, now);
        set(&balancer, now, specs(0..2));
        now += 20 * SECOND;
        balancer.tick(now);
        assert_eq!(counts(&balancer, 2, 1000), [500, 500]);
        let picker = cached.then(|| Picker::new(&balancer, 1));
        let leases: Vec<_> = (0..4).map(|_| balancer.pick(&Pick::new()).unwrap()).filter(|_| leased).collect();
        set(&balancer, now, specs(0..1));
        drop(balancer.take_departed());
        assert_eq!(counts(&balancer, 2, 10), [10, 0]);
        set(&balancer, now, specs(0..2));
        assert!(counts(&balancer, 2, 1000)[1] < 120, "leased: {leased}, cached: {cached}");
        balancer.tick(now + 16 * SECOND);
        assert_eq!(counts(&balancer, 2, 1000), [500, 500]);
        drop((leases, picker));
    }
}

/// BA-58.
#[test]
fn tick_returns_the_next_step_of_a_slow_start() {
    for policy in policies() {
        let start = Instant::now();
        let balancer =
            Balancer::with_policy(policy, BalancerSettings { slow_start: 16 * SECOND, ..ready_at_start() }, 1, start);
        set(&balancer, start, specs(0..3));
        let (mut now, mut ticks) = (start, 0);
        while let Some(next) = balancer.tick(now) {
            assert!(next > now);
            (now, ticks) = (next, ticks + 1);
        }
        assert!((16..=17).contains(&ticks), "{ticks} ticks");
        assert!(now >= start + 16 * SECOND);
    }
}

/// BA-58.
#[test]
fn slow_start_applies_to_least_request() {
    let now = Instant::now();
    let balancer = Balancer::new(
        LeastRequest::default(),
        BalancerSettings { slow_start: 10 * SECOND, ..ready_at_start() },
        1,
        now,
    );
    set(&balancer, now, specs(0..1));
    set(&balancer, now + 20 * SECOND, specs(0..2));
    let leases: Vec<_> = (0..110).map(|_| balancer.pick(&Pick::new()).unwrap()).collect();
    let new = leases.iter().filter(|lease| ***lease == key(1)).count();
    assert!((5..20).contains(&new), "about a tenth of the other endpoint's: {new}");
}

#[test]
fn zero_weight_gets_no_picks_beside_others() {
    let now = Instant::now();
    for policy in [Arc::new(LeastRequest::default()) as Arc<dyn Policy>, Arc::new(PeakEwma)] {
        let balancer = Balancer::with_policy(policy, ready_at_start(), 1, now);
        set(&balancer, now, specs(0..5));
        (0..3).for_each(|number| balancer.set_weight(&key(number).as_str().into(), 0));
        let leases: Vec<_> = (0..300).map(|_| balancer.pick(&Pick::new().at(now)).unwrap()).collect();
        assert!(leases.iter().all(|lease| **lease == key(3) || **lease == key(4)));
    }
}

#[test]
fn weights_can_change_between_updates() {
    let now = Instant::now();
    let balancer = Balancer::new(WeightedRoundRobin, ready_at_start(), 1, now);
    set(&balancer, now, specs(0..2));
    balancer.set_weight(&key(1).as_str().into(), 3);
    assert_eq!(counts(&balancer, 2, 400), [100, 300]);
    balancer.set_policy(Arc::new(PickFirst::default()));
    assert_eq!(counts(&balancer, 2, 10), [10, 0]);
}
