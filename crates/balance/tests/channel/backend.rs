//! A gRPC server of the tests' own, over hyper: its answers, its end and its silence are the test's to choose.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_balance::{Channel, ChannelBuilder, Node};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::body::Body;
use tower::{Service as _, ServiceExt as _};

/// What a server does, and what was done to it.
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    calls: AtomicUsize,
    accepted: AtomicUsize,
    open: AtomicUsize,
    /// Calls of `/t/Hold` wait for it, and answers of `/t/Stream` that have begun.
    release: Notify,
    /// Calls that wait.
    held: AtomicUsize,
    orders: watch::Sender<Order>,
    /// Nothing is read or written any more.
    silent: Arc<AtomicBool>,
    serving: Mutex<Vec<JoinHandle<()>>>,
}

/// What connections are to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Order {
    #[default]
    Serve,
    /// Say GOAWAY, and finish.
    Drain,
}

impl Backend {
    pub(crate) async fn start() -> Self {
        Self::at("127.0.0.1:0".parse().unwrap()).await
    }

    /// At an address where one was before.
    pub(crate) async fn at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.expect("the address is free");
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let accepting = tokio::spawn(accept(listener, Arc::clone(&state)));
        Self { address, state, accepting }
    }

    pub(crate) fn calls(&self) -> usize {
        self.state.calls.load(Ordering::SeqCst)
    }

    pub(crate) fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::SeqCst)
    }

    pub(crate) fn open(&self) -> usize {
        self.state.open.load(Ordering::SeqCst)
    }

    pub(crate) fn held(&self) -> usize {
        self.state.held.load(Ordering::SeqCst)
    }

    pub(crate) fn release(&self) {
        self.state.release.notify_waiters();
    }

    /// All connections say GOAWAY and end after their calls; no new ones.
    pub(crate) fn drain(&self) {
        self.accepting.abort();
        self.state.orders.send_replace(Order::Drain);
    }

    /// All connections say GOAWAY; new ones are accepted.
    pub(crate) fn say_goaway(&self) {
        self.state.orders.send_replace(Order::Drain);
        self.state.orders.send_replace(Order::Serve);
    }

    /// The process is gone: its sockets are closed.
    pub(crate) fn kill(&self) {
        self.accepting.abort();
        let serving: Vec<_> = self.state.serving.lock().expect("not poisoned").drain(..).collect();
        serving.iter().for_each(JoinHandle::abort);
    }

    /// Nothing comes from it any more, and nobody says so.
    pub(crate) fn blackhole(&self) {
        self.state.silent.store(true, Ordering::SeqCst);
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        state.accepted.fetch_add(1, Ordering::SeqCst);
        let serving = tokio::spawn(serve(stream, Arc::clone(&state)));
        state.serving.lock().expect("not poisoned").push(serving);
    }
}

/// Counts an open connection, until it is dropped.
struct Open(Arc<State>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn serve(stream: TcpStream, state: Arc<State>) {
    state.open.fetch_add(1, Ordering::SeqCst);
    let _open = Open(Arc::clone(&state));
    let mut orders = state.orders.subscribe();
    let io = TokioIo::new(Silenced { stream, silent: Arc::clone(&state.silent) });
    let answering = service_fn(move |request| answer(Arc::clone(&state), request));
    let builder = http2::Builder::new(TokioExecutor::new());
    let mut connection = std::pin::pin!(builder.serve_connection(io, answering));
    tokio::select! {
        _ = connection.as_mut() => (),
        _ = orders.changed() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

async fn answer(state: Arc<State>, request: http::Request<Incoming>) -> Result<http::Response<Body>, Infallible> {
    state.calls.fetch_add(1, Ordering::SeqCst);
    let path = request.uri().path().to_owned();
    let attempts = request.headers().get("grpc-previous-rpc-attempts").cloned();
    let timeout = request.headers().get("grpc-timeout").map(|value| Bytes::copy_from_slice(value.as_bytes()));
    let sent = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    if let Some(code) = path.strip_prefix("/t/Status") {
        return Ok(head(Some(code), None).body(Body::empty()).expect("a response"));
    }
    if let Some(code) = path.strip_prefix("/t/FailOnce").filter(|_| attempts.is_none()) {
        return Ok(head(Some(code), None).body(Body::empty()).expect("a response"));
    }
    if path.starts_with("/t/NoMore") {
        return Ok(head(Some("14"), Some("-1")).body(Body::empty()).expect("a response"));
    }
    if path == "/t/Timeout" {
        let told = timeout.unwrap_or_default();
        return Ok(head(None, None).body(Body::new(Reply::new(&told, None))).expect("a response"));
    }
    if path == "/t/Hold" {
        hold(Arc::clone(&state)).await;
    }
    let held = (path == "/t/Stream").then(|| Box::pin(hold(state)) as Holding);
    Ok(head(None, None).body(Body::new(Reply::new(&sent, held))).expect("a response"))
}

type Holding = Pin<Box<dyn Future<Output = ()> + Send>>;

async fn hold(state: Arc<State>) {
    let released = state.release.notified();
    state.held.fetch_add(1, Ordering::SeqCst);
    released.await;
    state.held.fetch_sub(1, Ordering::SeqCst);
}

fn head(status: Option<&str>, pushback: Option<&str>) -> http::response::Builder {
    let builder = http::Response::builder().header("content-type", "application/grpc");
    let builder = status.into_iter().fold(builder, |builder, status| builder.header("grpc-status", status));
    pushback.into_iter().fold(builder, |builder, pause| builder.header("grpc-retry-pushback-ms", pause))
}

/// What was sent, and then the trailers of success; all of it once it is not held any more.
struct Reply {
    frames: Vec<Frame<Bytes>>,
    held: Option<Holding>,
}

impl Reply {
    fn new(sent: &Bytes, held: Option<Holding>) -> Self {
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
        Self { frames: vec![Frame::trailers(trailers), Frame::data(sent.clone())], held }
    }
}

impl http_body::Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(held) = &mut self.held {
            std::task::ready!(held.as_mut().poll(cx));
            self.held = None;
        }
        Poll::Ready(self.frames.pop().map(Ok))
    }
}

/// A stream that may fall silent.
struct Silenced {
    stream: TcpStream,
    silent: Arc<AtomicBool>,
}

impl Silenced {
    fn is_silent(&self) -> bool {
        self.silent.load(Ordering::SeqCst)
    }
}

impl AsyncRead for Silenced {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        // What was read is thrown away; nobody will ask again.
        if self.is_silent() && buf.filled().len() > before {
            buf.set_filled(before);
            return Poll::Pending;
        }
        polled
    }
}

