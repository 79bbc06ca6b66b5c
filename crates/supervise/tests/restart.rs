//! Restarts: conditions, budgets, backoff, groups, and stops during restarts.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fmt::Debug;
use std::future::{pending, ready};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_supervise::{
    Backoff, Budget, ChildClass, Ctx, Exit, Group, GroupEnd, Observe, OverBudget, Refused, Restart, RestartPolicy,
    Scope, Strategy, Supervisor, Tokio,
};
use tokio::sync::Notify;

const LONG: Duration = Duration::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);

fn no_backoff(restart: Restart, budget: Budget) -> RestartPolicy {
    RestartPolicy::new(restart).budget(budget).backoff(Backoff::none())
}

/// A single run that ends in `exit`.
async fn run_once(exit: Exit) -> Result<(), ()> {
    match exit {
        Exit::Returned => Ok(()),
        Exit::Failed => Err(()),
        Exit::Panicked => std::panic::resume_unwind(Box::new("silent")),
        _ => pending().await,
    }
}

/// SV-24: the restart kind selects the exits that restart a child.
#[tokio::test(start_paused = true)]
async fn restart_kind_selects_exits() {
    use Exit::{Aborted, Failed, Panicked, Returned};
    use Restart::{Permanent, Temporary, Transient};
    let table = [
        (Permanent, Returned, 3),
        (Permanent, Failed, 3),
        (Permanent, Panicked, 3),
        (Permanent, Aborted, 0),
        (Transient, Returned, 0),
        (Transient, Failed, 3),
        (Transient, Panicked, 3),
        (Transient, Aborted, 0),
        (Temporary, Returned, 0),
        (Temporary, Failed, 0),
        (Temporary, Panicked, 0),
        (Temporary, Aborted, 0),
    ];
    for (restart, exit, restarts) in table {
        let scope = Scope::root::<u32>("root").on(Tokio::current());
        let class = ChildClass::new(no_backoff(restart, Budget::new(3, LONG)), move |_: &u32, _| run_once(exit));
        let child = scope.spawn_kept(1, &class).unwrap();
        if exit == Aborted {
            child.abort();
        }
        assert_eq!(child.ended().await, Some(exit), "{restart:?} {exit:?}");
        let counts = scope.counts();
        assert_eq!((counts.restarts, counts.exits[exit]), (restarts, restarts + 1), "{restart:?} {exit:?}");
        assert_eq!(counts.started, restarts + 1);
    }
}

fn spawn_failing(scope: &Supervisor<Tokio, u32>, id: u32, policy: RestartPolicy) {
    let class = ChildClass::new(policy, |_: &u32, _| ready(Err::<(), _>(())));
    scope.spawn_kept(id, &class).unwrap();
}

/// SV-25: the budget refills evenly.
#[tokio::test(start_paused = true)]
async fn budget_refills_evenly() {
    let scope = Scope::root::<u32>("root").on(Tokio::current());
    let runs = Arc::new(AtomicUsize::new(0));
    let (fail, counted) = (Arc::new(Notify::new()), Arc::clone(&runs));
    let failing = Arc::clone(&fail);
    let class = ChildClass::new(no_backoff(Restart::Transient, Budget::new(2, 10 * SECOND)), move |_: &u32, _| {
        counted.fetch_add(1, SeqCst);
        let fail = Arc::clone(&failing);
        async move {
            fail.notified().await;
            Err::<(), _>(())
        }
    });
    let child = scope.spawn_kept(1, &class).unwrap();
    let fail_after = async |after: Duration| {
        tokio::time::sleep(after).await;
        fail.notify_one();
        tokio::time::sleep(Duration::from_millis(1)).await;
        (child.is_alive(), runs.load(SeqCst))
    };
    assert_eq!(fail_after(SECOND).await, (true, 2));
    assert_eq!(fail_after(Duration::ZERO).await, (true, 3), "two restarts without delay");
    assert_eq!(fail_after(5 * SECOND).await, (true, 4), "one more after half of the period");
    assert_eq!(fail_after(4 * SECOND).await, (false, 4), "none before the next half has passed");
}

