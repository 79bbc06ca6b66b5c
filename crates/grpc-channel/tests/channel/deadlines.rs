//! Deadlines of calls.

use std::time::Duration;

use http_body_util::BodyExt as _;
use tidegate_balance::{OutlierDetection, RoundRobin};
use tidegate_grpc_channel::Channel;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service as _;

use crate::test_server::{call, drive, ready, request, servers, target, until, within_20_s};

/// A call with this `grpc-timeout`.
async fn timed(channel: &Channel, path: &str, timeout: &'static str) -> Result<http::Response<Body>, Status> {
    let mut request = request(path, "hello");
    request.headers_mut().insert("grpc-timeout", http::HeaderValue::from_static(timeout));
    within_20_s(channel.clone().call(request)).await
}

fn ejected(channel: &Channel) -> usize {
    channel.balancer().status().iter().filter(|status| status.ejected_until.is_some()).count()
}

/// Ejects after `count` consecutive failures, for longer than the test.
fn after_failures(count: u32) -> OutlierDetection {
    OutlierDetection { ejection_time: Duration::from_secs(3600), ..OutlierDetection::consecutive(count) }
}

/// BA-57.
#[tokio::test]
async fn backend_missing_deadlines_is_ejected() {
    let servers = servers(2).await;
    let driven = drive(Channel::builder(&target(&servers)).policy(RoundRobin).outlier_detection(after_failures(3)));
    until(|| ready(&driven.channel) == 2).await;
    servers[0].blackhole();
    for _ in 0..40 {
        if ejected(&driven.channel) == 0 {
            let _ = timed(&driven.channel, "/t/Echo", "100m").await;
        }
    }
    assert_eq!(ejected(&driven.channel), 1);
    for _ in 0..10 {
        assert_eq!(within_20_s(call(&driven.channel, "/t/Echo")).await.unwrap(), "hello");
    }
}

#[tokio::test]
async fn call_deadline_covers_the_whole_response() {
    let servers = servers(1).await;
    let driven = drive(Channel::builder(&target(&servers)).outlier_detection(after_failures(1)));
    until(|| ready(&driven.channel) == 1).await;
    let mut response = timed(&driven.channel, "/t/Stream", "200m").await.unwrap().into_body();
    assert_eq!(within_20_s(response.frame()).await.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
    assert!(response.frame().await.is_none());
    // The stream is reset, and the call is not in flight any more.
    until(|| driven.channel.balancer().status()[0].in_flight == 0).await;
    assert_eq!(ejected(&driven.channel), 0, "a stream may be meant to last until its deadline");
    let mut response = timed(&driven.channel, "/t/Stream", "1H").await.unwrap().into_body();
    servers[0].release();
    assert_eq!(within_20_s(response.frame()).await.unwrap().unwrap().into_data().unwrap(), "hello");
}

#[tokio::test]
async fn server_gets_the_remaining_time() {
    let servers = servers(1).await;
    let driven = drive(Channel::builder(&target(&servers)).timeout(Duration::from_secs(60)));
    until(|| ready(&driven.channel) == 1).await;
    let response = timed(&driven.channel, "/t/Timeout", "30S").await.unwrap();
    let text = response.into_body().collect().await.unwrap().to_bytes();
    let micros = str::from_utf8(&text).unwrap().strip_suffix('u').expect("microseconds");
    assert!(Duration::from_micros(micros.parse().unwrap()) < Duration::from_secs(30));
    // The channel timeout covers only the start of the response, so the server does not get it.
    assert_eq!(within_20_s(call(&driven.channel, "/t/Timeout")).await.unwrap(), "");
}

#[tokio::test]
async fn channel_timeout_covers_the_response_start() {
    let servers = servers(1).await;
    let driven = drive(Channel::builder(&target(&servers)).timeout(Duration::from_millis(200)));
    until(|| ready(&driven.channel) == 1).await;
    let late = within_20_s(call(&driven.channel, "/t/Hold")).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    let streaming = driven.channel.clone().call(request("/t/Stream", "hello"));
    let mut response = within_20_s(streaming).await.unwrap().into_body();
    tokio::time::timeout(Duration::from_millis(400), response.frame()).await.expect_err("the stream continues");
    servers[0].release();
    assert_eq!(within_20_s(response.frame()).await.unwrap().unwrap().into_data().unwrap(), "hello");
}

#[tokio::test]
async fn expired_call_is_not_sent() {
    let servers = servers(1).await;
    let driven = drive(Channel::builder(&target(&servers)).outlier_detection(after_failures(1)));
    until(|| ready(&driven.channel) == 1).await;
    let late = timed(&driven.channel, "/t/Echo", "0n").await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert_eq!(ejected(&driven.channel), 0);
    call(&driven.channel, "/t/Echo").await.unwrap();
    assert_eq!(servers[0].calls(), 1);
}
