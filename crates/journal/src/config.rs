//! What a journal is told once, when it is opened.

use std::{path::PathBuf, time::Duration};

use crate::{error::OpenError, frame, note::Ack, segment};

const CLASSES_MAX: usize = 64;
const STRIPES_MAX: usize = 64;
const CHUNK_BYTES_MAX: usize = 256 << 10;
const CHUNK_BYTES_MIN: usize = 4 << 10;
/// Below this, a stripe could not hold one chunk being filled and one being written.
const STRIPE_BYTES_MIN: usize = 64 << 10;

/// How a journal behaves. [`Config::new`] gives the defaults; change what you need.
#[derive(Clone, Debug)]
pub struct Config {
    /// The folder of the segments. It is created if it is missing, and belongs to one journal at a time.
    pub folder: PathBuf,
    /// The first part of the names of segments: lower-case letters, digits and underscores. Default `journal`.
    pub name: String,
    /// How records stand on the disk. Default framed.
    pub format: Format,
    /// How many staging buffers, writer threads and open segments. Default 1: all records are in one order. More are
    /// worth it when one thread cannot write what all producers make; [`Reader`](crate::Reader) merges them by time.
    pub stripes: usize,
    /// The bound on memory over all producers and stripes: records accepted and not yet written, in bytes. Default 8 MiB.
    pub bytes_max: usize,
    /// The largest payload, in bytes. At most a quarter of `bytes_max` and 16 MiB. Default 1 MiB.
    pub record_bytes_max: usize,
    /// How exact the times of records are that bring none of their own. Default exact.
    pub times: Times,
    /// How long an accepted record may lie in memory while the disk has nothing to do. Default 20 ms.
    pub linger: Duration,
    /// A segment ends before it grows larger. Default 64 MiB.
    pub segment_bytes: u64,
    /// A segment ends when a record comes and its first one is so old. Default never.
    pub segment_age: Option<Duration>,
    /// What becomes of segments that ended. Default kept for ever.
    pub space: Space,
    /// The classes of records; [`Class::new(0)`](crate::Class::new) is the first. Default one class that waits 10 s.
    pub classes: Vec<ClassConfig>,
}

/// How records stand on the disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Format {
    /// With length, time, number and CRC32C, so that every kind of damage is found. `.tgj` files.
    #[default]
    Framed,
    /// The payload and a newline, where the payload is one JSON value per record. Line breaks in it are refused by
    /// escaping them. A gap is an object with the one key `gap`. `.jsonl` files. One stripe only.
    Json,
    /// The payload and a newline; line breaks inside become `\n`. A gap is a line that begins with `# gap`. `.log` files.
    /// One stripe only.
    Text,
}

/// How exact the times of records are that bring none of their own ([`Note::at`](crate::Note::at)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Times {
    /// To the clock's resolution. On a virtual machine, to read that clock may cost as much as all else that an append does.
    #[default]
    Exact,
    /// To the tick of the system, 1 to 10 ms: the time when it ticked last, which costs a tenth to read. Stripes are
    /// merged by time, so within a tick their records are not in order; those of one stripe are.
    Tick,
}

/// What becomes of segments that ended.
#[derive(Clone, Debug)]
pub enum Space {
    /// New segments are made, old ones are removed by these limits and packed if so wished.
    Segments {
        /// When old segments are removed.
        retention: Retention,
        /// Whether ended segments are packed, by a thread of low weight.
        pack: Pack,
    },
    /// A fixed number of files of `segment_bytes` each is made once and written over, the oldest first: the journal
    /// never takes more of the disk. Framed format only.
    ///
    /// Once all of them were written, records also become durable sooner than in files that grow, on file systems that
    /// write in place, such as ext4: a sync has neither the length of a file nor the places of its blocks to write.
    Ring {
        /// How many files per stripe, at least 2.
        segments: u32,
    },
}

impl Default for Space {
    fn default() -> Self {
        Self::Segments { retention: Retention::default(), pack: Pack::No }
    }
}

/// When ended segments are removed: whichever limit is reached first, over all stripes, the oldest segment first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Retention {
    /// All segments together are larger.
    pub bytes: Option<u64>,
    /// The segment was last written to so long ago.
    pub age: Option<Duration>,
    /// There are more of them.
    pub segments: Option<usize>,
}

/// Whether ended segments are packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pack {
    /// They stay as they are.
    #[default]
    No,
    /// With zstd at this level, 1 to 19. `zstdcat` unpacks them as well as this crate. Needs the feature `zstd`.
    Zstd(i32),
}

/// A class of records.
#[derive(Clone, Debug)]
pub struct ClassConfig {
    /// Its name, for people.
    pub name: String,
    /// What happens to its records when the journal is at its bound.
    pub overload: Overload,
    /// What [`Producer::commit`](crate::Producer::commit) waits for, unless the record says otherwise.
    pub ack: Ack,
}

