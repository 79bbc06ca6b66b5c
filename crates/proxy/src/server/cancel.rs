//! Holds a server back while a cancel request for it is in flight.
//!
//! A CancelRequest names a server process, not a query. If the query ends while the request is in flight, the signal hits
//! whatever that process does next. Therefore a server with cancel requests in flight is not handed to another client.

use std::{cell::RefCell, rc::Rc, task::Waker};

/// Tracks the cancel requests in flight for one server.
#[derive(Clone, Debug, Default)]
pub struct CancelGate(Rc<RefCell<Gate>>);

#[derive(Debug, Default)]
struct Gate {
    under_way: usize,
    /// The outcome of a request is unknown: it may take effect at any time.
    has_lost: bool,
    waiter: Option<Waker>,
}

/// Cancel request in flight, until dropped.
#[derive(Debug)]
pub struct UnderWay(CancelGate);

impl CancelGate {
    /// Registers a cancel request.
    #[must_use]
    pub fn begin(&self) -> UnderWay {
        self.0.borrow_mut().under_way += 1;
        UnderWay(self.clone())
    }

    /// Returns whether no request is in flight.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.borrow().under_way == 0
    }

    /// Returns whether the outcome of a sent request is unknown: no other client may get the server.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        self.0.borrow().has_lost
    }

    /// Waits until no request is in flight.
    pub async fn opened(&self) {
        std::future::poll_fn(|cx| {
            let mut gate = self.0.borrow_mut();
            if gate.under_way == 0 {
                return std::task::Poll::Ready(());
            }
            gate.waiter = Some(cx.waker().clone());
            std::task::Poll::Pending
        })
        .await;
    }
}

impl UnderWay {
    /// Marks the outcome of the request as unknown.
    pub fn lose(self) {
        self.0.0.borrow_mut().has_lost = true;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut gate = self.0.0.borrow_mut();
        gate.under_way -= 1;
        if let Some(waker) = gate.waiter.take() {
            waker.wake();
        }
    }
}
