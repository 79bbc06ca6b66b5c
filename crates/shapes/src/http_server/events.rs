//! Server-sent events.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::time::Instant;

use super::answer::{self, HttpAnswer};
use super::body::AnswerBody;
use super::get::KeptRequest;
use super::resolving::Resolving;
use crate::answers::MessageForm;
use crate::cursor::Cacheability;
use crate::offset::LogOffset;
use crate::row_form::up_to_date_message;
use crate::server::ShapeServer;
use crate::shape::{LogSlice, ReadPlan, Shape, ShapeLog};

/// A comment is sent after this silence, so that proxies keep the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(21);

/// The state of a stream.
struct EventStream {
    server: Arc<ShapeServer>,
    shape: Arc<Shape>,
    after: LogOffset,
    ends_at: Instant,
    /// Counts as a request until the end.
    _kept: Option<KeptRequest>,
}

/// A stream of events. It ends after its time, or when the shape is removed; the client connects again.
pub(super) fn answer(
    resolving: &Resolving<'_>,
    shape: &Arc<Shape>,
    after: LogOffset,
    kept: Option<KeptRequest>,
) -> HttpAnswer {
    let server = Arc::clone(resolving.server);
    let ages = server.options.cache;
    let ends_at = Instant::now() + ages.event_stream;
    let state = EventStream { server, shape: Arc::clone(shape), after, ends_at, _kept: kept };
    let frames = stream::unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((Ok(Frame::data(bytes)), state))
    });
    let body = AnswerBody::Other(StreamBody::new(frames).boxed_unsync());
    let mut answer = answer::ok(body, Cacheability::EventStream, &ages);
    // The offset of the request: the client would skip what it has not read if the connection broke.
    resolving.add_headers(&mut answer, shape, after, true);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    answer
}

impl EventStream {
    /// The next bytes; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        let now = Instant::now();
        if now >= self.ends_at {
            return None;
        }
        let silence_ends = now + KEEP_ALIVE;
        let until = silence_ends.min(self.ends_at);
        let look = |log: &ShapeLog| match log.plan(Some(self.after), self.server.known_lsn(&self.shape)) {
            ReadPlan::Ready(LogSlice { has_data: false, .. }) | ReadPlan::Wait | ReadPlan::Beyond => {
                // Ends the stream.
                self.server.is_ending().then_some(ReadPlan::Wait)
            }
            other => Some(other),
        };
        let waiting = self.server.counters.wait();
        let found = tokio::time::timeout_at(until, self.shape.wait_for(look)).await;
        drop(waiting);
        match found {
            Err(_) if until == silence_ends => Some(Bytes::from_static(b": keep-alive\n\n")),
            Err(_) => None,
            Ok(ReadPlan::Ready(slice)) => self.events(slice).await,
            // The next request gets status 409, or goes to the next server.
            Ok(_) => None,
        }
    }

    async fn events(&mut self, slice: LogSlice) -> Option<Bytes> {
        let events = self.server.answers.messages(&self.shape, slice, MessageForm::Events).await.ok()?;
        self.after = slice.end;
        if !slice.is_up_to_date {
            return Some(events);
        }
        // A client resumes at operation 0 of this position. The next position after the transaction repeats none of its
        // operations (SH-42); no transaction can have it, because records of the WAL are longer.
        let lsn = self.server.readable_lsn(&self.shape).max(slice.end.tx.saturating_add(1));
        let mut out = events.to_vec();
        out.extend_from_slice(format!("data: {}\n\n", up_to_date_message(lsn)).as_bytes());
        Some(out.into())
    }
}
