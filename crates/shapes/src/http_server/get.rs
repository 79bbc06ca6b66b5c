//! GET, HEAD and POST: a part of a log, immediately or when there is data.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::ETAG;
use http::{HeaderMap, HeaderValue};

use tidegate_http_listener::ConnectionHold;

use super::HttpContext;
use super::admission::AdmittedRequest;
use super::answer::{self, HttpAnswer, KnownTags};
use super::body::{AnswerBody, Parts, text};
use super::resolving::{Resolving, resolve_error, unix_time};
use super::{events, subset};
use crate::answers::{LiveAnswer, LogPart};
use crate::cursor::Cacheability;
use crate::offset::{LogOffset, RequestOffset};
use crate::parameters::{LiveMode, ShapeRequest};
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

/// A long-poll of a known shape without a change after its position. Such requests are many: each keeps this and its wait only.
pub(super) struct LongPoll {
    request: ShapeRequest,
    tags: KnownTags,
    hold: ConnectionHold,
    awaited: AwaitedChange,
}

struct AwaitedChange {
    shape: Arc<Shape>,
    after: LogOffset,
    resolved: Resolved,
    _admitted: AdmittedRequest,
}

impl LongPoll {
    /// `Err` if the request needs no wait, or needs more than that.
    pub(super) fn new(context: &HttpContext, mut begun: GetRequest) -> Result<Self, GetRequest> {
        match Self::awaited(context, &mut begun.request) {
            Some(awaited) => Ok(Self { request: begun.request, tags: begun.tags, hold: begun.hold, awaited }),
            None => Err(begun),
        }
    }

    fn awaited(context: &HttpContext, request: &mut ShapeRequest) -> Option<AwaitedChange> {
        let (LiveMode::LongPoll, RequestOffset::After(after), None) = (request.live, request.offset, &request.subset)
        else {
            return None;
        };
        let server = &context.server;
        let shape = server.index.by_handle(request.handle?.ok()?)?;
        let (definition, resolved) = server.resolver.shared(&request.definition)?;
        let plan = shape.log().plan(Some(after), server.known_lsn(&shape));
        let waits = matches!(plan, ReadPlan::Ready(LogSlice { has_data: false, .. }));
        if !waits || !shape.definition.is_same(&resolved.definition) {
            return None;
        }
        let admitted = context.admission.existing()?;
        request.definition = definition;
        Some(AwaitedChange { shape, after, resolved, _admitted: admitted })
    }

    /// Waits for a change.
    pub(super) async fn answer(&self, context: &HttpContext) -> HttpAnswer {
        let Self { request, tags, hold, awaited } = self;
        let resolving = Resolving { server: &context.server, request, tags, hold, is_cacheable: true };
        let answer = resolving.changed(&awaited.resolved, &awaited.shape, awaited.after).await;
        answer.unwrap_or_else(changes_too_often)
    }
}

/// A request that was read.
pub(super) struct GetRequest {
    pub(super) request: ShapeRequest,
    pub(super) tags: KnownTags,
    pub(super) is_cacheable: bool,
    pub(super) hold: ConnectionHold,
}

