//! Checks the guarantees across members: at least once, in order and without overlap per key, and no commit past an
//! unfinished record.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use tidegate_lanes::Record;
use tidegate_lanes::source::kafka::PartitionMap;

/// The number of a group member.
pub(crate) type MemberNumber = usize;

#[derive(Default)]
pub(crate) struct Audit {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of the last started record per member, key and epoch.
    last: HashMap<(MemberNumber, String, u32), u64>,
    running: HashSet<(MemberNumber, String, u32)>,
    /// Record numbers, and how often each was finished.
    done: BTreeMap<u64, u32>,
    /// First deliveries, in order.
    firsts: HashMap<String, u64>,
    /// Finished offsets per partition.
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

    /// A handler starts with a record.
    pub(crate) fn begin(&self, member: MemberNumber, record: &Record) {
        let (key, number) = identity(record);
        let mut state = self.lock();
        // Within one assignment, records of a key run one at a time and in order, except for retries.
        let slot = (member, key.clone(), record.epoch().0);
        if !state.running.insert(slot.clone()) {
            state.violations.push(format!("{number} of {key} overlaps another record"));
        }
        let last = state.last.insert(slot, number);
        if last.is_some_and(|last| last > number) {
            state.violations.push(format!("{number} of {key} after {last:?}"));
        }
        // First deliveries of a key are in order across all members.
        if !state.done.contains_key(&number) {
            let first = state.firsts.insert(key.clone(), number);
            if first.is_some_and(|first| first > number) {
                state.violations.push(format!("{number} of {key} for the first time after {first:?}"));
            }
        }
    }

    /// The handler has ended, and the record is finished or not.
    pub(crate) fn end(&self, member: MemberNumber, record: &Record, partition_map: &PartitionMap, is_done: bool) {
        let (key, number) = identity(record);
        let mut state = self.lock();
        state.running.remove(&(member, key, record.epoch().0));
        if is_done {
            *state.done.entry(number).or_default() += 1;
            let at = partition_map.partition(record.lane()).unwrap();
            state.offsets.entry((at.topic.to_string(), at.number)).or_default().insert(record.position().0);
        }
    }

    /// The number of records finished at least once.
    pub(crate) fn count(&self) -> u64 {
        self.lock().done.len() as u64
    }

    /// The number of repeated completions.
    pub(crate) fn duplicates(&self) -> u64 {
        self.lock().done.values().map(|times| u64::from(times - 1)).sum()
    }

    pub(crate) fn offsets_done(&self, topic: &str, partition: i32) -> HashSet<u64> {
        self.lock().offsets.get(&(topic.to_owned(), partition)).cloned().unwrap_or_default()
    }

    /// Asserts that all of `numbers` were finished without violations.
    pub(crate) fn assert_all(&self, numbers: std::ops::Range<u64>) {
        let state = self.lock();
        let missing: Vec<u64> = numbers.filter(|number| !state.done.contains_key(number)).take(10).collect();
        assert!(missing.is_empty(), "lost: {missing:?} ...");
        assert!(state.violations.is_empty(), "{:?}", state.violations.iter().take(5).collect::<Vec<_>>());
    }

    /// Asserts that every partition was committed up to a finished prefix.
    pub(crate) fn assert_committed(&self, topic: &str, committed: &[Option<i64>]) {
        for (partition, committed) in committed.iter().enumerate() {
            let done = self.offsets_done(topic, i32::try_from(partition).unwrap());
            let open = (0..committed.unwrap_or(0) as u64).find(|offset| !done.contains(offset));
            assert_eq!(open, None, "committed {committed:?} of partition {partition} past an unfinished record");
        }
    }
}

/// The key, and the number in the payload.
fn identity(record: &Record) -> (String, u64) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let key = record.key().map_or_else(String::new, text);
    (key, record.payload().map(text).unwrap_or_default().parse().unwrap_or(record.position().0))
}
