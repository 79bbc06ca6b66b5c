//! What a producer hands in, and what it gets for it.

use crate::time::Time;

/// The kind of a record, by its place in [`Config::classes`](crate::Config::classes). Overload is answered per class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Class(u8);

impl Class {
    /// The class at a place in the configuration.
    #[must_use]
    pub const fn new(index: u8) -> Self {
        Self(index)
    }

    /// Its place in the configuration.
    #[must_use]
    pub const fn index(self) -> u8 {
        self.0
    }
}

/// How safe a record is when its producer is told so.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Ack {
    /// It lies in bounded memory. Lost if the process dies.
    #[default]
    Accepted,
    /// It was handed to the operating system. Survives the process.
    Written,
    /// It was synced to the disk. Survives the loss of power.
    Durable,
}

/// A record on its way in: the bytes as they shall stand, and what goes with them.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Note<'a> {
    pub(crate) class: Class,
    pub(crate) ack: Option<Ack>,
    pub(crate) time: Option<Time>,
    pub(crate) payload: &'a [u8],
}

impl<'a> Note<'a> {
    /// A record of a class, acknowledged as the class says, of now.
    pub const fn new(class: Class, payload: &'a [u8]) -> Self {
        Self { class, ack: None, time: None, payload }
    }

    /// Acknowledged otherwise than its class says. A record of more than [`Ack::Accepted`] is written at once, and is
    /// never displaced by a newer one.
    pub const fn ack(mut self, ack: Ack) -> Self {
        self.ack = Some(ack);
        self
    }

    /// Of a time that the caller has read already.
    pub const fn at(mut self, time: Time) -> Self {
        self.time = Some(time);
        self
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<(Class, &'a T)> for Note<'a> {
    fn from((class, payload): (Class, &'a T)) -> Self {
        Self::new(class, payload.as_ref())
    }
}

/// The place of an accepted record: which stripe, and its number there. Numbers of a stripe only grow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket {
    pub(crate) stripe: u16,
    pub(crate) seq: u64,
    pub(crate) class: Class,
    /// Somebody was going to wait for it, so no younger record takes its place.
    pub(crate) is_pinned: bool,
}

impl Ticket {
    /// The stripe that holds the record.
    #[must_use]
    pub const fn stripe(self) -> u16 {
        self.stripe
    }

    /// The record's number within its stripe.
    #[must_use]
    pub const fn seq(self) -> u64 {
        self.seq
    }
}
