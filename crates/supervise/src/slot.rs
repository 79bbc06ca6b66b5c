//! State and waker of one child, in a cache line that no other child writes.
//!
//! The state is one word, `generation | flags`. A child is *live* from [`Slot::occupy`] to [`Slot::vacate`]. Meanwhile a
//! signal may set the stop flag and later the abort flag, and never clears a flag. [`Slot::vacate`] increments the generation,
//! so a handle to an earlier occupant (a *tag*) can neither signal nor end a later one.
//!
//! A write to the word of a live slot holds the lock of its waker; a check only reads the word. So no stop is lost: a signal
//! sets its flag and takes the waker under one lock, and the task stores its waker under the same lock before it reads the
//! flags. The second of the two sees the first.

use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::task::Waker;

use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Mutex, lock};

const LIVE: u32 = 1;
const STOP: u32 = 1 << 1;
const ABORT: u32 = 1 << 2;
const WATCHED: u32 = 1 << 3;
const KEYED: u32 = 1 << 4;
const GENERATION_SHIFT: u32 = 5;
const GENERATION_MAX: u32 = u32::MAX >> GENERATION_SHIFT;

/// Slots in a chunk: the number of places that a tag can encode.
pub(crate) const CHUNK_SLOTS: usize = 1 << GENERATION_SHIFT;
const PLACE_MASK: u32 = CHUNK_SLOTS as u32 - 1;

/// Identifies an occupant of a slot in a chunk: `generation << 5 | place`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag(u32);

impl Tag {
    pub(crate) fn place(self) -> usize {
        (self.0 & PLACE_MASK) as usize
    }

    fn matches(self, state: u32) -> bool {
        (self.0 ^ state) & !PLACE_MASK == 0
    }
}

/// Signal that a sweep sends to a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StopSignal {
    /// The child must finish: `cancelled()` resolves.
    Stop,
    /// The child ends at the next poll of its wrapper, without another poll of its future.
    Abort,
}

impl StopSignal {
    fn flags(self) -> u32 {
        match self {
            Self::Stop => STOP,
            Self::Abort => STOP | ABORT,
        }
    }
}

/// Wakers that the sender of a signal must wake.
#[derive(Debug, Default)]
pub(crate) struct ToWake {
    pub(crate) task: Option<Waker>,
    /// Parts of the child wait with their own wakers, which the shard stores.
    pub(crate) watched: bool,
}

/// State of the slot as its child reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChildState {
    Running,
    Stopping,
    Aborting,
    /// The occupant of the tag has ended.
    Gone,
}

#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Slot {
    state: AtomicU32,
    /// Identity of `waker`, so that the task recognises its own waker without a lock. Only the task writes it.
    data: AtomicPtr<()>,
    vtable: AtomicPtr<()>,
    /// Stays until the child ends: a wake clones it, so a woken task does not register again.
    waker: Mutex<Option<Waker>>,
    /// Links the free slots of a shard, under the shard's lock.
    next_free: AtomicU32,
    /// Origin of the present occupant, under the shard's lock. Stored here because a start writes this line anyway.
    origin_site: AtomicU32,
    origin_ms: AtomicU32,
    number: AtomicU64,
}

/// Spawn location (an index in the shard), spawn time (since the shard was created) and number of a child; number 0 is none.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Origin {
    pub(crate) site: u32,
    pub(crate) at_ms: u32,
    pub(crate) number: u64,
}

/// State that an occupant leaves behind.
pub(crate) struct Vacated {
    /// `false` if the slot has used up its generations and must not be reused.
    pub(crate) reusable: bool,
    pub(crate) keyed: bool,
    pub(crate) waker: Option<Waker>,
}

