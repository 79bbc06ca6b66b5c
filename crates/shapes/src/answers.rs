//! Parts of logs as texts of answers, shared by all requests for the same part.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use rustc_hash::FxHashMap;
use tokio::sync::{OnceCell, Semaphore};

use crate::offset::LogOffset;
use crate::run::{push_events, push_messages};
use crate::shape::{Extent, LogSlice, Shape, ShapeId};
use crate::store::Store;

/// Limit of concurrent reads of the disk.
const READS_MAX: usize = 16;
/// A read is repeated if its segment was copied meanwhile.
const ATTEMPTS_MAX: usize = 3;
/// A larger chunk of a snapshot is not shared, but read piece by piece while it is sent.
const SHARED_CHUNK_MAX: u64 = 1 << 20;
/// How long a text is kept: idle shapes keep none.
const AGE_MAX: Duration = Duration::from_secs(10);

type AnswerKey = (ShapeId, Option<LogOffset>, LogOffset, MessageForm);

/// How messages are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MessageForm {
    /// Separated by commas.
    Json,
    /// As server-sent events.
    Events,
}

/// A part of a log.
#[derive(Debug)]
pub(crate) enum LogPart {
    /// The text, shared with other answers.
    Text(Bytes),
    /// A large chunk of a snapshot, and its length in bytes.
    Chunk(ChunkReader, u64),
}

/// The texts, bounded by their bytes and age; the oldest is dropped first.
#[derive(Debug)]
pub(crate) struct AnswerCache {
    entries: Mutex<AnswerEntries>,
    bytes_max: usize,
    reader: ExtentReader,
}

#[derive(Debug, Default)]
struct AnswerEntries {
    cells: FxHashMap<AnswerKey, Arc<OnceCell<Bytes>>>,
    order: VecDeque<AnswerEntry>,
    bytes: usize,
}

#[derive(Debug)]
struct AnswerEntry {
    key: AnswerKey,
    len: usize,
    made: Instant,
}

impl AnswerEntries {
    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.order.pop_front() {
            self.bytes -= oldest.len;
            self.cells.remove(&oldest.key);
        }
    }
}

impl AnswerCache {
    /// An empty cache.
    #[must_use]
    pub(crate) fn new(store: Store, bytes_max: usize) -> Self {
        let reader = ExtentReader { store, turns: Arc::new(Semaphore::new(READS_MAX)) };
        Self { entries: Mutex::default(), bytes_max, reader }
    }

    /// A part of a log as the body of an answer.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub(crate) async fn part(&self, shape: &Arc<Shape>, slice: LogSlice) -> io::Result<LogPart> {
        if slice.end.is_in_snapshot() {
            let (pieces, len) = shape.log().chunk(slice.end);
            if len > SHARED_CHUNK_MAX {
                let chunk = ChunkReader { shape: Arc::clone(shape), pieces, reader: self.reader.clone() };
                return Ok(LogPart::Chunk(chunk, len));
            }
        }
        self.messages(shape, slice, MessageForm::Json).await.map(LogPart::Text)
    }

    /// The messages of a part of a log. Concurrent requests for one part read it once.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub(crate) async fn messages(&self, shape: &Arc<Shape>, slice: LogSlice, form: MessageForm) -> io::Result<Bytes> {
        let key = (shape.id, slice.after, slice.end, form);
        let cell = Arc::clone(self.lock().cells.entry(key).or_default());
        if let Some(bytes) = cell.get() {
            return Ok(bytes.clone());
        }
        let made = cell.get_or_try_init(|| async {
            let bytes = self.read(shape, slice, form).await?;
            self.account(key, bytes.len());
            Ok(bytes)
        });
        match made.await {
            Ok(bytes) => Ok(bytes.clone()),
            Err(error) => {
                self.lock().cells.remove(&key);
                Err(error)
            }
        }
    }

    async fn read(&self, shape: &Arc<Shape>, slice: LogSlice, form: MessageForm) -> io::Result<Bytes> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let extents = shape.log().extents(slice);
            match self.reader.read(extents, move |parts| join(&parts, slice, form)).await {
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS_MAX => {}
                other => return other,
            }
        }
    }

    fn account(&self, key: AnswerKey, len: usize) {
        let mut entries = self.lock();
        // An empty text has its share of the map.
        let len = len + size_of::<AnswerKey>() * 4;
        entries.order.push_back(AnswerEntry { key, len, made: Instant::now() });
        entries.bytes += len;
        while entries.bytes > self.bytes_max {
            entries.drop_oldest();
        }
    }

    /// Drops texts that are old.
    pub(crate) fn expire(&self) {
        let mut entries = self.lock();
        while entries.order.front().is_some_and(|entry| entry.made.elapsed() > AGE_MAX) {
            entries.drop_oldest();
        }
        if entries.order.is_empty() {
            entries.cells.shrink_to_fit();
            entries.order.shrink_to_fit();
        }
    }

    /// A holder that panicked left consistent entries: each section makes one change.
    fn lock(&self) -> MutexGuard<'_, AnswerEntries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A position, and the end of what follows it.
