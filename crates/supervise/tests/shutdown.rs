//! Stops: order of signals, unresponsive children, and reports.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeSet;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate_supervise::{Ctx, Exit, Observe, Refused, Report, Scope, Supervisor, Tokio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LONG: Duration = Duration::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);
const SHORT: Duration = Duration::from_millis(20);

fn root() -> Supervisor<Tokio, u64> {
    Scope::root("root").on(Tokio::current())
}

async fn waits_for_stop(ctx: Ctx) {
    ctx.cancelled().await;
    tokio::task::yield_now().await;
}

async fn stop_of(children: u64) -> Report {
    let scope = root();
    for id in 0..children {
        drop(scope.spawn_as(id, waits_for_stop).unwrap());
    }
    scope.stop(LONG, LONG).await
}

/// SV-7: a stop ends 0 to 1,000,000 children.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn any_number_of_children_stops() {
    for children in [0, 1, 1000, 1_000_000] {
        let report = stop_of(children).await;
        assert!(report.is_clean() && report.clean() == children, "{report}");
    }
}

/// SV-8: a child that ignores the stop is aborted after the grace period.
#[tokio::test(start_paused = true)]
async fn unresponsive_child_is_aborted_after_grace() {
    let scope = root();
    drop(scope.spawn(|_| pending::<()>()).unwrap());
    drop(scope.spawn(waits_for_stop).unwrap());
    let report = scope.stop(5 * SECOND, LONG).await;
    assert_eq!((report.clean(), report.aborted(), report.left), (1, 1, 0));
    assert_eq!(report.took.as_secs(), 5);
}

/// SV-9: a child that blocks its thread is reported as stuck.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn blocking_child_is_reported_stuck() {
    let scope = root();
    let (release, blocked) = mpsc::channel::<()>();
    let (polled, was_polled) = tokio::sync::oneshot::channel();
    let blocks = move |_| async move {
        polled.send(()).unwrap();
        let _ = blocked.recv();
    };
    let child = scope.spawn_as(7, blocks).unwrap();
    was_polled.await.unwrap();
    let report = scope.stop(SHORT, SHORT).await;
    assert_eq!((report.left, report.stuck.len()), (1, 1));
    let stuck = &report.stuck[0];
    assert_eq!((&*stuck.scope, stuck.key.as_deref()), ("root", Some("7")));
    assert!(stuck.spawned_at.file().ends_with("shutdown.rs"), "{stuck}");
    // The clock of ages is coarse.
    let age = stuck.age + Duration::from_millis(10);
    assert!(age >= SHORT + SHORT, "age covers both deadlines: {stuck}, {report}");
    drop(release);
    assert_eq!(child.await.unwrap(), Ok(()));
    assert_eq!(scope.counts().exits.total(), 1);
}

/// SV-9: a report counts all stuck children and lists at most 1,000.
#[tokio::test(start_paused = true)]
async fn report_lists_at_most_1000_stuck_children() {
    const STUCK: u64 = 1_200;
    let scope = root();
    let held: Vec<_> = (1..=STUCK).map(|number| scope.hold(number).unwrap()).collect();
    let report = scope.stop(SHORT, SHORT).await;
    assert_eq!((report.left as u64, report.stuck.len()), (STUCK, 1_000));
    let numbers: BTreeSet<_> = report.stuck.iter().filter_map(|stuck| stuck.number).collect();
    assert_eq!(numbers.len(), 1_000, "each child is listed once");
    drop(held);
    assert_eq!(scope.counts().live, 0);
}

/// SV-10: an exit at the deadline is counted once.
#[tokio::test(start_paused = true)]
async fn exit_at_deadline_is_counted_once() {
    let scope = root();
    for _ in 0..100 {
        let punctual = |ctx: Ctx| async move {
            ctx.cancelled().await;
            tokio::time::sleep(SECOND).await;
        };
        drop(scope.spawn(punctual).unwrap());
    }
    tokio::task::yield_now().await;
    let report = scope.stop(SECOND, SECOND).await;
    assert_eq!((report.clean() + report.aborted(), report.left), (100, 0), "{report}");
}

