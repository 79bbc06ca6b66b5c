//! Checks of requests, and headers of responses, against attacks by other web sites.
//!
//! A foreign site can make a browser send requests here, with the cookie under `SameSite` rules of the browser, and can point a
//! name of its own at this address (DNS rebinding). Therefore the Host header must name this gateway, and a change needs a
//! JSON body and the page's own origin.

use http::HeaderMap;
use hyper::{
    Method, Request, Response, StatusCode,
    header::{self, HeaderName, HeaderValue},
};
use serde_json::json;

use super::{Body, reply};

/// Name of the cookie.
pub(super) const COOKIE: &str = "tidegate_session";

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No valid login.
    LoggedOut,
    /// The user may not do this.
    Forbidden,
    /// The Host header names another site.
    Host,
    /// The request comes from another site.
    Origin,
    /// The body is no JSON, too long or too slow.
    Body,
    Method,
    NotFound,
    /// Too many at a time.
    Busy,
    /// User or password is wrong.
    Password,
    /// The request cannot be carried out, for this reason.
    Failed(String),
}

impl Refusal {
    fn parts(&self) -> (StatusCode, &str) {
        match self {
            Self::LoggedOut => (StatusCode::UNAUTHORIZED, "log in first"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "only users of admin.users may do this"),
            Self::Host => {
                (StatusCode::MISDIRECTED_REQUEST, "this host name is unknown: add it to hosts in [admin.http]")
            }
            Self::Origin => (StatusCode::FORBIDDEN, "the request does not come from the page of this gateway"),
            Self::Body => (StatusCode::BAD_REQUEST, "the body is not a JSON object of at most 16 KiB"),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, "this method is not allowed here"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not found"),
            Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, "too many requests at a time: try again"),
            Self::Password => (StatusCode::UNAUTHORIZED, "user or password is wrong"),
            Self::Failed(reason) => (StatusCode::CONFLICT, reason),
        }
    }

    pub(super) fn response(&self) -> Response<Body> {
        let (status, text) = self.parts();
        reply(status, &json!({ "error": text }))
    }
}

/// The host name of a `Host` or `Origin` value, without the port.
fn name_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    authority.rsplit_once(':').map_or(authority, |(name, _)| name)
}

/// Checks that the Host header is an address, `localhost`, or a configured name.
pub(super) fn check_host<B>(request: &Request<B>, hosts: &[String]) -> Result<(), Refusal> {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).ok_or(Refusal::Host)?;
    let name = name_of(host);
    let is_address = name.parse::<std::net::IpAddr>().is_ok();
    let is_known = name.eq_ignore_ascii_case("localhost") || hosts.iter().any(|known| known.eq_ignore_ascii_case(name));
    if is_address || is_known { Ok(()) } else { Err(Refusal::Host) }
}

/// Checks that a request that changes something is a POST with a JSON body from our own page.
pub(super) fn check_change<B>(request: &Request<B>) -> Result<(), Refusal> {
    if request.method() != Method::POST {
        return Err(Refusal::Method);
    }
    let text = |name: HeaderName| request.headers().get(name).and_then(|value| value.to_str().ok());
    let kind = text(header::CONTENT_TYPE).and_then(|kind| kind.split(';').next()).unwrap_or_default();
    if !kind.trim().eq_ignore_ascii_case("application/json") {
        return Err(Refusal::Origin);
    }
    let site = text(HeaderName::from_static("sec-fetch-site"));
    let origin = text(header::ORIGIN).and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
    let is_same_origin = origin.is_some() && origin == text(header::HOST);
    // Browsers send at least one of them with a POST; a contradiction is refused.
    match (site, origin) {
        (Some("same-origin"), None) => Ok(()),
        (Some("same-origin") | None, Some(_)) if is_same_origin => Ok(()),
        _ => Err(Refusal::Origin),
    }
}

/// The session token of a request.
pub(super) fn cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| value)
}

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Adds the security headers.
pub(super) fn add_headers(headers: &mut HeaderMap, is_tls: bool) {
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if is_tls {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, headers: &[(&str, &str)]) -> Request<()> {
        let builder = headers
            .iter()
            .fold(Request::builder().method(method), |builder, (name, value)| builder.header(*name, *value));
        builder.body(()).expect("a request")
    }

    #[test]
    fn host_must_name_this_gateway() {
        let hosts = ["pool.example".to_owned()];
        for (host, allowed) in [
            ("127.0.0.1:9128", true),
            ("[::1]:9128", true),
            ("localhost", true),
            ("Pool.Example:443", true),
            ("evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("", false),
        ] {
            let checked = check_host(&request(Method::GET, &[("host", host)]), &hosts);
            assert_eq!(checked.is_ok(), allowed, "{host}");
        }
        assert_eq!(check_host(&request(Method::GET, &[]), &hosts), Err(Refusal::Host));
    }

    /// OP-40.
    #[test]
    fn change_needs_json_from_our_origin() {
        let json = ("content-type", "application/json; charset=utf-8");
        let host = ("host", "10.0.0.1:9128");
        let own = ("origin", "https://10.0.0.1:9128");
        for (headers, allowed) in [
            (&[json, host, own][..], true),
            (&[json, host, own, ("sec-fetch-site", "same-origin")], true),
            (&[json, host, ("sec-fetch-site", "same-origin")], true),
            (&[json, host], false),
            (&[json, host, ("origin", "https://evil.example")], false),
            (&[json, host, ("origin", "null")], false),
            (&[json, host, ("origin", "https://evil.example"), ("sec-fetch-site", "same-origin")], false),
            (&[json, host, own, ("sec-fetch-site", "cross-site")], false),
            (&[json, host, ("sec-fetch-site", "same-site")], false),
            (&[("content-type", "text/plain"), host, own], false),
            (&[host, own], false),
        ] {
            assert_eq!(check_change(&request(Method::POST, headers)).is_ok(), allowed, "{headers:?}");
            assert_eq!(check_change(&request(Method::GET, headers)), Err(Refusal::Method), "{headers:?}");
        }
    }

    #[test]
    fn token_is_found_among_other_cookies() {
        let found = |line| cookie(request(Method::GET, &[("cookie", line)]).headers()).map(str::to_owned);
        assert_eq!(found("a=b; tidegate_session=xyz; c=d").as_deref(), Some("xyz"));
        assert_eq!(found("not_tidegate_session=xyz"), None);
    }
}
