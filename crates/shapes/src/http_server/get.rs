//! GET, HEAD and POST: a part of a log, immediately or when there is data.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use tidegate_http_listener::ConnectionHold;

use super::HttpContext;
use super::admission::Admitted;
use super::answer::{self, Answer};
use super::body::Parts;
use super::resolving::{Resolving, resolve_error, unix_time};
use super::{events, subset};
use crate::cursor::Cacheability;
use crate::offset::{LogOffset, RequestOffset};
use crate::parameters::{LiveMode, QueryParameters, ShapeRequest, SubsetBody};
use crate::resolver::Resolved;
use crate::row_form::up_to_date_message;
use crate::server::ServerStatus;
use crate::shape::{LogSlice, ReadPlan, Shape, ShapeLog};

/// How long a request waits for a server that is starting.
const READY_LIMIT: Duration = Duration::from_secs(5);
/// Shapes that are created again for one request because the table changed meanwhile (SH-06).
const ATTEMPTS_MAX: usize = 3;

/// Answers a request. `body` is that of a POST.
pub(super) async fn handle(
    context: &HttpContext,
    headers: &HeaderMap,
    query: &QueryParameters,
    body: Option<SubsetBody>,
    hold: ConnectionHold,
) -> Answer {
    let server = &context.server;
    let is_cacheable = body.is_none();
    let request = match ShapeRequest::read(query, body) {
        Ok(request) => request,
        Err(errors) => return answer::invalid(&errors),
    };
    let known = request.handle.as_deref().and_then(|handle| server.by_handle(handle));
    let Some(admitted) = context.admission.admit(known.is_some()) else {
        let text = "Too many concurrent requests; try again later";
        return answer::unavailable_code("concurrent_request_limit_exceeded", text, 6 + fastrand::u64(0..5));
    };
    // Known shapes are served while the database is away.
    if known.is_none()
        && let ServerStatus::Waiting(reason) = server.status()
    {
        // Immediately, so that a load balancer asks the server that has the slot.
        return answer::unavailable(&format!("Another server follows the database: {reason}"), 5);
    }
    if known.is_none()
        && let Err(reason) = server.ready(READY_LIMIT).await
    {
        return answer::unavailable(&format!("Shapes cannot be served yet: {reason}"), 5);
    }
    // Kept by a stream of events beyond this function.
    let mut kept = Some((admitted, hold));
    let resolving = Resolving { server, request: &request, headers, is_cacheable };
    for _ in 0..ATTEMPTS_MAX {
        let resolved = match server.resolve(&request.definition).await {
            Ok(resolved) => resolved,
            Err(error) => return resolve_error(&error),
        };
        match resolving.answer(&resolved, &mut kept).await {
            Some(answer) => return answer,
            None => server.resolver.clear(),
        }
    }
    answer::snapshot_failed("The table changes too often for a snapshot; try again later")
}

/// The place and the connection of a request.
pub(super) type KeptRequest = (Admitted, ConnectionHold);

