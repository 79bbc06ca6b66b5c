//! Payloads of CopyData while a walsender streams.

use super::Lsn;
use crate::cursor::Cursor;
use crate::error::{DecodeError, DecodeErrorKind};

/// A payload from the server. Times are microseconds since 2000-01-01.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerMessage<'a> {
    /// XLogData (`w`): one message of the output plugin.
    XLogData {
        /// Position of the data. 0 for messages without a position, such as Relation.
        start: Lsn,
        /// Equal to `start` for logical slots.
        end: Lsn,
        /// When the server sent the message.
        time: i64,
        /// The message of the output plugin.
        data: &'a [u8],
    },
    /// A keepalive (`k`).
    Keepalive {
        /// End of the WAL that the server has decoded.
        end: Lsn,
        /// When the server sent the message.
        time: i64,
        /// Whether the server closes the connection unless a status update arrives soon.
        reply_requested: bool,
    },
}

impl<'a> ServerMessage<'a> {
    /// Decodes the payload of a CopyData message.
    ///
    /// # Errors
    /// The payload has another type, is truncated, or bytes follow a keepalive.
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(payload);
        match fields.u8()? {
            b'w' => Ok(Self::XLogData {
                start: Lsn(fields.u64()?),
                end: Lsn(fields.u64()?),
                time: fields.i64()?,
                data: fields.rest(),
            }),
            b'k' => {
                let (end, time) = (Lsn(fields.u64()?), fields.i64()?);
                let reply_requested = fields.flag("reply request")?;
                fields.end()?;
                Ok(Self::Keepalive { end, time, reply_requested })
            }
            other => Err(DecodeError::new(0, DecodeErrorKind::Tag(other))),
        }
    }
}

/// A standby status update (`r`): positions that the client has received and stored.
///
/// For a logical slot only `flush` has an effect: the server never sends transactions before it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusUpdate {
    /// End of the received WAL.
    pub write: Lsn,
    /// End of the WAL that is stored durably.
    pub flush: Lsn,
    /// End of the applied WAL.
    pub apply: Lsn,
    /// Clock of the client, in microseconds since 2000-01-01.
    pub time: i64,
    /// Requests a keepalive from the server.
    pub reply_requested: bool,
}

impl StatusUpdate {
    /// Decodes the payload of a CopyData message from a client.
    ///
    /// # Errors
    /// The payload has another type, is truncated, or bytes follow.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(payload);
        match fields.u8()? {
            b'r' => {}
            other => return Err(DecodeError::new(0, DecodeErrorKind::Tag(other))),
        }
        let [write, flush, apply] = [fields.u64()?, fields.u64()?, fields.u64()?].map(Lsn);
        let found = Self { write, flush, apply, time: fields.i64()?, reply_requested: fields.flag("reply request")? };
        fields.end()?;
        Ok(found)
    }

    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(b'r');
        for lsn in [self.write, self.flush, self.apply] {
            out.extend_from_slice(&lsn.0.to_be_bytes());
        }
        out.extend_from_slice(&self.time.to_be_bytes());
        out.push(self.reply_requested.into());
    }
}

/// Appends an XLogData payload.
pub fn xlog_data(start: Lsn, end: Lsn, time: i64, data: &[u8], out: &mut Vec<u8>) {
    out.push(b'w');
    out.extend_from_slice(&start.0.to_be_bytes());
    out.extend_from_slice(&end.0.to_be_bytes());
    out.extend_from_slice(&time.to_be_bytes());
    out.extend_from_slice(data);
}

/// Appends a keepalive payload.
pub fn keepalive(end: Lsn, time: i64, reply_requested: bool, out: &mut Vec<u8>) {
    out.push(b'k');
    out.extend_from_slice(&end.0.to_be_bytes());
    out.extend_from_slice(&time.to_be_bytes());
    out.push(reply_requested.into());
}
