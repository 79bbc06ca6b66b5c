//! Opens a connection: TCP or a Unix socket, TLS, and the HTTP/2 preface.

use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use hyper::client::conn::http2::{self, Connection, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidegate_balance::EndpointAddress;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::controlled_stream::{ControlledStream, StreamControl};
use crate::replay_body::AttemptBody;

/// Any byte stream.
pub(crate) trait IoStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> IoStream for S {}

pub(crate) type BoxedStream = Box<dyn IoStream>;
type ConnectFuture = Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + Send>>;
pub(crate) type ConnectFn = Arc<dyn Fn(EndpointAddress) -> ConnectFuture + Send + Sync>;

pub(crate) type RequestSender = SendRequest<AttemptBody>;
pub(crate) type Http2Connection = Connection<TokioIo<ControlledStream<BoxedStream>>, AttemptBody, TokioExecutor>;

pub(crate) struct ChannelConnector {
    pub(crate) connect_fn: Option<ConnectFn>,
    pub(crate) settings: ConnectionSettings,
    /// The configuration and the name to verify.
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<(Arc<tokio_rustls::rustls::ClientConfig>, String)>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionSettings {
    pub(crate) connect_timeout: Duration,
    /// Limit of the head and of the trailers of a response, as HTTP/2 counts them.
    pub(crate) response_head_bytes_max: u32,
    /// Interval of pings, and timeout of their answer.
    pub(crate) keep_alive: Option<(Duration, Duration)>,
}

impl Default for ConnectionSettings {
    fn default() -> Self {
        Self { connect_timeout: Duration::from_secs(20), response_head_bytes_max: 16 << 10, keep_alive: None }
    }
}

pub(crate) fn boxed<F, R, S>(connect: F) -> ConnectFn
where
    F: Fn(EndpointAddress) -> R + Send + Sync + 'static,
    R: Future<Output = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    Arc::new(move |address| {
        let connecting = connect(address);
        Box::pin(async { connecting.await.map(|stream| Box::new(stream) as BoxedStream) })
    })
}

impl ChannelConnector {
    /// Returns a connection that is ready for requests, and the future that runs it.
    pub(crate) async fn connect(
        &self,
        address: EndpointAddress,
        control: Arc<StreamControl>,
    ) -> io::Result<(RequestSender, Http2Connection)> {
        let timeout = self.settings.connect_timeout;
        let connecting = async {
            let (sender, mut connection) = self.handshake(address, Arc::clone(&control)).await?;
            // The operating system also accepts connections for a process that hangs.
            tokio::select! {
                () = control.first_bytes() => Ok((sender, connection)),
                ended = &mut connection => Err(match ended {
                    Ok(()) => io::Error::other("the server closed the connection before its first bytes"),
                    Err(error) => io::Error::other(error),
                }),
            }
        };
        let connected = tokio::time::timeout(timeout, connecting).await;
        let late = || io::Error::new(io::ErrorKind::TimedOut, format!("not connected within {timeout:?}"));
        connected.unwrap_or_else(|_| Err(late()))
    }

    async fn handshake(
        &self,
        address: EndpointAddress,
        control: Arc<StreamControl>,
    ) -> io::Result<(RequestSender, Http2Connection)> {
        let stream = match &self.connect_fn {
            Some(connect) => {
                // The call itself can panic, so it happens in the first poll.
                let connecting = AssertUnwindSafe(async { connect(address).await }).catch_unwind();
                connecting.await.unwrap_or_else(|_| Err(io::Error::other("the connector panicked")))?
            }
            None => open(address).await?,
        };
        let stream = self.secure(stream).await?;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).adaptive_window(true);
        builder.max_header_list_size(self.settings.response_head_bytes_max);
        if let Some((interval, timeout)) = self.settings.keep_alive {
            builder.keep_alive_interval(interval).keep_alive_timeout(timeout).keep_alive_while_idle(true);
        }
        let stream = TokioIo::new(ControlledStream::new(stream, control));
        builder.handshake(stream).await.map_err(io::Error::other)
    }

    #[cfg(feature = "tls")]
    async fn secure(&self, stream: BoxedStream) -> io::Result<BoxedStream> {
        let Some((config, host)) = &self.tls else { return Ok(stream) };
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = tokio_rustls::rustls::pki_types::ServerName::try_from(bare).map_err(io::Error::other)?;
        let stream = tokio_rustls::TlsConnector::from(Arc::clone(config)).connect(name, stream).await?;
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            return Ok(Box::new(stream));
        }
        Err(io::Error::other("the server does not support HTTP/2 over TLS (ALPN h2)"))
    }

    #[cfg(not(feature = "tls"))]
    async fn secure(&self, stream: BoxedStream) -> io::Result<BoxedStream> {
        Ok(stream)
    }
}

async fn open(address: EndpointAddress) -> io::Result<BoxedStream> {
    match address {
        EndpointAddress::Socket(address) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }
        EndpointAddress::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
    }
}
