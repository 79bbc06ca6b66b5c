//! The memory bound of a journal, and the queue of producers that wait for room.
//!
//! Stripes reserve memory in chunks, so the shared counter is touched once in some thousand records, and it counts memory
//! that is really used. Released chunks are kept for reuse: memory does not exceed the bound and is not returned to the
//! allocator.
//!
//! Bytes granted to waiters count as used from the grant on ([`Reservation`]), so no other producer can take them. An eighth
//! of the bound is never granted (the headroom), and producers outside the queue that can wait do not use it while any
//! reservation is held. The first waiter to run therefore gets a whole chunk, and the others find room in it. When the
//! headroom is used up too, each waiter still gets the bytes of its reservation, in a chunk of its own.
//!
//! The kernel maps a page when it is first touched, which takes longer than many appends. Therefore, while usage grows,
//! the timer thread touches the next buffer before it is needed.

use std::{
    mem,
    sync::OnceLock,
    sync::atomic::AtomicBool,
    task::Waker,
    thread::Thread,
    time::{Duration, Instant},
};

use crate::{
    chunk::FrameChunk,
    sync::{AtomicUsize, Mutex, Ordering, lock, seq_cst_fence},
    wait_queue::{MemoryWaitQueue, QueueTicket, WaitStatus},
};

pub(crate) struct MemoryBudget {
    max: usize,
    chunk_bytes: usize,
    used: AtomicUsize,
    used_max: AtomicUsize,
    /// The part of `used` that is granted to waiters.
    reserved: AtomicUsize,
    /// Locked once per chunk.
    pool: Mutex<BufferPool>,
    /// Set to make `preparer` allocate a spare buffer.
    spare_requested: AtomicBool,
    preparer: OnceLock<Thread>,
    /// The length of the queue, read by producers that must not overtake it.
    waiting: AtomicUsize,
    queue: Mutex<MemoryWaitQueue>,
}

/// The buffers, which are what really uses memory.
///
/// A chunk may be charged less than the capacity of its buffer: a small reservation gets a spare buffer if there is one.
/// The charged and the held bytes therefore differ, and both are kept within the bound. Otherwise buffers would pile up:
/// another one for each small charge.
#[derive(Debug, Default)]
struct BufferPool {
    /// Empty buffers of `chunk_bytes`.
    spare: Vec<Vec<u8>>,
    /// Empty buffers of a sixteenth of that, for small reservations.
    small: Vec<Vec<u8>>,
    /// The bytes of all buffers, spare or in use, except those smaller than `small`. Exceeds the bound only by
    /// reservations that found no other room.
    held_bytes: usize,
}

impl BufferPool {
    fn allocate(&mut self, bytes: usize) -> Vec<u8> {
        let buffer = Vec::with_capacity(bytes);
        self.held_bytes += buffer.capacity();
        buffer
    }

    fn free(&mut self, buffer: Vec<u8>) {
        self.held_bytes -= buffer.capacity();
        drop(buffer);
    }

    /// Frees spare buffers until `bytes` fit within the bound. `false`: they do not fit.
    fn make_room(&mut self, bytes: usize, max: usize) -> bool {
        while self.held_bytes + bytes > max {
            let Some(spare) = self.spare.pop().or_else(|| self.small.pop()) else { return false };
            self.free(spare);
        }
        true
    }
}

/// Bytes of the bound that are set aside for one record. Return the rest by [`MemoryBudget::release_reservation`].
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Reservation(usize);

impl Reservation {
    pub(crate) fn is_empty(&self) -> bool {
        self.0 == 0
    }
}

impl MemoryBudget {
    /// No single request may be larger than a quarter of `max`.
    pub(crate) fn new(max: usize, chunk_bytes: usize) -> Self {
        Self {
            max,
            chunk_bytes,
            used: AtomicUsize::new(0),
            used_max: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            pool: Mutex::new(BufferPool::default()),
            spare_requested: AtomicBool::new(true),
            preparer: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            queue: Mutex::new(MemoryWaitQueue::default()),
        }
    }

