//! JSON encoder that writes into a reused buffer, so that a record needs no allocation.

use std::io::Write as _;

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// A key with quotes, a leading comma and a colon; at most [`JsonKey::BYTES_MAX`] bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonKey {
    text: [u8; Self::BYTES_MAX],
    len: usize,
}

impl JsonKey {
    const BYTES_MAX: usize = 16;

    /// # Panics
    /// If the name is too long. For a constant this is a compile error.
    pub(super) const fn new(name: &str) -> Self {
        let (name, mut text) = (name.as_bytes(), [0; Self::BYTES_MAX]);
        let mut at = 0;
        while at < name.len() {
            text[at + 2] = name[at];
            at += 1;
        }
        (text[0], text[1], text[at + 2], text[at + 3]) = (b',', b'"', b'"', b':');
        Self { text, len: at + 4 }
    }
}

/// Space for the largest number and for the bytes that are written beyond a shorter one.
const DIGITS_ROOM: usize = 24;

/// Appends the numbers that are present, with their keys.
pub(super) fn numbers(out: &mut Vec<u8>, numbers: &[(JsonKey, Option<u64>)]) {
    // Writes into a presized buffer: separate appends cost more than the digits.
    let (from, mut at) = (out.len(), 0);
    out.resize(from + numbers.len() * (JsonKey::BYTES_MAX + DIGITS_ROOM), 0);
    let place = &mut out[from..];
    for (JsonKey { text, len }, number) in numbers {
        if let Some(number) = *number {
            place[at..at + JsonKey::BYTES_MAX].copy_from_slice(text);
            at = digits(place, at + len, number);
        }
    }
    out.truncate(from + at);
}

/// Writes a number at `at` and returns the position after it.
#[inline]
fn digits(place: &mut [u8], mut at: usize, number: u64) -> usize {
    let (most, last) = (number / 10_000, (number % 10_000) as u32);
    let word = four_digits(last);
    let mut zeros = 0;
    if most > 0 {
        at = more_digits(place, at, most);
    } else {
        // Zero has one digit.
        zeros = (word.trailing_zeros() / 8).min(3);
    }
    // Four digits without leading zeros. The bytes after them are overwritten or truncated by the caller.
    let text = (word | u32::from_le_bytes(*b"0000")) >> (8 * zeros);
    place[at..at + 4].copy_from_slice(&text.to_le_bytes());
    at + 4 - zeros as usize
}

#[inline(never)]
fn more_digits(place: &mut [u8], at: usize, number: u64) -> usize {
    digits(place, at, number)
}

/// Decimal digits of a number below 10,000, the first one in the lowest byte. Both halves of two digits are divided at the
/// same time: a tenth is 103/1024 for numbers below 179.
fn four_digits(number: u32) -> u32 {
    let halves = (number / 100) | (number % 100) << 16;
    let tens = ((halves * 103) >> 10) & 0x000f_000f;
    tens | (halves - tens * 10) << 8
}

/// Writes a number right-aligned, with leading zeros.
pub(super) fn put_digits(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Appends a number as 16 hexadecimal digits, in quotes.
pub(super) fn hex16(out: &mut Vec<u8>, number: u64) {
    let mut text = [b'"'; 18];
    for (at, digit) in text[1..17].iter_mut().enumerate() {
        *digit = HEX[(number >> (60 - 4 * at)) as usize & 15];
    }
    out.extend_from_slice(&text);
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Appends a string in quotes. Invalid UTF-8 becomes U+FFFD, because a client may use another encoding.
pub(super) fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    string_body(out, bytes);
    out.push(b'"');
}

/// Appends the content of a string, without the quotes.
#[inline]
pub(super) fn string_body(out: &mut Vec<u8>, bytes: &[u8]) {
    if is_plain(bytes) { out.extend_from_slice(bytes) } else { escape_non_plain(out, bytes) }
}

/// Whether the text is ASCII without characters to escape, as most texts are. Tests eight bytes at a time.
#[inline]
fn is_plain(bytes: &[u8]) -> bool {
    let is_odd = |eight: &[u8; 8]| {
        let word = u64::from_le_bytes(*eight);
        is_below_space(word) | has(word, b'"') | has(word, b'\\') | (word & HIGH)
    };
    let (words, rest) = bytes.as_chunks::<8>();
    // Tests the last eight bytes again instead of the remainder byte by byte.
    let last = bytes.last_chunk::<8>().filter(|_| !rest.is_empty()).map_or(0, is_odd);
    let is_short = words.is_empty();
    words.iter().fold(last, |odd, word| odd | is_odd(word)) == 0
        && (!is_short || rest.iter().all(|byte| !needs_escape(*byte) && byte.is_ascii()))
}

#[cold]
fn escape_non_plain(out: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        push_escaped(out, chunk.valid().as_bytes());
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}

/// Appends bytes as hexadecimal digits.
pub(super) fn hex(out: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    }
}

