//! A shard: a part of a scope's children, under its own lock.
//!
//! The lock guards the accounting state: free slots, the key of each slot, exits by cause. The state that a child touches
//! while it runs (its [`Slot`]) is outside the lock, in chunks with stable addresses. A spawn and an exit each take one short
//! lock; a check for cancellation takes none.
//!
//! A chunk lives while a child occupies it or the accounting state lists it; when the last child leaves, the state releases
//! all chunks but one.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash};
use std::panic::Location;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use hashbrown::HashTable;

use crate::clock;
use crate::exit_watch::ExitWatch;
use crate::hub::Hub;
use crate::slot::{CHUNK_SLOTS, ChildState, Origin, Slot, StopSignal, Tag, Vacated};
use crate::sync::{Mutex, lock};
use crate::{Exit, Exits, Refused};

/// Lifecycle stage of a scope. Stages only move forward.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Mode {
    Open,
    Draining,
    Stopping,
}

/// Permanent identity of a child: its slot and the occupant of that slot.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) chunk: Arc<ChildChunk>,
    pub(crate) tag: Tag,
}

impl Member {
    pub(crate) fn new(chunk: Arc<ChildChunk>, tag: Tag) -> Self {
        Self { chunk, tag }
    }

    pub(crate) fn slot(&self) -> &Slot {
        &self.chunk.slots[self.tag.place()]
    }

    pub(crate) fn child_state(&self) -> ChildState {
        self.slot().child_state(self.tag)
    }

    pub(crate) fn signal(&self, signal: StopSignal) {
        let to_wake = self.slot().signal_tagged(signal, self.tag);
        if to_wake.watched {
            self.chunk.shard.wake_watchers(&self.chunk, self.tag.place());
        }
        if let Some(task) = to_wake.task {
            task.wake();
        }
    }
}

impl PartialEq for Member {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.chunk, &other.chunk) && self.tag == other.tag
    }
}

/// Slots that are allocated together, and their shard.
pub(crate) struct ChildChunk {
    pub(crate) shard: Arc<dyn AnyShard>,
    page: u32,
    pub(crate) slots: [Slot; CHUNK_SLOTS],
}

impl std::fmt::Debug for ChildChunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChildChunk").field("page", &self.page).finish_non_exhaustive()
    }
}

/// Interface of a shard for its children, independent of the key type.
pub(crate) trait AnyShard: Send + Sync {
    fn hub(&self) -> &Hub;
    /// Records a child's exit and frees its slot.
    fn exit(&self, chunk: &ChildChunk, tag: Tag, exit: Exit);
    /// Records a restart: one exit and one start in the same slot.
    fn record_restart(&self, exit: Exit);
    /// Records that a child replaces an ended child.
    fn record_replacement(&self);
    /// Stores `waker` under `id` (0 allocates an id) until the child is stopped or ends; `None` if that already happened.
    fn watch(&self, chunk: &ChildChunk, tag: Tag, id: u32, waker: &Waker) -> Option<u32>;
    fn unwatch(&self, chunk: &ChildChunk, tag: Tag, id: u32);
    fn wake_watchers(&self, chunk: &ChildChunk, place: usize);
    /// Reports the child's exit to `watch`; `false` if the child has already ended.
    fn await_exit(&self, chunk: &ChildChunk, tag: Tag, watch: &Arc<ExitWatch>) -> bool;
}

struct Page<K> {
    chunk: Arc<ChildChunk>,
    /// Key of the child in each slot. Takes no memory for `Unkeyed`.
    keys: Box<[Option<K>]>,
    /// Some slot of the page has used up its generations.
    has_retired: bool,
}

#[repr(align(128))]
pub(crate) struct ChildShard<K, S> {
    hub: Arc<Hub>,
    hasher: S,
    created: Duration,
    state: Mutex<ShardState<K>>,
}

