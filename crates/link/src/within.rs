//! A timeout for a future, without a second copy of its state.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;

use crate::{reactor::Reactor, timer::Sleep};

pin_project! {
    /// The future returned by [`within`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Within<F> {
        #[pin]
        future: F,
        #[pin]
        sleep: Option<Sleep>,
    }
}

/// The output of `future`, or `None` after `limit`. Zero is no limit.
pub fn within<F: Future>(reactor: &Reactor, limit: Duration, future: F) -> Within<F> {
    let sleep = (!limit.is_zero()).then(|| reactor.sleep(limit));
    Within { future, sleep }
}

impl<F: Future> Future for Within<F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Some(output));
        }
        match this.sleep.as_pin_mut() {
            Some(sleep) => sleep.poll(cx).map(|()| None),
            None => Poll::Pending,
        }
    }
}
