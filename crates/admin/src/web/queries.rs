//! Slow queries from the query log.

use std::sync::Arc;

use hyper::{Response, StatusCode};

use super::{Body, WebConsole, guard::Refusal, reply, sessions::Viewer};
use crate::queries::{self, SlowQueriesError};

/// The statements that took most time. Only users of `admin.users` see their texts, which may contain personal data.
pub(super) async fn slow(
    web: &Arc<WebConsole>,
    minutes: Option<&str>,
    viewer: &Viewer,
) -> Result<Response<Body>, Refusal> {
    let minutes = minutes.and_then(|text| text.parse().ok()).unwrap_or(queries::MINUTES_DEFAULT);
    let minutes = minutes.clamp(*queries::MINUTES.start(), *queries::MINUTES.end());
    match queries::slow(&web.context.gateway, minutes, viewer.may_change).await {
        Ok(found) => Ok(reply(StatusCode::OK, &found)),
        Err(SlowQueriesError::Busy) => Err(Refusal::Busy),
        Err(error) => Err(Refusal::Failed(error.to_string())),
    }
}
