//! JSON, written by hand into a buffer that is used again and again: a record costs no allocation.

use std::io::Write as _;

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// Appends a number.
pub(super) fn number(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
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

/// Appends a string in quotes. What is no UTF-8 becomes U+FFFD, as a client may speak another encoding.
pub(super) fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    inside(out, bytes);
    out.push(b'"');
}

/// [`string`] without the quotes.
#[inline]
pub(super) fn inside(out: &mut Vec<u8>, bytes: &[u8]) {
    if is_plain(bytes) { out.extend_from_slice(bytes) } else { inside_slowly(out, bytes) }
}

/// ASCII without anything to escape, as almost all texts are; eight bytes at a time.
#[inline]
fn is_plain(bytes: &[u8]) -> bool {
    let is_odd = |eight: &[u8; 8]| {
        let word = u64::from_le_bytes(*eight);
        is_below_space(word) | has(word, b'"') | has(word, b'\\') | (word & HIGH)
    };
    let (words, rest) = bytes.as_chunks::<8>();
    // The last eight once more, rather than the rest one by one.
    let last = bytes.last_chunk::<8>().filter(|_| !rest.is_empty()).map_or(0, is_odd);
    let is_short = words.is_empty();
    words.iter().fold(last, |odd, word| odd | is_odd(word)) == 0
        && (!is_short || rest.iter().all(|byte| !is_special(*byte) && byte.is_ascii()))
}

#[cold]
fn inside_slowly(out: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        escaped(out, chunk.valid().as_bytes());
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

fn escaped(out: &mut Vec<u8>, mut bytes: &[u8]) {
    loop {
        let plain = plain_prefix(bytes);
        out.extend_from_slice(&bytes[..plain]);
        let Some((&special, rest)) = bytes[plain..].split_first() else { return };
        escape(out, special);
        bytes = rest;
    }
}

/// How many bytes need no escape; eight at a time, as almost all texts need none.
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
    at + bytes[at..].iter().position(|byte| is_special(*byte)).unwrap_or(bytes.len() - at)
}

fn is_special(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// Not zero if a byte of the word is below 0x20 (Bit Twiddling Hacks, "Determine if a word has a byte less than n").
fn is_below_space(word: u64) -> u64 {
    word.wrapping_sub(LOW * 0x20) & !word & HIGH
}

/// Not zero if a byte of the word is that one.
fn has(word: u64, byte: u8) -> u64 {
    let zero_where = word ^ (LOW * u64::from(byte));
    zero_where.wrapping_sub(LOW) & !zero_where & HIGH
}

#[cold]
fn escape(out: &mut Vec<u8>, byte: u8) {
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
            let mut out = Vec::new();
            number(&mut out, value);
            prop_assert_eq!(out, value.to_string().into_bytes());
        }
    }

    #[test]
    fn a_fingerprint_has_all_its_digits() {
        let mut out = Vec::new();
        hex16(&mut out, 0x00ab_cdef_0123_4567);
        assert_eq!(out, br#""00abcdef01234567""#);
    }
}