impl ClassConfig {
    /// A class that waits up to 10 s and is acknowledged when accepted.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), overload: Overload::default(), ack: Ack::Accepted }
    }

    /// With another answer to overload.
    #[must_use]
    pub fn overload(mut self, overload: Overload) -> Self {
        self.overload = overload;
        self
    }

    /// Acknowledged otherwise.
    #[must_use]
    pub fn ack(mut self, ack: Ack) -> Self {
        self.ack = ack;
        self
    }
}

/// What happens to a record that comes when the journal is at its bound. Whatever is lost is counted and told by a
/// [`Gap`](crate::Gap) record as soon as there is room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overload {
    /// Its producer waits in line, first come, first served, and gives up after the deadline.
    /// [`Producer::offer`](crate::Producer::offer), which never waits, gives up at once.
    Block {
        /// How long at most.
        deadline: Duration,
    },
    /// It is dropped.
    DropNewest,
    /// It takes the place of the oldest records of classes with this answer in its stripe, of which a whole chunk is
    /// dropped at once. Dropped itself if there are none. Records that ask for more than [`Ack::Accepted`] stay.
    DropOldest,
    /// Once the journal is more than half full, one of so many is kept; at the bound it is dropped.
    Sample {
        /// Of how many one is kept, at least 1.
        one_in: u32,
    },
}

impl Default for Overload {
    fn default() -> Self {
        Self::Block { deadline: Duration::from_secs(10) }
    }
}

impl Config {
    /// The defaults, in a folder.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            name: "journal".to_owned(),
            format: Format::Framed,
            stripes: 1,
            bytes_max: 8 << 20,
            record_bytes_max: 1 << 20,
            times: Times::default(),
            linger: Duration::from_millis(20),
            segment_bytes: 64 << 20,
            segment_age: None,
            space: Space::default(),
            classes: vec![ClassConfig::new("default")],
        }
    }

    /// What a stripe takes of the bound at a time.
    pub(crate) fn chunk_bytes(&self) -> usize {
        let share = self.bytes_max / (8 * self.stripes);
        let of_segment = usize::try_from(self.segment_bytes / 4).unwrap_or(usize::MAX);
        share.min(of_segment).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX)
    }

    /// The first contradiction, and what to do about it.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let broken = self.rules().into_iter().find(|(holds, _)| !holds);
        broken.map_or(Ok(()), |(_, advice)| Err(OpenError::Config(advice.to_owned())))
    }

    fn rules(&self) -> [(bool, &'static str); 14] {
        let framed = self.format == Format::Framed;
        let ring = matches!(self.space, Space::Ring { .. });
        let record = (self.record_bytes_max + frame::HEAD_BYTES) as u64;
        let sampled = |class: &ClassConfig| matches!(class.overload, Overload::Sample { one_in: 0 });
        let level = match &self.space {
            Space::Segments { pack: Pack::Zstd(level), .. } => *level,
            _ => 1,
        };
        let packs = matches!(self.space, Space::Segments { pack: Pack::Zstd(_), .. });
        [
            (segment::is_name(&self.name), "name: use lower-case letters, digits and underscores, at least one"),
            ((1..=STRIPES_MAX).contains(&self.stripes), "stripes: use 1 to 64"),
            (
                framed || self.stripes == 1,
                "stripes: JSON and text have no times to merge by; use 1, or the framed format",
            ),
            ((1..=CLASSES_MAX).contains(&self.classes.len()), "classes: use 1 to 64"),
            (!self.classes.iter().any(sampled), "classes: one_in must be at least 1"),
            (self.bytes_max >= STRIPE_BYTES_MIN * self.stripes, "bytes_max: allow at least 64 KiB for each stripe"),
            (record <= (self.bytes_max / 4) as u64, "record_bytes_max: at most a quarter of bytes_max, less 24 bytes"),
            (self.record_bytes_max <= frame::PAYLOAD_BYTES_MAX, "record_bytes_max: at most 16 MiB"),
            (self.segment_bytes >= 32 << 10, "segment_bytes: at least 32 KiB"),
            (self.segment_bytes / 2 >= record, "segment_bytes: at least twice record_bytes_max and its 24 bytes"),
            (framed || !ring, "space: a ring needs the framed format"),
            (!matches!(self.space, Space::Ring { segments: 0 | 1 }), "space: a ring needs at least 2 segments"),
            ((1..=19).contains(&level), "space: the level of zstd is 1 to 19"),
            (cfg!(feature = "zstd") || !packs, "space: this build cannot pack; enable the feature `zstd`"),
        ]
    }
}