/// SV-11: a spawn that races a stop is refused or stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn spawn_racing_stop_is_refused_or_stopped() {
    for _ in 0..50 {
        let scope = root();
        let spawners: Vec<_> = (0..4)
            .map(|_| {
                let scope = scope.clone();
                tokio::spawn(async move { (0..200).filter(|_| scope.spawn(waits_for_stop).is_ok()).count() })
            })
            .collect();
        let report = scope.stop(LONG, LONG).await;
        let mut started = 0;
        for spawner in spawners {
            started += spawner.await.unwrap();
        }
        let counts = scope.counts();
        assert_eq!(report.left, 0, "{report}");
        assert_eq!((counts.started, counts.exits.total(), counts.live), (started as u64, started as u64, 0));
    }
}

/// SV-12: a child cannot spawn siblings during a stop.
#[tokio::test]
async fn child_cannot_spawn_siblings_during_stop() {
    let scope = root();
    let (inner, refused) = (scope.clone(), Arc::new(Mutex::new(None)));
    let seen = Arc::clone(&refused);
    let spawns = |ctx: Ctx| async move {
        ctx.cancelled().await;
        *seen.lock().unwrap() = inner.spawn(waits_for_stop).err();
    };
    drop(scope.spawn(spawns).unwrap());
    assert!(scope.stop(LONG, LONG).await.is_clean());
    assert_eq!(*refused.lock().unwrap(), Some(Refused::Stopping));
}

/// SV-12: a scope that is created during a stop refuses children.
#[tokio::test]
async fn scope_created_during_stop_refuses_children() {
    let scope = root();
    let (inner, refused) = (scope.clone(), Arc::new(Mutex::new(None)));
    let seen = Arc::clone(&refused);
    let opens = |ctx: Ctx| async move {
        ctx.cancelled().await;
        let late: Supervisor<Tokio, u64> = inner.child("late").on(Tokio::current());
        *seen.lock().unwrap() = late.spawn(waits_for_stop).err();
    };
    drop(scope.spawn(opens).unwrap());
    assert!(scope.stop(LONG, LONG).await.is_clean());
    assert_eq!(*refused.lock().unwrap(), Some(Refused::Stopping));
}

/// SV-12: `run_until_cancelled` runs until the stop and does not start after it.
#[tokio::test]
async fn run_until_cancelled_does_not_start_after_stop() {
    let scope = root();
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let outcomes = Arc::new(Mutex::new([None; 3]));
    let seen = Arc::clone(&outcomes);
    let works = |ctx: Ctx| async move {
        let before = ctx.run_until_cancelled(async { 1 }).await;
        let waits = async {
            begun.send(()).unwrap();
            pending().await
        };
        let late = ctx.run_until_cancelled(waits).await;
        let after = ctx.run_until_cancelled(async { 3 }).await;
        *seen.lock().unwrap() = [before, late, after];
    };
    drop(scope.spawn(works).unwrap());
    has_begun.await.unwrap();
    assert!(scope.stop(LONG, LONG).await.is_clean());
    assert_eq!(*outcomes.lock().unwrap(), [Some(1), None, None]);
}

/// SV-13: a child may stop its own scope.
#[tokio::test(start_paused = true)]
async fn child_may_stop_its_own_scope() {
    let scope = root();
    let inner = scope.clone();
    drop(scope.spawn(|_| async move { drop(inner.stop(SECOND, SECOND).await) }).unwrap());
    for _ in 0..1000 {
        drop(scope.spawn(waits_for_stop).unwrap());
    }
    drop(scope.spawn(|_| pending::<()>()).unwrap());
    tokio::time::sleep(5 * SECOND).await;
    let counts = scope.counts();
    assert_eq!((counts.live, counts.exits[Exit::Returned], counts.exits[Exit::Aborted]), (0, 1000, 2));
}

