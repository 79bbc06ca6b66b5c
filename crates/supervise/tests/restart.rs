//! Children that are started again: which, how often, and that it never stands in the way of a stop.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is a test that fails")]

use std::fmt::Debug;
use std::future::{pending, ready};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_supervise::{
    Backoff, Budget, Class, Ctx, Exit, Group, GroupEnd, Observe, OverBudget, Restart, RestartPolicy, Scope, Strategy,
    Supervisor, Tokio,
};
use tokio::sync::Notify;

const LONG: Duration = Duration::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);

fn at_once(restart: Restart, budget: Budget) -> RestartPolicy {
    RestartPolicy::new(restart).budget(budget).backoff(Backoff::none())
}

/// One life that ends in the given way.
async fn life(exit: Exit) -> Result<(), ()> {
    match exit {
        Exit::Returned => Ok(()),
        Exit::Failed => Err(()),
        Exit::Panicked => std::panic::resume_unwind(Box::new("silent")),
        _ => pending().await,
    }
}

#[tokio::test(start_paused = true)]
async fn sv_24_each_kind_restarts_after_its_own_ends() {
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
        let class = Class::new(at_once(restart, Budget::new(3, LONG)), move |_: &u32, _| life(exit));
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
    let class = Class::new(policy, |_: &u32, _| ready(Err::<(), _>(())));
    scope.spawn_kept(id, &class).unwrap();
}

#[tokio::test(start_paused = true)]
async fn sv_25_the_budget_refills_evenly() {
    let scope = Scope::root::<u32>("root").on(Tokio::current());
    let lives = Arc::new(AtomicUsize::new(0));
    let (fail, counted) = (Arc::new(Notify::new()), Arc::clone(&lives));
    let failing = Arc::clone(&fail);
    let class = Class::new(at_once(Restart::Transient, Budget::new(2, 10 * SECOND)), move |_: &u32, _| {
        counted.fetch_add(1, SeqCst);
        let fail = Arc::clone(&failing);
        async move {
            fail.notified().await;
            Err::<(), _>(())
        }
    });
    let child = scope.spawn_kept(1, &class).unwrap();
    let strike = async |after: Duration| {
        tokio::time::sleep(after).await;
        fail.notify_one();
        tokio::time::sleep(Duration::from_millis(1)).await;
        (child.is_alive(), lives.load(SeqCst))
    };
    assert_eq!(strike(SECOND).await, (true, 2));
    assert_eq!(strike(Duration::ZERO).await, (true, 3), "two at once");
    assert_eq!(strike(5 * SECOND).await, (true, 4), "one more after half of the time");
    assert_eq!(strike(4 * SECOND).await, (false, 4), "and none before the next half is over");
}

#[tokio::test(start_paused = true)]
async fn sv_26_budgets_do_not_depend_on_the_number_of_shards() {
    for shards in [1, 64] {
        let scope: Scope<u32> =
            Scope::builder("root").shards(shards).restart_budget(Budget::new(10, LONG), OverBudget::GiveUp).build();
        let scope = scope.on(Tokio::current());
        for id in 0..100 {
            spawn_failing(&scope, id, at_once(Restart::Transient, Budget::new(1000, LONG)));
        }
        while !scope.is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(scope.counts().restarts, 10, "{shards} shards");
    }
}

#[tokio::test(start_paused = true)]
async fn sv_27_a_stop_ends_a_back_off() {
    let scope = Scope::root::<u32>("root").on(Tokio::current());
    let policy = RestartPolicy::new(Restart::Permanent).backoff(Backoff::new(LONG, LONG));
    spawn_failing(&scope, 1, policy);
    while scope.counts().started == 0 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(SECOND).await;
    let report = scope.stop(SECOND, SECOND).await;
    assert_eq!((report.left, report.exits[Exit::Failed]), (0, 1), "{report}");
    assert!(report.took < SECOND, "it did not wait for its grace: {report}");
}

type Member = std::pin::Pin<Box<dyn Future<Output = Result<(), ()>> + Send>>;

/// Members `a`, `b`, `c` that note when they come up and go down; `b` fails whenever it is struck.
struct Trio {
    log: Arc<Mutex<Vec<String>>>,
    strike: Arc<Notify>,
}

impl Trio {
    fn new() -> Self {
        Self { log: Arc::default(), strike: Arc::default() }
    }

