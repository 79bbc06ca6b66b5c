//! Make before break: removed endpoints serve until they are replaced, and end when nobody uses them.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tidegate_balance::{
    Balancer, Drained, Endpoint, Pick, PickError, Policy, RoundRobin, Settings, Spec, WeakBalancer,
};

use crate::house::{SECOND, at_once, id_of, key, pick_key, policies, ready, set, specs};

fn poll(endpoint: &Endpoint<String>) -> Poll<Drained> {
    endpoint.poll_drained(&Context::from_waker(Waker::noop()))
}

#[test]
fn t43_a_removed_endpoint_is_drained_when_its_last_lease_ends() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 1);
        let leases: Vec<_> = (0..3).map(|_| balancer.pick(&Pick::new()).unwrap()).collect();
        set(&balancer, Instant::now(), specs(1..2));
        let [gone] = &balancer.departed()[..] else { panic!("one departs") };
        assert_eq!((poll(gone), gone.load().in_flight()), (Poll::Pending, 3), "{policy:?}");
        for lease in leases {
            assert_eq!(poll(gone), Poll::Pending);
            drop(lease);
        }
        assert_eq!(poll(gone), Poll::Ready(Drained::Empty), "{policy:?}");
        assert!(balancer.status().iter().all(|status| status.key.as_str() == key(1) || status.leaving));
    }
}

#[test]
fn t43_a_drain_that_takes_too_long_is_ended_by_its_owner() {
    let balancer = ready(Arc::new(RoundRobin), 1);
    let lease = balancer.pick(&Pick::new()).unwrap();
    set(&balancer, Instant::now(), specs(1..2));
    let gone = balancer.departed().remove(0);
    gone.abandon();
    assert_eq!(poll(&gone), Poll::Ready(Drained::Empty));
    // The same address afterwards is another endpoint.
    assert_eq!(set(&balancer, Instant::now(), specs(0..2)).added[0].key().as_str(), key(0));
    drop(lease);
    assert_eq!(gone.load().in_flight(), 0);
}

#[test]
fn t44_all_replaced_at_once_the_old_serve_until_the_new_are_ready() {
    for policy in policies() {
        let now = Instant::now();
        let balancer = Balancer::with_policy(Arc::clone(&policy), Settings::default(), 1, now);
        for endpoint in set(&balancer, now, specs(0..3)).added {
            balancer.ready(endpoint.id(), now);
        }
        let added = set(&balancer, now, specs(3..6)).added;
        assert!(balancer.departed().is_empty(), "{policy:?}: nothing to replace them yet");
        for endpoint in &added {
            pick_key(&balancer);
            if endpoint.key().as_str() == key(4) {
                balancer.failed(endpoint.id(), now, Arc::new(std::io::Error::other("refused")));
            } else {
                balancer.ready(endpoint.id(), now);
            }
        }
        assert_eq!(balancer.departed().len(), 3, "{policy:?}");
        assert!([key(3), key(5)].contains(&pick_key(&balancer)), "{policy:?}");
    }
}

#[test]
fn t44_the_old_do_not_serve_for_ever_when_the_new_never_come() {
    let now = Instant::now();
    let settings = Settings { replace_within: 30 * SECOND, ..Settings::default() };
    let balancer = Balancer::new(RoundRobin, settings, 1, now);
    let old = set(&balancer, now, specs(0..1)).added.remove(0);
    balancer.ready(old.id(), now);
    set(&balancer, now, specs(1..2));
    assert_eq!(balancer.tick(now + 29 * SECOND), Some(now + 30 * SECOND));
    assert_eq!(pick_key(&balancer), key(0));
    balancer.tick(now + 30 * SECOND);
    assert!(matches!(balancer.pick(&Pick::new()), Err(PickError::NotReady { .. })));
    assert_eq!(balancer.departed().len(), 1);
}

#[test]
fn t47_removed_and_added_again_it_is_the_same_endpoint_until_it_is_closed() {
    policies().into_iter().for_each(revived);
}

