//! A request's body that can be sent again: what was read of it is kept, up to a limit, until an answer begins.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

/// The body of a call.
pub(super) struct Replay(Arc<Mutex<Kept>>);

struct Kept {
    source: Body,
    read: Vec<Bytes>,
    bytes: usize,
    bytes_max: usize,
    /// Nothing is missing of what was read.
    whole: bool,
    ended: bool,
    /// Counts attempts; an older one gets nothing more.
    attempt: u64,
}

impl Replay {
    pub(super) fn new(source: Body, bytes_max: usize) -> Self {
        let ended = source.is_end_stream();
        let kept = Kept { source, read: Vec::new(), bytes: 0, bytes_max, whole: true, ended, attempt: 0 };
        Self(Arc::new(Mutex::new(kept)))
    }

    /// The body from its beginning; `None` if not all of it was kept. Ends the attempt before.
    pub(super) fn attempt(&self) -> Option<Attempt> {
        let mut kept = lock(&self.0);
        kept.attempt += 1;
        kept.whole.then(|| Attempt { kept: Arc::clone(&self.0), attempt: kept.attempt, next: 0 })
    }

    /// It will not be sent again: nothing more is kept.
    pub(super) fn commit(&self) {
        lock(&self.0).forget();
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    fn keep(&mut self, data: &Bytes) {
        self.bytes += data.len();
        if self.bytes > self.bytes_max {
            self.forget();
        } else if self.whole {
            self.read.push(data.clone());
        }
    }

    /// The current attempt has read all that was kept, if it is the one who reads; see [`Attempt::poll_frame`].
    fn forget(&mut self) {
        self.whole = false;
    }

    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = std::task::ready!(Pin::new(&mut self.source).poll_frame(cx));
        match &polled {
            Some(Ok(frame)) => match frame.data_ref() {
                Some(data) => self.keep(data),
                // Requests of gRPC have no trailers; one that has is sent once.
                None => self.forget(),
            },
            Some(Err(_)) => self.forget(),
            None => self.ended = true,
        }
        self.ended |= self.source.is_end_stream();
        Poll::Ready(polled)
    }
}

/// The body of one attempt.
pub(super) struct Attempt {
    kept: Arc<Mutex<Kept>>,
    attempt: u64,
    next: usize,
}

impl http_body::Body for Attempt {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let mut kept = lock(&this.kept);
        if kept.attempt != this.attempt {
            return Poll::Ready(Some(Err(Status::cancelled("the call is tried elsewhere"))));
        }
        if let Some(data) = kept.read.get(this.next) {
            this.next += 1;
            return Poll::Ready(Some(Ok(Frame::data(data.clone()))));
        }
        if !kept.whole {
            // Nobody will ask for it again, and this attempt is past it.
            kept.read = Vec::new();
            this.next = 0;
        }
        if kept.ended {
            return Poll::Ready(None);
        }
        let before = kept.read.len();
        let polled = kept.poll_source(cx);
        this.next += kept.read.len() - before;
        polled
    }

    fn is_end_stream(&self) -> bool {
        let kept = lock(&self.kept);
        kept.ended && self.next >= kept.read.len()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Frames one by one.
    struct Frames(Vec<&'static str>);

    impl http_body::Body for Frames {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            let next = if self.0.is_empty() { None } else { Some(self.0.remove(0)) };
            Poll::Ready(next.map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
        }
    }

    fn next(attempt: &mut Attempt) -> Option<String> {
        match Pin::new(attempt).poll_frame(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(Ok(frame))) => frame.into_data().ok().map(|data| String::from_utf8(data.into()).unwrap()),
            Poll::Ready(Some(Err(status))) => Some(format!("{:?}", status.code())),
            Poll::Ready(None) => None,
            Poll::Pending => panic!("it is never pending"),
        }
    }

    fn rest(attempt: &mut Attempt) -> Vec<String> {
        std::iter::from_fn(|| next(attempt)).take(10).collect()
    }

    #[test]
    fn an_attempt_begins_anew_wherever_the_one_before_was() {
        for read in 0..4 {
            let replay = Replay::new(Body::new(Frames(vec!["a", "b", "c"])), 100);
            let mut first = replay.attempt().unwrap();
            let begun: Vec<_> = (0..read).filter_map(|_| next(&mut first)).collect();
            assert_eq!(begun, ["a", "b", "c"][..read.min(3)]);
            let mut second = replay.attempt().unwrap();
            assert_eq!(next(&mut first).as_deref(), Some("Cancelled"));
            assert_eq!(rest(&mut second), ["a", "b", "c"]);
            assert!(second.is_end_stream());
        }
    }

    #[test]
    fn what_is_too_long_is_sent_once() {
        let replay = Replay::new(Body::new(Frames(vec!["aa", "bb", "cc"])), 3);
        let mut first = replay.attempt().unwrap();
        assert_eq!(rest(&mut first), ["aa", "bb", "cc"]);
        assert!(replay.attempt().is_none());
    }

    #[test]
    fn what_is_committed_is_not_kept_and_goes_on() {
        let replay = Replay::new(Body::new(Frames(vec!["a", "b", "c"])), 100);
        let mut first = replay.attempt().unwrap();
        assert_eq!(next(&mut first).as_deref(), Some("a"));
        replay.commit();
        assert_eq!(rest(&mut first), ["b", "c"]);
    }
}