/// SV-13: two concurrent stops both report.
#[tokio::test(start_paused = true)]
async fn concurrent_stops_both_report() {
    let scope = root();
    for _ in 0..1000 {
        drop(scope.spawn(waits_for_stop).unwrap());
    }
    drop(scope.spawn(|_| pending::<()>()).unwrap());
    let (patient, hasty) = tokio::join!(scope.stop(LONG, LONG), scope.stop(SECOND, SECOND));
    assert_eq!((patient.left, hasty.left), (0, 0));
    assert_eq!(patient.took.as_secs(), 1, "the shorter grace period applies to both");
    let again = scope.stop(LONG, LONG).await;
    assert_eq!(again.exits.total(), 0, "a stop of a stopped scope reports no exits");
}

/// SV-13: dropping the last handle stops the children.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn dropping_last_handle_stops_children() {
    let scope = root();
    let children: Vec<_> = (0..1000).map(|_| scope.spawn(waits_for_stop).unwrap()).collect();
    drop(scope);
    for child in children {
        assert_eq!(child.await.unwrap(), Ok(()));
    }
}

/// Counts observed exits.
#[derive(Default)]
struct Ends(AtomicUsize);

impl Observe for Ends {
    fn exited(&self, _: &str, _: Exit, _: Option<&str>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// SV-13: a stop that races drops of handles and children counts every child.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stop_racing_drops_counts_all_children() {
    for _ in 0..50 {
        let ends = Arc::new(Ends::default());
        let scope: Scope<u64> = Scope::builder("root").observer(ends.clone()).build();
        let unpolled: Vec<_> = (0..200).map(|_| scope.wrap(waits_for_stop).unwrap()).collect();
        for _ in 0..200 {
            drop(scope.on(Tokio::current()).spawn(waits_for_stop).unwrap());
        }
        let stop = scope.stop(Tokio::current(), LONG, LONG);
        let dropping = tokio::task::spawn_blocking(move || drop((scope, unpolled)));
        let report = stop.await;
        dropping.await.unwrap();
        assert_eq!((report.left, ends.0.load(SeqCst)), (0, 400), "{report}");
    }
}

fn poll_once<F: Future>(future: &mut std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// SV-14: a further call resumes a dropped stop.
#[tokio::test]
async fn dropped_stop_can_be_resumed() {
    let scope = root();
    for _ in 0..10_000 {
        drop(scope.spawn(waits_for_stop).unwrap());
    }
    tokio::task::yield_now().await;
    {
        let mut stop = pin!(scope.stop(LONG, LONG));
        assert!(poll_once(&mut stop).is_pending());
    }
    assert_eq!(scope.spawn(waits_for_stop).err(), Some(Refused::Stopping));
    let report = scope.stop(LONG, LONG).await;
    assert_eq!((report.left, scope.counts().exits[Exit::Returned]), (0, 10_000));
}

/// SV-14: a dropped stop signals every child, also without lent workers.
#[tokio::test]
async fn dropped_stop_without_workers_signals_all() {
    let scope = Scope::root::<u64>("root");
    let children: Vec<_> = (0..10_000).map(|_| tokio::spawn(scope.wrap(waits_for_stop).unwrap())).collect();
    tokio::task::yield_now().await;
    {
        let mut stop = pin!(scope.stop(|_| pending(), LONG, LONG));
        assert!(poll_once(&mut stop).is_pending());
    }
    for child in children {
        assert_eq!(child.await.unwrap(), Ok(()));
    }
}

/// SV-15: a cleanup may await timers, channels and sockets.
#[tokio::test]
async fn cleanup_may_await_io() {
    let scope = root();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (send, receive) = tokio::sync::mpsc::channel(1);
    let timer = |ctx: Ctx| async move {
        ctx.cancelled().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    let sender = |ctx: Ctx| async move {
        ctx.cancelled().await;
        send.send("done").await.unwrap();
        send.closed().await;
    };
    let socket = move |ctx: Ctx| async move {
        ctx.cancelled().await;
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(b"done").await.unwrap();
    };
    drop((scope.spawn(timer).unwrap(), scope.spawn(sender).unwrap(), scope.spawn(socket).unwrap()));
    let outside = async move {
        let mut receive = receive;
        assert_eq!(receive.recv().await, Some("done"));
        drop(receive);
        let mut text = String::new();
        listener.accept().await.unwrap().0.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "done");
    };
    let (report, ()) = tokio::join!(scope.stop(LONG, LONG), outside);
    assert!(report.is_clean(), "{report}");
}

/// SV-16: a panic in the cleanup is counted as a panic.
#[tokio::test]
async fn panic_in_cleanup_is_counted() {
    let scope = root();
    let panics = |ctx: Ctx| async move {
        ctx.cancelled().await;
        if ctx.is_stopping() {
            std::panic::resume_unwind(Box::new("silent"));
        }
    };
    drop((scope.spawn(panics).unwrap(), scope.spawn(waits_for_stop).unwrap()));
    let report = scope.stop(LONG, LONG).await;
    assert_eq!((report.panicked(), report.clean(), report.left), (1, 1, 0));
}

/// SV-17: child scopes stop before their parents, phases in order.
#[tokio::test(start_paused = true)]
async fn child_scopes_and_phases_stop_in_order() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let root = root();
    let listeners = root.child_builder("listeners").phase(0).build::<u64>();
    let clients = root.child_builder("clients").phase(1).build::<u64>();
    let servers = root.child_builder("servers").phase(2).build::<u64>();
    let streams = clients.child::<u64>("streams");
    for scope in [root.scope(), &listeners, &clients, &servers, &streams] {
        let (log, path) = (Arc::clone(&log), scope.path().to_owned());
        let slow = move |ctx: Ctx| async move {
            ctx.cancelled().await;
            tokio::time::sleep(SECOND).await;
            log.lock().unwrap().push(path);
        };
        drop(scope.on(Tokio::current()).spawn(slow).unwrap());
    }
    assert!(root.stop(LONG, LONG).await.is_clean());
    let order = ["root/listeners", "root/clients/streams", "root/clients", "root/servers", "root"];
    assert_eq!(*log.lock().unwrap(), order);
}

/// SV-17: a level that was delayed by the level below still runs its cleanup.
#[tokio::test(start_paused = true)]
async fn delayed_level_still_runs_cleanup() {
    let root = root();
    let unresponsive = root.child::<u64>("unresponsive");
    let delayed = root.child_builder("delayed").phase(1).build::<u64>();
    drop(unresponsive.on(Tokio::current()).spawn(|_| pending::<()>()).unwrap());
    let cleaned = Arc::new(AtomicUsize::new(0));
    for scope in [root.scope(), &delayed] {
        let cleaned = Arc::clone(&cleaned);
        let tidy = move |ctx: Ctx| async move {
            ctx.cancelled().await;
            tokio::time::sleep(SECOND).await;
            cleaned.fetch_add(1, SeqCst);
        };
        drop(scope.on(Tokio::current()).spawn(tidy).unwrap());
    }
    let report = root.stop(5 * SECOND, 5 * SECOND).await;
    assert_eq!((report.clean(), report.aborted(), report.left), (2, 1, 0), "{report}");
    assert_eq!((cleaned.load(SeqCst), report.took.as_secs()), (2, 7));
}

/// SV-17: a delayed level that ignores the stop is aborted before the deadline.
#[tokio::test(start_paused = true)]
async fn delayed_unresponsive_level_is_aborted() {
    let root = root();
    let below = root.child::<u64>("below").child::<u64>("further below");
    drop(below.on(Tokio::current()).spawn(|_| pending::<()>()).unwrap());
    drop(root.spawn(|_| pending::<()>()).unwrap());
    let report = root.stop(5 * SECOND, 4 * SECOND).await;
    assert_eq!((report.aborted(), report.left, report.took.as_secs()), (2, 0, 7), "{report}");
}

/// SV-18: an abort reaches five levels of scopes.
#[tokio::test(start_paused = true)]
async fn abort_reaches_five_levels() {
    let root = root();
    let mut scopes = vec![root.scope().clone()];
    for level in 1..6 {
        scopes.push(scopes[level - 1].child(&level.to_string()));
    }
    for scope in &scopes {
        drop(scope.on(Tokio::current()).spawn(|_| pending::<()>()).unwrap());
    }
    let middle = scopes.remove(3);
    scopes.truncate(1);
    drop(middle);
    let report = root.stop(SECOND, SECOND).await;
    assert_eq!((report.aborted(), report.left), (6, 0), "scopes without a handle remain in the tree");
}

/// SV-19: a drain refuses new children and waits; a stop may follow.
#[tokio::test(start_paused = true)]
async fn drain_refuses_and_waits_before_stop() {
    let scope = root();
    let below = scope.child::<u64>("below");
    let finishes = |ctx: Ctx| async move {
        tokio::time::sleep(SECOND).await;
        assert!(!ctx.is_stopping(), "a drain does not signal children");
    };
    drop((below.spawn(finishes).unwrap(), scope.spawn(waits_for_stop).unwrap()));
    let drained = scope.drain(5 * SECOND);
    assert_eq!(below.spawn(waits_for_stop).err(), Some(Refused::Draining));
    let report = drained.await;
    assert_eq!((report.clean(), report.left, report.took.as_secs()), (1, 1, 5));
    assert!(scope.stop(LONG, LONG).await.is_clean());
    assert_eq!(scope.spawn(waits_for_stop).err(), Some(Refused::Stopping));
}

/// SV-20: a stop completes when all workers are busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_completes_when_workers_are_busy() {
    let scope = root();
    let over = Arc::new(AtomicBool::new(false));
    for _ in 0..64 {
        let over = Arc::clone(&over);
        tokio::spawn(async move {
            while !over.load(SeqCst) {
                tokio::task::yield_now().await;
            }
        });
    }
    for _ in 0..10_000 {
        drop(scope.spawn(waits_for_stop).unwrap());
    }
    let report = scope.stop(LONG, LONG).await;
    over.store(true, SeqCst);
    assert!(report.is_clean(), "{report}");
}

