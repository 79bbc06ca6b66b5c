//! The thread that reads ahead, and the bounded queue between it and the source.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::line::Format;
use crate::record::{Position, Record};

/// Lines are handed over when so many bytes of them are there, or nothing more can be had without waiting.
const CHUNK_BYTES: usize = 64 << 10;
const BUFFER_BYTES: usize = 256 << 10;
/// Of UTF-8: some programs begin a file with it, and it is no part of the first line.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

type Chunk = (Vec<Record>, usize);

#[derive(Debug, Default)]
struct Queue {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    failed: Option<io::Error>,
    /// Nothing more comes.
    is_over: bool,
    /// Nobody wants more.
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

/// The source's end of the queue.
#[derive(Debug)]
pub(super) struct Lines(Arc<Shared>);

impl Lines {
    /// The next lines, an error after the last of them, or nothing after the end.
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
        if queue.is_over {
            return Poll::Ready(None);
        }
        queue.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(super) fn buffered_bytes(&self) -> usize {
        self.0.lock().bytes
    }
}

/// The thread ends before it reads on.
impl Drop for Lines {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.room.notify_one();
    }
}

/// The thread's end of the queue.
pub(super) struct Reader<R> {
    input: BufReader<R>,
    format: Format,
    /// Where the next line begins.
    at: u64,
    chunk: Chunk,
    shared: Arc<Shared>,
}

impl<R: Read + Send + 'static> Reader<R> {
    pub(super) fn new(input: R, from: u64, format: Format) -> Self {
        let input = BufReader::with_capacity(BUFFER_BYTES, input);
        Self { input, format, at: from, chunk: (Vec::new(), 0), shared: Arc::default() }
    }

    pub(super) fn start(mut self) -> io::Result<Lines> {
        let lines = Lines(Arc::clone(&self.shared));
        std::thread::Builder::new().name("ndjson".to_owned()).spawn(move || self.run())?;
        Ok(lines)
    }

    fn run(&mut self) {
        let result = self.read_all();
        self.hand_over();
        let mut queue = self.shared.lock();
        queue.failed = result.err();
        queue.is_over = true;
        let waker = queue.waker.take();
        drop(queue);
        waker.into_iter().for_each(Waker::wake);
    }

    fn read_all(&mut self) -> io::Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut self.input).take(self.format.line_max as u64 + 1).read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok(());
            }
            let begins = self.at == 0;
            let is_cut_off = line.len() > self.format.line_max && line.last() != Some(&b'\n');
            self.at += line.len() as u64;
            if is_cut_off {
                line.truncate(self.format.line_max);
                self.at += skip_line(&mut self.input)?;
            }
            let text = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| begins).unwrap_or(&line);
            self.keep(text.trim_ascii(), is_cut_off);
            let has_more = self.input.buffer().contains(&b'\n');
            if (self.chunk.1 >= CHUNK_BYTES || !has_more) && !self.hand_over() {
                return Ok(());
            }
        }
    }

    fn keep(&mut self, line: &[u8], is_cut_off: bool) {
        if !line.is_empty() {
            let record = self.format.record(line, Position(self.at), is_cut_off);
            self.chunk.1 += record.size_bytes();
            self.chunk.0.push(record);
        }
    }

    /// Hands over what was read, once there is room. `false` if nobody wants more.
    fn hand_over(&mut self) -> bool {
        let (records, bytes) = std::mem::take(&mut self.chunk);
        let most = self.format.ahead_max;
        let queue = self.shared.lock();
        let is_full = |queue: &mut Queue| queue.bytes > 0 && queue.bytes + bytes > most && !queue.is_closed;
        let mut queue = self.shared.room.wait_while(queue, is_full).unwrap_or_else(PoisonError::into_inner);
        if !records.is_empty() {
            queue.bytes += bytes;
            queue.chunks.push_back((records, bytes));
        }
        let (waker, is_wanted) = (queue.waker.take(), !queue.is_closed);
        drop(queue);
        waker.into_iter().for_each(Waker::wake);
        is_wanted
    }
}

/// Reads to the end of the line, keeping nothing; how many bytes that was.
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
