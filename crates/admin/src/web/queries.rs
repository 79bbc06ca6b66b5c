//! Queries from the query log: the slow ones, and the latest ones.

use std::{sync::Arc, time::Duration};

use hyper::{Response, StatusCode};
use serde_json::Value;
use tidegate_query_log::commands::LatestRecords;

use super::{Body, WebConsole, guard::Refusal, reply, sessions::Viewer};
use crate::queries::{self, QueryLogReadError};

/// The statements that took most time. Only users of `admin.users` see their texts, which may contain personal data.
pub(super) async fn slow(
    web: &Arc<WebConsole>,
    minutes: Option<&str>,
    viewer: &Viewer,
) -> Result<Response<Body>, Refusal> {
    answer(queries::slow(&web.context.gateway, period(minutes), viewer.may_change).await)
}

/// The latest records. `only` is `errors`, or the shortest duration in milliseconds; anything else selects all.
pub(super) async fn latest(
    web: &Arc<WebConsole>,
    minutes: Option<&str>,
    only: Option<&str>,
    viewer: &Viewer,
) -> Result<Response<Body>, Refusal> {
    let slower_than = only.and_then(|text| text.parse().ok()).map_or(Duration::ZERO, Duration::from_millis);
    let request = LatestRecords {
        period: Duration::from_secs(period(minutes) * 60),
        only_errors: only == Some("errors"),
        slower_than,
        ..LatestRecords::default()
    };
    answer(queries::latest(&web.context.gateway, request, viewer.may_change).await)
}

/// The period of a request, in minutes.
fn period(minutes: Option<&str>) -> u64 {
    let minutes = minutes.and_then(|text| text.parse().ok()).unwrap_or(queries::MINUTES_DEFAULT);
    minutes.clamp(*queries::MINUTES.start(), *queries::MINUTES.end())
}

fn answer(found: Result<Value, QueryLogReadError>) -> Result<Response<Body>, Refusal> {
    match found {
        Ok(found) => Ok(reply(StatusCode::OK, &found)),
        Err(QueryLogReadError::Busy) => Err(Refusal::Busy),
        Err(error) => Err(Refusal::Failed(error.to_string())),
    }
}
