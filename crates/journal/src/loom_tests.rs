//! Loom models of producers, writer and waiters: all interleavings. Run with `RUSTFLAGS="--cfg loom" cargo test -p
//! tidegate-journal --release --lib`.

use std::{
    sync::Arc as StdArc,
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use loom::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use crate::{
    config::{ClassConfig, OverloadPolicy},
    durability_tracker::DurabilityTracker,
    frame::{FrameInput, FrameKind, HEAD_BYTES},
    memory_budget::{MemoryBudget, Reservation},
    producer_record::{Ack, Class},
    staging::{AppendContext, AppendFailure, BatchPolicy, BlockingMode, Staging, TakeResult, WakeAction},
    timestamp::Timestamp,
    wait_queue::WaitStatus,
};

const PAYLOAD: [u8; 40] = [7; 40];
/// A chunk holds one record, so every record starts a new chunk.
const CHUNK: usize = HEAD_BYTES + PAYLOAD.len();

struct Model {
    staging: Mutex<Staging>,
    budget: MemoryBudget,
    classes: Vec<ClassConfig>,
}

impl Model {
    fn new(chunks: usize) -> Self {
        let (staging, budget) = (Mutex::new(Staging::new(1, 0)), MemoryBudget::new(chunks * CHUNK, CHUNK));
        let classes = vec![ClassConfig::new("a").overload(OverloadPolicy::DropNewest)];
        Self { staging, budget, classes }
    }

    fn append(&self) -> Result<(u64, WakeAction), AppendFailure> {
        let framed =
            FrameInput { kind: FrameKind::Record, class: Class::new(0), time: Timestamp::MIN, payload: &PAYLOAD };
        let mut staging = self.staging.lock().expect("no thread panics");
        let context =
            AppendContext { classes: &self.classes, budget: &self.budget, reservation: &mut Reservation::default() };
        staging.append(&framed, Ack::Accepted, BlockingMode::NonBlocking, context)
    }

    /// Takes a batch. Returns its number of records, and whether the writer would sleep now.
    fn take(&self, linger: Duration) -> (u64, Option<TakeResult>) {
        let policy = BatchPolicy { linger, bytes_max: 1 << 20, group_commit: None };
        let taken = self.staging.lock().expect("no thread panics").take(&policy, Instant::now());
        let TakeResult::Batch(batch) = taken else { return (0, Some(taken)) };
        let records = batch.chunks.iter().map(crate::chunk::FrameChunk::records).sum();
        batch.chunks.into_iter().for_each(|chunk| self.budget.release(chunk));
        (records, None)
    }
}

/// JO-30: every accepted record is taken once.
#[test]
fn every_accepted_record_is_taken_once() {
    loom::model(|| {
        let model = Arc::new(Model::new(8));
        let appending = Arc::clone(&model);
        let producer = thread::spawn(move || (0..2).filter(|_| appending.append().is_ok()).count() as u64);
        let closing = Arc::clone(&model);
        let closer = thread::spawn(move || {
            closing.staging.lock().expect("no thread panics").close();
        });
        let mut taken = model.take(Duration::ZERO).0;
        let accepted = producer.join().expect("no thread panics");
        closer.join().expect("no thread panics");
        loop {
            let (records, rest) = model.take(Duration::ZERO);
            taken += records;
            if matches!(rest, Some(TakeResult::Closed)) {
                break;
            }
        }
        assert_eq!(taken, accepted);
        assert_eq!(model.budget.used(), 0);
    });
}

/// JO-30: sleeping writer is woken once.
#[test]
fn sleeping_writer_is_woken_once() {
    loom::model(|| {
        let model = Arc::new(Model::new(8));
        let producers: Vec<_> = (0..2)
            .map(|_| {
                let model = Arc::clone(&model);
                thread::spawn(move || usize::from(matches!(model.append(), Ok((_, WakeAction::Wake)))))
            })
            .collect();
        let (_, sleeps) = model.take(Duration::from_secs(1));
        let woken: usize = producers.into_iter().map(|producer| producer.join().expect("no thread panics")).sum();
        match sleeps {
            // The staging area was empty; both records came later, and the first woke the writer.
            Some(TakeResult::Idle) => assert_eq!(woken, 1),
            // The writer lingers over one record; the second one fills the chunk and wakes it, if it came later.
            Some(TakeResult::Linger(_)) => assert_eq!(woken, 1),
            // The writer is busy and checks again by itself.
            _ => assert_eq!(woken, 0),
        }
    });
}

/// JO-30: waiter is granted released room.
#[test]
fn waiter_is_granted_released_room() {
    loom::model(|| {
        // An eighth of the bound is never granted.
        let budget = Arc::new(MemoryBudget::new(2 * CHUNK, CHUNK));
        let chunk = budget.acquire(CHUNK, &mut Reservation::default()).expect("the journal is empty");
        let releasing = Arc::clone(&budget);
        let releaser = thread::spawn(move || releasing.release(chunk));
        let (ticket, _) = budget.enqueue(CHUNK, Waker::noop(), None);
        releaser.join().expect("no thread panics");
        assert_eq!(
            budget.status(ticket, Waker::noop()),
            WaitStatus::Granted,
            "room was released and no waiter was granted"
        );
        let mut reservation = budget.leave(ticket);
        assert!(budget.acquire(CHUNK, &mut reservation).is_some());
        budget.release_reservation(reservation);
        assert_eq!(budget.used(), CHUNK);
    });
}

/// Counts wake-ups.
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: StdArc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// JO-30: ack waiter is woken.
#[test]
fn ack_waiter_is_woken() {
    loom::model(|| {
        let acks = Arc::new(DurabilityTracker::new(0));
        let publishing = Arc::clone(&acks);
        let writer = thread::spawn(move || publishing.publish(1, Ack::Written));
        let count = StdArc::new(Count(AtomicUsize::new(0)));
        let (waker, mut waiter_id) = (Waker::from(StdArc::clone(&count)), None);
        let polled = acks.poll(0, Ack::Written, &mut waiter_id, &Context::from_waker(&waker));
        writer.join().expect("no thread panics");
        assert!(polled == Poll::Ready(Ok(())) || count.0.load(SeqCst) == 1);
    });
}
