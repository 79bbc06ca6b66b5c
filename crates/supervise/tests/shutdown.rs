//! Stops: who is told when, what becomes of those who do not listen, and what the report says.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is a test that fails")]

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

async fn listens(ctx: Ctx) {
    ctx.cancelled().await;
    tokio::task::yield_now().await;
}

async fn stop_of(children: u64) -> Report {
    let scope = root();
    for id in 0..children {
        drop(scope.spawn_as(id, listens).unwrap());
    }
    scope.stop(LONG, LONG).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sv_07_any_number_of_children_stops() {
    for children in [0, 1, 1000, 1_000_000] {
        let report = stop_of(children).await;
        assert!(report.is_clean() && report.clean() == children, "{report}");
    }
}

#[tokio::test(start_paused = true)]
async fn sv_08_a_child_that_does_not_listen_is_aborted_after_the_grace() {
    let scope = root();
    drop(scope.spawn(|_| pending::<()>()).unwrap());
    drop(scope.spawn(listens).unwrap());
    let report = scope.stop(5 * SECOND, LONG).await;
    assert_eq!((report.clean(), report.aborted(), report.left), (1, 1, 0));
    assert_eq!(report.took.as_secs(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sv_09_a_child_that_blocks_its_thread_is_reported_stuck() {
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
    assert!(stuck.age >= SHORT + SHORT, "it is older than both deadlines: {stuck}, {report}");
    drop(release);
    assert_eq!(child.await.unwrap(), Ok(()));
    assert_eq!(scope.counts().exits.total(), 1);
}

#[tokio::test(start_paused = true)]
async fn sv_09_a_report_counts_all_who_are_stuck_and_names_a_thousand() {
    const STUCK: u64 = 1_200;
    let scope = root();
    let held: Vec<_> = (1..=STUCK).map(|number| scope.hold(number).unwrap()).collect();
    let report = scope.stop(SHORT, SHORT).await;
    assert_eq!((report.left as u64, report.stuck.len()), (STUCK, 1_000));
    let numbers: BTreeSet<_> = report.stuck.iter().filter_map(|stuck| stuck.number).collect();
    assert_eq!(numbers.len(), 1_000, "each is named once");
    drop(held);
    assert_eq!(scope.counts().live, 0);
}

#[tokio::test(start_paused = true)]
async fn sv_10_an_end_at_the_very_deadline_is_counted_once() {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sv_11_a_spawn_that_races_a_stop_is_refused_or_stopped() {
    for _ in 0..50 {
        let scope = root();
        let spawners: Vec<_> = (0..4)
            .map(|_| {
                let scope = scope.clone();
                tokio::spawn(async move { (0..200).filter(|_| scope.spawn(listens).is_ok()).count() })
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

#[tokio::test]
async fn sv_12_a_child_cannot_start_siblings_while_all_stop() {
    let scope = root();
    let (inner, refused) = (scope.clone(), Arc::new(Mutex::new(None)));
    let seen = Arc::clone(&refused);
    let spawns = |ctx: Ctx| async move {
        ctx.cancelled().await;
        *seen.lock().unwrap() = inner.spawn(listens).err();
    };
    drop(scope.spawn(spawns).unwrap());
    assert!(scope.stop(LONG, LONG).await.is_clean());
    assert_eq!(*refused.lock().unwrap(), Some(Refused::Stopping));
}

#[tokio::test]
async fn sv_12_a_scope_that_is_made_while_all_stop_takes_nobody() {
    let scope = root();
    let (inner, refused) = (scope.clone(), Arc::new(Mutex::new(None)));
    let seen = Arc::clone(&refused);
    let opens = |ctx: Ctx| async move {
        ctx.cancelled().await;
        let late: Supervisor<Tokio, u64> = inner.child("late").on(Tokio::current());
        *seen.lock().unwrap() = late.spawn(listens).err();
    };
    drop(scope.spawn(opens).unwrap());
    assert!(scope.stop(LONG, LONG).await.is_clean());
    assert_eq!(*refused.lock().unwrap(), Some(Refused::Stopping));
}

#[tokio::test]
async fn sv_12_work_runs_until_the_stop_and_does_not_begin_after_it() {
    let scope = root();
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let outcomes = Arc::new(Mutex::new([None; 3]));
    let seen = Arc::clone(&outcomes);
    let works = |ctx: Ctx| async move {
        let at_once = ctx.run_until_cancelled(async { 1 }).await;
        let waits = async {
            begun.send(()).unwrap();
            pending().await
        };
        let late = ctx.run_until_cancelled(waits).await;
        let after = ctx.run_until_cancelled(async { 3 }).await;
        *seen.lock().unwrap() = [at_once, late, after];
    };
    drop(scope.spawn(works).unwrap());
    has_begun.await.unwrap();
    assert!(scope.stop(LONG, LONG).await.is_clean());
    assert_eq!(*outcomes.lock().unwrap(), [Some(1), None, None]);
}

#[tokio::test(start_paused = true)]
async fn sv_13_a_child_may_stop_its_own_scope() {
    let scope = root();
    let inner = scope.clone();
    drop(scope.spawn(|_| async move { drop(inner.stop(SECOND, SECOND).await) }).unwrap());
    for _ in 0..1000 {
        drop(scope.spawn(listens).unwrap());
    }
    drop(scope.spawn(|_| pending::<()>()).unwrap());
    tokio::time::sleep(5 * SECOND).await;
    let counts = scope.counts();
    assert_eq!((counts.live, counts.exits[Exit::Returned], counts.exits[Exit::Aborted]), (0, 1000, 2));
}

#[tokio::test(start_paused = true)]
async fn sv_13_two_stops_at_once_both_report() {
    let scope = root();
    for _ in 0..1000 {
        drop(scope.spawn(listens).unwrap());
    }
    drop(scope.spawn(|_| pending::<()>()).unwrap());
    let (patient, hasty) = tokio::join!(scope.stop(LONG, LONG), scope.stop(SECOND, SECOND));
    assert_eq!((patient.left, hasty.left), (0, 0));
    assert_eq!(patient.took.as_secs(), 1, "the shorter grace holds for both");
    let again = scope.stop(LONG, LONG).await;
    assert_eq!(again.exits.total(), 0, "a stop of what has stopped has nothing to tell");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sv_13_the_last_handle_that_goes_tells_the_children() {
    let scope = root();
    let children: Vec<_> = (0..1000).map(|_| scope.spawn(listens).unwrap()).collect();
    drop(scope);
    for child in children {
        assert_eq!(child.await.unwrap(), Ok(()));
    }
}

/// Counts the exits that it hears of.
#[derive(Default)]
struct Ends(AtomicUsize);

impl Observe for Ends {
    fn exited(&self, _: &str, _: Exit, _: Option<&str>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sv_13_a_stop_that_races_the_drop_of_handles_and_children_loses_none() {
    for _ in 0..50 {
        let ends = Arc::new(Ends::default());
        let scope: Scope<u64> = Scope::builder("root").observer(ends.clone()).build();
        let unpolled: Vec<_> = (0..200).map(|_| scope.wrap(listens).unwrap()).collect();
        for _ in 0..200 {
            drop(scope.on(Tokio::current()).spawn(listens).unwrap());
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

#[tokio::test]
async fn sv_14_a_dropped_stop_loses_nothing() {
    let scope = root();
    for _ in 0..10_000 {
        drop(scope.spawn(listens).unwrap());
    }
    tokio::task::yield_now().await;
    {
        let mut stop = pin!(scope.stop(LONG, LONG));
        assert!(poll_once(&mut stop).is_pending());
    }
    assert_eq!(scope.spawn(listens).err(), Some(Refused::Stopping));
    let report = scope.stop(LONG, LONG).await;
    assert_eq!((report.left, scope.counts().exits[Exit::Returned]), (0, 10_000));
}

#[tokio::test]
async fn sv_14_without_lent_workers_a_dropped_stop_still_tells_every_child() {
    let scope = Scope::root::<u64>("root");
    let children: Vec<_> = (0..10_000).map(|_| tokio::spawn(scope.wrap(listens).unwrap())).collect();
    tokio::task::yield_now().await;
    {
        let mut stop = pin!(scope.stop(|_| pending(), LONG, LONG));
        assert!(poll_once(&mut stop).is_pending());
    }
    for child in children {
        assert_eq!(child.await.unwrap(), Ok(()));
    }
}

#[tokio::test]
async fn sv_15_a_clean_up_may_await_timers_channels_and_sockets() {
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
        send.send("bye").await.unwrap();
        send.closed().await;
    };
    let socket = move |ctx: Ctx| async move {
        ctx.cancelled().await;
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(b"bye").await.unwrap();
    };
    drop((scope.spawn(timer).unwrap(), scope.spawn(sender).unwrap(), scope.spawn(socket).unwrap()));
    let outside = async move {
        let mut receive = receive;
        assert_eq!(receive.recv().await, Some("bye"));
        drop(receive);
        let mut text = String::new();
        listener.accept().await.unwrap().0.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "bye");
    };
    let (report, ()) = tokio::join!(scope.stop(LONG, LONG), outside);
    assert!(report.is_clean(), "{report}");
}

#[tokio::test]
async fn sv_16_a_clean_up_that_panics_is_counted_as_such() {
    let scope = root();
    let panics = |ctx: Ctx| async move {
        ctx.cancelled().await;
        if ctx.is_stopping() {
            std::panic::resume_unwind(Box::new("silent"));
        }
    };
    drop((scope.spawn(panics).unwrap(), scope.spawn(listens).unwrap()));
    let report = scope.stop(LONG, LONG).await;
    assert_eq!((report.panicked(), report.clean(), report.left), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn sv_17_grandchildren_stop_before_parents_and_phases_in_order() {
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

#[tokio::test(start_paused = true)]
async fn sv_17_a_level_that_waited_in_vain_for_the_one_below_has_its_clean_up() {
    let root = root();
    let (deaf, listening) = (root.child::<u64>("deaf"), root.child_builder("listening").phase(1).build::<u64>());
    drop(deaf.on(Tokio::current()).spawn(|_| pending::<()>()).unwrap());
    let cleaned = Arc::new(AtomicUsize::new(0));
    for scope in [root.scope(), &listening] {
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

#[tokio::test(start_paused = true)]
async fn sv_17_levels_that_do_not_listen_either_are_aborted_before_the_end() {
    let root = root();
    let below = root.child::<u64>("below").child::<u64>("further below");
    drop(below.on(Tokio::current()).spawn(|_| pending::<()>()).unwrap());
    drop(root.spawn(|_| pending::<()>()).unwrap());
    let report = root.stop(5 * SECOND, 4 * SECOND).await;
    assert_eq!((report.aborted(), report.left, report.took.as_secs()), (2, 0, 7), "{report}");
}

#[tokio::test(start_paused = true)]
async fn sv_18_an_abort_reaches_through_five_levels() {
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
    assert_eq!((report.aborted(), report.left), (6, 0), "scopes without a handle are part of the tree as well");
}

#[tokio::test(start_paused = true)]
async fn sv_19_a_drain_refuses_and_waits_and_a_stop_may_follow() {
    let scope = root();
    let below = scope.child::<u64>("below");
    let finishes = |ctx: Ctx| async move {
        tokio::time::sleep(SECOND).await;
        assert!(!ctx.is_stopping(), "a drain tells nobody");
    };
    drop((below.spawn(finishes).unwrap(), scope.spawn(listens).unwrap()));
    let drained = scope.drain(5 * SECOND);
    assert_eq!(below.spawn(listens).err(), Some(Refused::Draining));
    let report = drained.await;
    assert_eq!((report.clean(), report.left, report.took.as_secs()), (1, 1, 5));
    assert!(scope.stop(LONG, LONG).await.is_clean());
    assert_eq!(scope.spawn(listens).err(), Some(Refused::Stopping));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sv_20_a_stop_gets_through_when_all_workers_are_busy() {
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
        drop(scope.spawn(listens).unwrap());
    }
    let report = scope.stop(LONG, LONG).await;
    over.store(true, SeqCst);
    assert!(report.is_clean(), "{report}");
}

/// Nobody is left to look at the clock of the runtime.
#[test]
fn sv_20_a_stop_reports_by_its_deadlines_when_all_workers_are_blocked() {
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
    drop(scope.spawn_as(2, listens).unwrap());
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

/// Runs a future on a thread that belongs to no runtime.
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

#[test]
fn sv_21_a_thread_outside_the_runtime_may_stop() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let scope = Scope::root::<u64>("root").on(Tokio::new(runtime.handle().clone()));
    for _ in 0..10_000 {
        drop(scope.spawn(listens).unwrap());
    }
    let report = block_on(scope.stop(LONG, LONG));
    assert!(report.is_clean() && report.clean() == 10_000, "{report}");
    let deaf = Scope::root::<u64>("deaf").on(Tokio::new(runtime.handle().clone()));
    drop(deaf.spawn(|_| pending::<()>()).unwrap());
    let report = block_on(deaf.stop(SHORT, LONG));
    assert_eq!((report.aborted(), report.left), (1, 0), "the deadlines run on the runtime's timer");
}

#[tokio::test(flavor = "current_thread")]
async fn sv_22_one_thread_is_enough() {
    let report = stop_of(10_000).await;
    assert!(report.is_clean(), "{report}");
}

#[test]
fn sv_23_a_runtime_that_goes_in_the_middle_of_a_stop_ends_it() {
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
        // The deadlines must not live on the runtime that goes.
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

/// It has lent its workers to the sweep, and its clock to the deadlines.
#[test]
fn sv_23_a_runtime_that_goes_under_a_stop_of_its_own_ends_it() {
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

/// It does not wait for a child that blocks; with its clock gone, there is no time left.
#[test]
fn sv_23_a_runtime_that_goes_before_a_child_that_blocks_leaves_it_stuck() {
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
async fn a_part_of_a_child_with_a_waker_of_its_own_is_told_as_well() {
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
async fn a_thing_that_is_held_is_a_child_until_it_is_dropped() {
    let root = Scope::root::<u32>("root").on(Tokio::current());
    let lines: Scope = root.child_builder("lines").phase(1).build();
    let pool = Arc::new(Mutex::new((1..=3).map(|number| lines.hold(number).unwrap()).collect::<Vec<_>>()));
    let (keepers, owned) = (root.child::<u32>("keepers"), Arc::clone(&pool));
    let keeper = |ctx: Ctx| async move {
        ctx.cancelled().await;
        assert!(!owned.lock().unwrap()[0].ctx().is_stopping(), "its phase has not come");
        owned.lock().unwrap().truncate(1);
    };
    drop(keepers.spawn(keeper).unwrap());
    assert_eq!((lines.len(), lines.counts().started), (3, 3));
    let report = root.stop(SECOND, SECOND).await;
    assert_eq!((report.clean(), report.aborted(), report.left), (3, 0, 1), "{report}");
    let left = &report.stuck[0];
    assert_eq!((&*left.scope, left.number), ("root/lines", Some(1)));
    assert!(left.to_string().starts_with("root/lines 1, spawned "), "{left}");
    assert!(pool.lock().unwrap()[0].ctx().is_stopping(), "it was told");
    assert_eq!(lines.hold(4).unwrap_err(), Refused::Stopping);
    pool.lock().unwrap().clear();
    assert_eq!((lines.len(), lines.counts().exits[Exit::Returned]), (0, 3));
}

#[tokio::test]
async fn work_that_blocks_is_a_child_while_it_waits_and_while_it_runs() {
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
