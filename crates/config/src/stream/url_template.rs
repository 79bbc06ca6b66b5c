//! A URL with places for parts of a record: `http://host/orders/{/id}`.

use super::record_field::RecordField;
use crate::{
    raw::RawValue,
    setting::{Setting as _, ValueError},
};

/// A URL with places for parts of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrlTemplate(pub Vec<UrlPart>);

/// A part of a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UrlPart {
    /// Text as it is written.
    Text(String),
    /// A part of the record, percent-encoded.
    Field(RecordField),
}

impl UrlTemplate {
    /// Parses a URL.
    ///
    /// # Errors
    /// If a brace is not closed, names no part of a record, or is not in the path or query.
    pub fn parse(url: &str) -> Result<Self, ValueError> {
        let error = |reason: String| ValueError::new(reason, "write for instance http://host/orders/{key}?id={/id}");
        let path = url.find("://").and_then(|at| url[at + 3..].find(['/', '?']).map(|path| at + 3 + path));
        let (mut parts, mut rest) = (Vec::new(), url);
        while let Some(open) = rest.find('{') {
            let at = url.len() - rest.len() + open;
            if path.is_none_or(|path| at < path) {
                return Err(error("a part of the record can only be in the path or the query of the URL".to_owned()));
            }
            let Some(close) = rest[open..].find('}').map(|close| open + close) else {
                return Err(error("a brace in the URL is not closed".to_owned()));
            };
            if open > 0 {
                parts.push(UrlPart::Text(rest[..open].to_owned()));
            }
            parts.push(UrlPart::Field(RecordField::read(&RawValue::Text(rest[open + 1..close].to_owned()))?));
            rest = &rest[close + 1..];
        }
        if !rest.is_empty() {
            parts.push(UrlPart::Text(rest.to_owned()));
        }
        Ok(Self(parts))
    }

    /// The URL, if it is the same for every record.
    #[must_use]
    pub fn constant(&self) -> Option<&str> {
        match self.0.as_slice() {
            [UrlPart::Text(url)] => Some(url),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_record_are_found() {
        let parts = |url: &str| UrlTemplate::parse(url).map(|template| template.0);
        let text = |text: &str| UrlPart::Text(text.to_owned());
        assert_eq!(
            parts("http://h/a/{key}?n={/n}"),
            Ok(vec![
                text("http://h/a/"),
                UrlPart::Field(RecordField::Key),
                text("?n="),
                UrlPart::Field(RecordField::Pointer("/n".to_owned())),
            ])
        );
        assert_eq!(parts("http://h/a"), Ok(vec![text("http://h/a")]));
        for url in ["http://{key}/a", "http://h/{key", "http://h/{kye}"] {
            assert!(parts(url).is_err(), "{url}");
        }
    }
}
