//! Calls reach the connected servers, with every policy.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use http_body_util::BodyExt as _;
use tidegate_balance::{
    ConnectivityState, EndpointAddress, ExactRoundRobin, LeastRequest, OutlierDetection, PeakEwma, PickFirst, Policy,
    RingHash, RoundRobin, WeightedRoundRobin,
};
use tidegate_grpc_channel::Channel;
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Status};
use tower::Service as _;

use crate::test_server::{
    TestServer, call, connections, drive, in_flight, ready, request, servers, short_backoff, target, until, within_20_s,
};

#[tokio::test]
async fn round_robin_reaches_all() {
    let servers = servers(3).await;
    let driven = drive(Channel::builder(&target(&servers)).policy(RoundRobin));
    driven.channel.connected(Duration::from_secs(5)).await.unwrap();
    until(|| ready(&driven.channel) == 3).await;
    for _ in 0..30 {
        assert_eq!(call(&driven.channel, "/t/Echo").await.unwrap(), "hello");
    }
    assert!(servers.iter().all(|server| server.calls() == 10));
    assert_eq!(in_flight(&driven.channel), 0);
}

/// Every policy.
pub(crate) fn policies() -> Vec<Arc<dyn Policy>> {
    vec![
        Arc::new(PickFirst::default()),
        Arc::new(RoundRobin),
        Arc::new(ExactRoundRobin),
        Arc::new(WeightedRoundRobin),
        Arc::new(LeastRequest::default()),
        Arc::new(PeakEwma),
        Arc::new(RingHash::default()),
    ]
}

/// BA-18 and BA-19.
#[tokio::test]
async fn any_policy_can_replace_any_other() {
    let servers = servers(3).await;
    let driven = drive(Channel::builder(&target(&servers)).policy(RoundRobin));
    for first in policies() {
        for second in policies() {
            for policy in [&first, &second] {
                driven.channel.balancer().set_policy(Arc::clone(policy));
                assert_eq!(call(&driven.channel, "/t/Echo").await.expect("no lost call"), "hello", "{policy:?}");
            }
        }
    }
    assert_eq!(in_flight(&driven.channel), 0);
}

#[tokio::test]
async fn pick_first_connects_to_one() {
    let servers = servers(3).await;
    let driven = drive(Channel::builder(&target(&servers)));
    for _ in 0..10 {
        call(&driven.channel, "/t/Echo").await.unwrap();
    }
    assert_eq!(servers.iter().map(TestServer::accepted).collect::<Vec<_>>(), [1, 0, 0]);
}

/// BA-16.
#[tokio::test]
async fn pick_first_skips_addresses_that_hang() {
    let servers = servers(1).await;
    let good = servers[0].address;
    let target = format!("ipv4:192.0.2.1:1,192.0.2.2:1,{good}");
    let builder = Channel::builder(&target).connector(|address| async move {
        match address {
            EndpointAddress::Socket(address) if address.ip().is_loopback() => {
                tokio::net::TcpStream::connect(address).await
            }
            // Hangs without an error.
            _ => std::future::pending().await,
        }
    });
    let driven = drive(builder);
    assert_eq!(call(&driven.channel, "/t/Echo").await.unwrap(), "hello");
    until(|| {
        driven.channel.balancer().status().iter().filter(|status| status.state == ConnectivityState::Connecting).count()
            == 0
    })
    .await;
}