impl Resolving<'_> {
    /// `None` if the table has changed since the definition was checked.
    async fn answer(&self, resolved: &Resolved, kept: &mut Option<KeptRequest>) -> Option<Answer> {
        let key = resolved.definition.key();
        let shape = match self.request.handle.as_deref() {
            Some(handle) => self.server.by_handle(handle).filter(|shape| shape.definition.key() == key),
            None => match self.server.get_or_create(resolved).await {
                Ok(shape) => Some(shape),
                Err(error) => return Some(answer::unavailable(&error.to_string(), 1)),
            },
        };
        let Some(shape) = shape else { return Some(self.moved(resolved).await) };
        if let Some(parameters) = &self.request.subset {
            return subset::answer(self, resolved, &shape, parameters).await;
        }
        match (self.request.live, self.request.offset) {
            (LiveMode::EventStream, RequestOffset::After(after)) => {
                Some(events::answer(self, &shape, after, kept.take()))
            }
            (LiveMode::LongPoll, RequestOffset::After(after)) => self.long_poll(resolved, &shape, after).await,
            (_, RequestOffset::Now) => self.now(resolved, &shape).await,
            (_, RequestOffset::After(after)) => self.catch_up(resolved, &shape, Some(after)).await,
            (_, RequestOffset::Start) => self.catch_up(resolved, &shape, None).await,
        }
    }

    /// Waits for a plan other than [`ReadPlan::Wait`]. A position beyond the end is answered after half of the
    /// time of a long-poll (SH-39).
    async fn plan(&self, shape: &Shape, after: Option<LogOffset>) -> ReadPlan {
        let look = |log: &ShapeLog| match log.plan(after, self.server.processed_lsn()) {
            ReadPlan::Wait | ReadPlan::Beyond => None,
            other => Some(other),
        };
        let limit = self.server.options.long_poll / 2;
        let is_beyond = shape.log().plan(after, self.server.processed_lsn()) == ReadPlan::Beyond;
        if !is_beyond {
            return shape.wait_for(look).await;
        }
        tokio::time::timeout(limit, shape.wait_for(look)).await.unwrap_or(ReadPlan::Beyond)
    }

    async fn catch_up(&self, resolved: &Resolved, shape: &Arc<Shape>, after: Option<LogOffset>) -> Option<Answer> {
        let lsn = self.server.processed_lsn();
        match self.plan(shape, after).await {
            ReadPlan::Ready(slice) => Some(self.log_answer(shape, slice, lsn).await),
            other => self.refusal(resolved, other).await,
        }
    }

    async fn long_poll(&self, resolved: &Resolved, shape: &Arc<Shape>, after: LogOffset) -> Option<Answer> {
        let first = self.plan(shape, Some(after)).await;
        if !matches!(first, ReadPlan::Ready(LogSlice { has_data: false, .. })) {
            return match first {
                ReadPlan::Ready(slice) => Some(self.log_answer(shape, slice, slice.end.tx).await),
                other => self.refusal(resolved, other).await,
            };
        }
        let look = |log: &ShapeLog| match log.plan(Some(after), self.server.processed_lsn()) {
            ReadPlan::Ready(LogSlice { has_data: false, .. }) | ReadPlan::Wait | ReadPlan::Beyond => None,
            other => Some(other),
        };
        let waiting = self.server.counters.wait(shape);
        let found = tokio::time::timeout(self.server.options.long_poll, shape.wait_for(look)).await;
        drop(waiting);
        match found {
            Ok(ReadPlan::Ready(slice)) => Some(self.log_answer(shape, slice, slice.end.tx).await),
            Ok(other) => self.refusal(resolved, other).await,
            Err(_) => {
                if let ServerStatus::Starting(reason) = self.server.status() {
                    return Some(answer::unavailable(&format!("No changes arrive: {reason}"), 10));
                }
                // The position is read before the log: all transactions up to it are in the log (SH-41).
                let lsn = self.server.processed_lsn();
                let plan = shape.log().plan(Some(after), lsn);
                match plan {
                    ReadPlan::Ready(slice) => Some(self.log_answer(shape, slice, lsn).await),
                    other => self.refusal(resolved, other).await,
                }
            }
        }
    }

    async fn now(&self, resolved: &Resolved, shape: &Arc<Shape>) -> Option<Answer> {
        let begun = self.begun(shape).await;
        if let Err(plan) = begun {
            return self.refusal(resolved, plan).await;
        }
        let lsn = self.server.processed_lsn();
        let end = shape.log().end;
        let slice = LogSlice { after: Some(end), end, is_up_to_date: true, has_data: false };
        Some(self.log_answer(shape, slice, lsn).await)
    }

    /// 200, or 304 if the client has it.
    async fn log_answer(&self, shape: &Arc<Shape>, slice: LogSlice, lsn: u64) -> Answer {
        let is_live = self.request.live != LiveMode::No;
        let (handle, end) = (shape.handle.to_string(), slice.end.to_string());
        let messages = match slice.has_data {
            true => self.server.messages(shape, slice).await,
            false => Ok(Bytes::new()),
        };
        let messages = match messages {
            Ok(messages) => messages,
            Err(error) => {
                tracing::error!(%error, handle, "cannot read the log of a shape");
                return answer::error(
                    http::StatusCode::INTERNAL_SERVER_ERROR,
                    r#"{"message":"Internal server error"}"#,
                );
            }
        };
        // The end of a snapshot is a control message.
        let has_data = messages.starts_with(b"{\"key\"");
        let mut etag = format!("\"{handle}:{}:{end}", self.request.offset);
        if !slice.has_data {
            // No cache may take a later empty answer for this one (SH-36).
            etag = format!("{etag}:{}", unix_time().as_micros());
        }
        etag.push('"');
        let cache = match (self.is_cacheable, self.request.offset) {
            (false, _) => Cacheability::Revalidate,
            (true, RequestOffset::Start) => Cacheability::Snapshot,
            (true, _) if is_live => Cacheability::Live,
            (true, _) => Cacheability::CatchUp,
        };
        let mut parts = vec![Bytes::from_static(b"["), messages];
        if slice.is_up_to_date {
            if slice.has_data {
                parts.push(Bytes::from_static(b","));
            }
            parts.push(Bytes::from(up_to_date_message(lsn.max(slice.end.tx))));
        }
        parts.push(Bytes::from_static(b"]"));
        let mut answer = answer::ok(Parts::new(parts).boxed(), cache, &self.server.options.cache);
        self.add_headers(&mut answer, shape, slice.end, is_live);
        let headers = answer.headers_mut();
        headers.insert(answer::HAS_DATA, HeaderValue::from_static(if has_data { "true" } else { "false" }));
        if slice.is_up_to_date {
            headers.insert(answer::UP_TO_DATE, HeaderValue::from_static(""));
        }
        answer::set_etag(&mut answer, &etag);
        if answer::has_etag(self.headers, &etag) { answer::not_modified(answer) } else { answer }
    }
}
