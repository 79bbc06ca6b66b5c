//! Finds message boundaries in a stream of chunks by reading headers only.
//!
//! A proxy forwards most messages unread, by byte range, and [`Scanner`] returns the ranges. The scanner copies bytes
//! only when a message for [`Delivery::Whole`] is split over chunks, into a buffer that is freed after the message.
//! Between messages a scanner owns no heap memory.
//!
//! | the message | `Delivery::Whole` | `Delivery::Stream` |
//! |---|---|---|
//! | lies in one chunk | `Message` | `Message` |
//! | is split after its header | `NeedMore`..., `Carried` | `Stream { first: true }`, `Stream`..., `Stream { last: true }` |
//! | is split within its header | `NeedMore`..., `Carried` | `NeedMore`..., `StreamHead`, `Stream`..., `Stream { last: true }` |
//!
//! A message without a body whose header is split is complete with its header: the scanner returns `Carried` for both
//! deliveries.

use crate::error::{DecodeError, DecodeErrorKind};
use crate::frame::{HEADER, MessageHeader};

/// How [`Scanner::step`] delivers a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The whole message, in one piece.
    Whole,
    /// Byte ranges only, to forward the message unread.
    Stream,
}

/// The content of `chunk[at..]`. The next step starts at `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanStep {
    /// `chunk[at..end]` is a whole message: its header is `at..at + 5`, its body `at + 5..end`.
    Message {
        /// The message type.
        tag: u8,
        /// The offset after the message.
        end: usize,
    },
    /// `chunk[at..end]` completes a message that began in an earlier chunk; [`Scanner::carry`] is the whole message.
    Carried {
        /// The message type.
        tag: u8,
        /// The offset after the message.
        end: usize,
    },
    /// `chunk[at..end]` completes the header of a streamed message that began in an earlier chunk. [`Scanner::carry`]
    /// is that header, five bytes. The body is not empty and follows as [`ScanStep::Stream`] with `first: false`.
    StreamHead {
        /// The message type.
        tag: u8,
        /// The offset after the header.
        end: usize,
    },
    /// `chunk[at..end]` is a piece of a streamed message that is split over chunks.
    Stream {
        /// The message type.
        tag: u8,
        /// The offset after the piece.
        end: usize,
        /// Whether the piece begins with the message header.
        first: bool,
        /// Whether the piece ends the message.
        last: bool,
    },
    /// The chunk is consumed. The scanner keeps an unfinished message.
    NeedMore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScanState {
    /// No message is open, and `carry` is empty.
    Between,
    /// `carry` holds the start of a message: a part of its header, or its header and a part of its body.
    Carrying,
    /// `carry` holds the message that the last step returned; no message is open.
    Carried,
    /// `left` bytes of a streamed message are outstanding; `carry` may hold its header if the last step returned it.
    Streaming,
}

/// The position of one direction of a connection in its stream of messages. See the [module](self).
///
/// After an error the message boundaries are lost: the connection can only be closed.
///
/// ```
/// use tidegate_wire::{frontend, scan::{Delivery, ScanStep, Scanner}};
/// let mut chunk = Vec::new();
/// frontend::query(b"select 1", &mut chunk);
/// let mut scanner = Scanner::new(16 << 20);
/// let step = scanner.step(&chunk, 0, |_| Delivery::Stream)?;
/// assert_eq!(step, ScanStep::Message { tag: frontend::QUERY, end: chunk.len() });
/// assert_eq!(scanner.step(&chunk, chunk.len(), |_| Delivery::Stream)?, ScanStep::NeedMore);
/// assert!(scanner.is_between_messages());
/// # Ok::<(), tidegate_wire::DecodeError>(())
/// ```
#[derive(Debug)]
pub struct Scanner {
    carry: Vec<u8>,
    whole_bytes_max: usize,
    /// Outstanding bytes of the streamed message.
    left: u32,
    /// Tag of the streamed message.
    tag: u8,
    state: ScanState,
}

impl Scanner {
    /// Creates a scanner between messages. A message for [`Delivery::Whole`] has at most `whole_bytes_max` bytes,
    /// including its header. The limit of streamed messages is [`LEN_MAX`](crate::frame::LEN_MAX).
    #[must_use]
    pub const fn new(whole_bytes_max: usize) -> Self {
        Self { carry: Vec::new(), whole_bytes_max, left: 0, tag: 0, state: ScanState::Between }
    }

