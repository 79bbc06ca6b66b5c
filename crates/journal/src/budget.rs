//! The one bound on memory, and the line before it.
//!
//! Stripes take the bound in chunks, so the counter that all share is touched once in some thousand records, and what it
//! counts is memory that was really taken. Chunks that come back are kept for the next one: memory does not exceed the bound,
//! and does not move either.
//!
//! Bytes that are promised to those who wait count as used from the promise on ([`Credit`]), so nobody takes them meanwhile.
//! An eighth of the bound is never promised, and newcomers that can wait leave it alone as long as somebody holds a promise:
//! with it, whoever comes first of those in their turn gets a whole chunk, and the others find room in it. When that eighth
//! is taken too, each still gets what it was promised, in a chunk of its own.
//!
//! The system gives memory a page at a time when it is first touched, which takes longer than many appends. So while more
//! and more is used, another thread touches the next buffer before it is needed.

use std::{
    mem,
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
    /// Bytes of `used` that are promised.
    promised: AtomicUsize,
    /// The lock is taken once per chunk.
    store: Mutex<Store>,
    /// There should be one more of these, and who makes it.
    wished: AtomicBool,
    maker: OnceLock<Thread>,
    /// How many wait, for whoever must not overtake them.
    waiting: AtomicUsize,
    line: Mutex<Line>,
}

/// Buffers, which are what really takes memory.
///
/// A chunk may be charged less than its buffer has: whoever was promised little gets a spare one that is there anyway. So what
/// is charged is not what is held, and both are held against the bound, or buffers would pile up: another one would be made
/// for each that is charged little.
#[derive(Debug, Default)]
struct Store {
    /// Empty ones of `chunk_bytes`.
    spare: Vec<Vec<u8>>,
    /// Empty ones of a sixteenth of that, for those who were promised less.
    small: Vec<Vec<u8>>,
    /// Bytes of all there are, spare or in use, but for those that are smaller than `small`. More than the bound only by
    /// what was promised and found no other room.
    held: usize,
}

impl Store {
    fn make(&mut self, bytes: usize) -> Vec<u8> {
        let buffer = Vec::with_capacity(bytes);
        self.held += buffer.capacity();
        buffer
    }

    fn free(&mut self, buffer: Vec<u8>) {
        self.held -= buffer.capacity();
        drop(buffer);
    }

    /// Frees spare ones until there is room for so much within the bound. `false`: there is not.
    fn make_room(&mut self, bytes: usize, max: usize) -> bool {
        while self.held + bytes > max {
            let Some(spare) = self.spare.pop().or_else(|| self.small.pop()) else { return false };
            self.free(spare);
        }
        true
    }
}

/// Bytes of the bound that are set aside for one record. What is left of them goes back by [`Budget::refund`].
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Credit(usize);

impl Credit {
    pub(crate) fn is_empty(&self) -> bool {
        self.0 == 0
    }
}

