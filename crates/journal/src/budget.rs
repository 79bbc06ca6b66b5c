//! The one bound on memory, and the line before it.
//!
//! Stripes take the bound in chunks, so the counter that all share is touched once in some thousand records, and what it
//! counts is memory that was really taken. Chunks that come back are kept for the next one: memory does not exceed the bound,
//! and does not move either.
//!
//! Bytes that are promised to those who wait count as used from the promise on ([`Credit`]), so nobody takes them meanwhile.
//! An eighth of the bound is never promised: with it, whoever comes first of those in their turn gets a whole chunk, and
//! the others find room in it. When that eighth is taken too, each still gets what it was promised, in a chunk of its own.
//!
//! The system gives memory a page at a time when it is first touched, which takes longer than many appends. So while more
//! and more is used, another thread touches the next buffer before it is needed.

use std::{
    sync::OnceLock,
    sync::atomic::AtomicBool,
    task::Waker,
    thread::Thread,
    time::{Duration, Instant},
};

use crate::{
    chunk::Chunk,
    line::{Line, Standing, Turn},
    sync::{AtomicUsize, Mutex, Ordering, lock, total_order},
};

pub(crate) struct Budget {
    max: usize,
    chunk_bytes: usize,
    used: AtomicUsize,
    used_max: AtomicUsize,
    /// Empty buffers of `chunk_bytes`. The lock is taken once per chunk.
    spare: Mutex<Vec<Vec<u8>>>,
    /// There should be one more of these, and who makes it.
    wished: AtomicBool,
    maker: OnceLock<Thread>,
    /// How many wait, for whoever must not overtake them.
    waiting: AtomicUsize,
    line: Mutex<Line>,
}

/// Bytes of the bound that are set aside for one record. What is left of them goes back by [`Budget::refund`].
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Credit(usize);

impl Budget {
    /// No single need is larger than a quarter of `max`.
    pub(crate) fn new(max: usize, chunk_bytes: usize) -> Self {
        Self {
            max,
            chunk_bytes,
            used: AtomicUsize::new(0),
            used_max: AtomicUsize::new(0),
            spare: Mutex::new(Vec::new()),
            wished: AtomicBool::new(true),
            maker: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            line: Mutex::new(Line::default()),
        }
    }

    /// An empty chunk for at least `bytes`, if the bound allows it. It takes the place of the credit; with one that is large
    /// enough there always is a chunk, though it may be a small one.
    pub(crate) fn take(&self, bytes: usize, credit: &mut Credit) -> Option<Chunk> {
        let wished = bytes.max(self.chunk_bytes);
        let least = if credit.0 == 0 { wished } else { bytes };
        let mut used = self.used.load(Ordering::SeqCst);
        let (charge, now) = loop {
            let others = used - credit.0;
            let charge = wished.min(self.max.saturating_sub(others));
            if charge < least {
                return None;
            }
            match self.used.compare_exchange(used, others + charge, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break (charge, others + charge),
                Err(now) => used = now,
            }
        };
        credit.0 = 0;
        self.used_max.fetch_max(now, Ordering::Relaxed);
        Some(Chunk::new(self.buffer(charge, now), charge))
    }

    fn buffer(&self, charge: usize, used: usize) -> Vec<u8> {
        let mut spare = lock(&self.spare);
        // A smaller one, of whoever was promised no more, takes no memory that is not there already.
        if charge <= self.chunk_bytes
            && let Some(buffer) = spare.pop()
        {
            let is_last = spare.is_empty();
            drop(spare);
            if is_last {
                self.wish(used);
            }
            return buffer;
        }
        // A larger one takes the place of spare ones.
        spare.truncate((self.max - used.min(self.max)) / self.chunk_bytes);
        drop(spare);
        self.wish(used);
        Vec::with_capacity(charge)
    }

    /// Who makes buffers ready by [`prepare`](Self::prepare) when it is woken.
    pub(crate) fn set_maker(&self, thread: Thread) {
        let _ = self.maker.set(thread);
    }

    /// No buffer is left.
    fn wish(&self, used: usize) {
        if used + self.chunk_bytes <= self.max
            && let Some(maker) = self.maker.get()
        {
            self.wished.store(true, Ordering::Release);
            maker.unpark();
        }
    }

    /// Makes a buffer ready, if one was wished for and the bound leaves room.
    pub(crate) fn prepare(&self) {
        if !self.wished.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut buffer = Vec::with_capacity(self.chunk_bytes);
        // Not with zeros: memory that is asked for zeroed comes untouched.
        buffer.resize(self.chunk_bytes, u8::MAX);
        let mut spare = lock(&self.spare);
        if spare.is_empty() && self.used.load(Ordering::SeqCst) + self.chunk_bytes <= self.max {
            spare.push(buffer);
        }
    }

    /// A chunk comes back. Whoever waits longest gets the room.
    pub(crate) fn give(&self, chunk: Chunk) {
        let (charge, buffer) = (chunk.charge(), chunk.into_buffer());
        if buffer.capacity() >= self.chunk_bytes && charge <= self.chunk_bytes {
            let mut spare = lock(&self.spare);
            if spare.len() < self.max / self.chunk_bytes {
                spare.push(buffer);
            }
        }
        self.used.fetch_sub(charge, Ordering::SeqCst);
        total_order();
        self.serve();
    }

