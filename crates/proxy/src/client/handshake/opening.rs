//! Connection setup up to the startup packet: TLS, GSS, protocol version.

use tidegate_link::{Chunk, PeerAddress, TlsInfo, TlsSide};
use tidegate_wire::{
    DecodeErrorKind,
    backend::ErrorReply,
    sqlstate,
    startup::{self, FirstPacket as StartupPacket},
};

use super::{
    Arriving, LoginError,
    packet::{Request, read_startup},
};
use tidegate_config::ClientTls;
use tidegate_tls as tls;

use crate::error::Cause;

/// The newest supported minor protocol version.
const MINOR_MAX: u16 = 2;

/// The first packet after requests for encryption.
pub(super) enum Requested {
    Startup(Request),
    Cancel { pid: u32, key: Box<[u8]> },
}

impl Arriving {
    /// Reads up to the startup packet, through TLS if the client requests it.
    pub(super) async fn first_packet(&mut self) -> Result<Requested, LoginError> {
        self.fill(1).await?;
        if self.bytes.first() == Some(&startup::TLS_RECORD) {
            Box::pin(self.direct_tls()).await?;
        }
        loop {
            self.fill(4).await?;
            let Some(len) = startup::peek_len(&self.bytes).map_err(LoginError::Length)? else {
                return Err(LoginError::Gone);
            };
            self.fill(len).await?;
            let packet: Vec<u8> = self.bytes.drain(..len).collect();
            match decode_first(&packet)? {
                StartupPacket::Ssl => Box::pin(self.answer_ssl()).await?,
                StartupPacket::Gss => {
                    self.nothing_early()?;
                    self.link.write(&b"N"[..]);
                    self.link.flush().await?;
                }
                StartupPacket::Cancel { pid, key } => return Ok(Requested::Cancel { pid, key: key.into() }),
                StartupPacket::Startup(startup) => {
                    self.require_tls()?;
                    let setup = self.worker.gateway.config.setup();
                    let listen = &setup.config.listen;
                    let mut request = read_startup(&startup, &listen.ignore_startup_parameters, listen.dialect)
                        .map_err(LoginError::Refused)?;
                    if listen.application_name_add_host {
                        request.add_peer_to_application(self.peer);
                    }
                    return Ok(Requested::Startup(request));
                }
            }
        }
    }

    /// Receives until `count` bytes are buffered.
    async fn fill(&mut self, count: usize) -> Result<(), LoginError> {
        while self.bytes.len() < count {
            let chunk = self.link.read().await?;
            if chunk.is_empty() {
                return Err(LoginError::Gone);
            }
            self.bytes.extend_from_slice(&chunk);
        }
        Ok(())
    }

    /// Plain bytes after a request for encryption may be injected by an attacker (CVE-2021-23214).
    fn nothing_early(&self) -> Result<(), LoginError> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        Err(LoginError::Refused(
            ErrorReply::protocol("received unencrypted data after SSL request")
                .hint("This may be a faulty client, or a man-in-the-middle attack."),
        ))
    }

    async fn answer_ssl(&mut self) -> Result<(), LoginError> {
        self.nothing_early()?;
        let acceptor = self.worker.gateway.config.setup().client_tls.clone();
        let Some(acceptor) = acceptor.filter(|_| !self.link.is_tls() && matches!(self.peer, PeerAddress::Tcp(_)))
        else {
            self.link.write(&b"N"[..]);
            return Ok(self.link.flush().await?);
        };
        self.await_turn().await?;
        self.link.write(&b"S"[..]);
        self.link.flush().await?;
        self.start_tls(&acceptor, Chunk::empty()).await?;
        Ok(())
    }

    async fn start_tls(&mut self, acceptor: &tls::TlsAcceptor, early: Chunk) -> Result<TlsInfo, LoginError> {
        self.link.start_tls(&self.worker.reactor, TlsSide::Server(acceptor.config.clone()), early)?;
        let info = self.link.handshake().await?;
        let is_offered = self.worker.gateway.config.setup().config.auth.channel_binding;
        self.end_point = acceptor.end_point.clone().filter(|_| is_offered);
        Ok(info)
    }

    async fn direct_tls(&mut self) -> Result<(), LoginError> {
        let Some(acceptor) = self.worker.gateway.config.setup().client_tls.clone() else {
            return Err(LoginError::Gone);
        };
        self.await_turn().await?;
        let early = std::mem::take(&mut self.bytes);
        let info = self.start_tls(&acceptor, early.into()).await?;
        if info.alpn.as_deref() != Some(tls::ALPN) {
            // The ALPN check prevents cross-protocol requests from web pages.
            return Err(LoginError::Refused(ErrorReply::protocol(
                "received direct SSL connection request without ALPN protocol negotiation extension",
            )));
        }
        Ok(())
    }

    fn require_tls(&self) -> Result<(), LoginError> {
        let required = self.worker.gateway.config.setup().config.listen.tls == ClientTls::Require;
        if required && !self.link.is_tls() && matches!(self.peer, PeerAddress::Tcp(_)) {
            return Err(self.cause(Cause::TlsRequired));
        }
        Ok(())
    }

    /// Replies to an unsupported protocol version or option with the supported ones.
    pub(super) fn negotiate(&mut self, request: &Request) {
        if request.minor <= MINOR_MAX && request.unknown.is_empty() {
            return;
        }
        let unknown: Vec<&[u8]> = request.unknown.iter().map(Vec::as_slice).collect();
        let mut out = Vec::new();
        startup::negotiate_protocol_version(request.minor.min(MINOR_MAX), &unknown, &mut out);
        self.link.write(out);
    }
}

/// Decodes a startup packet; an unsupported protocol gets the error of Postgres. A cancel request never gets a reply, even if
/// it is invalid.
fn decode_first(packet: &[u8]) -> Result<StartupPacket<'_>, LoginError> {
    const CANCEL_CODE: [u8; 4] = 80_877_102_u32.to_be_bytes();
    StartupPacket::decode(packet).map_err(|error| match error.kind {
        _ if packet.get(4..8) == Some(&CANCEL_CODE) => LoginError::Gone,
        DecodeErrorKind::Version { major, minor } => LoginError::Refused(ErrorReply::new(
            sqlstate::FEATURE_NOT_SUPPORTED,
            format!("unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.{MINOR_MAX}"),
        )),
        _ => LoginError::Decode(error),
    })
}
