//! The parent of a statement in a distributed trace: W3C `traceparent`, in a comment of the statement or in a SET.
//!
//! Instrumented clients append `/*traceparent='00-<trace id>-<span id>-<flags>'*/` to each statement
//! (<https://google.github.io/sqlcommenter/spec/>), or put it in front. The text is then different each time, so a cache of
//! statements needs the text without it.

use std::fmt;

/// Limit of a comment; longer ones are not read.
const COMMENT_BYTES_MAX: usize = 1024;
/// `00-<32>-<16>-<2>`.
const TRACEPARENT_BYTES: usize = 55;
const KEY: &[u8] = b"traceparent='";
/// Parameter of `SET LOCAL`, for clients that cannot add comments.
const PARAMETER: &[u8] = b"tidegate.traceparent";

/// Position in a trace (<https://www.w3.org/TR/trace-context/>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Number of the trace; not zero.
    pub trace_id: [u8; 16],
    /// Number of the span that caused the statement; not zero.
    pub span_id: [u8; 8],
    /// Bit 0: the caller records the trace.
    pub flags: u8,
}

impl TraceParent {
    /// Parses `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (version, rest) = (text.get(..2)?, text.get(TRACEPARENT_BYTES..)?);
        let is_separated = text[2] == b'-' && text[35] == b'-' && text[52] == b'-';
        // Later versions may append fields; version 255 is invalid.
        let has_end = rest.is_empty() || (version != b"00" && rest[0] == b'-');
        if !is_separated || !has_end || byte(version)? == 0xff {
            return None;
        }
        let parent =
            Self { trace_id: bytes(&text[3..35])?, span_id: bytes(&text[36..52])?, flags: byte(&text[53..55])? };
        (parent.trace_id != [0; 16] && parent.span_id != [0; 8]).then_some(parent)
    }

    /// Whether the caller records the trace.
    #[must_use]
    pub const fn is_sampled(&self) -> bool {
        self.flags & 1 != 0
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace_id, span_id) = (u128::from_be_bytes(self.trace_id), u64::from_be_bytes(self.span_id));
        write!(f, "00-{trace_id:032x}-{span_id:016x}-{:02x}", self.flags)
    }
}

fn byte(digits: &[u8]) -> Option<u8> {
    bytes::<1>(digits).map(|[byte]| byte)
}

/// Lower-case hexadecimal digits.
fn bytes<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut out = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

/// The statement without its comment, and the parent in it. A text without such a comment is returned as it is.
///
/// Both parts mean the same to the server as the whole: the comment is complete, and contains no other comment and an even
/// number of quotes, so that what is in front of it cannot be a literal that it ends.
#[must_use]
pub fn split_comment(text: &[u8]) -> (&[u8], Option<TraceParent>) {
    // Most texts have neither.
    let end = text.iter().rposition(|byte| !byte.is_ascii_whitespace() && *byte != b';').map_or(0, |last| last + 1);
    if text[..end].ends_with(b"*/")
        && let Some((from, parent)) = trailing(&text[..end])
    {
        return (text[..from].trim_ascii_end(), Some(parent));
    }
    if text.starts_with(b"/*")
        && let Some((to, parent)) = leading(text)
    {
        return (text[to..].trim_ascii_start(), Some(parent));
    }
    (text, None)
}

fn trailing(text: &[u8]) -> Option<(usize, TraceParent)> {
    let body = &text[..text.len() - 2];
    let first = body.len().saturating_sub(COMMENT_BYTES_MAX);
    let from = first + memchr::memmem::rfind(&body[first..], b"/*")?;
    Some((from, in_comment(&body[from + 2..])?))
}

fn leading(text: &[u8]) -> Option<(usize, TraceParent)> {
    let window = &text[2..text.len().min(COMMENT_BYTES_MAX)];
    let to = memchr::memmem::find(window, b"*/")?;
    Some((to + 4, in_comment(&window[..to])?))
}

fn in_comment(comment: &[u8]) -> Option<TraceParent> {
    let has = |needle: &[u8]| memchr::memmem::find(comment, needle).is_some();
    let quotes = comment.iter().filter(|byte| **byte == b'\'').count();
    if has(b"*/") || has(b"/*") || !quotes.is_multiple_of(2) {
        return None;
    }
    let at = memchr::memmem::find(comment, KEY)?;
    let is_key = at == 0 || matches!(comment[at - 1], b',' | b' ');
    let value = &comment[at + KEY.len()..];
    let end = memchr::memchr(b'\'', value)?;
    TraceParent::parse(&value[..end]).filter(|_| is_key)
}

