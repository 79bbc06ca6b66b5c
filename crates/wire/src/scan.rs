//! Finds the ends of messages in a stream of chunks, and looks at nothing but headers.
//!
//! A gateway forwards most messages unread, by byte range. [`Scanner`] tells the ranges. Only where a message that is
//! wanted whole is split over chunks are its bytes copied, into a buffer that is given back when the message is done:
//! between messages a scanner owns no heap.
//!
//! | the message | `Want::Whole` | `Want::Stream` |
//! |---|---|---|
//! | lies in one chunk | `Message` | `Message` |
//! | is split after its header | `NeedMore`..., `Carried` | `Stream { first: true }`, `Stream`..., `Stream { last: true }` |
//! | is split within its header | `NeedMore`..., `Carried` | `NeedMore`..., `StreamHead`, `Stream`..., `Stream { last: true }` |
//!
//! One special case: a message without a body whose header is split is complete with its header, so it comes out as
//! `Carried`, whatever was wanted.

use crate::error::{DecodeError, Reason};
use crate::frame::{HEADER, Header};

/// What the caller needs of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// The full body, in one piece.
    Whole,
    /// Nothing but its byte ranges: it is forwarded unread.
    Stream,
}

/// What [`Scanner::step`] found at `chunk[at..]`. The next step starts at `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// `chunk[at..end]` is a whole message: its header is `at..at + 5`, its body `at + 5..end`.
    Message {
        /// What kind of message it is.
        tag: u8,
        /// The byte after it.
        end: usize,
    },
    /// `chunk[at..end]` completes a message that began in an earlier chunk; [`Scanner::carry`] is all of it, its header
    /// included.
    Carried {
        /// What kind of message it is.
        tag: u8,
        /// The byte after it.
        end: usize,
    },
    /// `chunk[at..end]` completes the header of a streamed message that began in an earlier chunk;
    /// [`Scanner::carry`] is that header, five bytes. Its body, which is not empty, follows as [`Step::Stream`] with
    /// `first: false`.
    StreamHead {
        /// What kind of message it is.
        tag: u8,
        /// The byte after the header.
        end: usize,
    },
    /// `chunk[at..end]` is a piece of a streamed message that does not lie wholly in one chunk.
    Stream {
        /// What kind of message it is.
        tag: u8,
        /// The byte after the piece.
        end: usize,
        /// The piece begins with the message's header.
        first: bool,
        /// The piece ends the message.
        last: bool,
    },
    /// The chunk is used up: what was left of it is kept in the scanner, or there was nothing left.
    NeedMore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No message is open, `carry` is empty.
    Between,
    /// `carry` holds the beginning of a message: a part of its header, or its header and a part of its body.
    Carrying,
    /// `carry` holds what the last step told of; no message is open.
    Carried,
    /// `left` bytes of a streamed message are still to come; `carry` may hold its header if the last step told of it.
    Streaming,
}

/// Where one direction of a connection is in its stream of messages. See the [module](self).
///
/// After an error the stream has no message boundaries any more: the connection can only be closed.
///
/// ```
/// use tidegate_wire::{frontend, scan::{Scanner, Step, Want}};
/// let mut chunk = Vec::new();
/// frontend::query(b"select 1", &mut chunk);
/// let mut scanner = Scanner::new(16 << 20);
/// let step = scanner.step(&chunk, 0, |_| Want::Stream)?;
/// assert_eq!(step, Step::Message { tag: frontend::QUERY, end: chunk.len() });
/// assert_eq!(scanner.step(&chunk, chunk.len(), |_| Want::Stream)?, Step::NeedMore);
/// assert!(scanner.is_between_messages());
/// # Ok::<(), tidegate_wire::DecodeError>(())
/// ```
#[derive(Debug)]
pub struct Scanner {
    carry: Vec<u8>,
    limit_whole: usize,
    /// Bytes of the streamed message that are still to come.
    left: u32,
    /// Tag of the streamed message.
    tag: u8,
    state: State,
}

