//! GET, HEAD and POST: a part of a log, immediately or when there is data.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http::header::ETAG;

use tidegate_http_listener::ConnectionHold;

use super::HttpContext;
use super::admission::AdmittedRequest;
use super::answer::{self, HttpAnswer, KnownTags};
use super::body::{AnswerBody, Parts, text};
use super::resolving::{Resolving, resolve_error, unix_time};
use super::{events, subset};
use crate::answers::{AnswerHead, LiveAnswer, LogPart};
use crate::cursor::Cacheability;
use crate::offset::{LogOffset, RequestOffset};
use crate::parameters::{LiveMode, QueryParameters, ShapeRequest, SubsetBody};
use crate::resolver::Resolved;
use crate::row_form::up_to_date_message;
use crate::server::ServerStatus;
use crate::shape::{LogSlice, ReadPlan, Shape, ShapeLog, ShapePhase};

/// How long a request waits for a server that is starting.
const READY_LIMIT: Duration = Duration::from_secs(5);
/// A longer text is not copied for the clients that wait for it.
const SHARED_TEXT_MAX: usize = 64 << 10;
/// Shapes that are created again for one request because the table changed meanwhile (SH-06).
const ATTEMPTS_MAX: usize = 3;

/// Answers a request. `body` is that of a POST.
pub(super) async fn handle(
    context: &HttpContext,
    tags: KnownTags,
    query: QueryParameters,
    body: Option<SubsetBody>,
    hold: ConnectionHold,
) -> HttpAnswer {
    let server = &context.server;
    let is_cacheable = body.is_none();
    let request = match ShapeRequest::read(&query, body) {
        Ok(request) => request,
        Err(errors) => return answer::invalid(&errors),
    };
    // Waiting requests are many: each keeps only what it needs, and rare branches are futures of their own.
    drop(query);
    let known = match request.handle.as_deref() {
        Some(handle) => server.by_handle(handle),
        None => server.known_shape(&request.definition),
    };
    // Known shapes are served while the database is away.
    let is_initial = known.is_none() || request.handle.is_none();
    if is_initial && let ServerStatus::Waiting(reason) = server.status() {
        // Immediately, so that a load balancer asks the server that has the slot.
        return answer::unavailable(&format!("Another server follows the database: {reason}"), 5);
    }
    let mut begun = match known {
        Some(_) => None,
        None => match Box::pin(begin_shape(context, &request)).await {
            Ok(shape) => shape,
            Err(answer) => return answer,
        },
    };
    let admitted = match context.admission.existing() {
        Some(admitted) => admitted,
        // Requests that wait for changes cannot keep out those that begin.
        None if is_initial => match Box::pin(initial_turn(context)).await {
            Ok(admitted) => admitted,
            Err(answer) => return answer,
        },
        None => return too_many(),
    };
    // Kept by a stream of events beyond this function.
    let mut kept = Some((admitted, hold));
    let resolving = Resolving { server, request: &request, tags, is_cacheable };
    for _ in 0..ATTEMPTS_MAX {
        let resolved = match server.resolve(&request.definition).await {
            Ok(resolved) => resolved,
            Err(error) => return resolve_error(&error),
        };
        match resolving.answer(&resolved, begun.take(), &mut kept).await {
            Some(answer) => return answer,
            None => server.resolver.clear(),
        }
    }
    answer::snapshot_failed("The table changes too often for a snapshot; try again later")
}

/// The place and the connection of a request.
pub(super) type KeptRequest = (AdmittedRequest, ConnectionHold);

fn too_many() -> HttpAnswer {
    let text = "Too many concurrent requests; try again later";
    answer::unavailable_code("concurrent_request_limit_exceeded", text, 6 + fastrand::u64(0..5))
}

/// Waits for a place of the requests that begin.
async fn initial_turn(context: &HttpContext) -> Result<AdmittedRequest, HttpAnswer> {
    let turn = tokio::time::timeout(READY_LIMIT, context.admission.initial()).await;
    turn.map_err(|_| too_many())
}

/// Waits for the server, and until the snapshot of a new shape has begun. The number of such requests is limited; the others
/// wait for their turn, and most find the shape that they need then (SH-61).
async fn begin_shape(context: &HttpContext, request: &ShapeRequest) -> Result<Option<Arc<Shape>>, HttpAnswer> {
    let server = &context.server;
    let _turn = initial_turn(context).await?;
    if let Err(reason) = server.ready(READY_LIMIT).await {
        return Err(answer::unavailable(&format!("Shapes cannot be served yet: {reason}"), 5));
    }
    if request.handle.is_some() {
        return Ok(None);
    }
    let resolved = server.resolve(&request.definition).await.map_err(|error| resolve_error(&error))?;
    let shape = server.get_or_create(&resolved).await;
    let shape = shape.map_err(|error| answer::unavailable(&error.to_string(), 1))?;
    shape.wait_for(|log| (log.phase != ShapePhase::Starting).then_some(())).await;
    Ok(Some(shape))
}

