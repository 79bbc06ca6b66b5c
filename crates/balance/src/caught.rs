//! Panics of what others have written.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

/// The output of the future that `begin` makes; `None` if either panics.
pub(crate) async fn caught<F: Future>(begin: impl FnOnce() -> F) -> Option<F::Output> {
    // The call itself may panic as well, so it happens within the first poll.
    let mut doing = Box::pin(async { begin().await });
    poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| doing.as_mut().poll(cx)));
        polled.map_or(Poll::Ready(None), |polled| polled.map(Some))
    })
    .await
}