    fn group(&self, strategy: Strategy, restarts: u32) -> Group<Member> {
        let group = Group::new(strategy).backoff(Backoff::none()).budget(Budget::new(restarts, LONG));
        group
            .member("a", Restart::Permanent, self.member("a", false))
            .member("b", Restart::Permanent, self.member("b", true))
            .member("c", Restart::Permanent, self.member("c", false))
    }

    fn member(&self, name: &'static str, fails: bool) -> impl Fn(Ctx) -> Member + use<> {
        let (log, strike) = (Arc::clone(&self.log), Arc::clone(&self.strike));
        move |ctx| {
            let (log, strike) = (Arc::clone(&log), Arc::clone(&strike));
            Box::pin(async move {
                log.lock().unwrap().push(format!("+{name}"));
                let struck = async { if fails { strike.notified().await } else { pending().await } };
                tokio::select! {
                    () = ctx.cancelled() => {}
                    () = struck => return Err(()),
                }
                log.lock().unwrap().push(format!("-{name}"));
                Ok(())
            })
        }
    }

    /// What has happened since the last look, once all is at rest.
    async fn log(&self) -> String {
        tokio::time::sleep(SECOND).await;
        std::mem::take(&mut *self.log.lock().unwrap()).join(" ")
    }
}

#[tokio::test(start_paused = true)]
async fn sv_28_members_fall_last_to_first_and_rise_first_to_last() {
    let table = [
        (Strategy::OneForOne, "+b", "-c -b -a"),
        (Strategy::OneForAll, "-c -a +a +b +c", "-c -b -a"),
        (Strategy::RestForOne, "-c +b +c", "-c -b -a"),
    ];
    for (strategy, after_strike, after_giving_up) in table {
        let trio = Trio::new();
        let root = Scope::root::<&str>("root").on(Tokio::current());
        let members = root.scope().child("members");
        let group = trio.group(strategy, 1);
        let keeper = root.spawn(|ctx| group.run(ctx, members, Tokio::current())).unwrap();
        assert_eq!(trio.log().await, "+a +b +c", "{strategy:?}");
        trio.strike.notify_one();
        assert_eq!(trio.log().await, after_strike, "{strategy:?}");
        trio.strike.notify_one();
        let gone = trio.log().await;
        assert_eq!(gone, after_giving_up.replace(" -b", ""), "{strategy:?}: all go when the budget is used up");
        let end = keeper.await.unwrap().unwrap();
        assert_eq!(end, Err(GroupEnd::GaveUp { member: "b", exit: Exit::Failed }));
    }
}

/// Hears of restarts, by key and cause, and of who gave up.
#[derive(Default)]
struct Hears(Mutex<Vec<String>>);

impl Observe for Hears {
    fn restarting(&self, _: &str, key: &dyn Debug, exit: Exit, _: Option<&str>, _: Duration) {
        self.0.lock().unwrap().push(format!("{key:?} {exit}"));
    }

    fn gave_up(&self, _: &str, key: &dyn Debug, exit: Exit) {
        self.0.lock().unwrap().push(format!("{key:?} {exit}, gave up"));
    }
}

#[tokio::test(start_paused = true)]
async fn sv_28_restarts_of_a_group_are_counted_told_and_held_against_its_scope() {
    let (trio, hears) = (Trio::new(), Arc::new(Hears::default()));
    let root = Scope::root::<&str>("root").on(Tokio::current());
    let members = root.child_builder("members").observer(hears.clone());
    let members = members.restart_budget(Budget::new(2, LONG), OverBudget::GiveUp).build();
    let group = trio.group(Strategy::RestForOne, 100);
    let keeper = root.spawn(|ctx| group.run(ctx, members.clone(), Tokio::current())).unwrap();
    for restarts in [2, 4] {
        trio.log().await;
        trio.strike.notify_one();
        trio.log().await;
        assert_eq!(members.counts().restarts, restarts, "b and c");
    }
    trio.strike.notify_one();
    let end = keeper.await.unwrap().unwrap();
    assert_eq!(end, Err(GroupEnd::GaveUp { member: "b", exit: Exit::Failed }));
    assert_eq!(*hears.0.lock().unwrap(), ["\"b\" failed", "\"b\" failed", "\"b\" failed, gave up"]);
    let counts = members.counts();
    assert_eq!((counts.live, counts.started, counts.exits.total()), (0, 7, 7));
}

