//! The measured channels, and the load.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use tidegate_balance::{
    EndpointAddress, Resolution, Resolve, ResolveFuture, ResolveSettings, ResolvedAddress, RoundRobin,
};
use tidegate_grpc_channel::Channel;
use tokio::sync::mpsc::Sender;
use tokio::task::{JoinHandle, JoinSet};
use tonic::body::Body;
use tonic::transport::Endpoint;
use tonic::transport::channel::Change;
use tower::{Service, ServiceExt as _};

/// Interval of keep-alive pings of both channels, which detect a stopped server. `TIDEGATE_PING_MS` changes it.
fn ping() -> Duration {
    let given = std::env::var("TIDEGATE_PING_MS").ok().and_then(|millis| millis.parse().ok());
    Duration::from_millis(given.unwrap_or(100))
}

/// Time limit of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
const TASKS: usize = 32;

/// A service config with one retry, on another backend.
const RETRY: &str = r#"{"loadBalancingConfig":[{"round_robin":{}}],"methodConfig":[{"name":[{}],"retryPolicy":{
    "maxAttempts":2,"initialBackoff":"0.001s","maxBackoff":"0.001s","backoffMultiplier":1,
    "retryableStatusCodes":["UNAVAILABLE"]}}]}"#;

/// The measured channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Ours,
    /// The channel without the retry, which tonic does not have.
    OursOnce,
    Tonic,
}

impl Peer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "tidegate-grpc-channel, one retry",
            Self::OursOnce => "tidegate-grpc-channel, no retry",
            Self::Tonic => "tonic balance_channel",
        }
    }
}

/// A channel to a set of servers that the benchmark changes.
pub(crate) enum Client {
    Ours(Channel, TestResolver, JoinHandle<()>),
    Tonic(tonic::transport::Channel, Sender<Change<SocketAddr, Endpoint>>),
}

/// A resolver whose answer the benchmark changes.
#[derive(Clone, Default)]
pub(crate) struct TestResolver(Arc<Mutex<Vec<SocketAddr>>>);

impl Resolve for TestResolver {
    fn resolve(&mut self) -> ResolveFuture<'_> {
        let addresses = self.0.lock().expect("not poisoned").clone();
        let addresses =
            addresses.into_iter().map(|address| ResolvedAddress::new(EndpointAddress::Socket(address))).collect();
        Box::pin(async move { Ok(Resolution { addresses, ttl: None }) })
    }
}

impl Client {
    pub(crate) async fn new(peer: Peer, addresses: &[SocketAddr]) -> Self {
        if peer == Peer::Tonic {
            let (channel, changes) = tonic::transport::Channel::balance_channel(1024);
            let client = Self::Tonic(channel, changes);
            client.change(&[], addresses).await;
            return client;
        }
        let resolver = TestResolver(Arc::new(Mutex::new(addresses.to_vec())));
        let (answers, interval) = (resolver.clone(), Duration::from_millis(20));
        let settings =
            ResolveSettings { interval_min: interval, interval, interval_max: interval, ..ResolveSettings::default() };
        let builder = Channel::builder("orders").policy(RoundRobin).keep_alive(ping(), ping()).resolve(settings);
        let builder = if peer == Peer::Ours { builder.service_config(RETRY) } else { builder };
        let builder = builder.resolver(Box::new(move || Ok(Box::new(answers.clone()))));
        let (channel, driver) = builder.build().expect("valid options");
        Self::Ours(channel, resolver, tokio::spawn(driver.run()))
    }

    /// Removes servers and adds others.
    pub(crate) async fn change(&self, gone: &[SocketAddr], new: &[SocketAddr]) {
        match self {
            Self::Ours(_, resolver, _) => {
                let mut addresses = resolver.0.lock().expect("not poisoned");
                addresses.retain(|address| !gone.contains(address));
                addresses.extend(new);
            }
            Self::Tonic(_, changes) => {
                for address in new {
                    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a URI");
                    let endpoint = endpoint.http2_keep_alive_interval(ping()).keep_alive_timeout(ping());
                    let endpoint = endpoint.keep_alive_while_idle(true).tcp_nodelay(true);
                    let _ = changes.send(Change::Insert(*address, endpoint)).await;
                }
                for address in gone {
                    let _ = changes.send(Change::Remove(*address)).await;
                }
            }
        }
    }

    /// Calls until `stop` is set.
    pub(crate) fn load(&self, stop: &Arc<AtomicBool>) -> JoinSet<Calls> {
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let stop = Arc::clone(stop);
            match self {
                Self::Ours(channel, ..) => drop(tasks.spawn(run(channel.clone(), stop))),
                Self::Tonic(channel, _) => drop(tasks.spawn(run(channel.clone(), stop))),
            }
        }
        tasks
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Self::Ours(_, _, driver) = self {
            driver.abort();
        }
    }
}

/// Results of the calls of a task.
#[derive(Default)]
pub(crate) struct Calls {
    pub(crate) good_us: Vec<f64>,
    /// Number of failed calls, by error.
    pub(crate) failed: BTreeMap<String, usize>,
}

async fn run<S, B>(mut channel: S, stop: Arc<AtomicBool>) -> Calls
where
    S: Service<http::Request<Body>, Response = http::Response<B>>,
    S::Error: std::fmt::Debug,
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let mut calls = Calls::default();
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        match tokio::time::timeout(CALL_TIMEOUT, call(&mut channel)).await {
            Ok(Ok(())) => calls.good_us.push(start.elapsed().as_secs_f64() * 1e6),
            Ok(Err(error)) => *calls.failed.entry(error).or_default() += 1,
            Err(_) => *calls.failed.entry(format!("no answer within {CALL_TIMEOUT:?}")).or_default() += 1,
        }
    }
    calls
}

/// A null unary call.
async fn call<S, B>(channel: &mut S) -> Result<(), String>
where
    S: Service<http::Request<Body>, Response = http::Response<B>>,
    S::Error: std::fmt::Debug,
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let message = http_body_util::Full::new(Bytes::from_static(&[0; 5]));
    let request = http::Request::post("http://orders/bench.Null/Call");
    let request = request.header("te", "trailers").header("content-type", "application/grpc");
    let request = request.body(Body::new(message)).expect("a request");
    let channel = channel.ready().await.map_err(|error| describe("ready", &error))?;
    let response = channel.call(request).await.map_err(|error| describe("call", &error))?;
    let answer = response.into_body().collect().await.map_err(|error| describe("answer", &error))?;
    let status = answer.trailers().and_then(|trailers| trailers.get("grpc-status"));
    if status.is_some_and(|status| status == "0") { Ok(()) } else { Err(format!("status {status:?}")) }
}

/// The text of an error, without numbers, which differ between calls.
fn describe(stage: &str, error: &impl std::fmt::Debug) -> String {
    let text: String = format!("{error:?}").chars().filter(|c| !c.is_ascii_digit()).take(160).collect();
    format!("{stage}: {text}")
}