/// BA-16.
#[tokio::test]
async fn pick_first_keeps_one_of_two_connections() {
    let servers = servers(2).await;
    // Both connect at the same time; which one is seen first is random.
    for _ in 0..20 {
        let both = Arc::new(Barrier::new(2));
        let builder = Channel::builder(&target(&servers)).connector(move |address| {
            let both = Arc::clone(&both);
            async move {
                let EndpointAddress::Socket(address) = address else { panic!("the target has socket addresses") };
                both.wait().await;
                TcpStream::connect(address).await
            }
        });
        let driven = drive(builder);
        assert_eq!(call(&driven.channel, "/t/Echo").await.unwrap(), "hello");
        let status = || driven.channel.balancer().status();
        until(|| status().iter().filter(|status| status.state == ConnectivityState::Idle).count() == 1).await;
        assert_eq!((ready(&driven.channel), connections(&driven.channel)), (1, 1));
        assert_eq!(call(&driven.channel, "/t/Echo").await.unwrap(), "hello");
    }
    until(|| servers.iter().map(TestServer::open).sum::<usize>() == 0).await;
}

/// BA-19.
#[tokio::test]
async fn change_to_pick_first_loses_no_call() {
    let servers = servers(3).await;
    let driven = drive(Channel::builder(&target(&servers)).policy(RoundRobin));
    until(|| ready(&driven.channel) == 3).await;
    let channel = driven.channel.clone();
    let held: Vec<_> = (0..3)
        .map(|_| {
            tokio::spawn({
                let channel = channel.clone();
                async move { call(&channel, "/t/Hold").await }
            })
        })
        .collect();
    until(|| servers.iter().map(TestServer::held).sum::<usize>() == 3).await;
    channel.balancer().set_policy(Arc::new(PickFirst::default()));
    until(|| ready(&channel) == 1).await;
    assert_eq!(call(&channel, "/t/Echo").await.unwrap(), "hello");
    assert_eq!(servers.iter().map(TestServer::open).sum::<usize>(), 3, "calls in flight continue");
    servers.iter().for_each(TestServer::release);
    for call in held {
        assert_eq!(call.await.unwrap().unwrap(), "hello");
    }
    until(|| servers.iter().map(TestServer::open).sum::<usize>() == 1).await;
    channel.balancer().set_policy(Arc::new(RoundRobin));
    until(|| ready(&channel) == 3).await;
}

#[tokio::test]
async fn connections_share_the_calls_of_a_backend() {
    let servers = servers(1).await;
    let driven = drive(Channel::builder(&target(&servers)).connections_per_endpoint(4));
    until(|| connections(&driven.channel) == 4).await;
    for _ in 0..8 {
        call(&driven.channel, "/t/Echo").await.unwrap();
    }
    assert_eq!((servers[0].accepted(), servers[0].calls()), (4, 8));
}

#[tokio::test]
async fn ring_hash_uses_the_request_header() {
    let servers = servers(3).await;
    let json = r#"{"loadBalancingConfig":[{"ring_hash_experimental":{"requestHashHeader":"X-User"}}]}"#;
    let driven = drive(Channel::builder(&target(&servers)).service_config(json));
    until(|| ready(&driven.channel) == 3).await;
    let mut channel = driven.channel.clone();
    // Each server has some of so many users, whatever its port.
    for user in 0..200 {
        let before: Vec<usize> = servers.iter().map(TestServer::calls).collect();
        for _ in 0..3 {
            let mut request = request("/t/Echo", "hello");
            request.headers_mut().insert("x-user", http::HeaderValue::from(user));
            channel.call(request).await.unwrap();
        }
        let calls = servers.iter().zip(before).map(|(server, before)| server.calls() - before);
        let calls: Vec<usize> = calls.filter(|&calls| calls > 0).collect();
        assert_eq!(calls, [3], "user {user}");
    }
    assert!(servers.iter().all(|server| server.calls() > 0));
}

/// BA-39 and BA-42.
#[tokio::test]
async fn killed_backend_is_removed_and_reconnected() {
    let servers = servers(2).await;
    let driven = drive(Channel::builder(&target(&servers)).policy(RoundRobin).backoff(short_backoff()));
    until(|| ready(&driven.channel) == 2).await;
    servers[0].kill();
    until(|| ready(&driven.channel) == 1).await;
    for _ in 0..20 {
        call(&driven.channel, "/t/Echo").await.expect("a static target detects the loss");
    }
    let returned = TestServer::at(servers[0].address).await;
    until(|| ready(&driven.channel) == 2).await;
    for _ in 0..4 {
        call(&driven.channel, "/t/Echo").await.unwrap();
    }
    assert!(returned.calls() >= 2);
}

