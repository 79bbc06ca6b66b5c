//! The keys that have records, by name and in turn.
//!
//! A key is here only while it has records, or a timer that speaks of it. What its name is stands in its records, so it
//! is stored nowhere else.

use hashbrown::HashTable;

use crate::slab::{NONE, Slab};

/// What a key waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Records. It is here only because of a timer.
    Idle,
    /// Its turn.
    Ready,
    /// Its record that runs.
    Running,
    /// The end of a back-off.
    Waiting,
    /// The end of its quota's window.
    Throttled,
    /// Somebody who unparks it.
    Parked,
}

#[derive(Debug)]
pub(super) struct Key {
    hash: u64,
    /// Its waiting records, linked in order.
    pub(super) head: u32,
    pub(super) tail: u32,
    pub(super) len: u32,
    /// The key whose turn is next.
    next_ready: u32,
    /// Its record that runs.
    pub(super) flight: u32,
    /// Starts in the present window of its quota.
    pub(super) started: u16,
    pub(super) state: State,
    /// Timers that speak of it, in the low bits; whether it can be found by name, in the highest.
    timers: u8,
}

const NAMED: u8 = 1 << 7;

#[derive(Debug)]
pub(super) struct Keys {
    slab: Slab<Key>,
    table: HashTable<u32>,
    ready_head: u32,
    ready_tail: u32,
    ready: usize,
}

impl Keys {
    pub(super) fn new() -> Self {
        Self { slab: Slab::new(), table: HashTable::new(), ready_head: NONE, ready_tail: NONE, ready: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    pub(super) fn places(&self) -> Vec<u32> {
        self.slab.places()
    }

    pub(super) fn get(&mut self, key: u32) -> &mut Key {
        &mut self.slab[key]
    }

    pub(super) fn find(&self, hash: u64, is_same: impl Fn(u32, &Key) -> bool) -> Option<u32> {
        let found = self.table.find(hash, |place| {
            let key = &self.slab[*place];
            key.hash == hash && is_same(*place, key)
        });
        found.copied()
    }

    /// A key that can be found by name.
    pub(super) fn insert_named(&mut self, hash: u64) -> u32 {
        let place = self.insert(hash, NAMED);
        let slab = &self.slab;
        self.table.insert_unique(hash, place, |place| slab[*place].hash);
        place
    }

    /// A key of its own for a record without one.
    pub(super) fn insert_nameless(&mut self) -> u32 {
        self.insert(0, 0)
    }

    fn insert(&mut self, hash: u64, timers: u8) -> u32 {
        let (head, tail, flight, next_ready) = (NONE, NONE, NONE, NONE);
        self.slab.insert(Key { hash, head, tail, len: 0, next_ready, flight, started: 0, state: State::Idle, timers })
    }

    /// Makes the key one that cannot be found by name.
    pub(super) fn unname(&mut self, place: u32) {
        let key = &mut self.slab[place];
        if key.timers & NAMED == 0 {
            return;
        }
        key.timers &= !NAMED;
        let hash = key.hash;
        if let Ok(entry) = self.table.find_entry(hash, |other| *other == place) {
            entry.remove();
        }
        if self.table.is_empty() && self.table.capacity() > 4096 {
            self.table = HashTable::new();
        }
    }

    pub(super) fn add_timer(&mut self, place: u32) {
        self.slab[place].timers += 1;
    }

    pub(super) fn end_timer(&mut self, place: u32) {
        self.slab[place].timers -= 1;
    }

    pub(super) fn is_named(&self, place: u32) -> bool {
        self.slab[place].timers & NAMED != 0
    }

    /// Puts the key at the end of those whose turn comes.
    pub(super) fn make_ready(&mut self, place: u32) {
        let key = &mut self.slab[place];
        debug_assert!(key.state != State::Ready, "a key has one turn at a time");
        key.state = State::Ready;
        key.next_ready = NONE;
        match self.ready_tail {
            NONE => self.ready_head = place,
            tail => self.slab[tail].next_ready = place,
        }
        self.ready_tail = place;
        self.ready += 1;
    }

    /// The key whose turn it is. Its state is still `Ready`; the caller gives it another.
    pub(super) fn take_ready(&mut self) -> Option<u32> {
        let place = self.ready_head;
        if place == NONE {
            return None;
        }
        self.ready_head = self.slab[place].next_ready;
        if self.ready_head == NONE {
            self.ready_tail = NONE;
        }
        self.ready -= 1;
        Some(place)
    }

    /// Lets an idle key go, unless a timer still speaks of it. `true` if it stays.
    pub(super) fn rest(&mut self, place: u32) -> bool {
        let key = &mut self.slab[place];
        debug_assert!(key.len == 0, "an idle key has no records");
        key.state = State::Idle;
        let stays = key.timers & !NAMED != 0;
        if !stays {
            self.unname(place);
            self.slab.remove(place);
        }
        stays
    }
}
