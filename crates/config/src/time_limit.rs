//! Settings that take a duration or a word.

use std::time::Duration;

use super::raw::RawValue;
use super::setting::{Setting, ValueError};

/// Lifetime of a server connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerLifetime {
    /// No limit.
    Unlimited,
    /// The connection is closed after the first client that has used it. The login that opens it does not count.
    SingleUse,
    /// The connection is closed at this age, when it becomes idle.
    Age(Duration),
}

impl ServerLifetime {
    /// The word for [`Self::SingleUse`].
    pub(crate) const SINGLE_USE: &'static str = "single_use";

    /// Whether a connection is closed after its first use.
    #[must_use]
    pub fn is_single_use(self) -> bool {
        self == Self::SingleUse
    }

    /// The age at which a connection is closed, if there is one.
    #[must_use]
    pub fn age(self) -> Option<Duration> {
        match self {
            Self::Age(age) => Some(age),
            Self::Unlimited | Self::SingleUse => None,
        }
    }
}

impl Setting for ServerLifetime {
    fn read(value: &RawValue) -> Result<Self, ValueError> {
        Ok(match duration_or(value, Self::SINGLE_USE)? {
            None => Self::SingleUse,
            Some(Duration::ZERO) => Self::Unlimited,
            Some(age) => Self::Age(age),
        })
    }

    fn show(&self) -> String {
        match self {
            Self::Unlimited => Duration::ZERO.show(),
            Self::SingleUse => Self::SINGLE_USE.to_owned(),
            Self::Age(age) => age.show(),
        }
    }
}

/// When the reserve of a pool is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReserveDelay {
    /// After a client has waited this long.
    Wait(Duration),
    /// The reserve stays closed.
    Never,
}

impl ReserveDelay {
    /// The word for [`Self::Never`].
    pub(crate) const NEVER: &'static str = "never";
}

impl Setting for ReserveDelay {
    fn read(value: &RawValue) -> Result<Self, ValueError> {
        Ok(duration_or(value, Self::NEVER)?.map_or(Self::Never, Self::Wait))
    }

    fn show(&self) -> String {
        match self {
            Self::Wait(wait) => wait.show(),
            Self::Never => Self::NEVER.to_owned(),
        }
    }
}

/// Parses a duration; `None` for the word.
fn duration_or(value: &RawValue, word: &str) -> Result<Option<Duration>, ValueError> {
    if matches!(value, RawValue::Text(text) if text.trim() == word) {
        return Ok(None);
    }
    let read = Duration::read(value).map_err(|error| {
        let help = format!("{}; or write \"{word}\"", error.help);
        ValueError { help, ..error }
    });
    read.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown<T: Setting>(text: &str) -> Result<String, String> {
        T::read(&RawValue::Text(text.to_owned())).map(|value| value.show()).map_err(|error| error.help)
    }

    #[test]
    fn words_stand_beside_durations() {
        for (text, value) in [("0", "0"), ("single_use", "single_use"), ("1us", "1us"), ("1h", "3600s")] {
            assert_eq!(shown::<ServerLifetime>(text).as_deref(), Ok(value));
        }
        for (text, value) in [("0", "0"), ("never", "never"), ("5s", "5s")] {
            assert_eq!(shown::<ReserveDelay>(text).as_deref(), Ok(value));
        }
        assert_eq!(ServerLifetime::read(&RawValue::Integer(0)), Ok(ServerLifetime::Unlimited));
        assert!(shown::<ServerLifetime>("never").is_err_and(|help| help.ends_with("or write \"single_use\"")));
        assert!(shown::<ReserveDelay>("single_use").is_err());
    }
}
