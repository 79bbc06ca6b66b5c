//! Every interleaving of producers and writer, tried by loom. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p tidegate-journal --release --lib`.

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
    acks::Acks,
    budget::{Budget, Credit},
    config::{ClassConfig, Overload},
    frame::{Framed, HEAD_BYTES, Kind},
    line::Standing,
    note::{Ack, Class},
    staging::{Nudge, Outside, Pace, Patience, Room, Staging, Taken},
    time::Time,
};

const PAYLOAD: [u8; 40] = [7; 40];
/// A chunk holds one record, so every record turns the chunk over.
const CHUNK: usize = HEAD_BYTES + PAYLOAD.len();

struct Model {
    staging: Mutex<Staging>,
    budget: Budget,
    classes: Vec<ClassConfig>,
}

impl Model {
    fn new(chunks: usize) -> Self {
        let (staging, budget) = (Mutex::new(Staging::new(1, 0)), Budget::new(chunks * CHUNK, CHUNK));
        let classes = vec![ClassConfig::new("a").overload(Overload::DropNewest)];
        Self { staging, budget, classes }
    }

    fn append(&self) -> Result<(u64, Nudge), Outside> {
        let framed = Framed { kind: Kind::Record, class: Class::new(0), time: Time::MIN, payload: &PAYLOAD };
        let mut staging = self.staging.lock().expect("nobody panics");
        let room = Room { classes: &self.classes, budget: &self.budget, credit: &mut Credit::default() };
        staging.append(&framed, Ack::Accepted, Patience::Leaves, room)
    }

    /// Takes what is there. Returns how many records, and whether the writer would sleep now.
    fn take(&self, linger: Duration) -> (u64, Option<Taken>) {
        let pace = Pace { linger, bytes_max: 1 << 20, gather: None };
        let taken = self.staging.lock().expect("nobody panics").take(&pace, Instant::now());
        let Taken::Batch(batch) = taken else { return (0, Some(taken)) };
        let records = batch.chunks.iter().map(crate::chunk::Chunk::records).sum();
        batch.chunks.into_iter().for_each(|chunk| self.budget.give(chunk));
        (records, None)
    }
}

#[test]
fn jo_30_every_accepted_record_is_taken_once_however_close_and_swap_fall() {
    loom::model(|| {
        let model = Arc::new(Model::new(8));
        let appending = Arc::clone(&model);
        let producer = thread::spawn(move || (0..2).filter(|_| appending.append().is_ok()).count() as u64);
        let closing = Arc::clone(&model);
        let closer = thread::spawn(move || {
            closing.staging.lock().expect("nobody panics").close();
        });
        let mut taken = model.take(Duration::ZERO).0;
        let accepted = producer.join().expect("it does not panic");
        closer.join().expect("it does not panic");
        loop {
            let (records, rest) = model.take(Duration::ZERO);
            taken += records;
            if matches!(rest, Some(Taken::Ended)) {
                break;
            }
        }
        assert_eq!(taken, accepted);
        assert_eq!(model.budget.used(), 0);
    });
}

#[test]
fn jo_30_a_writer_that_sleeps_is_woken_once() {
    loom::model(|| {
        let model = Arc::new(Model::new(8));
        let producers: Vec<_> = (0..2)
            .map(|_| {
                let model = Arc::clone(&model);
                thread::spawn(move || usize::from(matches!(model.append(), Ok((_, Nudge::Wake)))))
            })
            .collect();
        let (_, sleeps) = model.take(Duration::from_secs(1));
        let woken: usize = producers.into_iter().map(|producer| producer.join().expect("it does not panic")).sum();
        match sleeps {
            // Nothing was there; both records came later, and the first of them woke it.
            Some(Taken::Idle) => assert_eq!(woken, 1),
            // It sleeps for a while, over one record; the second one fills the chunk and wakes it, if it came later.
            Some(Taken::Linger(_)) => assert_eq!(woken, 1),
            // It works on and looks again by itself.
            _ => assert_eq!(woken, 0),
        }
    });
}

#[test]
fn jo_30_whoever_waits_for_room_gets_what_comes_back() {
    loom::model(|| {
        // Of which a part is never promised.
        let budget = Arc::new(Budget::new(2 * CHUNK, CHUNK));
        let chunk = budget.take(CHUNK, &mut Credit::default()).expect("it is empty");
        let giving = Arc::clone(&budget);
        let giver = thread::spawn(move || giving.give(chunk));
        let (turn, _) = budget.join(CHUNK, Waker::noop(), None);
        giver.join().expect("it does not panic");
        assert_eq!(budget.look(turn, Waker::noop()), Standing::Granted, "room came back and nobody was told");
        let mut credit = budget.leave(turn);
        assert!(budget.take(CHUNK, &mut credit).is_some());
        budget.refund(credit);
        assert_eq!(budget.used(), CHUNK);
    });
}

/// Counts how often it was woken.
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: StdArc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn jo_30_whoever_waits_for_the_disk_is_told() {
    loom::model(|| {
        let acks = Arc::new(Acks::new(0));
        let publishing = Arc::clone(&acks);
        let writer = thread::spawn(move || publishing.publish(1, Ack::Written));
        let count = StdArc::new(Count(AtomicUsize::new(0)));
        let (waker, mut seat) = (Waker::from(StdArc::clone(&count)), None);
        let polled = acks.poll(0, Ack::Written, &mut seat, &Context::from_waker(&waker));
        writer.join().expect("it does not panic");
        assert!(polled == Poll::Ready(Ok(())) || count.0.load(SeqCst) == 1);
    });
}
