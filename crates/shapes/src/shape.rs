//! A shape: its log, and the requests that wait for it.
//!
//! An idle shape is this value and nothing else: no task, no file, no timer.

use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::definition::ShapeDefinition;
use crate::handle::ShapeHandle;
use crate::offset::LogOffset;
use crate::row_form::TransactionSnapshot;

/// Identifies a shape on disk and in the router.
pub(crate) type ShapeId = u64;

/// Where the bytes of an extent are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskPlace {
    /// Number of the segment.
    pub segment: u32,
    /// Offset of the payload in the segment.
    pub offset: u32,
    /// Length of the payload.
    pub len: u32,
}

/// A contiguous part of a log.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The last position in it.
    pub last: LogOffset,
    /// Where it is stored; none before it was written.
    pub place: Option<DiskPlace>,
    /// The bytes while they are cached, and always before they are written. In a box, because most extents have none.
    pub bytes: Option<Box<Bytes>>,
}

impl Extent {
    /// An extent that is not stored yet.
    #[must_use]
    pub fn unwritten(last: LogOffset, bytes: Bytes) -> Self {
        Self { last, place: None, bytes: Some(Box::new(bytes)) }
    }
}

/// Selects the transactions that the snapshot does not have.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SnapshotFilter {
    /// The transactions that the snapshot has.
    pub snapshot: TransactionSnapshot,
    /// A transaction with a commit record at or after this position is not in the snapshot.
    pub until_lsn: u64,
}

impl SnapshotFilter {
    /// Whether the snapshot has the changes of a transaction.
    #[must_use]
    pub fn has(&self, xid: u64, commit_lsn: u64) -> bool {
        commit_lsn < self.until_lsn && self.snapshot.sees(xid)
    }
}

/// Progress of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapePhase {
    /// The snapshot query has not begun.
    Starting,
    /// Chunks of the snapshot arrive.
    Snapshotting,
    /// The snapshot is complete.
    Complete,
    /// The snapshot failed, for the reason in [`RareState`]; the shape is removed.
    Failed,
    /// The shape was removed; clients have to load another one.
    Removed,
}

/// Why there is no snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotFailure {
    /// The definition cannot be served; the client gets status 400.
    #[error("{text}")]
    Refused {
        /// The parameter that has to change.
        field: &'static str,
        /// The reason.
        text: String,
    },
    /// The database cannot serve it now.
    #[error("{0}")]
    Unavailable(String),
    /// The table has changed since the definition was checked (SH-06).
    #[error("the table has changed")]
    Changed,
}

/// The positions of a log, and where its bytes are. Idle logs are many, so what few of them have is in a box.
#[derive(Debug)]
pub struct ShapeLog {
    /// Progress.
    pub phase: ShapePhase,
    /// Number of chunks that are whole.
    pub chunk_count: u32,
    /// Pieces of the chunks of the snapshot; a chunk is the text of its messages, separated by commas. The position of a
    /// piece is that of its chunk.
    pub pieces: Vec<Extent>,
    /// Runs of messages after the snapshot (see [`crate::run`]).
    pub runs: Vec<Extent>,
    /// Bytes of messages since the last full chunk.
    pub open_chunk_bytes: u64,
    /// The last position.
    pub end: LogOffset,
    rare: Option<Box<RareState>>,
    /// Wakes the requests that wait; none if no request waits.
    changed: Option<Arc<Notify>>,
}

/// State of a log that few logs have.
#[derive(Debug, Default)]
pub struct RareState {
    /// Why there is no snapshot.
    pub failure: Option<SnapshotFailure>,
    /// Ends of full chunks, fixed for ever.
    pub chunk_ends: Vec<LogOffset>,
    /// Filters what the snapshot has.
    pub filter: Option<Box<SnapshotFilter>>,
    /// Parts of a transaction that has not committed.
    pub parts: Option<OpenParts>,
    /// The last position that readers see, if they see durable messages only and the last ones are not durable yet.
    /// `Some(SNAPSHOT_END)` if none are.
    pub durable_end: Option<LogOffset>,
}