/// The parent of `SET LOCAL tidegate.traceparent = '...'`, which holds for the rest of the transaction.
#[must_use]
pub fn in_set_local(text: &[u8]) -> Option<TraceParent> {
    let text = text.trim_ascii();
    // Nearly all statements are something else.
    if !text.first_chunk::<4>().is_some_and(|first| first.eq_ignore_ascii_case(b"set ")) {
        return None;
    }
    let rest = after_word(&text[4..], b"local")?;
    let rest = after_word(rest, PARAMETER)?;
    let value = rest.strip_prefix(b"=").or_else(|| after_word(rest, b"to"))?.trim_ascii();
    let value = value.strip_suffix(b";").unwrap_or(value).trim_ascii_end();
    TraceParent::parse(value.strip_prefix(b"'")?.strip_suffix(b"'")?)
}

fn after_word<'t>(text: &'t [u8], word: &[u8]) -> Option<&'t [u8]> {
    let text = text.trim_ascii_start();
    let (head, rest) = text.split_at_checked(word.len())?;
    let is_end = rest.first().is_none_or(|next| !next.is_ascii_alphanumeric() && *next != b'_');
    (head.eq_ignore_ascii_case(word) && is_end).then(|| rest.trim_ascii_start())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn traceparent_is_parsed_as_w3c_specifies() {
        let parent = TraceParent::parse(PARENT.as_bytes()).expect("valid");
        assert!(parent.is_sampled());
        assert_eq!(parent.to_string(), PARENT);
        let later = TraceParent::parse(format!("cc{}-more", &PARENT[2..]).as_bytes()).expect("a later version");
        assert_eq!(later, parent);
        for invalid in [
            "",
            &PARENT[..54],
            &format!("{PARENT}-more"),
            &format!("ff{}", &PARENT[2..]),
            &PARENT.to_uppercase(),
            &PARENT.replace('-', "_"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        ] {
            assert_eq!(TraceParent::parse(invalid.as_bytes()), None, "{invalid}");
        }
    }

    #[test]
    fn comment_is_split_from_the_statement() {
        for (text, expected) in [
            (format!("select 1 /*traceparent='{PARENT}'*/"), "select 1"),
            (format!("select 1 /*action='a%20b',traceparent='{PARENT}',tracestate='x%3D1'*/ ; "), "select 1"),
            (format!("select 1; /* traceparent='{PARENT}' */"), "select 1;"),
            (format!("/*traceparent='{PARENT}'*/ select 1"), "select 1"),
            (format!("select '{PARENT}' /*traceparent='{PARENT}'*/"), &*format!("select '{PARENT}'")),
        ] {
            let (statement, parent) = split_comment(text.as_bytes());
            assert_eq!(String::from_utf8_lossy(statement), expected);
            assert_eq!(parent.map(|parent| parent.to_string()).as_deref(), Some(PARENT), "{text}");
        }
    }

    #[test]
    fn other_texts_stay_as_they_are() {
        for text in [
            "select 1".to_owned(),
            "select 1 /* no parent */".to_owned(),
            "*/".to_owned(),
            "/*".to_owned(),
            format!("select '/*traceparent='{PARENT}*/"),
            format!("select 1 /*traceparent='{PARENT}',x='*/"),
            format!("select 1 /*xtraceparent='{PARENT}'*/"),
            format!("select 1 /*a*/ + 2 -- traceparent='{PARENT}'"),
            format!("/* a /*traceparent='{PARENT}'*/ b */ select 1"),
            format!("select 1 /*{} traceparent='{PARENT}'*/", " ".repeat(2000)),
        ] {
            assert_eq!(split_comment(text.as_bytes()), (text.as_bytes(), None), "{text}");
        }
    }

    #[test]
    fn set_local_has_a_parent() {
        for text in [
            format!("SET LOCAL tidegate.traceparent = '{PARENT}'"),
            format!(" set local\nTIDEGATE.traceparent to '{PARENT}' ; "),
            format!("set local tidegate.traceparent='{PARENT}'"),
        ] {
            assert!(in_set_local(text.as_bytes()).is_some(), "{text}");
        }
        for text in [
            "set local".to_owned(),
            format!("set tidegate.traceparent = '{PARENT}'"),
            format!("set local tidegate.traceparents = '{PARENT}'"),
            format!("set local tidegate.traceparent '{PARENT}'"),
            "set local tidegate.traceparent = 'x'".to_owned(),
        ] {
            assert_eq!(in_set_local(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_text_is_accepted(text in "(/\\*|\\*/|traceparent='|'|;| |select|00-[0-9a-f]{32}-[0-9a-f]{16}-01){0,12}") {
            let (statement, parent) = split_comment(text.as_bytes());
            prop_assert!(statement.len() < text.len() || parent.is_none());
            let _ = in_set_local(text.as_bytes());
        }
    }
}
