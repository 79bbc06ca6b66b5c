//! Text from clients, servers, sinks and files, made safe for terminals and logs.
//!
//! Such text may hold characters that move the cursor, set the title of a terminal, hide what follows, or begin a new line
//! that looks like one of ours. They are the control characters (C0, DEL and C1, category `Cc`), the separators of lines and
//! paragraphs, and the characters that change the direction of text ("Trojan Source", CVE-2021-42574).

use std::{borrow::Cow, fmt::Write as _};

/// Whether a character must not reach a terminal or a log as it is.
#[must_use]
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}' | '\u{feff}'
        )
}

/// The text on one line, with `\n`, `\u{1b}` and the like in place of what is unsafe.
#[must_use]
pub fn escaped(text: &str) -> Cow<'_, str> {
    replaced(text, is_unsafe, |c, out| out.extend(c.escape_default()))
}

/// The same for a text of several lines, which stay apart.
#[must_use]
pub fn escaped_lines(text: &str) -> Cow<'_, str> {
    replaced(text, |c| c != '\n' && is_unsafe(c), |c, out| out.extend(c.escape_default()))
}

/// JSON of the same meaning: within its strings what is unsafe becomes `\u009b` and the like. Line breaks stand between its
/// parts only, and stay.
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
    // Most of it is plain ASCII, which is fast to see.
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
    fn nothing_moves_the_cursor_or_turns_the_text() {
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
