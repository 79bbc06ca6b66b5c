//! Between the thread of the client and the subscription: records and news one way, wishes the other.
//!
//! Bounded: a lane has at most [`PARCELS_MAX`] parcels here, of a size that the [reader](super::reader) chooses by how many
//! lanes there are; then its records stay with the client. News is not bounded by itself, but there is no more of it than
//! there are lanes and commits.

use std::collections::VecDeque;
use std::mem;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::Thread;

use super::Error;
use crate::record::{Epoch, Lane, Position, Record};
use crate::source::{Event, Mark, Room};
use crate::sync::{Mutex, MutexGuard, lock};

/// Records read from the client at once, and handed over at once.
pub(super) const PARCEL_RECORDS: usize = 512;
pub(super) const PARCELS_MAX: usize = 2;
/// Empty buffers that are kept for the next parcels.
const SPARE_MAX: usize = 8;

/// What both sides share.
#[derive(Debug, Default)]
pub(super) struct Handover {
    // One lock for a parcel of hundreds of records.
    state: Mutex<State>,
    /// Bytes of the parcels, and of what the client said last that it holds.
    parcel_bytes: AtomicUsize,
    client_bytes: AtomicUsize,
    /// Whom to wake when there is something to do.
    thread: OnceLock<Thread>,
}

#[derive(Debug, Default)]
struct State {
    news: VecDeque<Event>,
    lanes: Vec<Basket>,
    /// The lane whose turn it is.
    turn: usize,
    spare: Vec<Vec<Record>>,
    wishes: Wishes,
    waker: Option<Waker>,
    /// Why the source cannot go on; the thread lives on for the last commits.
    failure: Option<Error>,
    end: Option<Result<(), Error>>,
}

/// What the subscription wants done.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    /// To be committed; at most one of each lane.
    pub(super) marks: Vec<Mark>,
    /// Lanes that are at rest.
    pub(super) released: Vec<(Lane, Epoch, Option<Position>)>,
    pub(super) close: bool,
}

/// One lane's parcels.
#[derive(Debug, Default)]
struct Basket {
    epoch: Epoch,
    is_open: bool,
    is_paused: bool,
    parcels: VecDeque<Parcel>,
}

#[derive(Debug)]
enum Parcel {
    Records(Vec<Record>),
    /// Nothing (more) up to here.
    Passed(Position),
}

impl Handover {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The calling thread is the client's: it is the one to be woken.
    pub(super) fn belongs_to_this_thread(&self) {
        let _ = self.thread.set(std::thread::current());
    }

    /// Wakes the thread of the client.
    pub(super) fn wake_thread(&self) {
        self.thread.get().into_iter().for_each(Thread::unpark);
    }