impl Scanner {
    /// A scanner between messages. A message that is wanted whole may have `limit_whole` bytes, its header included;
    /// streamed messages are bounded by [`LEN_MAX`](crate::frame::LEN_MAX) only.
    #[must_use]
    pub const fn new(limit_whole: usize) -> Self {
        Self { carry: Vec::new(), limit_whole, left: 0, tag: 0, state: State::Between }
    }

    /// Looks at `chunk[at..]`. `want` says per tag what is needed; it has to give the same answer for the same message
    /// however often it is asked, and is not asked where the answer makes no difference.
    ///
    /// The caller steps through a chunk until [`Step::NeedMore`]. An `at` beyond the chunk counts as its end.
    ///
    /// # Errors
    /// A length out of range, or a message wanted whole that is longer than the limit. The offset counts from the start
    /// of `chunk`; for a header that began in an earlier chunk it is `at`.
    #[inline]
    pub fn step(&mut self, chunk: &[u8], at: usize, want: impl Fn(u8) -> Want) -> Result<Step, DecodeError> {
        if self.state == State::Between { self.begin(chunk, at, want) } else { self.resume(chunk, at, want) }
    }

    #[inline]
    fn begin(&mut self, chunk: &[u8], at: usize, want: impl Fn(u8) -> Want) -> Result<Step, DecodeError> {
        let rest = chunk.get(at..).unwrap_or_default();
        let Some(head) = rest.first_chunk::<HEADER>() else {
            return Ok(self.keep(rest));
        };
        let header = Header::read(head, at)?;
        let total = header.total();
        if total > self.limit_whole {
            self.check_limit(header, at, &want)?;
        }
        if total <= rest.len() {
            return Ok(Step::Message { tag: header.tag, end: at + total });
        }
        match want(header.tag) {
            Want::Whole => Ok(self.keep(rest)),
            Want::Stream => Ok(self.open_stream(header, rest.len(), chunk.len())),
        }
    }