/// SV-20: a stop reports by its deadlines when all workers are blocked and no worker polls the timer.
#[test]
fn stop_reports_when_workers_are_blocked() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let scope = Scope::root::<u64>("root").on(Tokio::new(runtime.handle().clone()));
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let (runs, is_running) = mpsc::channel();
    for id in 0..2 {
        let (blocked, runs) = (Arc::clone(&blocked), runs.clone());
        let blocks = move |_| async move {
            runs.send(()).unwrap();
            let _ = blocked.lock().unwrap().recv();
        };
        drop(scope.spawn_as(id, blocks).unwrap());
    }
    (0..2).for_each(|_| is_running.recv().unwrap());
    drop(scope.spawn_as(2, waits_for_stop).unwrap());
    let report = block_on(scope.stop(SHORT, SHORT));
    let mut stuck: Vec<_> = report.stuck.iter().filter_map(|stuck| stuck.key.as_deref()).collect();
    stuck.sort_unstable();
    assert_eq!((report.left, stuck), (3, vec!["0", "1", "2"]), "{report}");
    drop(release);
    let report = block_on(scope.stop(LONG, LONG));
    assert_eq!((report.left, scope.counts().exits.total()), (0, 3), "{report}");
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on a thread outside any runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

/// SV-21: a thread outside the runtime may stop a scope.
#[test]
fn thread_outside_runtime_may_stop() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let scope = Scope::root::<u64>("root").on(Tokio::new(runtime.handle().clone()));
    for _ in 0..10_000 {
        drop(scope.spawn(waits_for_stop).unwrap());
    }
    let report = block_on(scope.stop(LONG, LONG));
    assert!(report.is_clean() && report.clean() == 10_000, "{report}");
    let unresponsive = Scope::root::<u64>("unresponsive").on(Tokio::new(runtime.handle().clone()));
    drop(unresponsive.spawn(|_| pending::<()>()).unwrap());
    let report = block_on(unresponsive.stop(SHORT, LONG));
    assert_eq!((report.aborted(), report.left), (1, 0), "the deadlines run on the runtime's timer");
}

