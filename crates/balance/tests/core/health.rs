//! Connections fail, calls are tried elsewhere, loads are counted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tidegate_balance::{Backoff, Endpoint, LeastRequest, Outcome, PeakEwma, Pick, PickError, State};

use crate::house::{SECOND, counts, id_of, key, pick_key, policies, ready, set, specs};

fn refused() -> Arc<std::io::Error> {
    Arc::new(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
}

#[test]
fn t39_who_is_lost_is_out_before_the_next_pick_of_every_thread() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 4);
        let mut pickers: Vec<_> = (0..8).map(|seed| balancer.picker(seed)).collect();
        for lost in 0..3 {
            balancer.failed(id_of(&balancer, lost), Instant::now(), refused());
            for picker in &mut pickers {
                let number = picker.pick_with(&Pick::new(), |endpoint| endpoint.value().clone()).unwrap();
                assert!((0..=lost).all(|gone| number != key(gone)), "{policy:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn t41_pauses_between_attempts_double_up_to_a_limit_and_jitter(failures in 1_u32..200, random in 0.0_f64..1.0) {
        let backoff = Backoff::default();
        let plain = 1.6_f64.powi(failures.min(100) as i32 - 1).min(120.0);
        let pause = backoff.pause(failures, random).as_secs_f64();
        prop_assert!(pause >= plain * 0.799 && pause <= plain * 1.201, "{pause} for {plain}");
    }
}

#[test]
fn t41_a_failed_endpoint_is_due_again_later_each_time_until_it_was_ready() {
    let balancer = ready(Arc::new(LeastRequest::default()), 1);
    let (id, now) = (id_of(&balancer, 0), Instant::now());
    let pause = |balancer: &crate::house::Keys| balancer.failed(id, now, refused()).unwrap().duration_since(now);
    let first = pause(&balancer);
    assert!(first >= Duration::from_millis(799) && first <= Duration::from_millis(1201), "{first:?}");
    let later: Vec<Duration> = (0..10).map(|_| pause(&balancer)).collect();
    assert!(later[3] > 3 * first && later[9] > 60 * SECOND, "{later:?}");
    balancer.ready(id, now);
    assert!(pause(&balancer) <= Duration::from_millis(1201), "a connection that came about begins anew");
    assert!(matches!(balancer.status()[0].state, State::Failed { .. }));
}

#[test]
fn t52_who_was_tried_is_tried_again_only_when_there_is_no_other() {
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

#[test]
fn t55_in_flight_is_zero_again_however_a_call_ends() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 2);
        let now = Instant::now();
        let pick = Pick::new().at(now);
        drop(balancer.pick(&pick).unwrap());
        balancer.pick(&pick).unwrap().finish(Some(now), Outcome::Success);
        balancer.pick(&pick).unwrap().finish(None, Outcome::Failure);
        balancer.pick(&pick).unwrap().finish(Some(now), Outcome::Neutral);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _lease = balancer.pick(&pick).unwrap();
            panic!("a call that panics");
        }));
        assert!(panicked.is_err());
        assert!(balancer.status().iter().all(|status| status.in_flight == 0), "{policy:?}");
    }
}

#[test]
fn t56_counts_and_latencies_survive_updates() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 2);
        let now = Instant::now();
        let id = id_of(&balancer, 0);
        let only = |endpoint: &Endpoint<String>| endpoint.id() == id;
        let pick = Pick::new().at(now).filter(&only);
        balancer.pick(&pick).unwrap().finish(Some(now + SECOND), Outcome::Success);
        let lease = balancer.pick(&pick).unwrap();
        set(&balancer, now, specs([5, 0, 3]));
        let load = lease.endpoint().load();
        assert_eq!((load.in_flight(), load.latency_us(None).round() as u32), (1, 1_000_000), "{policy:?}");
    }
}

