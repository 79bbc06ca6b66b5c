//! A gRPC server over hyper whose responses and failures the test controls.

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
use tidegate_balance::{Backoff, ConnectivityState};
use tidegate_grpc_channel::{Backend, Channel, ChannelBuilder};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::body::Body;
use tower::{Service as _, ServiceExt as _};

/// A test server.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    state: Arc<ServerState>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct ServerState {
    calls: AtomicUsize,
    accepted: AtomicUsize,
    open: AtomicUsize,
    /// Ends the wait of `/t/Hold` calls and of `/t/Stream` responses.
    release: Notify,
    /// Number of waiting calls.
    held: AtomicUsize,
    command: watch::Sender<ServerCommand>,
    /// Reads and writes are discarded.
    blackhole: Arc<AtomicBool>,
    serving: Mutex<Vec<JoinHandle<()>>>,
}

/// Command to all connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ServerCommand {
    #[default]
    Serve,
    /// Send GOAWAY, and end after the calls.
    Drain,
}

impl TestServer {
    pub(crate) async fn start() -> Self {
        Self::at("127.0.0.1:0".parse().unwrap()).await
    }

    /// Starts at an address that a previous server used.
    pub(crate) async fn at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.expect("the address is free");
        let address = listener.local_addr().unwrap();
        let state = Arc::new(ServerState::default());
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

    /// Sends GOAWAY on all connections, which end after their calls, and accepts no more.
    pub(crate) fn drain(&self) {
        self.accepting.abort();
        self.state.command.send_replace(ServerCommand::Drain);
    }

    /// Sends GOAWAY on all connections, and accepts new ones.
    pub(crate) fn send_goaway(&self) {
        self.state.command.send_replace(ServerCommand::Drain);
        self.state.command.send_replace(ServerCommand::Serve);
    }

    /// Closes all sockets, like the end of a process.
    pub(crate) fn kill(&self) {
        self.accepting.abort();
        let serving: Vec<_> = self.state.serving.lock().expect("not poisoned").drain(..).collect();
        serving.iter().for_each(JoinHandle::abort);
    }