impl AsyncWrite for Silenced {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        if self.is_silent() { Poll::Ready(Ok(bytes.len())) } else { Pin::new(&mut self.stream).poll_write(cx, bytes) }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A channel whose driver ends with the test.
pub(crate) struct Driven {
    pub(crate) channel: Channel,
    pub(crate) driving: JoinHandle<()>,
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.driving.abort();
    }
}

pub(crate) fn drive(builder: ChannelBuilder) -> Driven {
    let (channel, driver) = builder.seed(7).build().expect("the builder is right");
    Driven { channel, driving: tokio::spawn(driver.run()) }
}

pub(crate) fn target(backends: &[Backend]) -> String {
    let list: Vec<String> = backends.iter().map(|backend| backend.address.to_string()).collect();
    format!("ipv4:{}", list.join(","))
}

pub(crate) async fn backends(count: usize) -> Vec<Backend> {
    let mut list = Vec::new();
    for _ in 0..count {
        list.push(Backend::start().await);
    }
    list
}

/// Back-off that a test can wait for.
pub(crate) fn soon() -> tidegate_balance::Backoff {
    let (first, most) = (Duration::from_millis(20), Duration::from_millis(100));
    tidegate_balance::Backoff { first, most, ..Default::default() }
}

pub(crate) fn request(path: &str, body: &'static str) -> http::Request<Body> {
    let body = Body::new(http_body_util::Full::new(Bytes::from_static(body.as_bytes())));
    http::Request::post(path).body(body).expect("a request")
}

/// A unary call: what came back, or its status.
pub(crate) async fn call(channel: &Channel, path: &str) -> Result<String, Status> {
    let mut channel = channel.clone();
    let response = channel.ready().await?.call(request(path, "hello")).await?;
    if let Some(status) = Status::from_header_map(response.headers()).filter(|status| status.code() != tonic::Code::Ok)
    {
        return Err(status);
    }
    let collected = response.into_body().collect().await?;
    let trailers = collected.trailers().and_then(Status::from_header_map);
    assert_eq!(trailers.map(|status| status.code()), Some(tonic::Code::Ok));
    Ok(String::from_utf8(collected.to_bytes().into()).expect("text"))
}

/// Waits until something is so; a test that waits for ever is stopped by its runner.
pub(crate) async fn until(mut is_so: impl FnMut() -> bool) {
    let start = tokio::time::Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not come about");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits for what a test needs, and not for ever.
pub(crate) async fn soon_enough<F: Future>(doing: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), doing).await.expect("it does not come about")
}

/// How many backends are ready.
pub(crate) fn ready(channel: &Channel) -> usize {
    let status = channel.balancer().status();
    status.iter().filter(|status| status.state == tidegate_balance::State::Ready && !status.leaving).count()
}

pub(crate) fn in_flight(channel: &Channel) -> u32 {
    channel.balancer().status().iter().map(|status| status.in_flight).sum()
}

/// Connections of all backends of a channel.
pub(crate) fn connections(channel: &Channel) -> usize {
    let endpoints = channel.balancer().endpoints();
    endpoints.iter().map(|endpoint| Node::connections(endpoint.value())).sum()
}
