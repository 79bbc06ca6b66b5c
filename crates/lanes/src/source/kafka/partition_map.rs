//! Maps partitions to lanes.

use std::collections::HashMap;
use std::sync::Arc;

use crate::record::Lane;
use crate::sync::{Mutex, lock};

/// A partition of a topic.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Partition {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition number.
    pub number: i32,
}

/// Maps partitions to lanes and back. A partition keeps its lane for the life of the source, assigned or not. Clones
/// share the map.
#[derive(Clone, Debug, Default)]
pub struct PartitionMap {
    // Locked on assignment and for names, not per record.
    tables: Arc<Mutex<PartitionTables>>,
}

#[derive(Debug, Default)]
struct PartitionTables {
    partitions: Vec<Partition>,
    lanes: HashMap<Partition, Lane>,
}

impl PartitionMap {
    /// The partition of a lane; `None` if it was never assigned.
    #[must_use]
    pub fn partition(&self, lane: Lane) -> Option<Partition> {
        lock(&self.tables).partitions.get(lane.0 as usize).cloned()
    }

    /// The lane of a partition; `None` if it was never assigned.
    #[must_use]
    pub fn lane(&self, topic: &str, number: i32) -> Option<Lane> {
        lock(&self.tables).lanes.get(&Partition { topic: topic.into(), number }).copied()
    }

    /// The lane of a partition; a new partition gets the next number.
    pub(super) fn get_or_insert(&self, topic: &str, number: i32) -> Lane {
        let mut tables = lock(&self.tables);
        let partition = Partition { topic: topic.into(), number };
        let next = Lane(u32::try_from(tables.partitions.len()).expect("fewer than 2^32 partitions"));
        let lane = *tables.lanes.entry(partition.clone()).or_insert(next);
        if lane == next {
            tables.partitions.push(partition);
        }
        lane
    }

    /// The display name, such as `orders/3`.
    pub(super) fn name(&self, lane: Lane) -> String {
        self.partition(lane).map_or_else(|| lane.to_string(), |at| format!("{}/{}", at.topic, at.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_keeps_its_lane() {
        let partition_map = PartitionMap::default();
        let lanes: Vec<u32> =
            [("a", 0), ("a", 1), ("b", 0), ("a", 1)].map(|(topic, n)| partition_map.get_or_insert(topic, n).0).into();
        assert_eq!(lanes, [0, 1, 2, 1]);
        assert_eq!(partition_map.name(Lane(2)), "b/0");
        assert_eq!(partition_map.lane("b", 1), None);
    }
}