static NOTHING_RARE: RareState =
    RareState { failure: None, chunk_ends: Vec::new(), filter: None, parts: None, durable_end: None };

impl RareState {
    fn is_empty(&self) -> bool {
        let Self { failure, chunk_ends, filter, parts, durable_end } = self;
        chunk_ends.is_empty() && failure.is_none() && filter.is_none() && parts.is_none() && durable_end.is_none()
    }
}

/// The beginning of a large transaction, which is written before its commit.
#[derive(Debug)]
pub struct OpenParts {
    /// The parts.
    pub extents: Vec<Extent>,
    /// Ends of full chunks in them.
    pub chunk_ends: Vec<LogOffset>,
    /// Bytes since the last full chunk.
    pub chunk_bytes: u64,
}

impl OpenParts {
    /// No parts, after so many bytes of an open chunk.
    #[must_use]
    pub const fn new(chunk_bytes: u64) -> Self {
        Self { extents: Vec::new(), chunk_ends: Vec::new(), chunk_bytes }
    }
}

/// A shape. See the [module](self).
#[derive(Debug)]
pub struct Shape {
    /// Identifies it on disk.
    pub id: ShapeId,
    /// Identifies it for clients.
    pub handle: ShapeHandle,
    /// The definition.
    pub definition: Arc<ShapeDefinition>,
    log: Mutex<ShapeLog>,
    /// Seconds since the start of the server.
    last_read: AtomicU32,
    /// Requests in [`Shape::wait_for`].
    waiting: AtomicU32,
    /// Seconds since 1970 of the last change; 0 for none since the start of the server.
    changed_at: AtomicU32,
    /// Number of rows; [`ROWS_UNKNOWN`] after a restart, and without a snapshot.
    rows: AtomicI64,
    /// The first transaction that is held; [`NOT_HELD`] if there is none.
    held_lsn: AtomicU64,
}

/// A request that waits.
struct WaitGuard<'a> {
    shape: &'a Shape,
    has_ended: bool,
}

impl<'a> WaitGuard<'a> {
    fn new(shape: &'a Shape) -> Self {
        shape.waiting.fetch_add(1, Ordering::Relaxed);
        Self { shape, has_ended: false }
    }

    /// The lock orders this with the beginning of another wait.
    fn end(&mut self, log: &mut ShapeLog) {
        self.has_ended = true;
        if self.shape.waiting.fetch_sub(1, Ordering::Relaxed) == 1 {
            log.changed = None;
        }
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            let shape = self.shape;
            self.end(&mut shape.log());
        }
    }
}

const ROWS_UNKNOWN: i64 = i64::MIN;
const NOT_HELD: u64 = u64::MAX;

/// The current answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub enum ReadPlan {
    /// This part of the log.
    Ready(LogSlice),
    /// The chunk of the snapshot is not written yet.
    Wait,
    /// The position is beyond the end of the log.
    Beyond,
    /// The snapshot failed.
    Failed(SnapshotFailure),
    /// The shape is removed.
    Removed,
}

/// A part of a log with a fixed beginning and end.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct LogSlice {
    /// Exclusive lower bound; `None` is the first chunk of the snapshot.
    pub after: Option<LogOffset>,
    /// Inclusive upper bound.
    pub end: LogOffset,
    /// Whether the end is the end of the log.
    pub is_up_to_date: bool,
    /// Whether there are messages.
    pub has_data: bool,
}

impl Shape {
    /// A shape without a log.
    #[must_use]
    pub fn new(id: ShapeId, handle: ShapeHandle, definition: Arc<ShapeDefinition>) -> Self {
        Self {
            id,
            handle,
            definition,
            log: Mutex::new(ShapeLog::new(ShapePhase::Starting)),
            last_read: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            changed_at: AtomicU32::new(0),
            rows: AtomicI64::new(ROWS_UNKNOWN),
            held_lsn: AtomicU64::new(NOT_HELD),
        }
    }

