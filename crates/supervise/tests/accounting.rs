//! Every started child ends exactly once, for every exit.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;
use tidegate_supervise::{Counts, Exit, Refused, Scope, Tokio};

const LONG: Duration = Duration::from_secs(3600);

fn assert_balanced(counts: Counts) {
    assert_eq!(counts.started, counts.live as u64 + counts.exits.total(), "{counts:?}");
}

/// SV-1: every exit is counted once.
#[tokio::test]
async fn every_exit_is_counted_once() {
    let scope = Scope::root::<&str>("root").on(Tokio::current());
    scope.spawn_as("returns", |_| ready(())).unwrap().await.unwrap().unwrap();
    let failed = scope.spawn_as("fails", |_| ready(Err::<(), _>("no"))).unwrap().await.unwrap();
    assert_eq!(failed, Ok(Err("no")));
    let panicked = scope.spawn_as("panics", |_| async { panic!("expected by the test") }).unwrap();
    let panicked: Result<(), Exit> = panicked.await.unwrap();
    assert_eq!(panicked, Err(Exit::Panicked));
    let aborted = scope.spawn_as("waits", |_| pending::<()>()).unwrap();
    scope.get(&"waits").unwrap().abort();
    assert_eq!(aborted.await.unwrap(), Err(Exit::Aborted));
    drop(scope.wrap_as("never spawned", |_| pending::<()>()).unwrap());
    let counts = scope.counts();
    assert_eq!(Exit::ALL.map(|exit| counts.exits[exit]), [1; 5], "{counts:?}");
    assert_balanced(counts);
    assert_eq!(counts.live, 0);
}

/// SV-1: a runtime that shuts down drops its children.
#[test]
fn runtime_shutdown_drops_children() {
    let scope = Scope::root::<u32>("root");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let on = scope.on(Tokio::new(runtime.handle().clone()));
    for id in 0..100 {
        drop(on.spawn_as(id, |ctx| async move { ctx.cancelled().await }).unwrap());
    }
    drop(runtime);
    assert_eq!(scope.counts().exits[Exit::Dropped], 100);
    assert!(scope.is_empty());
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("expected by the test: in drop");
    }
}

/// SV-2: a panic in the drop of a future ends one child.
#[tokio::test]
async fn panic_in_drop_ends_one_child() {
    let scope = Scope::root::<u32>("root").on(Tokio::current());
    let aborted = scope.spawn_as(1, |_| async {
        let _guard = PanicsWhenDropped;
        pending::<()>().await;
    });
    let aborted = aborted.unwrap();
    // The guard that panics exists only after the first poll.
    tokio::task::yield_now().await;
    scope.get(&1).unwrap().abort();
    assert_eq!(aborted.await.unwrap(), Err(Exit::Panicked));
    let unspawned = scope.wrap_as(2, |_| {
        let guard = PanicsWhenDropped;
        async move {
            let _guard = guard;
        }
    });
    drop(unspawned.unwrap());
    assert_eq!(scope.counts().exits[Exit::Panicked], 2);
    assert!(scope.is_empty());
}

/// SV-2: a panic in the drop of a panic payload is caught.
#[tokio::test]
async fn panic_in_payload_drop_is_caught() {
    let scope = Scope::root::<u32>("root").on(Tokio::current());
    let child = scope.spawn(|_| async { std::panic::panic_any(PanicsWhenDropped) }).unwrap();
    let ended: Result<(), Exit> = child.await.unwrap();
    assert_eq!(ended, Err(Exit::Panicked));
}

/// SV-3: a panic in the factory returns the permit of the limit.
#[tokio::test]
async fn panic_in_factory_returns_permit() {
    let root: Scope = Scope::builder("root").max_children(1).build();
    let wrapping = std::panic::AssertUnwindSafe(|| {
        root.wrap(|_| if true { panic!("expected by the test: in the factory") } else { ready(()) })
    });
    assert!(std::panic::catch_unwind(wrapping).is_err());
    assert!(root.is_empty());
    assert_eq!(root.counts().exits[Exit::Dropped], 1);
    assert!(root.wrap(|_| ready(())).is_ok(), "the permit was returned");
}

/// SV-4: an ended child cannot end again.
#[test]
fn child_ends_only_once() {
    let scope = Scope::root::<u32>("root");
    let mut child = Box::pin(scope.wrap_as(1, |_| ready(())).unwrap());
    let handle = child.child();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(child.as_mut().poll(&mut cx).is_ready());
    handle.abort();
    handle.stop();
    let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| child.as_mut().poll(&mut cx).is_ready()));
    assert!(again.is_err(), "poll after completion panics");
    drop(child);
    assert_eq!(scope.counts().exits.total(), 1);
}

