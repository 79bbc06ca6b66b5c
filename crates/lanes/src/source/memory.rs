//! Records from memory: for tests, for benches, and for programs that make their work themselves.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{Event, Mark, Room, Source};
use crate::record::{Epoch, Lane, Position, Record};

/// A source that hands out what its [`MemoryHandle`] is given.
#[derive(Debug)]
pub struct Memory {
    state: Arc<Mutex<State>>,
}

/// Feeds a [`Memory`] source, and shows what it was told.
#[derive(Clone, Debug)]
pub struct MemoryHandle {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// What no pause holds up.
    events: VecDeque<Event>,
    lanes: BTreeMap<Lane, Assignment>,
    /// The lane after which the next batch begins to look.
    turn: Lane,
    commits: Vec<Mark>,
    releases: Vec<(Lane, Epoch, Option<Position>)>,
    pauses: u64,
    ended: bool,
    closed: bool,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct Assignment {
    epoch: Epoch,
    open: bool,
    paused: bool,
    queue: VecDeque<Record>,
    committed: Option<Position>,
}

impl Memory {
    /// A source without lanes, and the handle that feeds it.
    #[must_use]
    pub fn new() -> (Self, MemoryHandle) {
        let state = Arc::new(Mutex::new(State::default()));
        (Self { state: Arc::clone(&state) }, MemoryHandle { state })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryHandle {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.state);
        let result = change(&mut state);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        result
    }

    /// Assigns the lane, and returns its new epoch.
    pub fn assign(&self, lane: Lane) -> Epoch {
        self.change(|state| {
            let assignment = state.lanes.entry(lane).or_default();
            let epoch = Epoch(assignment.epoch.0 + 1);
            *assignment = Assignment { epoch, open: true, ..Assignment::default() };
            state.events.push_back(Event::Assigned { lane, epoch });
            epoch
        })
    }

    /// Queues a record on its lane; one of an epoch that is over is dropped.
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

    /// Says that nothing is there up to and including `through`.
    pub fn pass(&self, lane: Lane, through: Position) {
        self.change(|state| {
            let epoch = state.lanes.get(&lane).map_or(Epoch::default(), |assignment| assignment.epoch);
            state.events.push_back(Event::Passed { lane, epoch, through });
        });
    }

    /// Takes lanes away, as a group's coordinator does.
    pub fn revoke(&self, lanes: &[Lane], within: Duration) {
        self.change(|state| {
            let lanes = state.close(lanes);
            state.events.push_back(Event::Revoked { lanes, within });
        });
    }

    /// Takes lanes away without asking.
    pub fn lose(&self, lanes: &[Lane]) {
        self.change(|state| {
            let lanes = state.close(lanes);
            state.events.push_back(Event::Lost { lanes });
        });
    }

    /// Any other event, for tests.
    pub fn say(&self, event: Event) {
        self.change(|state| state.events.push_back(event));
    }

    /// Ends the source once its queues are empty.
    pub fn end(&self) {
        self.change(|state| state.ended = true);
    }

    /// How far the lane's present or last assignment was committed, by `commit` or `release`.
    #[must_use]
    pub fn committed(&self, lane: Lane) -> Option<Position> {
        lock(&self.state).lanes.get(&lane)?.committed
    }

    /// Every mark in the order in which it came.
    #[must_use]
    pub fn commits(&self) -> Vec<Mark> {
        lock(&self.state).commits.clone()
    }

    /// Every lane that was released, in order.
    #[must_use]
    pub fn releases(&self) -> Vec<(Lane, Epoch, Option<Position>)> {
        lock(&self.state).releases.clone()
    }

    /// How often lanes were paused.
    #[must_use]
    pub fn pauses(&self) -> u64 {
        lock(&self.state).pauses
    }

    /// Records that were not handed out.
    #[must_use]
    pub fn queued(&self) -> usize {
        lock(&self.state).lanes.values().map(|lane| lane.queue.len()).sum()
    }

    /// The subscription has closed the source.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        lock(&self.state).closed
    }
}

impl State {
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

    /// Fills the batch from the lanes in turn: a batch is of one lane, the next one of the next.
    fn fill(&mut self, room: Room, batch: &mut Vec<Record>) -> bool {
        let ready = |(_, lane): &(&Lane, &mut Assignment)| !lane.paused && !lane.queue.is_empty();
        let turn = self.turn;
        let after = self.lanes.range_mut((std::ops::Bound::Excluded(turn), std::ops::Bound::Unbounded)).find(ready);
        let next = after.map(|(lane, _)| *lane);
        let next = next.or_else(|| self.lanes.iter_mut().find(ready).map(|(lane, _)| *lane));
        let Some(lane) = next else { return false };
        self.turn = lane;
        let queue = self.lanes.get_mut(&lane).map(|lane| &mut lane.queue);
        queue.into_iter().for_each(|queue| take(queue, room, batch));
        true
    }

    fn is_drained(&self) -> bool {
        self.ended && self.lanes.values().all(|lane| lane.queue.is_empty())
    }

    fn assignment(&mut self, lane: Lane, epoch: Epoch) -> Option<&mut Assignment> {
        self.lanes.get_mut(&lane).filter(|assignment| assignment.epoch == epoch)
    }
}

fn take(queue: &mut VecDeque<Record>, room: Room, batch: &mut Vec<Record>) {
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

impl Source for Memory {
    type Error = Infallible;

    fn poll(&mut self, cx: &mut Context<'_>, room: Room, batch: &mut Vec<Record>) -> Poll<Result<Event, Infallible>> {
        let mut state = self.lock();
        if let Some(event) = state.events.pop_front() {
            return Poll::Ready(Ok(event));
        }
        if room.records > 0 && state.fill(room, batch) {
            return Poll::Ready(Ok(Event::Records));
        }
        if state.is_drained() {
            return Poll::Ready(Ok(Event::Ended));
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

    fn commit(&mut self, marks: &[Mark]) {
        let mut state = self.lock();
        for mark in marks {
            state.commits.push(*mark);
            let assignment = state.assignment(mark.lane, mark.epoch);
            assignment.into_iter().for_each(|assignment| assignment.committed = Some(mark.through));
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
