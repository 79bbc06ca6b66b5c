//! DELETE: removes a shape; clients load it again.

use http::{Response, StatusCode};

use super::HttpContext;
use super::answer::{self, HttpAnswer};
use super::body::text;
use super::resolving::resolve_error;
use crate::parameters::{DeleteRequest, ParameterErrors, QueryParameters};

pub(super) async fn handle(context: &HttpContext, query: &str) -> HttpAnswer {
    let server = &context.server;
    if !server.options.allow_deletion {
        return answer::message(StatusCode::METHOD_NOT_ALLOWED, "DELETE not allowed");
    }
    let request = match QueryParameters::decode(query).and_then(|query| DeleteRequest::read(&query)) {
        Ok(request) => request,
        Err(errors) => return answer::invalid(&errors),
    };
    let by_handle = request.handle.as_deref().and_then(|handle| server.by_handle(handle));
    let shape = match &request.definition {
        None => by_handle,
        Some(parameters) => {
            let resolved = match server.resolve(parameters).await {
                Ok(resolved) => resolved,
                Err(error) => return resolve_error(&error),
            };
            let by_definition = server.index.find(&resolved.definition);
            let is_mismatch = request.handle.is_some()
                && by_handle.as_ref().map(|shape| shape.id) != by_definition.as_ref().map(|shape| shape.id);
            if is_mismatch {
                return answer::invalid(&ParameterErrors::one("handle", "does not match the shape definition"));
            }
            by_definition
        }
    };
    let Some(shape) = shape else { return answer::message(StatusCode::NOT_FOUND, "Shape not found") };
    server.remove(&shape).await;
    let mut answer = Response::new(text(""));
    *answer.status_mut() = StatusCode::ACCEPTED;
    answer.headers_mut().insert(http::header::CACHE_CONTROL, http::HeaderValue::from_static("no-cache"));
    answer
}