impl Slot {
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU32::new(0),
            data: AtomicPtr::new(ptr::null_mut()),
            vtable: AtomicPtr::new(ptr::null_mut()),
            waker: Mutex::new(None),
            next_free: AtomicU32::new(0),
            origin_site: AtomicU32::new(0),
            origin_ms: AtomicU32::new(0),
            number: AtomicU64::new(0),
        }
    }

    pub(crate) fn origin(&self) -> Origin {
        let (site, at_ms) = (self.origin_site.load(Relaxed), self.origin_ms.load(Relaxed));
        Origin { site, at_ms, number: self.number.load(Relaxed) }
    }

    pub(crate) fn next_free(&self) -> u32 {
        self.next_free.load(Relaxed)
    }

    pub(crate) fn link_free(&self, next: u32) {
        self.next_free.store(next, Relaxed);
    }

    /// Makes the slot live. The caller holds the lock of the shard, which alone assigns free slots.
    pub(crate) fn occupy(&self, place: usize, keyed: bool, origin: Origin) -> Tag {
        let state = self.state.load(Relaxed);
        debug_assert!(state & LIVE == 0, "the slot is free");
        // No other thread writes here: signals and watchers ignore a slot that is not live.
        self.origin_site.store(origin.site, Relaxed);
        self.origin_ms.store(origin.at_ms, Relaxed);
        self.number.store(origin.number, Relaxed);
        let keyed = if keyed { KEYED } else { 0 };
        self.state.store(state | LIVE | keyed, Release);
        Tag((state & !PLACE_MASK) | place as u32)
    }

    /// Returns the tag of the present occupant. The caller holds the lock of the shard, so the occupant cannot change.
    pub(crate) fn tag(&self, place: usize) -> Tag {
        Tag((self.state.load(Relaxed) & !PLACE_MASK) | place as u32)
    }

    /// Ends the occupant.
    pub(crate) fn vacate(&self) -> Vacated {
        let mut waker = lock(&self.waker);
        let state = self.state.load(Relaxed);
        let next = (state >> GENERATION_SHIFT).wrapping_add(1) & GENERATION_MAX;
        self.state.store(next << GENERATION_SHIFT, Release);
        self.data.store(ptr::null_mut(), Relaxed);
        self.vtable.store(ptr::null_mut(), Relaxed);
        Vacated { reusable: next != 0, keyed: state & KEYED != 0, waker: waker.take() }
    }

    /// Sets the signal's flags on a live child that does not have them.
    pub(crate) fn signal(&self, signal: StopSignal) -> ToWake {
        self.signal_if(signal, |_| true)
    }

    /// Like [`signal`](Self::signal), only for the occupant of `tag`.
    pub(crate) fn signal_tagged(&self, signal: StopSignal, tag: Tag) -> ToWake {
        self.signal_if(signal, |state| tag.matches(state))
    }

    fn signal_if(&self, signal: StopSignal, filter: impl Fn(u32) -> bool) -> ToWake {
        let flags = signal.flags();
        let is_signalled = |state: u32| state & LIVE == 0 || state & flags == flags;
        if is_signalled(self.state.load(Relaxed)) {
            return ToWake::default();
        }
        let waker = lock(&self.waker);
        let state = self.state.load(Relaxed);
        if is_signalled(state) || !filter(state) {
            return ToWake::default();
        }
        self.state.store(state | flags, Release);
        ToWake { task: waker.clone(), watched: state & WATCHED != 0 }
    }

    /// Stores the task's waker, unless the slot already stores it.
    pub(crate) fn register(&self, waker: &Waker) {
        if self.is_registered(waker) {
            return;
        }
        let old = lock(&self.waker).replace(waker.clone());
        self.data.store(waker.data().cast_mut(), Relaxed);
        self.vtable.store(vtable(waker), Relaxed);
        drop(old);
    }

    /// Returns whether a wake of this slot already reaches `waker`.
    pub(crate) fn is_registered(&self, waker: &Waker) -> bool {
        self.data.load(Relaxed) == waker.data().cast_mut() && self.vtable.load(Relaxed) == vtable(waker)
    }

    pub(crate) fn child_state(&self, tag: Tag) -> ChildState {
        match self.state.load(Acquire) {
            state if !tag.matches(state) || state & LIVE == 0 => ChildState::Gone,
            state if state & ABORT != 0 => ChildState::Aborting,
            state if state & STOP != 0 => ChildState::Stopping,
            _ => ChildState::Running,
        }
    }

    /// Records that the shard stores further wakers for this child; `false` if the child is already stopping or gone.
    pub(crate) fn watch(&self, tag: Tag) -> bool {
        let _writing = lock(&self.waker);
        let state = self.state.load(Relaxed);
        let in_time = tag.matches(state) && state & (LIVE | STOP) == LIVE;
        if in_time {
            self.state.store(state | WATCHED, Release);
        }
        in_time
    }

    pub(crate) fn is_live(&self) -> bool {
        self.state.load(Acquire) & LIVE != 0
    }
}

