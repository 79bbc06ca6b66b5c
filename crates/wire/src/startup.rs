//! The first packet of a connection, which has a length and no tag.
//!
//! A connection starts with one of four packets: SSLRequest, GSSENCRequest, CancelRequest or the startup message. After
//! a refused request for encryption the client sends another first packet.
//!
//! A proxy must refuse bytes that arrive together with an accepted request for encryption, because they were sent
//! before encryption began (CVE-2021-23214, CVE-2021-3935). This module decodes single packets and cannot check that. A
//! connection that starts with [`TLS_RECORD`] uses direct TLS.

mod options;

pub use options::parse_options;

use crate::cursor::Cursor;
use crate::error::{DecodeError, DecodeErrorKind};
use crate::frame::{put, put_sized, put_text};

/// The longest first packet, in bytes: `MAX_STARTUP_PACKET_LENGTH` of Postgres.
pub const PACKET_MAX: usize = 10_000;
/// The shortest first packet, in bytes.
pub const PACKET_MIN: usize = 8;
/// First byte of a TLS handshake record: the client uses direct TLS (since libpq 17).
pub const TLS_RECORD: u8 = 0x16;
/// The shortest cancel key, in bytes; the only length before protocol 3.2.
pub const CANCEL_KEY_MIN: usize = 4;
/// The longest cancel key, in bytes.
pub const CANCEL_KEY_MAX: usize = 256;

const MAJOR: u32 = 3;
const CANCEL_CODE: u32 = 80_877_102;
const SSL_CODE: u32 = 80_877_103;
const GSS_CODE: u32 = 80_877_104;

/// The first packet, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstPacket<'a> {
    /// SSLRequest: the response is one byte, `S` (TLS follows) or `N`.
    Ssl,
    /// GSSENCRequest: the response is one byte, `G` or `N`.
    Gss,
    /// CancelRequest: the server closes the connection without a response.
    Cancel {
        /// Process ID of the session whose query is to be cancelled.
        pid: u32,
        /// The secret key of that session, 4 to 256 bytes.
        key: &'a [u8],
    },
    /// The startup message of a session.
    Startup(StartupMessage<'a>),
}

impl<'a> FirstPacket<'a> {
    /// Decodes a whole packet, including its length field. [`peek_len`] returns its length.
    ///
    /// # Errors
    /// A length is out of range or differs from that of the slice, the version is not 3.x
    /// ([`DecodeErrorKind::Version`]), or the parameters are not pairs of strings.
    pub fn decode(packet: &'a [u8]) -> Result<Self, DecodeError> {
        let truncated = DecodeError::new(packet.len(), DecodeErrorKind::Truncated);
        let len = peek_len(packet)?.ok_or(truncated)?;
        match packet.len().checked_sub(len) {
            Some(0) => Self::decode_whole(packet),
            Some(left) => Err(DecodeError::new(len, DecodeErrorKind::Trailing(left))),
            None => Err(truncated),
        }
    }

    fn decode_whole(packet: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(packet);
        fields.u32()?;
        let code = fields.u32()?;
        let (major, minor) = ((code >> 16) as u16, code as u16);
        match code {
            SSL_CODE => fields.end().map(|()| Self::Ssl),
            GSS_CODE => fields.end().map(|()| Self::Gss),
            CANCEL_CODE => decode_cancel(fields),
            _ if code >> 16 == MAJOR => StartupMessage::decode(minor, fields).map(Self::Startup),
            _ => Err(DecodeError::new(4, DecodeErrorKind::Version { major, minor })),
        }
    }
}

fn decode_cancel(mut fields: Cursor<'_>) -> Result<FirstPacket<'_>, DecodeError> {
    let pid = fields.u32()?;
    let key = fields.rest();
    if (CANCEL_KEY_MIN..=CANCEL_KEY_MAX).contains(&key.len()) {
        return Ok(FirstPacket::Cancel { pid, key });
    }
    Err(fields.error(DecodeErrorKind::Length { len: key.len(), min: CANCEL_KEY_MIN, max: CANCEL_KEY_MAX }))
}

/// The length of the first packet in bytes, including its length field; `None` when fewer than four bytes are there.
///
/// # Errors
/// The length is outside [`PACKET_MIN`]`..=`[`PACKET_MAX`], as for a client of another protocol (HTTP).
pub fn peek_len(bytes: &[u8]) -> Result<Option<usize>, DecodeError> {
    let Some(field) = bytes.first_chunk() else {
        return Ok(None);
    };
    let len = u32::from_be_bytes(*field) as usize;
    if (PACKET_MIN..=PACKET_MAX).contains(&len) {
        return Ok(Some(len));
    }
    Err(DecodeError::new(0, DecodeErrorKind::Length { len, min: PACKET_MIN, max: PACKET_MAX }))
}

/// The startup message of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartupMessage<'a> {
    /// Minor version of the requested protocol 3.`minor`: 0 or 2.
    pub minor: u16,
    /// The checked pairs, without the final zero byte.
    pairs: &'a [u8],
}

