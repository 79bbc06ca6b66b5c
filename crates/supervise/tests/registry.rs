//! Keys, limits and listings under concurrency.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::HashSet;
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;
use tidegate_supervise::{Ctx, Exit, Observe, Refused, Scope, SpawnOutcome, Tokio};

const LONG: Duration = Duration::from_secs(3600);

/// SV-31: of 64 concurrent threads, one creates the child.
#[test]
fn one_of_64_threads_creates_the_child() {
    for _ in 0..20 {
        let scope = Scope::root::<&str>("root");
        let (barrier, winners) = (Barrier::new(64), AtomicUsize::new(0));
        let children: Vec<_> = std::thread::scope(|threads| {
            let racers: Vec<_> = (0..64)
                .map(|_| {
                    threads.spawn(|| {
                        barrier.wait();
                        match scope.wrap_if_absent("one", |_| pending::<()>()).unwrap() {
                            SpawnOutcome::New(child) => {
                                winners.fetch_add(1, SeqCst);
                                (child.child(), Some(child))
                            }
                            SpawnOutcome::Existing(child) => (child, None),
                        }
                    })
                })
                .collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).collect()
        });
        assert_eq!(winners.load(SeqCst), 1);
        assert!(children.iter().all(|(child, _)| *child == children[0].0), "all threads get the same child");
    }
}

struct LookUpOnExit(std::sync::OnceLock<Scope<u32>>, AtomicUsize);

impl Observe for LookUpOnExit {
    fn exited(&self, _: &str, _: Exit, _: Option<&str>) {
        let found = self.0.get().is_some_and(|scope| scope.get(&1).is_some());
        self.1.fetch_add(usize::from(found), SeqCst);
    }
}

/// SV-32: a key is visible before the first poll, and removed after the exit callback.
#[test]
fn key_is_visible_from_creation_to_exit() {
    let observer = Arc::new(LookUpOnExit(std::sync::OnceLock::new(), AtomicUsize::new(0)));
    let scope: Scope<u32> = Scope::builder("root").observer(observer.clone()).build();
    assert!(observer.0.set(scope.clone()).is_ok());
    let child = scope.wrap_as(1, |_| {
        assert!(scope.get(&1).is_some(), "visible to its own factory");
        pending::<()>()
    });
    let child = child.unwrap();
    assert!(scope.get(&1).is_some());
    assert_eq!(scope.wrap_as(1, |_| pending::<()>()).err(), Some(Refused::Exists));
    drop(child);
    assert_eq!(observer.1.load(SeqCst), 1, "the exit callback still finds the child");
    assert!(scope.get(&1).is_none());
    assert!(scope.wrap_as(1, |_| pending::<()>()).is_ok());
}

/// SV-33: look-ups work during a stop.
#[tokio::test]
async fn lookups_work_during_stop() {
    let scope = Scope::root::<u64>("root").on(Tokio::current());
    let (go, gone) = tokio::sync::watch::channel(());
    for id in 0..1000 {
        let mut gone = gone.clone();
        let child = move |ctx: Ctx| async move {
            ctx.cancelled().await;
            if id % 2 == 0 {
                let _ = gone.changed().await;
            }
        };
        drop(scope.spawn_as(id, child).unwrap());
    }
    let looking = scope.clone();
    let look = async move {
        while looking.len() > 500 {
            tokio::task::yield_now().await;
        }
        let found: Vec<_> = (0..1000).filter(|id| looking.get(id).is_some()).collect();
        assert_eq!(found.len(), 500);
        assert!(found.iter().all(|id| id % 2 == 0));
        go.send_replace(());
    };
    let (report, ()) = tokio::join!(scope.stop(LONG, LONG), look);
    assert!(report.is_clean(), "{report}");
}

