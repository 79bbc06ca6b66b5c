//! One child's place: its state, its waker, and nothing that another child writes.
//!
//! The state is one word, `generation | flags`. A child is *live* from [`Slot::occupy`] to [`Slot::vacate`]; in between
//! it may be told to stop and later to abort, and both are only ever added. The generation grows when the slot is
//! vacated, so a handle to an earlier occupant (a *tag*) can neither signal nor end a later one.
//!
//! Who changes the word of a live slot holds the lock of its waker; who only asks reads the word, and nothing else. So a
//! stop is not missed: a signal sets its flag and takes the waker under one lock, the task stores its waker under it
//! before it reads the flags. Whichever comes second sees the first.

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

/// Slots in a chunk: as many as a tag has room to number.
pub(crate) const CHUNK_SLOTS: usize = 1 << GENERATION_SHIFT;
const PLACE_MASK: u32 = CHUNK_SLOTS as u32 - 1;

/// Which occupant of which slot of a chunk: `generation << 5 | place`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag(u32);

impl Tag {
    pub(crate) fn place(self) -> usize {
        (self.0 & PLACE_MASK) as usize
    }

    fn names(self, state: u32) -> bool {
        (self.0 ^ state) & !PLACE_MASK == 0
    }
}

/// What a sweep tells a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Signal {
    /// Finish: `cancelled()` resolves.
    Stop,
    /// End at the next poll, without another poll of the child's future.
    Abort,
}

impl Signal {
    fn flags(self) -> u32 {
        match self {
            Self::Stop => STOP,
            Self::Abort => STOP | ABORT,
        }
    }
}

/// Whom the sender of a signal has to wake.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) task: Option<Waker>,
    /// Parts of the child wait under wakers of their own; the shard keeps them.
    pub(crate) watched: bool,
}

/// What the child's own side reads of its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    Running,
    Stopping,
    Aborting,
    /// The occupant that the tag names has ended.
    Gone,
}

#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Slot {
    state: AtomicU32,
    /// The identity of `waker`, so that the task recognises its own waker without a lock. Written by the task alone.
    data: AtomicPtr<()>,
    vtable: AtomicPtr<()>,
    /// Stays until the child ends: a wake clones it, so a woken task has nothing to register again.
    waker: Mutex<Option<Waker>>,
    /// Links the free slots of a shard, under the shard's lock.
    next_free: AtomicU32,
    /// Of the present occupant, under the shard's lock. Here and not in the books, since a start writes this line anyway.
    born_site: AtomicU32,
    born_ms: AtomicU32,
    number: AtomicU64,
}

/// From which place of the source (by its number in the shard) and when (since the birth of the shard) a child came, and
/// the number that it was given; 0 is none.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Born {
    pub(crate) site: u32,
    pub(crate) at_ms: u32,
    pub(crate) number: u64,
}