    /// Reads the message at `chunk[at..]`. `delivery` maps a tag to a [`Delivery`]. It must be a pure function: the
    /// scanner may call it several times for a message, or not at all.
    ///
    /// The caller steps through a chunk until [`ScanStep::NeedMore`]. An `at` beyond the chunk counts as its end.
    ///
    /// # Errors
    /// A length is out of range, or a message for [`Delivery::Whole`] exceeds the limit. The offset counts from the
    /// start of `chunk`; for a header that began in an earlier chunk it is `at`.
    #[inline]
    pub fn step(
        &mut self,
        chunk: &[u8],
        at: usize,
        delivery: impl Fn(u8) -> Delivery,
    ) -> Result<ScanStep, DecodeError> {
        if self.state == ScanState::Between {
            self.begin(chunk, at, delivery)
        } else {
            self.resume(chunk, at, delivery)
        }
    }

    #[inline]
    fn begin(&mut self, chunk: &[u8], at: usize, delivery: impl Fn(u8) -> Delivery) -> Result<ScanStep, DecodeError> {
        let rest = chunk.get(at..).unwrap_or_default();
        let Some(head) = rest.first_chunk::<HEADER>() else {
            return Ok(self.keep(rest));
        };
        let header = MessageHeader::read(head, at)?;
        let total = header.total();
        if total > self.whole_bytes_max {
            self.check_limit(header, at, &delivery)?;
        }
        if total <= rest.len() {
            return Ok(ScanStep::Message { tag: header.tag, end: at + total });
        }
        match delivery(header.tag) {
            Delivery::Whole => Ok(self.keep(rest)),
            Delivery::Stream => Ok(self.open_stream(header, rest.len(), chunk.len())),
        }
    }

    /// The end of the run of complete messages with this tag at `chunk[at..]`: one call for all rows of a result. The
    /// result is `at` if there is no such message, or if a message is open. An invalid length ends the run; the next
    /// step reports it.
    #[must_use]
    #[inline]
    pub fn run(&self, chunk: &[u8], mut at: usize, tag: u8) -> usize {
        if self.state != ScanState::Between {
            return at;
        }
        while let Some(rest) = chunk.get(at..)
            && let Some(&[first, a, b, c, d]) = rest.first_chunk::<HEADER>()
        {
            let total = 1 + u32::from_be_bytes([a, b, c, d]) as usize;
            if first != tag || total < HEADER || total > rest.len() {
                break;
            }
            at += total;
        }
        at
    }

    /// The message of the last [`ScanStep::Carried`], or the header of the last [`ScanStep::StreamHead`]. Valid until
    /// the next step.
    #[must_use]
    pub fn carry(&self) -> &[u8] {
        &self.carry
    }

    /// Takes the bytes of [`Scanner::carry`] after [`ScanStep::Carried`] or [`ScanStep::StreamHead`]. Returns nothing
    /// while a message is incomplete.
    #[must_use]
    pub fn take_carry(&mut self) -> Vec<u8> {
        match self.state {
            ScanState::Carried | ScanState::Streaming => std::mem::take(&mut self.carry),
            ScanState::Between | ScanState::Carrying => Vec::new(),
        }
    }

    /// Whether a streamed message is open: a step has returned a part of it.
    #[must_use]
    pub fn is_streaming(&self) -> bool {
        self.state == ScanState::Streaming
    }

    /// Takes the start of an incomplete message of which no step has returned a part. The scanner is then between
    /// messages; the bytes belong in front of the next chunk.
    #[must_use]
    pub fn take_unfinished(&mut self) -> Vec<u8> {
        match self.state {
            ScanState::Carrying => {
                self.state = ScanState::Between;
                std::mem::take(&mut self.carry)
            }
            _ => Vec::new(),
        }
    }

    /// Whether no message is open.
    #[must_use]
    pub fn is_between_messages(&self) -> bool {
        matches!(self.state, ScanState::Between | ScanState::Carried)
    }

    /// Outstanding bytes of the open streamed message; 0 if none is open.
    #[must_use]
    pub fn stream_left(&self) -> usize {
        self.left as usize
    }

    #[cold]
    fn check_limit(
        &self,
        header: MessageHeader,
        at: usize,
        delivery: &impl Fn(u8) -> Delivery,
    ) -> Result<(), DecodeError> {
        match delivery(header.tag) {
            Delivery::Stream => Ok(()),
            Delivery::Whole => {
                let kind = DecodeErrorKind::Length { len: header.total(), min: HEADER, max: self.whole_bytes_max };
                Err(DecodeError::new(at, kind))
            }
        }
    }

    /// Keeps the start of a message. The buffer grows with the bytes that arrive, and never by a declared length.
    fn keep(&mut self, rest: &[u8]) -> ScanStep {
        if !rest.is_empty() {
            self.carry.extend_from_slice(rest);
            self.state = ScanState::Carrying;
        }
        ScanStep::NeedMore
    }

