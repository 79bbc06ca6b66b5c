//! The one bound on memory, and the line before it.
//!
//! Stripes take the bound in chunks, so the counter that all share is touched once in some thousand records, and what it
//! counts is memory that was really taken. Chunks that come back are kept for the next one: memory does not exceed the bound,
//! and does not move either.

use std::{
    task::Waker,
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
    /// How many wait, for whoever must not overtake them.
    waiting: AtomicUsize,
    line: Mutex<Line>,
}

impl Budget {
    /// No single need is larger than a quarter of `max`.
    pub(crate) fn new(max: usize, chunk_bytes: usize) -> Self {
        Self {
            max,
            chunk_bytes,
            used: AtomicUsize::new(0),
            used_max: AtomicUsize::new(0),
            spare: Mutex::new(Vec::new()),
            waiting: AtomicUsize::new(0),
            line: Mutex::new(Line::default()),
        }
    }

    /// An empty chunk for at least `bytes`, if the bound allows it.
    pub(crate) fn take(&self, bytes: usize) -> Option<Chunk> {
        let charge = bytes.max(self.chunk_bytes);
        let mut used = self.used.load(Ordering::SeqCst);
        loop {
            if used + charge > self.max {
                return None;
            }
            match self.used.compare_exchange(used, used + charge, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(now) => used = now,
            }
        }
        self.used_max.fetch_max(used + charge, Ordering::Relaxed);
        Some(Chunk::new(self.buffer(charge, used + charge), charge))
    }

    fn buffer(&self, charge: usize, used: usize) -> Vec<u8> {
        let mut spare = lock(&self.spare);
        if charge == self.chunk_bytes
            && let Some(buffer) = spare.pop()
        {
            return buffer;
        }
        // A large one takes the place of spare ones.
        spare.truncate((self.max - used.min(self.max)) / self.chunk_bytes);
        drop(spare);
        Vec::with_capacity(charge)
    }

    /// A chunk comes back. Whoever waits longest gets the room.
    pub(crate) fn give(&self, chunk: Chunk) {
        let charge = chunk.charge();
        if charge == self.chunk_bytes {
            lock(&self.spare).push(chunk.into_buffer());
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
        let woken = line.grant(self.free());
        self.waiting.store(line.waiting(), Ordering::SeqCst);
        drop(line);
        woken.into_iter().for_each(Waker::wake);
    }

    fn free(&self) -> usize {
        self.max.saturating_sub(self.used.load(Ordering::SeqCst))
    }

    /// Whether a newcomer would overtake somebody.
    #[inline]
    pub(crate) fn has_line(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits in line for `need` bytes, at an earlier turn if there was one. `true`: nobody's deadline is nearer.
    pub(crate) fn join(
        &self,
        turn: Option<Turn>,
        need: usize,
        waker: &Waker,
        deadline: Option<Instant>,
    ) -> (Turn, bool) {
        let mut line = lock(&self.line);
        let turn = line.join(turn, need, waker.clone(), deadline);
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

    /// Leaves the line; what was promised goes to the next.
    pub(crate) fn leave(&self, turn: Turn) {
        let mut line = lock(&self.line);
        line.leave(turn);
        self.waiting.store(line.waiting(), Ordering::SeqCst);
        drop(line);
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
