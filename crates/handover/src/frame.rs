//! Messages between the two processes: a length, a tag, a body.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use tokio::{io::Interest, net::UnixStream};

use crate::channel::{receive_with_descriptor, send_with_descriptor};

/// A message between the two processes.
#[derive(Debug, PartialEq, Eq)]
pub enum HandoverFrame {
    /// Old to new, with the client's socket: an encoded record.
    Session {
        /// Number of the session in this hand-over.
        number: u64,
        /// The encoded [`SessionRecord`](crate::SessionRecord).
        record: Vec<u8>,
    },
    /// Old to new, with the socket of a server: it belongs to the session with this number, which follows.
    Server(u64),
    /// New to old: the session with this number belongs to the new process.
    Accepted(u64),
    /// New to old: the session with this number stays.
    Refused {
        /// Number of the session.
        number: u64,
        /// Why it is refused.
        reason: String,
    },
    /// New to old: a cancel request for a client that the new process does not have.
    Cancel {
        /// Number of the request.
        number: u64,
        /// Process id of the cancel key.
        pid: u32,
        /// Secret of the cancel key.
        key: Vec<u8>,
    },
    /// Old to new: the cancel request with this number has been processed.
    Cancelled(u64),
    /// Old to new: the streams of the old process have ended.
    StreamsEnded,
}

/// Length of the header: length of number and body, and tag.
const HEADER_BYTES: usize = 5;
/// Length of the number of each frame.
const NUMBER_BYTES: usize = 8;
/// Largest record. A session with a larger one stays.
pub const RECORD_BYTES_MAX: usize = 16 << 20;
/// Limit of a frame: a record of the largest size, with its number.
const FRAME_BYTES_MAX: usize = RECORD_BYTES_MAX + NUMBER_BYTES;

impl HandoverFrame {
    /// The header, the number and the body.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Session { number, record } => session_frame(*number, record),
            Self::Server(number) => encode(b'V', *number, &[], &[]),
            Self::Accepted(number) => encode(b'A', *number, &[], &[]),
            Self::Refused { number, reason } => encode(b'R', *number, reason.as_bytes(), &[]),
            Self::Cancel { number, pid, key } => encode(b'C', *number, &pid.to_be_bytes(), key),
            Self::Cancelled(number) => encode(b'D', *number, &[], &[]),
            Self::StreamsEnded => encode(b'E', 0, &[], &[]),
        }
    }

    fn decode(tag: u8, body: &[u8]) -> Option<Self> {
        let (number, body) = body.split_first_chunk::<NUMBER_BYTES>()?;
        let number = u64::from_be_bytes(*number);
        Some(match tag {
            b'S' => Self::Session { number, record: body.to_vec() },
            b'V' => Self::Server(number),
            b'A' => Self::Accepted(number),
            b'R' => Self::Refused { number, reason: String::from_utf8_lossy(body).into_owned() },
            b'C' => {
                let (pid, key) = body.split_first_chunk::<4>()?;
                Self::Cancel { number, pid: u32::from_be_bytes(*pid), key: key.to_vec() }
            }
            b'D' => Self::Cancelled(number),
            b'E' => Self::StreamsEnded,
            _ => return None,
        })
    }
}

/// The frame of a session with this record.
pub(crate) fn session_frame(number: u64, record: &[u8]) -> Vec<u8> {
    encode(b'S', number, record, &[])
}

fn encode(tag: u8, number: u64, first: &[u8], second: &[u8]) -> Vec<u8> {
    let len = u32::try_from(NUMBER_BYTES + first.len() + second.len()).unwrap_or(u32::MAX);
    [&len.to_be_bytes()[..], &[tag], &number.to_be_bytes(), first, second].concat()
}

/// Sends a frame, and with it a descriptor.
///
/// # Errors
/// Errors of the socket.
///
/// # Cancel safety
/// A part of the frame may have been sent; the socket cannot be used any more.
pub async fn send_frame(stream: &UnixStream, bytes: &[u8], mut fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let sent = stream.async_io(Interest::WRITABLE, || send_with_descriptor(stream, rest, fd)).await?;
        // The descriptor is sent with the first byte.
        fd = None;
        rest = rest.get(sent..).unwrap_or_default();
    }
    Ok(())
}

