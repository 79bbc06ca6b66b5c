//! Reasons that pin a client to its server.

use std::fmt;

/// Set of reasons that pin a client to its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pins(u8);

impl Pins {
    /// LISTEN.
    pub const LISTEN: Self = Self(1);
    /// A cursor WITH HOLD.
    pub const HOLD: Self = Self(2);
    /// A session advisory lock.
    pub const ADVISORY: Self = Self(4);
    /// A temporary table.
    pub const TEMP: Self = Self(8);
    /// A statement prepared by `PREPARE`.
    pub const PREPARE: Self = Self(16);
    /// A setting that cannot be applied on another server.
    pub const SETTING: Self = Self(32);
    /// The session user is reset to that of the login, which also resets the role.
    pub const USER: Self = Self(64);
    /// A replication origin, which no reset command removes.
    pub const ORIGIN: Self = Self(128);

    const NAMES: [(Self, &'static str); 8] = [
        (Self::LISTEN, "listen"),
        (Self::HOLD, "hold"),
        (Self::ADVISORY, "advisory"),
        (Self::TEMP, "temp"),
        (Self::PREPARE, "prepare"),
        (Self::SETTING, "setting"),
        (Self::USER, "user"),
        (Self::ORIGIN, "origin"),
    ];

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the set contains any of `reasons`.
    #[must_use]
    pub const fn has(self, reasons: Self) -> bool {
        self.0 & reasons.0 != 0
    }

    /// Returns the set without `reasons`.
    #[must_use]
    pub const fn without(self, reasons: Self) -> Self {
        Self(self.0 & !reasons.0)
    }

    /// The set as a number, for a process of the same version.
    #[must_use]
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// Adopts a number of [`Self::to_bits`].
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Names of the reasons in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(pin, _)| self.has(*pin)).map(|(_, name)| name)
    }

    /// Adds reasons to the set.
    pub fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl fmt::Display for Pins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (pin, name) in Self::NAMES {
            if self.has(pin) {
                write!(f, "{separator}{name}")?;
                separator = ",";
            }
        }
        Ok(())
    }
}