struct ShardState<K> {
    mode: Mode,
    pages: Vec<Page<K>>,
    /// Source locations that spawned children; slots store an index into this list.
    sites: Vec<&'static Location<'static>>,
    free: u32,
    /// First slot that was never used.
    fresh: u32,
    live: usize,
    started: u64,
    restarts: u64,
    exits: Exits,
    names: HashTable<u32>,
    stop_watchers: BTreeMap<(u32, u32), Waker>,
    exit_watchers: BTreeMap<u32, Vec<Arc<ExitWatch>>>,
    next_watch: u32,
}

const NO_SLOT: u32 = u32::MAX;

/// A child about to start.
pub(crate) struct NewChild<K> {
    pub(crate) key: Option<K>,
    /// Number of the child; 0 is none.
    pub(crate) number: u64,
    pub(crate) spawned_at: &'static Location<'static>,
}

/// Reason why a shard rejects a child.
pub(crate) enum Denied {
    Refused(Refused),
    /// This child holds the key.
    Exists(Member),
}

impl From<Refused> for Denied {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<Denied> for Refused {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Refused(refused) => refused,
            Denied::Exists(_) => Self::Exists,
        }
    }
}

/// A listed child.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChildInfo<K> {
    /// Key of the child, if any.
    pub key: Option<K>,
    /// Number of the child, if any.
    pub number: Option<u64>,
    /// Source location of the spawn.
    pub spawned_at: &'static Location<'static>,
    /// Time since the spawn, with millisecond resolution.
    pub age: Duration,
}

/// Totals of a scope or a tree of scopes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Counts {
    /// Live children.
    pub live: usize,
    /// Starts, including restarts.
    pub started: u64,
    /// Restarts of children.
    pub restarts: u64,
    /// Exits by cause. An exit precedes every restart.
    pub exits: Exits,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.live += other.live;
        self.started += other.started;
        self.restarts += other.restarts;
        self.exits.add(&other.exits);
    }
}

impl<K, S> ChildShard<K, S>
where
    K: Eq + Hash + Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    pub(crate) fn new(hub: Arc<Hub>, hasher: S, created: Duration) -> Self {
        Self { hub, hasher, created, state: Mutex::new(ShardState::new()) }
    }

    /// Assigns a slot to a child; sweeps and look-ups see the child from here on.
    pub(crate) fn admit(self: &Arc<Self>, new_child: NewChild<K>) -> Result<Member, Denied> {
        let hash = new_child.key.as_ref().map(|key| self.hasher.hash_one(key));
        let started_ms = clock::coarse().saturating_sub(self.created).as_millis() as u32;
        let mut state = lock(&self.state);
        match state.mode {
            Mode::Open => {}
            Mode::Draining => return Err(Refused::Draining.into()),
            Mode::Stopping => return Err(Refused::Stopping.into()),
        }
        if let (Some(key), Some(hash)) = (&new_child.key, hash)
            && let Some(existing) = state.find(hash, key)
        {
            return Err(Denied::Exists(existing));
        }
        let at = state.take_free(self);
        let origin = Origin { site: state.site(new_child.spawned_at), at_ms: started_ms, number: new_child.number };
        let (page, place) = split(at);
        let Page { chunk, keys, .. } = &mut state.pages[page];
        if new_child.key.is_some() {
            keys[place] = new_child.key;
        }
        let member = Member::new(Arc::clone(chunk), chunk.slots[place].occupy(place, hash.is_some(), origin));
        if let Some(hash) = hash {
            state.enter(hash, at, &self.hasher);
        }
        state.live += 1;
        state.started += 1;
        Ok(member)
    }

    pub(crate) fn find(&self, key: &K) -> Option<Member> {
        let hash = self.hasher.hash_one(key);
        lock(&self.state).find(hash, key)
    }

    /// Lists the live children of one page; returns whether there are further pages.
    pub(crate) fn list(&self, page: usize, into: &mut Vec<ChildInfo<K>>) -> bool {
        let now = clock::coarse().saturating_sub(self.created);
        let state = lock(&self.state);
        let Some(Page { chunk, keys, .. }) = state.pages.get(page) else { return false };
        let living = chunk.slots.iter().zip(keys).filter(|(slot, _)| slot.is_live());
        into.extend(living.map(|(slot, key)| {
            let Origin { site, at_ms, number } = slot.origin();
            ChildInfo {
                key: key.clone(),
                number: (number != 0).then_some(number),
                spawned_at: state.sites[site as usize],
                age: now.saturating_sub(Duration::from_millis(at_ms.into())),
            }
        }));
        page + 1 < state.pages.len()
    }

    pub(crate) fn counts(&self) -> Counts {
        let state = lock(&self.state);
        Counts { live: state.live, started: state.started, restarts: state.restarts, exits: state.exits }
    }

    pub(crate) fn live(&self) -> usize {
        lock(&self.state).live
    }

    /// Moves forward to `mode`, never back.
    pub(crate) fn advance(&self, mode: Mode) {
        let mut state = lock(&self.state);
        state.mode = state.mode.max(mode);
    }

    /// Collects up to `many` chunks from page `from` on. Children admitted later are refused by the mode instead.
    pub(crate) fn chunks(&self, from: usize, many: usize, into: &mut Vec<Arc<ChildChunk>>) {
        let state = lock(&self.state);
        into.extend(state.pages.iter().skip(from).take(many).map(|page| Arc::clone(&page.chunk)));
    }
}

