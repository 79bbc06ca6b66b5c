//! Records: key, payload, headers, and origin.

use std::fmt;
use std::sync::Arc;

/// An ordered sequence of a source: a topic partition, a replication slot, a file. Numbered by the source.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lane(pub u32);

/// The number of a lane's assignment, counted by the source. A lane that is revoked and assigned again has a higher
/// epoch, so that outcomes of the earlier assignment can be distinguished.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u32);

/// The position of a record in its lane. Strictly increasing within an epoch; gaps are allowed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position(pub u64);

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A header of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Names may repeat within a record.
    pub name: Box<str>,
    /// `None` if the source has a header without a value.
    pub value: Option<Box<[u8]>>,
}

/// Rarely used fields, allocated on demand.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Extras {
    headers: Vec<Header>,
    decode_error: Option<Box<str>>,
    /// The key before [`Record::with_ordering_key`].
    source_key: Option<SourceKey>,
}

/// `None` if the record had no key at the source.
type SourceKey = Option<Box<[u8]>>;

/// Marks a record without a key.
const NO_KEY: u32 = u32::MAX;

/// A record of a source. A clone shares the bytes and costs one or two reference counts.
///
/// Key and payload share one allocation.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    body: Arc<[u8]>,
    extras: Option<Arc<Extras>>,
    position: Position,
    timestamp_ms: i64,
    lane: Lane,
    epoch: Epoch,
    key_len: u32,
    has_payload: bool,
}

impl Record {
    /// Copies key and payload. A key of `None` means no key, which differs from an empty key. A payload of `None` is a
    /// tombstone.
    ///
    /// # Panics
    /// Panics if the key is 4 GiB or longer.
    #[must_use]
    pub fn new(lane: Lane, epoch: Epoch, position: Position, key: Option<&[u8]>, payload: Option<&[u8]>) -> Self {
        let key_len = key.map_or(NO_KEY, |key| u32::try_from(key.len()).expect("a key is shorter than 4 GiB"));
        let body = joined(key.unwrap_or_default(), payload.unwrap_or_default());
        let has_payload = payload.is_some();
        Self { body, extras: None, position, timestamp_ms: 0, lane, epoch, key_len, has_payload }
    }

    /// Sets the timestamp of the producer or the broker, in milliseconds since 1970.
    #[must_use]
    pub fn with_timestamp_ms(self, timestamp_ms: i64) -> Self {
        Self { timestamp_ms, ..self }
    }

    /// Sets the headers.
    #[must_use]
    pub fn with_headers(mut self, headers: Vec<Header>) -> Self {
        self.extras_mut().headers = headers;
        self
    }

    /// Marks a record that the source could not decode. The handler does not receive it; it takes the path of an
    /// exhausted record, with this reason.
    #[must_use]
    pub fn undecodable(mut self, reason: &str) -> Self {
        self.extras_mut().decode_error = Some(reason.into());
        self
    }

    /// Orders the record by another key. The original key stays available as [`source_key`](Self::source_key).
    ///
    /// # Panics
    /// Panics if the key is 4 GiB or longer.
    #[must_use]
    pub fn with_ordering_key(self, key: Option<&[u8]>) -> Self {
        if key == self.key() {
            return self;
        }
        let source_key = Some(self.source_key().map(Box::from));
        let other = Self::new(self.lane, self.epoch, self.position, key, self.payload());
        let mut ordered = Self { extras: self.extras, timestamp_ms: self.timestamp_ms, ..other };
        ordered.extras_mut().source_key = source_key;
        ordered
    }

    fn extras_mut(&mut self) -> &mut Extras {
        Arc::make_mut(self.extras.get_or_insert_default())
    }