    /// An empty chunk for at required `bytes`, if the bound allows it. Consumes the reservation; a reservation of at required
    /// `bytes` always yields a chunk, though perhaps a small one.
    pub(crate) fn acquire(&self, bytes: usize, reservation: &mut Reservation) -> Option<FrameChunk> {
        let requested = bytes.max(self.chunk_bytes);
        let has_reservation = !reservation.is_empty();
        let required = if has_reservation { bytes } else { requested };
        let mut used = self.used.load(Ordering::SeqCst);
        let (budget_bytes, now) = loop {
            let others = used - reservation.0;
            let budget_bytes = requested.min(self.max.saturating_sub(others));
            if budget_bytes < required {
                return None;
            }
            match self.used.compare_exchange(used, others + budget_bytes, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break (budget_bytes, others + budget_bytes),
                Err(now) => used = now,
            }
        };
        self.reserved.fetch_sub(mem::take(&mut reservation.0), Ordering::Relaxed);
        let Some(buffer) = self.buffer(budget_bytes, has_reservation.then_some(bytes)) else {
            self.release_bytes(budget_bytes);
            return None;
        };
        self.used_max.fetch_max(now, Ordering::Relaxed);
        let kept = budget_bytes.min(buffer.capacity());
        if kept < budget_bytes {
            // The buffer is smaller than the charge.
            self.release_bytes(budget_bytes - kept);
        }
        self.request_spare(now);
        Some(FrameChunk::new(buffer, kept))
    }

    /// A buffer of `budget_bytes`, or of `reserved` bytes if there is a reservation; `None` if there is no room and no
    /// reservation.
    fn buffer(&self, budget_bytes: usize, reserved: Option<usize>) -> Option<Vec<u8>> {
        let mut pool = lock(&self.pool);
        // A spare buffer for a smaller charge uses no memory beyond what is already held.
        if budget_bytes <= self.chunk_bytes
            && let Some(buffer) = pool.spare.pop()
        {
            return Some(buffer);
        }
        if budget_bytes >= self.chunk_bytes && pool.make_room(budget_bytes, self.max) {
            return Some(pool.allocate(budget_bytes));
        }
        let (bytes, small) = (reserved?, self.small_bytes());
        // Prefer one size: for odd sizes, allocators keep freed memory per size class, which is more.
        if bytes <= small
            && let Some(buffer) = pool.small.pop()
        {
            return Some(buffer);
        }
        let is_small = bytes <= small && small <= budget_bytes && pool.make_room(small, self.max);
        match if is_small { small } else { bytes } {
            bytes if bytes < small => Some(Vec::with_capacity(bytes)),
            bytes => Some(pool.allocate(bytes)),
        }
    }

    fn small_bytes(&self) -> usize {
        self.chunk_bytes / 16
    }

    /// Sets the thread that calls [`prepare_spare`](Self::prepare_spare) when it is woken.
    pub(crate) fn set_preparer(&self, thread: Thread) {
        let _ = self.preparer.set(thread);
    }

    /// Requests a spare buffer if there is none left.
    fn request_spare(&self, used: usize) {
        if used + self.chunk_bytes <= self.max
            && let Some(preparer) = self.preparer.get()
            && lock(&self.pool).spare.is_empty()
        {
            self.spare_requested.store(true, Ordering::Release);
            preparer.unpark();
        }
    }

    /// Allocates and touches a spare buffer, if one was requested and the bound leaves room.
    pub(crate) fn prepare_spare(&self) {
        if !self.spare_requested.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut pool = lock(&self.pool);
        let is_needed = pool.spare.is_empty() && self.used.load(Ordering::SeqCst) + self.chunk_bytes <= self.max;
        if !is_needed || pool.held_bytes + self.chunk_bytes > self.max {
            return;
        }
        // Counted before it is allocated, so that no other thread allocates the same room.
        pool.held_bytes += self.chunk_bytes;
        drop(pool);
        let mut buffer = Vec::with_capacity(self.chunk_bytes);
        // Not zeros: the allocator returns zeroed memory untouched.
        buffer.resize(self.chunk_bytes, u8::MAX);
        let mut pool = lock(&self.pool);
        pool.held_bytes += buffer.capacity() - self.chunk_bytes;
        pool.spare.push(buffer);
    }

