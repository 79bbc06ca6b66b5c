//! The configuration of a journal.

use std::{path::PathBuf, time::Duration};

use crate::{
    error::OpenError, frame, producer_record::Ack, segment, segment_format::SegmentFormat,
    timestamp::TimestampPrecision,
};

const CLASSES_MAX: usize = 64;
const STRIPES_MAX: usize = 64;
/// A file name has at most 255 bytes; the number, the stripe and the extensions of a segment take up to 50.
const NAME_BYTES_MAX: usize = 200;
const CHUNK_BYTES_MAX: usize = 256 << 10;
const CHUNK_BYTES_MIN: usize = 4 << 10;
/// A smaller stripe could not hold one chunk being filled and one being written.
const STRIPE_BYTES_MIN: usize = 64 << 10;

/// The configuration of a journal. [`JournalConfig::new`] gives the defaults.
#[derive(Clone, Debug)]
pub struct JournalConfig {
    /// The folder of the segments. It is created if it is missing, and belongs to one journal at a time.
    pub folder: PathBuf,
    /// The prefix of segment names: 1 to 200 lower-case letters, digits and underscores. Default `journal`.
    pub name: String,
    /// The format of records on the disk. Default framed.
    pub format: SegmentFormat,
    /// The number of staging buffers, writer threads and open segments. Default 1: all records are in one order. Raise it
    /// when one thread cannot write what all producers append; [`JournalReader`](crate::JournalReader) merges stripes by
    /// time.
    pub stripes: usize,
    /// The bound on memory over all producers and stripes, in bytes: records accepted and not yet written. Default 8 MiB.
    pub bytes_max: usize,
    /// The largest payload, in bytes. At most a quarter of `bytes_max` and 16 MiB. Default 1 MiB.
    pub record_bytes_max: usize,
    /// The precision of the timestamp of records that have none of their own. Default exact.
    pub timestamps: TimestampPrecision,
    /// How long an accepted record may stay in memory while the writer is idle. Default 20 ms.
    pub linger: Duration,
    /// The largest size of a segment, in bytes. Default 64 MiB.
    pub segment_bytes: u64,
    /// The largest age of a segment: a record that arrives when the first record of the segment is older goes to a new
    /// segment. Default unlimited.
    pub segment_age: Option<Duration>,
    /// The policy for ended segments. Default: all are retained.
    pub segment_policy: SegmentPolicy,
    /// The classes of records; [`Class::new(0)`](crate::Class::new) is the first. Default: one class that blocks for up
    /// to 10 s.
    pub classes: Vec<ClassConfig>,
}

/// The policy for ended segments.
#[derive(Clone, Debug)]
pub enum SegmentPolicy {
    /// Segments are created as needed, removed by retention limits, and compressed if configured.
    Rolling {
        /// When ended segments are removed.
        retention: Retention,
        /// Whether ended segments are compressed. A thread of low priority compresses them.
        compression: Compression,
    },
    /// A fixed number of files of `segment_bytes` each is preallocated and overwritten, the oldest first: the journal
    /// never uses more of the disk. Framed format only.
    ///
    /// Once all files are written, syncs are faster than in files that grow, on file systems that write in place, such as
    /// ext4: a sync writes neither the file length nor block allocations.
    Ring {
        /// The number of files per stripe, at least 2.
        segments: u32,
    },
    /// Segments are created as needed, and removed only after [`Journal::release`](crate::Journal::release) has released
    /// all their records: no unread record is removed. At the bound the journal is in the state
    /// [`DiskFull`](crate::JournalState::DiskFull), accepted records stay in memory, and overload policies apply.
    UntilReleased {
        /// The largest size of all segments together, in bytes: at least four times `segment_bytes`. Headers and summaries
        /// of segments (96 bytes each) may exceed it.
        disk_bytes_max: u64,
    },
}

impl SegmentPolicy {
    /// The bound on the disk.
    pub(crate) const fn disk_bytes_max(&self) -> Option<u64> {
        match self {
            Self::UntilReleased { disk_bytes_max } => Some(*disk_bytes_max),
            Self::Rolling { .. } | Self::Ring { .. } => None,
        }
    }
}

impl Default for SegmentPolicy {
    fn default() -> Self {
        Self::Rolling { retention: Retention::default(), compression: Compression::No }
    }
}

/// The retention of ended segments. Any limit that is exceeded removes the oldest segment of all stripes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Retention {
    /// The largest size of all segments together, in bytes.
    pub bytes: Option<u64>,
    /// The largest age of a segment since its last write.
    pub age: Option<Duration>,
    /// The largest number of segments.
    pub segments: Option<usize>,
}

/// The compression of ended segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// No compression.
    #[default]
    No,
    /// Zstandard with this level, 1 to 19. `zstdcat` and this crate can read the result. Needs the feature `zstd`.
    Zstd(i32),
}

/// The configuration of a class of records.
#[derive(Clone, Debug)]
pub struct ClassConfig {
    /// The name of the class, as shown in statistics and in text formats.
    pub name: String,
    /// The policy for records of the class when the journal is at its bound.
    pub overload: OverloadPolicy,
    /// The ack level that [`Producer::commit`](crate::Producer::commit) waits for, unless the record has its own.
    pub ack: Ack,
}

