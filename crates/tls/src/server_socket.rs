//! Sockets to Postgres servers on tokio, with the TLS that the settings of the server ask for.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use rustls::{ClientConfig, pki_types::ServerName};
use tidegate_config::{Host, ServerTls, SslMode, SslNegotiation};
use tidegate_link::kernel_path;
use tidegate_wire::startup;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::TlsConnector;

use crate::end_point;

/// A byte stream in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> ByteStream for S {}

/// A socket before the login.
pub struct ServerSocket {
    /// The bytes of the protocol, encrypted below if TLS was agreed.
    pub stream: Box<dyn ByteStream>,
    /// The hash of the server's certificate for channel binding ([`end_point`]); `None` without TLS.
    pub end_point: Option<Vec<u8>>,
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum ServerSocketError {
    /// The server could not be reached, or the connection broke.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// TLS failed, or the server does not support it.
    #[error("{0}")]
    Tls(String),
}

impl ServerSocket {
    /// Opens a socket to a host, by TCP to the first of its addresses that accepts. `tls` is from [`crate::for_servers`].
    ///
    /// # Errors
    /// The host cannot be reached, or TLS fails.
    ///
    /// # Cancel safety
    /// Cancel-safe: the socket is closed.
    pub async fn open(
        host: &Host,
        tls: Option<&Arc<ClientConfig>>,
        settings: &ServerTls,
    ) -> Result<Self, ServerSocketError> {
        Self::open_with(host, tls, settings, |socket| socket).await
    }

    /// Opens a socket like [`open`](Self::open), with a layer of the caller between TCP and TLS.
    ///
    /// # Errors
    /// The host cannot be reached, or TLS fails.
    ///
    /// # Cancel safety
    /// Cancel-safe: the socket is closed.
    pub async fn open_with<S: ByteStream + 'static>(
        host: &Host,
        tls: Option<&Arc<ClientConfig>>,
        settings: &ServerTls,
        layer: impl FnOnce(TcpStream) -> S,
    ) -> Result<Self, ServerSocketError> {
        let (name, port) = match host {
            Host::Unix { .. } => {
                let path = host.socket_path().unwrap_or_default();
                return Ok(Self::plain(UnixStream::connect(kernel_path(&path)).await?));
            }
            Host::Tcp { name, port } => (name.as_str(), *port),
        };
        Self::secured(TcpStream::connect((name, port)).await?, name, tls, settings, layer).await
    }

    /// Opens a socket to one address of the host `name`, which is also the name in the server's certificate.
    ///
    /// # Errors
    /// The address cannot be reached, or TLS fails.
    ///
    /// # Cancel safety
    /// Cancel-safe: the socket is closed.
    pub async fn open_at(
        address: SocketAddr,
        name: &str,
        tls: Option<&Arc<ClientConfig>>,
        settings: &ServerTls,
    ) -> Result<Self, ServerSocketError> {
        Self::secured(TcpStream::connect(address).await?, name, tls, settings, |socket| socket).await
    }

    fn plain(stream: impl ByteStream + 'static) -> Self {
        Self { stream: Box::new(stream), end_point: None }
    }

    async fn secured<S: ByteStream + 'static>(
        mut socket: TcpStream,
        name: &str,
        tls: Option<&Arc<ClientConfig>>,
        settings: &ServerTls,
        layer: impl FnOnce(TcpStream) -> S,
    ) -> Result<Self, ServerSocketError> {
        socket.set_nodelay(true)?;
        let Some(tls) = tls.filter(|_| settings.mode != SslMode::Allow) else {
            return Ok(Self::plain(layer(socket)));
        };
        if settings.negotiation == SslNegotiation::Postgres && !accepts_tls(&mut socket).await? {
            if settings.mode == SslMode::Prefer {
                return Ok(Self::plain(layer(socket)));
            }
            return Err(ServerSocketError::Tls(format!(
                "the server does not support TLS, and sslmode is {}",
                settings.mode
            )));
        }
        let server = match name.parse::<IpAddr>() {
            Ok(address) => ServerName::from(address),
            Err(_) => {
                ServerName::try_from(name.to_owned()).map_err(|error| ServerSocketError::Tls(error.to_string()))?
            }
        };
        let socket = TlsConnector::from(Arc::clone(tls)).connect(server, layer(socket)).await;
        let socket = socket.map_err(|error| ServerSocketError::Tls(error.to_string()))?;
        let (_, session) = socket.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        let end_point = certificate.and_then(|certificate| end_point(certificate));
        Ok(Self { stream: Box::new(socket), end_point })
    }
}

/// Sends SSLRequest. Returns whether the server accepts. Reads one byte, so that bytes sent before encryption are never
/// taken for encrypted ones (CVE-2021-23222).
async fn accepts_tls(socket: &mut TcpStream) -> io::Result<bool> {
    let mut request = Vec::new();
    startup::ssl_request(&mut request);
    socket.write_all(&request).await?;
    Ok(socket.read_u8().await? == b'S')
}