    /// The end of the run of whole messages `tag` at `chunk[at..]`, so that a million rows need not a million steps. It is `at`
    /// if none stands there, or if a message is open. Whatever is not in order is left to the next step.
    #[must_use]
    #[inline]
    pub fn run(&self, chunk: &[u8], mut at: usize, tag: u8) -> usize {
        if self.state != State::Between {
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

    /// What the last step told of: the message of [`Step::Carried`] or the header of [`Step::StreamHead`]. Valid until
    /// the next step.
    #[must_use]
    pub fn carry(&self) -> &[u8] {
        &self.carry
    }

    /// Takes [`Scanner::carry`] out. To be called after [`Step::Carried`] or [`Step::StreamHead`]; while a message is
    /// being collected there is nothing to take.
    #[must_use]
    pub fn take_carry(&mut self) -> Vec<u8> {
        match self.state {
            State::Carried | State::Streaming => std::mem::take(&mut self.carry),
            State::Between | State::Carrying => Vec::new(),
        }
    }

    /// A streamed message is open: some of it has been told of, the rest is still to come.
    #[must_use]
    pub fn is_streaming(&self) -> bool {
        self.state == State::Streaming
    }

    /// Takes back the kept beginning of a message of which nothing has been told yet, empty if there is none. The
    /// scanner is then between messages; the bytes belong in front of the next chunk.
    #[must_use]
    pub fn take_unfinished(&mut self) -> Vec<u8> {
        match self.state {
            State::Carrying => {
                self.state = State::Between;
                std::mem::take(&mut self.carry)
            }
            _ => Vec::new(),
        }
    }

    /// No message is open, neither a kept nor a streamed one.
    #[must_use]
    pub fn is_between_messages(&self) -> bool {
        matches!(self.state, State::Between | State::Carried)
    }

    /// Bytes of the open streamed message that are still to come, 0 if none is open.
    #[must_use]
    pub fn stream_left(&self) -> usize {
        self.left as usize
    }

    #[cold]
    fn check_limit(&self, header: Header, at: usize, want: &impl Fn(u8) -> Want) -> Result<(), DecodeError> {
        match want(header.tag) {
            Want::Stream => Ok(()),
            Want::Whole => {
                let reason = Reason::Length { len: header.total(), min: HEADER, max: self.limit_whole };
                Err(DecodeError::new(at, reason))
            }
        }
    }

    /// Keeps the beginning of a message. The buffer grows with what has arrived, never with what a header promises.
    fn keep(&mut self, rest: &[u8]) -> Step {
        if !rest.is_empty() {
            self.carry.extend_from_slice(rest);
            self.state = State::Carrying;
        }
        Step::NeedMore
    }

    fn open_stream(&mut self, header: Header, here: usize, end: usize) -> Step {
        self.left = (header.total() - here) as u32;
        self.tag = header.tag;
        self.state = State::Streaming;
        Step::Stream { tag: header.tag, end, first: true, last: false }
    }

    fn resume(&mut self, chunk: &[u8], at: usize, want: impl Fn(u8) -> Want) -> Result<Step, DecodeError> {
        match self.state {
            State::Between => self.begin(chunk, at, want),
            State::Carried => {
                self.carry = Vec::new();
                self.state = State::Between;
                self.begin(chunk, at, want)
            }
            State::Streaming => Ok(self.stream(chunk, at)),
            State::Carrying => self.complete(chunk, at, want),
        }
    }

    fn stream(&mut self, chunk: &[u8], at: usize) -> Step {
        self.carry = Vec::new();
        let here = chunk.len().saturating_sub(at).min(self.left as usize);
        if here == 0 {
            return Step::NeedMore;
        }
        self.left -= here as u32;
        let last = self.left == 0;
        if last {
            self.state = State::Between;
        }
        Step::Stream { tag: self.tag, end: at + here, first: false, last }
    }

    /// Adds to the kept beginning first what its header lacks, then what its body lacks.
    fn complete(&mut self, chunk: &[u8], at: usize, want: impl Fn(u8) -> Want) -> Result<Step, DecodeError> {
        let mut end = at;
        if self.carry.len() < HEADER {
            end = self.fill(HEADER, chunk, end);
            let Some(header) = Header::peek(&self.carry).map_err(|error| DecodeError { offset: at, ..error })? else {
                return Ok(Step::NeedMore);
            };
            self.check_limit_of_carried(header, at, &want)?;
            if header.total() > HEADER && want(header.tag) == Want::Stream {
                return Ok(self.open_carried_stream(header, end));
            }
        }
        let Some(header) = Header::peek(&self.carry)? else {
            return Ok(Step::NeedMore);
        };
        end = self.fill(header.total(), chunk, end);
        if self.carry.len() < header.total() {
            return Ok(Step::NeedMore);
        }
        self.state = State::Carried;
        Ok(Step::Carried { tag: header.tag, end })
    }

    fn check_limit_of_carried(&self, header: Header, at: usize, want: &impl Fn(u8) -> Want) -> Result<(), DecodeError> {
        if header.total() > self.limit_whole { self.check_limit(header, at, want) } else { Ok(()) }
    }

    fn open_carried_stream(&mut self, header: Header, end: usize) -> Step {
        self.left = header.len - 4;
        self.tag = header.tag;
        self.state = State::Streaming;
        Step::StreamHead { tag: header.tag, end }
    }

    /// Adds bytes of `chunk[at..]` until `target` bytes are kept; the end of what was added.
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

    fn whole(_: u8) -> Want {
        Want::Whole
    }

    fn stream(_: u8) -> Want {
        Want::Stream
    }

    #[test]
    fn a_scanner_is_small() {
        assert!(size_of::<Scanner>() <= 48);
    }

    #[test]
    fn a_scanner_between_messages_owns_no_heap() -> Result<(), DecodeError> {
        let message = b"Q\0\0\0\x06a\0";
        for want in [whole, stream] {
            for cut in 1..message.len() {
                let mut scanner = Scanner::new(64);
                let (mut at, first, second) = (0, &message[..cut], &message[cut..]);
                assert!(matches!(scanner.step(first, 0, want)?, Step::NeedMore | Step::Stream { .. }));
                while let Step::Carried { end, .. } | Step::StreamHead { end, .. } | Step::Stream { end, .. } =
                    scanner.step(second, at, want)?
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
    fn a_promised_length_allocates_nothing() -> Result<(), DecodeError> {
        let mut scanner = Scanner::new(1 << 30);
        scanner.step(b"Q\x3f\0\0\0abc", 0, whole)?;
        assert!(scanner.carry.capacity() < 64);
        Ok(())
    }

    #[test]
    fn a_split_header_of_a_stream_comes_out_alone() -> Result<(), DecodeError> {
        let mut scanner = Scanner::new(0);
        assert_eq!(scanner.step(b"d\0\0", 0, stream)?, Step::NeedMore);
        assert!(!scanner.is_between_messages());
        let chunk = b"\0\x08abcdZ";
        assert_eq!(scanner.step(chunk, 0, stream)?, Step::StreamHead { tag: b'd', end: 2 });
        assert_eq!(scanner.carry(), b"d\0\0\0\x08");
        assert_eq!(scanner.stream_left(), 4);
        let piece = Step::Stream { tag: b'd', end: 6, first: false, last: true };
        assert_eq!(scanner.step(chunk, 2, stream)?, piece);
        assert!(scanner.carry().is_empty());
        Ok(())
    }

    #[test]
    fn a_split_header_without_body_is_carried_whatever_was_wanted() -> Result<(), DecodeError> {
        for want in [whole, stream] {
            let mut scanner = Scanner::new(64);
            scanner.step(b"S\0\0", 0, want)?;
            assert_eq!(scanner.step(b"\0\x04", 0, want)?, Step::Carried { tag: b'S', end: 2 });
            assert_eq!(scanner.take_carry(), b"S\0\0\0\x04");
            assert!(scanner.is_between_messages());
        }
        Ok(())
    }

    #[test]
    fn the_limit_holds_for_whole_messages_however_they_are_split() {
        let message = b"Q\0\0\0\x08abcd";
        let reason = Reason::Length { len: 9, min: 5, max: 8 };
        for cut in 0..message.len() {
            let mut scanner = Scanner::new(8);
            let (first, second) = message.split_at(cut);
            let result = scanner.step(first, 0, whole).and_then(|_| scanner.step(second, 0, whole));
            assert_eq!(result, Err(DecodeError { offset: 0, reason }), "cut at {cut}");
            assert_eq!(Scanner::new(8).step(message, 0, stream), Ok(Step::Message { tag: b'Q', end: 9 }));
        }
    }

    #[test]
    fn a_length_out_of_range_is_an_error_with_its_place() {
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
    fn a_place_beyond_the_chunk_is_its_end() -> Result<(), DecodeError> {
        let mut scanner = Scanner::new(64);
        assert_eq!(scanner.step(b"Q", 5, whole)?, Step::NeedMore);
        assert!(scanner.is_between_messages());
        scanner.step(b"Q\0\0\0\x09ab", 0, whole)?;
        assert_eq!(scanner.step(b"c", usize::MAX, whole)?, Step::NeedMore);
        Ok(())
    }

    #[test]
    fn a_run_ends_before_what_is_no_whole_message_of_its_kind() -> Result<(), DecodeError> {
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
            Step::Stream { tag: b'D', end: 6, first: true, last: false }
        );
        assert_eq!(open.run(rows, 0, b'D'), 0, "these are the body of another");
        Ok(())
    }
}