fn push_escaped(out: &mut Vec<u8>, mut bytes: &[u8]) {
    loop {
        let plain = plain_prefix(bytes);
        out.extend_from_slice(&bytes[..plain]);
        let Some((&special, rest)) = bytes[plain..].split_first() else { return };
        push_escape(out, special);
        bytes = rest;
    }
}

/// Length of the prefix without characters to escape. Tests eight bytes at a time.
fn plain_prefix(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(eight) = bytes.get(at..at + 8) {
        let word = u64::from_le_bytes(eight.try_into().unwrap_or_default());
        let special = is_below_space(word) | has(word, b'"') | has(word, b'\\');
        if special != 0 {
            break;
        }
        at += 8;
    }
    at + bytes[at..].iter().position(|byte| needs_escape(*byte)).unwrap_or(bytes.len() - at)
}

fn needs_escape(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// Not zero if a byte of the word is below 0x20 (Bit Twiddling Hacks, "Determine if a word has a byte less than n").
fn is_below_space(word: u64) -> u64 {
    word.wrapping_sub(LOW * 0x20) & !word & HIGH
}

/// Not zero if a byte of the word equals `byte`.
fn has(word: u64, byte: u8) -> u64 {
    let zero_where = word ^ (LOW * u64::from(byte));
    zero_where.wrapping_sub(LOW) & !zero_where & HIGH
}

#[cold]
fn push_escape(out: &mut Vec<u8>, byte: u8) {
    match byte {
        b'"' => out.extend_from_slice(b"\\\""),
        b'\\' => out.extend_from_slice(b"\\\\"),
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        b'\t' => out.extend_from_slice(b"\\t"),
        // Writing to a vector cannot fail.
        _ => drop(write!(out, "\\u{byte:04x}")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_read_back_by_a_json_reader(text in any::<String>()) {
            let mut out = Vec::new();
            string(&mut out, text.as_bytes());
            prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        }

        #[test]
        fn any_bytes_become_json(bytes in any::<Vec<u8>>()) {
            let mut out = Vec::new();
            string(&mut out, &bytes);
            prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn any_number_is_its_digits(value in any::<u64>()) {
            let mut out = b"{".to_vec();
            let (a, b) = (JsonKey::new("a"), JsonKey::new("server_pid"));
            numbers(&mut out, &[(a, Some(value)), (b, None), (b, Some(value >> (value % 64))), (a, None)]);
            let expected = format!("{{,\"a\":{value},\"server_pid\":{}", value >> (value % 64));
            prop_assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn four_digits_are_those_of_the_number() {
        for number in 0..10_000_u32 {
            let text = four_digits(number).to_le_bytes().map(|digit| b'0' + digit);
            assert_eq!(text, format!("{number:04}").as_bytes());
        }
    }

    #[test]
    fn a_fingerprint_has_all_its_digits() {
        let mut out = Vec::new();
        hex16(&mut out, 0x00ab_cdef_0123_4567);
        assert_eq!(out, br#""00abcdef01234567""#);
    }
}
