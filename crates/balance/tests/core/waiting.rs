//! Callers that wait for an endpoint, or fail fast.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use tidegate_balance::{Balancer, BalancerSettings, Pick, PickError, RoundRobin, WaitMode};

use crate::fixture::{key, policies, set, specs};

#[derive(Default)]
struct WakeCounter(AtomicUsize);

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// BA-50.
#[test]
fn waiters_are_woken_by_a_ready_endpoint() {
    for policy in policies() {
        let now = Instant::now();
        let balancer = Balancer::with_policy(Arc::clone(&policy), BalancerSettings::default(), 1, now);
        let wakes = Arc::new(WakeCounter::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut cx = Context::from_waker(&waker);
        let pick = Pick::new();
        let mut waiting: Vec<_> =
            (0..100).map(|_| Box::pin(balancer.pick_ready(&pick, WaitMode::WaitForReady))).collect();
        assert!(waiting.iter_mut().all(|wait| wait.as_mut().poll(&mut cx).is_pending()));
        let added = set(&balancer, now, specs(0..1)).added;
        assert!(waiting.iter_mut().all(|wait| wait.as_mut().poll(&mut cx).is_pending()), "no endpoint is ready");
        assert_eq!(balancer.counters().waiting, 100);
        wakes.0.store(0, Ordering::SeqCst);
        balancer.mark_ready(added[0].id(), now);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 100, "{policy:?}: all waiters are woken");
        for wait in &mut waiting {
            assert!(matches!(wait.as_mut().poll(&mut cx), Poll::Ready(Ok(lease)) if *lease == key(0)), "{policy:?}");
        }
        drop(waiting);
        assert_eq!(balancer.counters().waiting, 0);
    }
}

/// BA-50.
#[test]
fn dropped_waiter_leaves_the_bounded_list() {
    let now = Instant::now();
    let balancer: Balancer<String> =
        Balancer::new(RoundRobin, BalancerSettings { waiters_max: 10, ..BalancerSettings::default() }, 1, now);
    let mut cx = Context::from_waker(Waker::noop());
    let pick = Pick::new();
    let mut waiting: Vec<_> = (0..10).map(|_| Box::pin(balancer.pick_ready(&pick, WaitMode::WaitForReady))).collect();
    assert!(waiting.iter_mut().all(|wait| wait.as_mut().poll(&mut cx).is_pending()));
    let error = pin!(balancer.pick_ready(&pick, WaitMode::WaitForReady)).poll(&mut cx);
    assert!(matches!(error, Poll::Ready(Err(PickError::TooManyWaiters { waiting: 10 }))));
    waiting.truncate(4);
    assert_eq!(balancer.counters().waiting, 4);
    assert!(pin!(balancer.pick_ready(&pick, WaitMode::WaitForReady)).poll(&mut cx).is_pending());
    balancer.close();
    for wait in &mut waiting {
        assert!(matches!(wait.as_mut().poll(&mut cx), Poll::Ready(Err(PickError::Closed))));
    }
}

/// BA-50.
#[test]
fn pick_error_has_the_last_cause() {
    for policy in policies() {
        let now = Instant::now();
        let balancer = Balancer::with_policy(policy, BalancerSettings::default(), 1, now);
        let added = set(&balancer, now, specs(0..2)).added;
        for (endpoint, cause) in added.iter().chain(&added).zip(["one", "two", "three", "four"]) {
            balancer.mark_failed(endpoint.id(), now, Arc::new(std::io::Error::other(cause)));
        }
        let error = balancer.pick(&Pick::new()).map(drop).unwrap_err().to_string();
        assert!(error.contains("none of 2 endpoints is ready") && error.contains("four"), "{error}");
    }
}

#[test]
fn version_watcher_is_woken() {
    let now = Instant::now();
    let balancer: Balancer<String> = Balancer::new(RoundRobin, BalancerSettings::default(), 1, now);
    let mut cx = Context::from_waker(Waker::noop());
    let mut changed = pin!(balancer.changed(balancer.version()));
    assert!(changed.as_mut().poll(&mut cx).is_pending());
    set(&balancer, now, specs(0..1));
    assert!(matches!(changed.as_mut().poll(&mut cx), Poll::Ready(version) if version == balancer.version()));
}