/// Reads frames and the descriptors that belong to them.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
    received: usize,
    fd: Option<OwnedFd>,
}

impl FrameReader {
    /// The next frame; `None` at the end of the stream.
    ///
    /// # Errors
    /// Errors of the socket, and frames that no process of this version sends.
    ///
    /// # Cancel safety
    /// Safe: received bytes are kept.
    pub async fn next(&mut self, stream: &UnixStream) -> io::Result<Option<(HandoverFrame, Option<OwnedFd>)>> {
        loop {
            let expected_bytes = self.frame_bytes()?;
            if self.received == expected_bytes && expected_bytes > HEADER_BYTES {
                return self.take().map(Some);
            }
            // Not beyond the end of the frame: the next descriptor belongs to the next frame.
            self.bytes.resize(expected_bytes, 0);
            let room = self.bytes.get_mut(self.received..).unwrap_or_default();
            let (received, fd) = stream.async_io(Interest::READABLE, || receive_with_descriptor(stream, room)).await?;
            if received == 0 {
                return Ok(None);
            }
            self.received += received;
            self.fd = fd.or(self.fd.take());
        }
    }

    /// Length of the frame as far as it is known.
    fn frame_bytes(&self) -> io::Result<usize> {
        let header = self.bytes.get(..self.received).and_then(|bytes| bytes.first_chunk::<HEADER_BYTES>());
        let Some([a, b, c, d, _]) = header else { return Ok(HEADER_BYTES) };
        let len = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        match (NUMBER_BYTES..=FRAME_BYTES_MAX).contains(&len) {
            true => Ok(HEADER_BYTES + len),
            false => Err(unknown_frame()),
        }
    }

    fn take(&mut self) -> io::Result<(HandoverFrame, Option<OwnedFd>)> {
        let mut bytes = std::mem::take(&mut self.bytes);
        self.received = 0;
        let frame = HandoverFrame::decode(bytes[HEADER_BYTES - 1], &bytes[HEADER_BYTES..]);
        crate::wipe(&mut bytes);
        Ok((frame.ok_or_else(unknown_frame)?, self.fd.take()))
    }
}

fn unknown_frame() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "unknown message")
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[tokio::test]
    async fn frames_keep_their_descriptors() {
        let (near, far) = UnixStream::pair().unwrap();
        let frames = [
            HandoverFrame::Accepted(1),
            HandoverFrame::Session { number: 2, record: vec![7; 300_000] },
            HandoverFrame::Refused { number: 3, reason: "no database".to_owned() },
            HandoverFrame::Cancel { number: 4, pid: 77, key: vec![1, 2, 3, 4] },
            HandoverFrame::Server(5),
            HandoverFrame::Session { number: 5, record: Vec::new() },
            HandoverFrame::Cancelled(6),
            HandoverFrame::StreamsEnded,
        ];
        let send = async {
            for frame in &frames {
                let fd =
                    matches!(frame, HandoverFrame::Session { .. } | HandoverFrame::Server(_)).then(|| near.as_fd());
                send_frame(&near, &frame.encode(), fd).await.unwrap();
            }
        };
        let receive = async {
            let mut reader = FrameReader::default();
            for frame in &frames {
                let (received, fd) = reader.next(&far).await.unwrap().unwrap();
                assert_eq!(received, *frame);
                assert_eq!(fd.is_some(), matches!(frame, HandoverFrame::Session { .. } | HandoverFrame::Server(_)));
            }
        };
        tokio::join!(send, receive);
    }

    #[tokio::test]
    async fn unknown_frames_are_refused() {
        for bytes in
            [&b"\0\0\0\x08?\0\0\0\0\0\0\0\0"[..], b"\0\0\0\x01A\0", b"\xff\xff\xff\xffS", b"\0\0\0\x09C12345678\0"]
        {
            let (near, far) = UnixStream::pair().unwrap();
            send_frame(&near, bytes, None).await.unwrap();
            drop(near);
            assert!(FrameReader::default().next(&far).await.is_err(), "{bytes:?}");
        }
    }
}
