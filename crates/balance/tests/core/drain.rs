//! Make before break: a removed endpoint serves until it is replaced, and drains until its last lease ends.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tidegate_balance::{
    Balancer, BalancerSettings, DrainOutcome, Endpoint, EndpointSpec, Pick, PickError, Policy, RoundRobin, WeakBalancer,
};

use crate::fixture::{SECOND, id_of, key, pick_key, policies, ready, ready_at_start, set, specs};

fn poll(endpoint: &Endpoint<String>) -> Poll<DrainOutcome> {
    endpoint.poll_drained(&Context::from_waker(Waker::noop()))
}

/// BA-43.
#[test]
fn removed_endpoint_drains_with_its_last_lease() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 1);
        let leases: Vec<_> = (0..3).map(|_| balancer.pick(&Pick::new()).unwrap()).collect();
        set(&balancer, Instant::now(), specs(1..2));
        let [gone] = &balancer.take_departed()[..] else { panic!("one endpoint departs") };
        assert_eq!((poll(gone), gone.load().in_flight()), (Poll::Pending, 3), "{policy:?}");
        for lease in leases {
            assert_eq!(poll(gone), Poll::Pending);
            drop(lease);
        }
        assert_eq!(poll(gone), Poll::Ready(DrainOutcome::Empty), "{policy:?}");
        assert!(balancer.status().iter().all(|status| status.key.as_str() == key(1) || status.leaving));
    }
}

/// BA-43.
#[test]
fn owner_can_abandon_a_drain() {
    let balancer = ready(Arc::new(RoundRobin), 1);
    let lease = balancer.pick(&Pick::new()).unwrap();
    set(&balancer, Instant::now(), specs(1..2));
    let gone = balancer.take_departed().remove(0);
    gone.abandon_drain();
    assert_eq!(poll(&gone), Poll::Ready(DrainOutcome::Empty));
    // The same address is a new endpoint afterwards.
    assert_eq!(set(&balancer, Instant::now(), specs(0..2)).added[0].key().as_str(), key(0));
    drop(lease);
    assert_eq!(gone.load().in_flight(), 0);
}

/// BA-44.
#[test]
fn old_endpoints_serve_until_new_ones_are_ready() {
    for policy in policies() {
        let now = Instant::now();
        let balancer = Balancer::with_policy(Arc::clone(&policy), BalancerSettings::default(), 1, now);
        for endpoint in set(&balancer, now, specs(0..3)).added {
            balancer.mark_ready(endpoint.id(), now);
        }
        let added = set(&balancer, now, specs(3..6)).added;
        assert!(balancer.take_departed().is_empty(), "{policy:?}: the replacements are not ready");
        for endpoint in &added {
            pick_key(&balancer);
            if endpoint.key().as_str() == key(4) {
                balancer.mark_failed(endpoint.id(), now, Arc::new(std::io::Error::other("refused")));
            } else {
                balancer.mark_ready(endpoint.id(), now);
            }
        }
        assert_eq!(balancer.take_departed().len(), 3, "{policy:?}");
        assert!([key(3), key(5)].contains(&pick_key(&balancer)), "{policy:?}");
    }
}

/// BA-44.
#[test]
fn old_endpoints_end_after_replace_timeout() {
    let now = Instant::now();
    let settings = BalancerSettings { replace_timeout: 30 * SECOND, ..BalancerSettings::default() };
    let balancer = Balancer::new(RoundRobin, settings, 1, now);
    let old = set(&balancer, now, specs(0..1)).added.remove(0);
    balancer.mark_ready(old.id(), now);
    set(&balancer, now, specs(1..2));
    assert_eq!(balancer.tick(now + 29 * SECOND), Some(now + 30 * SECOND));
    assert_eq!(pick_key(&balancer), key(0));
    balancer.tick(now + 30 * SECOND);
    assert!(matches!(balancer.pick(&Pick::new()), Err(PickError::NotReady { .. })));
    assert_eq!(balancer.take_departed().len(), 1);
}

/// BA-47.
#[test]
fn endpoint_added_again_is_revived() {
    policies().into_iter().for_each(revived);
}

