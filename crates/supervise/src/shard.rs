//! A part of a scope's children, under a lock of its own.
//!
//! The lock guards the *books*: which slot is free, who sits where, under what key, how many ended how. What a running
//! child touches while it runs (its [`Slot`]) lies outside the lock, in chunks whose addresses never move. So a spawn
//! and an exit take one short lock each, and asking "must I stop?" takes none.
//!
//! A chunk lives as long as a child sits in it or the books list it; the books let go of all chunks but one when the
//! last child leaves.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash};
use std::panic::Location;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use hashbrown::HashTable;

use crate::child::{ExitWatch, Member};
use crate::clock;
use crate::hub::Hub;
use crate::slot::{Born, CHUNK_SLOTS, Signal, Slot, Standing, Tag, Vacated};
use crate::sync::{Mutex, lock};
use crate::{Exit, Exits, Refused};

/// How far a scope has come. It only ever goes forward.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Mode {
    Open,
    Draining,
    Stopping,
}

/// Slots that were allocated together, and the shard they belong to.
pub(crate) struct Chunk {
    pub(crate) home: Arc<dyn Home>,
    page: u32,
    pub(crate) slots: [Slot; CHUNK_SLOTS],
}

impl std::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chunk").field("page", &self.page).finish_non_exhaustive()
    }
}

/// A shard as its children see it, whatever the type of their keys.
pub(crate) trait Home: Send + Sync {
    fn hub(&self) -> &Hub;
    /// Closes the books on a child.
    fn exit(&self, chunk: &Chunk, tag: Tag, exit: Exit);
    /// A restart: one more exit and one more start in the same place.
    fn again(&self, exit: Exit);
    /// A child was started in place of one that ended.
    fn replaced(&self);
    /// Keeps `waker` under `id` (0 asks for a new one) until the child is told to stop or ends; `None` if it is.
    fn watch(&self, chunk: &Chunk, tag: Tag, id: u32, waker: &Waker) -> Option<u32>;
    fn unwatch(&self, chunk: &Chunk, tag: Tag, id: u32);
    fn wake_watchers(&self, chunk: &Chunk, place: usize);
    /// Reports the child's end to `watch`; `false` if it has ended already.
    fn await_exit(&self, chunk: &Chunk, tag: Tag, watch: &Arc<ExitWatch>) -> bool;
}

struct Page<K> {
    chunk: Arc<Chunk>,
    /// The name of the child in each slot. Without keys this takes no memory at all.
    keys: Box<[Option<K>]>,
    /// A slot of it has used up its generations.
    has_retired: bool,
}

#[repr(align(128))]
pub(crate) struct Shard<K, S> {
    hub: Arc<Hub>,
    hasher: S,
    born: Duration,
    books: Mutex<Books<K>>,
}

struct Books<K> {
    mode: Mode,
    pages: Vec<Page<K>>,
    /// From where in the source children were spawned; slots say which by its number.
    sites: Vec<&'static Location<'static>>,
    free: u32,
    /// Slots from here on were never used.
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
pub(crate) struct Birth<K> {
    pub(crate) key: Option<K>,
    /// 0 for none.
    pub(crate) number: u64,
    pub(crate) spawned_at: &'static Location<'static>,
}

/// Why the books have no place for a child.
pub(crate) enum Denied {
    Refused(Refused),
    /// This one has the key.
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

/// A child as the books show it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChildInfo<K> {
    /// Its key, if it has one.
    pub key: Option<K>,
    /// Its number, if it was given one.
    pub number: Option<u64>,
    /// Where in the source it was spawned.
    pub spawned_at: &'static Location<'static>,
    /// How long ago it was spawned, to the millisecond.
    pub age: Duration,
}

/// The sums of a scope or a tree of scopes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Counts {
    /// Children that have started and not ended.
    pub live: usize,
    /// Starts, restarts among them.
    pub started: u64,
    /// Restarts of children.
    pub restarts: u64,
    /// Ends, by cause. A restart is preceded by an exit.
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

impl<K, S> Shard<K, S>
where
    K: Eq + Hash + Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    pub(crate) fn new(hub: Arc<Hub>, hasher: S, born: Duration) -> Self {
        Self { hub, hasher, born, books: Mutex::new(Books::new()) }
    }

