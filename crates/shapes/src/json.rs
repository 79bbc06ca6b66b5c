//! Writes JSON texts into a buffer. Rows are encoded once per change, so this is on the path of every change.

use std::io::Write as _;

/// Appends a string with its quotes. Bytes that are not UTF-8, as a database with encoding SQL_ASCII may hold, become U+FFFD.
pub(crate) fn push_string(out: &mut Vec<u8>, text: &[u8]) {
    match std::str::from_utf8(text) {
        Ok(_) => push_utf8(out, text),
        Err(_) => push_utf8(out, String::from_utf8_lossy(text).as_bytes()),
    }
}

fn push_utf8(out: &mut Vec<u8>, text: &[u8]) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)) {
        out.extend_from_slice(&rest[..at]);
        match rest[at] {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            // Writing to a Vec cannot fail.
            control => drop(write!(out, "\\u{control:04x}")),
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

/// Appends a number in decimal digits.
pub(crate) fn push_number(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(rest % 10).expect("a digit is below ten");
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_equal_those_of_serde_json() {
        let texts = ["", "a", "\"", "\\", "a\"b\\c\n\r\t\u{1}\u{1f}\u{7f}", "é😀", "\u{2028}", "{\"a\":[1]}"];
        for text in texts {
            let mut out = Vec::new();
            push_string(&mut out, text.as_bytes());
            let read: String = serde_json::from_slice(&out).unwrap();
            assert_eq!(read, text);
        }
        let mut out = Vec::new();
        push_string(&mut out, b"a\xffb");
        assert_eq!(String::from_utf8(out).unwrap(), "\"a\u{fffd}b\"");
    }

    #[test]
    fn numbers_are_decimal() {
        for number in [0, 9, 10, 12_345, u64::MAX] {
            let mut out = Vec::new();
            push_number(&mut out, number);
            assert_eq!(String::from_utf8(out).unwrap(), number.to_string());
        }
    }
}