#[tokio::test(start_paused = true)]
async fn sv_28_a_member_that_panics_before_it_lives_is_started_again() {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sv_28_a_member_that_blocks_its_thread_ends_the_group_by_name() {
    let strike = Arc::new(Notify::new());
    let (struck, (release, blocked)) = (Arc::clone(&strike), std::sync::mpsc::channel::<()>());
    let (blocks, is_blocking) = (Mutex::new(Some(blocked)), Arc::new(Notify::new()));
    let began = Arc::clone(&is_blocking);
    let group = Group::new(Strategy::OneForAll).backoff(Backoff::none()).grace(Duration::from_millis(20));
    let group = group
        .member("falls", Restart::Permanent, move |_| -> Member {
            let struck = Arc::clone(&struck);
            Box::pin(async move {
                struck.notified().await;
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
    strike.notify_one();
    assert_eq!(keeper.await.unwrap().unwrap(), Err(GroupEnd::Stuck { member: "blocks" }));
    drop(release);
}

#[tokio::test(start_paused = true)]
async fn sv_28_a_stop_takes_a_group_down_for_good() {
    let trio = Trio::new();
    let root = Scope::root::<&str>("root").on(Tokio::current());
    let members = root.scope().child("members");
    let group = trio.group(Strategy::OneForAll, 100);
    let keeper = root.spawn(|ctx| group.run(ctx, members.clone(), Tokio::current())).unwrap();
    trio.log().await;
    let report = root.stop(LONG, LONG).await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(keeper.await.unwrap(), Ok(Ok(())));
    assert_eq!(members.counts().started, 3, "nobody came up again");
}

#[tokio::test]
async fn sv_29_a_crash_loop_does_not_starve_a_stop() {
    let scope = Scope::root::<u32>("root").on(Tokio::current());
    for id in 0..8 {
        spawn_failing(&scope, id, at_once(Restart::Permanent, Budget::new(u32::MAX, Duration::from_nanos(1 << 32))));
    }
    while scope.counts().restarts < 1000 {
        tokio::task::yield_now().await;
    }
    let report = scope.stop(LONG, LONG).await;
    assert_eq!((report.left, report.aborted()), (0, 0), "{report}");
}

#[tokio::test(start_paused = true)]
async fn sv_30_a_storm_of_restarts_is_spread_over_time() {
    const CROWD: u32 = 100_000;
    let scope: Scope<u32> = Scope::builder("root").restart_budget(Budget::new(100, SECOND), OverBudget::Wait).build();
    let scope = scope.on(Tokio::current());
    let (fail, _) = tokio::sync::watch::channel(false);
    let failing = fail.clone();
    let class = Class::new(at_once(Restart::Transient, Budget::new(1, LONG)), move |_: &u32, ctx: Ctx| {
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
    assert!((1000..=1200).contains(&restarts), "a hundred at once and a hundred a second: {restarts}");
    assert_eq!(counts.started, u64::from(CROWD) + restarts);
    let report = scope.stop(LONG, LONG).await;
    assert_eq!((report.left, report.aborted()), (0, 0));
    // Begun, told to fail, paused, and stopped; those that came up again once more. Nobody asks while he waits.
    let most = 4 * u64::from(CROWD) + 4 * restarts;
    assert!(polls.load(SeqCst) as u64 <= most, "{polls:?} of {most}");
}

#[tokio::test(start_paused = true)]
async fn sv_30_a_scope_may_stop_when_restarts_are_too_many() {
    let root: Scope<u32> = Scope::builder("root").restart_budget(Budget::new(2, LONG), OverBudget::StopScope).build();
    let root = root.on(Tokio::current());
    let below = root.child::<u32>("below");
    drop(below.spawn(|ctx| async move { ctx.cancelled().await }).unwrap());
    drop(root.spawn(|ctx| async move { ctx.cancelled().await }).unwrap());
    spawn_failing(&root, 1, at_once(Restart::Permanent, Budget::new(1000, LONG)));
    while !(root.is_empty() && below.is_empty()) {
        tokio::task::yield_now().await;
    }
    assert!(root.is_stopping() && below.is_stopping());
    assert_eq!(root.counts().restarts, 2);
}

#[tokio::test(start_paused = true)]
async fn a_budget_may_be_without_limit_and_a_life_long_enough_begins_again_at_the_first_wait() {
    /// What the children of a scope were told to wait.
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
    let lives = AtomicUsize::new(0);
    // The first six lives fail at once, the seventh lasts.
    let class = Class::new(policy, move |_: &u32, _| {
        let life = lives.fetch_add(1, SeqCst);
        async move {
            match life {
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
