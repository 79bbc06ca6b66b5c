//! Sources of streams: a file, standard input, Kafka topics, or changes of Postgres; and their lag.

#[cfg(feature = "kafka")]
pub(super) mod kafka;
pub(super) mod postgres;
pub(super) mod redrive;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tidegate_lanes::{
    LaneStatus, Record,
    source::{FileProgress, NdjsonFormat, NdjsonSource},
};

use super::capture::CaptureHandle;
use super::error::StreamError;
use super::lane_names::LaneNames;
use super::plan::StreamPlan;
use super::status::StreamStatus;
use tidegate_config::stream::{OrderingKey, StreamKeys, StreamSource};

/// An open source, with the names of its lanes.
pub(super) enum OpenSource {
    /// Newline-delimited JSON.
    Ndjson(NdjsonSource, LaneNames),
    /// Dead letters of a file.
    DeadLetters(Box<redrive::RedriveSource>, LaneNames),
    /// Kafka topics.
    #[cfg(feature = "kafka")]
    Topics(Box<kafka::KeyedKafka>, LaneNames),
    /// Changes of Postgres.
    Changes(Box<postgres::OpenChanges>),
    /// Tables of Postgres, before the changes.
    Copy(Box<postgres::OpenCopy>),
    /// The source has ended: all records are delivered.
    Ended,
    /// A stop was requested meanwhile.
    Stopped,
}

/// Opens the configured source.
pub(super) async fn open(
    plan: &StreamPlan,
    status: &Arc<StreamStatus>,
    generation: u64,
    recovery: postgres::GapRecovery,
) -> Result<OpenSource, StreamError> {
    let keys = &plan.stream.keys;
    let failed = |error| StreamError::Source(Box::new(error));
    match &keys.from {
        StreamSource::Unset => unreachable!("a checked stream has a source"),
        StreamSource::Stdin => {
            let places = LaneNames::File { name: "standard input".into(), progress: None };
            NdjsonSource::stdin(format(keys)).map(|lines| of_lines(lines, places, keys)).map_err(failed)
        }
        StreamSource::File(path) => {
            let name = path.display().to_string().into();
            let lines = open_file(path, keys).map_err(failed)?;
            let places = LaneNames::File { name, progress: lines.progress() };
            Ok(of_lines(lines, places, keys))
        }
        #[cfg(feature = "kafka")]
        StreamSource::Kafka(topics) => kafka::open(topics, keys),
        #[cfg(not(feature = "kafka"))]
        StreamSource::Kafka(_) => Err(StreamError::NoKafka),
        StreamSource::Postgres(origin) => tokio::select! {
            opened = postgres::open(origin, plan, status, recovery) => opened.map(|opened| match opened {
                postgres::OpenedOrigin::Changes(changes) => OpenSource::Changes(changes),
                postgres::OpenedOrigin::Copy(copy) => OpenSource::Copy(copy),
                postgres::OpenedOrigin::Ended => OpenSource::Ended,
            }),
            () = status.stop_requested(generation) => Ok(OpenSource::Stopped),
        },
    }
}

/// The interval of commits. A commit of a slot costs nothing, and ends a barrier.
pub(super) fn commit_every(keys: &StreamKeys) -> Duration {
    const OF_SLOT: Duration = Duration::from_millis(5);
    if matches!(keys.from, StreamSource::Postgres(_)) { keys.commit_every.min(OF_SLOT) } else { keys.commit_every }
}

fn open_file(path: &Path, keys: &StreamKeys) -> Result<NdjsonSource, tidegate_lanes::source::NdjsonError> {
    let has_checkpoint = !keys.checkpoint.as_os_str().is_empty();
    let format = NdjsonFormat { follow: keys.follow, ..format(keys) };
    if has_checkpoint { NdjsonSource::resume(path, &keys.checkpoint, format) } else { NdjsonSource::open(path, format) }
}

fn of_lines(lines: NdjsonSource, lanes: LaneNames, keys: &StreamKeys) -> OpenSource {
    if keys.redrive {
        return OpenSource::DeadLetters(Box::new(redrive::RedriveSource::new(lines, keys.key.clone())), lanes);
    }
    OpenSource::Ndjson(lines, lanes)
}

/// The record, ordered by the value at a pointer.
fn with_key(pointer: &str, record: Record) -> Record {
    if record.decode_error().is_some() {
        return record;
    }
    let Some(payload) = record.payload() else { return record };
    match serde_json::from_slice::<Value>(payload) {
        Err(error) => record.undecodable(&format!("not JSON: {error}")),
        Ok(value) => {
            let key = match value.pointer(pointer) {
                None | Some(Value::Null) => None,
                Some(Value::String(key)) => Some(key.clone()),
                Some(other) => Some(other.to_string()),
            };
            record.with_ordering_key(key.as_deref().map(str::as_bytes))
        }
    }
}

fn format(keys: &StreamKeys) -> NdjsonFormat {
    let key = match &keys.key {
        OrderingKey::Pointer(pointer) if !keys.redrive => Some(pointer.clone()),
        _ => None,
    };
    let read_ahead_bytes_max =
        NdjsonFormat::default().read_ahead_bytes_max.min(usize::try_from(keys.bytes_max / 4).unwrap_or(usize::MAX));
    NdjsonFormat { key_pointer: key, read_ahead_bytes_max, ..NdjsonFormat::default() }
}

/// How to measure the lag of a source.
pub(super) enum LagMeter {
    /// Unknown.
    Unknown,
    /// Bytes of a file.
    File(FileProgress),
    /// Bytes of WAL that the sink has not everything of.
    Changes(CaptureHandle),
    /// Records of topics.
    #[cfg(feature = "kafka")]
    Kafka(kafka::Watermarks),
}

impl LagMeter {
    /// Measures the lag. May block.
    pub(super) fn measure(&self, lanes: &[LaneStatus]) -> Option<u64> {
        match self {
            Self::Unknown => None,
            Self::File(progress) => progress.bytes_behind(lanes.first().and_then(|lane| lane.done_through)),
            Self::Changes(capture) => capture.lag_bytes(),
            #[cfg(feature = "kafka")]
            Self::Kafka(watermarks) => watermarks.lag(lanes),
        }
    }
}
