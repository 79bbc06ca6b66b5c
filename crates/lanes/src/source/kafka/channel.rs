//! The channel between the member thread and the subscription: records and events in one direction, requests in the
//! other.
//!
//! The channel is bounded: a lane has at most [`LANE_CHUNKS_MAX`] chunks, whose size the [fetcher](super::fetcher)
//! derives from the number of lanes. Further records stay with the client. Events have no bound of their own; their
//! number is bounded by the lanes and commits.

use std::collections::VecDeque;
use std::mem;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::Thread;

use super::error::KafkaSourceError;
use crate::record::{Epoch, Lane, Position, Record};
use crate::source::interface::{LaneCommit, PollLimit, SourceEvent};
use crate::sync::{Mutex, MutexGuard, lock};

/// Records per chunk.
pub(super) const CHUNK_RECORDS: usize = 512;
pub(super) const LANE_CHUNKS_MAX: usize = 2;
/// Empty buffers kept for reuse.
const SPARE_MAX: usize = 8;

/// The state shared by both sides.
#[derive(Debug, Default)]
pub(super) struct SourceChannel {
    // Locked once per chunk of hundreds of records.
    state: Mutex<ChannelState>,
    /// Bytes of the chunks, and the prefetched bytes that the client reported last.
    chunk_bytes: AtomicUsize,
    client_bytes: AtomicUsize,
    /// The member thread.
    thread: OnceLock<Thread>,
}

#[derive(Debug, Default)]
struct ChannelState {
    events: VecDeque<SourceEvent>,
    lanes: Vec<LaneBuffer>,
    /// The next lane to deliver from.
    turn: usize,
    spare: Vec<Vec<Record>>,
    requests: MemberRequests,
    waker: Option<Waker>,
    /// Why the source failed. The member thread continues for the last commits.
    failure: Option<KafkaSourceError>,
    end: Option<Result<(), KafkaSourceError>>,
}

/// Requests of the subscription.
#[derive(Debug, Default)]
pub(super) struct MemberRequests {
    /// Commits, at most one per lane.
    pub(super) commits: Vec<LaneCommit>,
    /// Drained lanes.
    pub(super) released: Vec<(Lane, Epoch, Option<Position>)>,
    pub(super) close: bool,
}

/// The chunks of a lane.
#[derive(Debug, Default)]
struct LaneBuffer {
    epoch: Epoch,
    is_open: bool,
    is_paused: bool,
    chunks: VecDeque<Chunk>,
}

#[derive(Debug)]
enum Chunk {
    Records(Vec<Record>),
    /// No records up to and including this position.
    Gap(Position),
}