/// Answers a request.
pub(super) async fn handle(context: &HttpContext, begun: GetRequest) -> HttpAnswer {
    let server = &context.server;
    let GetRequest { request, tags, is_cacheable, hold } = begun;
    let known = match request.handle {
        Some(handle) => handle.ok().and_then(|handle| server.index.by_handle(handle)),
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
    let mut kept = Some(admitted);
    let resolving = Resolving { server, request: &request, tags: &tags, hold: &hold, is_cacheable };
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
    changes_too_often()
}

fn changes_too_often() -> HttpAnswer {
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
        kept: &mut Option<AdmittedRequest>,
    ) -> Option<HttpAnswer> {
        let shape = match self.request.handle {
            Some(handle) => {
                let shape = handle.ok().and_then(|handle| self.server.index.by_handle(handle));
                shape.filter(|shape| shape.definition.is_same(&resolved.definition))
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
                let kept = kept.take().map(|admitted| (admitted, self.hold.again()));
                Some(events::answer(self, &shape, after, kept))
            }
            (LiveMode::LongPoll, RequestOffset::After(after)) => self.long_poll(resolved, &shape, after).await,
            (_, RequestOffset::Now) => self.now(resolved, &shape).await,
            (_, RequestOffset::After(after)) => self.catch_up(resolved, &shape, Some(after)).await,
            (_, RequestOffset::Start) => self.catch_up(resolved, &shape, None).await,
        }
    }

    /// Waits for a plan other than [`ReadPlan::Wait`].
    async fn plan(&self, shape: &Shape, after: Option<LogOffset>) -> ReadPlan {
        let plan = shape.log().plan(after, self.server.known_lsn(shape));
        match plan {
            ReadPlan::Wait => Box::pin(self.later_plan(shape, after)).await,
            // A position beyond the end is answered after half of the time of a long-poll (SH-39).
            ReadPlan::Beyond => {
                let later = tokio::time::timeout(self.server.options.long_poll / 2, self.later_plan(shape, after));
                Box::pin(later).await.unwrap_or(ReadPlan::Beyond)
            }
            other => other,
        }
    }

    async fn later_plan(&self, shape: &Shape, after: Option<LogOffset>) -> ReadPlan {
        let look = |log: &ShapeLog| match log.plan(after, self.server.known_lsn(shape)) {
            ReadPlan::Wait | ReadPlan::Beyond if self.server.is_ending() => Some(ReadPlan::Wait),
            ReadPlan::Wait | ReadPlan::Beyond => None,
            other => Some(other),
        };
        shape.wait_for(look).await
    }

    async fn catch_up(&self, resolved: &Resolved, shape: &Arc<Shape>, after: Option<LogOffset>) -> Option<HttpAnswer> {
        let lsn = self.server.readable_lsn(shape);
        match self.plan(shape, after).await {
            ReadPlan::Ready(slice) => Some(self.log_answer(shape, slice, lsn).await),
            other => Box::pin(self.refusal(resolved, other)).await,
        }
    }

    async fn long_poll(&self, resolved: &Resolved, shape: &Arc<Shape>, after: LogOffset) -> Option<HttpAnswer> {
        match self.plan(shape, Some(after)).await {
            ReadPlan::Ready(LogSlice { has_data: false, .. }) => self.changed(resolved, shape, after).await,
            ReadPlan::Ready(slice) => Some(self.log_answer(shape, slice, slice.end.tx).await),
            other => Box::pin(self.refusal(resolved, other)).await,
        }
    }

    /// Waits for a change.
    async fn changed(&self, resolved: &Resolved, shape: &Arc<Shape>, after: LogOffset) -> Option<HttpAnswer> {
        let look = |log: &ShapeLog| match log.plan(Some(after), self.server.known_lsn(shape)) {
            ReadPlan::Ready(LogSlice { has_data: false, .. }) | ReadPlan::Wait | ReadPlan::Beyond => {
                self.server.is_ending().then_some(None)
            }
            other => Some(Some(other)),
        };
        let waiting = self.server.counters.wait();
        let found = tokio::select! {
            biased;
            found = shape.wait_for(look) => found,
            () = self.hold.timer(self.server.options.long_poll) => None,
        };
        drop(waiting);
        match found {
            Some(ReadPlan::Ready(slice)) => match self.live_answer(shape, slice, slice.end.tx) {
                Some(answer) => Some(answer),
                None => Some(Box::pin(self.read_answer(shape, slice, slice.end.tx)).await),
            },
            Some(other) => Box::pin(self.refusal(resolved, other)).await,
            None => Box::pin(self.unchanged(resolved, shape, after)).await,
        }
    }

    /// The answer when the time of a long-poll is over.
    async fn unchanged(&self, resolved: &Resolved, shape: &Arc<Shape>, after: LogOffset) -> Option<HttpAnswer> {
        if let ServerStatus::Starting(reason) | ServerStatus::Failed(reason) = self.server.status() {
            return Some(answer::unavailable(&format!("No changes arrive: {reason}"), 10));
        }
        // The position is read before the log: all transactions up to it are in the log (SH-41).
        let lsn = self.server.readable_lsn(shape);
        let plan = shape.log().plan(Some(after), lsn);
        match plan {
            ReadPlan::Ready(slice) => Some(self.log_answer(shape, slice, lsn).await),
            other => self.refusal(resolved, other).await,
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

    /// Whether other clients that wait get the same answer.
    fn is_shared(&self, slice: LogSlice, lsn: u64) -> bool {
        let is_live = self.request.live != LiveMode::No;
        is_live && slice.has_data && slice.is_up_to_date && lsn <= slice.end.tx
    }

    /// The answer, if another client that waited has got it.
    fn live_answer(&self, shape: &Shape, slice: LogSlice, lsn: u64) -> Option<HttpAnswer> {
        if !self.is_shared(slice, lsn) {
            return None;
        }
        let known = self.server.live_answers.get((shape.id, slice.after, slice.end))?;
        shape.touch(self.server.seconds());
        Some(self.finish(shape, text(known.body.clone()), known.headers.clone()))
    }

    /// 200, or 304 if the client has it.
    async fn log_answer(&self, shape: &Arc<Shape>, slice: LogSlice, lsn: u64) -> HttpAnswer {
        match self.live_answer(shape, slice, lsn) {
            Some(answer) => answer,
            None => self.read_answer(shape, slice, lsn).await,
        }
    }

    /// [`Self::log_answer`] from the log.
    async fn read_answer(&self, shape: &Arc<Shape>, slice: LogSlice, lsn: u64) -> HttpAnswer {
        let (position, is_shared) = ((shape.id, slice.after, slice.end), self.is_shared(slice, lsn));
        let part = match slice.has_data {
            true => self.server.part(shape, slice).await,
            false => Ok(LogPart::Text(Bytes::new())),
        };
        let part = match part {
            Ok(part) => part,
            // The files of the log are gone with the shape.
            Err(_) if matches!(shape.log().phase, ShapePhase::Removed | ShapePhase::Failed) => {
                let current = self.server.index.find(&shape.definition);
                return answer::must_refetch(current.map(|shape| shape.handle), &self.server.options.cache);
            }
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
        let headers = self.headers(shape, slice, has_data);
        let end = match (slice.is_up_to_date, slice.has_data) {
            (true, true) => format!(",{}]", up_to_date_message(lsn.max(slice.end.tx))),
            (true, false) => format!("{}]", up_to_date_message(lsn.max(slice.end.tx))),
            (false, _) => "]".to_owned(),
        };
        let part = match part {
            LogPart::Text(messages) if is_shared && messages.len() <= SHARED_TEXT_MAX => {
                let body = Bytes::from([b"[", &*messages, end.as_bytes()].concat());
                let shared = LiveAnswer { body: body.clone(), headers: headers.clone() };
                self.server.live_answers.insert(position, shared);
                return self.finish(shape, text(body), headers);
            }
            other => other,
        };
        let mut body = Parts::new();
        body.push(&b"["[..]);
        let server = Arc::clone(self.server);
        // A client that reads slowly counts as a reader of the shape.
        body.push_log(part, move |chunk| chunk.shape().touch(server.seconds()));
        body.push(end);
        self.finish(shape, body.boxed(), headers)
    }

    /// The headers that do not depend on the client, and room for its cursor.
    fn headers(&self, shape: &Shape, slice: LogSlice, has_data: bool) -> HeaderMap {
        let (handle, end) = (shape.handle.to_string(), slice.end.to_string());
        let mut etag = format!("\"{handle}:{}:{end}", self.request.offset);
        if !slice.has_data {
            // No cache may take a later empty answer for this one (SH-36).
            etag = format!("{etag}:{}", unix_time().as_micros());
        }
        etag.push('"');
        let is_live = self.request.live != LiveMode::No;
        let cache = match self.request.offset {
            RequestOffset::Start => Cacheability::Snapshot,
            _ if is_live => Cacheability::Live,
            _ => Cacheability::CatchUp,
        };
        let mut headers = answer::ok_headers(cache, &self.server.options.cache);
        headers.insert(answer::HANDLE, answer::value(&handle));
        headers.insert(answer::OFFSET, answer::value(&end));
        headers.insert(answer::HAS_DATA, HeaderValue::from_static(if has_data { "true" } else { "false" }));
        headers.insert(ETAG, answer::value(&etag));
        if slice.is_up_to_date {
            headers.insert(answer::UP_TO_DATE, HeaderValue::from_static(""));
        }
        if is_live {
            headers.insert(answer::CURSOR, HeaderValue::from_static(""));
        }
        answer::add_cors(&mut headers, None);
        headers
    }

    fn finish(&self, shape: &Shape, body: AnswerBody, headers: HeaderMap) -> HttpAnswer {
        let mut answer = http::Response::new(body);
        *answer.headers_mut() = headers;
        self.add_cursor_or_schema(&mut answer, shape, self.request.live != LiveMode::No);
        if !self.is_cacheable {
            answer::set_cache(answer.headers_mut(), Cacheability::Revalidate, &self.server.options.cache);
        }
        let etag = answer.headers().get(ETAG).and_then(|etag| etag.to_str().ok());
        let is_known = etag.is_some_and(|etag| self.tags.contain(etag));
        if is_known { answer::not_modified(answer) } else { answer }
    }
}
