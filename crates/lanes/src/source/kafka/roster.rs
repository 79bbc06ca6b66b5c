//! Which partition is which lane.

use std::collections::HashMap;
use std::sync::Arc;

use crate::record::Lane;
use crate::sync::{Mutex, lock};

/// A partition of a topic.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Partition {
    /// The topic.
    pub topic: Arc<str>,
    /// The number of the partition within it.
    pub number: i32,
}

/// Lanes by their partitions, and back. A partition keeps its lane for as long as the source lives, whether it is ours or
/// not. Clones share what they know.
#[derive(Clone, Debug, Default)]
pub struct Roster {
    // Locked when lanes come and for names: never for records.
    book: Arc<Mutex<Book>>,
}

#[derive(Debug, Default)]
struct Book {
    partitions: Vec<Partition>,
    lanes: HashMap<Partition, Lane>,
}

impl Roster {
    /// The partition of a lane; `None` for one that never was ours.
    #[must_use]
    pub fn partition(&self, lane: Lane) -> Option<Partition> {
        lock(&self.book).partitions.get(lane.0 as usize).cloned()
    }

    /// The lane of a partition, if it ever was ours.
    #[must_use]
    pub fn lane(&self, topic: &str, number: i32) -> Option<Lane> {
        lock(&self.book).lanes.get(&Partition { topic: topic.into(), number }).copied()
    }

    /// The lane of a partition, which is numbered now if it is new.
    pub(super) fn enter(&self, topic: &str, number: i32) -> Lane {
        let mut book = lock(&self.book);
        let partition = Partition { topic: topic.into(), number };
        let next = Lane(u32::try_from(book.partitions.len()).expect("fewer than four milliards of partitions"));
        let lane = *book.lanes.entry(partition.clone()).or_insert(next);
        if lane == next {
            book.partitions.push(partition);
        }
        lane
    }

    /// For people: `orders/3`.
    pub(super) fn name(&self, lane: Lane) -> String {
        self.partition(lane).map_or_else(|| lane.to_string(), |at| format!("{}/{}", at.topic, at.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_keeps_its_lane() {
        let roster = Roster::default();
        let lanes: Vec<u32> =
            [("a", 0), ("a", 1), ("b", 0), ("a", 1)].map(|(topic, n)| roster.enter(topic, n).0).into();
        assert_eq!(lanes, [0, 1, 2, 1]);
        assert_eq!(roster.name(Lane(2)), "b/0");
        assert_eq!(roster.lane("b", 1), None);
    }
}