    fn open_stream(&mut self, header: MessageHeader, here: usize, end: usize) -> ScanStep {
        self.left = (header.total() - here) as u32;
        self.tag = header.tag;
        self.state = ScanState::Streaming;
        ScanStep::Stream { tag: header.tag, end, first: true, last: false }
    }

    fn resume(&mut self, chunk: &[u8], at: usize, delivery: impl Fn(u8) -> Delivery) -> Result<ScanStep, DecodeError> {
        match self.state {
            ScanState::Between => self.begin(chunk, at, delivery),
            ScanState::Carried => {
                self.carry = Vec::new();
                self.state = ScanState::Between;
                self.begin(chunk, at, delivery)
            }
            ScanState::Streaming => Ok(self.stream(chunk, at)),
            ScanState::Carrying => self.complete(chunk, at, delivery),
        }
    }

    fn stream(&mut self, chunk: &[u8], at: usize) -> ScanStep {
        self.carry = Vec::new();
        let here = chunk.len().saturating_sub(at).min(self.left as usize);
        if here == 0 {
            return ScanStep::NeedMore;
        }
        self.left -= here as u32;
        let last = self.left == 0;
        if last {
            self.state = ScanState::Between;
        }
        ScanStep::Stream { tag: self.tag, end: at + here, first: false, last }
    }

    /// Completes the header of the kept message, then its body.
    fn complete(
        &mut self,
        chunk: &[u8],
        at: usize,
        delivery: impl Fn(u8) -> Delivery,
    ) -> Result<ScanStep, DecodeError> {
        let mut end = at;
        if self.carry.len() < HEADER {
            end = self.fill(HEADER, chunk, end);
            let Some(header) = MessageHeader::peek(&self.carry).map_err(|error| DecodeError { offset: at, ..error })?
            else {
                return Ok(ScanStep::NeedMore);
            };
            self.check_limit_of_carried(header, at, &delivery)?;
            if header.total() > HEADER && delivery(header.tag) == Delivery::Stream {
                return Ok(self.open_carried_stream(header, end));
            }
        }
        let Some(header) = MessageHeader::peek(&self.carry)? else {
            return Ok(ScanStep::NeedMore);
        };
        end = self.fill(header.total(), chunk, end);
        if self.carry.len() < header.total() {
            return Ok(ScanStep::NeedMore);
        }
        self.state = ScanState::Carried;
        Ok(ScanStep::Carried { tag: header.tag, end })
    }

    fn check_limit_of_carried(
        &self,
        header: MessageHeader,
        at: usize,
        delivery: &impl Fn(u8) -> Delivery,
    ) -> Result<(), DecodeError> {
        if header.total() > self.whole_bytes_max { self.check_limit(header, at, delivery) } else { Ok(()) }
    }

    fn open_carried_stream(&mut self, header: MessageHeader, end: usize) -> ScanStep {
        self.left = header.len - 4;
        self.tag = header.tag;
        self.state = ScanState::Streaming;
        ScanStep::StreamHead { tag: header.tag, end }
    }

