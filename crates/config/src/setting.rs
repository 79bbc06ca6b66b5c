//! Types of values: how each is parsed, which errors it has, and how it is printed.

use std::fmt::Display;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::raw::{RawValue, SourceSpan, SpannedValue};
use super::secret::{MASK, Secret};

/// Why a value is invalid, and what to write.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueError {
    pub(crate) reason: String,
    pub(crate) help: String,
    /// Position inside a list; `None` for the whole value.
    pub(crate) at: Option<SourceSpan>,
}

impl ValueError {
    pub(crate) fn new(reason: impl Into<String>, help: impl Into<String>) -> Self {
        Self { reason: reason.into(), help: help.into(), at: None }
    }

    fn kind(expected: &str, value: &RawValue, help: &str) -> Self {
        Self::new(format!("expected {expected}, found {}", value.kind()), help)
    }
}

/// Class of a value: who may see it, and whether `SET` may change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueClass {
    /// A value that everybody may see.
    Plain,
    /// The path of a file, a folder or a socket.
    File,
    /// A password, or a text that may contain one. No log and no table shows it.
    Secret,
}

/// A type of values.
pub(crate) trait Setting: Sized {
    /// Class of the values.
    const CLASS: ValueClass = ValueClass::Plain;

    /// Parses the value. The reason must not repeat a value that may be a secret.
    fn read(value: &RawValue) -> Result<Self, ValueError>;

    /// The value as `SHOW CONFIG` prints it.
    fn show(&self) -> String;
}

/// Parses a value that must be in `range`.
pub(crate) fn within<T>(value: &RawValue, range: &RangeInclusive<T>) -> Result<T, ValueError>
where
    T: Setting + PartialOrd + Display,
{
    let read = T::read(value)?;
    if range.contains(&read) {
        return Ok(read);
    }
    let help = format!("write a number from {} to {}", range.start(), range.end());
    Err(ValueError::new(format!("{read} is out of range"), help))
}

pub(crate) fn text<'v>(value: &'v RawValue, example: &str) -> Result<&'v str, ValueError> {
    match value {
        RawValue::Text(text) if text.contains('\0') => {
            Err(ValueError::new("the text contains a zero byte", "remove it; Postgres strings end at a zero byte"))
        }
        RawValue::Text(text) => Ok(text),
        other => Err(ValueError::kind("a string", other, &format!("write it in quotes: {example}"))),
    }
}

impl Setting for String {
    fn read(value: &RawValue) -> Result<Self, ValueError> {
        text(value, "\"text\"").map(str::to_owned)
    }

    fn show(&self) -> String {
        self.clone()
    }
}

impl Setting for Secret {
    const CLASS: ValueClass = ValueClass::Secret;

    fn read(value: &RawValue) -> Result<Self, ValueError> {
        text(value, "\"...\"").map(Self::new)
    }

    fn show(&self) -> String {
        if self.is_empty() { String::new() } else { MASK.to_owned() }
    }
}

impl Setting for PathBuf {
    const CLASS: ValueClass = ValueClass::File;

    fn read(value: &RawValue) -> Result<Self, ValueError> {
        text(value, "\"/path/to/file\"").map(Self::from)
    }

    fn show(&self) -> String {
        self.display().to_string()
    }
}