impl<'a> StartupMessage<'a> {
    fn decode(minor: u16, mut fields: Cursor<'a>) -> Result<Self, DecodeError> {
        let bytes = fields.rest();
        loop {
            let before = fields.offset();
            if fields.text()?.is_empty() {
                fields.end()?;
                let pairs = bytes.get(..before - PACKET_MIN).unwrap_or_default();
                return Ok(Self { minor, pairs });
            }
            fields.text()?;
        }
    }

    /// Names and values in the order of the message. They are bytes: the encoding is not known yet.
    #[must_use]
    pub fn params(&self) -> Params<'a> {
        Params(Cursor::new(self.pairs))
    }

    /// The value of a parameter. As in Postgres, the last one counts.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.params().filter(|(found, _)| *found == name.as_bytes()).last().map(|(_, value)| value)
    }

    /// The value of a parameter as text; `None` if it is missing or not UTF-8.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.get(name).and_then(|value| str::from_utf8(value).ok())
    }

    /// Names of the requested protocol extensions (`_pq_.`...). NegotiateProtocolVersion lists the unsupported ones.
    pub fn extensions(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.params().map(|(name, _)| name).filter(|name| name.starts_with(b"_pq_."))
    }
}

/// Iterator over the parameters of a [`StartupMessage`].
#[derive(Debug, Clone)]
pub struct Params<'a>(Cursor<'a>);

impl<'a> Iterator for Params<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        Some((self.0.text().ok()?, self.0.text().ok()?))
    }
}

/// Appends a startup message for version 3.`minor`. A parameter without a name is left out, because an empty name ends
/// the list. Postgres refuses a packet of more than [`PACKET_MAX`] bytes.
pub fn startup(minor: u16, params: &[(&[u8], &[u8])], out: &mut Vec<u8>) {
    put_sized(out, |out| {
        out.extend_from_slice(&version(minor).to_be_bytes());
        for (name, value) in params.iter().filter(|(name, _)| !matches!(name.first(), None | Some(0))) {
            put_text(name, out);
            put_text(value, out);
        }
        out.push(0);
    });
}

/// Appends an SSLRequest.
pub fn ssl_request(out: &mut Vec<u8>) {
    put_sized(out, |out| out.extend_from_slice(&SSL_CODE.to_be_bytes()));
}

/// Appends a GSSENCRequest.
pub fn gss_request(out: &mut Vec<u8>) {
    put_sized(out, |out| out.extend_from_slice(&GSS_CODE.to_be_bytes()));
}

/// Appends a CancelRequest for the query of the server process `pid`. Keys have 4 to 256 bytes.
pub fn cancel_request(pid: u32, key: &[u8], out: &mut Vec<u8>) {
    put_sized(out, |out| {
        out.extend_from_slice(&CANCEL_CODE.to_be_bytes());
        out.extend_from_slice(&pid.to_be_bytes());
        out.extend_from_slice(key);
    });
}

/// The body of NegotiateProtocolVersion: the version and extensions that the server does not support.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NegotiateProtocolVersion<'a> {
    /// The newest supported version is 3.`minor`.
    pub minor: u16,
    names: &'a [u8],
}

impl<'a> NegotiateProtocolVersion<'a> {
    /// Decodes the body. Servers send the version with its major part, and the documentation describes the minor part
    /// alone; both are accepted.
    ///
    /// # Errors
    /// The version is not 3.x, or the list of names differs from its count.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(body);
        let version = fields.u32()?;
        if !matches!(version >> 16, 0 | MAJOR) {
            let kind = DecodeErrorKind::Version { major: (version >> 16) as u16, minor: version as u16 };
            return Err(DecodeError::new(0, kind));
        }
        let count = fields.u32()?;
        let names = fields.rest();
        for _ in 0..count {
            fields.text()?;
        }
        fields.end()?;
        Ok(Self { minor: version as u16, names })
    }

    /// The unsupported protocol extensions.
    pub fn unknown(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut names = Cursor::new(self.names);
        std::iter::from_fn(move || names.text().ok())
    }
}

/// Appends a NegotiateProtocolVersion: the newest version is 3.`minor`, and the `unknown` extensions are not supported.
pub fn negotiate_protocol_version(minor: u16, unknown: &[&[u8]], out: &mut Vec<u8>) {
    put(crate::backend::NEGOTIATE_PROTOCOL_VERSION, out, |out| {
        out.extend_from_slice(&version(minor).to_be_bytes());
        out.extend_from_slice(&u32::try_from(unknown.len()).unwrap_or(u32::MAX).to_be_bytes());
        for name in unknown {
            put_text(name, out);
        }
    });
}

const fn version(minor: u16) -> u32 {
    MAJOR << 16 | minor as u32
}
