//! Cost of a stop, counted in polls, sleeps and threads, never in time.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate_supervise::{Ctx, Scope, Sweep, Timer, Tokio};

const LONG: Duration = Duration::from_secs(3600);

/// A first-in, first-out executor on one thread that records the order of its polls.
#[derive(Default)]
struct Queue(Mutex<VecDeque<Arc<Task>>>);

struct Task {
    name: char,
    queue: Arc<Queue>,
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    queued: AtomicUsize,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if self.queued.fetch_max(1, SeqCst) == 0 {
            self.queue.0.lock().unwrap().push_back(Arc::clone(&self));
        }
    }
}

impl Queue {
    fn spawn(self: &Arc<Self>, name: char, future: impl Future<Output = ()> + Send + 'static) {
        let future = Mutex::new(Some(Box::pin(future) as _));
        Arc::new(Task { name, queue: Arc::clone(self), future, queued: AtomicUsize::new(0) }).wake();
    }

    /// Runs while a task is queued and `goes_on` holds; returns the names of the polled tasks in order.
    fn run(&self, mut goes_on: impl FnMut(&str) -> bool) -> String {
        let mut polled = String::new();
        while goes_on(&polled) {
            let Some(task) = self.0.lock().unwrap().pop_front() else { break };
            task.queued.store(0, SeqCst);
            polled.push(task.name);
            let waker = Waker::from(Arc::clone(&task));
            let mut future = task.future.lock().unwrap();
            if let Some(running) = future.as_mut()
                && running.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
            {
                *future = None;
            }
        }
        polled
    }
}

/// Creates `children` that wait for a stop, and polls each once.
fn waiting(children: usize) -> (Arc<Queue>, Scope<u64>) {
    let (queue, scope) = (Arc::new(Queue::default()), Scope::root("root"));
    for _ in 0..children {
        let child = scope.wrap(|ctx: Ctx| async move { ctx.cancelled().await }).unwrap();
        queue.spawn('c', async move { assert!(child.await.is_ok()) });
    }
    assert_eq!(queue.run(|_| true).len(), children);
    (queue, scope)
}

#[derive(Clone, Default)]
struct Counting {
    sleeps: Arc<AtomicUsize>,
}

impl Timer for Counting {
    type Sleep = std::future::Pending<()>;

    fn sleep(&self, _: Duration) -> Self::Sleep {
        self.sleeps.fetch_add(1, SeqCst);
        std::future::pending()
    }
}

/// SV-36: the polls of a stop are linear in the number of children.
#[test]
fn polls_of_stop_are_linear_in_children() {
    for children in [1000, 10_000, 100_000] {
        let (queue, scope) = waiting(children);
        let stop = scope.stop(Counting::default(), LONG, LONG);
        queue.spawn('s', async move { assert!(stop.await.is_clean()) });
        let polled = queue.run(|_| true);
        let stops = polled.matches('s').count();
        assert_eq!(polled.matches('c').count(), children, "each child is polled once");
        assert!(stops <= children / 64 + 64, "stop took {stops} polls");
    }
}

/// SV-40: a stop uses one timer for all children.
#[test]
fn stop_uses_one_timer() {
    let (queue, scope) = waiting(10_000);
    let timer = Counting::default();
    let stop = scope.stop(timer.clone(), LONG, LONG);
    queue.spawn('s', async move { drop(stop.await) });
    queue.run(|_| true);
    assert!(scope.is_empty());
    assert_eq!(timer.sleeps.load(SeqCst), 1, "one sleep for the grace period, none for the abort");
}

/// SV-42: a sweep yields to unrelated tasks between small batches.
#[test]
fn sweep_yields_to_unrelated_tasks() {
    let (queue, scope) = waiting(10_000);
    let stop = scope.stop(Counting::default(), LONG, LONG);
    queue.spawn('s', async move { drop(stop.await) });
    queue.spawn('u', async {
        std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        })
        .await;
    });
    let polled = queue.run(|_| !scope.is_empty());
    let longest = polled.split('u').map(str::len).max();
    assert!(longest <= Some(64 + 2), "{longest:?} polls between two polls of the unrelated task");
}

/// Records the thread that wakes each child.
struct WakeThreads(Arc<Mutex<Vec<String>>>);

impl Wake for WakeThreads {
    fn wake(self: Arc<Self>) {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        self.0.lock().unwrap().push(name);
    }
}

/// SV-41: children are woken on the workers only.
#[test]
fn children_are_woken_on_workers_only() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("worker")
        .enable_time()
        .build()
        .unwrap();
    let scope = Scope::root::<u64>("root");
    let wakers = Arc::new(Mutex::new(Vec::new()));
    let waker = Waker::from(Arc::new(WakeThreads(Arc::clone(&wakers))));
    let mut children: Vec<_> =
        (0..10_000).map(|_| Box::pin(scope.wrap(|ctx: Ctx| async move { ctx.cancelled().await }).unwrap())).collect();
    for child in &mut children {
        assert!(child.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    let stop = scope.stop(Tokio::new(runtime.handle().clone()), LONG, LONG);
    let ended = async {
        while wakers.lock().unwrap().len() < 10_000 {
            tokio::task::yield_now().await;
        }
        drop(children);
    };
    let (report, ()) = runtime.block_on(async { tokio::join!(stop, ended) });
    assert_eq!(report.left, 0);
    assert!(wakers.lock().unwrap().iter().all(|thread| thread == "worker"));
}

/// Drops every lent part, like a runtime that shuts down.
#[derive(Clone)]
struct DropsSweeps;

impl Timer for DropsSweeps {
    type Sleep = std::future::Pending<()>;

    fn sleep(&self, _: Duration) -> Self::Sleep {
        std::future::pending()
    }

    fn lend(&self, sweep: Sweep) -> Option<Sweep> {
        drop(sweep);
        None
    }

    fn workers(&self) -> usize {
        4
    }
}

#[test]
fn dropped_sweep_signals_every_child() {
    let (queue, scope) = waiting(10_000);
    let stop = scope.stop(DropsSweeps, LONG, LONG);
    queue.spawn('s', async move { assert!(stop.await.is_clean()) });
    queue.run(|_| true);
    assert!(scope.is_empty());
}

#[tokio::test]
async fn closure_is_a_timer() {
    let scope = Scope::root::<u64>("root").on(Tokio::current());
    drop(scope.spawn(|_| std::future::pending::<()>()).unwrap());
    let report = scope.scope().stop(tokio::time::sleep, Duration::ZERO, LONG).await;
    assert_eq!(report.aborted(), 1);
}
