//! Tracks how far a stripe is written and durable, and the futures that wait for it.

use std::{
    ops::Range,
    task::{Context, Poll, Waker},
};

use crate::{
    error::RecordLost,
    producer_record::Ack,
    range_set::RangeSet,
    sync::{AtomicU64, AtomicUsize, Mutex, Ordering, lock, seq_cst_fence},
};

/// The number of waiters per shard woken by the publishing thread. They go to the runtime's shared run queue.
const FIRST_WAKES: usize = 4;
/// The number of waiters that a woken waiter wakes in turn, in the local run queue of its own thread.
const WAKES_PER_TURN: usize = 32;
/// The number of waiter shards of a stripe. Each thread uses one; with more threads, some share one.
const WAITER_SHARDS: usize = if cfg!(loom) { 1 } else { 16 };

/// A slot among the waiters. It is reused as soon as its waiter is woken, so it is valid only with its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckWaiterId {
    shard: usize,
    slot: usize,
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
    slots: Vec<Option<Waiter>>,
    free: Vec<usize>,
    /// The number of registrations so far.
    registered: u64,
}

/// The waiters polled by one thread: it finds the cache lines of its shard in its own cache, and wakes from here stay in
/// its local run queue. Aligned so that shards do not share cache lines.
#[repr(align(128))]
#[derive(Debug)]
struct WaiterShard {
    waiters: Mutex<Waiters>,
    /// Wakers still to be called.
    wakers: Mutex<Vec<Waker>>,
}

/// The records that were accepted and lost.
#[derive(Debug, Default)]
struct LostRanges {
    /// Never written.
    written: RangeSet,
    /// Never durable, because they were never written or because a sync failed.
    durable: RangeSet,
}

/// Sequence numbers below `written` are written unless they are in `lost`; likewise `durable`.
pub(crate) struct DurabilityTracker {
    written: AtomicU64,
    durable: AtomicU64,
    /// Whether anything was lost, so that the common case needs no lock.
    losses: AtomicUsize,
    lost: Mutex<LostRanges>,
    shards: [WaiterShard; WAITER_SHARDS],
    /// A bit for each shard with wakers still to be called. Woken waiters help: waking a thousand tasks takes longer than
    /// a sync, and is fastest on the tasks' own threads.
    shards_to_wake: AtomicUsize,
    /// Whether `flush` has yet to report a loss, by level: written, durable.
    unreported: [AtomicUsize; 2],
}

impl DurabilityTracker {
    pub(crate) fn new(next_seq: u64) -> Self {
        Self {
            written: AtomicU64::new(next_seq),
            durable: AtomicU64::new(next_seq),
            losses: AtomicUsize::new(0),
            lost: Mutex::new(LostRanges::default()),
            shards: std::array::from_fn(|_| WaiterShard::new()),
            shards_to_wake: AtomicUsize::new(0),
            unreported: [AtomicUsize::new(0), AtomicUsize::new(0)],
        }
    }

    /// Marks everything below `seq` as having reached `ack`. Wakes some of the waiters; they and
    /// [`wake_some`](Self::wake_some) wake the others.
    pub(crate) fn publish(&self, seq: u64, ack: Ack) {
        self.written.fetch_max(seq, Ordering::SeqCst);
        if ack == Ack::Durable {
            self.durable.fetch_max(seq, Ordering::SeqCst);
        }
        seq_cst_fence();
        self.wake();
    }

    /// Marks a range as lost: it will never reach `ack`.
    pub(crate) fn mark_lost(&self, range: Range<u64>, ack: Ack) {
        if range.is_empty() {
            return;
        }
        lock(&self.lost).add(range, ack);
        self.losses.store(1, Ordering::SeqCst);
        if ack < Ack::Durable {
            self.unreported[0].store(1, Ordering::SeqCst);
        }
        self.unreported[1].store(1, Ordering::SeqCst);
        self.wake();
        while self.wake_some() {}
    }

