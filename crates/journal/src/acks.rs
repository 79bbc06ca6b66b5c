//! How far a stripe is written and durable, and who waits for it.

use std::{
    ops::Range,
    task::{Context, Poll, Waker},
};

use crate::{
    error::Lost,
    note::Ack,
    stretches::Stretches,
    sync::{AtomicU64, AtomicUsize, Mutex, Ordering, lock, total_order},
};

/// How many of each room are told by whoever publishes. They come to run in a queue that threads share.
const FIRST_CALLS: usize = 4;
/// How many are told at a time by one of those who were told, in the queue of its own thread.
const CALLS: usize = 32;
/// Waiting rooms of a stripe, of which a thread has one, and some threads share one if there are more of them.
const ROOMS: usize = if cfg!(loom) { 1 } else { 16 };

/// A place among the waiters. It is free again as soon as its waiter is told, so it counts only with its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    room: usize,
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
}

/// Where those wait who were polled by the same thread: it finds its room's lines where it left them, and what is told from
/// there stays in the thread's own queue. On lines of its own.
#[repr(align(128))]
#[derive(Debug)]
struct Room {
    waiters: Mutex<Waiters>,
    /// Who is to be told yet.
    calls: Mutex<Vec<Waker>>,
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
    lost: Mutex<Losses>,
    rooms: [Room; ROOMS],
    /// The rooms, a bit each, where somebody is to be told yet. Those who were told help: to wake a thousand tasks takes
    /// longer than to sync a disk, and least if their own threads do it.
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
            lost: Mutex::new(Losses::default()),
            rooms: std::array::from_fn(|_| Room::new()),
            called: AtomicUsize::new(0),
            untold: [AtomicUsize::new(0), AtomicUsize::new(0)],
        }
    }

    /// Everything below `seq` is as safe as `ack` says. Some of those who wait for it are told, and tell the others, as does
    /// [`tell`](Self::tell).
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
        lock(&self.lost).add(range, ack);
        self.losses.store(1, Ordering::SeqCst);
        if ack < Ack::Durable {
            self.untold[0].store(1, Ordering::SeqCst);
        }
        self.untold[1].store(1, Ordering::SeqCst);
        self.wake();
        while self.tell() {}
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
        if self.losses.load(Ordering::SeqCst) > 0 && lock(&self.lost).has(seq, ack) {
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
            self.help();
            return Poll::Ready(known);
        }
        self.help();
        let room = seat.map_or_else(own_room, |seat| seat.room);
        lock(&self.rooms[room].waiters).sit(seq, ack, room, seat, context.waker());
        total_order();
        // It may have been published before we sat down.
        let Some(known) = self.look(seq, ack) else { return Poll::Pending };
        self.leave(seat.take());
        Poll::Ready(known)
    }

    /// Gives up the seat, if it is still taken.
    pub(crate) fn leave(&self, seat: Option<Seat>) {
        if let Some(seat) = seat {
            lock(&self.rooms[seat.room].waiters).leave(seat);
            // Who was told and does not come would have told others.
            self.help();
        }
    }

    /// Those whose record is decided are to be told, and the first of each room are.
    fn wake(&self) {
        let (written, durable) = (self.written(), self.durable());
        let lost = (self.losses.load(Ordering::SeqCst) > 0).then(|| lock(&self.lost));
        let mut rooms = 0;
        for (number, room) in self.rooms.iter().enumerate() {
            let mut woken = lock(&room.waiters).rise(written, durable, lost.as_deref());
            if woken.is_empty() {
                continue;
            }
            let mut calls = lock(&room.calls);
            calls.append(&mut woken);
            self.called.fetch_or(1 << number, Ordering::Relaxed);
            rooms |= 1 << number;
        }
        // Whoever is woken may look at once.
        drop(lost);
        (0..ROOMS).filter(|number| rooms & (1 << number) != 0).for_each(|number| self.call(number, FIRST_CALLS));
    }

    /// Tells some more of those who are to be told. `false`: there are none.
    pub(crate) fn tell(&self) -> bool {
        let called = self.called.load(Ordering::Relaxed);
        if called == 0 {
            return false;
        }
        self.call(called.trailing_zeros() as usize, CALLS);
        true
    }

    /// Whether somebody is to be told yet.
    pub(crate) fn has_called(&self) -> bool {
        self.called.load(Ordering::Relaxed) != 0
    }

    /// Tells some of one's own room, or of another one.
    #[inline]
    fn help(&self) {
        let called = self.called.load(Ordering::Relaxed);
        if called != 0 {
            let own = own_room();
            let room = if called & (1 << own) == 0 { called.trailing_zeros() as usize } else { own };
            self.call(room, CALLS);
        }
    }

    fn call(&self, room: usize, most: usize) {
        let mut calls = lock(&self.rooms[room].calls);
        let rest = calls.len().saturating_sub(most);
        let some = calls.split_off(rest);
        if rest == 0 {
            self.called.fetch_and(!(1 << room), Ordering::Relaxed);
        }
        drop(calls);
        some.into_iter().for_each(Waker::wake);
    }
}

/// The room of the thread that asks.
fn own_room() -> usize {
    #[cfg(loom)]
    return 0;
    #[cfg(not(loom))]
    {
        use std::{cell::Cell, sync::atomic};
        static NEXT: atomic::AtomicUsize = atomic::AtomicUsize::new(0);
        thread_local! {
            static ROOM: Cell<Option<usize>> = const { Cell::new(None) };
        }
        ROOM.get().unwrap_or_else(|| {
            let room = NEXT.fetch_add(1, Ordering::Relaxed) % ROOMS;
            ROOM.set(Some(room));
            room
        })
    }
}

impl Room {
    fn new() -> Self {
        Self { waiters: Mutex::new(Waiters::default()), calls: Mutex::new(Vec::new()) }
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
    fn sit(&mut self, seq: u64, ack: Ack, room: usize, seat: &mut Option<Seat>, waker: &Waker) {
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
        *seat = Some(Seat { room, place, number: self.sat });
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
    fn rise(&mut self, written: u64, durable: u64, lost: Option<&Losses>) -> Vec<Waker> {
        let mut woken = Vec::new();
        for (place, seat) in self.seats.iter_mut().enumerate() {
            let decided = seat.take_if(|waiter| {
                let reached = if waiter.ack == Ack::Durable { durable } else { written };
                waiter.seq < reached || lost.is_some_and(|lost| lost.has(waiter.seq, waiter.ack))
            });
            if let Some(waiter) = decided {
                woken.push(waiter.waker);
                self.free.push(place);
            }
        }
        woken
    }
}