/// BA-50.
#[tokio::test]
async fn calls_without_a_backend_fail_or_wait() {
    // A port that was just freed.
    let gone = TestServer::start().await;
    let address = gone.address;
    drop(gone);
    until(|| std::net::TcpStream::connect(address).is_err()).await;
    let driven = drive(Channel::builder(&address.to_string()).backoff(short_backoff()));
    let failed = call(&driven.channel, "/t/Echo").await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(failed.message().contains("refused") && failed.message().contains(&address.to_string()), "{failed}");

    let waiting = drive(Channel::builder(&address.to_string()).backoff(short_backoff()).wait_for_ready(true));
    let late = waiting.channel.connected(Duration::from_millis(50)).await.unwrap_err();
    assert!(late.code() == Code::DeadlineExceeded && late.message().contains("refused"), "{late}");
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let channel = waiting.channel.clone();
            tokio::spawn(async move { call(&channel, "/t/Echo").await })
        })
        .collect();
    until(|| waiting.channel.balancer().counters().waiting == 20).await;
    let _backend = TestServer::at(address).await;
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), "hello");
    }
    assert_eq!(waiting.channel.balancer().counters().waiting, 0);
}

/// BA-55.
#[tokio::test]
async fn abandoned_call_is_not_in_flight() {
    let servers = servers(2).await;
    let driven = drive(Channel::builder(&target(&servers)).policy(LeastRequest::default()));
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let channel = driven.channel.clone();
            tokio::spawn(async move { call(&channel, "/t/Hold").await })
        })
        .collect();
    until(|| servers.iter().map(TestServer::held).sum::<usize>() == 20).await;
    assert_eq!(in_flight(&driven.channel), 20);
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    until(|| in_flight(&driven.channel) == 0).await;
    let mut late = request("/t/Hold", "");
    late.headers_mut().insert("grpc-timeout", http::HeaderValue::from_static("20m"));
    let status = driven.channel.clone().call(late).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    until(|| in_flight(&driven.channel) == 0).await;
}

#[tokio::test]
async fn closed_channel_finishes_its_calls() {
    let servers = servers(1).await;
    let driven = drive(Channel::builder(&target(&servers)));
    let channel = driven.channel.clone();
    let held = tokio::spawn(async move { call(&channel, "/t/Hold").await });
    until(|| servers[0].held() == 1).await;
    driven.channel.close();
    assert_eq!(call(&driven.channel, "/t/Echo").await.unwrap_err().code(), Code::Unavailable);
    servers[0].release();
    assert_eq!(held.await.unwrap().unwrap(), "hello");
    until(|| driven.driver.is_finished()).await;
    until(|| servers[0].open() == 0).await;
}

#[tokio::test]
async fn response_outlives_the_last_channel_clone() {
    let servers = servers(1).await;
    // A response would be cut without a drain time.
    let builder = Channel::builder(&target(&servers)).drain_timeout(Duration::ZERO);
    let (mut channel, driver) = builder.build().unwrap();
    let (driver, balancer) = (tokio::spawn(driver.run()), channel.balancer().clone());
    let response = channel.call(request("/t/Stream", "hello")).await.unwrap();
    until(|| servers[0].held() == 1).await;
    drop(channel);
    // The driver runs on this thread: let it run.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!balancer.is_closed());
    servers[0].release();
    let response = within_20_s(response.into_body().collect()).await.expect("the whole response");
    assert_eq!(response.to_bytes(), "hello");
    within_20_s(driver).await.unwrap();
    until(|| servers[0].open() == 0).await;
}

