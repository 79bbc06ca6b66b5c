//! Who fails more than the others is left alone for a while; when too many would be, nobody is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_balance::{
    Backoff, Endpoint, FailureShare, Outcome, Outlier, Pick, Policy, RoundRobin, Settings, Status, SuccessRate,
};

use crate::house::{Keys, SECOND, at_once, counts, id_of, key, pick_key, policies, set, specs, with_settings};

fn with_rules(policy: Arc<dyn Policy>, count: usize, rules: Outlier) -> Keys {
    with_settings(policy, count, Settings { outlier: Some(rules), ..at_once() })
}

/// So many calls to one endpoint.
fn calls(balancer: &Keys, number: usize, times: usize, outcome: Outcome, now: Instant) {
    let id = id_of(balancer, number);
    let only = |endpoint: &Endpoint<String>| endpoint.id() == id;
    for _ in 0..times {
        if let Ok(lease) = balancer.pick(&Pick::new().at(now).filter(&only)) {
            lease.finish(Some(now), outcome);
        }
    }
}

fn status(balancer: &Keys, number: usize) -> Status {
    balancer.status().into_iter().find(|status| status.key.as_str() == key(number)).expect("it is in the set")
}

fn ejected(balancer: &Keys) -> usize {
    balancer.status().iter().filter(|status| status.ejected_until.is_some()).count()
}

#[test]
fn t57_failures_in_a_row_eject_at_once_and_longer_each_time() {
    for policy in policies() {
        let balancer = with_rules(Arc::clone(&policy), 3, Outlier::consecutive(5));
        let mut now = Instant::now();
        for times in 1..=3 {
            calls(&balancer, 0, 4, Outcome::Failure, now);
            calls(&balancer, 0, 1, Outcome::Success, now);
            assert_eq!(ejected(&balancer), 0, "{policy:?}: a success between ends the row");
            calls(&balancer, 0, 5, Outcome::Failure, now);
            let until = status(&balancer, 0).ejected_until.expect("it is ejected");
            assert_eq!(until, now + times * 30 * SECOND, "{policy:?}");
            assert_eq!(counts(&balancer, 3, 30)[0], 0, "{policy:?}");
            balancer.tick(until - Duration::from_millis(1));
            assert_eq!(ejected(&balancer), 1);
            // Straight to its end, so that no interval passes in between.
            now = until;
            balancer.tick(now);
            assert_eq!(ejected(&balancer), 0, "{policy:?}");
        }
        assert_eq!(status(&balancer, 0).ejections, 3);
    }
}

#[test]
fn t57_an_ejection_ends_in_time_also_of_one_that_has_left() {
    for policy in policies() {
        let balancer = with_rules(Arc::clone(&policy), 3, Outlier::consecutive(1));
        let now = Instant::now();
        // Whoever has it in a snapshot, or in use, keeps it known.
        let picker = balancer.picker(1);
        calls(&balancer, 0, 1, Outcome::Failure, now);
        let until = status(&balancer, 0).ejected_until.expect("it is ejected");
        set(&balancer, now, specs(1..3));
        drop(balancer.departed());
        assert!(status(&balancer, 0).leaving, "{policy:?}");
        let mut now = now;
        while now < until {
            now = balancer.tick(now).expect("its ejection ends");
        }
        balancer.tick(now);
        assert_eq!(status(&balancer, 0).ejected_until, None, "{policy:?}");
        drop(picker);
    }
}

#[test]
fn t57_an_interval_without_an_ejection_makes_the_next_shorter() {
    let balancer = with_rules(Arc::new(RoundRobin), 3, Outlier::consecutive(1));
    let mut now = Instant::now();
    for _ in 0..2 {
        calls(&balancer, 0, 1, Outcome::Failure, now);
        now = status(&balancer, 0).ejected_until.unwrap();
        balancer.tick(now);
    }
    for _ in 0..5 {
        now += 10 * SECOND;
        balancer.tick(now);
    }
    calls(&balancer, 0, 1, Outcome::Failure, now);
    assert_eq!(status(&balancer, 0).ejected_until, Some(now + 30 * SECOND));
}

#[test]
fn t53_when_all_are_ejected_all_are_used() {
    for policy in policies() {
        let rules = Outlier { percent_max: 100, ..Outlier::consecutive(2) };
        let balancer = with_rules(Arc::clone(&policy), 3, rules);
        let now = Instant::now();
        (0..3).for_each(|number| calls(&balancer, number, 2, Outcome::Failure, now));
        assert_eq!(ejected(&balancer), 3, "{policy:?}");
        pick_key(&balancer);
    }
}

