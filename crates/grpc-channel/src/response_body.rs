//! The body of a response. Its call is in flight until the end of the body.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tidegate_balance::{CallOutcome, EndpointLease};
use tokio::time::Sleep;
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::deadline::CallDeadline;
use crate::retry::{outcome_of, status_of};
use crate::state::ChannelState;
use crate::stream_failure::StreamFailure;

/// The body of a response.
pub(crate) struct ResponseBody {
    /// `None` after the deadline of the call.
    incoming: Option<Incoming>,
    /// The deadline of the call covers the whole response.
    deadline: Option<(CallDeadline, Pin<Box<Sleep>>)>,
    /// `None` after the end of the body.
    in_flight: Option<InFlightCall>,
    /// Start of the response: the latency does not include the duration of a stream.
    began: Instant,
}

/// The lease and the channel, owned by a response until its end.
struct InFlightCall {
    lease: EndpointLease<Backend>,
    /// The channel outlives its responses, even if all its clones are dropped.
    _state: Arc<ChannelState>,
}

impl ResponseBody {
    pub(crate) fn new(
        incoming: Incoming,
        lease: EndpointLease<Backend>,
        state: Arc<ChannelState>,
        began: Instant,
        deadline: Option<CallDeadline>,
    ) -> Self {
        let deadline = deadline.map(|deadline| (deadline, Box::pin(deadline.sleep())));
        Self { incoming: Some(incoming), deadline, in_flight: Some(InFlightCall { lease, _state: state }), began }
    }

    /// The next frame, or an error at the deadline. Dropping `incoming` then resets the stream, so the server stops.
    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        if let Poll::Ready(polled) = Pin::new(incoming).poll_frame(cx) {
            return Poll::Ready(polled.map(|frame| frame.map_err(|error| self.failed(&error))));
        }
        let Some((deadline, sleep)) = &mut self.deadline else { return Poll::Pending };
        std::task::ready!(sleep.as_mut().poll(cx));
        self.incoming = None;
        Poll::Ready(Some(Err(deadline.exceeded())))
    }

    fn failed(&mut self, error: &hyper::Error) -> Status {
        let failure = StreamFailure::new(error);
        self.end(failure.outcome);
        failure.status
    }

    fn end(&mut self, outcome: CallOutcome) {
        if let Some(call) = self.in_flight.take() {
            call.lease.finish(Some(self.began), outcome);
        }
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = std::task::ready!(self.poll_incoming(cx));
        let outcome = match &polled {
            Some(Ok(frame)) => {
                frame.trailers_ref().map(|trailers| status_of(trailers).map_or(CallOutcome::Neutral, outcome_of))
            }
            // A stream may be meant to last until its deadline.
            Some(Err(status)) if status.code() == Code::DeadlineExceeded => Some(CallOutcome::Neutral),
            // Ended when the error was read.
            Some(Err(_)) => None,
            // A body without trailers is not a success: the client reports their absence as an error.
            None => Some(CallOutcome::Neutral),
        };
        if let Some(outcome) = outcome {
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
