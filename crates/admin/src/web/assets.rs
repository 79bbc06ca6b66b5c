//! The embedded page.

use hyper::{
    Response,
    header::{self, HeaderValue},
};

use super::{Body, full};

/// A file of the page.
pub(super) struct Asset {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

const ASSETS: &[Asset] = &[
    Asset { path: "/", content_type: "text/html; charset=utf-8", bytes: include_bytes!("assets/index.html") },
    Asset { path: "/app.js", content_type: "text/javascript; charset=utf-8", bytes: include_bytes!("assets/app.js") },
    Asset { path: "/app.css", content_type: "text/css; charset=utf-8", bytes: include_bytes!("assets/app.css") },
];

/// The file at a path.
pub(super) fn find(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

impl Asset {
    pub(super) fn response(&self) -> Response<Body> {
        let mut response = Response::new(full(self.bytes));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OP-38: The policy forbids them, and offline machines could not load them.
    #[test]
    fn page_has_no_external_and_no_inline_code() {
        for asset in ASSETS {
            let text = str::from_utf8(asset.bytes).expect("the page is text");
            let external = ["https://", "http://", "//cdn", "@import", "innerHTML", "eval(", "style=\"", "onclick="];
            for forbidden in external {
                let found = text.lines().find(|line| {
                    // The namespace of SVG is a name, not a request.
                    line.contains(forbidden) && !line.contains("http://www.w3.org/2000/svg")
                });
                assert!(found.is_none(), "{}: {forbidden}: {found:?}", asset.path);
            }
        }
    }
}