impl ClassConfig {
    /// A class that blocks for up to 10 s at the bound and acknowledges records when accepted.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), overload: OverloadPolicy::default(), ack: Ack::Accepted }
    }

    /// Sets the overload policy.
    #[must_use]
    pub fn overload(mut self, overload: OverloadPolicy) -> Self {
        self.overload = overload;
        self
    }

    /// Sets the ack level.
    #[must_use]
    pub fn ack(mut self, ack: Ack) -> Self {
        self.ack = ack;
        self
    }
}

/// The policy for a record that arrives when the journal is at its bound. Every loss is counted and recorded as a
/// [`Gap`](crate::Gap) as soon as there is room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OverloadPolicy {
    /// The producer waits in a FIFO queue, and fails with [`AppendError::TimedOut`](crate::AppendError::TimedOut) at the
    /// deadline. [`Producer::offer`](crate::Producer::offer), which never waits, fails immediately.
    Block {
        /// The longest wait.
        deadline: Duration,
    },
    /// The record is dropped.
    DropNewest,
    /// The record displaces the oldest records of classes with this policy in its stripe; a whole chunk of them is
    /// dropped together. If there are none, the record itself is dropped. Records with an ack level above
    /// [`Ack::Accepted`] are not displaced.
    DropOldest,
    /// Once the journal is more than half full, one of `one_in` records is accepted; at the bound the record is dropped.
    Sample {
        /// The divisor: one of this many records is accepted. At least 1.
        one_in: u32,
    },
}

impl Default for OverloadPolicy {
    fn default() -> Self {
        Self::Block { deadline: Duration::from_secs(10) }
    }
}

impl JournalConfig {
    /// The default configuration for a folder.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            name: "journal".to_owned(),
            format: SegmentFormat::Framed,
            stripes: 1,
            bytes_max: 8 << 20,
            record_bytes_max: 1 << 20,
            timestamps: TimestampPrecision::default(),
            linger: Duration::from_millis(20),
            segment_bytes: 64 << 20,
            segment_age: None,
            segment_policy: SegmentPolicy::default(),
            classes: vec![ClassConfig::new("default")],
        }
    }

    /// The share of the bound that a stripe reserves at a time.
    pub(crate) fn chunk_bytes(&self) -> usize {
        let share = self.bytes_max / (8 * self.stripes);
        let of_segment = usize::try_from(self.segment_bytes / 4).unwrap_or(usize::MAX);
        share.min(of_segment).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX)
    }

    /// Returns the first rule that the configuration breaks, with the correction.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let broken = self.rules().into_iter().find(|(holds, _)| !holds);
        broken.map_or(Ok(()), |(_, advice)| Err(OpenError::Config(advice.to_owned())))
    }

    fn rules(&self) -> [(bool, &'static str); 15] {
        let framed = self.format == SegmentFormat::Framed;
        let ring = matches!(self.segment_policy, SegmentPolicy::Ring { .. });
        let record = self.record_bytes_max.saturating_add(frame::HEAD_BYTES) as u64;
        let sampled = |class: &ClassConfig| matches!(class.overload, OverloadPolicy::Sample { one_in: 0 });
        let level = match &self.segment_policy {
            SegmentPolicy::Rolling { compression: Compression::Zstd(level), .. } => *level,
            _ => 1,
        };
        let compresses =
            matches!(self.segment_policy, SegmentPolicy::Rolling { compression: Compression::Zstd(_), .. });
        [
            (
                segment::is_name(&self.name) && self.name.len() <= NAME_BYTES_MAX,
                "name: use 1 to 200 lower-case letters, digits and underscores",
            ),
            ((1..=STRIPES_MAX).contains(&self.stripes), "stripes: use 1 to 64"),
            (
                framed || self.stripes == 1,
                "stripes: JSON and text records have no timestamps to merge by; use 1, or the framed format",
            ),
            ((1..=CLASSES_MAX).contains(&self.classes.len()), "classes: use 1 to 64"),
            (!self.classes.iter().any(sampled), "classes: one_in must be at least 1"),
            (self.bytes_max >= STRIPE_BYTES_MIN * self.stripes, "bytes_max: use at least 64 KiB for each stripe"),
            (
                record <= (self.bytes_max / 4) as u64,
                "record_bytes_max: use at most a quarter of bytes_max, less 24 bytes",
            ),
            (self.record_bytes_max <= frame::PAYLOAD_BYTES_MAX, "record_bytes_max: use at most 16 MiB"),
            (self.segment_bytes >= 32 << 10, "segment_bytes: use at least 32 KiB"),
            (
                self.segment_bytes / 2 >= record,
                "segment_bytes: use at least twice the sum of record_bytes_max and 24 bytes",
            ),
            (framed || !ring, "segment_policy: a ring needs the framed format"),
            (
                !matches!(self.segment_policy, SegmentPolicy::Ring { segments: 0 | 1 }),
                "segment_policy: a ring needs at least 2 segments",
            ),
            (
                self.segment_policy.disk_bytes_max().is_none_or(|max| self.segment_bytes <= max / 4),
                "segment_policy: use a disk_bytes_max of at least four times segment_bytes",
            ),
            ((1..=19).contains(&level), "segment_policy: use a zstd level of 1 to 19"),
            (
                cfg!(feature = "zstd") || !compresses,
                "segment_policy: this build cannot compress; enable the feature `zstd`",
            ),
        ]
    }
}
