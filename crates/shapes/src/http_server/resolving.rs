//! A request for a shape with its checked definition: what all kinds of answers share.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use tidegate_http_listener::ConnectionHold;

use super::answer::{self, HttpAnswer, KnownTags};
use crate::cursor::next_cursor;
use crate::offset::LogOffset;
use crate::parameters::{ParameterErrors, ShapeRequest};
use crate::resolver::{DefinitionError, Resolved};
use crate::server::{ServerStatus, ShapeServer};
use crate::shape::{ReadPlan, Shape, ShapeLog, ShapePhase, SnapshotFailure};

/// A request with its checked definition.
pub(super) struct Resolving<'a> {
    pub(super) server: &'a Arc<ShapeServer>,
    pub(super) request: &'a ShapeRequest,
    pub(super) tags: &'a KnownTags,
    pub(super) hold: &'a ConnectionHold,
    /// GET and HEAD may be cached.
    pub(super) is_cacheable: bool,
}

pub(super) fn resolve_error(error: &DefinitionError) -> HttpAnswer {
    match error {
        DefinitionError::Parameters(errors) => answer::invalid(errors),
        DefinitionError::Unavailable(reason) => {
            tracing::warn!(reason, "cannot check the definition of a shape");
            answer::unavailable_code("database_unreachable", "Cannot reach the database; try again later", 10)
        }
    }
}

impl Resolving<'_> {
    /// Status 409 and the current handle, which is created if there is none.
    pub(super) async fn moved(&self, resolved: &Resolved) -> HttpAnswer {
        let current = match self.server.status() {
            ServerStatus::Active => self.server.get_or_create(resolved).await.ok(),
            _ => self.server.index.find(&resolved.definition),
        };
        answer::must_refetch(current.map(|shape| shape.handle), &self.server.options.cache)
    }

    /// Waits until the stream of a new shape has begun: from then on no change is missed.
    pub(super) async fn begun(&self, shape: &Shape) -> Result<(), ReadPlan> {
        let look = |log: &ShapeLog| match log.phase {
            ShapePhase::Starting => None,
            ShapePhase::Snapshotting | ShapePhase::Complete => Some(Ok(())),
            ShapePhase::Failed => Some(Err(ReadPlan::Failed(log.failure()))),
            ShapePhase::Removed => Some(Err(ReadPlan::Removed)),
        };
        shape.wait_for(look).await
    }

    /// The answer to a plan without data. `None` if the definition has to be checked again.
    pub(super) async fn refusal(&self, resolved: &Resolved, plan: ReadPlan) -> Option<HttpAnswer> {
        Some(match plan {
            ReadPlan::Failed(SnapshotFailure::Changed) if self.request.handle.is_none() => return None,
            ReadPlan::Removed if self.request.handle.is_none() => return None,
            ReadPlan::Removed | ReadPlan::Failed(SnapshotFailure::Changed) => {
                // The definition may be wrong for the table of today.
                match self.server.resolve(&self.request.definition).await {
                    Ok(resolved) => self.moved(&resolved).await,
                    Err(_) => answer::must_refetch(None, &self.server.options.cache),
                }
            }
            ReadPlan::Failed(SnapshotFailure::Refused { field, text }) => {
                answer::invalid(&ParameterErrors::one(field, text))
            }
            ReadPlan::Failed(SnapshotFailure::Unavailable(text)) => answer::snapshot_failed(&text),
            ReadPlan::Beyond => answer::invalid(&ParameterErrors::one("offset", "out of bounds for this shape")),
            ReadPlan::Wait if self.server.is_ending() => answer::unavailable("The server is stopping", 1),
            ReadPlan::Wait | ReadPlan::Ready(_) => self.moved(resolved).await,
        })
    }

    /// The headers that clients need: handle, offset, and schema or cursor.
    pub(super) fn add_headers(&self, answer: &mut HttpAnswer, shape: &Shape, end: LogOffset, is_live: bool) {
        let headers = answer.headers_mut();
        headers.insert(answer::HANDLE, answer::value(&shape.handle.to_string()));
        headers.insert(answer::OFFSET, answer::value(&end.to_string()));
        self.add_cursor_or_schema(answer, shape, is_live);
    }

    pub(super) fn add_cursor_or_schema(&self, answer: &mut HttpAnswer, shape: &Shape, is_live: bool) {
        let headers = answer.headers_mut();
        if is_live {
            let interval = self.server.options.long_poll;
            let cursor = next_cursor(unix_time().as_secs(), interval, self.request.cursor, fastrand::u64(..));
            headers.insert(answer::CURSOR, HeaderValue::from(cursor));
        } else {
            headers.insert(answer::SCHEMA, answer::value(&shape.definition.form.schema_header));
        }
    }
}

/// The time since 1970.
pub(super) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
