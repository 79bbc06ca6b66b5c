//! Failures of single streams, which are not failures of the connection.

use std::time::Duration;

use http_body::Frame;
use http_body_util::BodyExt as _;
use tidegate_balance::{OutlierDetection, RoundRobin};
use tidegate_grpc_channel::{Channel, ChannelBuilder};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service as _;

use crate::test_server::{DrivenChannel, TestServer, call, drive, in_flight, ready, servers, target, until};

const RETRY: &str = r#"{"loadBalancingConfig":[{"round_robin":{}}],"methodConfig":[{"name":[{"service":"t"}],
    "retryPolicy":{"maxAttempts":4,"initialBackoff":"0.001s","maxBackoff":"0.01s","backoffMultiplier":2,
    "retryableStatusCodes":["UNAVAILABLE"]}}]}"#;

/// A channel that ejects a backend after its first failure.
async fn strict(servers: &[TestServer], change: impl FnOnce(ChannelBuilder) -> ChannelBuilder) -> DrivenChannel {
    let rules = OutlierDetection { ejection_time: Duration::from_secs(3600), ..OutlierDetection::consecutive(1) };
    let builder = Channel::builder(&target(servers)).policy(RoundRobin).outlier_detection(rules).service_config(RETRY);
    let driven = drive(change(builder));
    until(|| ready(&driven.channel) == servers.len()).await;
    driven
}

fn assert_healthy(driven: &DrivenChannel) {
    let status = driven.channel.balancer().status();
    assert!(status.iter().all(|backend| backend.ejected_until.is_none()), "{status:?}");
    assert_eq!((ready(&driven.channel), in_flight(&driven.channel)), (status.len(), 0));
}

#[tokio::test]
async fn response_head_above_the_limit_is_internal() {
    let servers = servers(2).await;
    let driven = strict(&servers, |builder| builder).await;
    for (round, path) in ["/t/Head20000", "/t/Head30000"].into_iter().enumerate() {
        let status = call(&driven.channel, path).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal, "{path}: {status:?}");
        assert!(status.message().contains("response_head_bytes_max"), "{path}: {status:?}");
        assert_eq!(servers.iter().map(TestServer::calls).sum::<usize>(), round + 1, "{path} was retried");
        assert_healthy(&driven);
    }
}

#[tokio::test]
async fn limit_of_the_response_head_is_a_setting() {
    let servers = servers(1).await;
    let driven = strict(&servers, |builder| builder.response_head_bytes_max(64 << 10)).await;
    for path in ["/t/Head50000", "/t/Trailers50000"] {
        assert_eq!(call(&driven.channel, path).await.unwrap(), "hello", "{path}");
    }
    assert_eq!(call(&driven.channel, "/t/Head70000").await.unwrap_err().code(), Code::Internal);
    assert_healthy(&driven);
}

#[tokio::test]
async fn failed_request_body_is_not_a_failed_backend() {
    let servers = servers(1).await;
    let driven = strict(&servers, |builder| builder).await;
    let (mut sender, body) = http_body_util::channel::Channel::<bytes::Bytes, Status>::new(1);
    let request = http::Request::post("/t/Echo").body(Body::new(body)).expect("a request");
    let mut channel = driven.channel.clone();
    let response = tokio::spawn(async move { channel.call(request).await });
    sender.send(Frame::data(bytes::Bytes::from_static(b"hello"))).await.expect("the request is read");
    sender.abort(Status::data_loss("the file is gone"));
    let response = response.await.expect("no panic");
    let status = match response {
        Ok(response) => response.into_body().collect().await.err(),
        Err(status) => Some(status),
    };
    let status = status.expect("the call fails");
    assert_eq!((status.code(), status.message()), (Code::DataLoss, "the file is gone"));
    // The reset may come before the server has seen the call.
    assert!(servers[0].calls() <= 1, "retried");
    until(|| in_flight(&driven.channel) == 0).await;
    assert_healthy(&driven);
}
