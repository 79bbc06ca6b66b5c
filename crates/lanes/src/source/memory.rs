//! An in-memory source for tests, benchmarks, and programs that generate their own records.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::interface::{LaneCommit, PollLimit, Source, SourceEvent};
use crate::record::{Epoch, Lane, Position, Record};

/// Delivers the records pushed through its [`MemorySourceHandle`].
#[derive(Debug)]
pub struct MemorySource {
    state: Arc<Mutex<MemoryState>>,
}

/// Feeds a [`MemorySource`] and shows the calls that it received.
#[derive(Clone, Debug)]
pub struct MemorySourceHandle {
    state: Arc<Mutex<MemoryState>>,
}

#[derive(Debug, Default)]
struct MemoryState {
    /// Events that a pause does not hold back.
    events: VecDeque<SourceEvent>,
    lanes: BTreeMap<Lane, MemoryLane>,
    /// The lane of the last batch; the next batch starts after it.
    last_lane: Lane,
    commits: Vec<LaneCommit>,
    releases: Vec<(Lane, Epoch, Option<Position>)>,
    pauses: u64,
    ended: bool,
    closed: bool,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct MemoryLane {
    epoch: Epoch,
    open: bool,
    paused: bool,
    queue: VecDeque<Record>,
    committed: Option<Position>,
}

impl MemorySource {
    /// Returns a source without lanes, and its handle.
    #[must_use]
    pub fn new() -> (Self, MemorySourceHandle) {
        let state = Arc::new(Mutex::new(MemoryState::default()));
        (Self { state: Arc::clone(&state) }, MemorySourceHandle { state })
    }

    fn lock(&self) -> MutexGuard<'_, MemoryState> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<MemoryState>) -> MutexGuard<'_, MemoryState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemorySourceHandle {
    fn change<T>(&self, change: impl FnOnce(&mut MemoryState) -> T) -> T {
        let mut state = lock(&self.state);
        let result = change(&mut state);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        result
    }

    /// Assigns the lane and returns its new epoch.
    pub fn assign(&self, lane: Lane) -> Epoch {
        self.change(|state| {
            let assignment = state.lanes.entry(lane).or_default();
            let epoch = Epoch(assignment.epoch.0 + 1);
            *assignment = MemoryLane { epoch, open: true, ..MemoryLane::default() };
            state.events.push_back(SourceEvent::Assigned { lane, epoch });
            epoch
        })
    }

    /// Queues a record on its lane; a record of an ended epoch is dropped.
    pub fn push(&self, record: Record) {
        self.extend([record]);
    }

    /// Queues many records under one lock.
    pub fn extend(&self, records: impl IntoIterator<Item = Record>) {
        self.change(|state| {
            for record in records {
                let lane = state.lanes.get_mut(&record.lane());
                let lane = lane.filter(|lane| lane.open && lane.epoch == record.epoch());
                lane.into_iter().for_each(|lane| lane.queue.push_back(record.clone()));
            }
        });
    }

    /// Delivers a gap up to and including `through`.
    pub fn skip_to(&self, lane: Lane, through: Position) {
        self.change(|state| {
            let epoch = state.lanes.get(&lane).map_or(Epoch::default(), |assignment| assignment.epoch);
            state.events.push_back(SourceEvent::Gap { lane, epoch, through });
        });
    }

    /// Revokes lanes, like a group coordinator.
    pub fn revoke(&self, lanes: &[Lane], within: Duration) {
        self.change(|state| {
            let lanes = state.close(lanes);
            state.events.push_back(SourceEvent::Revoked { lanes, within });
        });
    }

    /// Takes lanes away without waiting for a release.
    pub fn lose(&self, lanes: &[Lane]) {
        self.change(|state| {
            let lanes = state.close(lanes);
            state.events.push_back(SourceEvent::Lost { lanes });
        });
    }

    /// Delivers any other event.
    pub fn inject(&self, event: SourceEvent) {
        self.change(|state| state.events.push_back(event));
    }

    /// Ends the source once its queues are empty.
    pub fn end(&self) {
        self.change(|state| state.ended = true);
    }

    /// The last position of the lane committed by `commit` or `release`.
    #[must_use]
    pub fn committed(&self, lane: Lane) -> Option<Position> {
        lock(&self.state).lanes.get(&lane)?.committed
    }

    /// All commits, in order.
    #[must_use]
    pub fn commits(&self) -> Vec<LaneCommit> {
        lock(&self.state).commits.clone()
    }

    /// All released lanes, in order.
    #[must_use]
    pub fn releases(&self) -> Vec<(Lane, Epoch, Option<Position>)> {
        lock(&self.state).releases.clone()
    }

    /// How often lanes were paused.
    #[must_use]
    pub fn pauses(&self) -> u64 {
        lock(&self.state).pauses
    }

    /// Records not yet delivered.
    #[must_use]
    pub fn queued(&self) -> usize {
        lock(&self.state).lanes.values().map(|lane| lane.queue.len()).sum()
    }

    /// Whether the subscription has closed the source.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        lock(&self.state).closed
    }
}

impl MemoryState {
    fn close(&mut self, lanes: &[Lane]) -> Vec<(Lane, Epoch)> {
        let mut closed = Vec::new();
        for lane in lanes {
            let assignment = self.lanes.get_mut(lane).filter(|assignment| assignment.open);
            if let Some(assignment) = assignment {
                assignment.open = false;
                assignment.queue.clear();
                closed.push((*lane, assignment.epoch));
            }
        }
        closed
    }

