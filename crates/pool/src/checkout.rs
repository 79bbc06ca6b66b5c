//! A client's request for a connection.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Instant,
};

use crate::{
    CheckoutError, Connection, Lease,
    core_pool::CorePool,
    wait_queue::{WaiterId, WaiterLeft},
};

/// Future of a [`Lease`]. The client joins the queue when the checkout is created, not at its first poll.
///
/// # Cancel safety
///
/// Dropping it leaves the queue; a connection that it was granted goes to the next client. It has no timeout: a client
/// with a deadline drops it at the deadline.
#[must_use = "futures do nothing unless polled"]
pub struct Checkout<C: Connection> {
    state: CheckoutState<C>,
    requested_at: Instant,
}

enum CheckoutState<C: Connection> {
    Decided(Option<Result<Lease<C>, CheckoutError<C::Error>>>),
    Waiting(Rc<CorePool<C>>, WaiterId),
}

impl<C: Connection> Checkout<C> {
    pub(crate) fn decided(result: Result<Lease<C>, CheckoutError<C::Error>>, requested_at: Instant) -> Self {
        Self { state: CheckoutState::Decided(Some(result)), requested_at }
    }

    pub(crate) fn waiting(core: Rc<CorePool<C>>, waiter: WaiterId, requested_at: Instant) -> Self {
        Self { state: CheckoutState::Waiting(core, waiter), requested_at }
    }

    /// When the checkout was created.
    #[must_use]
    pub fn requested_at(&self) -> Instant {
        self.requested_at
    }

    /// Returns whether the client waits in the queue of its core, or has not collected its answer.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, CheckoutState::Waiting(..))
    }

    /// Upper bound of the number of clients of the same core before this one.
    #[must_use]
    pub fn clients_ahead(&self) -> usize {
        match &self.state {
            CheckoutState::Decided(_) => 0,
            CheckoutState::Waiting(core, waiter) => core.clients_ahead(*waiter),
        }
    }
}

impl<C: Connection> Future for Checkout<C> {
    type Output = Result<Lease<C>, CheckoutError<C::Error>>;

    /// # Panics
    ///
    /// If polled again after it was ready.
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (core, waiter) = match &mut self.state {
            CheckoutState::Decided(result) => {
                return Poll::Ready(result.take().expect("a checkout is not polled after it was ready"));
            }
            CheckoutState::Waiting(core, waiter) => (Rc::clone(core), *waiter),
        };
        let Some(answer) = core.poll_answer(waiter, cx.waker()) else {
            return Poll::Pending;
        };
        self.state = CheckoutState::Decided(None);
        Poll::Ready(answer.map(|connection| Lease::new(connection, core)))
    }
}

impl<C: Connection> Checkout<C> {
    /// The client leaves without its answer.
    #[cold]
    fn abandon(&mut self) {
        match std::mem::replace(&mut self.state, CheckoutState::Decided(None)) {
            CheckoutState::Decided(Some(Ok(lease))) => lease.pass_on(),
            CheckoutState::Decided(_) => {}
            CheckoutState::Waiting(core, waiter) => match core.leave(waiter) {
                WaiterLeft::Answered(Ok(connection)) => core.pass_on(connection),
                WaiterLeft::Answered(Err(_)) | WaiterLeft::Waiting => {}
            },
        }
    }
}

impl<C: Connection> Drop for Checkout<C> {
    #[inline]
    fn drop(&mut self) {
        if !matches!(self.state, CheckoutState::Decided(None)) {
            self.abandon();
        }
    }
}

impl<C: Connection> Unpin for Checkout<C> {}

impl<C: Connection> fmt::Debug for Checkout<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkout")
            .field("requested_at", &self.requested_at)
            .field("waiting", &self.is_waiting())
            .finish()
    }
}