impl<K, S> ChildShard<K, S> {
    /// Releases every chunk for good, because the scope is gone.
    pub(crate) fn close(&self) {
        let pages = {
            let mut state = lock(&self.state);
            state.mode = Mode::Stopping;
            state.names.clear();
            state.free = NO_SLOT;
            std::mem::take(&mut state.pages)
        };
        for page in &pages {
            sweep(&page.chunk, StopSignal::Stop);
        }
    }
}

/// Signals every child of a chunk.
pub(crate) fn sweep(chunk: &Arc<ChildChunk>, signal: StopSignal) {
    for (place, slot) in chunk.slots.iter().enumerate() {
        let to_wake = slot.signal(signal);
        if to_wake.watched {
            chunk.shard.wake_watchers(chunk, place);
        }
        if let Some(task) = to_wake.task {
            task.wake();
        }
    }
}

impl<K: Eq> ShardState<K> {
    fn new() -> Self {
        Self {
            mode: Mode::Open,
            pages: Vec::new(),
            sites: Vec::new(),
            free: NO_SLOT,
            fresh: 0,
            live: 0,
            started: 0,
            restarts: 0,
            exits: Exits::default(),
            names: HashTable::new(),
            stop_watchers: BTreeMap::new(),
            exit_watchers: BTreeMap::new(),
            next_watch: 0,
        }
    }

    fn find(&self, hash: u64, key: &K) -> Option<Member> {
        let at = *self.names.find(hash, |&at| self.key(at) == Some(key))?;
        let (page, place) = split(at);
        let chunk = &self.pages[page].chunk;
        Some(Member::new(Arc::clone(chunk), chunk.slots[place].tag(place)))
    }

    fn key(&self, at: u32) -> Option<&K> {
        let (page, place) = split(at);
        self.pages[page].keys[place].as_ref()
    }

    /// Index of a source location. The list is short: few locations spawn into one scope.
    fn site(&mut self, spawned_at: &'static Location<'static>) -> u32 {
        let known = self.sites.iter().position(|&site| std::ptr::eq(site, spawned_at));
        let site = known.unwrap_or_else(|| {
            self.sites.push(spawned_at);
            self.sites.len() - 1
        });
        u32::try_from(site).expect("a program has fewer than 2^32 spawn locations")
    }

