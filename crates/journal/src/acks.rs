//! How far a stripe is written and durable, and who waits for it.

use std::{
    ops::Range,
    task::{Context, Poll, Waker},
};

use crate::{
    error::Lost,
    note::Ack,
    stretches::Stretches,
    sync::{AtomicU64, AtomicUsize, Mutex, Ordering, lock, lock_crowded, total_order},
};

/// How many are told at a time by one of those who were told.
const CALLS: usize = 16;

/// A place among the waiters. It is free again as soon as its waiter is told, so it counts only with its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    place: usize,
    number: u64,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    seq: u64,
    ack: Ack,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Waiters {
    seats: Vec<Option<Waiter>>,
    free: Vec<usize>,
    /// How many ever sat down.
    sat: u64,
    lost: Losses,
}

/// What was accepted and lost.
#[derive(Debug, Default)]
struct Losses {
    /// Will never be written.
    written: Stretches,
    /// Will never be durable, for that or another reason.
    durable: Stretches,
}

/// Numbers below `written` are written, unless they are among the lost; likewise `durable`.
pub(crate) struct Acks {
    written: AtomicU64,
    durable: AtomicU64,
    /// Whether anything was lost, so that the usual answer needs no lock.
    losses: AtomicUsize,
    waiters: Mutex<Waiters>,
    /// Who is to be told yet. Those who were told help: to wake a thousand tasks takes longer than to sync a disk, and
    /// least if their own threads do it.
    calls: Mutex<Vec<Waker>>,
    /// How many those are, so that the usual answer needs no lock.
    called: AtomicUsize,
    /// By what is lost, written or durable: whether nobody who waited for everything has been told yet.
    untold: [AtomicUsize; 2],
}

impl Acks {
    pub(crate) fn new(next_seq: u64) -> Self {
        Self {
            written: AtomicU64::new(next_seq),
            durable: AtomicU64::new(next_seq),
            losses: AtomicUsize::new(0),
            waiters: Mutex::new(Waiters::default()),
            calls: Mutex::new(Vec::new()),
            called: AtomicUsize::new(0),
            untold: [AtomicUsize::new(0), AtomicUsize::new(0)],
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
        if range.is_empty() {
            return;
        }
        lock(&self.waiters).lost.add(range, ack);
        self.losses.store(1, Ordering::SeqCst);
        if ack < Ack::Durable {
            self.untold[0].store(1, Ordering::SeqCst);
        }
        self.untold[1].store(1, Ordering::SeqCst);
        self.wake();
    }

    /// Whether anything was lost that is not as safe as `ack`, since somebody asked last.
    pub(crate) fn take_untold(&self, ack: Ack) -> bool {
        match ack {
            Ack::Accepted => false,
            Ack::Written => self.untold[0].swap(0, Ordering::SeqCst) > 0,
            Ack::Durable => {
                let written = self.untold[0].swap(0, Ordering::SeqCst) > 0;
                self.untold[1].swap(0, Ordering::SeqCst) > 0 || written
            }
        }
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
        if self.losses.load(Ordering::SeqCst) > 0 && lock(&self.waiters).lost.has(seq, ack) {
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
            // Whoever decided it frees the seat.
            *seat = None;
            if self.called.load(Ordering::Relaxed) > 0 {
                self.call();
            }
            return Poll::Ready(known);
        }
        lock_crowded(&self.waiters).sit(seq, ack, seat, context.waker());
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
        let mut woken = lock(&self.waiters).rise(written, durable);
        if woken.is_empty() {
            return;
        }
        let mut calls = lock(&self.calls);
        calls.append(&mut woken);
        self.called.store(calls.len(), Ordering::Relaxed);
        drop(calls);
        while self.call() {}
    }

    /// Tells some of those who are to be told. `false`: there are none.
    fn call(&self) -> bool {
        let mut calls = lock(&self.calls);
        let rest = calls.len().saturating_sub(CALLS);
        let some = calls.split_off(rest);
        self.called.store(rest, Ordering::Relaxed);
        drop(calls);
        let any = !some.is_empty();
        some.into_iter().for_each(Waker::wake);
        any
    }
}

impl Losses {
    /// From this level on.
    fn add(&mut self, range: Range<u64>, ack: Ack) {
        if ack < Ack::Durable {
            self.written.add(range.clone());
        }
        self.durable.add(range);
    }

    fn has(&self, seq: u64, ack: Ack) -> bool {
        match ack {
            Ack::Accepted => false,
            Ack::Written => self.written.has(seq),
            Ack::Durable => self.durable.has(seq),
        }
    }
}

impl Waiters {
    fn sit(&mut self, seq: u64, ack: Ack, seat: &mut Option<Seat>, waker: &Waker) {
        if let Some(waiter) = seat.and_then(|seat| self.at(seat)).and_then(Option::as_mut) {
            waiter.waker.clone_from(waker);
            return;
        }
        self.sat += 1;
        let waiter = Some(Waiter { number: self.sat, seq, ack, waker: waker.clone() });
        let place = self.free.pop().unwrap_or(self.seats.len());
        match self.seats.get_mut(place) {
            Some(free) => *free = waiter,
            None => self.seats.push(waiter),
        }
        *seat = Some(Seat { place, number: self.sat });
    }

    /// A seat that still is its owner's.
    fn at(&mut self, seat: Seat) -> Option<&mut Option<Waiter>> {
        let number = |waiter: &Waiter| waiter.number == seat.number;
        self.seats.get_mut(seat.place).filter(|taken| taken.as_ref().is_some_and(number))
    }

    fn leave(&mut self, seat: Seat) {
        if let Some(taken) = self.at(seat) {
            *taken = None;
            self.free.push(seat.place);
        }
    }

    /// Whoever's record is decided.
    fn rise(&mut self, written: u64, durable: u64) -> Vec<Waker> {
        let mut woken = Vec::new();
        let lost = &self.lost;
        for (place, seat) in self.seats.iter_mut().enumerate() {
            let decided = seat.take_if(|waiter| {
                let reached = if waiter.ack == Ack::Durable { durable } else { written };
                waiter.seq < reached || lost.has(waiter.seq, waiter.ack)
            });
            if let Some(waiter) = decided {
                woken.push(waiter.waker);
                self.free.push(place);
            }
        }
        woken
    }
}
