//! Calls go to the backends that are there, by every policy.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use http_body_util::BodyExt as _;
use tidegate_balance::{
    Address, Channel, Exact, LeastRequest, Outlier, PeakEwma, PickFirst, Policy, RingHash, RoundRobin, State,
    WeightedRoundRobin,
};
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Status};
use tower::Service as _;

use crate::backend::{
    Backend, backends, call, connections, drive, in_flight, ready, request, soon, soon_enough, target, until,
};

#[tokio::test]
async fn round_robin_reaches_all() {
    let backends = backends(3).await;
    let driven = drive(Channel::builder(&target(&backends)).policy(RoundRobin));
    driven.channel.connected(Duration::from_secs(5)).await.unwrap();
    until(|| ready(&driven.channel) == 3).await;
    for _ in 0..30 {
        assert_eq!(call(&driven.channel, "/t/Echo").await.unwrap(), "hello");
    }
    assert!(backends.iter().all(|backend| backend.calls() == 10));
    assert_eq!(in_flight(&driven.channel), 0);
}

/// Every policy, by the name that a service config has for it.
pub(crate) fn policies() -> Vec<Arc<dyn Policy>> {
    vec![
        Arc::new(PickFirst::default()),
        Arc::new(RoundRobin),
        Arc::new(Exact),
        Arc::new(WeightedRoundRobin),
        Arc::new(LeastRequest::default()),
        Arc::new(PeakEwma),
        Arc::new(RingHash::default()),
    ]
}

#[tokio::test]
async fn t18_t19_every_policy_serves_and_takes_over_from_every_other() {
    let backends = backends(3).await;
    let driven = drive(Channel::builder(&target(&backends)).policy(RoundRobin));
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
    let backends = backends(3).await;
    let driven = drive(Channel::builder(&target(&backends)));
    for _ in 0..10 {
        call(&driven.channel, "/t/Echo").await.unwrap();
    }
    assert_eq!(backends.iter().map(Backend::accepted).collect::<Vec<_>>(), [1, 0, 0]);
}

#[tokio::test]
async fn t16_pick_first_does_not_wait_for_an_address_that_does_not_answer() {
    let backends = backends(1).await;
    let good = backends[0].address;
    let target = format!("ipv4:192.0.2.1:1,192.0.2.2:1,{good}");
    let builder = Channel::builder(&target).connector(|address| async move {
        match address {
            Address::Socket(address) if address.ip().is_loopback() => tokio::net::TcpStream::connect(address).await,
            // Nothing comes from there, not even an error.
            _ => std::future::pending().await,
        }
    });
    let driven = drive(builder);
    assert_eq!(call(&driven.channel, "/t/Echo").await.unwrap(), "hello");
    until(|| driven.channel.balancer().status().iter().filter(|status| status.state == State::Connecting).count() == 0)
        .await;
}

#[tokio::test]
async fn t16_pick_first_keeps_one_connection_of_two_that_came_about_at_once() {
    let backends = backends(2).await;
    // They come about together, and which is seen first is chance.
    for _ in 0..20 {
        let both = Arc::new(Barrier::new(2));
        let builder = Channel::builder(&target(&backends)).connector(move |address| {
            let both = Arc::clone(&both);
            async move {
                let Address::Socket(address) = address else { panic!("a target of sockets") };
                both.wait().await;
                TcpStream::connect(address).await
            }
        });
        let driven = drive(builder);
        assert_eq!(call(&driven.channel, "/t/Echo").await.unwrap(), "hello");
        let status = || driven.channel.balancer().status();
        until(|| status().iter().filter(|status| status.state == State::Idle).count() == 1).await;
        assert_eq!((ready(&driven.channel), connections(&driven.channel)), (1, 1));
        assert_eq!(call(&driven.channel, "/t/Echo").await.unwrap(), "hello");
    }
    until(|| backends.iter().map(Backend::open).sum::<usize>() == 0).await;
}

#[tokio::test]
async fn t19_pick_first_lets_go_of_what_the_policy_before_had_connected_and_no_call_is_lost() {
    let backends = backends(3).await;
    let driven = drive(Channel::builder(&target(&backends)).policy(RoundRobin));
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
    until(|| backends.iter().map(Backend::held).sum::<usize>() == 3).await;
    channel.balancer().set_policy(Arc::new(PickFirst::default()));
    until(|| ready(&channel) == 1).await;
    assert_eq!(call(&channel, "/t/Echo").await.unwrap(), "hello");
    assert_eq!(backends.iter().map(Backend::open).sum::<usize>(), 3, "calls go on");
    backends.iter().for_each(Backend::release);
    for call in held {
        assert_eq!(call.await.unwrap().unwrap(), "hello");
    }
    until(|| backends.iter().map(Backend::open).sum::<usize>() == 1).await;
    channel.balancer().set_policy(Arc::new(RoundRobin));
    until(|| ready(&channel) == 3).await;
}