/// SV-26: the budget of a scope is independent of the number of shards.
#[tokio::test(start_paused = true)]
async fn scope_budget_is_independent_of_shards() {
    for shards in [1, 64] {
        let scope: Scope<u32> =
            Scope::builder("root").shards(shards).restart_budget(Budget::new(10, LONG), OverBudget::GiveUp).build();
        let scope = scope.on(Tokio::current());
        for id in 0..100 {
            spawn_failing(&scope, id, no_backoff(Restart::Transient, Budget::new(1000, LONG)));
        }
        while !scope.is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(scope.counts().restarts, 10, "{shards} shards");
    }
}

/// SV-27: a stop ends a backoff delay.
#[tokio::test(start_paused = true)]
async fn stop_ends_backoff() {
    let scope = Scope::root::<u32>("root").on(Tokio::current());
    let policy = RestartPolicy::new(Restart::Permanent).backoff(Backoff::new(LONG, LONG));
    spawn_failing(&scope, 1, policy);
    while scope.counts().started == 0 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(SECOND).await;
    let report = scope.stop(SECOND, SECOND).await;
    assert_eq!((report.left, report.exits[Exit::Failed]), (0, 1), "{report}");
    assert!(report.took < SECOND, "stop waited for the grace period: {report}");
}

type Member = std::pin::Pin<Box<dyn Future<Output = Result<(), ()>> + Send>>;

/// Members `a`, `b`, `c` that log their starts and stops; `b` fails on each notification of `fail`.
struct Trio {
    log: Arc<Mutex<Vec<String>>>,
    fail: Arc<Notify>,
}

impl Trio {
    fn new() -> Self {
        Self { log: Arc::default(), fail: Arc::default() }
    }

    fn group(&self, strategy: Strategy, restarts: u32) -> Group<Member> {
        let group = Group::new(strategy).backoff(Backoff::none()).budget(Budget::new(restarts, LONG));
        group
            .member("a", Restart::Permanent, self.member("a", false))
            .member("b", Restart::Permanent, self.member("b", true))
            .member("c", Restart::Permanent, self.member("c", false))
    }

    fn member(&self, name: &'static str, fails: bool) -> impl Fn(Ctx) -> Member + use<> {
        let (log, fail) = (Arc::clone(&self.log), Arc::clone(&self.fail));
        move |ctx| {
            let (log, fail) = (Arc::clone(&log), Arc::clone(&fail));
            Box::pin(async move {
                log.lock().unwrap().push(format!("+{name}"));
                let failing = async { if fails { fail.notified().await } else { pending().await } };
                tokio::select! {
                    () = ctx.cancelled() => {}
                    () = failing => return Err(()),
                }
                log.lock().unwrap().push(format!("-{name}"));
                Ok(())
            })
        }
    }

    /// Returns the log since the last call, after the members have settled.
    async fn log(&self) -> String {
        tokio::time::sleep(SECOND).await;
        std::mem::take(&mut *self.log.lock().unwrap()).join(" ")
    }
}

/// SV-28: members stop last to first and start first to last.
#[tokio::test(start_paused = true)]
async fn members_stop_and_start_in_order() {
    let table = [
        (Strategy::OneForOne, "+b", "-c -b -a"),
        (Strategy::OneForAll, "-c -a +a +b +c", "-c -b -a"),
        (Strategy::RestForOne, "-c +b +c", "-c -b -a"),
    ];
    for (strategy, after_failure, after_giving_up) in table {
        let trio = Trio::new();
        let root = Scope::root::<&str>("root").on(Tokio::current());
        let members = root.scope().child("members");
        let group = trio.group(strategy, 1);
        let keeper = root.spawn(|ctx| group.run(ctx, members, Tokio::current())).unwrap();
        assert_eq!(trio.log().await, "+a +b +c", "{strategy:?}");
        trio.fail.notify_one();
        assert_eq!(trio.log().await, after_failure, "{strategy:?}");
        trio.fail.notify_one();
        let gone = trio.log().await;
        assert_eq!(gone, after_giving_up.replace(" -b", ""), "{strategy:?}: all members stop over budget");
        let end = keeper.await.unwrap().unwrap();
        assert_eq!(end, Err(GroupEnd::GaveUp { member: "b", exit: Exit::Failed }));
    }
}