impl Setting for bool {
    fn read(value: &RawValue) -> Result<Self, ValueError> {
        match value {
            RawValue::Boolean(value) => Ok(*value),
            other => Err(ValueError::kind("true or false", other, "write true or false, without quotes")),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

macro_rules! integer_settings {
    ($($integer:ty),*) => {$(
        impl Setting for $integer {
            fn read(value: &RawValue) -> Result<Self, ValueError> {
                let help = "write a whole number without quotes, not below zero";
                let RawValue::Integer(number) = value else {
                    return Err(ValueError::kind("a number", value, help));
                };
                Self::try_from(*number).map_err(|_| {
                    let help = if *number < 0 { help.to_owned() } else { format!("write {} at most", Self::MAX) };
                    ValueError::new(format!("{number} is out of range"), help)
                })
            }

            fn show(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
integer_settings!(u16, u32, u64);

impl Setting for Vec<String> {
    fn read(value: &RawValue) -> Result<Self, ValueError> {
        list(value, "[\"name\"]", String::read)
    }

    fn show(&self) -> String {
        self.join(", ")
    }
}

pub(crate) fn list<T>(
    value: &RawValue,
    example: &str,
    read: impl Fn(&RawValue) -> Result<T, ValueError>,
) -> Result<Vec<T>, ValueError> {
    let RawValue::List(nodes) = value else {
        return Err(ValueError::kind("a list", value, &format!("write it in brackets: {example}")));
    };
    let element = |node: &SpannedValue| {
        read(&node.value).map_err(|error| ValueError { at: error.at.clone().or(Some(node.at.clone())), ..error })
    };
    nodes.iter().map(element).collect()
}

impl Setting for Vec<SocketAddr> {
    fn read(value: &RawValue) -> Result<Self, ValueError> {
        let read = |value: &RawValue| listen_addresses(text(value, "\"127.0.0.1:6432\"")?);
        list(value, "[\"127.0.0.1:6432\"]", read).map(|addresses| addresses.concat())
    }

    fn show(&self) -> String {
        self.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ")
    }
}

/// Parses `127.0.0.1:6432`, `[::1]:6432`, `localhost:6432` (127.0.0.1) or `*:6432`: 0.0.0.0, and `[::]` if the machine has IPv6.
///
/// Other names are refused: an address to listen on belongs to this machine, so a look-up would only add a cause of
/// failure.
pub(crate) fn listen_addresses(text: &str) -> Result<Vec<SocketAddr>, ValueError> {
    let literals = match text.rsplit_once(':') {
        Some(("*" | "", port)) if can_be_bound(Ipv6Addr::UNSPECIFIED.into()) => {
            vec![format!("0.0.0.0:{port}"), format!("[::]:{port}")]
        }
        Some(("*" | "", port)) => vec![format!("0.0.0.0:{port}")],
        Some(("localhost", port)) => vec![format!("127.0.0.1:{port}")],
        _ => vec![text.to_owned()],
    };
    literals.iter().map(|literal| literal.parse()).collect::<Result<_, _>>().map_err(|_| {
        let help = "write an IP address and a port: 127.0.0.1:6432, [::1]:6432, or *:6432 for every interface";
        ValueError::new(format!("`{text}` is not an address to listen on"), help)
    })
}

/// Whether this machine has the address; a machine may have no IPv6.
pub(crate) fn can_be_bound(ip: IpAddr) -> bool {
    TcpListener::bind((ip, 0)).is_ok()
}

/// Maximum duration: ten years. A longer one is probably a wrong unit.
const DURATION_MAX: Duration = Duration::from_secs(3650 * 24 * 3600);

/// A duration: `"250ms"`, `"5s"`, `"2min"`, `"1h"`; `"0"` or `0` is [`Duration::ZERO`], which means off.
impl Setting for Duration {
    fn read(value: &RawValue) -> Result<Self, ValueError> {
        match value {
            RawValue::Integer(0) => Ok(Self::ZERO),
            RawValue::Integer(number) => {
                let help = format!("write \"{number}s\" or \"{number}ms\"");
                Err(ValueError::new(format!("{number} has no unit"), help))
            }
            other => duration(text(other, "\"5s\", \"250ms\", \"1h\", or 0 for off")?),
        }
    }

    fn show(&self) -> String {
        let (secs, nanos) = (self.as_secs(), self.subsec_nanos());
        match (secs, nanos) {
            (0, 0) => "0".to_owned(),
            (_, 0) => format!("{secs}s"),
            _ if nanos.is_multiple_of(1_000_000) => format!("{}ms", self.as_millis()),
            _ => format!("{}us", self.as_micros()),
        }
    }
}

pub(crate) fn duration(text: &str) -> Result<Duration, ValueError> {
    let written = text.trim();
    let error = |reason: String| {
        ValueError::new(reason, "write a number and its unit: \"250ms\", \"5s\", \"2min\", \"1h\"; 0 is off")
    };
    let split = written.find(|c: char| !c.is_ascii_digit()).unwrap_or(written.len());
    let (digits, unit) = written.split_at(split);
    let number: u64 = digits.parse().map_err(|_| error(format!("`{written}` is not a time")))?;
    let micros = match unit.trim() {
        "" if number == 0 => 0,
        "us" | "µs" => 1,
        "ms" => 1_000,
        "s" | "sec" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        "" => return Err(error(format!("`{written}` lacks a unit"))),
        other => return Err(error(format!("`{other}` is not a unit of time"))),
    };
    let total = number.checked_mul(micros).map(Duration::from_micros).filter(|total| *total <= DURATION_MAX);
    total.ok_or_else(|| error(format!("`{written}` is longer than ten years")))
}

/// The permission bits of a socket file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMode(pub u32);

impl Setting for FileMode {
    fn read(value: &RawValue) -> Result<Self, ValueError> {
        let help = "write the octal digits in quotes: \"0777\"";
        let RawValue::Text(text) = value else {
            return Err(ValueError::kind("a file mode", value, help));
        };
        match u32::from_str_radix(text, 8) {
            Ok(mode) if mode <= 0o777 => Ok(Self(mode)),
            _ => Err(ValueError::new(format!("`{text}` is not a file mode"), help)),
        }
    }

    fn show(&self) -> String {
        format!("{:04o}", self.0)
    }
}

/// Declares an enum whose values are words of the configuration.
macro_rules! words {
    ($($(#[$doc:meta])* pub enum $name:ident { $($(#[$word_doc:meta])* $variant:ident = $word:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$word_doc])* $variant,)* }

        impl $name {
            /// All words, in documentation order.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            /// The word in the configuration.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok(Self::$variant),)*
                    other => Err(format!("`{other}` is none of {}", Self::WORDS.join(", "))),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl $crate::setting::Setting for $name {
            fn read(value: &$crate::raw::RawValue) -> Result<Self, $crate::setting::ValueError> {
                let word = $crate::setting::text(value, &format!("\"{}\"", Self::WORDS[0]))?;
                word.parse().map_err(|_| $crate::setting::unknown_word(word, Self::WORDS))
            }

            fn show(&self) -> String {
                self.as_str().to_owned()
            }
        }
    )*};
}
pub(crate) use words;

/// The error for an unknown word.
pub(crate) fn unknown_word(word: &str, words: &[&str]) -> ValueError {
    let near = match nearest(word, words.iter().copied()) {
        Some(near) => format!("did you mean `{near}`? "),
        None => String::new(),
    };
    ValueError::new(format!("`{word}` is not a valid value"), format!("{near}it can be {}", words.join(", ")))
}

/// The most similar known name, if one is similar enough.
pub(crate) fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    // The comparison is quadratic, and no key is that long.
    if name.len() > 64 {
        return None;
    }
    let name = name.to_ascii_lowercase().replace('-', "_");
    let scored = known.map(|known| (strsim::jaro_winkler(&name, known), known));
    scored.filter(|(score, _)| *score > 0.8).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_and_shown() {
        for (text, shown) in
            [("250ms", "250ms"), ("5s", "5s"), ("2min", "120s"), ("1 h", "3600s"), ("0", "0"), ("0s", "0")]
        {
            assert_eq!(duration(text).map(|time| time.show()), Ok(shown.to_owned()), "{text}");
        }
        for text in ["", "5", "s", "5 parsecs", "-1s", "1.5s", "18446744073709551615s", "99999d"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_have_their_short_forms() {
        let shown = |text| listen_addresses(text).map(|addresses| addresses.show());
        let all = if can_be_bound(Ipv6Addr::UNSPECIFIED.into()) { "0.0.0.0:6432, [::]:6432" } else { "0.0.0.0:6432" };
        assert_eq!(shown("*:6432"), Ok(all.to_owned()));
        assert_eq!(shown("localhost:6432"), Ok("127.0.0.1:6432".to_owned()));
        assert_eq!(shown("[::1]:6432"), Ok("[::1]:6432".to_owned()));
        for text in ["example.org:6432", "127.0.0.1", "127.0.0.1:99999", "::1"] {
            assert!(shown(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_misspelled_name_finds_a_similar_one() {
        let known = ["max_clients", "backlog", "tls_cert"];
        assert_eq!(nearest("max_client", known.into_iter()), Some("max_clients"));
        assert_eq!(nearest("tls-cert", known.into_iter()), Some("tls_cert"));
        assert_eq!(nearest("zebra", known.into_iter()), None);
    }
}