    /// The log. Sections are short and do no I/O.
    pub fn log(&self) -> MutexGuard<'_, ShapeLog> {
        // A holder that panicked left a consistent log: each section makes one change.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the log and wakes all waiters.
    pub fn update<T>(&self, change: impl FnOnce(&mut ShapeLog) -> T) -> T {
        let mut log = self.log();
        let result = change(&mut log);
        let changed = log.changed.clone();
        drop(log);
        if let Some(changed) = changed {
            changed.notify_waiters();
        }
        result
    }

    /// Waits until `look` returns a value; looks after each change. A change between the look and the wait is not missed
    /// (SH-38).
    ///
    /// # Cancel safety
    /// Safe: nothing is consumed.
    pub async fn wait_for<T>(&self, mut look: impl FnMut(&ShapeLog) -> Option<T>) -> T {
        // A single section looks and begins the wait: requests that wait for one shape are many, and share its lock.
        let (mut waiting, changed) = {
            let mut log = self.log();
            if let Some(found) = look(&log) {
                return found;
            }
            (WaitGuard::new(self), log.notified())
        };
        let mut changed = std::pin::pin!(changed);
        loop {
            changed.as_mut().await;
            let mut log = self.log();
            if let Some(found) = look(&log) {
                waiting.end(&mut log);
                return found;
            }
            changed.set(log.notified());
        }
    }

    /// Lets the waiting requests look again.
    pub(crate) fn wake(&self) {
        self.update(|_| {});
    }

    /// Whether readers see only what is durable: messages of moved rows depend on the time of a snapshot, so a replay after
    /// `kill -9` would not repeat them.
    pub(crate) fn reads_durable_only(&self) -> bool {
        self.definition.inner.is_some()
    }

    /// Shows readers the messages up to a position that is durable.
    pub(crate) fn set_durable(&self, last: LogOffset) {
        let has_more = {
            let mut log = self.log();
            let before = log.rare().durable_end;
            match before {
                Some(_) if last >= log.end => log.rare_mut().durable_end = None,
                Some(before) if last > before => log.rare_mut().durable_end = Some(last),
                _ => {}
            }
            log.trim();
            before != log.rare().durable_end
        };
        if has_more {
            self.wake();
        }
    }

    /// Records a read, for the eviction of unused shapes.
    pub fn touch(&self, seconds: u32) {
        self.last_read.store(seconds, Ordering::Relaxed);
    }

    /// Requests that wait for a change.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Records that transactions from this position on are not in the log yet.
    pub(crate) fn hold(&self, lsn: u64) {
        self.held_lsn.store(lsn, Ordering::Release);
    }

    /// The position of [`Self::hold`]; the highest one if no transaction is held.
    pub(crate) fn held_lsn(&self) -> u64 {
        self.held_lsn.load(Ordering::Acquire)
    }

    /// Records that the log has all transactions.
    pub(crate) fn release(&self) {
        self.held_lsn.store(NOT_HELD, Ordering::Release);
    }

    /// The position up to which the log has all transactions, if those up to `processed_lsn` were applied.
    #[must_use]
    pub(crate) fn known_lsn(&self, processed_lsn: u64) -> u64 {
        processed_lsn.min(self.held_lsn.load(Ordering::Acquire).saturating_sub(1))
    }

    /// Counts rows from now on.
    pub(crate) fn begin_counting(&self) {
        self.rows.store(0, Ordering::Relaxed);
    }

    /// Counts rows that the shape has more, or fewer.
    pub(crate) fn count_rows(&self, rows: i64) {
        if self.rows.load(Ordering::Relaxed) != ROWS_UNKNOWN {
            self.rows.fetch_add(rows, Ordering::Relaxed);
        }
    }