    /// Promises free room to those who wait, once there is enough to be worth the wake-ups: a quarter of the bound. It
    /// will be, as everything that is used is written sooner or later.
    fn serve(&self) {
        if self.waiting.load(Ordering::SeqCst) == 0 || self.free() < self.max / 4 {
            return;
        }
        let mut line = lock(&self.line);
        let woken = line.grant(|need| self.set_aside(need));
        self.waiting.store(line.waiting(), Ordering::SeqCst);
        drop(line);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Counts bytes as used for one that waits, if that leaves enough for chunks.
    fn set_aside(&self, need: usize) -> bool {
        let most = self.max - self.max / 8;
        let more = |used: usize| Some(used + need).filter(|used| *used <= most);
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    fn free(&self) -> usize {
        self.max.saturating_sub(self.used.load(Ordering::SeqCst))
    }

    /// Whether a newcomer would overtake somebody.
    #[inline]
    pub(crate) fn has_line(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits in line for `need` bytes. `true`: nobody's deadline is nearer.
    pub(crate) fn join(&self, need: usize, waker: &Waker, deadline: Option<Instant>) -> (Turn, bool) {
        let mut line = lock(&self.line);
        let turn = line.join(need, waker.clone(), deadline);
        let nearest = deadline.is_some_and(|at| line.is_nearest(at));
        self.waiting.store(line.waiting(), Ordering::SeqCst);
        drop(line);
        total_order();
        // Room may have come back before we stood in line.
        self.serve();
        (turn, nearest)
    }

    pub(crate) fn look(&self, turn: Turn, waker: &Waker) -> Standing {
        lock(&self.line).look(turn, waker)
    }

    /// Leaves the line with what was promised, if anything was.
    pub(crate) fn leave(&self, turn: Turn) -> Credit {
        let mut line = lock(&self.line);
        let credit = Credit(line.leave(turn));
        self.waiting.store(line.waiting(), Ordering::SeqCst);
        credit
    }

    /// What was promised and not taken goes to the next.
    pub(crate) fn refund(&self, Credit(bytes): Credit) {
        if bytes > 0 {
            self.used.fetch_sub(bytes, Ordering::SeqCst);
            total_order();
        }
        self.serve();
    }

    /// Wakes those whose deadline has passed. Returns when to look again.
    pub(crate) fn expire(&self, now: Instant) -> Option<Duration> {
        let mut line = lock(&self.line);
        let (woken, next) = line.expire(now);
        self.waiting.store(line.waiting(), Ordering::SeqCst);
        drop(line);
        woken.into_iter().for_each(Waker::wake);
        next.map(|at| at.saturating_duration_since(now))
    }

    /// Sends everybody to try again: the journal was closed.
    pub(crate) fn dismiss(&self) {
        let woken = lock(&self.line).dismiss();
        self.waiting.store(0, Ordering::SeqCst);
        woken.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_half_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.max / 2
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn used_max(&self) -> usize {
        self.used_max.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const CHUNK: usize = 4 << 10;

    #[test]
    fn the_next_buffer_is_ready_and_never_beyond_the_bound() {
        let budget = Budget::new(4 * CHUNK, CHUNK);
        budget.set_maker(std::thread::current());
        let mut taken = Vec::new();
        for number in 1..=4 {
            budget.prepare();
            assert_eq!(lock(&budget.spare).len(), 1, "{number}");
            taken.extend(budget.take(CHUNK, &mut Credit::default()));
            assert_eq!((taken.len(), lock(&budget.spare).len()), (number, 0));
        }
        budget.prepare();
        assert!(lock(&budget.spare).is_empty(), "all of the bound is used");
        taken.into_iter().for_each(|chunk| budget.give(chunk));
        budget.prepare();
        assert_eq!(lock(&budget.spare).len(), 4, "there are enough");
    }

    #[test]
    fn a_small_promise_is_kept_with_a_buffer_that_is_there() {
        let budget = Budget::new(4 * CHUNK, CHUNK);
        let chunks: Vec<Chunk> = (0..4).filter_map(|_| budget.take(CHUNK, &mut Credit::default())).collect();
        chunks.into_iter().for_each(|chunk| budget.give(chunk));
        let promise = || budget.leave(budget.join(100, Waker::noop(), None).0);
        let (mut credit, other) = (promise(), promise());
        let rest = (0..3).map(|_| budget.take(CHUNK, &mut Credit::default()).expect("there is room"));
        let rest: Vec<Chunk> = rest.collect();
        // What is left of the bound is less than a chunk.
        let small = budget.take(100, &mut credit).expect("it was promised");
        assert!(small.charge() < CHUNK && lock(&budget.spare).is_empty());
        budget.refund(credit);
        budget.refund(other);
        budget.give(small);
        rest.into_iter().for_each(|chunk| budget.give(chunk));
        assert_eq!((lock(&budget.spare).len(), budget.used()), (4, 0), "none was freed, none was made");
    }
}