    /// Gives a child a place, visible to every sweep and look-up from here on.
    pub(crate) fn admit(self: &Arc<Self>, birth: Birth<K>) -> Result<Member, Denied> {
        let hash = birth.key.as_ref().map(|key| self.hasher.hash_one(key));
        let started_ms = clock::coarse().saturating_sub(self.born).as_millis() as u32;
        let mut books = lock(&self.books);
        match books.mode {
            Mode::Open => {}
            Mode::Draining => return Err(Refused::Draining.into()),
            Mode::Stopping => return Err(Refused::Stopping.into()),
        }
        if let (Some(key), Some(hash)) = (&birth.key, hash)
            && let Some(existing) = books.find(hash, key)
        {
            return Err(Denied::Exists(existing));
        }
        let at = books.take_free(self);
        let born = Born { site: books.site(birth.spawned_at), at_ms: started_ms, number: birth.number };
        let (page, place) = split(at);
        let Page { chunk, keys, .. } = &mut books.pages[page];
        if birth.key.is_some() {
            keys[place] = birth.key;
        }
        let member = Member::new(Arc::clone(chunk), chunk.slots[place].occupy(place, hash.is_some(), born));
        if let Some(hash) = hash {
            books.enter(hash, at, &self.hasher);
        }
        books.live += 1;
        books.started += 1;
        Ok(member)
    }

    pub(crate) fn find(&self, key: &K) -> Option<Member> {
        let hash = self.hasher.hash_one(key);
        lock(&self.books).find(hash, key)
    }

    /// The children of one page, and whether there are further pages.
    pub(crate) fn list(&self, page: usize, into: &mut Vec<ChildInfo<K>>) -> bool {
        let now = clock::coarse().saturating_sub(self.born);
        let books = lock(&self.books);
        let Some(Page { chunk, keys, .. }) = books.pages.get(page) else { return false };
        let living = chunk.slots.iter().zip(keys).filter(|(slot, _)| slot.is_live());
        into.extend(living.map(|(slot, key)| {
            let Born { site, at_ms, number } = slot.born();
            ChildInfo {
                key: key.clone(),
                number: (number != 0).then_some(number),
                spawned_at: books.sites[site as usize],
                age: now.saturating_sub(Duration::from_millis(at_ms.into())),
            }
        }));
        page + 1 < books.pages.len()
    }

    pub(crate) fn counts(&self) -> Counts {
        let books = lock(&self.books);
        Counts { live: books.live, started: books.started, restarts: books.restarts, exits: books.exits }
    }

    pub(crate) fn live(&self) -> usize {
        lock(&self.books).live
    }

    /// Moves forward to `mode`; never back.
    pub(crate) fn advance(&self, mode: Mode) {
        let mut books = lock(&self.books);
        books.mode = books.mode.max(mode);
    }

    /// Up to `many` chunks from page `from` on. Children that come later see the mode instead.
    pub(crate) fn chunks(&self, from: usize, many: usize, into: &mut Vec<Arc<Chunk>>) {
        let books = lock(&self.books);
        into.extend(books.pages.iter().skip(from).take(many).map(|page| Arc::clone(&page.chunk)));
    }
}

impl<K, S> Shard<K, S> {
    /// Lets go of every chunk, for good: the scope is gone.
    pub(crate) fn close(&self) {
        let pages = {
            let mut books = lock(&self.books);
            books.mode = Mode::Stopping;
            books.names.clear();
            books.free = NO_SLOT;
            std::mem::take(&mut books.pages)
        };
        for page in &pages {
            sweep(&page.chunk, Signal::Stop);
        }
    }
}

/// Tells every child of a chunk.
pub(crate) fn sweep(chunk: &Arc<Chunk>, signal: Signal) {
    for (place, slot) in chunk.slots.iter().enumerate() {
        let told = slot.signal(signal);
        if told.watched {
            chunk.home.wake_watchers(chunk, place);
        }
        if let Some(task) = told.task {
            task.wake();
        }
    }
}

impl<K: Eq> Books<K> {
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

    /// The number of a place in the source. A program has few from which it spawns into one scope.
    fn site(&mut self, spawned_at: &'static Location<'static>) -> u32 {
        let known = self.sites.iter().position(|&site| std::ptr::eq(site, spawned_at));
        let site = known.unwrap_or_else(|| {
            self.sites.push(spawned_at);
            self.sites.len() - 1
        });
        u32::try_from(site).expect("a program has fewer than 2^32 places that spawn")
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

    fn take_free<S>(&mut self, shard: &Arc<Shard<K, S>>) -> u32
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
            let home: Arc<dyn Home> = Arc::<Shard<K, S>>::clone(shard);
            self.pages.push(Page::new(home, self.pages.len()));
        }
        self.fresh += 1;
        at
    }
}