    /// Records a transaction that added or removed so many rows.
    pub(crate) fn record_change(&self, rows: i64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.changed_at.store(u32::try_from(now).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.count_rows(rows);
    }

    /// Number of rows, if it is known.
    #[must_use]
    pub fn rows(&self) -> Option<u64> {
        u64::try_from(self.rows.load(Ordering::Relaxed)).ok()
    }

    /// Time of the last change since the start of the server.
    #[must_use]
    pub fn changed_at(&self) -> Option<SystemTime> {
        let seconds = self.changed_at.load(Ordering::Relaxed);
        (seconds > 0).then(|| UNIX_EPOCH + Duration::from_secs(seconds.into()))
    }

    /// Returns when no request has waited for the shape, and none has read it, for `limit`.
    ///
    /// # Cancel safety
    /// Safe: the time begins again.
    pub async fn abandoned(&self, limit: Duration) {
        const LOOKS: u32 = 10;
        let (mut unused, mut last_read) = (0, self.last_read());
        while unused < LOOKS {
            tokio::time::sleep(limit / LOOKS).await;
            let is_used = self.waiting() > 0 || self.last_read() != last_read;
            unused = if is_used { 0 } else { unused + 1 };
            last_read = self.last_read();
        }
    }

    /// When the shape was last read.
    #[must_use]
    pub fn last_read(&self) -> u32 {
        self.last_read.load(Ordering::Relaxed)
    }
}

impl ShapeLog {
    /// The next change. The caller has the lock, so no change is missed, although the future registers itself later.
    fn notified(&mut self) -> OwnedNotified {
        Arc::clone(self.changed.get_or_insert_default()).notified_owned()
    }

    /// A log without messages.
    #[must_use]
    pub const fn new(phase: ShapePhase) -> Self {
        Self {
            phase,
            chunk_count: 0,
            pieces: Vec::new(),
            runs: Vec::new(),
            open_chunk_bytes: 0,
            end: LogOffset::SNAPSHOT_END,
            rare: None,
            changed: None,
        }
    }

    /// The state that few logs have.
    #[must_use]
    pub fn rare(&self) -> &RareState {
        self.rare.as_deref().unwrap_or(&NOTHING_RARE)
    }

    /// [`Self::rare`], to change it. [`Self::trim`] follows where something is taken from it.
    pub fn rare_mut(&mut self) -> &mut RareState {
        self.rare.get_or_insert_default()
    }

    /// Frees what is not needed any more.
    pub fn trim(&mut self) {
        self.rare.take_if(|rare| rare.is_empty());
    }

    /// Adds ends of full chunks.
    pub fn add_chunk_ends(&mut self, ends: &[LogOffset]) {
        if !ends.is_empty() {
            self.rare_mut().chunk_ends.extend_from_slice(ends);
        }
    }

    /// Takes the parts of a transaction that has not committed.
    pub fn take_parts(&mut self) -> Option<OpenParts> {
        let parts = self.rare.as_mut()?.parts.take();
        self.trim();
        parts
    }

    /// Takes the filter of the snapshot.
    pub fn take_filter(&mut self) -> Option<Box<SnapshotFilter>> {
        let filter = self.rare.as_mut()?.filter.take();
        self.trim();
        filter
    }

    /// Ends the log, unless it was removed.
    pub fn fail(&mut self, failure: SnapshotFailure) {
        if self.phase != ShapePhase::Removed {
            self.phase = ShapePhase::Failed;
            self.rare_mut().failure = Some(failure);
        }
    }

    /// The failure of a log with phase [`ShapePhase::Failed`].
    #[must_use]
    pub fn failure(&self) -> SnapshotFailure {
        self.rare().failure.clone().unwrap_or(SnapshotFailure::Changed)
    }

