//! Outlier detection: ejections, their limits, and the panic threshold.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_balance::{
    Backoff, BalancerSettings, CallOutcome, Endpoint, EndpointStatus, FailurePercentageEjection, OutlierDetection,
    Pick, Picker, Policy, RoundRobin, SuccessRateEjection,
};

use crate::fixture::{
    KeyBalancer, SECOND, counts, id_of, key, pick_key, policies, ready_at_start, set, specs, with_settings,
};

fn with_rules(policy: Arc<dyn Policy>, count: usize, rules: OutlierDetection) -> KeyBalancer {
    with_settings(policy, count, BalancerSettings { outlier_detection: Some(rules), ..ready_at_start() })
}

/// Calls one endpoint `times` times.
fn calls(balancer: &KeyBalancer, number: usize, times: usize, outcome: CallOutcome, now: Instant) {
    let id = id_of(balancer, number);
    let only = |endpoint: &Endpoint<String>| endpoint.id() == id;
    for _ in 0..times {
        if let Ok(lease) = balancer.pick(&Pick::new().at(now).filter(&only)) {
            lease.finish(Some(now), outcome);
        }
    }
}

fn status(balancer: &KeyBalancer, number: usize) -> EndpointStatus {
    balancer.status().into_iter().find(|status| status.key.as_str() == key(number)).expect("the endpoint is in the set")
}

fn ejected(balancer: &KeyBalancer) -> usize {
    balancer.status().iter().filter(|status| status.ejected_until.is_some()).count()
}

/// BA-57.
#[test]
fn consecutive_failures_eject_longer_each_time() {
    for policy in policies() {
        let balancer = with_rules(Arc::clone(&policy), 3, OutlierDetection::consecutive(5));
        let mut now = Instant::now();
        for times in 1..=3 {
            calls(&balancer, 0, 4, CallOutcome::Failure, now);
            calls(&balancer, 0, 1, CallOutcome::Success, now);
            assert_eq!(ejected(&balancer), 0, "{policy:?}: a success resets the streak");
            calls(&balancer, 0, 5, CallOutcome::Failure, now);
            let until = status(&balancer, 0).ejected_until.expect("the endpoint is ejected");
            assert_eq!(until, now + times * 30 * SECOND, "{policy:?}");
            assert_eq!(counts(&balancer, 3, 30)[0], 0, "{policy:?}");
            balancer.tick(until - Duration::from_millis(1));
            assert_eq!(ejected(&balancer), 1);
            // Jumps to the end of the ejection, so that no interval passes in between.
            now = until;
            balancer.tick(now);
            assert_eq!(ejected(&balancer), 0, "{policy:?}");
        }
        assert_eq!(status(&balancer, 0).ejections, 3);
    }
}

/// BA-57.
#[test]
fn ejection_of_a_leaving_endpoint_ends() {
    for policy in policies() {
        let balancer = with_rules(Arc::clone(&policy), 3, OutlierDetection::consecutive(1));
        let now = Instant::now();
        // A reader with the old snapshot keeps the endpoint alive.
        let picker = Picker::new(&balancer, 1);
        calls(&balancer, 0, 1, CallOutcome::Failure, now);
        let until = status(&balancer, 0).ejected_until.expect("the endpoint is ejected");
        set(&balancer, now, specs(1..3));
        drop(balancer.take_departed());
        assert!(status(&balancer, 0).leaving, "{policy:?}");
        let mut now = now;
        while now < until {
            now = balancer.tick(now).expect("the ejection ends");
        }
        balancer.tick(now);
        assert_eq!(status(&balancer, 0).ejected_until, None, "{policy:?}");
        drop(picker);
    }
}

/// BA-57.
#[test]
fn interval_without_ejection_shortens_the_next() {
    let balancer = with_rules(Arc::new(RoundRobin), 3, OutlierDetection::consecutive(1));
    let mut now = Instant::now();
    for _ in 0..2 {
        calls(&balancer, 0, 1, CallOutcome::Failure, now);
        now = status(&balancer, 0).ejected_until.unwrap();
        balancer.tick(now);
    }
    for _ in 0..5 {
        now += 10 * SECOND;
        balancer.tick(now);
    }
    calls(&balancer, 0, 1, CallOutcome::Failure, now);
    assert_eq!(status(&balancer, 0).ejected_until, Some(now + 30 * SECOND));
}

/// BA-53.
#[test]
fn all_ejected_endpoints_are_used() {
    for policy in policies() {
        let rules = OutlierDetection { ejected_percent_max: 100, ..OutlierDetection::consecutive(2) };
        let balancer = with_rules(Arc::clone(&policy), 3, rules);
        let now = Instant::now();
        (0..3).for_each(|number| calls(&balancer, number, 2, CallOutcome::Failure, now));
        assert_eq!(ejected(&balancer), 3, "{policy:?}");
        pick_key(&balancer);
    }
}

