//! The reader thread, and the bounded queue between it and the source.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::format::NdjsonFormat;
use crate::record::{Position, Record};

/// A chunk is sent once it has this many bytes, or if reading on would block.
const CHUNK_BYTES: usize = 64 << 10;
const BUFFER_BYTES: usize = 256 << 10;
/// The UTF-8 byte order mark, which some programs write at the start of a file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

type Chunk = (Vec<Record>, usize);

#[derive(Debug, Default)]
struct Queue {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    failed: Option<io::Error>,
    /// The thread sends nothing more.
    is_finished: bool,
    /// The source was dropped.
    is_closed: bool,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    room: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The receiving end of the queue.
#[derive(Debug)]
pub(super) struct LineReceiver(Arc<Shared>);

impl LineReceiver {
    /// The next lines; after the last of them an error or `None`.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Vec<Record>>>> {
        let mut queue = self.0.lock();
        if let Some((records, bytes)) = queue.chunks.pop_front() {
            queue.bytes -= bytes;
            self.0.room.notify_one();
            return Poll::Ready(Some(Ok(records)));
        }
        if let Some(error) = queue.failed.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if queue.is_finished {
            return Poll::Ready(None);
        }
        queue.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(super) fn buffered_bytes(&self) -> usize {
        self.0.lock().bytes
    }
}

/// Ends the thread before its next read.
impl Drop for LineReceiver {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.room.notify_one();
    }
}

/// The sending end of the queue.
pub(super) struct LineReader<R> {
    input: BufReader<R>,
    format: NdjsonFormat,
    /// The start of the next line.
    at: u64,
    chunk: Chunk,
    shared: Arc<Shared>,
}

impl<R: Read + Send + 'static> LineReader<R> {
    pub(super) fn new(input: R, from: u64, format: NdjsonFormat) -> Self {
        let input = BufReader::with_capacity(BUFFER_BYTES, input);
        Self { input, format, at: from, chunk: (Vec::new(), 0), shared: Arc::default() }
    }

    pub(super) fn start(mut self) -> io::Result<LineReceiver> {
        let lines = LineReceiver(Arc::clone(&self.shared));
        std::thread::Builder::new().name("ndjson".to_owned()).spawn(move || self.run())?;
        Ok(lines)
    }

    fn run(&mut self) {
        // The input is the caller's. Without a result, the source would wait for ever.
        let result = catch_unwind(AssertUnwindSafe(|| self.read_all()))
            .unwrap_or_else(|_| Err(io::Error::other("the input panicked")));
        self.send_chunk();
        let mut queue = self.shared.lock();
        queue.failed = result.err();
        queue.is_finished = true;
        let waker = queue.waker.take();
        drop(queue);
        waker.into_iter().for_each(Waker::wake);
    }

    fn read_all(&mut self) -> io::Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut self.input)
                .take((self.format.line_bytes_max as u64).saturating_add(1))
                .read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok(());
            }
            let begins = self.at == 0;
            let is_truncated = line.len() > self.format.line_bytes_max && line.last() != Some(&b'\n');
            self.at += line.len() as u64;
            if is_truncated {
                line.truncate(self.format.line_bytes_max);
                self.at += skip_line(&mut self.input)?;
            }
            let text = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| begins).unwrap_or(&line);
            self.keep(text.trim_ascii(), is_truncated);
            let has_more = self.input.buffer().contains(&b'\n');
            if (self.chunk.1 >= CHUNK_BYTES || !has_more) && !self.send_chunk() {
                return Ok(());
            }
        }
    }

    fn keep(&mut self, line: &[u8], is_truncated: bool) {
        if !line.is_empty() {
            let record = self.format.record(line, Position(self.at), is_truncated);
            self.chunk.1 += record.size_bytes();
            self.chunk.0.push(record);
        }
    }

    /// Waits for room and sends the chunk. `false` if the receiver was dropped.
    fn send_chunk(&mut self) -> bool {
        let (records, bytes) = std::mem::take(&mut self.chunk);
        let most = self.format.read_ahead_bytes_max;
        let queue = self.shared.lock();
        let is_full = |queue: &mut Queue| queue.bytes > 0 && queue.bytes + bytes > most && !queue.is_closed;
        let mut queue = self.shared.room.wait_while(queue, is_full).unwrap_or_else(PoisonError::into_inner);
        if !records.is_empty() {
            queue.bytes += bytes;
            queue.chunks.push_back((records, bytes));
        }
        let (waker, continues) = (queue.waker.take(), !queue.is_closed);
        drop(queue);
        waker.into_iter().for_each(Waker::wake);
        continues
    }
}

/// Skips to the end of the line and returns the number of bytes skipped.
fn skip_line(input: &mut impl BufRead) -> io::Result<u64> {
    let mut skipped = 0;
    loop {
        let buffer = input.fill_buf()?;
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(buffer.len(), |end| end + 1);
        input.consume(used);
        skipped += used as u64;
        if end.is_some() || used == 0 {
            return Ok(skipped);
        }
    }
}