impl SourceChannel {
    fn lock(&self) -> MutexGuard<'_, ChannelState> {
        lock(&self.state)
    }

    /// Registers the calling thread as the member thread.
    pub(super) fn set_member_thread(&self) {
        let _ = self.thread.set(std::thread::current());
    }

    /// Wakes the member thread.
    pub(super) fn wake_thread(&self) {
        self.thread.get().into_iter().for_each(Thread::unpark);
    }

    fn update(&self, change: impl FnOnce(&mut ChannelState)) {
        let mut state = self.lock();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Starts an assignment.
    pub(super) fn open(&self, lane: Lane, epoch: Epoch) {
        self.update(|state| {
            let index = lane.0 as usize;
            if state.lanes.len() <= index {
                state.lanes.resize_with(index + 1, LaneBuffer::default);
            }
            state.lanes[index] = LaneBuffer { epoch, is_open: true, is_paused: false, chunks: VecDeque::new() };
            state.events.push_back(SourceEvent::Assigned { lane, epoch });
        });
    }

    /// Ends assignments: drops undelivered chunks and delivers the event.
    pub(super) fn close_lanes(&self, lanes: &[(Lane, Epoch)], event: SourceEvent) {
        self.update(|state| {
            for (lane, _) in lanes {
                let buffer = state.lanes.get_mut(lane.0 as usize);
                let chunks = buffer.map(|buffer| {
                    buffer.is_open = false;
                    mem::take(&mut buffer.chunks)
                });
                let dropped: usize = chunks.iter().flatten().map(Chunk::bytes).sum();
                self.chunk_bytes.fetch_sub(dropped, Ordering::Relaxed);
                if matches!(event, SourceEvent::Lost { .. }) {
                    state.requests.commits.retain(|commit| commit.lane != *lane);
                }
            }
            state.events.push_back(event);
        });
    }

    pub(super) fn push_event(&self, event: SourceEvent) {
        self.update(|state| state.events.push_back(event));
    }

    /// Whether the lane has room for another chunk.
    pub(super) fn has_room(&self, lane: Lane) -> bool {
        let state = self.lock();
        let buffer = state.lanes.get(lane.0 as usize);
        buffer.is_some_and(|buffer| buffer.is_open && !buffer.is_paused && buffer.chunks.len() < LANE_CHUNKS_MAX)
    }

    /// An empty buffer for the next chunk.
    pub(super) fn spare_buffer(&self) -> Vec<Record> {
        self.lock().spare.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK_RECORDS))
    }

    pub(super) fn push_records(&self, lane: Lane, records: Vec<Record>) {
        self.push_chunk(lane, Chunk::Records(records));
    }

    pub(super) fn push_gap(&self, lane: Lane, through: Position) {
        self.push_chunk(lane, Chunk::Gap(through));
    }

    fn push_chunk(&self, lane: Lane, chunk: Chunk) {
        self.chunk_bytes.fetch_add(chunk.bytes(), Ordering::Relaxed);
        self.update(|state| state.lanes[lane.0 as usize].chunks.push_back(chunk));
    }

    /// Takes the requests made since the last call.
    pub(super) fn requests(&self) -> MemberRequests {
        mem::take(&mut self.lock().requests)
    }

    pub(super) fn set_client_bytes(&self, bytes: usize) {
        self.client_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Fails the source: no more records follow.
    pub(super) fn fail(&self, error: KafkaSourceError) {
        self.update(|state| state.failure = Some(error));
    }

    /// The member thread has ended. The first result counts.
    pub(super) fn end(&self, result: Result<(), KafkaSourceError>) {
        self.update(|state| {
            state.end.get_or_insert(result);
        });
    }

    /// Returns the next event to the subscription.
    pub(super) fn poll(
        &self,
        cx: &mut Context<'_>,
        room: PollLimit,
        batch: &mut Vec<Record>,
    ) -> Poll<Result<SourceEvent, KafkaSourceError>> {
        let mut state = self.lock();
        let event = state.events.pop_front().or_else(|| self.take(&mut state, room, batch));
        if let Some(event) = event {
            return Poll::Ready(Ok(event));
        }
        if let Some(error) = state.failure.take() {
            return Poll::Ready(Err(error));
        }
        if state.end.is_some() {
            // The thread ended without a request.
            return Poll::Ready(Err(KafkaSourceError::Internal));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Takes a chunk, or a part of it; lanes take turns.
    fn take(&self, state: &mut ChannelState, room: PollLimit, batch: &mut Vec<Record>) -> Option<SourceEvent> {
        let count = state.lanes.len();
        let in_turn = (0..count).map(|step| (state.turn + step) % count);
        let index = in_turn.into_iter().find(|index| state.lanes[*index].has_something(room))?;
        state.turn = index + 1;
        let buffer = &mut state.lanes[index];
        let lane = Lane(u32::try_from(index).expect("lane numbers fit in u32"));
        let epoch = buffer.epoch;
        let event = match buffer.chunks.front_mut()? {
            Chunk::Gap(through) => SourceEvent::Gap { lane, epoch, through: *through },
            Chunk::Records(records) => {
                let taken = taken(records, room);
                let bytes: usize = records[..taken].iter().map(Record::size_bytes).sum();
                self.chunk_bytes.fetch_sub(bytes, Ordering::Relaxed);
                batch.extend(records.drain(..taken));
                if !records.is_empty() {
                    return Some(SourceEvent::Records);
                }
                SourceEvent::Records
            }
        };
        if let Some(Chunk::Records(records)) = buffer.chunks.pop_front()
            && state.spare.len() < SPARE_MAX
        {
            state.spare.push(records);
        }
        self.wake_thread();
        Some(event)
    }

    pub(super) fn set_paused(&self, lane: Lane, epoch: Epoch, is_paused: bool) {
        let mut state = self.lock();
        let buffer = state.lanes.get_mut(lane.0 as usize).filter(|buffer| buffer.epoch == epoch);
        buffer.into_iter().for_each(|buffer| buffer.is_paused = is_paused);
        drop(state);
        if !is_paused {
            self.wake_thread();
        }
    }

    pub(super) fn commit(&self, commits: &[LaneCommit]) {
        let mut state = self.lock();
        for commit in commits {
            match state.requests.commits.iter_mut().find(|earlier| earlier.lane == commit.lane) {
                Some(earlier) => *earlier = *commit,
                None => state.requests.commits.push(*commit),
            }
        }
        drop(state);
        self.wake_thread();
    }

    pub(super) fn release(&self, lane: Lane, epoch: Epoch, through: Option<Position>) {
        self.lock().requests.released.push((lane, epoch, through));
        self.wake_thread();
    }

    /// Ready once the member thread has ended.
    pub(super) fn poll_close(&self, cx: &mut Context<'_>) -> Poll<Result<(), KafkaSourceError>> {
        let mut state = self.lock();
        if let Some(result) = state.end.take() {
            state.end = Some(Ok(()));
            return Poll::Ready(result);
        }
        state.waker = Some(cx.waker().clone());
        drop(state);
        self.close();
        Poll::Pending
    }

    pub(super) fn close(&self) {
        self.lock().requests.close = true;
        self.wake_thread();
    }

    pub(super) fn buffered_bytes(&self) -> usize {
        self.chunk_bytes.load(Ordering::Relaxed) + self.client_bytes.load(Ordering::Relaxed)
    }
}

impl LaneBuffer {
    fn has_something(&self, room: PollLimit) -> bool {
        match self.chunks.front() {
            None => false,
            Some(Chunk::Gap(_)) => true,
            Some(Chunk::Records(_)) => room.records > 0 && !self.is_paused,
        }
    }
}

impl Chunk {
    fn bytes(&self) -> usize {
        match self {
            Self::Records(records) => records.iter().map(Record::size_bytes).sum(),
            Self::Gap(_) => 0,
        }
    }
}

/// How many records fit the limit: at least one.
fn taken(records: &[Record], room: PollLimit) -> usize {
    let mut bytes = 0_usize;
    let fits = |record: &&Record| {
        bytes = bytes.saturating_add(record.size_bytes());
        bytes <= room.bytes
    };
    records.iter().take(room.records).take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests;