/// Records restarts by key and exit, and children that give up.
#[derive(Default)]
struct RestartLog(Mutex<Vec<String>>);

impl Observe for RestartLog {
    fn restarting(&self, _: &str, key: &dyn Debug, exit: Exit, _: Option<&str>, _: Duration) {
        self.0.lock().unwrap().push(format!("{key:?} {exit}"));
    }

    fn gave_up(&self, _: &str, key: &dyn Debug, exit: Exit) {
        self.0.lock().unwrap().push(format!("{key:?} {exit}, gave up"));
    }
}

/// SV-28: restarts of members are counted, observed and charged to the scope.
#[tokio::test(start_paused = true)]
async fn group_restarts_are_charged_to_scope() {
    let (trio, restart_log) = (Trio::new(), Arc::new(RestartLog::default()));
    let root = Scope::root::<&str>("root").on(Tokio::current());
    let members = root.child_builder("members").observer(restart_log.clone());
    let members = members.restart_budget(Budget::new(2, LONG), OverBudget::GiveUp).build();
    let group = trio.group(Strategy::RestForOne, 100);
    let keeper = root.spawn(|ctx| group.run(ctx, members.clone(), Tokio::current())).unwrap();
    for restarts in [2, 4] {
        trio.log().await;
        trio.fail.notify_one();
        trio.log().await;
        assert_eq!(members.counts().restarts, restarts, "b and c");
    }
    trio.fail.notify_one();
    let end = keeper.await.unwrap().unwrap();
    assert_eq!(end, Err(GroupEnd::GaveUp { member: "b", exit: Exit::Failed }));
    assert_eq!(*restart_log.0.lock().unwrap(), ["\"b\" failed", "\"b\" failed", "\"b\" failed, gave up"]);
    let counts = members.counts();
    assert_eq!((counts.live, counts.started, counts.exits.total()), (0, 7, 7));
}

/// A group that lacks a member would work in part, without an error.
#[tokio::test(start_paused = true)]
async fn group_with_a_refused_member_ends() {
    let trio = Trio::new();
    let root = Scope::root::<&str>("root").on(Tokio::current());
    let unlimited = root.scope().child("unlimited");
    let limited = root.scope().child_builder("limited").max_children(2).build();
    let twice = || trio.group(Strategy::OneForOne, 1).member("a", Restart::Permanent, trio.member("a", false));
    let table = [
        (twice(), unlimited, "a", Refused::Exists, "+a +b +c -c -b -a"),
        (trio.group(Strategy::OneForOne, 1), limited, "c", Refused::Full { max: 2 }, "+a +b -b -a"),
    ];
    for (group, members, member, refused, log) in table {
        let keeper = root.spawn(|ctx| group.run(ctx, members.clone(), Tokio::current())).unwrap();
        assert_eq!(keeper.await.unwrap().unwrap(), Err(GroupEnd::Refused { member, refused }));
        assert_eq!((trio.log().await.as_str(), members.len()), (log, 0));
    }
}

/// SV-28: a member whose factory panics restarts.
#[tokio::test(start_paused = true)]
async fn member_with_panicking_factory_restarts() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let tried = Arc::clone(&attempts);
    let group = Group::new(Strategy::OneForOne).backoff(Backoff::none()).budget(Budget::new(5, LONG));
    let group = group.member("late", Restart::Transient, move |_| -> Member {
        if tried.fetch_add(1, SeqCst) < 2 {
            std::panic::resume_unwind(Box::new("not yet"));
        }
        Box::pin(ready(Ok(())))
    });
    let root = Scope::root::<&str>("root").on(Tokio::current());
    let members = root.scope().child("members");
    let keeper = root.spawn(|ctx| group.run(ctx, members.clone(), Tokio::current())).unwrap();
    assert_eq!(keeper.await.unwrap(), Ok(Ok(())));
    let counts = members.counts();
    assert_eq!((attempts.load(SeqCst), counts.live, counts.exits[Exit::Returned]), (3, 0, 1));
}

