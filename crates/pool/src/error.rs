//! Why a checkout failed.

use std::sync::Arc;

/// Why a [`Checkout`](crate::Checkout) ended without a lease. `E` is [`Connection::Error`](crate::Connection::Error).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckoutError<E> {
    /// A connect failed, no connection is open and no connect is in progress. All waiting clients get this error, and so do
    /// clients that arrive before the next attempt is due.
    #[error("no connection could be opened")]
    Connect(#[source] Arc<E>),
    /// [`Limits::waiting_max`](crate::Limits::waiting_max) clients wait already.
    #[error("too many clients are waiting for a connection")]
    QueueFull,
    /// The pool was closed with this error.
    #[error("the pool is closed")]
    Closed(#[source] Arc<E>),
}

impl<E> Clone for CheckoutError<E> {
    fn clone(&self) -> Self {
        match self {
            Self::Connect(error) => Self::Connect(Arc::clone(error)),
            Self::QueueFull => Self::QueueFull,
            Self::Closed(error) => Self::Closed(Arc::clone(error)),
        }
    }
}