    /// Appends a run. With `durable_only`, readers see it after [`Shape::set_durable`].
    pub fn append(&mut self, run: Extent, durable_only: bool) {
        if durable_only {
            let before = self.end;
            self.rare_mut().durable_end.get_or_insert(before);
        }
        self.end = run.last;
        self.runs.push(run);
    }

    /// The last position that readers see.
    #[must_use]
    pub fn readable_end(&self) -> LogOffset {
        self.rare().durable_end.unwrap_or(self.end)
    }

    /// The position up to which readers see all transactions, if the log has those up to `known_lsn`.
    #[must_use]
    pub fn readable_lsn(&self, known_lsn: u64) -> u64 {
        let Some(end) = self.rare().durable_end else { return known_lsn };
        let first_hidden = self.runs.partition_point(|run| run.last <= end);
        self.runs.get(first_hidden).map_or(known_lsn, |run| known_lsn.min(run.last.tx.saturating_sub(1)))
    }

    /// Plans the read of the log after `after`. `None` is offset -1. All transactions up to `known_lsn` are in the log;
    /// clients of event streams resume at such positions, or just after one (SH-42).
    #[must_use]
    pub fn plan(&self, after: Option<LogOffset>, known_lsn: u64) -> ReadPlan {
        match &self.phase {
            ShapePhase::Removed => return ReadPlan::Removed,
            ShapePhase::Failed => return ReadPlan::Failed(self.failure()),
            ShapePhase::Starting | ShapePhase::Snapshotting | ShapePhase::Complete => {}
        }
        let is_complete = self.phase == ShapePhase::Complete;
        let chunk = match after {
            None => Some(0),
            Some(offset) if offset.is_in_snapshot() => offset.op.checked_add(1),
            Some(_) => None,
        };
        if let Some(chunk) = chunk {
            let count = u64::from(self.chunk_count);
            if chunk < count {
                let end = LogOffset::snapshot_chunk(chunk);
                return ReadPlan::Ready(LogSlice { after, end, is_up_to_date: false, has_data: true });
            }
            // The number after the last chunk is handed out before it is known that there is none (SH-08).
            if !is_complete || chunk > count {
                return if is_complete { ReadPlan::Beyond } else { ReadPlan::Wait };
            }
        } else if !is_complete {
            return ReadPlan::Wait;
        }
        let from = after.filter(|offset| !offset.is_in_snapshot()).unwrap_or(LogOffset::SNAPSHOT_END);
        let log_end = self.readable_end();
        if from > log_end {
            let known_lsn = self.readable_lsn(known_lsn);
            let is_known = from.tx <= known_lsn.max(log_end.tx).saturating_add(1) && from.op == 0;
            let slice = LogSlice { after, end: from, is_up_to_date: true, has_data: false };
            return if is_known { ReadPlan::Ready(slice) } else { ReadPlan::Beyond };
        }
        let chunk_ends = &self.rare().chunk_ends;
        let next_end = chunk_ends.partition_point(|end| *end <= from);
        let end = chunk_ends.get(next_end).copied().filter(|end| *end <= log_end).unwrap_or(log_end);
        ReadPlan::Ready(LogSlice { after, end, is_up_to_date: end == log_end, has_data: end > from })
    }

    /// Whether a transaction is in the log: a replay after a restart has it again.
    #[must_use]
    pub fn has(&self, tx: u64) -> bool {
        tx <= self.end.tx && self.end != LogOffset::SNAPSHOT_END
    }

    /// The extents that hold a slice.
    #[must_use]
    pub fn extents(&self, slice: LogSlice) -> Vec<Extent> {
        if slice.end.is_in_snapshot() {
            return self.pieces[self.pieces_of(slice.end)].to_vec();
        }
        let after = slice.after.unwrap_or(LogOffset::SNAPSHOT_END).max(LogOffset::SNAPSHOT_END);
        let first = self.runs.partition_point(|run| run.last <= after);
        let mut found = Vec::new();
        for run in &self.runs[first..] {
            found.push(run.clone());
            if run.last >= slice.end {
                break;
            }
        }
        found
    }

