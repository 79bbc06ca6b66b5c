//! Wraps a handler's future: catches panics and enters the tracing span.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::panic;
use crate::span::AttemptSpan;

pin_project! {
    /// Resolves when the handler ends or panics.
    pub(crate) struct ContainPanics<F> {
        #[pin]
        handler: F,
        span: AttemptSpan,
    }
}

impl<F> ContainPanics<F> {
    pub(crate) fn new(handler: F, span: AttemptSpan) -> Self {
        Self { handler, span }
    }
}

impl<F: Future<Output = ()>> Future for ContainPanics<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let polled = this.span.in_scope(|| panic::contain(|| this.handler.poll(cx)));
        polled.unwrap_or(Poll::Ready(()))
    }
}