#[tokio::test]
async fn several_connections_share_the_calls_of_a_backend() {
    let backends = backends(1).await;
    let driven = drive(Channel::builder(&target(&backends)).connections_per_endpoint(4));
    until(|| connections(&driven.channel) == 4).await;
    for _ in 0..8 {
        call(&driven.channel, "/t/Echo").await.unwrap();
    }
    assert_eq!((backends[0].accepted(), backends[0].calls()), (4, 8));
}

#[tokio::test]
async fn ring_hash_keeps_a_header_s_calls_together() {
    let backends = backends(3).await;
    let json = r#"{"loadBalancingConfig":[{"ring_hash_experimental":{"requestHashHeader":"X-User"}}]}"#;
    let driven = drive(Channel::builder(&target(&backends)).service_config(json));
    until(|| ready(&driven.channel) == 3).await;
    let mut channel = driven.channel.clone();
    for user in 0..20 {
        let before: Vec<usize> = backends.iter().map(Backend::calls).collect();
        for _ in 0..5 {
            let mut request = request("/t/Echo", "hello");
            request.headers_mut().insert("x-user", http::HeaderValue::from(user));
            channel.call(request).await.unwrap();
        }
        let moved = backends.iter().zip(before).filter(|(backend, before)| backend.calls() > *before).count();
        assert_eq!(moved, 1, "user {user}");
    }
    assert!(backends.iter().all(|backend| backend.calls() > 0));
}

#[tokio::test]
async fn t39_t42_a_killed_backend_is_out_at_once_and_returns_by_itself() {
    let backends = backends(2).await;
    let driven = drive(Channel::builder(&target(&backends)).policy(RoundRobin).backoff(soon()));
    until(|| ready(&driven.channel) == 2).await;
    backends[0].kill();
    until(|| ready(&driven.channel) == 1).await;
    for _ in 0..20 {
        call(&driven.channel, "/t/Echo").await.expect("static targets notice as well");
    }
    let returned = Backend::at(backends[0].address).await;
    until(|| ready(&driven.channel) == 2).await;
    for _ in 0..4 {
        call(&driven.channel, "/t/Echo").await.unwrap();
    }
    assert!(returned.calls() >= 2);
}

#[tokio::test]
async fn t50_without_a_backend_calls_fail_with_the_cause_or_wait() {
    // A port that was free a moment ago.
    let gone = Backend::start().await;
    let address = gone.address;
    drop(gone);
    until(|| std::net::TcpStream::connect(address).is_err()).await;
    let driven = drive(Channel::builder(&address.to_string()).backoff(soon()));
    let failed = call(&driven.channel, "/t/Echo").await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(failed.message().contains("refused") && failed.message().contains(&address.to_string()), "{failed}");

    let waiting = drive(Channel::builder(&address.to_string()).backoff(soon()).wait_for_ready(true));
    let late = waiting.channel.connected(Duration::from_millis(50)).await.unwrap_err();
    assert!(late.code() == Code::DeadlineExceeded && late.message().contains("refused"), "{late}");
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let channel = waiting.channel.clone();
            tokio::spawn(async move { call(&channel, "/t/Echo").await })
        })
        .collect();
    until(|| waiting.channel.balancer().counters().waiting == 20).await;
    let _backend = Backend::at(address).await;
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), "hello");
    }
    assert_eq!(waiting.channel.balancer().counters().waiting, 0);
}

#[tokio::test]
async fn t55_a_call_that_is_given_up_is_not_in_flight() {
    let backends = backends(2).await;
    let driven = drive(Channel::builder(&target(&backends)).policy(LeastRequest::default()));
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let channel = driven.channel.clone();
            tokio::spawn(async move { call(&channel, "/t/Hold").await })
        })
        .collect();
    until(|| backends.iter().map(Backend::held).sum::<usize>() == 20).await;
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
async fn a_closed_channel_finishes_its_calls_and_takes_no_more() {
    let backends = backends(1).await;
    let driven = drive(Channel::builder(&target(&backends)));
    let channel = driven.channel.clone();
    let held = tokio::spawn(async move { call(&channel, "/t/Hold").await });
    until(|| backends[0].held() == 1).await;
    driven.channel.close();
    assert_eq!(call(&driven.channel, "/t/Echo").await.unwrap_err().code(), Code::Unavailable);
    backends[0].release();
    assert_eq!(held.await.unwrap().unwrap(), "hello");
    until(|| driven.driving.is_finished()).await;
    until(|| backends[0].open() == 0).await;
}

