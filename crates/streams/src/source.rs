//! Sources of streams: a file, standard input, or Kafka topics; and their lag.

#[cfg(feature = "kafka")]
pub(super) mod kafka;

use std::path::Path;
use std::sync::Arc;

use tidegate_lanes::{
    LaneStatus,
    source::{NdjsonFormat, NdjsonSource},
};

use super::error::StreamError;
use super::lane_names::LaneNames;
use tidegate_config::stream::{OrderingKey, StreamKeys, StreamSource};

/// An open source, with the names of its lanes.
pub(super) enum OpenSource {
    /// Newline-delimited JSON.
    Ndjson(NdjsonSource, LaneNames),
    /// Kafka topics.
    #[cfg(feature = "kafka")]
    Topics(Box<kafka::KeyedKafka>, LaneNames),
}

/// Opens the configured source.
pub(super) fn open(keys: &StreamKeys) -> Result<OpenSource, StreamError> {
    let failed = |error| StreamError::Source(Box::new(error));
    match &keys.from {
        StreamSource::Unset => unreachable!("a checked stream has a source"),
        StreamSource::Stdin => {
            let places = LaneNames::File { name: "standard input".into(), path: None };
            NdjsonSource::stdin(format(keys)).map(|open_file| OpenSource::Ndjson(open_file, places)).map_err(failed)
        }
        StreamSource::File(path) => {
            let name = path.display().to_string().into();
            let places = LaneNames::File { name, path: Some(Arc::new(path.clone())) };
            open_file(path, keys).map(|open_file| OpenSource::Ndjson(open_file, places)).map_err(failed)
        }
        #[cfg(feature = "kafka")]
        StreamSource::Kafka(topics) => kafka::open(topics, keys),
        #[cfg(not(feature = "kafka"))]
        StreamSource::Kafka(_) => Err(StreamError::NoKafka),
    }
}

fn open_file(path: &Path, keys: &StreamKeys) -> Result<NdjsonSource, tidegate_lanes::source::NdjsonError> {
    let has_checkpoint = !keys.checkpoint.as_os_str().is_empty();
    let format = NdjsonFormat { follow: keys.follow, ..format(keys) };
    if has_checkpoint { NdjsonSource::resume(path, &keys.checkpoint, format) } else { NdjsonSource::open(path, format) }
}

fn format(keys: &StreamKeys) -> NdjsonFormat {
    let key = match &keys.key {
        OrderingKey::Record => None,
        OrderingKey::Pointer(pointer) => Some(pointer.clone()),
    };
    let read_ahead_bytes_max =
        NdjsonFormat::default().read_ahead_bytes_max.min(usize::try_from(keys.bytes_max / 4).unwrap_or(usize::MAX));
    NdjsonFormat { key_pointer: key, read_ahead_bytes_max, ..NdjsonFormat::default() }
}

/// How to measure the lag of a source.
pub(super) enum LagMeter {
    /// Unknown.
    Unknown,
    /// Bytes of a file. The second value is the position of the checkpoint.
    File(Arc<std::path::PathBuf>, u64),
    /// Records of topics.
    #[cfg(feature = "kafka")]
    Kafka(kafka::Watermarks),
}

impl LagMeter {
    /// The lag of a file, from its checkpoint.
    pub(super) fn of_file(path: &Arc<std::path::PathBuf>, keys: &StreamKeys) -> Self {
        let checkpoint = std::fs::read_to_string(&keys.checkpoint).unwrap_or_default();
        Self::File(Arc::clone(path), checkpoint.trim().parse().unwrap_or(0))
    }

    /// Measures the lag. May block.
    pub(super) fn measure(&self, lanes: &[LaneStatus]) -> Option<u64> {
        match self {
            Self::Unknown => None,
            Self::File(path, before) => {
                let done = lanes.first().and_then(|lane| lane.done_through).map_or(*before, |position| position.0);
                std::fs::metadata(path.as_path()).ok().map(|file| file.len().saturating_sub(done))
            }
            #[cfg(feature = "kafka")]
            Self::Kafka(watermarks) => watermarks.lag(lanes),
        }
    }
}
