//! Sockets, and TLS on them.

use std::{net::IpAddr, sync::Arc};

use rustls::{ClientConfig, pki_types::ServerName};
use tidegate_config::{Host, SslMode, SslNegotiation};
use tidegate_link::kernel_path;
use tidegate_wire::startup;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::TlsConnector;

use super::{ClientError, ConnectOptions, paced::PacedSocket};

/// A byte stream in both directions.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> Socket for S {}

pub(super) struct OpenedSocket {
    pub(super) socket: Box<dyn Socket>,
    /// Hash of the server's certificate, for channel binding.
    pub(super) end_point: Option<Vec<u8>>,
}

pub(super) async fn open(options: &ConnectOptions, host: &Host) -> Result<OpenedSocket, ClientError> {
    let failed = |source| ClientError::Io { address: host.to_string(), source };
    let name = match host {
        Host::Unix { .. } => {
            let path = host.socket_path().unwrap_or_default();
            let socket = UnixStream::connect(kernel_path(&path)).await.map_err(failed)?;
            return Ok(OpenedSocket { socket: Box::new(socket), end_point: None });
        }
        Host::Tcp { name, port } => (name.as_str(), *port),
    };
    let mut socket = TcpStream::connect(name).await.map_err(failed)?;
    socket.set_nodelay(true).map_err(failed)?;
    let tls = tidegate_tls::for_servers(&options.tls).map_err(|error| ClientError::Option(error.to_string()))?;
    let mode = options.tls.mode;
    let Some(config) = tls.filter(|_| mode != SslMode::Allow) else {
        return Ok(OpenedSocket { socket: Box::new(PacedSocket::new(socket)), end_point: None });
    };
    if options.tls.negotiation == SslNegotiation::Postgres && !request_tls(&mut socket).await.map_err(failed)? {
        if mode == SslMode::Prefer {
            return Ok(OpenedSocket { socket: Box::new(PacedSocket::new(socket)), end_point: None });
        }
        let reason = format!("the server does not support TLS, and sslmode is {mode}");
        return Err(ClientError::Tls { address: host.to_string(), reason });
    }
    encrypt(socket, config, name.0, host).await
}

async fn encrypt(
    socket: TcpStream,
    config: Arc<ClientConfig>,
    name: &str,
    host: &Host,
) -> Result<OpenedSocket, ClientError> {
    let failed = |reason: String| ClientError::Tls { address: host.to_string(), reason };
    let server = match name.parse::<IpAddr>() {
        Ok(address) => ServerName::from(address),
        Err(_) => ServerName::try_from(name.to_owned()).map_err(|error| failed(error.to_string()))?,
    };
    let socket = TlsConnector::from(config).connect(server, PacedSocket::new(socket)).await;
    let socket = socket.map_err(|error| failed(error.to_string()))?;
    let (_, session) = socket.get_ref();
    let certificate = session.peer_certificates().and_then(<[_]>::first);
    let end_point = certificate.and_then(|own| tidegate_tls::end_point(own));
    Ok(OpenedSocket { socket: Box::new(socket), end_point })
}

/// Sends SSLRequest. Returns whether the server accepts. Reads one byte, so that bytes sent before encryption are never
/// taken for encrypted ones (CVE-2021-23222).
async fn request_tls(socket: &mut TcpStream) -> std::io::Result<bool> {
    let mut request = Vec::new();
    startup::ssl_request(&mut request);
    socket.write_all(&request).await?;
    Ok(socket.read_u8().await? == b'S')
}