    fn enter<S: BuildHasher>(&mut self, hash: u64, at: u32, hasher: &S)
    where
        K: Hash,
    {
        let Self { names, pages, .. } = self;
        let rehash = |&at: &u32| {
            let (page, place) = split(at);
            hasher.hash_one(pages[page].keys[place].as_ref().expect("the index lists only keyed children"))
        };
        names.insert_unique(hash, at, rehash);
    }

    fn take_free<S>(&mut self, shard: &Arc<ChildShard<K, S>>) -> u32
    where
        K: Hash + Clone + Send + Sync + 'static,
        S: BuildHasher + Send + Sync + 'static,
    {
        if self.free != NO_SLOT {
            let at = self.free;
            let (page, place) = split(at);
            self.free = self.pages[page].chunk.slots[place].next_free();
            return at;
        }
        let at = self.fresh;
        if split(at).0 == self.pages.len() {
            let shard: Arc<dyn AnyShard> = Arc::<ChildShard<K, S>>::clone(shard);
            self.pages.push(Page::new(shard, self.pages.len()));
        }
        self.fresh += 1;
        at
    }
}

impl<K> Page<K> {
    fn new(shard: Arc<dyn AnyShard>, page: usize) -> Self {
        let page = u32::try_from(page).expect("2^27 pages exceed the memory of any machine");
        let chunk = Arc::new(ChildChunk { shard, page, slots: std::array::from_fn(|_| Slot::new()) });
        let keys = std::iter::repeat_with(|| None).take(CHUNK_SLOTS).collect();
        Self { chunk, keys, has_retired: false }
    }
}

/// Values that an exit drops or wakes outside the lock.
struct Removed<K> {
    key: Option<K>,
    pages: Vec<Page<K>>,
    /// Most children have none.
    watchers: Option<Watchers>,
    task: Option<Waker>,
    emptied: bool,
}

/// Wakers for a child's stop and its exit.
struct Watchers {
    stop: Vec<Waker>,
    exit: Vec<Arc<ExitWatch>>,
}

impl Watchers {
    #[cold]
    fn notify(self, exit: Exit) {
        for waker in self.stop {
            waker.wake();
        }
        for watch in self.exit {
            watch.notify(exit);
        }
    }
}

impl<K: Eq + Hash> ShardState<K> {
    fn remove<S: BuildHasher>(&mut self, chunk: &ChildChunk, tag: Tag, exit: Exit, hasher: &S) -> Removed<K> {
        let at = join(chunk, tag.place());
        self.live -= 1;
        self.exits[exit] += 1;
        let watchers = self.take_watchers(at);
        // After `close` the state lists no pages; only the children keep the chunk alive.
        let listed = (self.pages.get(chunk.page as usize)).is_some_and(|page| std::ptr::eq(&*page.chunk, chunk));
        let slot = &chunk.slots[tag.place()];
        let Vacated { reusable, keyed, waker: task } = slot.vacate();
        // A child without a key leaves the keys untouched: at its exit that cache line is long evicted.
        let key = if listed && keyed { self.forget(at, hasher) } else { None };
        if listed && reusable {
            slot.link_free(self.free);
            self.free = at;
        } else if listed {
            self.pages[chunk.page as usize].has_retired = true;
        }
        let pages = if self.live == 0 { self.shrink() } else { Vec::new() };
        Removed { key, pages, watchers, task, emptied: self.live == 0 && self.mode != Mode::Open }
    }

    fn forget<S: BuildHasher>(&mut self, at: u32, hasher: &S) -> Option<K> {
        let (page, place) = split(at);
        let key = self.pages[page].keys[place].take()?;
        if let Ok(entry) = self.names.find_entry(hasher.hash_one(&key), |&other| other == at) {
            entry.remove();
        }
        Some(key)
    }