    /// Releases a chunk. The oldest waiter gets the room first.
    pub(crate) fn release(&self, chunk: FrameChunk) {
        let (budget_bytes, buffer) = (chunk.budget_bytes(), chunk.into_buffer());
        // A chunk without a budget does not belong to the pool.
        if budget_bytes > 0 {
            let mut pool = lock(&self.pool);
            match buffer.capacity() {
                bytes if bytes < self.small_bytes() => {}
                _ if pool.held_bytes > self.max => pool.free(buffer),
                bytes if bytes == self.chunk_bytes => pool.spare.push(buffer),
                bytes if bytes == self.small_bytes() => pool.small.push(buffer),
                _ => pool.free(buffer),
            }
        }
        self.used.fetch_sub(budget_bytes, Ordering::SeqCst);
        seq_cst_fence();
        self.grant_waiters();
    }

    /// Grants free room to waiters once a quarter of the bound is free, so that it is worth the wake-ups. That point is
    /// always reached, as everything in use is written sooner or later.
    fn grant_waiters(&self) {
        if self.waiting.load(Ordering::SeqCst) == 0 || self.free() < self.max / 4 {
            return;
        }
        let mut queue = lock(&self.queue);
        let woken = queue.grant(|need| self.try_reserve(need));
        self.waiting.store(queue.len(), Ordering::SeqCst);
        drop(queue);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Counts bytes as used for a waiter, if that leaves the headroom free.
    fn try_reserve(&self, need: usize) -> bool {
        let most = self.max - self.headroom();
        let more = |used: usize| Some(used + need).filter(|used| *used <= most);
        let is_reserved = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok();
        if is_reserved {
            self.reserved.fetch_add(need, Ordering::Relaxed);
        }
        is_reserved
    }

    /// The part of the bound that is never granted to waiters.
    fn headroom(&self) -> usize {
        self.max / 8
    }

    /// Whether a new chunk of a producer outside the queue would need the headroom while a reservation is held.
    pub(crate) fn needs_headroom(&self, bytes: usize) -> bool {
        let used = self.used.load(Ordering::Relaxed) + bytes.max(self.chunk_bytes);
        self.reserved.load(Ordering::Relaxed) > 0 && used > self.max - self.headroom()
    }

    fn free(&self) -> usize {
        self.max.saturating_sub(self.used.load(Ordering::SeqCst))
    }

    /// Whether a producer outside the queue would overtake a waiter.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Joins the queue for `need` bytes. `true`: no other deadline is nearer.
    pub(crate) fn enqueue(&self, need: usize, waker: &Waker, deadline: Option<Instant>) -> (QueueTicket, bool) {
        let mut queue = lock(&self.queue);
        let ticket = queue.enqueue(need, waker.clone(), deadline);
        let nearest = deadline.is_some_and(|at| queue.is_nearest(at));
        self.waiting.store(queue.len(), Ordering::SeqCst);
        drop(queue);
        seq_cst_fence();
        // Room may have been released before this waiter was in the queue.
        self.grant_waiters();
        (ticket, nearest)
    }

    pub(crate) fn status(&self, ticket: QueueTicket, waker: &Waker) -> WaitStatus {
        lock(&self.queue).status(ticket, waker)
    }

    /// Leaves the queue and returns the granted bytes, if any.
    pub(crate) fn leave(&self, ticket: QueueTicket) -> Reservation {
        let mut queue = lock(&self.queue);
        let reservation = Reservation(queue.leave(ticket));
        self.waiting.store(queue.len(), Ordering::SeqCst);
        reservation
    }

    /// Returns unused reserved bytes, which go to the next waiter.
    pub(crate) fn release_reservation(&self, Reservation(bytes): Reservation) {
        self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        self.release_bytes(bytes);
    }

    fn release_bytes(&self, bytes: usize) {
        if bytes > 0 {
            self.used.fetch_sub(bytes, Ordering::SeqCst);
            seq_cst_fence();
        }
        self.grant_waiters();
    }

    /// Wakes waiters whose deadline has passed. Returns the time until the next deadline.
    pub(crate) fn expire(&self, now: Instant) -> Option<Duration> {
        let mut queue = lock(&self.queue);
        let (woken, next) = queue.expire(now);
        self.waiting.store(queue.len(), Ordering::SeqCst);
        drop(queue);
        woken.into_iter().for_each(Waker::wake);
        next.map(|at| at.saturating_duration_since(now))
    }

    /// Makes all waiters try again: the journal was closed.
    pub(crate) fn release_all(&self) {
        let woken = lock(&self.queue).release_all();
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
    fn spare_buffer_is_ready_within_the_bound() {
        let budget = MemoryBudget::new(4 * CHUNK, CHUNK);
        budget.set_preparer(std::thread::current());
        let mut taken = Vec::new();
        for number in 1..=4 {
            budget.prepare_spare();
            assert_eq!(lock(&budget.pool).spare.len(), 1, "{number}");
            taken.extend(budget.acquire(CHUNK, &mut Reservation::default()));
            assert_eq!((taken.len(), lock(&budget.pool).spare.len()), (number, 0));
        }
        budget.prepare_spare();
        assert!(lock(&budget.pool).spare.is_empty(), "the bound is used up");
        taken.into_iter().for_each(|chunk| budget.release(chunk));
        budget.prepare_spare();
        assert_eq!(lock(&budget.pool).spare.len(), 4, "all are spare");
    }

    #[test]
    fn small_reservation_uses_a_spare_buffer() {
        let budget = MemoryBudget::new(4 * CHUNK, CHUNK);
        let chunks: Vec<FrameChunk> =
            (0..4).filter_map(|_| budget.acquire(CHUNK, &mut Reservation::default())).collect();
        chunks.into_iter().for_each(|chunk| budget.release(chunk));
        let reserve = || budget.leave(budget.enqueue(100, Waker::noop(), None).0);
        let (mut reservation, other) = (reserve(), reserve());
        let rest = (0..3).map(|_| budget.acquire(CHUNK, &mut Reservation::default()).expect("there is room"));
        let rest: Vec<FrameChunk> = rest.collect();
        // The rest of the bound is less than a chunk.
        let small = budget.acquire(100, &mut reservation).expect("the room is reserved");
        assert!(small.budget_bytes() < CHUNK && lock(&budget.pool).spare.is_empty());
        budget.release_reservation(reservation);
        budget.release_reservation(other);
        budget.release(small);
        rest.into_iter().for_each(|chunk| budget.release(chunk));
        assert_eq!((lock(&budget.pool).spare.len(), budget.used()), (4, 0), "no buffer was freed or allocated");
    }

    #[test]
    fn newcomers_leave_the_headroom_to_reservations() {
        let budget = MemoryBudget::new(16 * CHUNK, CHUNK);
        let take = || budget.acquire(CHUNK, &mut Reservation::default()).expect("there is room");
        let mut chunks: Vec<FrameChunk> = (0..12).map(|_| take()).collect();
        let mut reservation = budget.leave(budget.enqueue(100, Waker::noop(), None).0);
        assert!(!reservation.is_empty() && !budget.needs_headroom(100));
        chunks.push(take());
        assert!(budget.needs_headroom(100), "thirteen chunks, the reservation, and one more");
        let whole = budget.acquire(100, &mut reservation).expect("the room is reserved");
        assert_eq!(whole.budget_bytes(), CHUNK);
        assert!(!budget.needs_headroom(100), "no reservation is held");
        chunks.extend([whole, take(), take()]);
        assert_eq!(budget.used(), 16 * CHUNK);
    }

    #[test]
    fn held_bytes_stay_within_the_bound() {
        let budget = MemoryBudget::new(8 * CHUNK, CHUNK);
        let mut random = fastrand::Rng::with_seed(7);
        let (mut chunks, mut credits) = (Vec::<FrameChunk>::new(), Vec::new());
        for round in 0..20_000 {
            match random.u8(..4) {
                0 => credits.push(budget.leave(budget.enqueue(100, Waker::noop(), None).0)),
                1 => chunks.extend(budget.acquire(100, &mut Reservation::default())),
                2 => {
                    let mut reservation = credits.pop().unwrap_or_default();
                    chunks.extend(budget.acquire(100, &mut reservation));
                    budget.release_reservation(reservation);
                }
                _ if chunks.is_empty() => {}
                _ => budget.release(chunks.swap_remove(random.usize(..chunks.len()))),
            }
            let held_bytes = lock(&budget.pool).held_bytes;
            assert!(held_bytes <= 8 * CHUNK, "round {round}: {held_bytes}");
            assert!(budget.used() <= 8 * CHUNK, "round {round}: {}", budget.used());
        }
        chunks.into_iter().for_each(|chunk| budget.release(chunk));
        credits.into_iter().for_each(|reservation| budget.release_reservation(reservation));
        assert_eq!(budget.used(), 0);
    }
}
