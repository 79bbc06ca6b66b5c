//! `key=value` pairs of a connection string; values with spaces are in single quotes.

use super::ini::unquote;
use crate::raw::SourceSpan;

/// A pair with its positions in the string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConnStrPair {
    pub(super) key: String,
    pub(super) key_at: SourceSpan,
    pub(super) value: String,
    pub(super) value_at: SourceSpan,
}

/// Parses all pairs.
///
/// # Errors
/// Why the string is invalid. Of its content, only keys are repeated.
pub(super) fn pairs(text: &str) -> Result<Vec<ConnStrPair>, String> {
    let mut pairs = Vec::new();
    let mut at = skip(text, 0);
    while at < text.len() {
        let rest = &text[at..];
        let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
        let key = &rest[..end];
        let equals = skip(text, at + end);
        if key.is_empty() || !text[equals..].starts_with('=') {
            return Err(if key.is_empty() { "a value has no key".into() } else { "a key has no `=`".into() });
        }
        let start = skip(text, equals + 1);
        let (value, length) =
            value(&text[start..]).ok_or_else(|| format!("the value of `{key}` has no closing quote"))?;
        if value.is_empty() {
            return Err(format!("`{key}` has no value"));
        }
        let key_at = at..at + end;
        pairs.push(ConnStrPair { key: key.to_owned(), key_at, value, value_at: start..start + length });
        at = skip(text, start + length);
    }
    Ok(pairs)
}

fn skip(text: &str, at: usize) -> usize {
    let rest = &text[at..];
    at + rest.len() - rest.trim_start().len()
}

/// A value and its length in bytes.
fn value(text: &str) -> Option<(String, usize)> {
    if let Some(quoted) = text.strip_prefix('\'') {
        return unquote(quoted, '\'').map(|(value, length)| (value, length + 1));
    }
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    Some((text[..end].to_owned(), end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Vec<(String, String)> {
        pairs(text).unwrap_or_else(|error| panic!("{text}: {error}")).into_iter().map(|p| (p.key, p.value)).collect()
    }

    #[test]
    fn values_may_be_quoted() {
        let found = read("host=a  port = 5 connect_query='select ''x'' ' user=b");
        let expected = [("host", "a"), ("port", "5"), ("connect_query", "select 'x' "), ("user", "b")];
        assert_eq!(found, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert!(read("  ").is_empty());
    }

    #[test]
    fn what_is_no_pair_is_refused_without_its_value() {
        for text in ["host", "=hunter2", "password='hunter2", "host= ", "hunter2 x=1", "a=''"] {
            let error = pairs(text).expect_err(text);
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,30}|[a-z=' ]{0,30}") {
            if let Ok(pairs) = pairs(&text) {
                prop_assert!(pairs.iter().all(|pair| text.get(pair.value_at.clone()).is_some()));
            }
        }
    }
}
