//! Changes of the set: additions, removals, duplicates, policies, failing policies.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use tidegate_balance::{
    Balancer, BalancerSettings, ConnectivityState, Endpoint, EndpointSpec, LeastRequest, Pick, PickError, PickTable,
    Picker, Policy, PolicyMember, RoundRobin,
};

use crate::fixture::{counts, id_of, key, pick_key, policies, ready, ready_at_start, set, specs};

/// BA-6.
#[test]
fn set_can_become_empty_and_grow_again() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 8);
        pick_key(&balancer);
        set(&balancer, Instant::now(), Vec::new());
        let error = balancer.pick(&Pick::new()).map(drop);
        assert!(matches!(error, Err(PickError::Empty)), "{policy:?}: {error:?}");
        set(&balancer, Instant::now(), specs(4..6));
        assert!([key(4), key(5)].contains(&pick_key(&balancer)), "{policy:?}");
    }
}

/// BA-19.
#[test]
fn policy_change_keeps_picks_and_counts() {
    for first in policies() {
        for second in policies() {
            let balancer = ready(Arc::clone(&first), 3);
            let lease = balancer.pick(&Pick::new()).unwrap();
            balancer.set_policy(Arc::clone(&second));
            assert_eq!(lease.endpoint().load().in_flight(), 1);
            balancer.pick(&Pick::new()).map(drop).unwrap();
            drop(lease);
            assert!(balancer.status().iter().all(|status| status.in_flight == 0), "{first:?} -> {second:?}");
        }
    }
    // A replaced policy is dropped.
    let old = Arc::new(RoundRobin) as Arc<dyn Policy>;
    let balancer = ready(Arc::clone(&old), 3);
    balancer.set_policy(Arc::new(LeastRequest::default()));
    assert_eq!(Arc::strong_count(&old), 1);
}

/// A policy that fails or panics on demand.
#[derive(Debug)]
struct FailingPolicy {
    fails: Arc<AtomicBool>,
    panics: Arc<AtomicBool>,
}

impl Policy for FailingPolicy {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn table(
        &self,
        members: &[PolicyMember],
        previous: Option<&dyn PickTable>,
    ) -> Result<Box<dyn PickTable>, Box<dyn Error + Send + Sync>> {
        assert!(!self.panics.load(Ordering::Relaxed), "deliberate panic");
        if self.fails.load(Ordering::Relaxed) {
            Err("deliberate failure".into())
        } else {
            RoundRobin.table(members, previous)
        }
    }
}

/// BA-20.
#[test]
fn failing_policy_keeps_the_previous_snapshot() {
    let (policy, failures) = failing_policy();
    let balancer = ready(Arc::new(policy), 2);
    for (number, failure) in (1..).zip(&failures) {
        failure.store(true, Ordering::Relaxed);
        set(&balancer, Instant::now(), specs(1..4));
        assert_eq!(balancer.counters().policy_failures, number);
        assert_eq!(counts(&balancer, 2, 10), [5, 5], "the previous endpoints serve");
        assert!(balancer.take_departed().is_empty(), "an endpoint in use does not depart");
        failure.store(false, Ordering::Relaxed);
        set(&balancer, Instant::now(), specs(0..2));
    }
    set(&balancer, Instant::now(), specs(0..4));
    assert_eq!(counts(&balancer, 4, 20), [5, 5, 5, 5]);
}

fn failing_policy() -> (FailingPolicy, [Arc<AtomicBool>; 2]) {
    let (fails, panics) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    (FailingPolicy { fails: Arc::clone(&fails), panics: Arc::clone(&panics) }, [fails, panics])
}

/// BA-20.
#[test]
fn policy_failing_at_first_keeps_the_previous_one() {
    for policy in policies() {
        for failure in [0, 1] {
            let balancer = ready(Arc::clone(&policy), 3);
            let version = balancer.version();
            let (failing, failures) = failing_policy();
            failures[failure].store(true, Ordering::Relaxed);
            balancer.set_policy(Arc::new(failing));
            assert_eq!((balancer.counters().policy_failures, balancer.version()), (1, version), "{policy:?}");
            let lease = balancer.pick(&Pick::new()).unwrap();
            drop(lease);
            // The policy recovers, or is replaced.
            failures[failure].store(false, Ordering::Relaxed);
            set(&balancer, Instant::now(), specs(0..2));
            assert_eq!(counts(&balancer, 2, 10), [5, 5], "{policy:?}");
            balancer.set_policy(Arc::clone(&policy));
            pick_key(&balancer);
        }
    }
}