    /// Whether a record was lost below `ack` since the last call.
    pub(crate) fn take_unreported_loss(&self, ack: Ack) -> bool {
        match ack {
            Ack::Accepted => false,
            Ack::Written => self.unreported[0].swap(0, Ordering::SeqCst) > 0,
            Ack::Durable => {
                let written = self.unreported[0].swap(0, Ordering::SeqCst) > 0;
                self.unreported[1].swap(0, Ordering::SeqCst) > 0 || written
            }
        }
    }

    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::SeqCst)
    }

    /// Whether the record has reached `ack`, or never will. `None`: undecided.
    #[inline]
    pub(crate) fn check(&self, seq: u64, ack: Ack) -> Option<Result<(), RecordLost>> {
        if ack == Ack::Accepted {
            return Some(Ok(()));
        }
        let reached = if ack == Ack::Written { self.written() } else { self.durable() };
        if self.losses.load(Ordering::SeqCst) > 0 && lock(&self.lost).contains(seq, ack) {
            return Some(Err(RecordLost));
        }
        (seq < reached).then_some(Ok(()))
    }

    /// Whether a record up to and including `seq` was lost, since the journal was opened.
    pub(crate) fn has_lost_through(&self, seq: u64, ack: Ack) -> bool {
        self.losses.load(Ordering::SeqCst) > 0 && lock(&self.lost).has_any_through(seq, ack)
    }

    /// Like [`check`](Self::check), and registers a waiter if the result is undecided.
    pub(crate) fn poll(
        &self,
        seq: u64,
        ack: Ack,
        waiter_id: &mut Option<AckWaiterId>,
        context: &Context<'_>,
    ) -> Poll<Result<(), RecordLost>> {
        if let Some(known) = self.check(seq, ack) {
            // The slot was freed by the thread that decided the result.
            *waiter_id = None;
            self.help_wake();
            return Poll::Ready(known);
        }
        self.help_wake();
        let shard = waiter_id.map_or_else(thread_shard, |waiter_id| waiter_id.shard);
        lock(&self.shards[shard].waiters).register(seq, ack, shard, waiter_id, context.waker());
        seq_cst_fence();
        // The result may have been published before the waiter was registered.
        let Some(known) = self.check(seq, ack) else { return Poll::Pending };
        self.unregister(waiter_id.take());
        Poll::Ready(known)
    }

    /// Frees the slot of a waiter, if it still holds it.
    pub(crate) fn unregister(&self, waiter_id: Option<AckWaiterId>) {
        if let Some(waiter_id) = waiter_id {
            lock(&self.shards[waiter_id.shard].waiters).unregister(waiter_id);
            // A woken waiter that is dropped would have helped to wake others.
            self.help_wake();
        }
    }

    /// Moves the waiters with a decided result to the wakers, and wakes the first of each shard.
    fn wake(&self) {
        let (written, durable) = (self.written(), self.durable());
        let lost = (self.losses.load(Ordering::SeqCst) > 0).then(|| lock(&self.lost));
        let mut shards = 0;
        for (number, shard) in self.shards.iter().enumerate() {
            let mut woken = lock(&shard.waiters).take_decided(written, durable, lost.as_deref());
            if woken.is_empty() {
                continue;
            }
            let mut wakers = lock(&shard.wakers);
            wakers.append(&mut woken);
            self.shards_to_wake.fetch_or(1 << number, Ordering::Relaxed);
            shards |= 1 << number;
        }
        // Unlock before the wakes: a woken waiter may check immediately.
        drop(lost);
        (0..WAITER_SHARDS)
            .filter(|number| shards & (1 << number) != 0)
            .for_each(|number| self.wake_shard(number, FIRST_WAKES));
    }

    /// Wakes some more waiters. `false`: there are none.
    pub(crate) fn wake_some(&self) -> bool {
        let shards_to_wake = self.shards_to_wake.load(Ordering::Relaxed);
        if shards_to_wake == 0 {
            return false;
        }
        self.wake_shard(shards_to_wake.trailing_zeros() as usize, WAKES_PER_TURN);
        true
    }

    /// Whether there are wakers still to be called.
    pub(crate) fn has_pending_wakes(&self) -> bool {
        self.shards_to_wake.load(Ordering::Relaxed) != 0
    }

    /// Wakes some waiters of this thread's shard, or of another one.
    #[inline]
    fn help_wake(&self) {
        let shards_to_wake = self.shards_to_wake.load(Ordering::Relaxed);
        if shards_to_wake != 0 {
            let own = thread_shard();
            let shard = if shards_to_wake & (1 << own) == 0 { shards_to_wake.trailing_zeros() as usize } else { own };
            self.wake_shard(shard, WAKES_PER_TURN);
        }
    }

    fn wake_shard(&self, shard: usize, most: usize) {
        let mut wakers = lock(&self.shards[shard].wakers);
        let rest = wakers.len().saturating_sub(most);
        let some = wakers.split_off(rest);
        if rest == 0 {
            self.shards_to_wake.fetch_and(!(1 << shard), Ordering::Relaxed);
        }
        drop(wakers);
        some.into_iter().for_each(Waker::wake);
    }
}

