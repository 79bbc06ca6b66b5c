//! Failed connects, retries on other endpoints, and load.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tidegate_balance::{
    Backoff, CallOutcome, ConnectivityState, Endpoint, LeastRequest, PeakEwma, Pick, PickError, Picker,
};

use crate::fixture::{SECOND, counts, id_of, key, pick_key, policies, ready, set, specs};

fn refused() -> Arc<std::io::Error> {
    Arc::new(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
}

/// BA-39.
#[test]
fn failed_endpoint_is_not_picked_by_any_thread() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 4);
        let mut pickers: Vec<_> = (0..8).map(|seed| Picker::new(&balancer, seed)).collect();
        for lost in 0..3 {
            balancer.mark_failed(id_of(&balancer, lost), Instant::now(), refused());
            for picker in &mut pickers {
                let number = picker.pick_with(&Pick::new(), |endpoint| endpoint.value().clone()).unwrap();
                assert!((0..=lost).all(|gone| number != key(gone)), "{policy:?}");
            }
        }
    }
}

proptest! {
    /// BA-41.
    #[test]
    fn connect_delays_grow_with_jitter(failures in 1_u32..200, random in 0.0_f64..1.0) {
        let backoff = Backoff::grpc();
        let plain = 1.6_f64.powi(failures.min(100) as i32 - 1).min(120.0);
        let delay = backoff.delay(failures, random).as_secs_f64();
        prop_assert!(delay >= plain * 0.799 && delay <= plain * 1.201, "{delay} for {plain}");
    }
}

/// BA-41.
#[test]
fn ready_endpoint_resets_its_connect_delay() {
    let balancer = ready(Arc::new(LeastRequest::default()), 1);
    let (id, now) = (id_of(&balancer, 0), Instant::now());
    let delay =
        |balancer: &crate::fixture::KeyBalancer| balancer.mark_failed(id, now, refused()).unwrap().duration_since(now);
    let first = delay(&balancer);
    assert!(first >= Duration::from_millis(799) && first <= Duration::from_millis(1201), "{first:?}");
    let later: Vec<Duration> = (0..10).map(|_| delay(&balancer)).collect();
    assert!(later[3] > 3 * first && later[9] > 60 * SECOND, "{later:?}");
    balancer.mark_ready(id, now);
    assert!(delay(&balancer) <= Duration::from_millis(1201), "a successful connect resets the delay");
    assert!(matches!(balancer.status()[0].state, ConnectivityState::Failed { .. }));
}

/// BA-52.
#[test]
fn tried_endpoint_is_picked_last() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 4);
        let mut tried = Vec::new();
        for _ in 0..4 {
            let lease = balancer.pick(&Pick::new().tried(&tried).hash(5)).unwrap();
            assert!(!tried.contains(&lease.endpoint().id()), "{policy:?}");
            tried.push(lease.endpoint().id());
        }
        balancer.pick(&Pick::new().tried(&tried)).map(drop).unwrap();
    }
}

/// BA-55.
#[test]
fn every_end_of_a_call_ends_its_flight() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 2);
        let now = Instant::now();
        let pick = Pick::new().at(now);
        drop(balancer.pick(&pick).unwrap());
        balancer.pick(&pick).unwrap().finish(Some(now), CallOutcome::Success);
        balancer.pick(&pick).unwrap().finish(None, CallOutcome::Failure);
        balancer.pick(&pick).unwrap().finish(Some(now), CallOutcome::Neutral);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _lease = balancer.pick(&pick).unwrap();
            panic!("deliberate panic");
        }));
        assert!(panicked.is_err());
        assert!(balancer.status().iter().all(|status| status.in_flight == 0), "{policy:?}");
    }
}

/// BA-56.
#[test]
fn counts_and_latencies_survive_updates() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 2);
        let now = Instant::now();
        let id = id_of(&balancer, 0);
        let only = |endpoint: &Endpoint<String>| endpoint.id() == id;
        let pick = Pick::new().at(now).filter(&only);
        balancer.pick(&pick).unwrap().finish(Some(now + SECOND), CallOutcome::Success);
        let lease = balancer.pick(&pick).unwrap();
        set(&balancer, now, specs([5, 0, 3]));
        let load = lease.endpoint().load();
        assert_eq!((load.in_flight(), load.latency_us(None).round() as u32), (1, 1_000_000), "{policy:?}");
    }
}