#[test]
fn t63_a_filter_is_never_overruled_and_chooses_evenly() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 4);
        let replicas = |endpoint: &Endpoint<String>| *endpoint.value() != key(0);
        let none = |_: &Endpoint<String>| false;
        let mut picker = balancer.picker(1);
        for _ in 0..50 {
            assert_ne!(*picker.pick(&Pick::new().filter(&replicas)).unwrap(), key(0), "{policy:?}");
        }
        assert!(matches!(picker.pick(&Pick::new().filter(&none)), Err(PickError::NoMatch { ready: 4 })));
        let tried: Vec<_> = (0..4).map(|number| id_of(&balancer, number)).collect();
        assert!(picker.pick(&Pick::new().filter(&none).tried(&tried)).is_err());
    }
    for even in
        [Arc::new(tidegate_balance::RoundRobin) as Arc<dyn tidegate_balance::Policy>, Arc::new(tidegate_balance::Exact)]
    {
        let balancer = ready(even, 4);
        let replicas = |endpoint: &Endpoint<String>| *endpoint.value() != key(1);
        let mut found = [0; 4];
        let mut picker = balancer.picker(1);
        for _ in 0..300 {
            let chosen = picker.pick(&Pick::new().filter(&replicas)).unwrap();
            found[(0..4).find(|&number| *chosen == key(number)).unwrap()] += 1;
        }
        assert_eq!(found, [100, 0, 100, 100], "the neighbour of the refused one gets no double share");
    }
}

#[test]
fn t63_saturated_is_not_unhealthy() {
    let settings = tidegate_balance::Settings {
        outlier: Some(tidegate_balance::Outlier::consecutive(3)),
        ..crate::house::at_once()
    };
    let balancer = crate::house::with_settings(Arc::new(LeastRequest::default()), 2, settings);
    for _ in 0..100 {
        balancer.pick(&Pick::new()).unwrap().finish(None, Outcome::Neutral);
    }
    assert!(balancer.status().iter().all(|status| status.ejected_until.is_none()));
}

#[test]
fn least_request_prefers_who_has_less_to_do() {
    let balancer = ready(Arc::new(LeastRequest::default()), 2);
    let busy: Vec<_> = (0..10).map(|_| balancer.pick(&Pick::new()).unwrap()).collect();
    assert!(balancer.status().iter().all(|status| status.in_flight == 5), "{:?}", balancer.status());
    let (idle, full): (Vec<_>, Vec<_>) = busy.into_iter().partition(|lease| **lease == key(0));
    drop(idle);
    assert_eq!(pick_key(&balancer), key(0));
    // What the owner reports counts as well.
    full[0].endpoint().load().report(0);
    for endpoint in balancer.endpoints().iter().filter(|endpoint| endpoint.key().as_str() == key(0)) {
        endpoint.load().report(100);
    }
    assert_eq!(pick_key(&balancer), key(1));
}

#[test]
fn peak_ewma_is_not_drawn_to_who_fails_fast() {
    for count in [2, 3] {
        let balancer = ready(Arc::new(PeakEwma), count);
        let mut now = Instant::now();
        let mut failed = 0;
        for _ in 0..10_000 {
            let lease = balancer.pick(&Pick::new().at(now)).unwrap();
            let fails = *lease == key(0);
            let took = if fails { SECOND / 100_000 } else { SECOND / 1000 };
            now += took;
            lease.finish(Some(now), if fails { Outcome::Failure } else { Outcome::Success });
            failed += u32::from(fails);
        }
        // Ten seconds, in which it is tried again now and then.
        assert!((1..10).contains(&failed), "{failed} of {count}");
    }
}

#[test]
fn peak_ewma_prefers_who_answers_sooner() {
    let balancer = ready(Arc::new(PeakEwma), 2);
    let now = Instant::now();
    for number in 0..2 {
        let id = id_of(&balancer, number);
        let only = |endpoint: &Endpoint<String>| endpoint.id() == id;
        let took = if number == 0 { SECOND } else { SECOND / 100 };
        balancer.pick(&Pick::new().at(now).filter(&only)).unwrap().finish(Some(now + took), Outcome::Success);
    }
    assert_eq!(counts(&balancer, 2, 100), [0, 100]);
}