/// The shard of the current thread.
fn thread_shard() -> usize {
    #[cfg(loom)]
    return 0;
    #[cfg(not(loom))]
    {
        use std::{cell::Cell, sync::atomic};
        static NEXT: atomic::AtomicUsize = atomic::AtomicUsize::new(0);
        thread_local! {
            static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
        }
        SHARD.get().unwrap_or_else(|| {
            let shard = NEXT.fetch_add(1, Ordering::Relaxed) % WAITER_SHARDS;
            SHARD.set(Some(shard));
            shard
        })
    }
}

impl WaiterShard {
    fn new() -> Self {
        Self { waiters: Mutex::new(Waiters::default()), wakers: Mutex::new(Vec::new()) }
    }
}

impl LostRanges {
    /// Adds a range to this level and the levels above it.
    fn add(&mut self, range: Range<u64>, ack: Ack) {
        if ack < Ack::Durable {
            self.written.add(range.clone());
        }
        self.durable.add(range);
    }

    fn contains(&self, seq: u64, ack: Ack) -> bool {
        match ack {
            Ack::Accepted => false,
            Ack::Written => self.written.contains(seq),
            Ack::Durable => self.durable.contains(seq),
        }
    }

    fn has_any_through(&self, seq: u64, ack: Ack) -> bool {
        let first = match ack {
            Ack::Accepted => None,
            Ack::Written => self.written.first(),
            Ack::Durable => self.durable.first(),
        };
        first.is_some_and(|first| first <= seq)
    }
}

impl Waiters {
    fn register(&mut self, seq: u64, ack: Ack, shard: usize, waiter_id: &mut Option<AckWaiterId>, waker: &Waker) {
        if let Some(waiter) = waiter_id.and_then(|waiter_id| self.at(waiter_id)).and_then(Option::as_mut) {
            waiter.waker.clone_from(waker);
            return;
        }
        self.registered += 1;
        let waiter = Some(Waiter { number: self.registered, seq, ack, waker: waker.clone() });
        let slot = self.free.pop().unwrap_or(self.slots.len());
        match self.slots.get_mut(slot) {
            Some(free) => *free = waiter,
            None => self.slots.push(waiter),
        }
        *waiter_id = Some(AckWaiterId { shard, slot, number: self.registered });
    }

    /// The slot of a waiter, if it still belongs to it.
    fn at(&mut self, waiter_id: AckWaiterId) -> Option<&mut Option<Waiter>> {
        let number = |waiter: &Waiter| waiter.number == waiter_id.number;
        self.slots.get_mut(waiter_id.slot).filter(|taken| taken.as_ref().is_some_and(number))
    }

    fn unregister(&mut self, waiter_id: AckWaiterId) {
        if let Some(taken) = self.at(waiter_id) {
            *taken = None;
            self.free.push(waiter_id.slot);
        }
    }

    /// Removes the waiters with a decided result.
    fn take_decided(&mut self, written: u64, durable: u64, lost: Option<&LostRanges>) -> Vec<Waker> {
        let mut woken = Vec::new();
        for (slot, waiter_id) in self.slots.iter_mut().enumerate() {
            let decided = waiter_id.take_if(|waiter| {
                let reached = if waiter.ack == Ack::Durable { durable } else { written };
                waiter.seq < reached || lost.is_some_and(|lost| lost.contains(waiter.seq, waiter.ack))
            });
            if let Some(waiter) = decided {
                woken.push(waiter.waker);
                self.free.push(slot);
            }
        }
        woken
    }
}