fn vtable(waker: &Waker) -> *mut () {
    ptr::from_ref(waker.vtable()).cast_mut().cast()
}

#[cfg(all(test, not(loom)))]
impl Slot {
    /// Leaves an empty slot one use.
    pub(crate) fn age(&self) {
        self.state.store(GENERATION_MAX << GENERATION_SHIFT, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// SV-37: a check for a stop writes nothing and takes no lock.
    #[test]
    fn stop_check_writes_nothing_and_takes_no_lock() {
        let slot = Slot::new();
        let tag = slot.occupy(3, false, Origin::default());
        slot.register(Waker::noop());
        let state = slot.state.load(Relaxed);
        // This thread holds the lock, so an attempt to lock would deadlock.
        let _held = lock(&slot.waker);
        for _ in 0..1000 {
            assert_eq!(slot.child_state(tag), ChildState::Running);
            assert!(slot.is_registered(Waker::noop()));
            slot.register(Waker::noop());
        }
        assert_eq!(slot.state.load(Relaxed), state);
    }

    #[test]
    fn slot_is_one_cache_line() {
        assert_eq!((size_of::<Slot>(), align_of::<Slot>()), (64, 64));
    }

    /// SV-6: a slot retires before its generations repeat.
    #[test]
    fn slot_retires_before_generations_repeat() {
        let slot = Slot::new();
        slot.age();
        let last = slot.occupy(1, false, Origin::default());
        assert!(!slot.vacate().reusable);
        assert_eq!(slot.child_state(last), ChildState::Gone);
    }
}

/// Every interleaving of two threads at one slot: `RUSTFLAGS="--cfg loom" cargo test -p tidegate-supervise --lib`.
#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use super::*;

    /// Runs a signal to a live slot on one thread, concurrently with `task` on another.
    fn race(
        signal: StopSignal,
        task: impl Fn(&Slot, Tag) -> bool + Send + Sync + Copy + 'static,
        check: impl Fn(bool, &ToWake) + Send + Sync + 'static,
    ) {
        loom::model(move || {
            let slot = Arc::new(Slot::new());
            let tag = slot.occupy(0, false, Origin::default());
            let signaller = {
                let slot = Arc::clone(&slot);
                loom::thread::spawn(move || slot.signal(signal))
            };
            let outcome = task(&slot, tag);
            check(outcome, &signaller.join().unwrap());
        });
    }

    /// SV-43: a task sees the stop flag or is woken.
    #[test]
    fn task_sees_stop_or_is_woken() {
        let sees = |slot: &Slot, tag| {
            slot.register(Waker::noop());
            slot.child_state(tag) == ChildState::Stopping
        };
        race(StopSignal::Stop, sees, |seen, to_wake| assert!(seen || to_wake.task.is_some()));
    }

    /// SV-43: a task sees the abort flag or is woken.
    #[test]
    fn task_sees_abort_or_is_woken() {
        let sees = |slot: &Slot, tag| {
            slot.register(Waker::noop());
            slot.child_state(tag) == ChildState::Aborting
        };
        race(StopSignal::Abort, sees, |seen, to_wake| assert!(seen || to_wake.task.is_some()));
    }

    /// SV-43: the signal sees a watcher, or the watcher sees the signal.
    #[test]
    fn watcher_is_recorded_or_refused() {
        let watches = |slot: &Slot, tag| slot.watch(tag);
        race(StopSignal::Stop, watches, |watching, to_wake| assert_eq!(watching, to_wake.watched));
    }

    /// SV-43: a signal to an earlier occupant does not reach the next one.
    #[test]
    fn stale_signal_does_not_reach_next_occupant() {
        loom::model(|| {
            let slot = Arc::new(Slot::new());
            let first = slot.occupy(0, false, Origin::default());
            let signaller = {
                let slot = Arc::clone(&slot);
                loom::thread::spawn(move || slot.signal_tagged(StopSignal::Stop, first))
            };
            slot.vacate();
            let second = slot.occupy(0, false, Origin::default());
            slot.register(Waker::noop());
            signaller.join().unwrap();
            assert_eq!(slot.child_state(second), ChildState::Running);
            assert_eq!(slot.child_state(first), ChildState::Gone);
        });
    }
}
