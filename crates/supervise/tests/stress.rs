//! Random spawns, panics, aborts, restarts and stops on many threads, under one printed seed.
//!
//! `TIDEGATE_STRESS_SEED` repeats a run, `TIDEGATE_STRESS_ROUNDS` makes it longer (for ten minutes under ThreadSanitizer).

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tidegate_supervise::{
    Backoff, Budget, ChildClass, Ctx, Exit, Observe, Refused, Restart, RestartPolicy, Scope, Supervisor, Tokio,
};

const LONG: Duration = Duration::from_secs(3600);

/// Counts observed events.
#[derive(Default)]
struct Meter {
    started: AtomicU64,
    restarted: AtomicU64,
    exits: [AtomicU64; Exit::ALL.len()],
}

impl Observe for Meter {
    fn started(&self, _: &str) {
        self.started.fetch_add(1, SeqCst);
    }

    fn exited(&self, _: &str, exit: Exit, _: Option<&str>) {
        self.exits[exit as usize].fetch_add(1, SeqCst);
    }

    fn restarted(&self, _: &str, exit: Exit) {
        self.exits[exit as usize].fetch_add(1, SeqCst);
        self.restarted.fetch_add(1, SeqCst);
    }
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// A random run: waits briefly, may ignore the stop, and ends in a random exit.
async fn random_run(ctx: Ctx, mut chance: fastrand::Rng) -> Result<(), ()> {
    for _ in 0..chance.u32(0..20) {
        tokio::task::yield_now().await;
    }
    match chance.u32(0..10) {
        0 => std::panic::resume_unwind(Box::new("silent")),
        1 => return Err(()),
        2 => return Ok(()),
        3 => std::future::pending().await,
        _ => ctx.cancelled().await,
    }
    if chance.u32(0..10) == 0 {
        std::panic::resume_unwind(Box::new("silent"));
    }
    tokio::task::yield_now().await;
    Ok(())
}

async fn act(scope: Supervisor<Tokio, u64>, mut chance: fastrand::Rng) {
    for _ in 0..2000 {
        let (key, own) = (chance.u64(0..500), chance.fork());
        let refused = match chance.u32(0..8) {
            0 => scope.get(&key).map(|child| child.abort()).is_some().then_some(Refused::Exists),
            1 => scope.get(&key).map(|child| child.stop()).is_some().then_some(Refused::Exists),
            2 => scope.wrap_as(key, |ctx| random_run(ctx, own)).err(),
            3 => scope.spawn_if_absent(key, |ctx| random_run(ctx, own)).err(),
            4 => {
                let policy =
                    RestartPolicy::new(Restart::Transient).budget(Budget::new(3, LONG)).backoff(Backoff::none());
                let class = ChildClass::new(policy, move |_: &u64, ctx| random_run(ctx, own.clone()));
                scope.spawn_kept(key, &class).err()
            }
            _ => scope.spawn(|ctx| random_run(ctx, own)).err(),
        };
        if refused == Some(Refused::Stopping) {
            return;
        }
        if chance.u32(0..50) == 0 {
            tokio::task::yield_now().await;
        }
    }
}

async fn round(seed: u64) {
    let mut chance = fastrand::Rng::with_seed(seed);
    let meter = Arc::new(Meter::default());
    let root: Scope<u64> = Scope::builder("root").observer(meter.clone()).build();
    let below = root.child::<u64>("below");
    let actors: Vec<_> = (0..6)
        .map(|actor| {
            let scope = if actor % 2 == 0 { &root } else { &below };
            tokio::spawn(act(scope.on(Tokio::current()), chance.fork()))
        })
        .collect();
    for _ in 0..chance.u32(0..200) {
        tokio::task::yield_now().await;
    }
    let report = root.stop(Tokio::current(), Duration::from_millis(chance.u64(0..20)), LONG).await;
    for actor in actors {
        actor.await.expect("actors do not panic");
    }
    assert_eq!((report.left, root.len(), below.len()), (0, 0, 0), "seed {seed}: {report}");
    let (ours, theirs) = (root.counts(), below.counts());
    assert_eq!(ours.started + theirs.started, meter.started.load(SeqCst), "seed {seed}");
    assert_eq!(ours.restarts + theirs.restarts, meter.restarted.load(SeqCst), "seed {seed}");
    for exit in Exit::ALL {
        let observed = meter.exits[exit as usize].load(SeqCst);
        assert_eq!(ours.exits[exit] + theirs.exits[exit], observed, "seed {seed}: {exit}");
    }
    assert_eq!(ours.started + theirs.started, ours.exits.total() + theirs.exits.total(), "seed {seed}");
}

/// SV-45, SV-47: counts balance after random children and a random stop, and equal the observed events.
#[test]
fn random_children_under_random_stop_balance() {
    let first = from_environment("TIDEGATE_STRESS_SEED").unwrap_or_else(|| fastrand::u64(..));
    let rounds = from_environment("TIDEGATE_STRESS_ROUNDS").unwrap_or(30);
    println!("TIDEGATE_STRESS_SEED={first} TIDEGATE_STRESS_ROUNDS={rounds}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    for seed in (0..rounds).map(|round| first.wrapping_add(round)) {
        runtime.block_on(async { tokio::spawn(round(seed)).await }).unwrap();
    }
}
