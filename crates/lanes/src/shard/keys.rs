//! The table of keys and the list of ready keys.
//!
//! A key is in the table only while it has records or a pending timer. Its name is stored only in its records.

use hashbrown::HashTable;

use crate::slab::{NONE, Slab};

/// The wait state of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyState {
    /// Waits for records; a timer keeps it in the table.
    Idle,
    /// Waits for its turn.
    Ready,
    /// Waits for its running record.
    Running,
    /// Waits for the end of a back-off.
    Waiting,
    /// Waits for the end of its quota window.
    Throttled,
    /// Waits for `unpark`.
    Parked,
}

#[derive(Debug)]
pub(super) struct KeyEntry {
    hash: u64,
    /// The queued records of the key, linked in order.
    pub(super) head: u32,
    pub(super) tail: u32,
    pub(super) len: u32,
    /// The next key in the list of ready keys.
    next_ready: u32,
    /// The first of its records that are running.
    pub(super) running: u32,
    /// How many of its first records a failed batch keeps together; 0 if none.
    pub(super) retry_len: u32,
    /// The number of that batch, which the other keys of the batch have, too.
    pub(super) retry_batch: u32,
    /// Starts in the current quota window.
    pub(super) started: u16,
    pub(super) state: KeyState,
    /// The number of pending timers in the low bits; the highest bit marks a key that is in the hash table.
    timers: u8,
}

const NAMED: u8 = 1 << 7;
/// Ready keys that are looked at for one batch: keys of other lanes may be between those of its own.
const READY_SCAN_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct KeyTable {
    slab: Slab<KeyEntry>,
    table: HashTable<u32>,
    ready_head: u32,
    ready_tail: u32,
    ready: usize,
}

impl KeyTable {
    pub(super) fn new() -> Self {
        Self { slab: Slab::new(), table: HashTable::new(), ready_head: NONE, ready_tail: NONE, ready: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    pub(super) fn slots(&self) -> Vec<u32> {
        self.slab.slots()
    }

    pub(super) fn get(&mut self, key: u32) -> &mut KeyEntry {
        &mut self.slab[key]
    }

    pub(super) fn find(&self, hash: u64, is_same: impl Fn(u32, &KeyEntry) -> bool) -> Option<u32> {
        let found = self.table.find(hash, |slot| {
            let key = &self.slab[*slot];
            key.hash == hash && is_same(*slot, key)
        });
        found.copied()
    }

    /// Inserts a key that can be found by name.
    pub(super) fn insert_named(&mut self, hash: u64) -> u32 {
        let slot = self.insert(hash, NAMED);
        let slab = &self.slab;
        self.table.insert_unique(hash, slot, |slot| slab[*slot].hash);
        slot
    }

    /// Inserts a key for one keyless record.
    pub(super) fn insert_anonymous(&mut self) -> u32 {
        self.insert(0, 0)
    }

    fn insert(&mut self, hash: u64, timers: u8) -> u32 {
        let (head, tail, running, next_ready) = (NONE, NONE, NONE, NONE);
        self.slab.insert(KeyEntry {
            hash,
            head,
            tail,
            len: 0,
            next_ready,
            running,
            retry_len: 0,
            retry_batch: 0,
            started: 0,
            state: KeyState::Idle,
            timers,
        })
    }

    /// Removes the key from the hash table.
    pub(super) fn remove_name(&mut self, slot: u32) {
        let key = &mut self.slab[slot];
        if key.timers & NAMED == 0 {
            return;
        }
        key.timers &= !NAMED;
        let hash = key.hash;
        if let Ok(entry) = self.table.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        if self.table.is_empty() && self.table.capacity() > 4096 {
            self.table = HashTable::new();
        }
    }

    pub(super) fn add_timer(&mut self, slot: u32) {
        self.slab[slot].timers += 1;
    }

    pub(super) fn end_timer(&mut self, slot: u32) {
        self.slab[slot].timers -= 1;
    }

    pub(super) fn is_named(&self, slot: u32) -> bool {
        self.slab[slot].timers & NAMED != 0
    }

    /// Appends the key to the ready list.
    pub(super) fn make_ready(&mut self, slot: u32) {
        let key = &mut self.slab[slot];
        debug_assert!(key.state != KeyState::Ready, "key is already in the ready list");
        key.state = KeyState::Ready;
        key.next_ready = NONE;
        match self.ready_tail {
            NONE => self.ready_head = slot,
            tail => self.slab[tail].next_ready = slot,
        }
        self.ready_tail = slot;
        self.ready += 1;
    }

    /// Removes the first ready key. Its state is still `Ready`; the caller changes it.
    pub(super) fn take_ready(&mut self) -> Option<u32> {
        let slot = self.ready_head;
        if slot == NONE {
            return None;
        }
        self.ready_head = self.slab[slot].next_ready;
        if self.ready_head == NONE {
            self.ready_tail = NONE;
        }
        self.ready -= 1;
        Some(slot)
    }

    /// Removes the ready keys that are accepted. Their state is still `Ready`; the caller changes it.
    pub(super) fn take_ready_if(&mut self, mut accepts: impl FnMut(&KeyEntry) -> bool) -> Vec<u32> {
        let mut taken = Vec::new();
        let (mut before, mut slot) = (NONE, self.ready_head);
        for _ in 0..READY_SCAN_MAX {
            if slot == NONE {
                break;
            }
            let next = self.slab[slot].next_ready;
            if accepts(&self.slab[slot]) {
                match before {
                    NONE => self.ready_head = next,
                    before => self.slab[before].next_ready = next,
                }
                if next == NONE {
                    self.ready_tail = before;
                }
                self.ready -= 1;
                taken.push(slot);
            } else {
                before = slot;
            }
            slot = next;
        }
        taken
    }

    /// Frees an idle key unless a timer is pending. `true` if it stays.
    pub(super) fn set_idle(&mut self, slot: u32) -> bool {
        let key = &mut self.slab[slot];
        debug_assert!(key.len == 0, "idle key has records");
        key.state = KeyState::Idle;
        let stays = key.timers & !NAMED != 0;
        if !stays {
            self.remove_name(slot);
            self.slab.remove(slot);
        }
        stays
    }
}
