//! The time that a call has: who does not answer within it has failed.

use std::time::Duration;

use http_body_util::BodyExt as _;
use tidegate_balance::{Channel, Outlier, RoundRobin};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service as _;

use crate::backend::{backends, call, drive, ready, request, soon_enough, target, until};

/// A call that has so much time, as its header says it.
async fn timed(channel: &Channel, path: &str, timeout: &'static str) -> Result<http::Response<Body>, Status> {
    let mut request = request(path, "hello");
    request.headers_mut().insert("grpc-timeout", http::HeaderValue::from_static(timeout));
    soon_enough(channel.clone().call(request)).await
}

fn ejected(channel: &Channel) -> usize {
    channel.balancer().status().iter().filter(|status| status.ejected_until.is_some()).count()
}

/// After so many failures in a row, for longer than a test.
fn after_failures(count: u32) -> Outlier {
    Outlier { base: Duration::from_secs(3600), ..Outlier::consecutive(count) }
}

#[tokio::test]
async fn t57_a_backend_that_does_not_answer_in_time_is_ejected() {
    let backends = backends(2).await;
    let driven = drive(Channel::builder(&target(&backends)).policy(RoundRobin).outlier(after_failures(3)));
    until(|| ready(&driven.channel) == 2).await;
    backends[0].blackhole();
    for _ in 0..40 {
        if ejected(&driven.channel) == 0 {
            let _ = timed(&driven.channel, "/t/Echo", "100m").await;
        }
    }
    assert_eq!(ejected(&driven.channel), 1);
    for _ in 0..10 {
        assert_eq!(soon_enough(call(&driven.channel, "/t/Echo")).await.unwrap(), "hello");
    }
}

#[tokio::test]
async fn the_time_of_a_call_covers_all_of_its_answer() {
    let backends = backends(1).await;
    let driven = drive(Channel::builder(&target(&backends)).outlier(after_failures(1)));
    until(|| ready(&driven.channel) == 1).await;
    let mut answer = timed(&driven.channel, "/t/Stream", "200m").await.unwrap().into_body();
    assert_eq!(soon_enough(answer.frame()).await.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
    assert!(answer.frame().await.is_none());
    // The server is told, and the backend is in flight for nobody.
    until(|| driven.channel.balancer().status()[0].in_flight == 0).await;
    assert_eq!(ejected(&driven.channel), 0, "a stream may be meant to last so long");
    let mut answer = timed(&driven.channel, "/t/Stream", "1H").await.unwrap().into_body();
    backends[0].release();
    assert_eq!(soon_enough(answer.frame()).await.unwrap().unwrap().into_data().unwrap(), "hello");
}

#[tokio::test]
async fn servers_are_told_how_much_time_is_left() {
    let backends = backends(1).await;
    let driven = drive(Channel::builder(&target(&backends)).timeout(Duration::from_secs(60)));
    until(|| ready(&driven.channel) == 1).await;
    let answer = timed(&driven.channel, "/t/Timeout", "30S").await.unwrap();
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    let micros = str::from_utf8(&text).unwrap().strip_suffix('u').expect("microseconds");
    assert!(Duration::from_micros(micros.parse().unwrap()) < Duration::from_secs(30));
    // The channel's own is for the beginning of the answer, and nothing that the server could go by.
    assert_eq!(soon_enough(call(&driven.channel, "/t/Timeout")).await.unwrap(), "");
}

#[tokio::test]
async fn the_channel_s_time_is_for_the_beginning_of_an_answer() {
    let backends = backends(1).await;
    let driven = drive(Channel::builder(&target(&backends)).timeout(Duration::from_millis(200)));
    until(|| ready(&driven.channel) == 1).await;
    let late = soon_enough(call(&driven.channel, "/t/Hold")).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    let streaming = driven.channel.clone().call(request("/t/Stream", "hello"));
    let mut answer = soon_enough(streaming).await.unwrap().into_body();
    tokio::time::timeout(Duration::from_millis(400), answer.frame()).await.expect_err("it goes on");
    backends[0].release();
    assert_eq!(soon_enough(answer.frame()).await.unwrap().unwrap().into_data().unwrap(), "hello");
}

#[tokio::test]
async fn a_call_whose_time_is_over_is_sent_to_nobody_and_is_nobody_s_fault() {
    let backends = backends(1).await;
    let driven = drive(Channel::builder(&target(&backends)).outlier(after_failures(1)));
    until(|| ready(&driven.channel) == 1).await;
    let late = timed(&driven.channel, "/t/Echo", "0n").await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert_eq!(ejected(&driven.channel), 0);
    call(&driven.channel, "/t/Echo").await.unwrap();
    assert_eq!(backends[0].calls(), 1);
}
