//! Many small children on one tokio task.
//!
//! Most of the cost of starting a million tokio tasks is tokio's: an allocation, an entry in the runtime's task list and a
//! queue entry per task. Here up to [`Bundled::SIZE`] children share one task, a *bundle*, and each child is an entry of its
//! `FuturesUnordered`. Bundles are ordinary tasks, so workers steal them as usual, and small bundles have short polls.

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

/// A tokio runtime that runs children in bundles: for hundreds of thousands of small children of one type. They start in
/// about half the time and take a sixth less memory than with one task each.
///
/// `F` is the type of the children, inferred from the first call that spawns one; box the futures to mix types. In return,
/// children of a bundle run one at a time: a child that blocks its thread delays at most [`SIZE`](Self::SIZE) - 1 others. All
/// else is as with one task each. The output of a child is not kept: use its [`Child`](crate::Child), or let the child send
/// the output.
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
    /// Open bundles: one per spawning thread, shared if threads outnumber them.
    open: Arc<[Open<F>]>,
}

/// Open bundle of a thread, if any.
type Open<F> = Mutex<Option<Arc<Inbox<F>>>>;

/// Children that wait to enter a bundle.
struct Inbox<F>(Mutex<Queued<F>>);

struct Queued<F> {
    children: Vec<F>,
    /// Number of children that the bundle still accepts; 0 once it is about to end.
    room: usize,
    waker: Option<Waker>,
}

impl<F> Bundled<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    /// Maximum number of children per task.
    pub const SIZE: usize = 256;

    /// Creates a runtime that bundles children on `runtime`.
    pub fn on(runtime: Tokio) -> Self {
        let parts = runtime.workers().next_power_of_two();
        Self { runtime, open: (0..parts).map(|_| Mutex::new(None)).collect() }
    }

    /// Starts a bundle with one child.
    fn begin(&self, first: F) -> Arc<Inbox<F>> {
        let queued = Queued { children: vec![first], room: Self::SIZE - 1, waker: None };
        let inbox = Arc::new(Inbox(Mutex::new(queued)));
        drop(self.runtime.spawn(Bundle { inbox: Arc::clone(&inbox), children: FuturesUnordered::new() }));
        inbox
    }
}

impl<F> Inbox<F> {
    /// Adds a child; returns the child if the bundle is full.
    fn add(&self, child: F) -> Result<(), F> {
        let waker = {
            let mut queued = lock(&self.0);
            if queued.room == 0 {
                return Err(child);
            }
            queued.room -= 1;
            queued.children.push(child);
            queued.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Takes the queued children and registers `waker` for the next one. With `is_idle` and an empty inbox, closes the inbox
    /// instead.
    fn take(&self, waker: &Waker, is_idle: bool) -> Vec<F> {
        let mut queued = lock(&self.0);
        if queued.children.is_empty() && is_idle {
            queued.room = 0;
        } else if queued.room > 0 {
            queued.waker = Some(waker.clone());
        }
        std::mem::take(&mut queued.children)
    }
}

/// Children that share a task.
struct Bundle<F: Future> {
    inbox: Arc<Inbox<F>>,
    children: FuturesUnordered<F>,
}

impl<F: Future> Bundle<F> {
    fn accept(&mut self, waker: &Waker, is_idle: bool) -> bool {
        let children = self.inbox.take(waker, is_idle);
        let any = !children.is_empty();
        self.children.extend(children);
        any
    }
}

impl<F: Future> Future for Bundle<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.accept(cx.waker(), false);
        loop {
            match Pin::new(&mut self.children).poll_next(cx) {
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => {
                    if !self.accept(cx.waker(), true) {
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
        // The runtime may have shut down: queued children are dropped with the rest.
        let mut queued = lock(&self.inbox.0);
        queued.room = 0;
        let children = std::mem::take(&mut queued.children);
        drop(queued);
        drop(children);
    }
}

impl<F> Spawn<F> for Bundled<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    type Handle = ();

    fn spawn(&self, future: F) {
        let open = &self.open[thread_index() & (self.open.len() - 1)];
        // The lock is not held here: a runtime that has shut down drops the future in `spawn`, and that drop may spawn.
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

/// Numbers threads, so that spawning threads rarely share a bundle.
fn thread_index() -> usize {
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
