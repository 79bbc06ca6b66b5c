//! Names of lanes for users: topic and partition, slot, or file.

use std::sync::Arc;

use tidegate_lanes::{Lane, source::FileProgress};

use super::capture::CaptureHandle;

/// Maps lanes to names.
#[derive(Clone)]
pub(super) enum LaneNames {
    /// All records come from one file or from standard input.
    File {
        /// Name for users.
        name: Arc<str>,
        /// How far it was read; `None` for standard input and pipes.
        progress: Option<FileProgress>,
    },
    /// The one lane is a replication slot.
    Changes {
        /// Name of the stream.
        stream: Arc<str>,
        /// The slot, and the database and cluster that it belongs to.
        slot: Arc<str>,
        /// The state of the change capture.
        capture: CaptureHandle,
    },
    /// Lanes are partitions.
    #[cfg(feature = "kafka")]
    Kafka(tidegate_lanes::source::kafka::PartitionMap),
}

impl LaneNames {
    /// The state of the change capture, if the source is one.
    pub(super) fn capture(&self) -> Option<&CaptureHandle> {
        match self {
            Self::Changes { capture, .. } => Some(capture),
            _ => None,
        }
    }

    /// Topic and partition of a lane, or the file.
    pub(super) fn of(&self, lane: Lane) -> (Arc<str>, Option<i32>) {
        match self {
            Self::File { name, .. } => {
                let _ = lane;
                (Arc::clone(name), None)
            }
            Self::Changes { stream, .. } => (Arc::clone(stream), None),
            #[cfg(feature = "kafka")]
            Self::Kafka(partition_map) => match partition_map.partition(lane) {
                Some(partition) => (partition.topic, Some(partition.number)),
                None => ("".into(), None),
            },
        }
    }
}
