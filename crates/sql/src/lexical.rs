//! Lexical rules of Postgres (`src/backend/parser/scan.l`) that hold under all settings: blanks, names, comments and dollar
//! quotes.
//!
//! Two readers use them. Classification skips what it need not understand and splits a text with a backslash at every semicolon,
//! because the end of such a string depends on `standard_conforming_strings`. Normalisation needs every token, so it reads
//! escapes, numbers and operators as well.

/// Whether Postgres treats a byte as white space; vertical tab since version 16.
pub(crate) const fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Whether a byte may begin an unquoted name.
pub(crate) const fn begins_name(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || !byte.is_ascii()
}

/// Whether a byte may occur in an unquoted name after the first byte.
pub(crate) const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || !byte.is_ascii()
}

/// Returns the offset of the line break that ends the comment at `at`, or the length of the text.
pub(crate) fn end_of_line_comment(text: &[u8], at: usize) -> usize {
    memchr::memchr2(b'\n', b'\r', &text[at..]).map_or(text.len(), |end| at + end)
}

/// Returns the offset after the block comment at `at`. Comments nest; an unterminated one ends with the text.
pub(crate) fn end_of_comment(text: &[u8], at: usize) -> usize {
    let (mut depth, mut next) = (0_usize, at);
    while next < text.len() {
        if text[next..].starts_with(b"/*") {
            depth += 1;
            next += 2;
        } else if text[next..].starts_with(b"*/") {
            depth -= 1;
            next += 2;
            if depth == 0 {
                return next;
            }
        } else {
            next += 1;
        }
    }
    text.len()
}

/// A string quoted by `$tag$`.
pub(crate) struct DollarQuoted {
    /// Offset after the closing tag, or the length of the text.
    pub(crate) end: usize,
    /// The text ends within the string.
    pub(crate) is_open: bool,
}

/// The string whose opening tag is at `at`; `None` if the dollar sign there begins none, as in `$1`.
pub(crate) fn dollar_quoted(text: &[u8], at: usize) -> Option<DollarQuoted> {
    let tag_len = text[at + 1..].iter().take_while(|byte| is_name_byte(**byte) && **byte != b'$').count();
    let tag_end = at + 1 + tag_len;
    if text.get(tag_end) != Some(&b'$') || text[at + 1..tag_end].first().is_some_and(u8::is_ascii_digit) {
        return None;
    }
    let tag = &text[at..=tag_end];
    let close = memchr::memmem::find(&text[tag_end + 1..], tag);
    let end = close.map_or(text.len(), |close| tag_end + 1 + close + tag.len());
    Some(DollarQuoted { end, is_open: close.is_none() })
}