    /// Copies bytes of `chunk[at..]` until `carry` has `target` bytes. Returns the offset after the copied bytes.
    fn fill(&mut self, target: usize, chunk: &[u8], at: usize) -> usize {
        let rest = chunk.get(at..).unwrap_or_default();
        let lacking = target.saturating_sub(self.carry.len()).min(rest.len());
        self.carry.extend_from_slice(&rest[..lacking]);
        at + lacking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(_: u8) -> Delivery {
        Delivery::Whole
    }

    fn stream(_: u8) -> Delivery {
        Delivery::Stream
    }

    #[test]
    fn scanner_is_small() {
        assert!(size_of::<Scanner>() <= 48);
    }

    #[test]
    fn scanner_between_messages_owns_no_heap() -> Result<(), DecodeError> {
        let message = b"Q\0\0\0\x06a\0";
        for delivery in [whole, stream] {
            for cut in 1..message.len() {
                let mut scanner = Scanner::new(64);
                let (mut at, first, second) = (0, &message[..cut], &message[cut..]);
                assert!(matches!(scanner.step(first, 0, delivery)?, ScanStep::NeedMore | ScanStep::Stream { .. }));
                while let ScanStep::Carried { end, .. }
                | ScanStep::StreamHead { end, .. }
                | ScanStep::Stream { end, .. } = scanner.step(second, at, delivery)?
                {
                    at = end;
                }
                assert_eq!(at, second.len());
                assert!(scanner.is_between_messages());
                assert_eq!(scanner.carry.capacity(), 0);
            }
        }
        Ok(())
    }

    #[test]
    fn declared_length_allocates_nothing() -> Result<(), DecodeError> {
        let mut scanner = Scanner::new(1 << 30);
        scanner.step(b"Q\x3f\0\0\0abc", 0, whole)?;
        assert!(scanner.carry.capacity() < 64);
        Ok(())
    }

    #[test]
    fn split_header_of_a_stream_is_returned_alone() -> Result<(), DecodeError> {
        let mut scanner = Scanner::new(0);
        assert_eq!(scanner.step(b"d\0\0", 0, stream)?, ScanStep::NeedMore);
        assert!(!scanner.is_between_messages());
        let chunk = b"\0\x08abcdZ";
        assert_eq!(scanner.step(chunk, 0, stream)?, ScanStep::StreamHead { tag: b'd', end: 2 });
        assert_eq!(scanner.carry(), b"d\0\0\0\x08");
        assert_eq!(scanner.stream_left(), 4);
        let piece = ScanStep::Stream { tag: b'd', end: 6, first: false, last: true };
        assert_eq!(scanner.step(chunk, 2, stream)?, piece);
        assert!(scanner.carry().is_empty());
        Ok(())
    }

    #[test]
    fn split_header_without_body_is_always_carried() -> Result<(), DecodeError> {
        for delivery in [whole, stream] {
            let mut scanner = Scanner::new(64);
            scanner.step(b"S\0\0", 0, delivery)?;
            assert_eq!(scanner.step(b"\0\x04", 0, delivery)?, ScanStep::Carried { tag: b'S', end: 2 });
            assert_eq!(scanner.take_carry(), b"S\0\0\0\x04");
            assert!(scanner.is_between_messages());
        }
        Ok(())
    }

    #[test]
    fn limit_of_whole_messages_holds_for_every_split() {
        let message = b"Q\0\0\0\x08abcd";
        let kind = DecodeErrorKind::Length { len: 9, min: 5, max: 8 };
        for cut in 0..message.len() {
            let mut scanner = Scanner::new(8);
            let (first, second) = message.split_at(cut);
            let result = scanner.step(first, 0, whole).and_then(|_| scanner.step(second, 0, whole));
            assert_eq!(result, Err(DecodeError { offset: 0, kind }), "cut at {cut}");
            assert_eq!(Scanner::new(8).step(message, 0, stream), Ok(ScanStep::Message { tag: b'Q', end: 9 }));
        }
    }

    #[test]
    fn length_out_of_range_is_an_error_with_its_offset() {
        for field in [[0, 0, 0, 3], [0x40, 0, 0, 1], [0xff; 4]] {
            let mut chunk = b"..Q".to_vec();
            chunk.extend_from_slice(&field);
            let error = Scanner::new(64).step(&chunk, 2, stream).expect_err("the length is out of range");
            assert_eq!(error.offset, 3);
            let mut scanner = Scanner::new(64);
            scanner.step(&chunk[2..4], 0, stream).expect("a part of a header is no error");
            assert!(scanner.step(&chunk[4..], 0, stream).is_err());
        }
    }

    #[test]
    fn offset_beyond_the_chunk_is_its_end() -> Result<(), DecodeError> {
        let mut scanner = Scanner::new(64);
        assert_eq!(scanner.step(b"Q", 5, whole)?, ScanStep::NeedMore);
        assert!(scanner.is_between_messages());
        scanner.step(b"Q\0\0\0\x09ab", 0, whole)?;
        assert_eq!(scanner.step(b"c", usize::MAX, whole)?, ScanStep::NeedMore);
        Ok(())
    }

    #[test]
    fn run_ends_before_a_partial_or_other_message() -> Result<(), DecodeError> {
        let rows = &b"D\0\0\0\x05aD\0\0\0\x04D\0\0\0\x06bc"[..];
        let scanner = Scanner::new(64);
        for behind in [&b"C\0\0\0\x04"[..], b"", b"D\0\0", b"D\0\0\0\x05", b"D\0\0\0\x03"] {
            let chunk = [rows, behind].concat();
            assert_eq!(scanner.run(&chunk, 0, b'D'), rows.len(), "{behind:?}");
            assert_eq!(scanner.run(&chunk, 0, b'd'), 0);
            assert_eq!(scanner.run(&chunk, chunk.len() + 1, b'D'), chunk.len() + 1);
        }
        let mut open = Scanner::new(64);
        assert_eq!(
            open.step(b"D\0\0\0\x09a", 0, stream)?,
            ScanStep::Stream { tag: b'D', end: 6, first: true, last: false }
        );
        assert_eq!(open.run(rows, 0, b'D'), 0, "these are the body of another");
        Ok(())
    }
}