/// BA-50.
#[test]
fn fail_fast_waits_for_the_first_connects_only() {
    let now = Instant::now();
    let balancer: Balancer<String> = Balancer::new(RoundRobin, BalancerSettings::default(), 1, now);
    let mut cx = Context::from_waker(Waker::noop());
    let pick = Pick::new();
    let mut wait = pin!(balancer.pick_ready(&pick, WaitMode::FailFast));
    assert!(wait.as_mut().poll(&mut cx).is_pending(), "the set is unknown");
    let added = set(&balancer, now, specs(0..2)).added;
    assert!(wait.as_mut().poll(&mut cx).is_pending(), "no connect has ended");
    balancer.mark_failed(added[0].id(), now, Arc::new(std::io::Error::other("refused")));
    assert!(wait.as_mut().poll(&mut cx).is_pending(), "one connect has not ended");
    balancer.mark_failed(added[1].id(), now, Arc::new(std::io::Error::other("refused")));
    assert!(matches!(wait.as_mut().poll(&mut cx), Poll::Ready(Err(PickError::NotReady { .. }))));

    // A new connect after a failure is not waited for.
    balancer.mark_connecting(added[0].id());
    assert!(pin!(balancer.pick_ready(&pick, WaitMode::FailFast)).poll(&mut cx).is_ready());
    // The new connect of a lost connection is waited for.
    balancer.mark_ready(added[0].id(), now);
    balancer.mark_lost(added[0].id(), Arc::new(std::io::Error::other("reset")));
    assert!(pin!(balancer.pick_ready(&pick, WaitMode::FailFast)).poll(&mut cx).is_pending());

    let balancer: Balancer<String> = Balancer::new(RoundRobin, BalancerSettings::default(), 1, now);
    let mut wait = pin!(balancer.pick_ready(&pick, WaitMode::FailFast));
    assert!(wait.as_mut().poll(&mut cx).is_pending());
    balancer.resolve_failed(Arc::new(std::io::Error::other("no such name")));
    let Poll::Ready(Err(error)) = wait.as_mut().poll(&mut cx) else { panic!("the resolve error is returned") };
    assert!(error.to_string().contains("no such name"), "{error}");
}

/// BA-50: waiting for a service that was scaled to zero would mean waiting for the next deployment.
#[test]
fn fail_fast_returns_empty_for_an_empty_set() {
    let now = Instant::now();
    let mut cx = Context::from_waker(Waker::noop());
    let pick = Pick::new();
    let wait = |balancer: &Balancer<String>, mode| {
        pin!(balancer.pick_ready(&pick, mode))
            .poll(&mut Context::from_waker(Waker::noop()))
            .map_err(|error| error.to_string())
    };
    for policy in policies() {
        let balancer = Balancer::with_policy(policy, BalancerSettings::default(), 1, now);
        let mut waiting = pin!(balancer.pick_ready(&pick, WaitMode::FailFast));
        assert!(waiting.as_mut().poll(&mut cx).is_pending(), "the set is unknown");
        balancer.resolve_failed(Arc::new(std::io::Error::other("no such name")));
        set(&balancer, now, specs(0..2));
        set(&balancer, now, Vec::new());
        let Poll::Ready(Err(error)) = waiting.as_mut().poll(&mut cx) else { panic!("the set is known to be empty") };
        assert!(matches!(error, PickError::Empty), "the previous error does not apply: {error}");
        assert!(wait(&balancer, WaitMode::FailFast).is_ready());
        assert!(wait(&balancer, WaitMode::WaitForReady).is_pending());
        set(&balancer, now, specs(0..1));
        assert!(wait(&balancer, WaitMode::FailFast).is_pending(), "the first connect is in progress");
    }
    // Empty from the start: callers that wait for the first set are woken.
    let balancer: Balancer<String> = Balancer::new(RoundRobin, BalancerSettings::default(), 1, now);
    let version = balancer.version();
    set(&balancer, now, Vec::new());
    assert_ne!(balancer.version(), version);
    assert!(wait(&balancer, WaitMode::FailFast).is_ready());
}