    /// Stops answering, without closing sockets.
    pub(crate) fn blackhole(&self) {
        self.state.blackhole.store(true, Ordering::SeqCst);
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn accept(listener: TcpListener, state: Arc<ServerState>) {
    while let Ok((stream, _)) = listener.accept().await {
        state.accepted.fetch_add(1, Ordering::SeqCst);
        let serving = tokio::spawn(serve(stream, Arc::clone(&state)));
        state.serving.lock().expect("not poisoned").push(serving);
    }
}

/// Counts an open connection until it is dropped.
struct OpenConnection(Arc<ServerState>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn serve(stream: TcpStream, state: Arc<ServerState>) {
    state.open.fetch_add(1, Ordering::SeqCst);
    let _open = OpenConnection(Arc::clone(&state));
    let mut command = state.command.subscribe();
    let io = TokioIo::new(BlackholeStream { stream, blackhole: Arc::clone(&state.blackhole) });
    let service = service_fn(move |request| respond(Arc::clone(&state), request));
    let builder = http2::Builder::new(TokioExecutor::new());
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    tokio::select! {
        _ = connection.as_mut() => (),
        _ = command.changed() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

async fn respond(
    state: Arc<ServerState>,
    request: http::Request<Incoming>,
) -> Result<http::Response<Body>, Infallible> {
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
    if let Some(bytes) = path.strip_prefix("/t/Head") {
        let body = Body::new(EchoBody::new(&sent, None));
        return Ok(head(None, None).header("x-long", long(bytes)).body(body).expect("a response"));
    }
    if let Some(bytes) = path.strip_prefix("/t/Trailers") {
        let body = Body::new(EchoBody::new(&sent, None).with_trailer(long(bytes)));
        return Ok(head(None, None).body(body).expect("a response"));
    }
    if path.starts_with("/t/NoMore") {
        return Ok(head(Some("14"), Some("-1")).body(Body::empty()).expect("a response"));
    }
    if path == "/t/Timeout" {
        let timeout = timeout.unwrap_or_default();
        return Ok(head(None, None).body(Body::new(EchoBody::new(&timeout, None))).expect("a response"));
    }
    if path == "/t/Hold" {
        hold(Arc::clone(&state)).await;
    }
    let held = (path == "/t/Stream").then(|| Box::pin(hold(state)) as HoldFuture);
    Ok(head(None, None).body(Body::new(EchoBody::new(&sent, held))).expect("a response"))
}

type HoldFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

async fn hold(state: Arc<ServerState>) {
    let released = state.release.notified();
    state.held.fetch_add(1, Ordering::SeqCst);
    released.await;
    state.held.fetch_sub(1, Ordering::SeqCst);
}

fn head(status: Option<&str>, pushback: Option<&str>) -> http::response::Builder {
    let builder = http::Response::builder().header("content-type", "application/grpc");
    let builder = status.into_iter().fold(builder, |builder, status| builder.header("grpc-status", status));
    pushback.into_iter().fold(builder, |builder, delay| builder.header("grpc-retry-pushback-ms", delay))
}

/// A header value of this length.
fn long(bytes: &str) -> http::HeaderValue {
    let value = "x".repeat(bytes.parse().expect("a number"));
    http::HeaderValue::from_str(&value).expect("a value")
}

/// The request body and OK trailers, after the hold.
struct EchoBody {
    frames: Vec<Frame<Bytes>>,
    held: Option<HoldFuture>,
}

impl EchoBody {
    fn new(sent: &Bytes, held: Option<HoldFuture>) -> Self {
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
        Self { frames: vec![Frame::trailers(trailers), Frame::data(sent.clone())], held }
    }
}

impl EchoBody {
    fn with_trailer(mut self, value: http::HeaderValue) -> Self {
        self.frames[0].trailers_mut().expect("trailers").insert("x-long", value);
        self
    }
}

impl http_body::Body for EchoBody {
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

/// A stream that can turn into a black hole.
struct BlackholeStream {
    stream: TcpStream,
    blackhole: Arc<AtomicBool>,
}

impl BlackholeStream {
    fn is_blackhole(&self) -> bool {
        self.blackhole.load(Ordering::SeqCst)
    }
}

impl AsyncRead for BlackholeStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        // Discards the bytes. There is no further wake-up.
        if self.is_blackhole() && buf.filled().len() > before {
            buf.set_filled(before);
            return Poll::Pending;
        }
        polled
    }
}

impl AsyncWrite for BlackholeStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        if self.is_blackhole() {
            Poll::Ready(Ok(bytes.len()))
        } else {
            Pin::new(&mut self.stream).poll_write(cx, bytes)
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A channel whose driver is aborted with the test.
pub(crate) struct DrivenChannel {
    pub(crate) channel: Channel,
    pub(crate) driver: JoinHandle<()>,
}

impl Drop for DrivenChannel {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

pub(crate) fn drive(builder: ChannelBuilder) -> DrivenChannel {
    let (channel, driver) = builder.seed(7).build().expect("valid options");
    DrivenChannel { channel, driver: tokio::spawn(driver.run()) }
}

pub(crate) fn target(servers: &[TestServer]) -> String {
    let list: Vec<String> = servers.iter().map(|server| server.address.to_string()).collect();
    format!("ipv4:{}", list.join(","))
}

pub(crate) async fn servers(count: usize) -> Vec<TestServer> {
    let mut list = Vec::new();
    for _ in 0..count {
        list.push(TestServer::start().await);
    }
    list
}

/// A backoff that a test can wait for.
pub(crate) fn short_backoff() -> Backoff {
    let (first, max) = (Duration::from_millis(20), Duration::from_millis(100));
    Backoff { first, max, ..Backoff::grpc() }
}

pub(crate) fn request(path: &str, body: &'static str) -> http::Request<Body> {
    let body = Body::new(http_body_util::Full::new(Bytes::from_static(body.as_bytes())));
    http::Request::post(path).body(body).expect("a request")
}

/// A unary call. Returns the response text or the status.
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

/// Waits for a condition, at most 20 s.
pub(crate) async fn until(mut condition: impl FnMut() -> bool) {
    let start = tokio::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "condition not reached");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits for a future, at most 20 s.
pub(crate) async fn within_20_s<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("the future is ready within 20 s")
}

/// Number of ready backends.
pub(crate) fn ready(channel: &Channel) -> usize {
    let status = channel.balancer().status();
    status.iter().filter(|status| status.state == ConnectivityState::Ready && !status.leaving).count()
}

pub(crate) fn in_flight(channel: &Channel) -> u32 {
    channel.balancer().status().iter().map(|status| status.in_flight).sum()
}

/// Number of connections of all backends.
pub(crate) fn connections(channel: &Channel) -> usize {
    let endpoints = channel.balancer().endpoints();
    endpoints.iter().map(|endpoint| Backend::connections(endpoint.value())).sum()
}