    /// The numbers of the pieces of a chunk.
    #[must_use]
    pub fn pieces_of(&self, chunk: LogOffset) -> Range<usize> {
        let from = self.pieces.partition_point(|piece| piece.last < chunk);
        from..from + self.pieces[from..].partition_point(|piece| piece.last == chunk)
    }

    /// The numbers of the pieces of a chunk, and their length in bytes.
    #[must_use]
    pub fn chunk(&self, chunk: LogOffset) -> (Range<usize>, u64) {
        let pieces = self.pieces_of(chunk);
        let len = |piece: &Extent| match (&piece.bytes, piece.place) {
            (Some(bytes), _) => bytes.len() as u64,
            (None, place) => place.map_or(0, |place| place.len.into()),
        };
        let bytes = self.pieces[pieces.clone()].iter().map(len).sum();
        (pieces, bytes)
    }

    /// Bytes on disk.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.pieces.iter().chain(&self.runs).filter_map(|extent| extent.place).map(|place| u64::from(place.len)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::task::{Context, Waker};

    use super::*;

    fn extent(last: LogOffset) -> Extent {
        Extent::unwritten(last, Bytes::new())
    }

    fn log(chunks: u32, phase: ShapePhase) -> ShapeLog {
        ShapeLog {
            pieces: (0..u64::from(chunks)).map(|chunk| extent(LogOffset::snapshot_chunk(chunk))).collect(),
            chunk_count: chunks,
            ..ShapeLog::new(phase)
        }
    }

    fn at(text: &str) -> LogOffset {
        text.parse().unwrap()
    }

    fn ready(log: &ShapeLog, after: Option<&str>) -> (String, bool, bool) {
        match log.plan(after.map(at), 0) {
            ReadPlan::Ready(slice) => (slice.end.to_string(), slice.is_up_to_date, slice.has_data),
            other => panic!("{other:?}"),
        }
    }

    /// SH-08, SH-09: a reader waits for a chunk or for the end, and the offsets stay as they were.
    #[test]
    fn snapshot_chunks_are_read_in_order() {
        let starting = log(0, ShapePhase::Starting);
        assert_eq!(starting.plan(None, 0), ReadPlan::Wait);
        let writing = log(1, ShapePhase::Snapshotting);
        assert_eq!(ready(&writing, None), ("0_0".to_owned(), false, true));
        assert_eq!(writing.plan(Some(at("0_0")), 0), ReadPlan::Wait);
        assert_eq!(writing.plan(Some(at("0_inf")), 0), ReadPlan::Wait);
        let complete = log(2, ShapePhase::Complete);
        assert_eq!(ready(&complete, None), ("0_0".to_owned(), false, true));
        assert_eq!(ready(&complete, Some("0_0")), ("0_1".to_owned(), false, true));
        assert_eq!(ready(&complete, Some("0_1")), ("0_inf".to_owned(), true, false));
        assert_eq!(ready(&complete, Some("0_inf")), ("0_inf".to_owned(), true, false));
        assert_eq!(complete.plan(Some(at("0_2")), 0), ReadPlan::Beyond);
        assert_eq!(complete.plan(Some(at("5_0")), 0), ReadPlan::Beyond);
    }

