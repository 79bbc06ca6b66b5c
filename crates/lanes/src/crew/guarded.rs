//! A handler's future whose panics are contained and that is inside its span.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::panic;
use crate::span::AttemptSpan;

pin_project! {
    /// Ends when the handler ends, also by a panic.
    pub(crate) struct Guarded<F> {
        #[pin]
        handler: F,
        span: AttemptSpan,
    }
}

impl<F> Guarded<F> {
    pub(crate) fn new(handler: F, span: AttemptSpan) -> Self {
        Self { handler, span }
    }
}

impl<F: Future<Output = ()>> Future for Guarded<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let polled = this.span.inside(|| panic::contain(|| this.handler.poll(cx)));
        polled.unwrap_or(Poll::Ready(()))
    }
}