    /// Fills the batch from one lane; lanes take turns.
    fn fill(&mut self, room: PollLimit, batch: &mut Vec<Record>) -> bool {
        let ready = |(_, lane): &(&Lane, &mut MemoryLane)| !lane.paused && !lane.queue.is_empty();
        let last_lane = self.last_lane;
        let after =
            self.lanes.range_mut((std::ops::Bound::Excluded(last_lane), std::ops::Bound::Unbounded)).find(ready);
        let next = after.map(|(lane, _)| *lane);
        let next = next.or_else(|| self.lanes.iter_mut().find(ready).map(|(lane, _)| *lane));
        let Some(lane) = next else { return false };
        self.last_lane = lane;
        let queue = self.lanes.get_mut(&lane).map(|lane| &mut lane.queue);
        queue.into_iter().for_each(|queue| take(queue, room, batch));
        true
    }

    fn is_drained(&self) -> bool {
        self.ended && self.lanes.values().all(|lane| lane.queue.is_empty())
    }

    fn assignment(&mut self, lane: Lane, epoch: Epoch) -> Option<&mut MemoryLane> {
        self.lanes.get_mut(&lane).filter(|assignment| assignment.epoch == epoch)
    }
}

fn take(queue: &mut VecDeque<Record>, room: PollLimit, batch: &mut Vec<Record>) {
    let mut bytes = 0;
    for taken in 0..room.records {
        let Some(record) = queue.front() else { return };
        bytes += record.size_bytes();
        if taken > 0 && bytes > room.bytes {
            return;
        }
        batch.extend(queue.pop_front());
    }
}

impl Source for MemorySource {
    type Error = Infallible;

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        room: PollLimit,
        batch: &mut Vec<Record>,
    ) -> Poll<Result<SourceEvent, Infallible>> {
        let mut state = self.lock();
        if let Some(event) = state.events.pop_front() {
            return Poll::Ready(Ok(event));
        }
        if room.records > 0 && state.fill(room, batch) {
            return Poll::Ready(Ok(SourceEvent::Records));
        }
        if state.is_drained() {
            return Poll::Ready(Ok(SourceEvent::Ended));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn pause(&mut self, lane: Lane, epoch: Epoch) {
        let mut state = self.lock();
        state.pauses += 1;
        state.assignment(lane, epoch).into_iter().for_each(|assignment| assignment.paused = true);
    }

    fn resume(&mut self, lane: Lane, epoch: Epoch) {
        self.lock().assignment(lane, epoch).into_iter().for_each(|assignment| assignment.paused = false);
    }

    fn commit(&mut self, commits: &[LaneCommit]) {
        let mut state = self.lock();
        for commit in commits {
            state.commits.push(*commit);
            let assignment = state.assignment(commit.lane, commit.epoch);
            assignment.into_iter().for_each(|assignment| assignment.committed = Some(commit.through));
        }
    }

    fn release(&mut self, lane: Lane, epoch: Epoch, through: Option<Position>) {
        let mut state = self.lock();
        state.releases.push((lane, epoch, through));
        let assignment = state.assignment(lane, epoch).filter(|_| through.is_some());
        assignment.into_iter().for_each(|assignment| assignment.committed = through);
    }

    fn poll_close(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.lock().closed = true;
        Poll::Ready(Ok(()))
    }
}
