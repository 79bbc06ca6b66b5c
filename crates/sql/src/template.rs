//! Statements that differ in literals only, known again without being taken apart.
//!
//! Of a text whose literals are cut out, the pieces between them are compared with another text. Where a number or a string
//! stood, any other may stand: it is a token of its own in both, as what is before it is the same and what is behind it
//! begins with the same byte. So both have the same tokens but for literals, and the same [`Normalized`].

use std::rc::Rc;

use crate::{normalize::literals, normalized::Normalized};

/// A text whose numbers and strings may be others.
pub(crate) struct Template {
    shape: Rc<Normalized>,
    /// The text without its literals.
    pieces: Box<[u8]>,
    /// Where they stood in it.
    gaps: Box<[Gap]>,
}

struct Gap {
    at: usize,
    literal: Literal,
}

#[derive(Clone, Copy)]
enum Literal {
    /// Digits alone.
    Number,
    /// Between quotes, with none within.
    String,
}

impl Template {
    pub(crate) fn new(text: &[u8], shape: Rc<Normalized>) -> Self {
        let (mut pieces, mut gaps, mut from) = (Vec::with_capacity(text.len()), Vec::new(), 0);
        for place in literals(text) {
            // Others stay where they are, and have to be the same.
            let Some(literal) = Literal::of(&text[place.clone()]) else { continue };
            pieces.extend_from_slice(&text[from..place.start]);
            gaps.push(Gap { at: pieces.len(), literal });
            from = place.end;
        }
        pieces.extend_from_slice(&text[from..]);
        Self { shape, pieces: pieces.into(), gaps: gaps.into() }
    }

    pub(crate) fn shape(&self) -> &Rc<Normalized> {
        &self.shape
    }

    /// Whether a text differs from the first one in such literals at most.
    pub(crate) fn fits(&self, text: &[u8]) -> bool {
        let (mut rest, mut from) = (text, 0);
        for gap in &self.gaps {
            let behind = rest.strip_prefix(&self.pieces[from..gap.at]);
            let Some(next) = behind.and_then(|behind| gap.literal.skip(behind)) else { return false };
            (rest, from) = (next, gap.at);
        }
        *rest == self.pieces[from..]
    }
}

impl Literal {
    fn of(text: &[u8]) -> Option<Self> {
        match text {
            [b'\'', inside @ .., b'\''] if !inside.contains(&b'\'') => Some(Self::String),
            _ if text.iter().all(u8::is_ascii_digit) => Some(Self::Number),
            _ => None,
        }
    }

    /// What is behind the literal that a text begins with.
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

    fn shape(text: &str) -> Normalized {
        let mut out = Vec::new();
        normalize(text.as_bytes(), &mut out);
        Normalized::new(&out, fingerprint(&out))
    }

    fn template(text: &str) -> Template {
        Template::new(text.as_bytes(), Rc::new(shape(text)))
    }

    #[test]
    fn other_literals_fit_and_nothing_else() {
        let text = "select a1 from t where b = 4711 and c = 'x' and d in (1, 2)";
        let template = template(text);
        for (other, fits) in [
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
            assert_eq!(template.fits(other.as_bytes()), fits, "{other}");
        }
    }

    /// Texts of few sorts of bytes, so that the likes of others come up.
    fn texts() -> impl Strategy<Value = String> {
        proptest::string::string_regex(
            "(select |a|e|x|[0-9]{1,2}|'|''|'b'|\\$1|\\$\\$|\\.|-|--\n|/\\*|\\*/|,|\\(| |\"|\\\\){0,12}",
        )
        .expect("it is a regular expression")
    }

    proptest! {
        #[test]
        fn whatever_fits_has_the_same_shape(one in texts(), other in texts()) {
            let template = template(&one);
            prop_assert!(template.fits(one.as_bytes()), "a text fits itself");
            if template.fits(other.as_bytes()) {
                prop_assert_eq!(&**template.shape(), &shape(&other));
            }
        }

        #[test]
        fn a_text_with_other_numbers_has_the_same_shape_if_it_fits(text in texts(), number in 0_u32..1000) {
            let digits = |byte: char| byte.is_ascii_digit();
            let mut other = String::new();
            for part in text.split_inclusive(digits) {
                other.push_str(part.trim_end_matches(digits));
                if part.ends_with(digits) {
                    other.push_str(&number.to_string());
                }
            }
            let template = template(&text);
            if template.fits(other.as_bytes()) {
                prop_assert_eq!(&**template.shape(), &shape(&other));
            }
        }
    }
}