/// SV-28: a member that blocks its thread ends the group; the error has its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn blocking_member_ends_group() {
    let fail = Arc::new(Notify::new());
    let (failing, (release, blocked)) = (Arc::clone(&fail), std::sync::mpsc::channel::<()>());
    let (blocks, is_blocking) = (Mutex::new(Some(blocked)), Arc::new(Notify::new()));
    let began = Arc::clone(&is_blocking);
    let group = Group::new(Strategy::OneForAll).backoff(Backoff::none()).grace(Duration::from_millis(20));
    let group = group
        .member("fails", Restart::Permanent, move |_| -> Member {
            let failing = Arc::clone(&failing);
            Box::pin(async move {
                failing.notified().await;
                Err(())
            })
        })
        .member("blocks", Restart::Permanent, move |_| -> Member {
            let (blocked, began) = (blocks.lock().unwrap().take(), Arc::clone(&began));
            Box::pin(async move {
                began.notify_one();
                let _ = blocked.unwrap().recv();
                Ok(())
            })
        });
    let root = Scope::root::<&str>("root").on(Tokio::current());
    let members = root.scope().child("members");
    let keeper = root.spawn(|ctx| group.run(ctx, members, Tokio::current())).unwrap();
    is_blocking.notified().await;
    fail.notify_one();
    assert_eq!(keeper.await.unwrap().unwrap(), Err(GroupEnd::Stuck { member: "blocks" }));
    drop(release);
}

/// SV-28: a stop ends a group without restarts.
#[tokio::test(start_paused = true)]
async fn stop_ends_group() {
    let trio = Trio::new();
    let root = Scope::root::<&str>("root").on(Tokio::current());
    let members = root.scope().child("members");
    let group = trio.group(Strategy::OneForAll, 100);
    let keeper = root.spawn(|ctx| group.run(ctx, members.clone(), Tokio::current())).unwrap();
    trio.log().await;
    let report = root.stop(LONG, LONG).await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(keeper.await.unwrap(), Ok(Ok(())));
    assert_eq!(members.counts().started, 3, "no member restarted");
}

/// SV-29: a crash loop does not starve a stop.
#[tokio::test]
async fn crash_loop_does_not_starve_stop() {
    let scope = Scope::root::<u32>("root").on(Tokio::current());
    for id in 0..8 {
        spawn_failing(&scope, id, no_backoff(Restart::Permanent, Budget::new(u32::MAX, Duration::from_nanos(1 << 32))));
    }
    while scope.counts().restarts < 1000 {
        tokio::task::yield_now().await;
    }
    let report = scope.stop(LONG, LONG).await;
    assert_eq!((report.left, report.aborted()), (0, 0), "{report}");
}