/// SV-22: a stop works on a single-threaded runtime.
#[tokio::test(flavor = "current_thread")]
async fn stop_works_on_one_thread() {
    let report = stop_of(10_000).await;
    assert!(report.is_clean(), "{report}");
}

/// SV-23: a runtime that shuts down during a stop ends the stop.
#[test]
fn runtime_shutdown_during_stop_ends_stop() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let scope = Scope::root::<u64>("root");
    let polled = Arc::new(AtomicUsize::new(0));
    for _ in 0..1000 {
        let polled = Arc::clone(&polled);
        let child = scope.wrap(|ctx| async move {
            ctx.cancelled().await;
            polled.fetch_add(1, SeqCst);
            pending::<()>().await;
        });
        runtime.spawn(child.unwrap());
    }
    let stopper = {
        let (scope, on) = (scope.clone(), Tokio::new(runtime.handle().clone()));
        // The deadlines must not depend on the runtime that shuts down.
        let never = move |_| {
            let _ = &on;
            pending()
        };
        std::thread::spawn(move || block_on(scope.stop(never, LONG, LONG)))
    };
    while polled.load(SeqCst) < 1000 {
        std::thread::yield_now();
    }
    drop(runtime);
    let report = stopper.join().unwrap();
    assert_eq!((report.exits[Exit::Dropped], report.left), (1000, 0), "{report}");
}

