//! The set changes: additions, removals, policies, doubles, failures of policies.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use tidegate_balance::{
    Balancer, Endpoint, LeastRequest, Member, Pick, PickError, Policy, RoundRobin, Settings, Spec, State, Table,
};

use crate::house::{at_once, counts, id_of, key, pick_key, policies, ready, set, specs};

#[test]
fn t06_a_set_may_shrink_to_nothing_and_grow_again() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 8);
        pick_key(&balancer);
        set(&balancer, Instant::now(), Vec::new());
        let refused = balancer.pick(&Pick::new()).map(drop);
        assert!(matches!(refused, Err(PickError::Empty)), "{policy:?}: {refused:?}");
        set(&balancer, Instant::now(), specs(4..6));
        assert!([key(4), key(5)].contains(&pick_key(&balancer)), "{policy:?}");
    }
}

#[test]
fn t19_another_policy_takes_over_without_a_lost_pick_or_a_lost_count() {
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
    // Nothing is left of the policies that were replaced.
    let old = Arc::new(RoundRobin) as Arc<dyn Policy>;
    let balancer = ready(Arc::clone(&old), 3);
    balancer.set_policy(Arc::new(LeastRequest::default()));
    assert_eq!(Arc::strong_count(&old), 1);
}

/// Fails, or panics, when told to.
#[derive(Debug)]
struct Moody {
    fails: Arc<AtomicBool>,
    panics: Arc<AtomicBool>,
}

impl Policy for Moody {
    fn name(&self) -> &'static str {
        "moody"
    }

    fn table(
        &self,
        members: &[Member],
        before: Option<&dyn Table>,
    ) -> Result<Box<dyn Table>, Box<dyn Error + Send + Sync>> {
        assert!(!self.panics.load(Ordering::Relaxed), "a policy that panics");
        if self.fails.load(Ordering::Relaxed) { Err("it fails".into()) } else { RoundRobin.table(members, before) }
    }
}

#[test]
fn t20_a_policy_that_fails_or_panics_leaves_the_snapshot_as_it_was() {
    let (moody, moods) = moody();
    let balancer = ready(Arc::new(moody), 2);
    for (number, mood) in (1..).zip(&moods) {
        mood.store(true, Ordering::Relaxed);
        set(&balancer, Instant::now(), specs(1..4));
        assert_eq!(balancer.counters().policy_failures, number);
        assert_eq!(counts(&balancer, 2, 10), [5, 5], "the old two serve on");
        assert!(balancer.departed().is_empty(), "who is still in use does not depart");
        mood.store(false, Ordering::Relaxed);
        set(&balancer, Instant::now(), specs(0..2));
    }
    set(&balancer, Instant::now(), specs(0..4));
    assert_eq!(counts(&balancer, 4, 20), [5, 5, 5, 5]);
}

fn moody() -> (Moody, [Arc<AtomicBool>; 2]) {
    let (fails, panics) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    (Moody { fails: Arc::clone(&fails), panics: Arc::clone(&panics) }, [fails, panics])
}

#[test]
fn t20_a_policy_that_cannot_build_its_first_table_leaves_the_one_before_in_use() {
    for policy in policies() {
        for mood in [0, 1] {
            let balancer = ready(Arc::clone(&policy), 3);
            let version = balancer.version();
            let (moody, moods) = moody();
            moods[mood].store(true, Ordering::Relaxed);
            balancer.set_policy(Arc::new(moody));
            assert_eq!((balancer.counters().policy_failures, balancer.version()), (1, version), "{policy:?}");
            let lease = balancer.pick(&Pick::new()).unwrap();
            drop(lease);
            // It recovers, or another one takes its place.
            moods[mood].store(false, Ordering::Relaxed);
            set(&balancer, Instant::now(), specs(0..2));
            assert_eq!(counts(&balancer, 2, 10), [5, 5], "{policy:?}");
            balancer.set_policy(Arc::clone(&policy));
            pick_key(&balancer);
        }
    }
}

#[test]
fn t20_a_policy_that_fails_does_not_keep_the_balancer_from_being_closed() {
    for mood in [0, 1] {
        let (moody, moods) = moody();
        let balancer = ready(Arc::new(moody), 2);
        let lease = balancer.pick(&Pick::new()).unwrap();
        moods[mood].store(true, Ordering::Relaxed);
        balancer.close();
        assert!(matches!(balancer.pick(&Pick::new()), Err(PickError::Closed)));
        assert_eq!(balancer.departed().len(), 2, "its owner can close them");
        drop(lease);
    }
}

#[test]
fn t20_a_policy_that_fails_does_not_make_its_owner_spin() {
    for mood in [0, 1] {
        let (moody, moods) = moody();
        let balancer = ready(Arc::new(moody), 2);
        moods[mood].store(true, Ordering::Relaxed);
        let mut now = Instant::now();
        set(&balancer, now, specs(1..2));
        for _ in 0..10 {
            let next = balancer.tick(now).expect("what is due could not be published");
            assert!(next > now, "due at once, for ever");
            now = next;
        }
        // And what was decided meanwhile is published once it can be.
        moods[mood].store(false, Ordering::Relaxed);
        balancer.tick(now);
        assert_eq!((pick_key(&balancer), balancer.departed().len()), (key(1), 1));
        assert_eq!(balancer.tick(now), None);
    }
}