#[tokio::test]
async fn finished_response_does_not_keep_the_channel() {
    let servers = servers(1).await;
    for read in [true, false] {
        let (mut channel, driver) = Channel::builder(&target(&servers)).build().unwrap();
        let driver = tokio::spawn(driver.run());
        let mut body = channel.call(request(if read { "/t/Echo" } else { "/t/Stream" }, "")).await.unwrap().into_body();
        while read && let Some(frame) = within_20_s(body.frame()).await {
            frame.unwrap();
        }
        drop(channel);
        // A body that was read to its end can be kept.
        let _kept = read.then_some(body);
        within_20_s(driver).await.unwrap();
    }
}

/// A codec of raw bytes.
#[derive(Default)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

#[tokio::test]
async fn tonic_client_accepts_the_channel() {
    let servers = servers(1).await;
    let driven = drive(Channel::builder(&target(&servers)));
    let mut client = tonic::client::Grpc::new(driven.channel.clone());
    client.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/t/Echo");
    let message = tonic::Request::new(Bytes::from_static(b"through tonic"));
    let response = client.unary(message, path, RawCodec).await.unwrap();
    assert_eq!(response.into_inner(), "through tonic");
    let path = http::uri::PathAndQuery::from_static("/t/Status5");
    let status = client.unary(tonic::Request::new(Bytes::new()), path, RawCodec).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}

#[tokio::test]
async fn service_config_without_rules_keeps_the_builder_s() {
    let servers = servers(2).await;
    let rules = OutlierDetection { ejection_time: Duration::from_secs(3600), ..OutlierDetection::consecutive(1) };
    // An unlimited timeout is valid.
    let driven =
        drive(Channel::builder(&target(&servers)).policy(RoundRobin).outlier_detection(rules).timeout(Duration::MAX));
    until(|| ready(&driven.channel) == 2).await;
    let ejected = || driven.channel.balancer().status().iter().filter(|status| status.ejected_until.is_some()).count();
    let none = r#"{"loadBalancingConfig":[{"outlier_detection_experimental":{"childPolicy":[{"round_robin":{}}]}}]}"#;
    driven.channel.set_service_config(none).unwrap();
    call(&driven.channel, "/t/Status14").await.unwrap_err();
    assert_eq!(ejected(), 0, "its outlier detection has no rule");
    driven.channel.set_service_config("{}").unwrap();
    call(&driven.channel, "/t/Status14").await.unwrap_err();
    assert_eq!(ejected(), 1);
}

/// BA-61.
#[tokio::test]
async fn invalid_service_config_keeps_the_previous_one() {
    let servers = servers(2).await;
    let driven = drive(Channel::builder(&target(&servers)).policy(RoundRobin));
    let name = || driven.channel.balancer().policy().name();
    driven.channel.set_service_config(r#"{"loadBalancingConfig":[{"least_request_experimental":{}}]}"#).unwrap();
    assert_eq!(name(), "least_request");
    let bad = r#"{"loadBalancingConfig":[{"least_request_experimental":{"choiceCount":0}},{"round_robin":{}}]}"#;
    assert!(driven.channel.set_service_config(bad).is_err());
    assert_eq!(name(), "least_request");
    driven.channel.set_service_config("{}").unwrap();
    assert_eq!(name(), "round_robin");
    assert!(Channel::builder("ipv4:10.0.0.1:1").service_config(bad).build().is_err(), "`build` returns the error");
}

#[tokio::test]
async fn options_may_be_the_largest_numbers() {
    let servers = servers(1).await;
    let builder = Channel::builder(&target(&servers))
        .connect_timeout(Duration::MAX)
        .keep_alive(Duration::MAX, Duration::MAX)
        .timeout(Duration::MAX)
        .drain_timeout(Duration::MAX)
        .slow_start(Duration::MAX)
        .replay_bytes_max(usize::MAX);
    let driven = drive(builder);
    assert_eq!(call(&driven.channel, "/t/Echo").await.unwrap(), "hello");
}