impl Resolving<'_> {
    /// `None` if the table has changed since the definition was checked. `begun` is the shape, if it was just created.
    async fn answer(
        &self,
        resolved: &Resolved,
        begun: Option<Arc<Shape>>,
        kept: &mut Option<KeptRequest>,
    ) -> Option<HttpAnswer> {
        let shape = match self.request.handle.as_deref() {
            Some(handle) => {
                self.server.by_handle(handle).filter(|shape| shape.definition.is_same(&resolved.definition))
            }
            None if begun.is_some() => begun,
            None => match Box::pin(self.server.get_or_create(resolved)).await {
                Ok(shape) => Some(shape),
                Err(error) => return Some(answer::unavailable(&error.to_string(), 1)),
            },
        };
        let Some(shape) = shape else { return Some(Box::pin(self.moved(resolved)).await) };
        if let Some(parameters) = &self.request.subset {
            return Box::pin(subset::answer(self, resolved, &shape, parameters)).await;
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
        let look = |log: &ShapeLog| match log.plan(after, self.server.known_lsn(shape)) {
            ReadPlan::Wait | ReadPlan::Beyond if self.server.is_ending() => Some(ReadPlan::Wait),
            ReadPlan::Wait | ReadPlan::Beyond => None,
            other => Some(other),
        };
        let limit = self.server.options.long_poll / 2;
        let is_beyond = shape.log().plan(after, self.server.known_lsn(shape)) == ReadPlan::Beyond;
        if !is_beyond {
            return shape.wait_for(look).await;
        }
        tokio::time::timeout(limit, shape.wait_for(look)).await.unwrap_or(ReadPlan::Beyond)
    }

    async fn catch_up(&self, resolved: &Resolved, shape: &Arc<Shape>, after: Option<LogOffset>) -> Option<HttpAnswer> {
        let lsn = self.server.readable_lsn(shape);
        match self.plan(shape, after).await {
            ReadPlan::Ready(slice) => Some(self.log_answer(shape, slice, lsn).await),
            other => Box::pin(self.refusal(resolved, other)).await,
        }
    }

    async fn long_poll(&self, resolved: &Resolved, shape: &Arc<Shape>, after: LogOffset) -> Option<HttpAnswer> {
        let first = self.plan(shape, Some(after)).await;
        if !matches!(first, ReadPlan::Ready(LogSlice { has_data: false, .. })) {
            return match first {
                ReadPlan::Ready(slice) => Some(self.log_answer(shape, slice, slice.end.tx).await),
                other => Box::pin(self.refusal(resolved, other)).await,
            };
        }
        let look = |log: &ShapeLog| match log.plan(Some(after), self.server.known_lsn(shape)) {
            ReadPlan::Ready(LogSlice { has_data: false, .. }) | ReadPlan::Wait | ReadPlan::Beyond => {
                self.server.is_ending().then_some(None)
            }
            other => Some(Some(other)),
        };
        let waiting = self.server.counters.wait();
        let found = tokio::time::timeout(self.server.options.long_poll, shape.wait_for(look)).await;
        drop(waiting);
        match found {
            Ok(Some(ReadPlan::Ready(slice))) => Some(self.log_answer(shape, slice, slice.end.tx).await),
            Ok(Some(other)) => Box::pin(self.refusal(resolved, other)).await,
            Ok(None) | Err(_) => {
                if let ServerStatus::Starting(reason) | ServerStatus::Failed(reason) = self.server.status() {
                    return Some(answer::unavailable(&format!("No changes arrive: {reason}"), 10));
                }
                // The position is read before the log: all transactions up to it are in the log (SH-41).
                let lsn = self.server.readable_lsn(shape);
                let plan = shape.log().plan(Some(after), lsn);
                match plan {
                    ReadPlan::Ready(slice) => Some(self.log_answer(shape, slice, lsn).await),
                    other => Box::pin(self.refusal(resolved, other)).await,
                }
            }
        }
    }

    async fn now(&self, resolved: &Resolved, shape: &Arc<Shape>) -> Option<HttpAnswer> {
        let begun = self.begun(shape).await;
        if let Err(plan) = begun {
            return Box::pin(self.refusal(resolved, plan)).await;
        }
        let lsn = self.server.readable_lsn(shape);
        let end = shape.log().readable_end();
        let slice = LogSlice { after: Some(end), end, is_up_to_date: true, has_data: false };
        Some(self.log_answer(shape, slice, lsn).await)
    }

    /// 200, or 304 if the client has it.
    async fn log_answer(&self, shape: &Arc<Shape>, slice: LogSlice, lsn: u64) -> HttpAnswer {
        let is_live = self.request.live != LiveMode::No;
        let position = (shape.id, slice.after, slice.end);
        let is_shared = is_live && slice.has_data && slice.is_up_to_date && lsn <= slice.end.tx;
        if is_shared && let Some(known) = self.server.live_answers.get(position) {
            shape.touch(self.server.seconds());
            return self.finish(shape, slice, text(known.body.clone()), &known.head);
        }
        let part = match slice.has_data {
            true => self.server.part(shape, slice).await,
            false => Ok(LogPart::Text(Bytes::new())),
        };
        let part = match part {
            Ok(part) => part,
            Err(error) => {
                tracing::error!(%error, handle = %shape.handle, "cannot read the log of a shape");
                return answer::error(
                    http::StatusCode::INTERNAL_SERVER_ERROR,
                    r#"{"message":"Internal server error"}"#,
                );
            }
        };
        // The end of a snapshot is a control message.
        let has_data = match &part {
            LogPart::Text(messages) => messages.starts_with(b"{\"key\""),
            LogPart::Chunk(..) => true,
        };
        let head = self.head(shape, slice, has_data);
        let end = match (slice.is_up_to_date, slice.has_data) {
            (true, true) => format!(",{}]", up_to_date_message(lsn.max(slice.end.tx))),
            (true, false) => format!("{}]", up_to_date_message(lsn.max(slice.end.tx))),
            (false, _) => "]".to_owned(),
        };
        let part = match part {
            LogPart::Text(messages) if is_shared && messages.len() <= SHARED_TEXT_MAX => {
                let body = Bytes::from([b"[", &*messages, end.as_bytes()].concat());
                self.server.live_answers.insert(position, LiveAnswer { body: body.clone(), head: head.clone() });
                return self.finish(shape, slice, text(body), &head);
            }
            other => other,
        };
        let mut body = Parts::new();
        body.push(&b"["[..]);
        let server = Arc::clone(self.server);
        // A client that reads slowly counts as a reader of the shape.
        body.push_log(part, move |chunk| chunk.shape().touch(server.seconds()));
        body.push(end);
        self.finish(shape, slice, body.boxed(), &head)
    }

    fn head(&self, shape: &Shape, slice: LogSlice, has_data: bool) -> AnswerHead {
        let (handle, end) = (shape.handle.to_string(), slice.end.to_string());
        let mut etag = format!("\"{handle}:{}:{end}", self.request.offset);
        if !slice.has_data {
            // No cache may take a later empty answer for this one (SH-36).
            etag = format!("{etag}:{}", unix_time().as_micros());
        }
        etag.push('"');
        AnswerHead {
            handle: answer::value(&handle),
            offset: answer::value(&end),
            etag: answer::value(&etag),
            has_data: HeaderValue::from_static(if has_data { "true" } else { "false" }),
        }
    }

    fn finish(&self, shape: &Shape, slice: LogSlice, body: AnswerBody, head: &AnswerHead) -> HttpAnswer {
        let is_live = self.request.live != LiveMode::No;
        let cache = match (self.is_cacheable, self.request.offset) {
            (false, _) => Cacheability::Revalidate,
            (true, RequestOffset::Start) => Cacheability::Snapshot,
            (true, _) if is_live => Cacheability::Live,
            (true, _) => Cacheability::CatchUp,
        };
        let mut answer = answer::ok(body, cache, &self.server.options.cache);
        self.add_cursor_or_schema(&mut answer, shape, is_live);
        let headers = answer.headers_mut();
        headers.insert(answer::HANDLE, head.handle.clone());
        headers.insert(answer::OFFSET, head.offset.clone());
        headers.insert(answer::HAS_DATA, head.has_data.clone());
        headers.insert(ETAG, head.etag.clone());
        if slice.is_up_to_date {
            headers.insert(answer::UP_TO_DATE, HeaderValue::from_static(""));
        }
        let is_known = head.etag.to_str().is_ok_and(|etag| self.tags.contain(etag));
        if is_known { answer::not_modified(answer) } else { answer }
    }
}