/// SV-6: a stale handle does not affect the next occupant of the slot.
#[test]
fn stale_handle_does_not_affect_next_occupant() {
    let scope: Scope<u32> = Scope::builder("root").shards(1).build();
    let first = scope.wrap_as(1, |_| pending::<()>()).unwrap();
    let (stale, mut kept_ctx) = (first.child(), None);
    drop(first);
    let mut second = Box::pin(
        scope
            .wrap_as(2, |ctx| {
                kept_ctx = Some(ctx.clone());
                async move { ctx.cancelled().await }
            })
            .unwrap(),
    );
    stale.stop();
    stale.abort();
    assert!(!stale.is_alive());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(second.as_mut().poll(&mut cx).is_pending());
    assert!(!kept_ctx.as_ref().unwrap().is_stopping());
    drop(second);
    assert!(kept_ctx.unwrap().is_stopping(), "an ended child counts as stopping");
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Return,
    Fail,
    Panic,
    Abort,
    Drop,
    Stay,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        Just(Act::Return),
        Just(Act::Fail),
        Just(Act::Panic),
        Just(Act::Abort),
        Just(Act::Drop),
        Just(Act::Stay)
    ];
    prop::collection::vec(act, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// SV-5: counts balance over all exits.
    #[test]
    fn counts_balance_over_all_exits(acts in acts(), shards in 1usize..9) {
        let scope: Scope<usize> = Scope::builder("root").shards(shards).build();
        let mut cx = Context::from_waker(Waker::noop());
        let mut staying = Vec::new();
        for (id, &act) in acts.iter().enumerate() {
            let child = scope.wrap_as(id, |_| async move {
                match act {
                    Act::Return => Ok(()),
                    Act::Fail => Err(()),
                    Act::Panic => std::panic::resume_unwind(Box::new("silent")),
                    _ => pending().await,
                }
            });
            let mut child = Box::pin(child.unwrap());
            if matches!(act, Act::Abort) {
                child.child().abort();
            }
            match (act, child.as_mut().poll(&mut cx)) {
                (Act::Stay, Poll::Pending) => staying.push(child),
                (Act::Drop, Poll::Pending) => drop(child),
                (_, polled) => prop_assert!(polled.is_ready()),
            }
        }
        let counts = scope.counts();
        let of = |matches: fn(&Act) -> bool| acts.iter().filter(|act| matches(act)).count() as u64;
        prop_assert_eq!(counts.live, staying.len());
        prop_assert_eq!(scope.list().count(), staying.len());
        prop_assert_eq!(counts.started, acts.len() as u64);
        prop_assert_eq!(counts.exits[Exit::Returned], of(|act| matches!(act, Act::Return)));
        prop_assert_eq!(counts.exits[Exit::Failed], of(|act| matches!(act, Act::Fail)));
        prop_assert_eq!(counts.exits[Exit::Panicked], of(|act| matches!(act, Act::Panic)));
        prop_assert_eq!(counts.exits[Exit::Aborted], of(|act| matches!(act, Act::Abort)));
        prop_assert_eq!(counts.exits[Exit::Dropped], of(|act| matches!(act, Act::Drop)));
        staying.clear();
        assert_balanced(scope.counts());
        prop_assert_eq!(scope.len(), 0);
    }
}

/// SV-5: counts balance after concurrent spawns; `stress.rs` has the long variant.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn counts_balance_after_concurrent_spawns() {
    let scope = Scope::root::<u64>("root").on(Tokio::current());
    let refused = Arc::new(AtomicUsize::new(0));
    let spawners: Vec<_> = (0..4u64)
        .map(|spawner| {
            let (scope, refused) = (scope.clone(), Arc::clone(&refused));
            tokio::spawn(async move {
                for id in 0..2000 {
                    let child = scope.spawn_as(id % 50 * 4 + spawner, |_| tokio::task::yield_now());
                    if child.err() == Some(Refused::Exists) {
                        refused.fetch_add(1, SeqCst);
                        tokio::task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    for spawner in spawners {
        spawner.await.unwrap();
    }
    let report = scope.stop(LONG, LONG).await;
    assert_eq!(report.left, 0);
    let counts = scope.counts();
    assert_balanced(counts);
    assert_eq!(counts.started, 8000 - refused.load(SeqCst) as u64);
}