/// SV-34: the limit is exact under concurrency.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn limit_is_exact_under_concurrency() {
    let scope: Scope<u64> = Scope::builder("root").max_children(10).build();
    let scope = scope.on(Tokio::current());
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let racers: Vec<_> = (0..8)
        .map(|racer| {
            let (scope, now, most) = (scope.clone(), Arc::clone(&now), Arc::clone(&most));
            tokio::spawn(async move {
                for _ in 0..500 {
                    let (now, most) = (Arc::clone(&now), Arc::clone(&most));
                    let child = move |_| async move {
                        most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                        tokio::task::yield_now().await;
                        now.fetch_sub(1, SeqCst);
                    };
                    if racer % 2 == 0 {
                        let permit = scope.reserve().await.unwrap();
                        tokio::spawn(permit.wrap(child).unwrap());
                    } else if let Err(refused) = scope.spawn(child) {
                        assert_eq!(refused, Refused::Full { max: 10 });
                        tokio::task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    for racer in racers {
        racer.await.unwrap();
    }
    assert!(scope.drain(LONG).await.is_clean());
    assert!(most.load(SeqCst) <= 10);
}

fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// SV-34: waiters get permits in order and may leave the queue.
#[test]
fn waiters_are_served_in_order_and_may_leave() {
    let scope: Scope<u64> = Scope::builder("root").max_children(1).build();
    let first = scope.wrap(|_| pending::<()>()).unwrap();
    let mut waiters: Vec<_> = (0..4).map(|_| Box::pin(scope.reserve())).collect();
    assert!(waiters.iter_mut().all(|waiter| poll(waiter).is_pending()));
    drop(waiters.remove(1));
    drop(first);
    assert_eq!(scope.wrap(|_| pending::<()>()).err(), Some(Refused::Full { max: 1 }), "no child overtakes the queue");
    assert!(poll(&mut waiters[1]).is_pending() && poll(&mut waiters[2]).is_pending());
    let Poll::Ready(Ok(permit)) = poll(&mut waiters[0]) else { panic!("the oldest waiter gets no permit") };
    drop(permit);
    drop(waiters.remove(1));
    assert!(poll(&mut waiters[1]).is_ready(), "a leaving waiter passes its permit on");
    assert!(scope.wrap(|_| pending::<()>()).is_ok());
}

/// SV-34: a stop refuses queued waiters.
#[test]
fn stop_refuses_waiters() {
    let scope: Scope<u64> = Scope::builder("root").max_children(0).build();
    let mut waiter = Box::pin(scope.reserve());
    assert!(poll(&mut waiter).is_pending());
    scope.close();
    assert!(matches!(poll(&mut waiter), Poll::Ready(Err(Refused::Stopping))));
}

/// SV-35: a listing contains every child that lives throughout the call exactly once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn list_contains_lasting_children_once() {
    let scope = Scope::root::<u64>("root").on(Tokio::current());
    for id in 0..1000 {
        drop(scope.spawn_as(id, |ctx| async move { ctx.cancelled().await }).unwrap());
    }
    let churning = scope.clone();
    let churn = tokio::spawn(async move {
        for id in 1000..20_000 {
            let _ = churning.spawn_as(id, |_| tokio::task::yield_now()).unwrap().await;
        }
    });
    while !churn.is_finished() {
        let keys: Vec<_> = scope.list().filter_map(|child| child.key).collect();
        let unique: HashSet<_> = keys.iter().collect();
        assert_eq!(unique.len(), keys.len(), "no child is listed twice");
        assert!((0..1000).all(|id| unique.contains(&id)), "no lasting child is missed");
        tokio::task::yield_now().await;
    }
    churn.await.unwrap();
    assert!(scope.stop(LONG, LONG).await.is_clean());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// SV-35: the registry behaves as a set of keys.
    #[test]
    fn registry_behaves_as_set(steps in prop::collection::vec((0u8..40, any::<bool>()), 0..400), shards in 1usize..5) {
        let scope: Scope<u8> = Scope::builder("root").shards(shards).build();
        let mut model = std::collections::HashMap::new();
        for (key, insert) in steps {
            if insert {
                let child = scope.wrap_as(key, |_| pending::<()>());
                prop_assert_eq!(child.is_ok(), !model.contains_key(&key));
                if let Ok(child) = child {
                    model.insert(key, child);
                }
            } else {
                model.remove(&key);
            }
            prop_assert_eq!(scope.get(&key).is_some(), model.contains_key(&key));
        }
        let mut listed: Vec<_> = scope.list().filter_map(|child| child.key).collect();
        let mut expected: Vec<_> = model.keys().copied().collect();
        listed.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(listed, expected);
    }
}

#[test]
fn list_contains_spawn_locations() {
    let scope: Scope<u32> = Scope::builder("root").shards(1).build();
    let lines = || {
        let mut lines: Vec<_> = scope.list().map(|child| (child.key, child.spawned_at.line())).collect();
        lines.sort_unstable();
        lines
    };
    let (first, at_first) = (scope.wrap_as(1, |_| pending::<()>()).unwrap(), line!());
    let (_second, at_second) = (scope.wrap_as(2, |_| pending::<()>()).unwrap(), line!());
    assert_eq!(lines(), [(Some(1), at_first), (Some(2), at_second)]);
    drop(first);
    let (_third, at_third) = (scope.wrap_as(3, |_| pending::<()>()).unwrap(), line!());
    assert_eq!(lines(), [(Some(2), at_second), (Some(3), at_third)], "the third child reuses the slot of the first");
}

#[test]
fn tree_lists_scopes_with_own_counts() {
    let root = Scope::root::<u64>("root");
    let clients = root.child::<u64>("clients");
    let child = clients.wrap_as(1, |_| pending::<()>()).unwrap();
    drop(root.child::<u64>("dropped"));
    let rows: Vec<_> = root.tree().into_iter().map(|(path, counts)| (path.to_string(), counts.live)).collect();
    assert_eq!(rows, [("root".into(), 0), ("root/clients".into(), 1)]);
    let mut empty = pin!(std::future::poll_fn(|cx| clients.poll_empty(cx)));
    clients.close();
    assert!(empty.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(child);
    assert!(empty.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
}

#[test]
fn number_is_for_display_only() {
    let scope: Scope = Scope::builder("clients").shards(1).build();
    let numbers = || scope.list().map(|child| child.number).collect::<Vec<_>>();
    let first = scope.wrap_numbered(4711, |_| pending::<()>()).unwrap();
    let _same = scope.wrap_numbered(4711, |_| pending::<()>()).unwrap();
    let _none = scope.wrap_numbered(0, |_| pending::<()>()).unwrap();
    assert_eq!(numbers(), [Some(4711), Some(4711), None]);
    drop(first);
    let _next = scope.wrap(|_| pending::<()>()).unwrap();
    assert_eq!(numbers(), [None, Some(4711), None], "the next occupant of a slot does not inherit the number");
}
