//! Awaiting from a thread: the same futures, on whatever thread calls.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Instant,
};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static WAKER: Waker = own_waker();
}

fn own_waker() -> Waker {
    Arc::new(Unpark(thread::current())).into()
}

/// Polls to the end, and parks the thread in between. `None`: the deadline came first.
pub(crate) fn block_until<F: Future>(future: F, deadline: Option<Instant>) -> Option<F::Output> {
    let mut future = pin!(future);
    // A thread that ends has none any more.
    let waker = WAKER.try_with(Waker::clone).unwrap_or_else(|_| own_waker());
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Some(value);
        }
        let Some(deadline) = deadline else {
            thread::park();
            continue;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

pub(crate) fn block<F: Future>(future: F) -> F::Output {
    block_until(future, None).expect("without a deadline it ends with a value")
}
