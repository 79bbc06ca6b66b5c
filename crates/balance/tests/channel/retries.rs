//! Calls that fail are tried again, elsewhere, when that is safe or asked for.

use std::sync::Arc;

use tidegate_balance::{Channel, Dials, Policy, RoundRobin};
use tonic::Code;

use crate::backend::{Backend, backends, call, drive, in_flight, ready, soon, target, until};
use crate::calls::policies;

const RETRY: &str = r#"{"loadBalancingConfig":[{"round_robin":{}}],"methodConfig":[{"name":[{"service":"t"}],
    "retryPolicy":{"maxAttempts":3,"initialBackoff":"0.001s","maxBackoff":"0.01s","backoffMultiplier":2,
    "retryableStatusCodes":["UNAVAILABLE"]}}]}"#;

#[tokio::test]
async fn a_code_that_the_policy_names_is_tried_again() {
    let backends = backends(3).await;
    let driven = drive(Channel::builder(&target(&backends)).service_config(RETRY));
    until(|| ready(&driven.channel) == 3).await;
    assert_eq!(call(&driven.channel, "/t/FailOnce14").await.unwrap(), "hello");
    assert_eq!(backends.iter().map(Backend::calls).sum::<usize>(), 2);
    let other = call(&driven.channel, "/t/FailOnce13").await.unwrap_err();
    assert_eq!(other.code(), Code::Internal);
    let unwanted = call(&driven.channel, "/t/NoMore").await.unwrap_err();
    assert_eq!(unwanted.code(), Code::Unavailable);
    assert_eq!(backends.iter().map(Backend::calls).sum::<usize>(), 4, "the server said: not again");
}

#[tokio::test]
async fn t52_each_attempt_is_at_a_backend_that_was_not_tried_until_all_were() {
    // Pick first keeps one connected, and lets go of the others.
    for policy in policies().into_iter().filter(|policy| policy.dials() == Dials::All) {
        each_attempt_is_elsewhere(policy).await;
    }
}

async fn each_attempt_is_elsewhere(policy: Arc<dyn Policy>) {
    let backends = backends(3).await;
    let driven = drive(Channel::builder(&target(&backends)).service_config(RETRY));
    until(|| ready(&driven.channel) == 3).await;
    driven.channel.balancer().set_policy(Arc::clone(&policy));
    for round in 1..=10 {
        let status = call(&driven.channel, "/t/Status14").await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(backends.iter().all(|backend| backend.calls() == round), "{policy:?}");
    }
    backends[0].kill();
    until(|| ready(&driven.channel) == 2).await;
    call(&driven.channel, "/t/Status14").await.unwrap_err();
    assert_eq!(backends[1].calls() + backends[2].calls(), 23, "{policy:?}: two backends, three attempts");
    assert_eq!(in_flight(&driven.channel), 0);
}

#[tokio::test]
async fn retries_stop_when_too_many_calls_fail() {
    let backends = backends(1).await;
    let throttled = RETRY.replacen('{', r#"{"retryThrottling":{"maxTokens":4,"tokenRatio":0.1},"#, 1);
    let driven = drive(Channel::builder(&target(&backends)).service_config(&throttled));
    for _ in 0..20 {
        call(&driven.channel, "/t/Status14").await.unwrap_err();
    }
    assert!(backends[0].calls() < 25, "{} attempts of 20 calls", backends[0].calls());
}

#[tokio::test]
async fn t46_calls_that_a_server_did_not_begin_are_sent_elsewhere_without_a_policy() {
    let backends = backends(3).await;
    let driven = drive(Channel::builder(&target(&backends)).policy(RoundRobin).backoff(soon()));
    until(|| ready(&driven.channel) == 3).await;
    let calling: Vec<_> = (0..8)
        .map(|_| {
            let channel = driven.channel.clone();
            tokio::spawn(async move {
                for _ in 0..300 {
                    call(&channel, "/t/Echo").await.expect("a GOAWAY costs no call");
                }
            })
        })
        .collect();
    for round in 0..30 {
        let before = backends.iter().map(Backend::calls).sum::<usize>();
        backends[round % 3].say_goaway();
        until(|| backends.iter().map(Backend::calls).sum::<usize>() >= (before + 20).min(2400)).await;
    }
    for calls in calling {
        calls.await.unwrap();
    }
}

#[tokio::test]
async fn t39_backends_that_are_killed_under_load_cost_no_call_that_may_be_tried_again() {
    let mut backends = backends(3).await;
    let driven = drive(Channel::builder(&target(&backends)).service_config(RETRY).backoff(soon()));
    until(|| ready(&driven.channel) == 3).await;
    let calling: Vec<_> = (0..8)
        .map(|_| {
            let channel = driven.channel.clone();
            tokio::spawn(async move {
                for _ in 0..300 {
                    call(&channel, "/t/Echo").await.expect("one is left");
                }
            })
        })
        .collect();
    for round in 0..6 {
        let victim = round % 3;
        backends[victim].kill();
        until(|| ready(&driven.channel) <= 2).await;
        let address = backends[victim].address;
        backends[victim] = Backend::at(address).await;
        until(|| ready(&driven.channel) == 3).await;
    }
    for calls in calling {
        calls.await.unwrap();
    }
    assert_eq!(in_flight(&driven.channel), 0);
}
