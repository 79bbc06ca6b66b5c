//! Retries on other backends, where they are safe or configured.

use std::sync::Arc;

use tidegate_balance::{ConnectStrategy, Policy, RoundRobin};
use tidegate_grpc_channel::Channel;
use tonic::Code;

use crate::calls::policies;
use crate::test_server::{TestServer, call, drive, in_flight, ready, servers, short_backoff, target, until};

const RETRY: &str = r#"{"loadBalancingConfig":[{"round_robin":{}}],"methodConfig":[{"name":[{"service":"t"}],
    "retryPolicy":{"maxAttempts":3,"initialBackoff":"0.001s","maxBackoff":"0.01s","backoffMultiplier":2,
    "retryableStatusCodes":["UNAVAILABLE"]}}]}"#;

#[tokio::test]
async fn listed_status_code_is_retried() {
    let servers = servers(3).await;
    let driven = drive(Channel::builder(&target(&servers)).service_config(RETRY));
    until(|| ready(&driven.channel) == 3).await;
    assert_eq!(call(&driven.channel, "/t/FailOnce14").await.unwrap(), "hello");
    assert_eq!(servers.iter().map(TestServer::calls).sum::<usize>(), 2);
    let other = call(&driven.channel, "/t/FailOnce13").await.unwrap_err();
    assert_eq!(other.code(), Code::Internal);
    let refused = call(&driven.channel, "/t/NoMore").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(servers.iter().map(TestServer::calls).sum::<usize>(), 4, "the server refused a retry");
}

/// BA-52.
#[tokio::test]
async fn attempts_use_untried_backends_first() {
    // Pick first keeps one connection.
    for policy in policies().into_iter().filter(|policy| policy.connect_strategy() == ConnectStrategy::All) {
        check_untried_first(policy).await;
    }
}

async fn check_untried_first(policy: Arc<dyn Policy>) {
    let servers = servers(3).await;
    let driven = drive(Channel::builder(&target(&servers)).service_config(RETRY));
    until(|| ready(&driven.channel) == 3).await;
    driven.channel.balancer().set_policy(Arc::clone(&policy));
    for round in 1..=10 {
        let status = call(&driven.channel, "/t/Status14").await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(servers.iter().all(|server| server.calls() == round), "{policy:?}");
    }
    servers[0].kill();
    until(|| ready(&driven.channel) == 2).await;
    call(&driven.channel, "/t/Status14").await.unwrap_err();
    assert_eq!(servers[1].calls() + servers[2].calls(), 23, "{policy:?}: two servers, three attempts");
    assert_eq!(in_flight(&driven.channel), 0);
}

#[tokio::test]
async fn retry_throttling_stops_retries() {
    let servers = servers(1).await;
    let throttled = RETRY.replacen('{', r#"{"retryThrottling":{"maxTokens":4,"tokenRatio":0.1},"#, 1);
    let driven = drive(Channel::builder(&target(&servers)).service_config(&throttled));
    for _ in 0..20 {
        call(&driven.channel, "/t/Status14").await.unwrap_err();
    }
    assert!(servers[0].calls() < 25, "{} attempts of 20 calls", servers[0].calls());
}

/// BA-46.
#[tokio::test]
async fn unprocessed_calls_are_resent_without_a_policy() {
    let servers = servers(3).await;
    let driven = drive(Channel::builder(&target(&servers)).policy(RoundRobin).backoff(short_backoff()));
    until(|| ready(&driven.channel) == 3).await;
    let calling: Vec<_> = (0..8)
        .map(|_| {
            let channel = driven.channel.clone();
            tokio::spawn(async move {
                for _ in 0..300 {
                    call(&channel, "/t/Echo").await.expect("a GOAWAY loses no call");
                }
            })
        })
        .collect();
    for round in 0..30 {
        let before = servers.iter().map(TestServer::calls).sum::<usize>();
        servers[round % 3].send_goaway();
        until(|| servers.iter().map(TestServer::calls).sum::<usize>() >= (before + 20).min(2400)).await;
    }
    for calls in calling {
        calls.await.unwrap();
    }
}

/// BA-39.
#[tokio::test]
async fn killed_backends_lose_no_retryable_call() {
    let mut servers = servers(3).await;
    let driven = drive(Channel::builder(&target(&servers)).service_config(RETRY).backoff(short_backoff()));
    until(|| ready(&driven.channel) == 3).await;
    let calling: Vec<_> = (0..8)
        .map(|_| {
            let channel = driven.channel.clone();
            tokio::spawn(async move {
                for _ in 0..300 {
                    call(&channel, "/t/Echo").await.expect("a backend is left");
                }
            })
        })
        .collect();
    for round in 0..6 {
        let victim = round % 3;
        servers[victim].kill();
        until(|| ready(&driven.channel) <= 2).await;
        let address = servers[victim].address;
        servers[victim] = TestServer::at(address).await;
        until(|| ready(&driven.channel) == 3).await;
    }
    for calls in calling {
        calls.await.unwrap();
    }
    assert_eq!(in_flight(&driven.channel), 0);
}
