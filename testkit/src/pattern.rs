//! Patterns of expected messages, written with the type bytes of the protocol.

use crate::Message;

/// A word of a pattern: a message type, with an optional detail and an optional `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    tag: u8,
    detail: Option<String>,
    pub(crate) repeated: bool,
}

impl Expected {
    pub(crate) fn matches(&self, message: &Message) -> bool {
        self.tag == message.tag && self.detail.as_ref().is_none_or(|detail| detail_matches(detail, message))
    }

    fn word(word: &str) -> Self {
        let (word, repeated) = match word.strip_suffix('*') {
            Some(tag) if !tag.is_empty() => (tag, true),
            _ => (word, false),
        };
        let (tag, detail) = match word.split_once(':') {
            Some((tag, detail)) => (tag, Some(detail.to_owned())),
            None => (word, None),
        };
        assert_eq!(tag.len(), 1, "a word of a pattern is T, T:detail or T*: {word}");
        Self { tag: tag.as_bytes()[0], detail, repeated }
    }
}

/// `S:name` compares the name only, `S:name=value` also the value.
fn detail_matches(detail: &str, message: &Message) -> bool {
    let actual = message.detail();
    if message.tag == b'S' && !detail.contains('=') {
        return actual.split('=').next() == Some(detail);
    }
    actual == detail
}

pub(crate) fn words(pattern: &str) -> Vec<Expected> {
    pattern.split_whitespace().map(Expected::word).collect()
}