fn revived(policy: Arc<dyn Policy>) {
    let balancer = ready(policy, 2);
    let id = id_of(&balancer, 0);
    let lease = balancer.pick(&Pick::new().tried(&[id_of(&balancer, 1)])).expect("an endpoint is ready");
    set(&balancer, Instant::now(), specs(1..2));
    let gone = balancer.take_departed().remove(0);
    assert_eq!(poll(&gone), Poll::Pending);
    let update = set(&balancer, Instant::now(), specs(0..2));
    assert_eq!((update.added.len(), id_of(&balancer, 0)), (0, id), "no new endpoint");
    assert_eq!(poll(&gone), Poll::Ready(DrainOutcome::Revived));
    assert_eq!(lease.endpoint().load().in_flight(), 1);
    drop(lease);
    // Removed again, it departs again. Once it is closed, the address is a new endpoint.
    set(&balancer, Instant::now(), specs(1..2));
    let gone = balancer.take_departed().remove(0);
    assert_eq!(poll(&gone), Poll::Ready(DrainOutcome::Empty));
    let update = set(&balancer, Instant::now(), specs(0..2));
    assert_ne!(update.added[0].id(), id);
    assert_eq!(balancer.status().len(), 2, "duplicate endpoints");
}

/// BA-47: a drain can end on another thread while `update` creates the values of new endpoints.
#[test]
fn drain_ending_during_an_update_loses_no_endpoint() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 2);
        let id = id_of(&balancer, 0);
        set(&balancer, Instant::now(), specs(1..2));
        let gone = balancer.take_departed().remove(0);
        let update = balancer.update(Instant::now(), specs(0..3), |spec, _| {
            assert_eq!(poll(&gone), Poll::Ready(DrainOutcome::Revived), "{policy:?}: the endpoint is in the new set");
            spec.key.to_string()
        });
        assert_eq!((update.added.len(), update.kept), (1, 2), "{policy:?}");
        assert_eq!((balancer.endpoints().len(), id_of(&balancer, 0)), (3, id), "{policy:?}");
    }
}

/// A value that uses the balancer in its drop.
struct UsesBalancer(WeakBalancer<Self>);

impl Drop for UsesBalancer {
    fn drop(&mut self) {
        if let Some(balancer) = self.0.upgrade() {
            drop(balancer.status());
        }
    }
}

/// BA-43.
#[test]
fn drop_of_a_value_can_use_the_balancer() {
    let now = Instant::now();
    let balancer: Balancer<UsesBalancer> = Balancer::new(RoundRobin, ready_at_start(), 1, now);
    let value = |_: &EndpointSpec, _| UsesBalancer(balancer.downgrade());
    balancer.update(now, specs(0..2), value);
    balancer.update(now, specs(1..2), value);
    // The owner drops one endpoint without a drain, and closes another.
    drop(balancer.take_departed());
    balancer.update(now, specs(2..3), value);
    for gone in balancer.take_departed() {
        assert_eq!(gone.poll_drained(&Context::from_waker(Waker::noop())), Poll::Ready(DrainOutcome::Empty));
    }
    balancer.update(now, specs(3..4), value);
    drop(balancer.take_departed());
    balancer.update(now, specs(4..5), value);
    assert!(balancer.status().len() <= 2, "duplicate endpoints");
}

#[test]
fn closed_balancer_departs_all_endpoints() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 3);
        balancer.close();
        assert!(matches!(balancer.pick(&Pick::new()), Err(PickError::Closed)), "{policy:?}");
        assert_eq!(balancer.take_departed().len(), 3);
        assert!(set(&balancer, Instant::now() + Duration::from_secs(1), specs(0..3)).added.is_empty());
    }
}

/// BA-43: an operator must not take a closed endpoint for one with calls in flight.
#[test]
fn closed_endpoint_has_no_status() {
    for policy in policies() {
        let balancer = ready(policy, 3);
        let lease = balancer.pick(&Pick::new().filter(&|endpoint| endpoint.key().as_str() == key(1))).unwrap();
        set(&balancer, Instant::now(), specs([0]));
        let gone = balancer.take_departed();
        assert_eq!((gone.len(), balancer.status().len()), (2, 3));
        let outcomes: Vec<_> = gone.iter().map(|gone| poll(gone)).collect();
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ready()).count(), 1);
        let left: Vec<_> =
            balancer.status().into_iter().map(|status| (status.key.to_string(), status.leaving)).collect();
        assert_eq!(left, [(key(0), false), (key(1), true)]);
        drop(lease);
        assert!(gone.iter().all(|gone| poll(gone).is_ready()));
        assert_eq!(balancer.status().len(), 1);
    }
}