/// BA-53.
#[test]
fn panic_threshold_ignores_ejections() {
    let rules = OutlierDetection { ejected_percent_max: 100, ..OutlierDetection::consecutive(1) };
    let settings = BalancerSettings { outlier_detection: Some(rules), panic_threshold: 0.5, ..ready_at_start() };
    for policy in policies() {
        let balancer = with_settings(Arc::clone(&policy), 4, settings.clone());
        let now = Instant::now();
        let may_serve = |number: usize| {
            let only = |endpoint: &Endpoint<String>| *endpoint.value() == key(number);
            balancer.pick(&Pick::new().filter(&only)).is_ok()
        };
        (0..2).for_each(|number| calls(&balancer, number, 1, CallOutcome::Failure, now));
        assert_eq!(
            [0, 1, 2, 3].map(may_serve),
            [false, false, true, true],
            "{policy:?}: half of the endpoints is enough"
        );
        assert_eq!(counts(&balancer, 4, 40)[..2], [0, 0], "{policy:?}");
        calls(&balancer, 2, 1, CallOutcome::Failure, now);
        assert_eq!([0, 1, 2, 3].map(may_serve), [true; 4], "{policy:?}");
        if policy.name() == "round_robin" {
            assert_eq!(counts(&balancer, 4, 40), [10, 10, 10, 10]);
        }
    }
}

/// BA-54.
#[test]
fn ejections_are_limited_to_the_percentage() {
    for policy in policies() {
        for (ejected_percent_max, most) in [(10, 1), (30, 3), (50, 5), (100, 10), (0, 1)] {
            let balancer = with_rules(
                Arc::clone(&policy),
                10,
                OutlierDetection { ejected_percent_max, ..OutlierDetection::consecutive(1) },
            );
            (0..10).for_each(|number| calls(&balancer, number, 1, CallOutcome::Failure, Instant::now()));
            assert_eq!(ejected(&balancer), most, "{policy:?}, {ejected_percent_max} %");
        }
    }
}

/// BA-57.
#[test]
fn failure_percentage_ejects_after_the_interval() {
    let share = FailurePercentageEjection {
        threshold_percent: 50,
        enforcement_percent: 100,
        ..FailurePercentageEjection::default()
    };
    for policy in policies() {
        let rules = OutlierDetection { failure_percentage: Some(share), ..OutlierDetection::default() };
        let balancer = with_rules(Arc::clone(&policy), 5, rules);
        let now = Instant::now();
        for number in 0..5 {
            let failures = if number == 3 { 60 } else { 10 };
            calls(&balancer, number, failures, CallOutcome::Failure, now);
            calls(&balancer, number, 50, CallOutcome::Success, now);
        }
        balancer.tick(now + 9 * SECOND);
        assert_eq!(ejected(&balancer), 0, "{policy:?}");
        balancer.tick(now + 11 * SECOND);
        assert!(ejected(&balancer) == 1 && status(&balancer, 3).ejected_until.is_some(), "{policy:?}");
    }
}

/// BA-57.
#[test]
fn low_success_rate_ejects() {
    let rules = OutlierDetection { success_rate: Some(SuccessRateEjection::default()), ..OutlierDetection::default() };
    let balancer = with_rules(Arc::new(RoundRobin), 10, rules);
    let now = Instant::now();
    for number in 0..10 {
        let failures = if number == 7 { 60 } else { 1 };
        calls(&balancer, number, failures, CallOutcome::Failure, now);
        calls(&balancer, number, 120 - failures, CallOutcome::Success, now);
    }
    balancer.tick(now + 11 * SECOND);
    assert!(ejected(&balancer) == 1 && status(&balancer, 7).ejected_until.is_some());
}

#[test]
fn zero_interval_does_not_make_tick_loop() {
    let rules = OutlierDetection { interval: Duration::ZERO, ..OutlierDetection::consecutive(1) };
    let balancer = with_rules(Arc::new(RoundRobin), 3, rules);
    let now = Instant::now() + SECOND;
    assert!(balancer.tick(now).is_some_and(|next| next > now));
    balancer.set_outlier_detection(Some(rules));
    assert!(balancer.tick(now).is_some_and(|next| next > now));
}

#[test]
fn maximum_durations_do_not_overflow() {
    const EVER: Duration = Duration::MAX;
    let rules = OutlierDetection {
        interval: EVER,
        ejection_time: EVER,
        ejection_time_max: EVER,
        ..OutlierDetection::consecutive(1)
    };
    let settings = BalancerSettings {
        outlier_detection: Some(rules),
        slow_start: EVER,
        replace_timeout: EVER,
        latency_decay: EVER,
        backoff: Backoff { first: EVER, max: EVER, ..Backoff::grpc() },
        ..ready_at_start()
    };
    for policy in policies() {
        let balancer = with_settings(policy, 3, settings.clone());
        let now = Instant::now();
        calls(&balancer, 0, 1, CallOutcome::Success, now);
        calls(&balancer, 1, 1, CallOutcome::Failure, now);
        assert_eq!(ejected(&balancer), 1);
        for _ in 0..100 {
            let retry_at = balancer.mark_failed(id_of(&balancer, 2), now, Arc::new(std::io::Error::other("gone")));
            assert!(retry_at.is_some_and(|retry_at| retry_at > now + 1000 * SECOND));
        }
        balancer.set_outlier_detection(Some(rules));
        assert!(balancer.tick(now).is_some_and(|next| next > now));
        set(&balancer, now, specs(5..7));
        pick_key(&balancer);
    }
}

#[test]
fn outlier_detection_can_change() {
    let balancer = with_settings(Arc::new(RoundRobin), 3, ready_at_start());
    let now = Instant::now();
    calls(&balancer, 0, 10, CallOutcome::Failure, now);
    assert_eq!(ejected(&balancer), 0);
    let before = balancer.version();
    balancer.set_outlier_detection(Some(OutlierDetection::consecutive(2)));
    assert_ne!(balancer.version(), before, "the caller of `tick` must be woken");
    calls(&balancer, 0, 2, CallOutcome::Failure, now);
    assert_eq!(ejected(&balancer), 1);
}
