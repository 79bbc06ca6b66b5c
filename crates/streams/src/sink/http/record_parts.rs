//! Parts of a record in the URL and the headers of its request.

use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use tidegate_config::stream::{UrlPart, UrlTemplate};
use tidegate_lanes::{Record, RecordFailure};

use crate::{lane_names::LaneNames, parameters::parameters};

/// Headers that belong to the connection or that the client sets itself.
const OWN_HEADERS: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The URL for a record.
///
/// # Errors
/// If the record lacks a part, or a part would change the path: it is empty, `.` or `..`.
pub(super) fn uri(template: &UrlTemplate, record: &Record, lanes: &LaneNames) -> Result<Uri, RecordFailure> {
    let mut url = String::new();
    for part in &template.0 {
        match part {
            UrlPart::Text(text) => url.push_str(text),
            UrlPart::Field(field) => {
                let value = parameters(std::slice::from_ref(field), record, lanes)?.pop().flatten();
                match value.as_deref() {
                    None | Some("" | "." | "..") => {
                        let name = tidegate_config::stream::field_name(field);
                        return Err(RecordFailure::permanent(format!(
                            "its `{name}` cannot be a part of a URL: {value:?}"
                        )));
                    }
                    Some(value) => encode(value, &mut url),
                }
            }
        }
    }
    url.parse().map_err(|error| RecordFailure::permanent(format!("its URL is invalid: {error}")))
}

/// Percent-encodes all but the unreserved characters of RFC 3986.
fn encode(value: &str, url: &mut String) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            url.push(char::from(byte));
        } else {
            let _ = write!(url, "%{byte:02X}");
        }
    }
}

/// Adds headers of the record; `*` stands for all.
///
/// # Errors
/// If a named header cannot be sent.
pub(super) fn add_headers(
    record: &Record,
    names: &[String],
    fixed: &[HeaderName],
    headers: &mut HeaderMap,
) -> Result<(), RecordFailure> {
    for header in record.headers() {
        let is_named = names.iter().any(|name| name.eq_ignore_ascii_case(&header.name));
        if !is_named && !names.iter().any(|name| name == "*") {
            continue;
        }
        let name = HeaderName::try_from(&*header.name).ok();
        let value = HeaderValue::from_bytes(header.value.as_deref().unwrap_or_default()).ok();
        match (name, value) {
            (Some(name), _) if OWN_HEADERS.contains(&name.as_str()) || fixed.contains(&name) => {}
            (Some(name), Some(value)) => drop(headers.insert(name, value)),
            _ => {
                return Err(RecordFailure::permanent(format!(
                    "its header `{}` cannot be sent",
                    header.name.escape_debug()
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tidegate_lanes::{Epoch, Header, Lane, Position};

    use super::*;

    fn record(key: &str, value: &str) -> Record {
        Record::new(Lane(0), Epoch(1), Position(7), Some(key.as_bytes()), Some(value.as_bytes()))
    }

    #[test]
    fn parts_of_the_record_are_encoded_in_the_url() {
        let lanes = LaneNames::File { name: "orders".into(), progress: None };
        let template = UrlTemplate::parse("http://h/a/{key}/{position}?n={/n}").expect("a template");
        let of = |record: &Record| uri(&template, record, &lanes).map(|uri| uri.to_string());
        let plain = of(&record("a/b \u{e4}?#", r#"{"n":1.5}"#));
        assert_eq!(plain.as_deref(), Ok("http://h/a/a%2Fb%20%C3%A4%3F%23/7?n=1.5"));
        for (key, value) in [("..", r#"{"n":1}"#), ("", r#"{"n":1}"#), ("a", "{}"), ("a", "no json")] {
            assert!(of(&record(key, value)).is_err_and(|failure| failure.is_permanent()), "{key} {value}");
        }
    }

    #[test]
    fn named_headers_of_the_record_are_added() {
        let header = |name: &str, value: &str| Header { name: name.into(), value: Some(value.as_bytes().into()) };
        let list = vec![header("Trace", "1"), header("other", "2"), header("host", "evil"), header("x-team", "3")];
        let record = record("k", "v").with_headers(list);
        let fixed = [HeaderName::from_static("x-team")];
        let added = |names: &[&str]| {
            let (names, mut headers) =
                (names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), HeaderMap::new());
            add_headers(&record, &names, &fixed, &mut headers).map(|()| {
                let mut names: Vec<String> = headers.keys().map(ToString::to_string).collect();
                names.sort_unstable();
                names
            })
        };
        assert_eq!(added(&["trace"]), Ok(vec!["trace".to_owned()]));
        assert_eq!(added(&["*"]), Ok(vec!["other".to_owned(), "trace".to_owned()]));
        let broken = Record::new(Lane(0), Epoch(1), Position(7), None, None).with_headers(vec![header("a b", "x")]);
        let names = ["*".to_owned()];
        assert!(add_headers(&broken, &names, &[], &mut HeaderMap::new()).is_err_and(|failure| failure.is_permanent()));
    }
}