    /// The shard is empty: keeps one page for the next child and returns the rest to be freed.
    fn shrink(&mut self) -> Vec<Page<K>> {
        let has_retired = self.pages.first().is_some_and(|page| page.has_retired);
        if self.pages.len() <= 1 && !has_retired {
            return Vec::new();
        }
        self.free = NO_SLOT;
        self.fresh = 0;
        self.names = HashTable::new();
        if has_retired {
            // A slot that has used up its generations must not be reused, so this page is freed as well.
            return std::mem::take(&mut self.pages);
        }
        let first = self.pages.swap_remove(0);
        std::mem::replace(&mut self.pages, vec![first])
    }
}

impl<K, S> AnyShard for ChildShard<K, S>
where
    K: Eq + Hash + Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn hub(&self) -> &Hub {
        &self.hub
    }

    fn exit(&self, chunk: &ChildChunk, tag: Tag, exit: Exit) {
        let removed = lock(&self.state).remove(chunk, tag, exit, &self.hasher);
        if let Some(watchers) = removed.watchers {
            watchers.notify(exit);
        }
        if let Some(limit) = &self.hub.limit {
            limit.give_back();
        }
        if removed.emptied {
            self.hub.shard_emptied();
        }
        drop((removed.key, removed.pages, removed.task));
    }

    fn record_restart(&self, exit: Exit) {
        let mut state = lock(&self.state);
        state.exits[exit] += 1;
        state.started += 1;
        state.restarts += 1;
    }

    fn record_replacement(&self) {
        lock(&self.state).restarts += 1;
    }

    fn watch(&self, chunk: &ChildChunk, tag: Tag, id: u32, waker: &Waker) -> Option<u32> {
        let mut state = lock(&self.state);
        if !chunk.slots[tag.place()].watch(tag) {
            return None;
        }
        let id = if id == 0 { state.new_watch() } else { id };
        state.stop_watchers.insert((join(chunk, tag.place()), id), waker.clone());
        Some(id)
    }

    fn unwatch(&self, chunk: &ChildChunk, tag: Tag, id: u32) {
        let waker = lock(&self.state).stop_watchers.remove(&(join(chunk, tag.place()), id));
        drop(waker);
    }

    fn wake_watchers(&self, chunk: &ChildChunk, place: usize) {
        let woken = lock(&self.state).take_stop_watchers(join(chunk, place));
        for waker in woken {
            waker.wake();
        }
    }

    fn await_exit(&self, chunk: &ChildChunk, tag: Tag, watch: &Arc<ExitWatch>) -> bool {
        let mut state = lock(&self.state);
        if chunk.slots[tag.place()].child_state(tag) == ChildState::Gone {
            return false;
        }
        let waiting = state.exit_watchers.entry(join(chunk, tag.place())).or_default();
        waiting.retain(|other| Arc::strong_count(other) > 1);
        waiting.push(Arc::clone(watch));
        true
    }
}

impl<K> ShardState<K> {
    fn take_watchers(&mut self, at: u32) -> Option<Watchers> {
        if self.stop_watchers.is_empty() && self.exit_watchers.is_empty() {
            return None;
        }
        let exit = self.exit_watchers.remove(&at).unwrap_or_default();
        Some(Watchers { stop: self.take_stop_watchers(at), exit })
    }

    fn take_stop_watchers(&mut self, at: u32) -> Vec<Waker> {
        if self.stop_watchers.is_empty() {
            return Vec::new();
        }
        let ids: Vec<_> = self.stop_watchers.range((at, 0)..=(at, u32::MAX)).map(|(id, _)| *id).collect();
        ids.iter().filter_map(|id| self.stop_watchers.remove(id)).collect()
    }

    fn new_watch(&mut self) -> u32 {
        self.next_watch = self.next_watch.wrapping_add(1).max(1);
        self.next_watch
    }
}

fn split(at: u32) -> (usize, usize) {
    (at as usize / CHUNK_SLOTS, at as usize % CHUNK_SLOTS)
}