#[test]
fn t53_below_the_panic_threshold_the_ejected_are_used_as_well() {
    let rules = Outlier { percent_max: 100, ..Outlier::consecutive(1) };
    let settings = Settings { outlier: Some(rules), panic_threshold: 0.5, ..at_once() };
    for policy in policies() {
        let balancer = with_settings(Arc::clone(&policy), 4, settings.clone());
        let now = Instant::now();
        let may_serve = |number: usize| {
            let only = |endpoint: &Endpoint<String>| *endpoint.value() == key(number);
            balancer.pick(&Pick::new().filter(&only)).is_ok()
        };
        (0..2).for_each(|number| calls(&balancer, number, 1, Outcome::Failure, now));
        assert_eq!([0, 1, 2, 3].map(may_serve), [false, false, true, true], "{policy:?}: half is enough");
        assert_eq!(counts(&balancer, 4, 40)[..2], [0, 0], "{policy:?}");
        calls(&balancer, 2, 1, Outcome::Failure, now);
        assert_eq!([0, 1, 2, 3].map(may_serve), [true; 4], "{policy:?}");
        if policy.name() == "round_robin" {
            assert_eq!(counts(&balancer, 4, 40), [10, 10, 10, 10]);
        }
    }
}

#[test]
fn t54_no_more_than_the_share_is_ejected() {
    for policy in policies() {
        for (percent_max, most) in [(10, 1), (30, 3), (50, 5), (100, 10), (0, 1)] {
            let balancer = with_rules(Arc::clone(&policy), 10, Outlier { percent_max, ..Outlier::consecutive(1) });
            (0..10).for_each(|number| calls(&balancer, number, 1, Outcome::Failure, Instant::now()));
            assert_eq!(ejected(&balancer), most, "{policy:?}, {percent_max} %");
        }
    }
}

#[test]
fn t57_a_share_of_failures_ejects_at_the_end_of_an_interval() {
    let share = FailureShare { percent: 50, enforced: 100, ..FailureShare::default() };
    for policy in policies() {
        let rules = Outlier { failure_share: Some(share), ..Outlier::default() };
        let balancer = with_rules(Arc::clone(&policy), 5, rules);
        let now = Instant::now();
        for number in 0..5 {
            let failures = if number == 3 { 60 } else { 10 };
            calls(&balancer, number, failures, Outcome::Failure, now);
            calls(&balancer, number, 50, Outcome::Success, now);
        }
        balancer.tick(now + 9 * SECOND);
        assert_eq!(ejected(&balancer), 0, "{policy:?}");
        balancer.tick(now + 11 * SECOND);
        assert!(ejected(&balancer) == 1 && status(&balancer, 3).ejected_until.is_some(), "{policy:?}");
    }
}

#[test]
fn t57_a_rate_of_successes_far_below_the_others_ejects() {
    let rules = Outlier { success_rate: Some(SuccessRate::default()), ..Outlier::default() };
    let balancer = with_rules(Arc::new(RoundRobin), 10, rules);
    let now = Instant::now();
    for number in 0..10 {
        let failures = if number == 7 { 60 } else { 1 };
        calls(&balancer, number, failures, Outcome::Failure, now);
        calls(&balancer, number, 120 - failures, Outcome::Success, now);
    }
    balancer.tick(now + 11 * SECOND);
    assert!(ejected(&balancer) == 1 && status(&balancer, 7).ejected_until.is_some());
}

#[test]
fn rules_without_an_interval_do_not_make_their_owner_spin() {
    let rules = Outlier { interval: Duration::ZERO, ..Outlier::consecutive(1) };
    let balancer = with_rules(Arc::new(RoundRobin), 3, rules);
    let now = Instant::now() + SECOND;
    assert!(balancer.tick(now).is_some_and(|next| next > now));
    balancer.set_outlier(Some(rules));
    assert!(balancer.tick(now).is_some_and(|next| next > now));
}

#[test]
fn times_may_be_as_long_as_can_be_said() {
    const EVER: Duration = Duration::MAX;
    let rules = Outlier { interval: EVER, base: EVER, most: EVER, ..Outlier::consecutive(1) };
    let settings = Settings {
        outlier: Some(rules),
        slow_start: EVER,
        replace_within: EVER,
        latency_decay: EVER,
        backoff: Backoff { first: EVER, most: EVER, ..Backoff::default() },
        ..at_once()
    };
    for policy in policies() {
        let balancer = with_settings(policy, 3, settings.clone());
        let now = Instant::now();
        calls(&balancer, 0, 1, Outcome::Success, now);
        calls(&balancer, 1, 1, Outcome::Failure, now);
        assert_eq!(ejected(&balancer), 1);
        for _ in 0..100 {
            let again = balancer.failed(id_of(&balancer, 2), now, Arc::new(std::io::Error::other("gone")));
            assert!(again.is_some_and(|again| again > now + 1000 * SECOND));
        }
        balancer.set_outlier(Some(rules));
        assert!(balancer.tick(now).is_some_and(|next| next > now));
        set(&balancer, now, specs(5..7));
        pick_key(&balancer);
    }
}

#[test]
fn rules_may_change_while_they_run() {
    let balancer = with_settings(Arc::new(RoundRobin), 3, at_once());
    let now = Instant::now();
    calls(&balancer, 0, 10, Outcome::Failure, now);
    assert_eq!(ejected(&balancer), 0);
    let before = balancer.version();
    balancer.set_outlier(Some(Outlier::consecutive(2)));
    assert_ne!(balancer.version(), before, "who ticks has to hear of it");
    calls(&balancer, 0, 2, Outcome::Failure, now);
    assert_eq!(ejected(&balancer), 1);
}
