//! A position in a journal, with its text form.

use std::collections::BTreeMap;

/// A position in all stripes of a journal. The text form is `name/stripe:segment+offset`, with commas between stripes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReaderPosition(pub(super) BTreeMap<(String, u16), SegmentOffset>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SegmentOffset {
    pub(super) segment: u64,
    pub(super) offset: u64,
}

impl ReaderPosition {
    /// The stripes of a journal, and the segment of the position in each.
    pub(crate) fn segments<'a>(&'a self, journal: &'a str) -> impl Iterator<Item = (u16, u64)> + 'a {
        let of_journal = self.0.iter().filter(move |((name, _), _)| name == journal);
        of_journal.map(|((_, stripe), at)| (*stripe, at.segment))
    }
}

impl std::fmt::Display for ReaderPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, ((journal, stripe), SegmentOffset { segment, offset })) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{journal}/{stripe}:{segment}+{offset}")?;
        }
        Ok(())
    }
}

/// A text that is not a position.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not a position; a position looks like `journal/0:12+4096`, with commas between stripes")]
pub struct ParsePositionError(String);

impl std::str::FromStr for ReaderPosition {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, ParsePositionError> {
        let parse = |part: &str| {
            let (stripe, at) = part.split_once(':')?;
            let ((journal, stripe), (segment, offset)) = (stripe.split_once('/')?, at.split_once('+')?);
            let at = SegmentOffset { segment: segment.parse().ok()?, offset: offset.parse().ok()? };
            Some(((journal.to_owned(), stripe.parse().ok()?), at))
        };
        let parts: Option<_> = text.split(',').filter(|part| !part.is_empty()).map(parse).collect();
        parts.map(Self).ok_or_else(|| ParsePositionError(text.to_owned()))
    }
}
