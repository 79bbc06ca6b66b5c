//! Blocking on a future: the same futures on any thread.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
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

/// Polls a future to completion and parks the thread in between. Returns `None` if the deadline comes first.
pub(crate) fn block_until<F: Future>(future: F, deadline: Option<Instant>) -> Option<F::Output> {
    let mut future = pin!(future);
    // A thread-local is not available while a thread ends.
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
    block_until(future, None).expect("without a deadline the future completes")
}

/// The instant `time` from now, or in 100 years if the clock cannot represent it.
pub(crate) fn after(time: Duration) -> Instant {
    const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(time).unwrap_or_else(|| now + NEVER)
}
