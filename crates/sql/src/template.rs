//! Recognises statements that differ from a known statement in literals only, without tokenising them.
//!
//! A [`Template`] stores the pieces of a text between its literals. Another text matches if it has the same pieces and a number
//! or a string in each gap. Both texts then have the same tokens except for literals, and the same [`Normalized`]: a literal is a
//! token of its own in both, because the text before it is the same and the text after it begins with the same byte.

use std::rc::Rc;

use crate::{normalize::literals, normalized::Normalized};

/// A statement text whose numbers and strings may vary.
pub(crate) struct Template {
    normalized: Rc<Normalized>,
    /// The text without its literals.
    pieces: Box<[u8]>,
    /// Offsets of the literals in `pieces`.
    gaps: Box<[TemplateGap]>,
}

struct TemplateGap {
    at: usize,
    literal: LiteralKind,
}

#[derive(Clone, Copy)]
enum LiteralKind {
    /// Digits only.
    Number,
    /// Single quotes without a quote between them.
    String,
}

impl Template {
    pub(crate) fn new(text: &[u8], normalized: Rc<Normalized>) -> Self {
        let (mut pieces, mut gaps, mut from) = (Vec::with_capacity(text.len()), Vec::new(), 0);
        for span in literals(text) {
            // Literals of other kinds stay in the pieces and have to be equal.
            let Some(literal) = LiteralKind::new(&text[span.clone()]) else { continue };
            pieces.extend_from_slice(&text[from..span.start]);
            gaps.push(TemplateGap { at: pieces.len(), literal });
            from = span.end;
        }
        pieces.extend_from_slice(&text[from..]);
        Self { normalized, pieces: pieces.into(), gaps: gaps.into() }
    }

    pub(crate) fn normalized(&self) -> &Rc<Normalized> {
        &self.normalized
    }

    /// Whether `text` equals the text of the template except for such literals.
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        let (mut rest, mut from) = (text, 0);
        for gap in &self.gaps {
            let after = rest.strip_prefix(&self.pieces[from..gap.at]);
            let Some(next) = after.and_then(|after| gap.literal.skip(after)) else { return false };
            (rest, from) = (next, gap.at);
        }
        *rest == self.pieces[from..]
    }
}

impl LiteralKind {
    fn new(text: &[u8]) -> Option<Self> {
        match text {
            [b'\'', inside @ .., b'\''] if !inside.contains(&b'\'') => Some(Self::String),
            _ if text.iter().all(u8::is_ascii_digit) => Some(Self::Number),
            _ => None,
        }
    }

    /// Returns the text after the literal at the start of `text`.
    fn skip(self, text: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Number => {
                let digits = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
                (digits > 0).then(|| &text[digits..])
            }
            Self::String => {
                let inside = text.strip_prefix(b"'")?;
                memchr::memchr(b'\'', inside).map(|end| &inside[end + 1..])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::normalize::{fingerprint, normalize};

    fn normalized(text: &str) -> Normalized {
        let mut out = Vec::new();
        normalize(text.as_bytes(), &mut out);
        Normalized::new(&out, fingerprint(&out))
    }

    fn template(text: &str) -> Template {
        Template::new(text.as_bytes(), Rc::new(normalized(text)))
    }

    #[test]
    fn only_texts_with_other_literals_match() {
        let text = "select a1 from t where b = 4711 and c = 'x' and d in (1, 2)";
        let template = template(text);
        for (other, matches) in [
            (text, true),
            ("select a1 from t where b = 1 and c = '' and d in (33, 4)", true),
            ("select a1 from t where b = 1 and c = 'it''s' and d in (33, 4)", false),
            ("select a1 from t where b = 1.5 and c = 'x' and d in (1, 2)", false),
            ("select a1 from t where b = 1e and c = 'x' and d in (1, 2)", false),
            ("select a2 from t where b = 1 and c = 'x' and d in (1, 2)", false),
            ("select a1 from t where b = 1 and c = 'x' and d in (1, 2, 3)", false),
            ("select a1 from t where b = 1 and c = 'x' and d in (1, 2) ", false),
            ("select a1 from t where b = and c = 'x' and d in (1, 2)", false),
            ("select a1 from t where b = 1", false),
            ("", false),
        ] {
            assert_eq!(template.matches(other.as_bytes()), matches, "{other}");
        }
    }

    /// Texts over a small alphabet, so that similar texts are frequent.
    fn texts() -> impl Strategy<Value = String> {
        proptest::string::string_regex(
            "(select |a|e|x|[0-9]{1,2}|'|''|'b'|\\$1|\\$\\$|\\.|-|--\n|/\\*|\\*/|,|\\(| |\"|\\\\){0,12}",
        )
        .expect("a valid regular expression")
    }

    proptest! {
        #[test]
        fn matching_texts_normalize_equally(one in texts(), other in texts()) {
            let template = template(&one);
            prop_assert!(template.matches(one.as_bytes()), "a text matches itself");
            if template.matches(other.as_bytes()) {
                prop_assert_eq!(&**template.normalized(), &normalized(&other));
            }
        }

        #[test]
        fn texts_with_other_numbers_normalize_equally(text in texts(), number in 0_u32..1000) {
            let digits = |byte: char| byte.is_ascii_digit();
            let mut other = String::new();
            for part in text.split_inclusive(digits) {
                other.push_str(part.trim_end_matches(digits));
                if part.ends_with(digits) {
                    other.push_str(&number.to_string());
                }
            }
            let template = template(&text);
            if template.matches(other.as_bytes()) {
                prop_assert_eq!(&**template.normalized(), &normalized(&other));
            }
        }
    }
}