/// BA-63.
#[test]
fn filter_always_holds_and_picks_evenly() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 4);
        let replicas = |endpoint: &Endpoint<String>| *endpoint.value() != key(0);
        let none = |_: &Endpoint<String>| false;
        let mut picker = Picker::new(&balancer, 1);
        for _ in 0..50 {
            assert_ne!(*picker.pick(&Pick::new().filter(&replicas)).unwrap(), key(0), "{policy:?}");
        }
        assert!(matches!(picker.pick(&Pick::new().filter(&none)), Err(PickError::NoMatch { ready: 4 })));
        let tried: Vec<_> = (0..4).map(|number| id_of(&balancer, number)).collect();
        assert!(picker.pick(&Pick::new().filter(&none).tried(&tried)).is_err());
    }
    for even in [
        Arc::new(tidegate_balance::RoundRobin) as Arc<dyn tidegate_balance::Policy>,
        Arc::new(tidegate_balance::ExactRoundRobin),
    ] {
        let balancer = ready(even, 4);
        let replicas = |endpoint: &Endpoint<String>| *endpoint.value() != key(1);
        let mut found = [0; 4];
        let mut picker = Picker::new(&balancer, 1);
        for _ in 0..300 {
            let chosen = picker.pick(&Pick::new().filter(&replicas)).unwrap();
            found[(0..4).find(|&number| *chosen == key(number)).unwrap()] += 1;
        }
        assert_eq!(found, [100, 0, 100, 100], "the neighbour of a refused endpoint gets a double share");
    }
}

/// BA-63.
#[test]
fn saturated_endpoint_is_not_ejected() {
    let settings = tidegate_balance::BalancerSettings {
        outlier_detection: Some(tidegate_balance::OutlierDetection::consecutive(3)),
        ..crate::fixture::ready_at_start()
    };
    let balancer = crate::fixture::with_settings(Arc::new(LeastRequest::default()), 2, settings);
    for _ in 0..100 {
        balancer.pick(&Pick::new()).unwrap().finish(None, CallOutcome::Neutral);
    }
    assert!(balancer.status().iter().all(|status| status.ejected_until.is_none()));
}

#[test]
fn least_request_prefers_less_outstanding() {
    let balancer = ready(Arc::new(LeastRequest::default()), 2);
    let busy: Vec<_> = (0..10).map(|_| balancer.pick(&Pick::new()).unwrap()).collect();
    assert!(balancer.status().iter().all(|status| status.in_flight == 5), "{:?}", balancer.status());
    let (idle, full): (Vec<_>, Vec<_>) = busy.into_iter().partition(|lease| **lease == key(0));
    drop(idle);
    assert_eq!(pick_key(&balancer), key(0));
    // Reported load counts as well.
    full[0].endpoint().load().set_reported(0);
    for endpoint in balancer.endpoints().iter().filter(|endpoint| endpoint.key().as_str() == key(0)) {
        endpoint.load().set_reported(100);
    }
    assert_eq!(pick_key(&balancer), key(1));
}

#[test]
fn peak_ewma_avoids_fast_failures() {
    for count in [2, 3] {
        let balancer = ready(Arc::new(PeakEwma), count);
        let mut now = Instant::now();
        let mut failed = 0;
        for _ in 0..10_000 {
            let lease = balancer.pick(&Pick::new().at(now)).unwrap();
            let fails = *lease == key(0);
            let took = if fails { SECOND / 100_000 } else { SECOND / 1000 };
            now += took;
            lease.finish(Some(now), if fails { CallOutcome::Failure } else { CallOutcome::Success });
            failed += u32::from(fails);
        }
        // Within ten seconds, the failing endpoint is tried a few times.
        assert!((1..10).contains(&failed), "{failed} of {count}");
    }
}

#[test]
fn peak_ewma_prefers_lower_latency() {
    let balancer = ready(Arc::new(PeakEwma), 2);
    let now = Instant::now();
    for number in 0..2 {
        let id = id_of(&balancer, number);
        let only = |endpoint: &Endpoint<String>| endpoint.id() == id;
        let took = if number == 0 { SECOND } else { SECOND / 100 };
        balancer.pick(&Pick::new().at(now).filter(&only)).unwrap().finish(Some(now + took), CallOutcome::Success);
    }
    assert_eq!(counts(&balancer, 2, 100), [0, 100]);
}
