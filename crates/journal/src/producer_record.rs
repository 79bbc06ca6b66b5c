//! The record that a producer appends, and its identifier in the journal.

use crate::timestamp::Timestamp;

/// The class of a record: an index into [`JournalConfig::classes`](crate::JournalConfig::classes). Each class has its own
/// [`OverloadPolicy`](crate::OverloadPolicy).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Class(u8);

impl Class {
    /// The class at an index of the configuration.
    #[must_use]
    pub const fn new(index: u8) -> Self {
        Self(index)
    }

    /// The index of the class in the configuration.
    #[must_use]
    pub const fn index(self) -> u8 {
        self.0
    }
}

/// The durability level at which a record is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Ack {
    /// The record is in bounded memory. It is lost if the process dies.
    #[default]
    Accepted,
    /// The record was written to the operating system. It survives the process.
    Written,
    /// The record was synced to the disk. It survives a power failure.
    Durable,
}

/// A record to append: the payload and its metadata.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct ProducerRecord<'a> {
    pub(crate) class: Class,
    pub(crate) ack: Option<Ack>,
    pub(crate) time: Option<Timestamp>,
    pub(crate) payload: &'a [u8],
}

impl<'a> ProducerRecord<'a> {
    /// A record of a class with the ack level of the class and the current time.
    pub const fn new(class: Class, payload: &'a [u8]) -> Self {
        Self { class, ack: None, time: None, payload }
    }

    /// Sets the ack level. A record above [`Ack::Accepted`] is written without linger and is never displaced by a newer
    /// one.
    pub const fn ack(mut self, ack: Ack) -> Self {
        self.ack = Some(ack);
        self
    }

    /// Sets the timestamp, for callers that have already read the clock.
    pub const fn at(mut self, time: Timestamp) -> Self {
        self.time = Some(time);
        self
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<(Class, &'a T)> for ProducerRecord<'a> {
    fn from((class, payload): (Class, &'a T)) -> Self {
        Self::new(class, payload.as_ref())
    }
}

/// The identifier of an accepted record: its stripe and its sequence number there. Sequence numbers of a stripe only
/// grow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RecordId {
    pub(crate) stripe: u16,
    pub(crate) seq: u64,
    pub(crate) class: Class,
    /// The producer asked for more than [`Ack::Accepted`], so newer records may not displace this one.
    pub(crate) is_pinned: bool,
}

impl RecordId {
    /// The stripe of the record.
    #[must_use]
    pub const fn stripe(self) -> u16 {
        self.stripe
    }

    /// The sequence number of the record within its stripe.
    #[must_use]
    pub const fn seq(self) -> u64 {
        self.seq
    }
}
