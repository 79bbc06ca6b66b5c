//! Opens a connection: TCP or a socket in the file system, TLS, and the preface of HTTP/2.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http2::{self, Connection, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::line::{Line, Stop};
use super::replay::Attempt;
use crate::address::Address;
use crate::caught::caught;

/// Any stream of bytes.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

pub(super) type BoxedStream = Box<dyn Stream>;
type Opening = Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + Send>>;
pub(super) type Opener = Arc<dyn Fn(Address) -> Opening + Send + Sync>;

pub(super) type Sender = SendRequest<Attempt>;
pub(super) type Running = Connection<TokioIo<Line<BoxedStream>>, Attempt, TokioExecutor>;

pub(super) struct Connect {
    pub(super) opener: Option<Opener>,
    pub(super) http2: Http2,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<(Arc<tokio_rustls::rustls::ClientConfig>, String)>,
}

/// Times of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Http2 {
    pub(super) connect_within: Duration,
    pub(super) keep_alive: Option<(Duration, Duration)>,
}

impl Default for Http2 {
    fn default() -> Self {
        Self { connect_within: Duration::from_secs(20), keep_alive: None }
    }
}

pub(super) fn boxed<F, R, S>(open: F) -> Opener
where
    F: Fn(Address) -> R + Send + Sync + 'static,
    R: Future<Output = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    Arc::new(move |address| {
        let opening = open(address);
        Box::pin(async { opening.await.map(|stream| Box::new(stream) as BoxedStream) })
    })
}

impl Connect {
    /// A connection that is ready for requests, and the future that runs it.
    pub(super) async fn connect(&self, address: Address, stop: Arc<Stop>) -> io::Result<(Sender, Running)> {
        let within = self.http2.connect_within;
        let connecting = async {
            let (sender, mut running) = self.try_connect(address, Arc::clone(&stop)).await?;
            tokio::select! {
                () = stop.spoke() => Ok((sender, running)),
                ended = &mut running => Err(match ended {
                    Ok(()) => io::Error::other("the server ended the connection before it said anything"),
                    Err(error) => io::Error::other(error),
                }),
            }
        };
        let connected = tokio::time::timeout(within, connecting).await;
        connected.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, format!("not within {within:?}"))))
    }

    async fn try_connect(&self, address: Address, stop: Arc<Stop>) -> io::Result<(Sender, Running)> {
        let stream = match &self.opener {
            Some(open) => {
                caught(|| open(address)).await.unwrap_or_else(|| Err(io::Error::other("the connector panicked")))?
            }
            None => open(address).await?,
        };
        let stream = self.secure(stream).await?;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).adaptive_window(true);
        if let Some((interval, timeout)) = self.http2.keep_alive {
            builder.keep_alive_interval(interval).keep_alive_timeout(timeout).keep_alive_while_idle(true);
        }
        builder.handshake(TokioIo::new(Line::new(stream, stop))).await.map_err(io::Error::other)
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
        Err(io::Error::other("the server does not speak HTTP/2 over TLS (ALPN h2)"))
    }

    #[cfg(not(feature = "tls"))]
    async fn secure(&self, stream: BoxedStream) -> io::Result<BoxedStream> {
        Ok(stream)
    }
}

async fn open(address: Address) -> io::Result<BoxedStream> {
    match address {
        Address::Socket(address) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }
        Address::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
    }
}