impl Budget {
    /// No single need is larger than a quarter of `max`.
    pub(crate) fn new(max: usize, chunk_bytes: usize) -> Self {
        Self {
            max,
            chunk_bytes,
            used: AtomicUsize::new(0),
            used_max: AtomicUsize::new(0),
            promised: AtomicUsize::new(0),
            store: Mutex::new(Store::default()),
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
        let is_promised = !credit.is_empty();
        let least = if is_promised { bytes } else { wished };
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
        self.promised.fetch_sub(mem::take(&mut credit.0), Ordering::Relaxed);
        let Some(buffer) = self.buffer(charge, is_promised.then_some(bytes)) else {
            self.free_up(charge);
            return None;
        };
        self.used_max.fetch_max(now, Ordering::Relaxed);
        let kept = charge.min(buffer.capacity());
        if kept < charge {
            // More was not to be had.
            self.free_up(charge - kept);
        }
        self.wish(now);
        Some(Chunk::new(buffer, kept))
    }

    /// A buffer of so many bytes, or of as many as were promised; `None` if there is none without a promise.
    fn buffer(&self, charge: usize, promised: Option<usize>) -> Option<Vec<u8>> {
        let mut store = lock(&self.store);
        // A smaller one, of whoever was promised no more, takes no memory that is not there already.
        if charge <= self.chunk_bytes
            && let Some(buffer) = store.spare.pop()
        {
            return Some(buffer);
        }
        if charge >= self.chunk_bytes && store.make_room(charge, self.max) {
            return Some(store.make(charge));
        }
        let (bytes, small) = (promised?, self.small_bytes());
        // Of one size if it can be: of odd ones, allocators keep memory for each after it was freed, and that is more.
        if bytes <= small
            && let Some(buffer) = store.small.pop()
        {
            return Some(buffer);
        }
        let is_small = bytes <= small && small <= charge && store.make_room(small, self.max);
        match if is_small { small } else { bytes } {
            bytes if bytes < small => Some(Vec::with_capacity(bytes)),
            bytes => Some(store.make(bytes)),
        }
    }

    fn small_bytes(&self) -> usize {
        self.chunk_bytes / 16
    }

    /// Who makes buffers ready by [`prepare`](Self::prepare) when it is woken.
    pub(crate) fn set_maker(&self, thread: Thread) {
        let _ = self.maker.set(thread);
    }

    /// If no buffer is left, there should be one more.
    fn wish(&self, used: usize) {
        if used + self.chunk_bytes <= self.max
            && let Some(maker) = self.maker.get()
            && lock(&self.store).spare.is_empty()
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
        let mut store = lock(&self.store);
        let is_wanted = store.spare.is_empty() && self.used.load(Ordering::SeqCst) + self.chunk_bytes <= self.max;
        if !is_wanted || store.held + self.chunk_bytes > self.max {
            return;
        }
        // Held before it is there, so that nobody makes another one meanwhile.
        store.held += self.chunk_bytes;
        drop(store);
        let mut buffer = Vec::with_capacity(self.chunk_bytes);
        // Not with zeros: memory that is asked for zeroed comes untouched.
        buffer.resize(self.chunk_bytes, u8::MAX);
        let mut store = lock(&self.store);
        store.held += buffer.capacity() - self.chunk_bytes;
        store.spare.push(buffer);
    }

    /// A chunk comes back. Whoever waits longest gets the room.
    pub(crate) fn give(&self, chunk: Chunk) {
        let (charge, buffer) = (chunk.charge(), chunk.into_buffer());
        // One without a charge is none of the store's.
        if charge > 0 {
            let mut store = lock(&self.store);
            match buffer.capacity() {
                bytes if bytes < self.small_bytes() => {}
                _ if store.held > self.max => store.free(buffer),
                bytes if bytes == self.chunk_bytes => store.spare.push(buffer),
                bytes if bytes == self.small_bytes() => store.small.push(buffer),
                _ => store.free(buffer),
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
        let most = self.max - self.reserve();
        let more = |used: usize| Some(used + need).filter(|used| *used <= most);
        let is_there = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok();
        if is_there {
            self.promised.fetch_add(need, Ordering::Relaxed);
        }
        is_there
    }

    /// What is never promised.
    fn reserve(&self) -> usize {
        self.max / 8
    }

    /// Whether a newcomer's chunk would be of those that are never promised, while somebody who holds a promise needs one.
    pub(crate) fn is_reserved(&self, bytes: usize) -> bool {
        let used = self.used.load(Ordering::Relaxed) + bytes.max(self.chunk_bytes);
        self.promised.load(Ordering::Relaxed) > 0 && used > self.max - self.reserve()
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
        self.promised.fetch_sub(bytes, Ordering::Relaxed);
        self.free_up(bytes);
    }

    fn free_up(&self, bytes: usize) {
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
            assert_eq!(lock(&budget.store).spare.len(), 1, "{number}");
            taken.extend(budget.take(CHUNK, &mut Credit::default()));
            assert_eq!((taken.len(), lock(&budget.store).spare.len()), (number, 0));
        }
        budget.prepare();
        assert!(lock(&budget.store).spare.is_empty(), "all of the bound is used");
        taken.into_iter().for_each(|chunk| budget.give(chunk));
        budget.prepare();
        assert_eq!(lock(&budget.store).spare.len(), 4, "there are enough");
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
        assert!(small.charge() < CHUNK && lock(&budget.store).spare.is_empty());
        budget.refund(credit);
        budget.refund(other);
        budget.give(small);
        rest.into_iter().for_each(|chunk| budget.give(chunk));
        assert_eq!((lock(&budget.store).spare.len(), budget.used()), (4, 0), "none was freed, none was made");
    }

    #[test]
    fn newcomers_leave_an_eighth_to_those_who_hold_a_promise() {
        let budget = Budget::new(16 * CHUNK, CHUNK);
        let take = || budget.take(CHUNK, &mut Credit::default()).expect("there is room");
        let mut chunks: Vec<Chunk> = (0..12).map(|_| take()).collect();
        let mut credit = budget.leave(budget.join(100, Waker::noop(), None).0);
        assert!(!credit.is_empty() && !budget.is_reserved(100));
        chunks.push(take());
        assert!(budget.is_reserved(100), "thirteen, what was promised, and one more");
        let whole = budget.take(100, &mut credit).expect("it was promised");
        assert_eq!(whole.charge(), CHUNK);
        assert!(!budget.is_reserved(100), "nothing is promised");
        chunks.extend([whole, take(), take()]);
        assert_eq!(budget.used(), 16 * CHUNK);
    }

    #[test]
    fn what_is_held_is_bounded_however_little_was_promised_and_however_it_comes_back() {
        let budget = Budget::new(8 * CHUNK, CHUNK);
        let mut random = fastrand::Rng::with_seed(7);
        let (mut chunks, mut credits) = (Vec::<Chunk>::new(), Vec::new());
        for round in 0..20_000 {
            match random.u8(..4) {
                0 => credits.push(budget.leave(budget.join(100, Waker::noop(), None).0)),
                1 => chunks.extend(budget.take(100, &mut Credit::default())),
                2 => {
                    let mut credit = credits.pop().unwrap_or_default();
                    chunks.extend(budget.take(100, &mut credit));
                    budget.refund(credit);
                }
                _ if chunks.is_empty() => {}
                _ => budget.give(chunks.swap_remove(random.usize(..chunks.len()))),
            }
            let held = lock(&budget.store).held;
            assert!(held <= 8 * CHUNK, "round {round}: {held}");
            assert!(budget.used() <= 8 * CHUNK, "round {round}: {}", budget.used());
        }
        chunks.into_iter().for_each(|chunk| budget.give(chunk));
        credits.into_iter().for_each(|credit| budget.refund(credit));
        assert_eq!(budget.used(), 0);
    }
}