type LivePosition = (ShapeId, Option<LogOffset>, LogOffset);

/// An answer for all clients that wait at one position.
#[derive(Debug)]
pub(crate) struct LiveAnswer {
    pub(crate) body: Bytes,
    /// A copy of these costs less than the headers one by one.
    pub(crate) headers: HeaderMap,
}

/// The answers to clients that wait now.
#[derive(Debug, Default)]
pub(crate) struct LiveAnswers(Mutex<FxHashMap<LivePosition, Arc<LiveAnswer>>>);

impl LiveAnswers {
    /// More simultaneous positions are rare: the map is emptied.
    const POSITIONS_MAX: usize = 256;

    pub(crate) fn get(&self, position: LivePosition) -> Option<Arc<LiveAnswer>> {
        self.lock().get(&position).cloned()
    }

    pub(crate) fn insert(&self, position: LivePosition, answer: LiveAnswer) {
        let mut answers = self.lock();
        if answers.len() >= Self::POSITIONS_MAX {
            answers.clear();
        }
        answers.insert(position, Arc::new(answer));
    }

    /// Drops all answers: the clients that waited have them.
    pub(crate) fn clear(&self) {
        *self.lock() = FxHashMap::default();
    }

    /// A holder that panicked left a consistent map: each section makes one change.
    fn lock(&self) -> MutexGuard<'_, FxHashMap<LivePosition, Arc<LiveAnswer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a large chunk of a snapshot piece by piece.
#[derive(Debug)]
pub(crate) struct ChunkReader {
    shape: Arc<Shape>,
    pieces: Range<usize>,
    reader: ExtentReader,
}

impl ChunkReader {
    /// The next piece; `None` after the last one.
    ///
    /// # Errors
    /// If it cannot be read, as when the shape was removed.
    pub(crate) async fn next(&mut self) -> Option<io::Result<Bytes>> {
        let number = self.pieces.next()?;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let piece = self.shape.log().pieces.get(number).cloned();
            let Some(piece) = piece else { return Some(Err(io::ErrorKind::NotFound.into())) };
            match self.reader.read(vec![piece], |parts| Ok(parts.into_iter().next().unwrap_or_default())).await {
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS_MAX => {}
                other => return Some(other),
            }
        }
    }

    /// The shape.
    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }
}

/// Reads extents in threads of their own, a few concurrently.
#[derive(Clone, Debug)]
struct ExtentReader {
    store: Store,
    turns: Arc<Semaphore>,
}

impl ExtentReader {
    /// Reads extents and joins them.
    async fn read<J>(&self, extents: Vec<Extent>, join: J) -> io::Result<Bytes>
    where
        J: FnOnce(Vec<Bytes>) -> io::Result<Bytes> + Send + 'static,
    {
        let cached: Option<Vec<Bytes>> = extents.iter().map(|extent| extent.bytes.as_deref().cloned()).collect();
        if let Some(parts) = cached {
            return join(parts);
        }
        let _turn = self.turns.acquire().await.map_err(io::Error::other)?;
        let store = self.store.clone();
        let read = move || join(extents.iter().map(|extent| store.read(extent)).collect::<io::Result<_>>()?);
        tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?
    }
}

fn join(parts: &[Bytes], slice: LogSlice, form: MessageForm) -> io::Result<Bytes> {
    if slice.end.is_in_snapshot() {
        return match parts {
            [] => Err(io::ErrorKind::NotFound.into()),
            [whole] => Ok(whole.clone()),
            pieces => Ok(pieces.concat().into()),
        };
    }
    let after = slice.after.unwrap_or(LogOffset::SNAPSHOT_END).max(LogOffset::SNAPSHOT_END);
    let mut out = Vec::new();
    for run in parts {
        match form {
            MessageForm::Json => push_messages(&mut out, run, after, slice.end),
            MessageForm::Events => push_events(&mut out, run, after, slice.end),
        }
    }
    Ok(out.into())
}
