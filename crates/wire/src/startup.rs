//! The first packet of a connection: it has a length and no tag.
//!
//! Four things can arrive first: a request for TLS, one for GSSAPI encryption, one to cancel a query of another
//! connection, and the startup packet proper. After a refused request for encryption another first packet follows.
//!
//! Bytes that arrive together with an accepted request for encryption were sent before it began and must be refused
//! (CVE-2021-23214, CVE-2021-3935); this module sees single packets and cannot do that. A connection that begins with
//! [`TLS_RECORD`] speaks TLS at once, without asking.

mod options;

pub use options::parse_options;

use crate::cursor::Cursor;
use crate::error::{DecodeError, Reason};
use crate::frame::{put, put_sized, put_text};

/// The longest first packet that is read, in bytes: Postgres' `MAX_STARTUP_PACKET_LENGTH`.
pub const PACKET_MAX: usize = 10_000;
/// The shortest first packet, in bytes.
pub const PACKET_MIN: usize = 8;
/// First byte of a TLS handshake record: a client that speaks TLS at once (since libpq 17).
pub const TLS_RECORD: u8 = 0x16;
/// The shortest cancel key, in bytes, and the only length before protocol 3.2.
pub const KEY_MIN: usize = 4;
/// The longest cancel key, in bytes.
pub const KEY_MAX: usize = 256;

const MAJOR: u32 = 3;
const CANCEL_CODE: u32 = 80_877_102;
const SSL_CODE: u32 = 80_877_103;
const GSS_CODE: u32 = 80_877_104;

/// The first packet, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First<'a> {
    /// SSLRequest: the answer is one byte, `S` and then TLS, or `N`.
    Ssl,
    /// GSSENCRequest: the answer is one byte, `G` or `N`.
    Gss,
    /// CancelRequest: no answer, the connection ends.
    Cancel {
        /// The process whose query is meant.
        pid: u32,
        /// The secret that proves the right to do so, 4 to 256 bytes.
        key: &'a [u8],
    },
    /// A session begins.
    Startup(Startup<'a>),
}

impl<'a> First<'a> {
    /// Decodes a whole packet, its length field included. [`peek_len`] tells how many bytes that are.
    ///
    /// # Errors
    /// A length out of range or not that of the slice, a version other than 3.x ([`Reason::Version`] says which), or
    /// parameters that are not pairs of strings.
    pub fn decode(packet: &'a [u8]) -> Result<Self, DecodeError> {
        let truncated = DecodeError::new(packet.len(), Reason::Truncated);
        let len = peek_len(packet)?.ok_or(truncated)?;
        match packet.len().checked_sub(len) {
            Some(0) => Self::decode_whole(packet),
            Some(left) => Err(DecodeError::new(len, Reason::Trailing(left))),
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
            _ if code >> 16 == MAJOR => Startup::decode(minor, fields).map(Self::Startup),
            _ => Err(DecodeError::new(4, Reason::Version { major, minor })),
        }
    }
}

fn decode_cancel(mut fields: Cursor<'_>) -> Result<First<'_>, DecodeError> {
    let pid = fields.u32()?;
    let key = fields.rest();
    if (KEY_MIN..=KEY_MAX).contains(&key.len()) {
        return Ok(First::Cancel { pid, key });
    }
    Err(fields.error(Reason::Length { len: key.len(), min: KEY_MIN, max: KEY_MAX }))
}

/// How long the first packet is, in bytes, its length field included; `None` when fewer than four bytes are there.
///
/// # Errors
/// The length is not within [`PACKET_MIN`]`..=`[`PACKET_MAX`]. A peer that speaks something else, HTTP say, ends here.
pub fn peek_len(bytes: &[u8]) -> Result<Option<usize>, DecodeError> {
    let Some(field) = bytes.first_chunk() else {
        return Ok(None);
    };
    let len = u32::from_be_bytes(*field) as usize;
    if (PACKET_MIN..=PACKET_MAX).contains(&len) {
        return Ok(Some(len));
    }
    Err(DecodeError::new(0, Reason::Length { len, min: PACKET_MIN, max: PACKET_MAX }))
}

/// The startup packet of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Startup<'a> {
    /// The version asked for is 3.`minor`; 3.0 and 3.2 exist.
    pub minor: u16,
    /// The pairs, without the zero byte after the last; known to be whole.
    pairs: &'a [u8],
}

impl<'a> Startup<'a> {
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

    /// Names and values in the order they were sent. They are bytes: nothing says yet which encoding they have.
    #[must_use]
    pub fn params(&self) -> Params<'a> {
        Params(Cursor::new(self.pairs))
    }

    /// The value of a parameter; the last one where it was sent twice, as in Postgres.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.params().filter(|(found, _)| *found == name.as_bytes()).last().map(|(_, value)| value)
    }

    /// The value of a parameter as text, `None` where it is missing or not UTF-8.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.get(name).and_then(|value| str::from_utf8(value).ok())
    }

    /// Names of the protocol extensions asked for (`_pq_.`...); those that are not known have to be listed in a
    /// NegotiateProtocolVersion.
    pub fn extensions(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.params().map(|(name, _)| name).filter(|name| name.starts_with(b"_pq_."))
    }
}

/// Iterator over the parameters of a [`Startup`].
#[derive(Debug, Clone)]
pub struct Params<'a>(Cursor<'a>);

impl<'a> Iterator for Params<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        Some((self.0.text().ok()?, self.0.text().ok()?))
    }
}

/// Appends a startup packet for version 3.`minor`. A parameter with an empty name would end the list for the reader, so
/// it is left out.
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

/// Appends a request for TLS.
pub fn ssl_request(out: &mut Vec<u8>) {
    put_sized(out, |out| out.extend_from_slice(&SSL_CODE.to_be_bytes()));
}

/// Appends a request for GSSAPI encryption.
pub fn gss_request(out: &mut Vec<u8>) {
    put_sized(out, |out| out.extend_from_slice(&GSS_CODE.to_be_bytes()));
}

/// Appends a request to cancel what the server process `pid` does.
pub fn cancel_request(pid: u32, key: &[u8], out: &mut Vec<u8>) {
    put_sized(out, |out| {
        out.extend_from_slice(&CANCEL_CODE.to_be_bytes());
        out.extend_from_slice(&pid.to_be_bytes());
        out.extend_from_slice(key);
    });
}

/// NegotiateProtocolVersion: what the server speaks instead of what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiate<'a> {
    /// The newest version is 3.`minor`.
    pub minor: u16,
    names: &'a [u8],
}

impl<'a> Negotiate<'a> {
    /// Decodes the body. Servers send the version with its major part, the documentation describes the minor part
    /// alone; both are understood.
    ///
    /// # Errors
    /// The version is not 3.x, or the list of names is not as long as its count.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(body);
        let version = fields.u32()?;
        if !matches!(version >> 16, 0 | MAJOR) {
            let reason = Reason::Version { major: (version >> 16) as u16, minor: version as u16 };
            return Err(DecodeError::new(0, reason));
        }
        let count = fields.u32()?;
        let names = fields.rest();
        for _ in 0..count {
            fields.text()?;
        }
        fields.end()?;
        Ok(Self { minor: version as u16, names })
    }

    /// The protocol extensions that the server does not know.
    pub fn unknown(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut names = Cursor::new(self.names);
        std::iter::from_fn(move || names.text().ok())
    }
}

/// Appends a NegotiateProtocolVersion: version 3.`minor` is spoken, and `unknown` extensions are not.
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
