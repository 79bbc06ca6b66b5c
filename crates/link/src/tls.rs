//! TLS of a link, with rustls.

use std::{
    io::{self, Read, Write},
    sync::Arc,
};

use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection, pki_types::ServerName};

use crate::{buffer_pool::BufferPool, chunk::Chunk};

/// The TLS role of a link.
pub enum TlsSide {
    /// The peer has connected to this process.
    Server(Arc<ServerConfig>),
    /// This process has connected to the peer, which must prove this name if the configuration verifies names.
    Client(Arc<ClientConfig>, ServerName<'static>),
}

/// The negotiated parameters of TLS.
#[derive(Clone, Debug)]
pub struct TlsInfo {
    /// The version in the format of Postgres: `TLSv1.3`.
    pub version: &'static str,
    /// Name of the cipher suite.
    pub cipher: &'static str,
    /// Certificate chain of the peer in DER, end-entity certificate first.
    pub peer_certificates: Vec<Vec<u8>>,
    /// The protocol that ALPN selected.
    pub alpn: Option<Vec<u8>>,
}

/// A side of a TLS connection, without its socket.
pub(crate) struct Tls {
    connection: Connection,
    /// Received bytes that rustls has not consumed.
    ciphertext: Chunk,
    buffer_pool: BufferPool,
    ended: bool,
}

/// TLS state between two threads.
pub(crate) struct ParkedTls {
    connection: Connection,
    ciphertext: Vec<u8>,
    ended: bool,
}

impl Tls {
    pub(crate) fn new(buffer_pool: BufferPool, side: TlsSide) -> io::Result<Self> {
        let mut connection: Connection = match side {
            TlsSide::Server(config) => ServerConnection::new(config).map_err(io::Error::other)?.into(),
            TlsSide::Client(config, name) => ClientConnection::new(config, name).map_err(io::Error::other)?.into(),
        };
        // The link limits its queue; a second limit here would only split messages.
        connection.set_buffer_limit(None);
        Ok(Self { connection, ciphertext: Chunk::empty(), buffer_pool, ended: false })
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    pub(crate) fn has_ciphertext(&self) -> bool {
        !self.ciphertext.is_empty()
    }

    /// Stores received bytes. `has_ciphertext` must be false.
    pub(crate) fn receive(&mut self, ciphertext: Chunk) {
        self.ciphertext = ciphertext;
    }

    /// Passes received bytes to rustls.
    pub(crate) fn feed(&mut self) -> io::Result<()> {
        while !self.ciphertext.is_empty() && self.connection.wants_read() {
            let taken = self.connection.read_tls(&mut &self.ciphertext[..])?;
            if taken == 0 {
                break;
            }
            self.ciphertext.advance(taken);
            let state = self
                .connection
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            self.ended |= state.peer_has_closed();
            if state.plaintext_bytes_to_read() > 0 {
                break;
            }
        }
        if self.ciphertext.is_empty() {
            self.ciphertext = Chunk::empty();
        }
        Ok(())
    }

    /// Decrypted bytes; an empty chunk after close_notify.
    pub(crate) fn take_plaintext(&mut self) -> io::Result<Option<Chunk>> {
        let mut buffer = self.buffer_pool.take();
        match self.connection.reader().read(buffer.as_mut_slice()) {
            Ok(0) => Ok(Some(Chunk::empty())),
            Ok(read) => Ok(Some(Chunk::pooled(buffer, read))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(self.ended.then(Chunk::empty)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Some(Chunk::empty())),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn encrypt(&mut self, plaintext: &[u8]) {
        // Writing to the unlimited buffer of rustls cannot fail.
        let _ = self.connection.writer().write_all(plaintext);
    }

    pub(crate) fn take_ciphertext(&mut self) -> Option<Vec<u8>> {
        if !self.connection.wants_write() {
            return None;
        }
        let mut bytes = Vec::new();
        while self.connection.wants_write() {
            // Writing into a vector cannot fail.
            let _ = self.connection.write_tls(&mut bytes);
        }
        Some(bytes)
    }

    pub(crate) fn close(&mut self) {
        self.connection.send_close_notify();
    }

    pub(crate) fn info(&self) -> TlsInfo {
        use rustls::ProtocolVersion as V;
        TlsInfo {
            version: match self.connection.protocol_version() {
                Some(V::TLSv1_3) => "TLSv1.3",
                Some(V::TLSv1_2) => "TLSv1.2",
                _ => "unknown",
            },
            cipher: self.connection.negotiated_cipher_suite().and_then(|s| s.suite().as_str()).unwrap_or("unknown"),
            peer_certificates: self
                .connection
                .peer_certificates()
                .unwrap_or_default()
                .iter()
                .map(|certificate| certificate.to_vec())
                .collect(),
            alpn: self.connection.alpn_protocol().map(<[u8]>::to_vec),
        }
    }

    /// Detaches the state, with `received` as its last ciphertext.
    pub(crate) fn into_parked(self, received: &[u8]) -> ParkedTls {
        let ciphertext = [&*self.ciphertext, received].concat();
        ParkedTls { connection: self.connection, ciphertext, ended: self.ended }
    }
}

impl ParkedTls {
    pub(crate) fn has_ciphertext(&self) -> bool {
        !self.ciphertext.is_empty()
    }

    pub(crate) fn unpark(self, buffer_pool: BufferPool) -> Tls {
        Tls { connection: self.connection, ciphertext: self.ciphertext.into(), buffer_pool, ended: self.ended }
    }
}
