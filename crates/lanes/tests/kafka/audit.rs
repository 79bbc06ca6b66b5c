//! The guarantees, as a value that every handler tells what it does: at least once, in order and without overlap per key,
//! and nothing committed that is not done.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use tidegate_lanes::Record;
use tidegate_lanes::source::kafka::Roster;

/// Which member ran a record.
pub(crate) type MemberNumber = usize;

#[derive(Default)]
pub(crate) struct Audit {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Key by key: the number of the last record of each assignment that began.
    last: HashMap<(MemberNumber, String, u32), u64>,
    running: HashSet<(MemberNumber, String, u32)>,
    /// Numbers of records, and how often they were done.
    done: BTreeMap<u64, u32>,
    /// First deliveries, in order.
    firsts: HashMap<String, u64>,
    /// Offsets that are done, partition by partition.
    offsets: HashMap<(String, i32), HashSet<u64>>,
    violations: Vec<String>,
}

impl Audit {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// A handler begins with a record.
    pub(crate) fn begin(&self, member: MemberNumber, record: &Record) {
        let (key, number) = identity(record);
        let mut state = self.lock();
        // Within one assignment a key runs one at a time and in order, save for what is tried again.
        let slot = (member, key.clone(), record.epoch().0);
        if !state.running.insert(slot.clone()) {
            state.violations.push(format!("two at once of {key}, {number}"));
        }
        let last = state.last.insert(slot, number);
        if last.is_some_and(|last| last > number) {
            state.violations.push(format!("{number} of {key} after {last:?}"));
        }
        // The first delivery of every record of a key is in order over all members.
        if !state.done.contains_key(&number) {
            let first = state.firsts.insert(key.clone(), number);
            if first.is_some_and(|first| first > number) {
                state.violations.push(format!("{number} of {key} for the first time after {first:?}"));
            }
        }
    }

    /// The handler has ended; if the record is done, it counts.
    pub(crate) fn end(&self, member: MemberNumber, record: &Record, roster: &Roster, is_done: bool) {
        let (key, number) = identity(record);
        let mut state = self.lock();
        state.running.remove(&(member, key, record.epoch().0));
        if is_done {
            *state.done.entry(number).or_default() += 1;
            let at = roster.partition(record.lane()).unwrap();
            state.offsets.entry((at.topic.to_string(), at.number)).or_default().insert(record.position().0);
        }
    }

    /// How many records were done at least once.
    pub(crate) fn count(&self) -> u64 {
        self.lock().done.len() as u64
    }

    /// How often records were done that had been done before.
    pub(crate) fn duplicates(&self) -> u64 {
        self.lock().done.values().map(|times| u64::from(times - 1)).sum()
    }

    pub(crate) fn offsets_done(&self, topic: &str, partition: i32) -> HashSet<u64> {
        self.lock().offsets.get(&(topic.to_owned(), partition)).cloned().unwrap_or_default()
    }

    /// All of `numbers` were done, and nothing was violated.
    pub(crate) fn assert_all(&self, numbers: std::ops::Range<u64>) {
        let state = self.lock();
        let missing: Vec<u64> = numbers.filter(|number| !state.done.contains_key(number)).take(10).collect();
        assert!(missing.is_empty(), "lost: {missing:?} ...");
        assert!(state.violations.is_empty(), "{:?}", state.violations.iter().take(5).collect::<Vec<_>>());
    }

    /// What was committed is a prefix of what is done, partition by partition.
    pub(crate) fn assert_committed(&self, topic: &str, committed: &[Option<i64>]) {
        for (partition, committed) in committed.iter().enumerate() {
            let done = self.offsets_done(topic, i32::try_from(partition).unwrap());
            let open = (0..committed.unwrap_or(0) as u64).find(|offset| !done.contains(offset));
            assert_eq!(open, None, "committed {committed:?} of partition {partition}, but one before it is not done");
        }
    }
}

/// The key, and the number in the payload.
fn identity(record: &Record) -> (String, u64) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let key = record.key().map_or_else(String::new, text);
    (key, record.payload().map(text).unwrap_or_default().parse().unwrap_or(record.position().0))
}