/// SV-23: a runtime that runs the sweep and the deadlines shuts down, and the stop ends.
#[test]
fn shutdown_of_stopping_runtime_ends_stop() {
    for _ in 0..20 {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        let scope = Scope::root::<u64>("root").on(Tokio::new(runtime.handle().clone()));
        for _ in 0..1000 {
            drop(scope.spawn(|_| pending::<()>()).unwrap());
        }
        let stop = scope.stop(LONG, LONG);
        let (begun, has_begun) = mpsc::channel();
        let stopper = std::thread::spawn(move || {
            let mut stop = pin!(stop);
            assert!(poll_once(&mut stop).is_pending());
            begun.send(()).unwrap();
            block_on(stop)
        });
        has_begun.recv().unwrap();
        drop(runtime);
        let report = stopper.join().unwrap();
        assert_eq!((report.exits[Exit::Dropped], report.left), (1000, 0), "{report}");
    }
}

/// SV-23: a runtime that shuts down does not wait for a blocking child; its deadlines end, so the child is stuck.
#[test]
fn runtime_shutdown_leaves_blocking_child_stuck() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let scope = Scope::root::<u64>("root").on(Tokio::new(runtime.handle().clone()));
    let (release, blocked) = mpsc::channel::<()>();
    let (runs, is_running) = mpsc::channel();
    let work = move |_| {
        runs.send(()).unwrap();
        let _ = blocked.recv();
    };
    drop(scope.spawn_blocking_as(7, work).unwrap());
    is_running.recv().unwrap();
    let stop = scope.stop(LONG, LONG);
    let (begun, has_begun) = mpsc::channel();
    let stopper = std::thread::spawn(move || {
        let mut stop = pin!(stop);
        assert!(poll_once(&mut stop).is_pending());
        begun.send(()).unwrap();
        block_on(stop)
    });
    has_begun.recv().unwrap();
    runtime.shutdown_background();
    let report = stopper.join().unwrap();
    assert_eq!((report.left, report.stuck[0].key.as_deref()), (1, Some("7")), "{report}");
    drop(release);
}

