//! A gRPC client that spreads its calls over three servers, one of which is killed while it calls: no call fails.
//!
//! The servers are the example's own, on loopback. A client that `tonic-build` generated takes the channel just as
//! `tonic::client::Grpc` does here; in production the target is a name, such as `dns:///orders.prod:50051`.
//!
//! `cargo run -p tidegate-balance --features tonic --example grpc_client`

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use http::uri::PathAndQuery;
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_balance::Channel;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Status};

/// As grpc-go and others read it: in turn, and twice more elsewhere if a server was not there.
const SERVICE_CONFIG: &str = r#"{
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [{
        "name": [{}],
        "timeout": "5s",
        "retryPolicy": {
            "maxAttempts": 3, "initialBackoff": "0.01s", "maxBackoff": "1s", "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"]
        }
    }]
}"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (mut servers, mut addresses) = (Vec::new(), Vec::new());
    for name in ["one", "two", "three"] {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        addresses.push(listener.local_addr()?.to_string());
        servers.push(tokio::spawn(serve(listener, name)));
    }
    let target = format!("ipv4:{}", addresses.join(","));

    // The driver resolves, connects and drains; nothing happens unless it runs, and nothing is left when it ends.
    let (channel, driver) = Channel::builder(&target).service_config(SERVICE_CONFIG).build()?;
    let driving = tokio::spawn(driver.run());
    channel.connected(Duration::from_secs(5)).await?;

    println!("three servers: {:?}", calls(&channel, 300).await?);
    let killed = servers.remove(0);
    killed.abort();
    println!("one is killed: {:?}", calls(&channel, 300).await?);

    // The last clone ends the channel, and with it the driver.
    drop(channel);
    driving.await?;
    Ok(())
}

/// How many calls each server answered.
async fn calls(channel: &Channel, count: usize) -> Result<BTreeMap<String, usize>, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    let mut answers = BTreeMap::new();
    for _ in 0..count {
        client.ready().await?;
        let method = PathAndQuery::from_static("/example.Greeter/Greet");
        let answer = client.unary(Request::new("hello".to_owned()), method, Text).await?;
        *answers.entry(answer.into_inner()).or_default() += 1;
    }
    Ok(answers)
}

/// Messages that are text, in place of those of protobuf.
#[derive(Default)]
struct Text;

impl Codec for Text {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Text {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, item: String, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item.as_bytes());
        Ok(())
    }
}

impl Decoder for Text {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = from.copy_to_bytes(from.remaining()).to_vec();
        String::from_utf8(bytes).map(Some).map_err(|_| Status::internal("the message is not text"))
    }
}

/// Answers every call with the server's name, until it is aborted with all its connections.
async fn serve(listener: TcpListener, name: &'static str) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(async move {
            let answering = service_fn(move |request: http::Request<hyper::body::Incoming>| async move {
                // A call is read to its end before it is answered.
                let _ = request.into_body().collect().await;
                let response = http::Response::builder().header("content-type", "application/grpc");
                response.body(Reply::new(name))
            });
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // It ends when the client goes; nobody is left to be told of an error then.
            let _ = connection.serve_connection(TokioIo::new(stream), answering).await;
        });
    }
}

/// One message, and the trailers of success.
struct Reply(Vec<Frame<Bytes>>);

impl Reply {
    fn new(text: &str) -> Self {
        // A message begins with a byte for compression and four of length.
        let length = u32::try_from(text.len()).unwrap_or_default().to_be_bytes();
        let message = [&[0], &length[..], text.as_bytes()].concat();
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
        Self(vec![Frame::trailers(trailers), Frame::data(message.into())])
    }
}

impl http_body::Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop().map(Ok))
    }
}
