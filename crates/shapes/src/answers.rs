//! Parts of logs as texts of answers, shared by all requests for the same part.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
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

type AnswerKey = (ShapeId, Option<LogOffset>, LogOffset, MessageForm);

/// How messages are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MessageForm {
    /// Separated by commas.
    Json,
    /// As server-sent events.
    Events,
}

/// The texts, bounded by their bytes; the oldest is dropped first.
#[derive(Debug)]
pub(crate) struct AnswerCache {
    entries: Mutex<AnswerEntries>,
    bytes_max: usize,
    reads: Arc<Semaphore>,
    store: Store,
}

#[derive(Debug, Default)]
struct AnswerEntries {
    cells: FxHashMap<AnswerKey, Arc<OnceCell<Bytes>>>,
    order: VecDeque<(AnswerKey, usize)>,
    bytes: usize,
}

impl AnswerCache {
    /// An empty cache.
    #[must_use]
    pub(crate) fn new(store: Store, bytes_max: usize) -> Self {
        Self { entries: Mutex::default(), bytes_max, reads: Arc::new(Semaphore::new(READS_MAX)), store }
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
            let found = if extents.iter().all(|extent| extent.bytes.is_some()) {
                join(&self.store, &extents, slice, form)
            } else {
                let _turn = self.reads.acquire().await.map_err(io::Error::other)?;
                let store = self.store.clone();
                tokio::task::spawn_blocking(move || join(&store, &extents, slice, form))
                    .await
                    .map_err(io::Error::other)?
            };
            match found {
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS_MAX => {}
                other => return other,
            }
        }
    }

    fn account(&self, key: AnswerKey, len: usize) {
        let mut entries = self.lock();
        // An empty text has its share of the map.
        let len = len + size_of::<AnswerKey>() * 4;
        entries.order.push_back((key, len));
        entries.bytes += len;
        while entries.bytes > self.bytes_max {
            let Some((oldest, len)) = entries.order.pop_front() else { break };
            entries.bytes -= len;
            entries.cells.remove(&oldest);
        }
    }

    /// A holder that panicked left consistent entries: each section makes one change.
    fn lock(&self) -> MutexGuard<'_, AnswerEntries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn join(store: &Store, extents: &[Extent], slice: LogSlice, form: MessageForm) -> io::Result<Bytes> {
    if slice.end.is_in_snapshot() {
        let chunk = extents.first().ok_or(io::ErrorKind::NotFound)?;
        return store.read(chunk);
    }
    let after = slice.after.unwrap_or(LogOffset::SNAPSHOT_END).max(LogOffset::SNAPSHOT_END);
    let mut out = Vec::new();
    for extent in extents {
        let run = store.read(extent)?;
        match form {
            MessageForm::Json => push_messages(&mut out, &run, after, slice.end),
            MessageForm::Events => push_events(&mut out, &run, after, slice.end),
        }
    }
    Ok(out.into())
}