#[tokio::test]
async fn stop_wakes_every_waker_of_a_child() {
    use futures_util::stream::{FuturesUnordered, StreamExt};
    let scope = root();
    let parts = |ctx: Ctx| async move {
        let waiting: FuturesUnordered<_> = (0..100)
            .map(|_| {
                let ctx = ctx.clone();
                async move { ctx.cancelled().await }
            })
            .collect();
        assert_eq!(waiting.count().await, 100);
    };
    drop(scope.spawn(parts).unwrap());
    let (ctx_out, ctx_in) = tokio::sync::oneshot::channel();
    let lends = |ctx: Ctx| async move {
        ctx_out.send(ctx.clone()).unwrap();
        pending::<()>().await;
    };
    drop(scope.spawn_as(1, lends).unwrap());
    let lent = ctx_in.await.unwrap();
    let elsewhere = tokio::spawn(async move { lent.cancelled().await });
    tokio::task::yield_now().await;
    scope.get(&1).unwrap().abort();
    elsewhere.await.unwrap();
    assert!(scope.stop(LONG, LONG).await.is_clean());
}

#[tokio::test(start_paused = true)]
async fn held_child_lives_until_dropped() {
    let root = Scope::root::<u32>("root").on(Tokio::current());
    let lines: Scope = root.child_builder("lines").phase(1).build();
    let pool = Arc::new(Mutex::new((1..=3).map(|number| lines.hold(number).unwrap()).collect::<Vec<_>>()));
    let (keepers, owned) = (root.child::<u32>("keepers"), Arc::clone(&pool));
    let keeper = |ctx: Ctx| async move {
        ctx.cancelled().await;
        assert!(!owned.lock().unwrap()[0].ctx().is_stopping(), "a later phase is not signalled yet");
        owned.lock().unwrap().truncate(1);
    };
    drop(keepers.spawn(keeper).unwrap());
    assert_eq!((lines.len(), lines.counts().started), (3, 3));
    let report = root.stop(SECOND, SECOND).await;
    assert_eq!((report.clean(), report.aborted(), report.left), (3, 0, 1), "{report}");
    let left = &report.stuck[0];
    assert_eq!((&*left.scope, left.number), ("root/lines", Some(1)));
    assert!(left.to_string().starts_with("root/lines 1, spawned "), "{left}");
    assert!(pool.lock().unwrap()[0].ctx().is_stopping(), "the held child was signalled");
    assert_eq!(lines.hold(4).unwrap_err(), Refused::Stopping);
    pool.lock().unwrap().clear();
    assert_eq!((lines.len(), lines.counts().exits[Exit::Returned]), (0, 3));
}

#[tokio::test]
async fn blocking_work_is_a_child_until_it_returns() {
    let scope = root();
    let (release, blocked) = mpsc::channel::<()>();
    let (runs, is_running) = tokio::sync::oneshot::channel();
    let work = move |_| {
        runs.send(()).unwrap();
        blocked.recv().map_err(drop)
    };
    let hung = scope.spawn_blocking_as(1, work).unwrap();
    is_running.await.unwrap();
    assert_eq!(scope.spawn_blocking_as(1, |_| ()).unwrap_err(), Refused::Exists);
    let panics = scope.spawn_blocking_as(2, |_| std::panic::resume_unwind(Box::new("silent"))).unwrap();
    let panics: Result<(), Exit> = panics.await.unwrap();
    assert_eq!(panics, Err(Exit::Panicked));
    let report = scope.stop(SHORT, SHORT).await;
    assert_eq!((report.left, report.stuck[0].key.as_deref()), (1, Some("1")), "{report}");
    drop(release);
    assert_eq!(hung.await.unwrap(), Ok(Err(())));
    assert_eq!((scope.len(), scope.counts().exits[Exit::Failed]), (0, 1));
}
