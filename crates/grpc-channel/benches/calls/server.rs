//! A gRPC server in its own process, which can be killed and stopped.

use std::convert::Infallible;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// A server process.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let program = std::env::current_exe().expect("the benchmark has a path");
        let mut child = Command::new(program)
            .arg("--serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the benchmark can start itself");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout is piped"))
            .read_line(&mut line)
            .expect("the server prints its address");
        let stdin = child.stdin.take();
        Self { address: line.trim().parse().expect("an address"), child, stdin }
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Makes the server send GOAWAY, finish its calls, and exit.
    pub(crate) fn drain(&mut self) {
        if let Some(mut stdin) = self.stdin.take() {
            let _ = stdin.write_all(b"drain\n");
        }
    }

    /// Stops the process with SIGSTOP.
    pub(crate) fn pause(&self) {
        let _ = Command::new("kill").args(["-STOP", &self.child.id().to_string()]).status();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Main function of the server process: serves until a line or the end of standard input.
pub(crate) fn serve() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime is built");
    let (drain, drained) = watch::channel(false);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        drain.send_replace(true);
    });
    runtime.block_on(accept(drained));
}

async fn accept(mut drained: watch::Receiver<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("{}", listener.local_addr().expect("the listener is bound"));
    let mut serving = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            _ = async { drained.wait_for(|drained| *drained).await.is_ok() } => break,
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let _ = stream.set_nodelay(true);
                let mut drained = drained.clone();
                serving.spawn(async move {
                    let builder = http2::Builder::new(TokioExecutor::new());
                    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service_fn(respond)));
                    tokio::select! {
                        _ = connection.as_mut() => (),
                        _ = async { drained.wait_for(|drained| *drained).await.is_ok() } => {
                            connection.as_mut().graceful_shutdown();
                            let _ = connection.await;
                        }
                    }
                });
            }
        }
    }
    drop(listener);
    while serving.join_next().await.is_some() {}
}

async fn respond(request: http::Request<Incoming>) -> Result<http::Response<NullBody>, Infallible> {
    // Read to its end: a server that drops unread requests resets their streams, and then sends GOAWAY.
    let _ = request.into_body().collect().await;
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let empty = Frame::data(Bytes::from_static(&[0; 5]));
    let mut response = http::Response::new(NullBody(vec![Frame::trailers(trailers), empty]));
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
    Ok(response)
}

/// An empty message and OK trailers.
pub(crate) struct NullBody(Vec<Frame<Bytes>>);

impl http_body::Body for NullBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop().map(Ok))
    }
}