    /// The ordering key: records of one key run one after another.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        (self.key_len != NO_KEY).then(|| &self.body[..self.key_bytes()])
    }

    /// The key that the record has at the source.
    #[must_use]
    pub fn source_key(&self) -> Option<&[u8]> {
        match self.extras.as_ref().and_then(|extras| extras.source_key.as_ref()) {
            Some(own) => own.as_deref(),
            None => self.key(),
        }
    }

    /// The payload; `None` for a tombstone.
    #[must_use]
    pub fn payload(&self) -> Option<&[u8]> {
        self.has_payload.then(|| &self.body[self.key_bytes()..])
    }

    fn key_bytes(&self) -> usize {
        if self.key_len == NO_KEY { 0 } else { self.key_len as usize }
    }

    /// The headers, in the order of the source.
    #[must_use]
    pub fn headers(&self) -> &[Header] {
        self.extras.as_ref().map_or(&[], |extras| &extras.headers)
    }

    /// The reason why the source could not decode the record.
    #[must_use]
    pub fn decode_error(&self) -> Option<&str> {
        self.extras.as_ref()?.decode_error.as_deref()
    }

    /// The position in the lane.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// The lane.
    #[must_use]
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// The epoch of the lane's assignment.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Milliseconds since 1970; 0 if the source has no timestamp.
    #[must_use]
    pub fn timestamp_ms(&self) -> i64 {
        self.timestamp_ms
    }

    /// Bytes of key, payload and headers, as counted by [`Bounds`](crate::Bounds).
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let Some(extras) = &self.extras else { return self.body.len() };
        let of = |header: &Header| header.name.len() + header.value.as_ref().map_or(0, |value| value.len());
        let source_key = extras.source_key.as_ref().and_then(Option::as_ref).map_or(0, |key| key.len());
        self.body.len() + source_key + extras.headers.iter().map(of).sum::<usize>()
    }
}

/// The records of one handler call.
#[derive(Debug)]
pub(crate) enum HandlerRecords {
    One(Record),
    Many(Vec<Record>),
}

impl HandlerRecords {
    pub(crate) fn first(&self) -> &Record {
        match self {
            Self::One(record) => record,
            Self::Many(records) => &records[0],
        }
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key().map(String::from_utf8_lossy);
        let bytes = self.payload().map(<[u8]>::len);
        write!(f, "Record({}@{} key {key:?}, payload bytes {bytes:?})", self.lane.0, self.position.0)
    }
}

/// Joins key and payload in one allocation. Safe code fills it twice.
fn joined(key: &[u8], payload: &[u8]) -> Arc<[u8]> {
    if key.is_empty() {
        return Arc::from(payload);
    }
    let mut body: Arc<[u8]> = std::iter::repeat_n(0, key.len() + payload.len()).collect();
    let bytes = Arc::get_mut(&mut body).expect("not shared yet");
    bytes[..key.len()].copy_from_slice(key);
    bytes[key.len()..].copy_from_slice(payload);
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: Option<&[u8]>, payload: Option<&[u8]>) -> Record {
        Record::new(Lane(1), Epoch(2), Position(3), key, payload)
    }

    #[test]
    fn key_and_payload_round_trip() {
        for key in [None, Some(&b""[..]), Some(b"k")] {
            for payload in [None, Some(&b""[..]), Some(b"payload")] {
                let record = record(key, payload);
                assert_eq!((record.key(), record.payload()), (key, payload));
            }
        }
    }

    #[test]
    fn ordering_key_does_not_change_source_key() {
        let header = Header { name: "h".into(), value: None };
        for own in [None, Some(&b"own"[..])] {
            let record = record(own, Some(b"payload")).with_headers(vec![header.clone()]).with_timestamp_ms(7);
            let ordered = record.clone().with_ordering_key(Some(b"other"));
            assert_eq!(
                (ordered.key(), ordered.source_key(), ordered.payload()),
                (Some(&b"other"[..]), own, record.payload())
            );
            assert_eq!((ordered.headers(), ordered.timestamp_ms()), (record.headers(), 7));
            assert_eq!(ordered.clone().with_ordering_key(None).source_key(), own);
            assert_eq!(record.clone().with_ordering_key(own), record, "same key");
        }
    }

    #[test]
    fn headers_count_in_record_size() {
        let header = Header { name: "name".into(), value: Some(b"value"[..].into()) };
        let record = record(Some(b"k"), Some(b"pp")).with_headers(vec![header.clone()]);
        assert_eq!((record.size_bytes(), record.headers()), (12, &[header][..]));
        assert_eq!(record.clone().undecodable("why").decode_error(), Some("why"));
        assert_eq!(record.decode_error(), None);
    }

    #[test]
    fn record_is_at_most_56_bytes() {
        assert!(size_of::<Record>() <= 56);
    }
}
