//! Escapes for text of clients, servers, sinks and files in terminals and logs.
//!
//! Such text may contain characters that move the cursor, change the title of a terminal, hide text or start a forged
//! line. These are the control characters (C0, DEL and C1, category `Cc`), the line and paragraph separators, and the
//! characters that change the text direction ("Trojan Source", CVE-2021-42574).

use std::{borrow::Cow, fmt::Write as _};

/// Whether a character must be escaped in terminals and logs.
#[must_use]
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}' | '\u{feff}'
        )
}

/// The text on one line, with unsafe characters as `\n`, `\u{1b}` and so on.
#[must_use]
pub fn escaped(text: &str) -> Cow<'_, str> {
    replaced(text, is_unsafe, |c, out| out.extend(c.escape_default()))
}

/// Escapes unsafe characters except line breaks.
#[must_use]
pub fn escaped_lines(text: &str) -> Cow<'_, str> {
    replaced(text, |c| c != '\n' && is_unsafe(c), |c, out| out.extend(c.escape_default()))
}

/// Equivalent JSON, with unsafe characters in strings as `\u009b` and so on. Line breaks are between its tokens only, and
/// stay.
#[must_use]
pub fn escaped_json(json: &str) -> Cow<'_, str> {
    replaced(
        json,
        |c| !matches!(c, '\n' | '\r' | '\t') && is_unsafe(c),
        |c, out| {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        },
    )
}

fn replaced(text: &str, is_meant: impl Fn(char) -> bool, put: impl Fn(char, &mut String)) -> Cow<'_, str> {
    // Fast path: most text is printable ASCII.
    if text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) || !text.contains(&is_meant) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_meant(c) { put(c, &mut out) } else { out.push(c) }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn unsafe_characters_are_escaped() {
        for (text, expected) in [
            ("größe 1", "größe 1"),
            ("a\u{1b}[2J\r\nb\tc", "a\\u{1b}[2J\\r\\nb\\tc"),
            ("\u{7f}\u{9b}31m\u{85}", "\\u{7f}\\u{9b}31m\\u{85}"),
            ("user\u{202e}nimda\u{2066}\u{2028}", "user\\u{202e}nimda\\u{2066}\\u{2028}"),
        ] {
            assert_eq!(escaped(text), expected);
        }
        assert_eq!(escaped_lines("a\nb\u{1b}c"), "a\nb\\u{1b}c");
    }

    proptest! {
        #[test]
        fn escaped_json_means_the_same(text in "\\PC{0,8}[\u{0}-\u{ff}\u{2028}-\u{202e}]{0,8}") {
            let json = serde_json::json!({ "a": text }).to_string();
            let escaped = escaped_json(&json);
            prop_assert!(!escaped.contains(is_unsafe), "{escaped}");
            let read: serde_json::Value = serde_json::from_str(&escaped).expect("JSON");
            prop_assert_eq!(read["a"].as_str(), Some(text.as_str()));
        }

        #[test]
        fn escaped_text_has_nothing_unsafe(text in "[\u{0}-\u{ff}\u{2000}-\u{20ff}a-z]{0,20}") {
            prop_assert!(!escaped(&text).contains(is_unsafe));
            prop_assert!(!escaped_lines(&text).contains(|c| c != '\n' && is_unsafe(c)));
        }
    }
}