fn revived(policy: Arc<dyn Policy>) {
    let balancer = ready(policy, 2);
    let id = id_of(&balancer, 0);
    let lease = balancer.pick(&Pick::new().tried(&[id_of(&balancer, 1)])).expect("one is ready");
    set(&balancer, Instant::now(), specs(1..2));
    let gone = balancer.departed().remove(0);
    assert_eq!(poll(&gone), Poll::Pending);
    let update = set(&balancer, Instant::now(), specs(0..2));
    assert_eq!((update.added.len(), id_of(&balancer, 0)), (0, id), "no second connection");
    assert_eq!(poll(&gone), Poll::Ready(Drained::Revived));
    assert_eq!(lease.endpoint().load().in_flight(), 1);
    drop(lease);
    // Removed again, it departs again; once closed, the address is a new endpoint and the old one is forgotten.
    set(&balancer, Instant::now(), specs(1..2));
    let gone = balancer.departed().remove(0);
    assert_eq!(poll(&gone), Poll::Ready(Drained::Empty));
    let update = set(&balancer, Instant::now(), specs(0..2));
    assert_ne!(update.added[0].id(), id);
    assert_eq!(balancer.status().len(), 2, "no ghost");
}

/// A drain may end on another thread at any moment, so also while the values of new endpoints are made.
#[test]
fn t47_a_drain_that_ends_during_an_update_loses_no_endpoint() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 2);
        let id = id_of(&balancer, 0);
        set(&balancer, Instant::now(), specs(1..2));
        let gone = balancer.departed().remove(0);
        let update = balancer.update(Instant::now(), specs(0..3), |spec, _| {
            assert_eq!(poll(&gone), Poll::Ready(Drained::Revived), "{policy:?}: it is wanted again");
            spec.key.to_string()
        });
        assert_eq!((update.added.len(), update.kept), (1, 2), "{policy:?}");
        assert_eq!((balancer.endpoints().len(), id_of(&balancer, 0)), (3, id), "{policy:?}");
    }
}

/// A value that asks the balancer when it ends.
struct Curious(WeakBalancer<Self>);

impl Drop for Curious {
    fn drop(&mut self) {
        if let Some(balancer) = self.0.upgrade() {
            drop(balancer.status());
        }
    }
}

#[test]
fn t43_the_end_of_a_value_may_ask_the_balancer() {
    let now = Instant::now();
    let balancer: Balancer<Curious> = Balancer::new(RoundRobin, at_once(), 1, now);
    let value = |_: &Spec, _| Curious(balancer.downgrade());
    balancer.update(now, specs(0..2), value);
    balancer.update(now, specs(1..2), value);
    // Its owner forgets one without a drain, and closes another.
    drop(balancer.departed());
    balancer.update(now, specs(2..3), value);
    for gone in balancer.departed() {
        assert_eq!(gone.poll_drained(&Context::from_waker(Waker::noop())), Poll::Ready(Drained::Empty));
    }
    balancer.update(now, specs(3..4), value);
    drop(balancer.departed());
    balancer.update(now, specs(4..5), value);
    assert!(balancer.status().len() <= 2, "no ghost");
}

#[test]
fn a_closed_balancer_lets_all_go() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 3);
        balancer.close();
        assert!(matches!(balancer.pick(&Pick::new()), Err(PickError::Closed)), "{policy:?}");
        assert_eq!(balancer.departed().len(), 3);
        assert!(set(&balancer, Instant::now() + Duration::from_secs(1), specs(0..3)).added.is_empty());
    }
}

/// An operator who looks at the table must not think that calls are still under way there.
#[test]
fn t43_who_was_closed_is_known_no_more() {
    for policy in policies() {
        let balancer = ready(policy, 3);
        let lease = balancer.pick(&Pick::new().filter(&|endpoint| endpoint.key().as_str() == key(1))).unwrap();
        set(&balancer, Instant::now(), specs([0]));
        let gone = balancer.departed();
        assert_eq!((gone.len(), balancer.status().len()), (2, 3));
        let ends: Vec<_> = gone.iter().map(|gone| poll(gone)).collect();
        assert_eq!(ends.iter().filter(|end| end.is_ready()).count(), 1);
        let left: Vec<_> =
            balancer.status().into_iter().map(|status| (status.key.to_string(), status.leaving)).collect();
        assert_eq!(left, [(key(0), false), (key(1), true)]);
        drop(lease);
        assert!(gone.iter().all(|gone| poll(gone).is_ready()));
        assert_eq!(balancer.status().len(), 1);
    }
}