fn join(chunk: &ChildChunk, place: usize) -> u32 {
    chunk.page * CHUNK_SLOTS as u32 + place as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::hash::RandomState;

    use super::*;
    use crate::child::ChildGuard;

    /// SV-6: a slot that has used up its generations is not reused.
    #[test]
    fn retired_slot_is_not_reused() {
        let hub = Arc::new(Hub::new("root".into(), None));
        let shard = Arc::new(ChildShard::new(hub, RandomState::new(), Duration::ZERO));
        let run_and_end = || {
            let new_child = NewChild { key: Some(1), number: 0, spawned_at: Location::caller() };
            let member = shard.admit(new_child).ok().expect("open");
            let chunk = Arc::clone(&lock(&shard.state).pages[0].chunk);
            drop(ChildGuard::new::<u32>(member, None));
            chunk
        };
        let chunk = run_and_end();
        assert!(Arc::ptr_eq(&chunk, &run_and_end()), "an empty shard keeps a page");
        chunk.slots[0].age();
        assert!(Arc::ptr_eq(&chunk, &run_and_end()), "last use of the slot");
        assert!(!Arc::ptr_eq(&chunk, &run_and_end()));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::hash::RandomState;
    use std::task::{Context, Poll, Wake};

    use super::*;

    type OneShard = ChildShard<u32, RandomState>;

    fn shard() -> Arc<OneShard> {
        let hub = Arc::new(Hub::new("root".into(), None));
        Arc::new(ChildShard::new(hub, RandomState::new(), Duration::ZERO))
    }

    fn new_child() -> NewChild<u32> {
        NewChild { key: Some(1), number: 0, spawned_at: Location::caller() }
    }

    fn stop(shard: &OneShard) {
        shard.advance(Mode::Stopping);
        let mut chunks = Vec::new();
        shard.chunks(0, usize::MAX, &mut chunks);
        for chunk in &chunks {
            sweep(chunk, StopSignal::Stop);
        }
    }

    /// SV-11: a spawn that races a stop is refused or signalled.
    #[test]
    fn spawn_racing_stop_is_refused_or_signalled() {
        loom::model(|| {
            let shard = shard();
            let stopper = {
                let shard = Arc::clone(&shard);
                loom::thread::spawn(move || stop(&shard))
            };
            let admitted = shard.admit(new_child());
            stopper.join().unwrap();
            match admitted {
                Ok(member) => assert!(member.ctx().is_stopping(), "stop is signalled"),
                Err(denied) => assert!(matches!(denied, Denied::Refused(Refused::Stopping))),
            }
            shard.close();
        });
    }

    struct Woken(std::sync::atomic::AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }

    /// SV-43: a waiter for an empty scope sees the last exit or is woken.
    #[test]
    fn waiter_for_last_exit_sees_it_or_is_woken() {
        loom::model(|| {
            let shard = shard();
            let member = shard.admit(new_child()).ok().expect("open");
            shard.advance(Mode::Stopping);
            let exiting = loom::thread::spawn(move || drop(crate::child::ChildGuard::new::<u32>(member, None)));
            let woken = Arc::new(Woken(false.into()));
            shard.hub.wait(&Arc::clone(&woken).into());
            let seen = shard.live() == 0;
            exiting.join().unwrap();
            assert!(seen || woken.0.load(std::sync::atomic::Ordering::SeqCst));
            shard.close();
        });
    }

    /// SV-43: a waiter for a child gets its exit.
    #[test]
    fn waiter_for_child_gets_its_exit() {
        loom::model(|| {
            let shard = shard();
            let member = shard.admit(new_child()).ok().expect("open");
            let child = member.handle();
            let exiting = loom::thread::spawn(move || drop(crate::child::ChildGuard::new::<u32>(member, None)));
            let mut ended = child.ended();
            exiting.join().unwrap();
            let mut cx = Context::from_waker(Waker::noop());
            let polled = std::pin::Pin::new(&mut ended).poll(&mut cx);
            assert!(matches!(polled, Poll::Ready(None | Some(Exit::Dropped))), "{polled:?}");
            shard.close();
        });
    }
}
