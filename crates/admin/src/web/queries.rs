//! Slow queries from the query log.

use std::{sync::Arc, time::Duration};

use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::{Body, WebConsole, guard::Refusal, reply, sessions::Viewer};
use tidegate_query_log::commands::slow_queries;

/// The longest period, in minutes.
const MINUTES_MAX: u64 = 24 * 60;
/// The default period, in minutes.
const MINUTES: u64 = 15;
/// Statements of a reply.
const STATEMENTS_MAX: usize = 100;
/// Limit of records that are read; the reply reports whether there are more.
const RECORDS_MAX: u64 = 2_000_000;

/// The statements that took most time. Only users of `admin.users` see their texts, which may contain personal data.
pub(super) async fn slow(
    web: &Arc<WebConsole>,
    minutes: Option<&str>,
    viewer: &Viewer,
) -> Result<Response<Body>, Refusal> {
    let Some(query_log) = &web.gateway.query_log else {
        let reason = "there is no query log: set folder in [journal] and restart";
        return Err(Refusal::Failed(reason.to_owned()));
    };
    let _turn = web.reads.try_acquire().map_err(|_| Refusal::Busy)?;
    let minutes = minutes.and_then(|text| text.parse().ok()).unwrap_or(MINUTES).clamp(1, MINUTES_MAX);
    let folder = query_log.folder().to_owned();
    let read = move || slow_queries(&folder, Duration::from_secs(minutes * 60), RECORDS_MAX, STATEMENTS_MAX);
    let read = web.gateway.pools.connector.resolver.offload("the query log", read).await;
    let read = read.ok_or_else(|| Refusal::Failed("the gateway is stopping".to_owned()))?;
    let mut found = read.map_err(|error| {
        tracing::warn!(%error, "web console: the query log cannot be read");
        Refusal::Failed("the query log cannot be read: see the log".to_owned())
    })?;
    if !viewer.may_change
        && let Some(statements) = found["statements"].as_array_mut()
    {
        for statement in statements {
            statement["statement"] = Value::Null;
        }
    }
    found["minutes"] = json!(minutes);
    found["statement_is_hidden"] = json!(!viewer.may_change);
    Ok(reply(StatusCode::OK, &found))
}