#[tokio::test]
async fn an_answer_that_is_being_read_outlives_the_last_clone_of_its_channel() {
    let backends = backends(1).await;
    // There would be no time for what is cut.
    let builder = Channel::builder(&target(&backends)).drain_timeout(Duration::ZERO);
    let (mut channel, driver) = builder.build().unwrap();
    let (driving, balancer) = (tokio::spawn(driver.run()), channel.balancer().clone());
    let answer = channel.call(request("/t/Stream", "hello")).await.unwrap();
    until(|| backends[0].held() == 1).await;
    drop(channel);
    // The driver runs on this thread as well: it has had its turn.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!balancer.is_closed());
    backends[0].release();
    let answer = soon_enough(answer.into_body().collect()).await.expect("all of it");
    assert_eq!(answer.to_bytes(), "hello");
    soon_enough(driving).await.unwrap();
    until(|| backends[0].open() == 0).await;
}

#[tokio::test]
async fn an_answer_that_was_read_or_given_up_does_not_keep_its_channel() {
    let backends = backends(1).await;
    for read in [true, false] {
        let (mut channel, driver) = Channel::builder(&target(&backends)).build().unwrap();
        let driving = tokio::spawn(driver.run());
        let mut body = channel.call(request(if read { "/t/Echo" } else { "/t/Stream" }, "")).await.unwrap().into_body();
        while read && let Some(frame) = soon_enough(body.frame()).await {
            frame.unwrap();
        }
        drop(channel);
        // What was read to its end may be kept.
        let _kept = read.then_some(body);
        soon_enough(driving).await.unwrap();
    }
}

/// Messages that are bytes.
#[derive(Default)]
struct Raw;

impl Codec for Raw {
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

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

#[tokio::test]
async fn a_client_of_tonic_takes_the_channel_as_its_own() {
    let backends = backends(1).await;
    let driven = drive(Channel::builder(&target(&backends)));
    let mut client = tonic::client::Grpc::new(driven.channel.clone());
    client.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/t/Echo");
    let message = tonic::Request::new(Bytes::from_static(b"through tonic"));
    let answer = client.unary(message, path, Raw).await.unwrap();
    assert_eq!(answer.into_inner(), "through tonic");
    let path = http::uri::PathAndQuery::from_static("/t/Status5");
    let status = client.unary(tonic::Request::new(Bytes::new()), path, Raw).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}

#[tokio::test]
async fn a_service_config_without_rules_leaves_those_of_the_builder() {
    let backends = backends(2).await;
    let rules = Outlier { base: Duration::from_secs(3600), ..Outlier::consecutive(1) };
    // For ever is a time as well.
    let driven = drive(Channel::builder(&target(&backends)).policy(RoundRobin).outlier(rules).timeout(Duration::MAX));
    until(|| ready(&driven.channel) == 2).await;
    let ejected = || driven.channel.balancer().status().iter().filter(|status| status.ejected_until.is_some()).count();
    let none = r#"{"loadBalancingConfig":[{"outlier_detection_experimental":{"childPolicy":[{"round_robin":{}}]}}]}"#;
    driven.channel.set_service_config(none).unwrap();
    call(&driven.channel, "/t/Status14").await.unwrap_err();
    assert_eq!(ejected(), 0, "it has rules, of which none ejects");
    driven.channel.set_service_config("{}").unwrap();
    call(&driven.channel, "/t/Status14").await.unwrap_err();
    assert_eq!(ejected(), 1);
}

#[tokio::test]
async fn t61_a_bad_service_config_keeps_the_one_in_use() {
    let backends = backends(2).await;
    let driven = drive(Channel::builder(&target(&backends)).policy(RoundRobin));
    let name = || driven.channel.balancer().policy().name();
    driven.channel.set_service_config(r#"{"loadBalancingConfig":[{"least_request_experimental":{}}]}"#).unwrap();
    assert_eq!(name(), "least_request");
    let bad = r#"{"loadBalancingConfig":[{"least_request_experimental":{"choiceCount":0}},{"round_robin":{}}]}"#;
    assert!(driven.channel.set_service_config(bad).is_err());
    assert_eq!(name(), "least_request");
    driven.channel.set_service_config("{}").unwrap();
    assert_eq!(name(), "round_robin");
    assert!(Channel::builder("ipv4:10.0.0.1:1").service_config(bad).build().is_err(), "at the start it is an error");
}