/// BA-20.
#[test]
fn failing_policy_does_not_prevent_close() {
    for failure in [0, 1] {
        let (policy, failures) = failing_policy();
        let balancer = ready(Arc::new(policy), 2);
        let lease = balancer.pick(&Pick::new()).unwrap();
        failures[failure].store(true, Ordering::Relaxed);
        balancer.close();
        assert!(matches!(balancer.pick(&Pick::new()), Err(PickError::Closed)));
        assert_eq!(balancer.take_departed().len(), 2, "the owner can close them");
        drop(lease);
    }
}

/// BA-20.
#[test]
fn failing_policy_does_not_make_tick_loop() {
    for failure in [0, 1] {
        let (policy, failures) = failing_policy();
        let balancer = ready(Arc::new(policy), 2);
        failures[failure].store(true, Ordering::Relaxed);
        let mut now = Instant::now();
        set(&balancer, now, specs(1..2));
        for _ in 0..10 {
            let next = balancer.tick(now).expect("a retry of the publication is due");
            assert!(next > now, "due now, in a loop");
            now = next;
        }
        // The pending changes are published once the policy works.
        failures[failure].store(false, Ordering::Relaxed);
        balancer.tick(now);
        assert_eq!((pick_key(&balancer), balancer.take_departed().len()), (key(1), 1));
        assert_eq!(balancer.tick(now), None);
    }
}

/// BA-21.
#[test]
fn panic_in_update_drops_new_values() {
    struct Connected(Arc<AtomicUsize>);
    impl Drop for Connected {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let open = Arc::new(AtomicUsize::new(0));
    let now = Instant::now();
    let balancer = Balancer::new(RoundRobin, ready_at_start(), 1, now);
    let connect = |failing: &str| {
        let (open, failing) = (Arc::clone(&open), failing.to_owned());
        move |spec: &EndpointSpec, _| {
            assert_ne!(spec.key.as_str(), failing, "deliberate panic");
            open.fetch_add(1, Ordering::Relaxed);
            Connected(Arc::clone(&open))
        }
    };
    let failed = catch_unwind(AssertUnwindSafe(|| balancer.update(now, specs(0..3), connect(&key(2)))));
    assert!(failed.is_err());
    assert_eq!((open.load(Ordering::Relaxed), balancer.endpoints().len()), (0, 0));
    // The same keys work afterwards.
    assert_eq!(balancer.update(now, specs(0..3), connect("")).added.len(), 3);
    drop(balancer);
    assert_eq!(open.load(Ordering::Relaxed), 0);
}

/// BA-22.
#[test]
fn endpoints_are_published_before_others_depart() {
    for policy in policies() {
        let now = Instant::now();
        let balancer = Balancer::with_policy(Arc::clone(&policy), BalancerSettings::default(), 1, now);
        let added = set(&balancer, now, specs(0..2)).added;
        assert!(matches!(balancer.pick(&Pick::new()), Err(PickError::NotReady { known: 2, .. })), "{policy:?}");
        balancer.mark_ready(added[1].id(), now);
        assert_eq!(pick_key(&balancer), key(1), "{policy:?}");
        let mut picker = Picker::new(&balancer, 1);
        set(&balancer, now, specs(0..1));
        balancer.mark_ready(added[0].id(), now);
        assert_eq!(balancer.take_departed().len(), 1, "{policy:?}");
        // The next pick of a reader with the old snapshot uses the new one.
        assert_eq!(*picker.pick(&Pick::new()).unwrap(), key(0), "{policy:?}");
    }
}

/// BA-34.
#[test]
fn another_port_is_another_endpoint() {
    let balancer = ready(Arc::new(RoundRobin), 0);
    set(
        &balancer,
        Instant::now(),
        vec![EndpointSpec::new("10.0.0.1:1"), EndpointSpec::new("[fe80::1%1]:1"), EndpointSpec::new("[fe80::1%2]:1")],
    );
    let update =
        set(&balancer, Instant::now(), vec![EndpointSpec::new("10.0.0.1:2"), EndpointSpec::new("[fe80::1%1]:1")]);
    assert_eq!((update.added.len(), update.kept, update.removed), (1, 1, 2));
    assert_eq!(balancer.take_departed().len(), 2);
}

/// BA-42.
#[test]
fn recovered_endpoint_is_picked_without_an_update() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 1);
        let (id, now) = (id_of(&balancer, 0), Instant::now());
        balancer.mark_failed(id, now, Arc::new(std::io::Error::other("reset")));
        let error = balancer.pick(&Pick::new()).map(drop).unwrap_err();
        assert!(error.to_string().contains("reset"), "{policy:?}: {error}");
        balancer.mark_connecting(id);
        assert_eq!(balancer.status()[0].state, ConnectivityState::Connecting);
        balancer.mark_ready(id, now);
        assert_eq!(pick_key(&balancer), key(0), "{policy:?}");
    }
}

