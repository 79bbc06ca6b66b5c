//! What lanes are called by those who named the source.

use std::path::PathBuf;
use std::sync::Arc;

use tidegate_lanes::Lane;

/// What stands behind a lane.
#[derive(Clone)]
pub(super) enum Places {
    /// All records come from one file, or from standard input.
    File {
        /// For people.
        name: Arc<str>,
        /// Where it lies, if it is a file.
        path: Option<Arc<PathBuf>>,
    },
    /// Lanes are partitions.
    #[cfg(feature = "kafka")]
    Kafka(tidegate_lanes::source::kafka::PartitionMap),
}

impl Places {
    /// The topic, or the file, and the partition.
    pub(super) fn of(&self, lane: Lane) -> (Arc<str>, Option<i32>) {
        match self {
            Self::File { name, .. } => {
                let _ = lane;
                (Arc::clone(name), None)
            }
            #[cfg(feature = "kafka")]
            Self::Kafka(partition_map) => match partition_map.partition(lane) {
                Some(partition) => (partition.topic, Some(partition.number)),
                None => ("".into(), None),
            },
        }
    }
}