/// What an occupant leaves behind.
pub(crate) struct Vacated {
    /// `false` if the slot has used up its generations and must not be handed out again.
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
            born_site: AtomicU32::new(0),
            born_ms: AtomicU32::new(0),
            number: AtomicU64::new(0),
        }
    }

    pub(crate) fn born(&self) -> Born {
        let (site, at_ms) = (self.born_site.load(Relaxed), self.born_ms.load(Relaxed));
        Born { site, at_ms, number: self.number.load(Relaxed) }
    }

    pub(crate) fn next_free(&self) -> u32 {
        self.next_free.load(Relaxed)
    }

    pub(crate) fn link_free(&self, next: u32) {
        self.next_free.store(next, Relaxed);
    }

    /// Makes the slot live. The caller holds the lock of the shard, which alone hands out free slots.
    pub(crate) fn occupy(&self, place: usize, keyed: bool, born: Born) -> Tag {
        let state = self.state.load(Relaxed);
        debug_assert!(state & LIVE == 0, "a slot is handed out once");
        // Nobody else writes: signals and watchers leave a slot alone that is not live.
        self.born_site.store(born.site, Relaxed);
        self.born_ms.store(born.at_ms, Relaxed);
        self.number.store(born.number, Relaxed);
        let keyed = if keyed { KEYED } else { 0 };
        self.state.store(state | LIVE | keyed, Release);
        Tag((state & !PLACE_MASK) | place as u32)
    }

    /// Names the present occupant. The caller holds the lock of the shard, so that it cannot change meanwhile.
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

    /// Adds the signal's flags to a live child that does not have them yet.
    pub(crate) fn signal(&self, signal: Signal) -> Told {
        self.signal_if(signal, |_| true)
    }

    /// As [`signal`](Self::signal), only for the occupant that `tag` names.
    pub(crate) fn signal_tagged(&self, signal: Signal, tag: Tag) -> Told {
        self.signal_if(signal, |state| tag.names(state))
    }

    fn signal_if(&self, signal: Signal, wanted: impl Fn(u32) -> bool) -> Told {
        let flags = signal.flags();
        let is_told = |state: u32| state & LIVE == 0 || state & flags == flags;
        if is_told(self.state.load(Relaxed)) {
            return Told::default();
        }
        let waker = lock(&self.waker);
        let state = self.state.load(Relaxed);
        if is_told(state) || !wanted(state) {
            return Told::default();
        }
        self.state.store(state | flags, Release);
        Told { task: waker.clone(), watched: state & WATCHED != 0 }
    }

    /// Stores the task's waker, unless it is the one already stored.
    pub(crate) fn register(&self, waker: &Waker) {
        if self.is_registered(waker) {
            return;
        }
        let old = lock(&self.waker).replace(waker.clone());
        self.data.store(waker.data().cast_mut(), Relaxed);
        self.vtable.store(vtable(waker), Relaxed);
        drop(old);
    }

    /// Whether a wake of this slot reaches `waker` already.
    pub(crate) fn is_registered(&self, waker: &Waker) -> bool {
        self.data.load(Relaxed) == waker.data().cast_mut() && self.vtable.load(Relaxed) == vtable(waker)
    }

    pub(crate) fn standing(&self, tag: Tag) -> Standing {
        match self.state.load(Acquire) {
            state if !tag.names(state) || state & LIVE == 0 => Standing::Gone,
            state if state & ABORT != 0 => Standing::Aborting,
            state if state & STOP != 0 => Standing::Stopping,
            _ => Standing::Running,
        }
    }

    /// Announces that the shard keeps further wakers for this child; `false` if it is told to stop already, or gone.
    pub(crate) fn watch(&self, tag: Tag) -> bool {
        let _writing = lock(&self.waker);
        let state = self.state.load(Relaxed);
        let in_time = tag.names(state) && state & (LIVE | STOP) == LIVE;
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

    #[test]
    fn sv_37_asking_for_a_stop_writes_nothing_and_takes_no_lock() {
        let slot = Slot::new();
        let tag = slot.occupy(3, false, Born::default());
        slot.register(Waker::noop());
        let state = slot.state.load(Relaxed);
        // Held by this very thread: an attempt to lock it would never return.
        let _held = lock(&slot.waker);
        for _ in 0..1000 {
            assert_eq!(slot.standing(tag), Standing::Running);
            assert!(slot.is_registered(Waker::noop()));
            slot.register(Waker::noop());
        }
        assert_eq!(slot.state.load(Relaxed), state);
    }

    #[test]
    fn a_slot_is_one_cache_line() {
        assert_eq!((size_of::<Slot>(), align_of::<Slot>()), (64, 64));
    }

    #[test]
    fn sv_06_a_slot_retires_before_its_generations_repeat() {
        let slot = Slot::new();
        slot.age();
        let last = slot.occupy(1, false, Born::default());
        assert!(!slot.vacate().reusable);
        assert_eq!(slot.standing(last), Standing::Gone);
    }
}

/// Every interleaving of two threads at one slot: `RUSTFLAGS="--cfg loom" cargo test -p tidegate-supervise --lib`.
#[cfg(all(test, loom))]
mod interleavings {
    use std::sync::Arc;

    use super::*;

    /// A slot with one occupant, told by one thread while the other is the task.
    fn against(
        signal: Signal,
        task: impl Fn(&Slot, Tag) -> bool + Send + Sync + Copy + 'static,
        check: impl Fn(bool, &Told) + Send + Sync + 'static,
    ) {
        loom::model(move || {
            let slot = Arc::new(Slot::new());
            let tag = slot.occupy(0, false, Born::default());
            let teller = {
                let slot = Arc::clone(&slot);
                loom::thread::spawn(move || slot.signal(signal))
            };
            let outcome = task(&slot, tag);
            check(outcome, &teller.join().unwrap());
        });
    }

    #[test]
    fn sv_43_a_task_sees_the_stop_or_is_woken() {
        let sees = |slot: &Slot, tag| {
            slot.register(Waker::noop());
            slot.standing(tag) == Standing::Stopping
        };
        against(Signal::Stop, sees, |seen, told| assert!(seen || told.task.is_some()));
    }

    #[test]
    fn sv_43_a_task_sees_the_abort_or_is_woken() {
        let sees = |slot: &Slot, tag| {
            slot.register(Waker::noop());
            slot.standing(tag) == Standing::Aborting
        };
        against(Signal::Abort, sees, |seen, told| assert!(seen || told.task.is_some()));
    }

    #[test]
    fn sv_43_a_watcher_is_announced_in_time_or_turned_away() {
        let watches = |slot: &Slot, tag| slot.watch(tag);
        against(Signal::Stop, watches, |watching, told| assert_eq!(watching, told.watched));
    }

    #[test]
    fn sv_43_a_signal_to_an_earlier_occupant_never_reaches_the_next() {
        loom::model(|| {
            let slot = Arc::new(Slot::new());
            let first = slot.occupy(0, false, Born::default());
            let teller = {
                let slot = Arc::clone(&slot);
                loom::thread::spawn(move || slot.signal_tagged(Signal::Stop, first))
            };
            slot.vacate();
            let second = slot.occupy(0, false, Born::default());
            slot.register(Waker::noop());
            teller.join().unwrap();
            assert_eq!(slot.standing(second), Standing::Running);
            assert_eq!(slot.standing(first), Standing::Gone);
        });
    }
}