    #[test]
    fn log_is_read_up_to_the_next_chunk_end() {
        let mut complete = log(1, ShapePhase::Complete);
        complete.runs = ["5_0", "7_4", "9_0"].map(|last| extent(at(last))).to_vec();
        complete.add_chunk_ends(&[at("7_2")]);
        complete.end = at("9_0");
        assert_eq!(ready(&complete, Some("0_0")), ("7_2".to_owned(), false, true));
        assert_eq!(ready(&complete, Some("5_0")), ("7_2".to_owned(), false, true));
        assert_eq!(ready(&complete, Some("7_2")), ("9_0".to_owned(), true, true));
        assert_eq!(ready(&complete, Some("9_0")), ("9_0".to_owned(), true, false));
        assert_eq!(complete.plan(Some(at("9_1")), 0), ReadPlan::Beyond);
        assert_eq!(complete.plan(Some(at("12_0")), 10), ReadPlan::Beyond);
        let resumed = LogSlice { after: Some(at("11_0")), end: at("11_0"), is_up_to_date: true, has_data: false };
        assert_eq!(complete.plan(Some(at("11_0")), 10), ReadPlan::Ready(resumed), "SH-42");
        let lasts = |after: &str| match complete.plan(Some(at(after)), 0) {
            ReadPlan::Ready(slice) => {
                complete.extents(slice).iter().map(|run| run.last.to_string()).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(lasts("0_0"), ["5_0", "7_4"]);
        assert_eq!(lasts("7_2"), ["7_4", "9_0"]);
    }

    /// Messages that are not durable are neither read nor announced.
    #[test]
    fn readers_wait_for_durable_messages() {
        let mut complete = log(1, ShapePhase::Complete);
        complete.append(extent(at("5_0")), false);
        complete.append(extent(at("7_4")), true);
        complete.append(extent(at("9_0")), true);
        complete.add_chunk_ends(&[at("7_2")]);
        assert_eq!(ready(&complete, Some("0_0")), ("5_0".to_owned(), true, true));
        assert_eq!((complete.end, complete.readable_lsn(20), complete.readable_lsn(3)), (at("9_0"), 6, 3));
        assert_eq!(
            complete.plan(Some(at("7_0")), 20),
            ReadPlan::Ready(LogSlice { after: Some(at("7_0")), end: at("7_0"), is_up_to_date: true, has_data: false })
        );
        assert_eq!(complete.plan(Some(at("8_0")), 20), ReadPlan::Beyond);
        complete.rare_mut().durable_end = Some(at("7_4"));
        assert_eq!(ready(&complete, Some("5_0")), ("7_2".to_owned(), false, true));
        assert_eq!((ready(&complete, Some("7_2")), complete.readable_lsn(20)), (("7_4".to_owned(), true, true), 8));
    }

    #[tokio::test(start_paused = true)]
    async fn shape_without_readers_is_abandoned() {
        let table = crate::table::tests::table("public", "t", vec![crate::table::tests::column("id", "int8", Some(0))]);
        let form = Arc::new(crate::row_form::RowForm::new(Arc::new(table), vec![0]));
        let (replica, log) = Default::default();
        let definition = ShapeDefinition { form, predicate: None, replica, log, inner: None };
        let shape = Shape::new(1, ShapeHandle { hash: 1, micros: 1 }, Arc::new(definition));
        let (limit, long) = (Duration::from_secs(10), Duration::from_secs(3600));
        let mut waits = Box::pin(shape.wait_for(|_| None::<()>));
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(tokio::time::timeout(long, shape.abandoned(limit)).await.is_err(), "a request waits");
        drop(waits);
        assert!(tokio::time::timeout(long, shape.abandoned(limit)).await.is_ok());
        let reads = async {
            for second in 1..100 {
                tokio::time::sleep(limit / 2).await;
                shape.touch(second);
            }
        };
        tokio::select! {
            () = shape.abandoned(limit) => panic!("the shape is read"),
            () = reads => {}
        }
    }

    #[test]
    fn filter_ends_at_its_position() {
        let snapshot = TransactionSnapshot { xmin: 10, xmax: 20, xip: vec![12] };
        let filter = SnapshotFilter { snapshot, until_lsn: 100 };
        assert!(filter.has(9, 50) && filter.has(13, 99));
        assert!(!filter.has(12, 50), "in progress");
        assert!(!filter.has(20, 50), "not assigned");
        assert!(!filter.has(9, 100), "after the snapshot");
    }
}
