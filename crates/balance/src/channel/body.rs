//! The answer while it is read: its backend counts it as in flight until its end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;
use tonic::{Code, Status};

use super::Shared;
use super::deadline::Deadline;
use super::node::Node;
use super::retry::{health, status_of};
use crate::lease::{Lease, Outcome};

/// An answer's body.
pub(super) struct Answer {
    /// Until the call's time is over.
    incoming: Option<Incoming>,
    /// The call's time covers all of its answer.
    limit: Option<(Deadline, Pin<Box<Sleep>>)>,
    /// Until its end.
    held: Option<Held>,
    /// When the answer began: latency does not count how long a stream is.
    began: Instant,
}

/// What an answer needs until its end.
struct Held {
    lease: Lease<Node>,
    /// The channel does not end before its answers do, whoever drops its clones.
    _shared: Arc<Shared>,
}

impl Answer {
    pub(super) fn new(
        incoming: Incoming,
        lease: Lease<Node>,
        shared: Arc<Shared>,
        began: Instant,
        deadline: Option<Deadline>,
    ) -> Self {
        let limit = deadline.map(|deadline| (deadline, Box::pin(deadline.sleep())));
        Self { incoming: Some(incoming), limit, held: Some(Held { lease, _shared: shared }), began }
    }

    /// The next part of the answer; an error once the call's time is over, which tells the server, too.
    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        if let Poll::Ready(polled) = Pin::new(incoming).poll_frame(cx) {
            return Poll::Ready(polled.map(|frame| frame.map_err(|error| lost(&error))));
        }
        let Some((deadline, sleep)) = &mut self.limit else { return Poll::Pending };
        std::task::ready!(sleep.as_mut().poll(cx));
        self.incoming = None;
        Poll::Ready(Some(Err(deadline.exceeded())))
    }

    /// A body that ends without trailers is no success: their absence is an error to the client.
    fn end(&mut self, outcome: Outcome) {
        if let Some(held) = self.held.take() {
            held.lease.finish(Some(self.began), outcome);
        }
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = std::task::ready!(self.poll_incoming(cx));
        let end = match &polled {
            Some(Ok(frame)) => {
                frame.trailers_ref().map(|trailers| status_of(trailers).map_or(Outcome::Neutral, health))
            }
            // A stream may be meant to last as long as it is given time.
            Some(Err(status)) if status.code() == Code::DeadlineExceeded => Some(Outcome::Neutral),
            Some(Err(_)) => Some(Outcome::Failure),
            None => Some(Outcome::Neutral),
        };
        if let Some(outcome) = end {
            self.end(outcome);
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

/// What the client of a broken answer is told.
pub(super) fn lost(error: &hyper::Error) -> Status {
    let mut text = format!("the connection was lost: {error}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    Status::new(Code::Unavailable, text)
}
