//! Shares that grow: slow start.

use std::sync::Arc;
use std::time::Instant;

use tidegate_balance::{
    Balancer, LeastRequest, PeakEwma, Pick, PickFirst, Policy, RoundRobin, Settings, WeightedRoundRobin,
};

use crate::house::{SECOND, at_once, counts, key, policies, set, specs};

#[test]
fn t58_the_share_of_a_new_endpoint_grows_to_its_own() {
    for policy in [Arc::new(RoundRobin) as Arc<dyn Policy>, Arc::new(WeightedRoundRobin)] {
        let mut now = Instant::now();
        let balancer = Balancer::with_policy(policy, Settings { slow_start: 16 * SECOND, ..at_once() }, 1, now);
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
        assert!(shares[0] < 120 && (180..220).contains(&shares[1]), "a tenth, then a quarter, of a share: {shares:?}");
        assert_eq!(shares[4..], [500, 500], "{shares:?}");
        assert_eq!(balancer.tick(now), None, "nothing is left to do");
    }
}

#[test]
fn t58_who_was_out_and_comes_back_begins_with_less_again() {
    // Somebody still uses it, somebody still has it in a snapshot, nobody knows it any more.
    for (held, kept) in [(true, true), (false, true), (false, false)] {
        let mut now = Instant::now();
        let balancer = Balancer::new(RoundRobin, Settings { slow_start: 16 * SECOND, ..at_once() }, 1, now);
        set(&balancer, now, specs(0..2));
        now += 20 * SECOND;
        balancer.tick(now);
        assert_eq!(counts(&balancer, 2, 1000), [500, 500]);
        let picker = kept.then(|| balancer.picker(1));
        let leases: Vec<_> = (0..4).map(|_| balancer.pick(&Pick::new()).unwrap()).filter(|_| held).collect();
        set(&balancer, now, specs(0..1));
        drop(balancer.departed());
        assert_eq!(counts(&balancer, 2, 10), [10, 0]);
        set(&balancer, now, specs(0..2));
        assert!(counts(&balancer, 2, 1000)[1] < 120, "held: {held}, kept: {kept}");
        balancer.tick(now + 16 * SECOND);
        assert_eq!(counts(&balancer, 2, 1000), [500, 500]);
        drop((leases, picker));
    }
}

#[test]
fn t58_the_owner_is_told_when_a_share_grows_next() {
    for policy in policies() {
        let start = Instant::now();
        let balancer = Balancer::with_policy(policy, Settings { slow_start: 16 * SECOND, ..at_once() }, 1, start);
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

#[test]
fn t58_a_slow_start_gives_fewer_requests_to_a_new_endpoint_by_load_too() {
    let now = Instant::now();
    let balancer = Balancer::new(LeastRequest::default(), Settings { slow_start: 10 * SECOND, ..at_once() }, 1, now);
    set(&balancer, now, specs(0..1));
    set(&balancer, now + 20 * SECOND, specs(0..2));
    let leases: Vec<_> = (0..110).map(|_| balancer.pick(&Pick::new()).unwrap()).collect();
    let new = leases.iter().filter(|lease| ***lease == key(1)).count();
    assert!((5..20).contains(&new), "about a tenth of the other's: {new}");
}

#[test]
fn who_has_no_weight_gets_nothing_while_others_have_some() {
    let now = Instant::now();
    for policy in [Arc::new(LeastRequest::default()) as Arc<dyn Policy>, Arc::new(PeakEwma)] {
        let balancer = Balancer::with_policy(policy, at_once(), 1, now);
        set(&balancer, now, specs(0..5));
        (0..3).for_each(|number| balancer.set_weight(&key(number).as_str().into(), 0));
        let leases: Vec<_> = (0..300).map(|_| balancer.pick(&Pick::new().at(now)).unwrap()).collect();
        assert!(leases.iter().all(|lease| **lease == key(3) || **lease == key(4)));
    }
}

#[test]
fn weights_may_change_between_updates() {
    let now = Instant::now();
    let balancer = Balancer::new(WeightedRoundRobin, at_once(), 1, now);
    set(&balancer, now, specs(0..2));
    balancer.set_weight(&key(1).as_str().into(), 3);
    assert_eq!(counts(&balancer, 2, 400), [100, 300]);
    balancer.set_policy(Arc::new(PickFirst::default()));
    assert_eq!(counts(&balancer, 2, 10), [10, 0]);
}
