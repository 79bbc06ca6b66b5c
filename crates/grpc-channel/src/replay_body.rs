//! A request body that can be sent again: the frames that were read are kept, up to a limit, until a response begins.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

/// The body of a call.
pub(crate) struct ReplayBody(Arc<Mutex<ReplayBuffer>>);

struct ReplayBuffer {
    source: Body,
    read: Vec<Bytes>,
    bytes: usize,
    bytes_max: usize,
    /// `read` contains everything that was read from `source`.
    complete: bool,
    ended: bool,
    /// The error with which the application ended the request.
    error: Option<Status>,
    /// Number of the current attempt; earlier ones get an error.
    attempt: u64,
}

impl ReplayBody {
    pub(crate) fn new(source: Body, bytes_max: usize) -> Self {
        let ended = source.is_end_stream();
        let buffer = ReplayBuffer {
            source,
            read: Vec::new(),
            bytes: 0,
            bytes_max,
            complete: true,
            ended,
            error: None,
            attempt: 0,
        };
        Self(Arc::new(Mutex::new(buffer)))
    }

    /// Returns the body from its beginning, and ends the previous attempt. `None` if not all of it was kept.
    pub(crate) fn attempt(&self) -> Option<AttemptBody> {
        let mut buffer = lock(&self.0);
        buffer.attempt += 1;
        let attempt = buffer.attempt;
        buffer.complete.then(|| AttemptBody { buffer: Arc::clone(&self.0), attempt, next: 0 })
    }

    /// The error with which the application ended the request, if it did.
    pub(crate) fn error(&self) -> Option<Status> {
        lock(&self.0).error.clone()
    }

    /// The body is not sent again: nothing more is kept.
    pub(crate) fn commit(&self) {
        lock(&self.0).stop_keeping();
    }
}

fn lock(buffer: &Mutex<ReplayBuffer>) -> MutexGuard<'_, ReplayBuffer> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReplayBuffer {
    fn keep(&mut self, data: &Bytes) {
        self.bytes += data.len();
        if self.bytes > self.bytes_max {
            self.stop_keeping();
        } else if self.complete {
            self.read.push(data.clone());
        }
    }

    /// `read` stays until the current attempt has passed it; see [`AttemptBody::poll_frame`].
    fn stop_keeping(&mut self) {
        self.complete = false;
    }

    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = std::task::ready!(Pin::new(&mut self.source).poll_frame(cx));
        match &polled {
            Some(Ok(frame)) => match frame.data_ref() {
                Some(data) => self.keep(data),
                // gRPC requests have no trailers. A request with trailers is sent once.
                None => self.stop_keeping(),
            },
            Some(Err(error)) => {
                self.error = Some(error.clone());
                self.stop_keeping();
            }
            None => self.ended = true,
        }
        self.ended |= self.source.is_end_stream();
        Poll::Ready(polled)
    }
}

/// The body of one attempt.
pub(crate) struct AttemptBody {
    buffer: Arc<Mutex<ReplayBuffer>>,
    attempt: u64,
    next: usize,
}

impl http_body::Body for AttemptBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let mut buffer = lock(&this.buffer);
        if buffer.attempt != this.attempt {
            return Poll::Ready(Some(Err(Status::cancelled("the call is retried on another backend"))));
        }
        if let Some(data) = buffer.read.get(this.next) {
            this.next += 1;
            return Poll::Ready(Some(Ok(Frame::data(data.clone()))));
        }
        if !buffer.complete {
            // This attempt has passed `read`, and there is no further attempt.
            buffer.read = Vec::new();
            this.next = 0;
        }
        if buffer.ended {
            return Poll::Ready(None);
        }
        let before = buffer.read.len();
        let polled = buffer.poll_source(cx);
        this.next += buffer.read.len() - before;
        polled
    }

    fn is_end_stream(&self) -> bool {
        let buffer = lock(&self.buffer);
        buffer.ended && self.next >= buffer.read.len()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// A body of these frames.
    struct Frames(Vec<&'static str>);

    impl http_body::Body for Frames {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            let next = if self.0.is_empty() { None } else { Some(self.0.remove(0)) };
            Poll::Ready(next.map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
        }
    }

    fn next(attempt: &mut AttemptBody) -> Option<String> {
        match Pin::new(attempt).poll_frame(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(Ok(frame))) => frame.into_data().ok().map(|data| String::from_utf8(data.into()).unwrap()),
            Poll::Ready(Some(Err(status))) => Some(format!("{:?}", status.code())),
            Poll::Ready(None) => None,
            Poll::Pending => panic!("never pending"),
        }
    }

    fn rest(attempt: &mut AttemptBody) -> Vec<String> {
        std::iter::from_fn(|| next(attempt)).take(10).collect()
    }

    #[test]
    fn attempt_starts_again_from_any_position() {
        for read in 0..4 {
            let body = ReplayBody::new(Body::new(Frames(vec!["a", "b", "c"])), 100);
            let mut first = body.attempt().unwrap();
            let begun: Vec<_> = (0..read).filter_map(|_| next(&mut first)).collect();
            assert_eq!(begun, ["a", "b", "c"][..read.min(3)]);
            let mut second = body.attempt().unwrap();
            assert_eq!(next(&mut first).as_deref(), Some("Cancelled"));
            assert_eq!(rest(&mut second), ["a", "b", "c"]);
            assert!(second.is_end_stream());
        }
    }

    #[test]
    fn body_above_the_limit_is_sent_once() {
        let body = ReplayBody::new(Body::new(Frames(vec!["aa", "bb", "cc"])), 3);
        let mut first = body.attempt().unwrap();
        assert_eq!(rest(&mut first), ["aa", "bb", "cc"]);
        assert!(body.attempt().is_none());
    }

    #[test]
    fn committed_body_continues_without_keeping() {
        let body = ReplayBody::new(Body::new(Frames(vec!["a", "b", "c"])), 100);
        let mut first = body.attempt().unwrap();
        assert_eq!(next(&mut first).as_deref(), Some("a"));
        body.commit();
        assert_eq!(rest(&mut first), ["b", "c"]);
    }
}