impl<K> Page<K> {
    fn new(home: Arc<dyn Home>, page: usize) -> Self {
        let page = u32::try_from(page).expect("fewer than 2^27 pages fit the memory of a machine");
        let chunk = Arc::new(Chunk { home, page, slots: std::array::from_fn(|_| Slot::new()) });
        let keys = std::iter::repeat_with(|| None).take(CHUNK_SLOTS).collect();
        Self { chunk, keys, has_retired: false }
    }
}

/// What an exit leaves to be done outside the lock.
struct Estate<K> {
    key: Option<K>,
    pages: Vec<Page<K>>,
    /// Few children have any.
    watchers: Option<Watchers>,
    task: Option<Waker>,
    emptied: bool,
}

/// Who wants to know of a child's stop, and of its end.
struct Watchers {
    stop: Vec<Waker>,
    exit: Vec<Arc<ExitWatch>>,
}

impl Watchers {
    #[cold]
    fn tell(self, exit: Exit) {
        for waker in self.stop {
            waker.wake();
        }
        for watch in self.exit {
            watch.tell(exit);
        }
    }
}

impl<K: Eq + Hash> Books<K> {
    fn remove<S: BuildHasher>(&mut self, chunk: &Chunk, tag: Tag, exit: Exit, hasher: &S) -> Estate<K> {
        let at = join(chunk, tag.place());
        self.live -= 1;
        self.exits[exit] += 1;
        let watchers = self.take_watchers(at);
        // After `close` the books know no pages; the chunk lives on in its children alone.
        let listed = (self.pages.get(chunk.page as usize)).is_some_and(|page| std::ptr::eq(&*page.chunk, chunk));
        let slot = &chunk.slots[tag.place()];
        let Vacated { reusable, keyed, waker: task } = slot.vacate();
        // A child without a key leaves the keys untouched: at its end that line is long out of the cache.
        let key = if listed && keyed { self.forget(at, hasher) } else { None };
        if listed && reusable {
            slot.link_free(self.free);
            self.free = at;
        } else if listed {
            self.pages[chunk.page as usize].has_retired = true;
        }
        let pages = if self.live == 0 { self.shrink() } else { Vec::new() };
        Estate { key, pages, watchers, task, emptied: self.live == 0 && self.mode != Mode::Open }
    }

    fn forget<S: BuildHasher>(&mut self, at: u32, hasher: &S) -> Option<K> {
        let (page, place) = split(at);
        let key = self.pages[page].keys[place].take()?;
        if let Ok(entry) = self.names.find_entry(hasher.hash_one(&key), |&other| other == at) {
            entry.remove();
        }
        Some(key)
    }

    /// Nobody is left: keep one page for the next child and hand out the rest to be freed.
    fn shrink(&mut self) -> Vec<Page<K>> {
        let has_retired = self.pages.first().is_some_and(|page| page.has_retired);
        if self.pages.len() <= 1 && !has_retired {
            return Vec::new();
        }
        self.free = NO_SLOT;
        self.fresh = 0;
        self.names = HashTable::new();
        if has_retired {
            // A slot that has used up its generations may not be handed out again, so this page goes as well.
            return std::mem::take(&mut self.pages);
        }
        let first = self.pages.swap_remove(0);
        std::mem::replace(&mut self.pages, vec![first])
    }
}

impl<K, S> Home for Shard<K, S>
where
    K: Eq + Hash + Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn hub(&self) -> &Hub {
        &self.hub
    }

    fn exit(&self, chunk: &Chunk, tag: Tag, exit: Exit) {
        let estate = lock(&self.books).remove(chunk, tag, exit, &self.hasher);
        if let Some(watchers) = estate.watchers {
            watchers.tell(exit);
        }
        if let Some(limit) = &self.hub.limit {
            limit.give_back();
        }
        if estate.emptied {
            self.hub.shard_emptied();
        }
        drop((estate.key, estate.pages, estate.task));
    }

    fn again(&self, exit: Exit) {
        let mut books = lock(&self.books);
        books.exits[exit] += 1;
        books.started += 1;
        books.restarts += 1;
    }

    fn replaced(&self) {
        lock(&self.books).restarts += 1;
    }

    fn watch(&self, chunk: &Chunk, tag: Tag, id: u32, waker: &Waker) -> Option<u32> {
        let mut books = lock(&self.books);
        if !chunk.slots[tag.place()].watch(tag) {
            return None;
        }
        let id = if id == 0 { books.new_watch() } else { id };
        books.stop_watchers.insert((join(chunk, tag.place()), id), waker.clone());
        Some(id)
    }

    fn unwatch(&self, chunk: &Chunk, tag: Tag, id: u32) {
        let waker = lock(&self.books).stop_watchers.remove(&(join(chunk, tag.place()), id));
        drop(waker);
    }

    fn wake_watchers(&self, chunk: &Chunk, place: usize) {
        let woken = lock(&self.books).take_stop_watchers(join(chunk, place));
        for waker in woken {
            waker.wake();
        }
    }

    fn await_exit(&self, chunk: &Chunk, tag: Tag, watch: &Arc<ExitWatch>) -> bool {
        let mut books = lock(&self.books);
        if chunk.slots[tag.place()].standing(tag) == Standing::Gone {
            return false;
        }
        let waiting = books.exit_watchers.entry(join(chunk, tag.place())).or_default();
        waiting.retain(|other| Arc::strong_count(other) > 1);
        waiting.push(Arc::clone(watch));
        true
    }
}