/// BA-48.
#[test]
fn duplicate_keys_are_one_endpoint() {
    let balancer = ready(Arc::new(RoundRobin), 0);
    let update = set(&balancer, Instant::now(), specs([1, 2, 1, 1, 2]));
    assert_eq!(update.added.len(), 2);
    assert_eq!(balancer.status().len(), 2);
}

/// BA-49.
#[test]
fn five_thousand_endpoints_work() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 5000);
        let mut picker = Picker::new(&balancer, 1);
        for number in 0..20_000_u64 {
            picker.pick(&Pick::new().hash(number.wrapping_mul(0x9E37_79B9_7F4A_7C15))).map(drop).unwrap();
        }
        set(&balancer, Instant::now(), specs(4999..5001));
        assert!([key(4999), key(5000)].contains(&picker.pick(&Pick::new()).unwrap()), "{policy:?}");
    }
}

#[test]
fn tiers_serve_in_order() {
    let balancer = ready(Arc::new(RoundRobin), 0);
    let now = Instant::now();
    set(
        &balancer,
        now,
        vec![
            EndpointSpec::new("near").tier(1),
            EndpointSpec::new("far").tier(2),
            EndpointSpec::new("also near").tier(1),
        ],
    );
    let found: Vec<String> = (0..4).map(|_| pick_key(&balancer)).collect();
    assert!(!found.contains(&"far".to_owned()), "{found:?}");
    for near in balancer.endpoints().iter().filter(|endpoint| endpoint.key().as_str() != "far") {
        balancer.mark_failed(near.id(), now, Arc::new(std::io::Error::other("gone")));
    }
    assert_eq!(pick_key(&balancer), "far");
}

/// BA-52.
#[test]
fn tried_or_refused_tier_falls_back_to_the_next() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 0);
        let tiers = vec![
            EndpointSpec::new("near").tier(1),
            EndpointSpec::new("far").tier(2),
            EndpointSpec::new("last").tier(3),
        ];
        set(&balancer, Instant::now(), tiers);
        let mut tried = Vec::new();
        for expected in ["near", "far", "last"] {
            let lease = balancer.pick(&Pick::new().tried(&tried).hash(5)).unwrap();
            assert_eq!(*lease, expected, "{policy:?}");
            tried.push(lease.endpoint().id());
        }
        // All were tried: the best one again.
        assert_eq!(*balancer.pick(&Pick::new().tried(&tried)).unwrap(), "near", "{policy:?}");
        let fits = |endpoint: &Endpoint<String>| endpoint.value() != "near";
        assert_eq!(*balancer.pick(&Pick::new().filter(&fits)).unwrap(), "far", "{policy:?}");
        assert_eq!(*balancer.pick(&Pick::new().filter(&fits).tried(&tried)).unwrap(), "far", "{policy:?}");
        let none = balancer.pick(&Pick::new().filter(&|_| false).tried(&tried)).map(drop);
        assert!(matches!(none, Err(PickError::NoMatch { ready: 3 })), "{policy:?}: {none:?}");
        assert_eq!(pick_key(&balancer), "near", "{policy:?}");
    }
}