/// SV-30: the budget of a scope limits the rate of 100,000 restarts.
#[tokio::test(start_paused = true)]
async fn scope_budget_limits_restart_rate() {
    const CROWD: u32 = 100_000;
    let scope: Scope<u32> = Scope::builder("root").restart_budget(Budget::new(100, SECOND), OverBudget::Wait).build();
    let scope = scope.on(Tokio::current());
    let (fail, _) = tokio::sync::watch::channel(false);
    let failing = fail.clone();
    let class = ChildClass::new(no_backoff(Restart::Transient, Budget::new(1, LONG)), move |_: &u32, ctx: Ctx| {
        let mut seen = failing.subscribe();
        async move {
            tokio::select! {
                _ = seen.wait_for(|fail| *fail) => Err(()),
                () = ctx.cancelled() => Ok(()),
            }
        }
    });
    let polls = Arc::new(AtomicUsize::new(0));
    for id in 0..CROWD {
        let mut child = Box::pin(scope.wrap_kept(id, &class, tokio::time::sleep).unwrap());
        let polls = Arc::clone(&polls);
        let counted = std::future::poll_fn(move |cx| {
            polls.fetch_add(1, SeqCst);
            child.as_mut().poll(cx)
        });
        drop(tokio::spawn(counted));
    }
    tokio::task::yield_now().await;
    fail.send_replace(true);
    tokio::time::sleep(Duration::from_millis(1)).await;
    fail.send_replace(false);
    tokio::time::sleep(10 * SECOND).await;
    let counts = scope.counts();
    let restarts = counts.restarts;
    assert!((1000..=1200).contains(&restarts), "a burst of 100, then 100 per second: {restarts}");
    assert_eq!(counts.started, u64::from(CROWD) + restarts);
    let report = scope.stop(LONG, LONG).await;
    assert_eq!((report.left, report.aborted()), (0, 0));
    // Four polls per child: start, failure, pause, stop; four more per restart. A waiting child is not polled.
    let most = 4 * u64::from(CROWD) + 4 * restarts;
    assert!(polls.load(SeqCst) as u64 <= most, "{polls:?} of {most}");
}

/// SV-30: `OverBudget::StopScope` stops the scope and the scopes below it.
#[tokio::test(start_paused = true)]
async fn scope_stops_over_budget() {
    let root: Scope<u32> = Scope::builder("root").restart_budget(Budget::new(2, LONG), OverBudget::StopScope).build();
    let root = root.on(Tokio::current());
    let below = root.child::<u32>("below");
    drop(below.spawn(|ctx| async move { ctx.cancelled().await }).unwrap());
    drop(root.spawn(|ctx| async move { ctx.cancelled().await }).unwrap());
    spawn_failing(&root, 1, no_backoff(Restart::Permanent, Budget::new(1000, LONG)));
    while !(root.is_empty() && below.is_empty()) {
        tokio::task::yield_now().await;
    }
    assert!(root.is_stopping() && below.is_stopping());
    assert_eq!(root.counts().restarts, 2);
}

/// An unlimited budget restarts forever, and a long run resets the backoff.
#[tokio::test(start_paused = true)]
async fn long_run_resets_backoff() {
    /// Records the delays of restarts.
    #[derive(Default)]
    struct Waits(Mutex<Vec<(String, Duration)>>);
    impl tidegate_supervise::Observe for Waits {
        fn restarting(&self, _: &str, key: &dyn std::fmt::Debug, _: Exit, _: Option<&str>, wait: Duration) {
            self.0.lock().unwrap().push((format!("{key:?}"), wait));
        }
    }
    let waits = Arc::new(Waits::default());
    let scope = Scope::builder("root").observer(waits.clone()).build::<u32>().on(Tokio::current());
    let backoff = Backoff::new(SECOND, 8 * SECOND);
    let policy =
        RestartPolicy::new(Restart::Transient).budget(Budget::unlimited()).backoff(backoff).reset_after(3 * SECOND);
    let runs = AtomicUsize::new(0);
    // The first six runs fail immediately, the seventh is long.
    let class = ChildClass::new(policy, move |_: &u32, _| {
        let run = runs.fetch_add(1, SeqCst);
        async move {
            match run {
                6 => tokio::time::sleep(3 * SECOND).await,
                8 => return Ok(()),
                _ => {}
            }
            Err(())
        }
    });
    let child = scope.spawn_kept(7, &class).unwrap();
    assert_eq!(child.ended().await, Some(Exit::Returned));
    let waits = waits.0.lock().unwrap();
    let nominal = [1, 2, 4, 8, 8, 8, 1, 2];
    assert_eq!(waits.len(), nominal.len());
    for ((key, wait), nominal) in waits.iter().zip(nominal) {
        let nominal = nominal * SECOND;
        assert!(key == "7" && (nominal / 2..=nominal).contains(wait), "{waits:?}");
    }
}
