//! Many small children on one tokio task.
//!
//! What starting a million tokio tasks costs is mostly tokio's: a cell for each, a place in the runtime's list of tasks, a
//! place in a queue. Here up to [`Bundled::SIZE`] children share one task, a *bundle*, and each is an entry of its
//! `FuturesUnordered`. Bundles are tasks like any other, so workers still share them out, and a turn of one is as short as
//! it is small.

use std::fmt::{self, Debug};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::Stream;
use futures_util::stream::FuturesUnordered;

use crate::runtime::{Spawn, Timer};
use crate::stop::Sweep;
use crate::sync::{Mutex, lock};
use crate::tokio::{Tokio, TokioSleep};

/// A tokio runtime that runs children in bundles: for hundreds of thousands of small children of one type, which start in
/// about half the time and take a sixth less memory than with a task each.
///
/// `F` is the type of the children, found out by the first call that spawns one; box them to mix types. In return for
/// what is saved, children of a bundle run one at a time: one that blocks its thread holds up at most
/// [`SIZE`](Self::SIZE) - 1 others. All else is as with a task each. What a child returns is not kept: look at its
/// [`Child`](crate::Child), or let it send.
///
/// ```
/// use std::time::Duration;
/// use tidegate_supervise::{Bundled, Scope, Tokio};
///
/// # #[tokio::main]
/// # async fn main() {
/// let subscribers = Scope::root::<u64>("subscribers").on(Bundled::on(Tokio::current()));
/// for id in 0..1000 {
///     subscribers.spawn_as(id, |ctx| async move { ctx.cancelled().await }).expect("the scope is open");
/// }
/// let report = subscribers.stop(Duration::from_secs(5), Duration::from_secs(1)).await;
/// assert_eq!(report.clean(), 1000);
/// # }
/// ```
pub struct Bundled<F> {
    runtime: Tokio,
    /// One for each thread that spawns, as far as there are as many.
    open: Arc<[Open<F>]>,
}

/// The bundle of a thread that takes more children, if there is one.
type Open<F> = Mutex<Option<Arc<Inbox<F>>>>;

/// Children on their way into a bundle.
struct Inbox<F>(Mutex<Arrivals<F>>);

struct Arrivals<F> {
    fresh: Vec<F>,
    /// How many more the bundle takes; none once it is about to end.
    room: usize,
    waker: Option<Waker>,
}

impl<F> Bundled<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    /// So many children share a task.
    pub const SIZE: usize = 256;

    /// Bundles on this runtime.
    pub fn on(runtime: Tokio) -> Self {
        let parts = runtime.workers().next_power_of_two();
        Self { runtime, open: (0..parts).map(|_| Mutex::new(None)).collect() }
    }

    /// A bundle with one child.
    fn begin(&self, first: F) -> Arc<Inbox<F>> {
        let arrivals = Arrivals { fresh: vec![first], room: Self::SIZE - 1, waker: None };
        let inbox = Arc::new(Inbox(Mutex::new(arrivals)));
        drop(self.runtime.spawn(Bundle { inbox: Arc::clone(&inbox), children: FuturesUnordered::new() }));
        inbox
    }
}

impl<F> Inbox<F> {
    /// Adds a child; gives it back if there is no room.
    fn add(&self, child: F) -> Result<(), F> {
        let waker = {
            let mut arrivals = lock(&self.0);
            if arrivals.room == 0 {
                return Err(child);
            }
            arrivals.room -= 1;
            arrivals.fresh.push(child);
            arrivals.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// The children that have come; then tells of the next one, or, with `is_idle`, takes no more if there was none.
    fn take(&self, waker: &Waker, is_idle: bool) -> Vec<F> {
        let mut arrivals = lock(&self.0);
        if arrivals.fresh.is_empty() && is_idle {
            arrivals.room = 0;
        } else if arrivals.room > 0 {
            arrivals.waker = Some(waker.clone());
        }
        std::mem::take(&mut arrivals.fresh)
    }
}

/// Children that share a task.
struct Bundle<F: Future> {
    inbox: Arc<Inbox<F>>,
    children: FuturesUnordered<F>,
}

impl<F: Future> Bundle<F> {
    fn welcome(&mut self, waker: &Waker, is_idle: bool) -> bool {
        let fresh = self.inbox.take(waker, is_idle);
        let any = !fresh.is_empty();
        self.children.extend(fresh);
        any
    }
}

impl<F: Future> Future for Bundle<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.welcome(cx.waker(), false);
        loop {
            match Pin::new(&mut self.children).poll_next(cx) {
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => {
                    if !self.welcome(cx.waker(), true) {
                        return Poll::Ready(());
                    }
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl<F: Future> Drop for Bundle<F> {
    fn drop(&mut self) {
        // The runtime may have gone: what has just come is dropped with the rest.
        let mut arrivals = lock(&self.inbox.0);
        arrivals.room = 0;
        let fresh = std::mem::take(&mut arrivals.fresh);
        drop(arrivals);
        drop(fresh);
    }
}

impl<F> Spawn<F> for Bundled<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    type Handle = ();

    fn spawn(&self, future: F) {
        let open = &self.open[own_place() & (self.open.len() - 1)];
        // Not held meanwhile: a runtime that has gone drops the future here, and that may spawn.
        let inbox = lock(open).clone();
        let refused = match inbox {
            Some(inbox) => inbox.add(future).err(),
            None => Some(future),
        };
        if let Some(future) = refused {
            let before = lock(open).replace(self.begin(future));
            drop(before);
        }
    }
}

/// Numbers threads, so that those that spawn meet as seldom as they can.
fn own_place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static PLACE: usize = NEXT.fetch_add(1, Relaxed));
    PLACE.with(|place| *place)
}

impl<F> Timer for Bundled<F> {
    type Sleep = TokioSleep;

    fn sleep(&self, duration: Duration) -> TokioSleep {
        self.runtime.sleep(duration)
    }

    fn deadline(&self, duration: Duration) -> TokioSleep {
        self.runtime.deadline(duration)
    }

    fn now(&self) -> Instant {
        self.runtime.now()
    }

    fn lend(&self, sweep: Sweep) -> Option<Sweep> {
        self.runtime.lend(sweep)
    }

    fn workers(&self) -> usize {
        self.runtime.workers()
    }
}

impl<F> Clone for Bundled<F> {
    fn clone(&self) -> Self {
        Self { runtime: self.runtime.clone(), open: Arc::clone(&self.open) }
    }
}

impl<F> Debug for Bundled<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bundled").field("runtime", &self.runtime).finish_non_exhaustive()
    }
}