impl<K> Books<K> {
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

fn join(chunk: &Chunk, place: usize) -> u32 {
    chunk.page * CHUNK_SLOTS as u32 + place as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::hash::RandomState;

    use super::*;
    use crate::child::Seat;

    #[test]
    fn sv_06_a_slot_that_has_retired_is_not_handed_out_again() {
        let hub = Arc::new(Hub::new("root".into(), None));
        let shard = Arc::new(Shard::new(hub, RandomState::new(), Duration::ZERO));
        let live_and_end = || {
            let birth = Birth { key: Some(1), number: 0, spawned_at: Location::caller() };
            let member = shard.admit(birth).ok().expect("open");
            let chunk = Arc::clone(&lock(&shard.books).pages[0].chunk);
            drop(Seat::new::<u32>(member, None));
            chunk
        };
        let chunk = live_and_end();
        assert!(Arc::ptr_eq(&chunk, &live_and_end()), "an empty shard keeps a page");
        chunk.slots[0].age();
        assert!(Arc::ptr_eq(&chunk, &live_and_end()), "its last use");
        assert!(!Arc::ptr_eq(&chunk, &live_and_end()));
    }
}

#[cfg(all(test, loom))]
mod interleavings {
    use std::hash::RandomState;
    use std::task::{Context, Poll, Wake};

    use super::*;

    type OneShard = Shard<u32, RandomState>;

    fn shard() -> Arc<OneShard> {
        let hub = Arc::new(Hub::new("root".into(), None));
        Arc::new(Shard::new(hub, RandomState::new(), Duration::ZERO))
    }

    fn birth() -> Birth<u32> {
        Birth { key: Some(1), number: 0, spawned_at: Location::caller() }
    }

    fn stop(shard: &OneShard) {
        shard.advance(Mode::Stopping);
        let mut chunks = Vec::new();
        shard.chunks(0, usize::MAX, &mut chunks);
        for chunk in &chunks {
            sweep(chunk, Signal::Stop);
        }
    }

    #[test]
    fn sv_11_a_spawn_that_races_a_stop_is_refused_or_told() {
        loom::model(|| {
            let shard = shard();
            let stopper = {
                let shard = Arc::clone(&shard);
                loom::thread::spawn(move || stop(&shard))
            };
            let admitted = shard.admit(birth());
            stopper.join().unwrap();
            match admitted {
                Ok(member) => assert!(member.ctx().is_stopping(), "told"),
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

    #[test]
    fn sv_43_whoever_waits_for_the_last_exit_sees_it_or_is_woken() {
        loom::model(|| {
            let shard = shard();
            let member = shard.admit(birth()).ok().expect("open");
            shard.advance(Mode::Stopping);
            let leaver = loom::thread::spawn(move || drop(crate::child::Seat::new::<u32>(member, None)));
            let woken = Arc::new(Woken(false.into()));
            shard.hub.wait(&Arc::clone(&woken).into());
            let seen = shard.live() == 0;
            leaver.join().unwrap();
            assert!(seen || woken.0.load(std::sync::atomic::Ordering::SeqCst));
            shard.close();
        });
    }

    #[test]
    fn sv_43_whoever_awaits_a_child_learns_of_its_end() {
        loom::model(|| {
            let shard = shard();
            let member = shard.admit(birth()).ok().expect("open");
            let child = member.handle();
            let leaver = loom::thread::spawn(move || drop(crate::child::Seat::new::<u32>(member, None)));
            let mut ended = child.ended();
            leaver.join().unwrap();
            let mut cx = Context::from_waker(Waker::noop());
            let polled = std::pin::Pin::new(&mut ended).poll(&mut cx);
            assert!(matches!(polled, Poll::Ready(None | Some(Exit::Dropped))), "{polled:?}");
            shard.close();
        });
    }
}
