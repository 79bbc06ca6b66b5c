//! A client on its way to a connection.

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
    held::Held,
    local::Inner,
    queue::{Key, Left},
};

/// What a waiting client is answered.
pub(crate) type Answer<C> = Result<Box<Held<C>>, CheckoutError<<C as Connection>::Error>>;

/// Future of a [`Lease`]. It has its place in the queue from the moment it is made, not from its first poll.
///
/// # Cancel safety
///
/// Dropping it leaves the queue at once; a connection already handed to it goes to the next client. There is no timer
/// inside: whoever has a deadline drops it then.
#[must_use = "futures do nothing unless polled"]
pub struct Checkout<C: Connection> {
    state: State<C>,
    since: Instant,
}

enum State<C: Connection> {
    Decided(Option<Result<Lease<C>, CheckoutError<C::Error>>>),
    Waiting(Rc<Inner<C>>, Key),
}

impl<C: Connection> Checkout<C> {
    pub(crate) fn decided(result: Result<Lease<C>, CheckoutError<C::Error>>, since: Instant) -> Self {
        Self { state: State::Decided(Some(result)), since }
    }

    pub(crate) fn waiting(local: Rc<Inner<C>>, key: Key, since: Instant) -> Self {
        Self { state: State::Waiting(local, key), since }
    }

    /// When the client asked.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Does the client stand in the queue of its core, or has its answer not been collected from there?
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(..))
    }

    /// At most this many clients of the same core are before this one.
    #[must_use]
    pub fn ahead(&self) -> usize {
        match &self.state {
            State::Decided(_) => 0,
            State::Waiting(local, key) => local.ahead(*key),
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
        let (local, key) = match &mut self.state {
            State::Decided(result) => {
                return Poll::Ready(result.take().expect("a checkout is not polled after it was ready"));
            }
            State::Waiting(local, key) => (Rc::clone(local), *key),
        };
        let Some(answer) = local.poll_answer(key, cx.waker()) else {
            return Poll::Pending;
        };
        self.state = State::Decided(None);
        Poll::Ready(answer.map(|held| Lease::new(held, local)))
    }
}

impl<C: Connection> Checkout<C> {
    /// The client leaves without its answer.
    #[cold]
    fn abandon(&mut self) {
        match std::mem::replace(&mut self.state, State::Decided(None)) {
            State::Decided(Some(Ok(lease))) => {
                let local = Rc::clone(lease.local());
                if let Some(held) = lease.dismantle() {
                    local.pass_on(held);
                }
            }
            State::Decided(_) => {}
            State::Waiting(local, key) => match local.leave(key) {
                Left::Answered(Ok(held)) => local.pass_on(held),
                Left::Answered(Err(_)) | Left::Waiting => {}
            },
        }
    }
}

impl<C: Connection> Drop for Checkout<C> {
    #[inline]
    fn drop(&mut self) {
        if !matches!(self.state, State::Decided(None)) {
            self.abandon();
        }
    }
}

impl<C: Connection> Unpin for Checkout<C> {}

impl<C: Connection> fmt::Debug for Checkout<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkout").field("since", &self.since).field("waiting", &self.is_waiting()).finish()
    }
}
