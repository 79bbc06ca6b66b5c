//! The formats of records on the disk.

/// The format of records on the disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum SegmentFormat {
    /// A binary header with length, time, sequence number and CRC32C, so that every kind of damage is detected. `.tgj` files.
    #[default]
    Framed,
    /// JSON Lines: the payload, one JSON value per record, and a newline. Line breaks in it are escaped. A gap is an
    /// object with the one key `gap`. `.jsonl` files. One stripe only.
    Json,
    /// The payload and a newline; line breaks inside become `\n`. A gap is a line that begins with `# gap`. `.log` files.
    /// One stripe only.
    Text,
}

impl SegmentFormat {
    pub(crate) const fn extension(self) -> &'static str {
        match self {
            Self::Framed => "tgj",
            Self::Json => "jsonl",
            Self::Text => "log",
        }
    }
}
