//! Callers that wait for an endpoint, and callers that do not.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use tidegate_balance::{Balancer, Patience, Pick, PickError, RoundRobin, Settings};

use crate::house::{key, policies, set, specs};

#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn t50_who_waits_is_woken_when_an_endpoint_is_ready() {
    for policy in policies() {
        let now = Instant::now();
        let balancer = Balancer::with_policy(Arc::clone(&policy), Settings::default(), 1, now);
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(Arc::clone(&bell));
        let mut cx = Context::from_waker(&waker);
        let pick = Pick::new();
        let mut waiting: Vec<_> =
            (0..100).map(|_| Box::pin(balancer.pick_ready(&pick, Patience::WaitForReady))).collect();
        assert!(waiting.iter_mut().all(|wait| wait.as_mut().poll(&mut cx).is_pending()));
        let added = set(&balancer, now, specs(0..1)).added;
        assert!(waiting.iter_mut().all(|wait| wait.as_mut().poll(&mut cx).is_pending()), "known is not ready");
        assert_eq!(balancer.counters().waiting, 100);
        bell.0.store(0, Ordering::SeqCst);
        balancer.ready(added[0].id(), now);
        assert_eq!(bell.0.load(Ordering::SeqCst), 100, "{policy:?}: all are woken");
        for wait in &mut waiting {
            assert!(matches!(wait.as_mut().poll(&mut cx), Poll::Ready(Ok(lease)) if *lease == key(0)), "{policy:?}");
        }
        drop(waiting);
        assert_eq!(balancer.counters().waiting, 0);
    }
}

#[test]
fn t50_who_gives_up_is_off_the_list_and_the_list_has_an_end() {
    let now = Instant::now();
    let balancer: Balancer<String> =
        Balancer::new(RoundRobin, Settings { waiters_max: 10, ..Settings::default() }, 1, now);
    let mut cx = Context::from_waker(Waker::noop());
    let pick = Pick::new();
    let mut waiting: Vec<_> = (0..10).map(|_| Box::pin(balancer.pick_ready(&pick, Patience::WaitForReady))).collect();
    assert!(waiting.iter_mut().all(|wait| wait.as_mut().poll(&mut cx).is_pending()));
    let refused = pin!(balancer.pick_ready(&pick, Patience::WaitForReady)).poll(&mut cx);
    assert!(matches!(refused, Poll::Ready(Err(PickError::Crowded { waiting: 10 }))));
    waiting.truncate(4);
    assert_eq!(balancer.counters().waiting, 4);
    assert!(pin!(balancer.pick_ready(&pick, Patience::WaitForReady)).poll(&mut cx).is_pending());
    balancer.close();
    for wait in &mut waiting {
        assert!(matches!(wait.as_mut().poll(&mut cx), Poll::Ready(Err(PickError::Closed))));
    }
}

#[test]
fn t50_who_does_not_wait_is_told_the_last_cause() {
    for policy in policies() {
        let now = Instant::now();
        let balancer = Balancer::with_policy(policy, Settings::default(), 1, now);
        let added = set(&balancer, now, specs(0..2)).added;
        for (endpoint, cause) in added.iter().chain(&added).zip(["one", "two", "three", "four"]) {
            balancer.failed(endpoint.id(), now, Arc::new(std::io::Error::other(cause)));
        }
        let told = balancer.pick(&Pick::new()).map(drop).unwrap_err().to_string();
        assert!(told.contains("none of 2 endpoints is ready") && told.contains("four"), "{told}");
    }
}

#[test]
fn who_watches_the_version_is_woken() {
    let now = Instant::now();
    let balancer: Balancer<String> = Balancer::new(RoundRobin, Settings::default(), 1, now);
    let mut cx = Context::from_waker(Waker::noop());
    let mut changed = pin!(balancer.changed(balancer.version()));
    assert!(changed.as_mut().poll(&mut cx).is_pending());
    set(&balancer, now, specs(0..1));
    assert!(matches!(changed.as_mut().poll(&mut cx), Poll::Ready(version) if version == balancer.version()));
}

