//! Checks the guarantees of a subscription in every test.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_lanes::source::{MemorySource, MemorySourceHandle};
use tidegate_lanes::{Epoch, Lane, LaneCommit, PollLimit, Position, Record, Source, SourceEvent};

type Key = (Lane, Option<Vec<u8>>);

/// Observes the source and the handlers of a subscription. Clones share the state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checker(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Records taken, and whether they are finished.
    taken: BTreeMap<(Lane, u64), bool>,
    running: HashMap<Key, u64>,
    /// The last finished position of each key.
    last: HashMap<Key, u64>,
    begun: u64,
    /// Violations. Keyless records have no order and may overlap.
    faults: Vec<String>,
}

impl Checker {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn take(&self, record: &Record) {
        self.lock().taken.insert((record.lane(), record.position().0), false);
    }

    /// A handler has started.
    pub(crate) fn begin(&self, record: &Record) {
        let (key, position) = (key(record), record.position().0);
        let mut state = self.lock();
        state.begun += 1;
        if key.1.is_none() {
            return;
        }
        if let Some(other) = state.running.insert(key.clone(), position) {
            state.faults.push(format!("{record:?} overlaps {other}"));
        }
        if let Some(last) = state.last.get(&key).copied().filter(|last| *last > position) {
            state.faults.push(format!("{record:?} starts after {last} was finished"));
        }
    }

    /// The attempt has failed.
    pub(crate) fn fail(&self, record: &Record) {
        self.lock().running.remove(&key(record));
    }

    /// The record is finished, or is about to be.
    pub(crate) fn done(&self, record: &Record) {
        let mut state = self.lock();
        let (key, position) = (key(record), record.position().0);
        state.running.remove(&key);
        state.last.insert(key, position);
        state.taken.insert((record.lane(), position), true);
    }

    fn commit(&self, lane: Lane, through: Position) {
        let mut state = self.lock();
        let upto = (lane, 0)..=(lane, through.0);
        let open = state.taken.range(upto).find(|(_, is_done)| !**is_done).map(|(at, _)| *at);
        if let Some((_, open)) = open {
            state.faults.push(format!("lane {lane} was committed through {through}, but {open} is unfinished"));
        }
    }

    /// The number of started attempts.
    pub(crate) fn begun(&self) -> u64 {
        self.lock().begun
    }

    /// The number of finished records.
    pub(crate) fn count_done(&self) -> usize {
        self.lock().taken.values().filter(|is_done| **is_done).count()
    }

    /// Asserts that there is no violation so far.
    pub(crate) fn assert_order(&self) {
        let faults = &self.lock().faults;
        assert!(faults.is_empty(), "{} violations, first {:?}", faults.len(), &faults[..faults.len().min(5)]);
    }

    /// Asserts that there is no violation and that this many records were taken and finished.
    pub(crate) fn assert_all_done(&self, records: usize) {
        self.assert_order();
        let state = self.lock();
        let open: Vec<_> = state.taken.iter().filter(|(_, is_done)| !**is_done).map(|(at, _)| *at).take(5).collect();
        assert!(open.is_empty(), "unfinished: {open:?}");
        assert_eq!(state.taken.len(), records);
    }
}

fn key(record: &Record) -> Key {
    (record.lane(), record.key().map(<[u8]>::to_vec))
}

/// A memory source with a checker.
#[derive(Debug)]
pub(crate) struct Watched {
    memory: MemorySource,
    checker: Checker,
    buffered: Arc<AtomicUsize>,
    /// How often the limit dropped to 0.
    closings: Arc<AtomicUsize>,
    has_room: bool,
}

/// A watched source without lanes, its handle, and its checker.
pub(crate) fn watched() -> (Watched, MemorySourceHandle, Checker) {
    let (memory, feed) = MemorySource::new();
    let checker = Checker::default();
    let (buffered, closings) = (Arc::default(), Arc::default());
    (Watched { memory, checker: checker.clone(), buffered, closings, has_room: true }, feed, checker)
}

impl Watched {
    /// The prefetched bytes that the source reports.
    pub(crate) fn buffered(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.buffered)
    }

    /// How often the limit of records dropped to 0.
    pub(crate) fn closings(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.closings)
    }
}

impl Source for Watched {
    type Error = Infallible;

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        room: PollLimit,
        batch: &mut Vec<Record>,
    ) -> Poll<Result<SourceEvent, Infallible>> {
        let before = batch.len();
        let had_room = std::mem::replace(&mut self.has_room, room.records > 0);
        self.closings.fetch_add(usize::from(had_room && !self.has_room), SeqCst);
        let polled = self.memory.poll(cx, room, batch);
        batch[before..].iter().for_each(|record| self.checker.take(record));
        polled
    }

    fn pause(&mut self, lane: Lane, epoch: Epoch) {
        self.memory.pause(lane, epoch);
    }

    fn resume(&mut self, lane: Lane, epoch: Epoch) {
        self.memory.resume(lane, epoch);
    }

    fn commit(&mut self, marks: &[LaneCommit]) {
        marks.iter().for_each(|mark| self.checker.commit(mark.lane, mark.through));
        self.memory.commit(marks);
    }

    fn release(&mut self, lane: Lane, epoch: Epoch, through: Option<Position>) {
        through.into_iter().for_each(|through| self.checker.commit(lane, through));
        self.memory.release(lane, epoch, through);
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.memory.poll_close(cx)
    }

    fn buffered_bytes(&self) -> usize {
        self.buffered.load(SeqCst)
    }
}

/// Records of a lane at 0, 1, 2 ... with keys from `key`.
pub(crate) fn records<'a>(
    lane: Lane,
    epoch: Epoch,
    count: u64,
    key: impl Fn(u64) -> u64 + 'a,
) -> impl Iterator<Item = Record> + 'a {
    (0..count).map(move |at| record(lane, epoch, at, key(at)))
}

pub(crate) fn record(lane: Lane, epoch: Epoch, at: u64, key: u64) -> Record {
    Record::new(lane, epoch, Position(at), Some(&key.to_be_bytes()), Some(b"payload"))
}

/// The number of the record's key.
pub(crate) fn key_number(record: &Record) -> u64 {
    u64::from_be_bytes(record.key().unwrap().try_into().unwrap())
}

/// Waits for a condition, checked every millisecond of tokio's clock.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never: {what}");
}

pub(crate) const LANE: Lane = Lane(0);
pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A printed random seed; `TIDEGATE_SEED=n` sets it.
pub(crate) fn seed() -> u64 {
    let seed =
        std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("TIDEGATE_SEED={seed}");
    seed
}
