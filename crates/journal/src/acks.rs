//! How far a stripe is written and durable, and who waits for it.

use std::{
    ops::Range,
    task::{Context, Poll, Waker},
};

use crate::{
    error::Lost,
    note::Ack,
    sync::{AtomicU64, AtomicUsize, Mutex, Ordering, lock, total_order},
};

/// A place among the waiters.
pub(crate) type Seat = usize;

#[derive(Debug)]
struct Waiter {
    seq: u64,
    ack: Ack,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Waiters {
    seats: Vec<Option<Waiter>>,
    free: Vec<Seat>,
    /// What was accepted and lost, and from which level on.
    lost: Vec<(Range<u64>, Ack)>,
}

/// Numbers below `written` are written, unless they are among the lost; likewise `durable`.
pub(crate) struct Acks {
    written: AtomicU64,
    durable: AtomicU64,
    /// How many ranges were lost, so that the usual answer needs no lock.
    losses: AtomicUsize,
    waiters: Mutex<Waiters>,
}

impl Acks {
    pub(crate) fn new(next_seq: u64) -> Self {
        Self {
            written: AtomicU64::new(next_seq),
            durable: AtomicU64::new(next_seq),
            losses: AtomicUsize::new(0),
            waiters: Mutex::new(Waiters::default()),
        }
    }

    /// Everything below `seq` is as safe as `ack` says.
    pub(crate) fn publish(&self, seq: u64, ack: Ack) {
        self.written.fetch_max(seq, Ordering::SeqCst);
        if ack == Ack::Durable {
            self.durable.fetch_max(seq, Ordering::SeqCst);
        }
        total_order();
        self.wake();
    }

    /// The range will never be as safe as `ack` says.
    pub(crate) fn lose(&self, range: Range<u64>, ack: Ack) {
        lock(&self.waiters).lost.push((range, ack));
        self.losses.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::SeqCst)
    }

    /// Whether the record is as safe as that, or never will be.
    #[inline]
    pub(crate) fn look(&self, seq: u64, ack: Ack) -> Option<Result<(), Lost>> {
        if ack == Ack::Accepted {
            return Some(Ok(()));
        }
        let reached = if ack == Ack::Written { self.written() } else { self.durable() };
        if self.losses.load(Ordering::SeqCst) > 0 && lock(&self.waiters).is_lost(seq, ack) {
            return Some(Err(Lost));
        }
        (seq < reached).then_some(Ok(()))
    }

    /// Like [`look`](Self::look), and takes a seat if it is too early to say.
    pub(crate) fn poll(
        &self,
        seq: u64,
        ack: Ack,
        seat: &mut Option<Seat>,
        context: &Context<'_>,
    ) -> Poll<Result<(), Lost>> {
        if let Some(known) = self.look(seq, ack) {
            self.leave(seat.take());
            return Poll::Ready(known);
        }
        lock(&self.waiters).sit(seq, ack, seat, context.waker());
        total_order();
        // It may have been published before we sat down.
        let Some(known) = self.look(seq, ack) else { return Poll::Pending };
        self.leave(seat.take());
        Poll::Ready(known)
    }

    pub(crate) fn leave(&self, seat: Option<Seat>) {
        if let Some(seat) = seat {
            lock(&self.waiters).leave(seat);
        }
    }

    fn wake(&self) {
        let (written, durable) = (self.written(), self.durable());
        let woken = lock(&self.waiters).rise(written, durable);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Waiters {
    fn is_lost(&self, seq: u64, ack: Ack) -> bool {
        self.lost.iter().any(|(range, from)| range.contains(&seq) && ack >= *from)
    }

    fn sit(&mut self, seq: u64, ack: Ack, seat: &mut Option<Seat>, waker: &Waker) {
        let waiter = Waiter { seq, ack, waker: waker.clone() };
        if let Some(place) = *seat {
            self.seats[place] = Some(waiter);
            return;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.seats.push(None);
            self.seats.len() - 1
        });
        self.seats[place] = Some(waiter);
        *seat = Some(place);
    }

    /// The seat stays its owner's until the owner leaves it.
    fn leave(&mut self, seat: Seat) {
        self.seats[seat] = None;
        self.free.push(seat);
    }

    /// Wakes whoever's record is decided; they keep their (empty) seats until they leave.
    fn rise(&mut self, written: u64, durable: u64) -> Vec<Waker> {
        let mut woken = Vec::new();
        let lost = &self.lost;
        for seat in &mut self.seats {
            let decided = seat.take_if(|waiter| {
                let reached = if waiter.ack == Ack::Durable { durable } else { written };
                waiter.seq < reached
                    || lost.iter().any(|(range, from)| range.contains(&waiter.seq) && waiter.ack >= *from)
            });
            woken.extend(decided.map(|waiter| waiter.waker));
        }
        woken
    }
}