#[test]
fn t50_who_fails_fast_waits_for_the_first_attempts_and_for_no_more() {
    let now = Instant::now();
    let balancer: Balancer<String> = Balancer::new(RoundRobin, Settings::default(), 1, now);
    let mut cx = Context::from_waker(Waker::noop());
    let pick = Pick::new();
    let mut wait = pin!(balancer.pick_ready(&pick, Patience::FailFast));
    assert!(wait.as_mut().poll(&mut cx).is_pending(), "nothing is known");
    let added = set(&balancer, now, specs(0..2)).added;
    assert!(wait.as_mut().poll(&mut cx).is_pending(), "nothing was tried");
    balancer.failed(added[0].id(), now, Arc::new(std::io::Error::other("refused")));
    assert!(wait.as_mut().poll(&mut cx).is_pending(), "the other was not tried");
    balancer.failed(added[1].id(), now, Arc::new(std::io::Error::other("refused")));
    assert!(matches!(wait.as_mut().poll(&mut cx), Poll::Ready(Err(PickError::NotReady { .. }))));

    // While it is connected again after it failed once, nothing is better than before.
    balancer.connecting(added[0].id());
    assert!(pin!(balancer.pick_ready(&pick, Patience::FailFast)).poll(&mut cx).is_ready());
    // But who was connected and is lost is worth waiting for.
    balancer.ready(added[0].id(), now);
    balancer.lost(added[0].id(), Arc::new(std::io::Error::other("reset")));
    assert!(pin!(balancer.pick_ready(&pick, Patience::FailFast)).poll(&mut cx).is_pending());

    let balancer: Balancer<String> = Balancer::new(RoundRobin, Settings::default(), 1, now);
    let mut wait = pin!(balancer.pick_ready(&pick, Patience::FailFast));
    assert!(wait.as_mut().poll(&mut cx).is_pending());
    balancer.unknown(Arc::new(std::io::Error::other("no such name")));
    let Poll::Ready(Err(told)) = wait.as_mut().poll(&mut cx) else { panic!("it is known that nothing is known") };
    assert!(told.to_string().contains("no such name"), "{told}");
}

/// A service that was scaled to nothing: to wait for it would be to wait for the next deployment.
#[test]
fn t50_who_fails_fast_is_told_that_the_set_is_empty() {
    let now = Instant::now();
    let mut cx = Context::from_waker(Waker::noop());
    let pick = Pick::new();
    let wait = |balancer: &Balancer<String>, patience| {
        pin!(balancer.pick_ready(&pick, patience))
            .poll(&mut Context::from_waker(Waker::noop()))
            .map_err(|error| error.to_string())
    };
    for policy in policies() {
        let balancer = Balancer::with_policy(policy, Settings::default(), 1, now);
        let mut waiting = pin!(balancer.pick_ready(&pick, Patience::FailFast));
        assert!(waiting.as_mut().poll(&mut cx).is_pending(), "nothing is known");
        balancer.unknown(Arc::new(std::io::Error::other("no such name")));
        set(&balancer, now, specs(0..2));
        set(&balancer, now, Vec::new());
        let Poll::Ready(Err(told)) = waiting.as_mut().poll(&mut cx) else { panic!("it is known that there is none") };
        assert!(matches!(told, PickError::Empty), "what failed before does not hold any more: {told}");
        assert!(wait(&balancer, Patience::FailFast).is_ready());
        assert!(wait(&balancer, Patience::WaitForReady).is_pending());
        set(&balancer, now, specs(0..1));
        assert!(wait(&balancer, Patience::FailFast).is_pending(), "the first attempt is under way");
    }
    // Empty from the beginning: those who wait for the first set are woken.
    let balancer: Balancer<String> = Balancer::new(RoundRobin, Settings::default(), 1, now);
    let version = balancer.version();
    set(&balancer, now, Vec::new());
    assert_ne!(balancer.version(), version);
    assert!(wait(&balancer, Patience::FailFast).is_ready());
}
