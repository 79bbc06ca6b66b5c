//! One piece of work: key, payload, headers, and where it comes from.

use std::fmt;
use std::sync::Arc;

/// One ordered sequence of a source: a partition of a topic, a slot, a file. Numbered by the source.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lane(pub u32);

/// Which assignment of a lane. A lane that was taken away and came back has another epoch, so that what is left of the
/// earlier assignment cannot be mistaken for the present one. The source counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u32);

/// Where a record stands in its lane. Rises strictly from record to record of one epoch; gaps are free.
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

/// A name and a value that travel with a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Not necessarily unique within a record.
    pub name: Box<str>,
    /// `None` where the source knows a header without a value.
    pub value: Option<Box<[u8]>>,
}

/// What few records have.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Extras {
    headers: Vec<Header>,
    damage: Option<Box<str>>,
    /// Its key before it got another one.
    own_key: Option<OwnKey>,
}

/// The key that a record came with, if it came with one.
type OwnKey = Option<Box<[u8]>>;

/// Marks a record without a key.
const NO_KEY: u32 = u32::MAX;

/// One piece of work. A clone shares the bytes: it costs one or two reference counts.
///
/// Key and payload lie behind one another in one allocation.
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
    /// Copies key and payload. A key of `None` is no key, which is not an empty key; a payload of `None` is a tombstone.
    ///
    /// # Panics
    /// If the key is 4 GiB long or longer.
    #[must_use]
    pub fn new(lane: Lane, epoch: Epoch, position: Position, key: Option<&[u8]>, payload: Option<&[u8]>) -> Self {
        let key_len = key.map_or(NO_KEY, |key| u32::try_from(key.len()).expect("a key is shorter than 4 GiB"));
        let body = joined(key.unwrap_or_default(), payload.unwrap_or_default());
        let has_payload = payload.is_some();
        Self { body, extras: None, position, timestamp_ms: 0, lane, epoch, key_len, has_payload }
    }

    /// With the time at which its producer or the source's server took note of it, in milliseconds since 1970.
    #[must_use]
    pub fn with_timestamp_ms(self, timestamp_ms: i64) -> Self {
        Self { timestamp_ms, ..self }
    }

    /// With these headers.
    #[must_use]
    pub fn with_headers(mut self, headers: Vec<Header>) -> Self {
        self.extras_mut().headers = headers;
        self
    }

    /// Marks a record that the source could not decode. The handler does not see it: it goes where records go whose
    /// attempts are used up, with this reason.
    #[must_use]
    pub fn undecodable(mut self, reason: &str) -> Self {
        self.extras_mut().damage = Some(reason.into());
        self
    }

    /// Ordered by another key than the one that it came with, which stays its [`own_key`](Self::own_key).
    ///
    /// # Panics
    /// If the key is 4 GiB long or longer.
    #[must_use]
    pub fn ordered_by(self, key: Option<&[u8]>) -> Self {
        if key == self.key() {
            return self;
        }
        let own_key = Some(self.own_key().map(Box::from));
        let other = Self::new(self.lane, self.epoch, self.position, key, self.payload());
        let mut ordered = Self { extras: self.extras, timestamp_ms: self.timestamp_ms, ..other };
        ordered.extras_mut().own_key = own_key;
        ordered
    }

    fn extras_mut(&mut self) -> &mut Extras {
        Arc::make_mut(self.extras.get_or_insert_default())
    }

    /// What orders it: records of one key run one after another.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        (self.key_len != NO_KEY).then(|| &self.body[..self.key_bytes()])
    }

    /// The key that it came with.
    #[must_use]
    pub fn own_key(&self) -> Option<&[u8]> {
        match self.extras.as_ref().and_then(|extras| extras.own_key.as_ref()) {
            Some(own) => own.as_deref(),
            None => self.key(),
        }
    }

    /// The work itself; `None` for a tombstone.
    #[must_use]
    pub fn payload(&self) -> Option<&[u8]> {
        self.has_payload.then(|| &self.body[self.key_bytes()..])
    }

    fn key_bytes(&self) -> usize {
        if self.key_len == NO_KEY { 0 } else { self.key_len as usize }
    }

    /// The headers, in the source's order.
    #[must_use]
    pub fn headers(&self) -> &[Header] {
        self.extras.as_ref().map_or(&[], |extras| &extras.headers)
    }

    /// Why the source could not decode it.
    #[must_use]
    pub fn damage(&self) -> Option<&str> {
        self.extras.as_ref()?.damage.as_deref()
    }

    /// Where it stands in its lane.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// The lane that it came by.
    #[must_use]
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// The assignment of the lane that it came by.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Milliseconds since 1970; 0 if the source does not know.
    #[must_use]
    pub fn timestamp_ms(&self) -> i64 {
        self.timestamp_ms
    }

    /// Bytes of key, payload and headers, for which it counts in the bounds.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let Some(extras) = &self.extras else { return self.body.len() };
        let of = |header: &Header| header.name.len() + header.value.as_ref().map_or(0, |value| value.len());
        let own_key = extras.own_key.as_ref().and_then(Option::as_ref).map_or(0, |key| key.len());
        self.body.len() + own_key + extras.headers.iter().map(of).sum::<usize>()
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key().map(String::from_utf8_lossy);
        let bytes = self.payload().map(<[u8]>::len);
        write!(f, "Record({}@{} key {key:?}, payload bytes {bytes:?})", self.lane.0, self.position.0)
    }
}

/// One allocation for both, filled twice, since safe code cannot fill it once.
fn joined(key: &[u8], payload: &[u8]) -> Arc<[u8]> {
    if key.is_empty() {
        return Arc::from(payload);
    }
    let mut body: Arc<[u8]> = std::iter::repeat_n(0, key.len() + payload.len()).collect();
    let bytes = Arc::get_mut(&mut body).expect("nobody else has it yet");
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
    fn key_and_payload_come_back_as_they_were() {
        for key in [None, Some(&b""[..]), Some(b"k")] {
            for payload in [None, Some(&b""[..]), Some(b"payload")] {
                let record = record(key, payload);
                assert_eq!((record.key(), record.payload()), (key, payload));
            }
        }
    }

    #[test]
    fn a_record_that_is_ordered_by_another_key_keeps_its_own() {
        let header = Header { name: "h".into(), value: None };
        for own in [None, Some(&b"own"[..])] {
            let record = record(own, Some(b"payload")).with_headers(vec![header.clone()]).with_timestamp_ms(7);
            let ordered = record.clone().ordered_by(Some(b"other"));
            assert_eq!(
                (ordered.key(), ordered.own_key(), ordered.payload()),
                (Some(&b"other"[..]), own, record.payload())
            );
            assert_eq!((ordered.headers(), ordered.timestamp_ms()), (record.headers(), 7));
            assert_eq!(ordered.clone().ordered_by(None).own_key(), own);
            assert_eq!(record.clone().ordered_by(own), record, "nothing has changed");
        }
    }

    #[test]
    fn headers_count_in_its_size() {
        let header = Header { name: "name".into(), value: Some(b"value"[..].into()) };
        let record = record(Some(b"k"), Some(b"pp")).with_headers(vec![header.clone()]);
        assert_eq!((record.size_bytes(), record.headers()), (12, &[header][..]));
        assert_eq!(record.clone().undecodable("why").damage(), Some("why"));
        assert_eq!(record.damage(), None);
    }

    #[test]
    fn it_is_small() {
        assert!(size_of::<Record>() <= 56);
    }
}