    fn tell(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Begins an assignment.
    pub(super) fn open(&self, lane: Lane, epoch: Epoch) {
        self.tell(|state| {
            let index = lane.0 as usize;
            if state.lanes.len() <= index {
                state.lanes.resize_with(index + 1, Basket::default);
            }
            state.lanes[index] = Basket { epoch, is_open: true, is_paused: false, parcels: VecDeque::new() };
            state.news.push_back(Event::Assigned { lane, epoch });
        });
    }

    /// Ends assignments: what was not taken is dropped, and the event is told.
    pub(super) fn shut(&self, lanes: &[(Lane, Epoch)], event: Event) {
        self.tell(|state| {
            for (lane, _) in lanes {
                let basket = state.lanes.get_mut(lane.0 as usize);
                let parcels = basket.map(|basket| {
                    basket.is_open = false;
                    mem::take(&mut basket.parcels)
                });
                let dropped: usize = parcels.iter().flatten().map(Parcel::bytes).sum();
                self.parcel_bytes.fetch_sub(dropped, Ordering::Relaxed);
                if matches!(event, Event::Lost { .. }) {
                    state.wishes.marks.retain(|mark| mark.lane != *lane);
                }
            }
            state.news.push_back(event);
        });
    }

    pub(super) fn news(&self, event: Event) {
        self.tell(|state| state.news.push_back(event));
    }

    /// Whether the lane takes another parcel now.
    pub(super) fn has_room(&self, lane: Lane) -> bool {
        let state = self.lock();
        let basket = state.lanes.get(lane.0 as usize);
        basket.is_some_and(|basket| basket.is_open && !basket.is_paused && basket.parcels.len() < PARCELS_MAX)
    }

    /// An empty buffer for the next parcel.
    pub(super) fn buffer(&self) -> Vec<Record> {
        self.lock().spare.pop().unwrap_or_else(|| Vec::with_capacity(PARCEL_RECORDS))
    }

    pub(super) fn put(&self, lane: Lane, records: Vec<Record>) {
        self.put_parcel(lane, Parcel::Records(records));
    }

    pub(super) fn pass(&self, lane: Lane, through: Position) {
        self.put_parcel(lane, Parcel::Passed(through));
    }

    fn put_parcel(&self, lane: Lane, parcel: Parcel) {
        self.parcel_bytes.fetch_add(parcel.bytes(), Ordering::Relaxed);
        self.tell(|state| state.lanes[lane.0 as usize].parcels.push_back(parcel));
    }

    /// What the subscription wants since it was asked last.
    pub(super) fn wishes(&self) -> Wishes {
        mem::take(&mut self.lock().wishes)
    }

    pub(super) fn set_client_bytes(&self, bytes: usize) {
        self.client_bytes.store(bytes, Ordering::Relaxed);
    }

    /// There will be no more records.
    pub(super) fn fail(&self, error: Error) {
        self.tell(|state| state.failure = Some(error));
    }

    /// The thread is done. The first result counts.
    pub(super) fn end(&self, result: Result<(), Error>) {
        self.tell(|state| {
            state.end.get_or_insert(result);
        });
    }

    /// The other side: the next event.
    pub(super) fn poll(&self, cx: &mut Context<'_>, room: Room, batch: &mut Vec<Record>) -> Poll<Result<Event, Error>> {
        let mut state = self.lock();
        let event = state.news.pop_front().or_else(|| self.take(&mut state, room, batch));
        if let Some(event) = event {
            return Poll::Ready(Ok(event));
        }
        if let Some(error) = state.failure.take() {
            return Poll::Ready(Err(error));
        }
        if state.end.is_some() {
            // Nobody asked it to end.
            return Poll::Ready(Err(Error::Broken));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// From the lanes in turn.
    fn take(&self, state: &mut State, room: Room, batch: &mut Vec<Record>) -> Option<Event> {
        let count = state.lanes.len();
        let in_turn = (0..count).map(|step| (state.turn + step) % count);
        let index = in_turn.into_iter().find(|index| state.lanes[*index].has_something(room))?;
        state.turn = index + 1;
        let basket = &mut state.lanes[index];
        let lane = Lane(u32::try_from(index).expect("as many as partitions"));
        let epoch = basket.epoch;
        let event = match basket.parcels.front_mut()? {
            Parcel::Passed(through) => Event::Passed { lane, epoch, through: *through },
            Parcel::Records(records) => {
                let taken = taken(records, room);
                let bytes: usize = records[..taken].iter().map(Record::size_bytes).sum();
                self.parcel_bytes.fetch_sub(bytes, Ordering::Relaxed);
                batch.extend(records.drain(..taken));
                if !records.is_empty() {
                    return Some(Event::Records);
                }
                Event::Records
            }
        };
        if let Some(Parcel::Records(records)) = basket.parcels.pop_front()
            && state.spare.len() < SPARE_MAX
        {
            state.spare.push(records);
        }
        self.wake_thread();
        Some(event)
    }

    pub(super) fn set_paused(&self, lane: Lane, epoch: Epoch, is_paused: bool) {
        let mut state = self.lock();
        let basket = state.lanes.get_mut(lane.0 as usize).filter(|basket| basket.epoch == epoch);
        basket.into_iter().for_each(|basket| basket.is_paused = is_paused);
        drop(state);
        if !is_paused {
            self.wake_thread();
        }
    }

    pub(super) fn commit(&self, marks: &[Mark]) {
        let mut state = self.lock();
        for mark in marks {
            match state.wishes.marks.iter_mut().find(|earlier| earlier.lane == mark.lane) {
                Some(earlier) => *earlier = *mark,
                None => state.wishes.marks.push(*mark),
            }
        }
        drop(state);
        self.wake_thread();
    }

    pub(super) fn release(&self, lane: Lane, epoch: Epoch, through: Option<Position>) {
        self.lock().wishes.released.push((lane, epoch, through));
        self.wake_thread();
    }

    /// Ready when the thread is done.
    pub(super) fn poll_close(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
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
        self.lock().wishes.close = true;
        self.wake_thread();
    }

    pub(super) fn buffered_bytes(&self) -> usize {
        self.parcel_bytes.load(Ordering::Relaxed) + self.client_bytes.load(Ordering::Relaxed)
    }
}

impl Basket {
    fn has_something(&self, room: Room) -> bool {
        match self.parcels.front() {
            None => false,
            Some(Parcel::Passed(_)) => true,
            Some(Parcel::Records(_)) => room.records > 0 && !self.is_paused,
        }
    }
}

impl Parcel {
    fn bytes(&self) -> usize {
        match self {
            Self::Records(records) => records.iter().map(Record::size_bytes).sum(),
            Self::Passed(_) => 0,
        }
    }
}

/// How many of the records fit into the room: at least one.
fn taken(records: &[Record], room: Room) -> usize {
    let mut bytes = 0_usize;
    let fits = |record: &&Record| {
        bytes = bytes.saturating_add(record.size_bytes());
        bytes <= room.bytes
    };
    records.iter().take(room.records).take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests;