#[test]
fn t21_an_update_that_fails_half_way_releases_what_it_made() {
    struct Dialled(Arc<AtomicUsize>);
    impl Drop for Dialled {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let open = Arc::new(AtomicUsize::new(0));
    let now = Instant::now();
    let balancer = Balancer::new(RoundRobin, at_once(), 1, now);
    let dial = |failing: &str| {
        let (open, failing) = (Arc::clone(&open), failing.to_owned());
        move |spec: &Spec, _| {
            assert_ne!(spec.key.as_str(), failing, "cannot be dialled");
            open.fetch_add(1, Ordering::Relaxed);
            Dialled(Arc::clone(&open))
        }
    };
    let failed = catch_unwind(AssertUnwindSafe(|| balancer.update(now, specs(0..3), dial(&key(2)))));
    assert!(failed.is_err());
    assert_eq!((open.load(Ordering::Relaxed), balancer.endpoints().len()), (0, 0));
    // The same names work afterwards.
    assert_eq!(balancer.update(now, specs(0..3), dial("")).added.len(), 3);
    drop(balancer);
    assert_eq!(open.load(Ordering::Relaxed), 0);
}

#[test]
fn t22_nobody_is_published_before_it_is_ready_and_nobody_departs_before_that_is_published() {
    for policy in policies() {
        let now = Instant::now();
        let balancer = Balancer::with_policy(Arc::clone(&policy), Settings::default(), 1, now);
        let added = set(&balancer, now, specs(0..2)).added;
        assert!(matches!(balancer.pick(&Pick::new()), Err(PickError::NotReady { known: 2, .. })), "{policy:?}");
        balancer.ready(added[1].id(), now);
        assert_eq!(pick_key(&balancer), key(1), "{policy:?}");
        let mut picker = balancer.picker(1);
        set(&balancer, now, specs(0..1));
        balancer.ready(added[0].id(), now);
        assert_eq!(balancer.departed().len(), 1, "{policy:?}");
        // The next pick of whoever still has the old snapshot is of the new one.
        assert_eq!(*picker.pick(&Pick::new()).unwrap(), key(0), "{policy:?}");
    }
}

#[test]
fn t34_another_port_is_another_endpoint() {
    let balancer = ready(Arc::new(RoundRobin), 0);
    set(
        &balancer,
        Instant::now(),
        vec![Spec::new("10.0.0.1:1"), Spec::new("[fe80::1%1]:1"), Spec::new("[fe80::1%2]:1")],
    );
    let update = set(&balancer, Instant::now(), vec![Spec::new("10.0.0.1:2"), Spec::new("[fe80::1%1]:1")]);
    assert_eq!((update.added.len(), update.kept, update.removed), (1, 1, 2));
    assert_eq!(balancer.departed().len(), 2);
}

#[test]
fn t42_who_recovers_serves_again_without_an_update() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 1);
        let (id, now) = (id_of(&balancer, 0), Instant::now());
        balancer.failed(id, now, Arc::new(std::io::Error::other("reset")));
        let refused = balancer.pick(&Pick::new()).map(drop).unwrap_err();
        assert!(refused.to_string().contains("reset"), "{policy:?}: {refused}");
        balancer.connecting(id);
        assert_eq!(balancer.status()[0].state, State::Connecting);
        balancer.ready(id, now);
        assert_eq!(pick_key(&balancer), key(0), "{policy:?}");
    }
}

#[test]
fn t48_doubles_are_one() {
    let balancer = ready(Arc::new(RoundRobin), 0);
    let update = set(&balancer, Instant::now(), specs([1, 2, 1, 1, 2]));
    assert_eq!(update.added.len(), 2);
    assert_eq!(balancer.status().len(), 2);
}

#[test]
fn t49_thousands_of_endpoints_are_as_good_as_three() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 5000);
        let mut picker = balancer.picker(1);
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
    set(&balancer, now, vec![Spec::new("near").tier(1), Spec::new("far").tier(2), Spec::new("also near").tier(1)]);
    let found: Vec<String> = (0..4).map(|_| pick_key(&balancer)).collect();
    assert!(!found.contains(&"far".to_owned()), "{found:?}");
    for near in balancer.endpoints().iter().filter(|endpoint| endpoint.key().as_str() != "far") {
        balancer.failed(near.id(), now, Arc::new(std::io::Error::other("gone")));
    }
    assert_eq!(pick_key(&balancer), "far");
}

#[test]
fn t52_who_was_tried_or_does_not_fit_is_replaced_by_one_of_the_next_tier() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 0);
        let tiers = vec![Spec::new("near").tier(1), Spec::new("far").tier(2), Spec::new("last").tier(3)];
        set(&balancer, Instant::now(), tiers);
        let mut tried = Vec::new();
        for expected in ["near", "far", "last"] {
            let lease = balancer.pick(&Pick::new().tried(&tried).hash(5)).unwrap();
            assert_eq!(*lease, expected, "{policy:?}");
            tried.push(lease.endpoint().id());
        }
        // All were tried: the best of them again.
        assert_eq!(*balancer.pick(&Pick::new().tried(&tried)).unwrap(), "near", "{policy:?}");
        let fits = |endpoint: &Endpoint<String>| endpoint.value() != "near";
        assert_eq!(*balancer.pick(&Pick::new().filter(&fits)).unwrap(), "far", "{policy:?}");
        assert_eq!(*balancer.pick(&Pick::new().filter(&fits).tried(&tried)).unwrap(), "far", "{policy:?}");
        let nobody = balancer.pick(&Pick::new().filter(&|_| false).tried(&tried)).map(drop);
        assert!(matches!(nobody, Err(PickError::NoMatch { ready: 3 })), "{policy:?}: {nobody:?}");
        assert_eq!(pick_key(&balancer), "near", "{policy:?}");
    }
}
