//! Children by key, limits, and listings, under races.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is a test that fails")]

use std::collections::HashSet;
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;
use tidegate_supervise::{Ctx, Exit, Observe, Presence, Refused, Scope, Tokio};

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn sv_31_of_64_threads_one_starts_the_child() {
    for _ in 0..20 {
        let scope = Scope::root::<&str>("root");
        let (barrier, winners) = (Barrier::new(64), AtomicUsize::new(0));
        let children: Vec<_> = std::thread::scope(|threads| {
            let racers: Vec<_> = (0..64)
                .map(|_| {
                    threads.spawn(|| {
                        barrier.wait();
                        match scope.wrap_if_absent("one", |_| pending::<()>()).unwrap() {
                            Presence::New(child) => {
                                winners.fetch_add(1, SeqCst);
                                (child.child(), Some(child))
                            }
                            Presence::Existing(child) => (child, None),
                        }
                    })
                })
                .collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).collect()
        });
        assert_eq!(winners.load(SeqCst), 1);
        assert!(children.iter().all(|(child, _)| *child == children[0].0), "all got the same child");
    }
}

struct LooksUp(std::sync::OnceLock<Scope<u32>>, AtomicUsize);

impl Observe for LooksUp {
    fn exited(&self, _: &str, _: Exit, _: Option<&str>) {
        let found = self.0.get().is_some_and(|scope| scope.get(&1).is_some());
        self.1.fetch_add(usize::from(found), SeqCst);
    }
}

#[test]
fn sv_32_a_key_is_known_before_the_first_poll_and_gone_after_the_exit_hook() {
    let observer = Arc::new(LooksUp(std::sync::OnceLock::new(), AtomicUsize::new(0)));
    let scope: Scope<u32> = Scope::builder("root").observer(observer.clone()).build();
    assert!(observer.0.set(scope.clone()).is_ok());
    let child = scope.wrap_as(1, |_| {
        assert!(scope.get(&1).is_some(), "known to its own factory");
        pending::<()>()
    });
    let child = child.unwrap();
    assert!(scope.get(&1).is_some());
    assert_eq!(scope.wrap_as(1, |_| pending::<()>()).err(), Some(Refused::Exists));
    drop(child);
    assert_eq!(observer.1.load(SeqCst), 1, "the exit hook still finds it");
    assert!(scope.get(&1).is_none());
    assert!(scope.wrap_as(1, |_| pending::<()>()).is_ok());
}

#[tokio::test]
async fn sv_33_look_ups_work_while_all_stop() {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sv_34_the_limit_is_exact_under_races() {
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

#[test]
fn sv_34_waiters_are_served_in_order_and_may_leave() {
    let scope: Scope<u64> = Scope::builder("root").max_children(1).build();
    let first = scope.wrap(|_| pending::<()>()).unwrap();
    let mut waiters: Vec<_> = (0..4).map(|_| Box::pin(scope.reserve())).collect();
    assert!(waiters.iter_mut().all(|waiter| poll(waiter).is_pending()));
    drop(waiters.remove(1));
    drop(first);
    assert_eq!(scope.wrap(|_| pending::<()>()).err(), Some(Refused::Full { max: 1 }), "nobody passes the line");
    assert!(poll(&mut waiters[1]).is_pending() && poll(&mut waiters[2]).is_pending());
    let Poll::Ready(Ok(permit)) = poll(&mut waiters[0]) else { panic!("the head of the line is served") };
    drop(permit);
    drop(waiters.remove(1));
    assert!(poll(&mut waiters[1]).is_ready(), "a waiter that leaves with its grant passes it on");
    assert!(scope.wrap(|_| pending::<()>()).is_ok());
}

#[test]
fn sv_34_a_stop_turns_waiters_away() {
    let scope: Scope<u64> = Scope::builder("root").max_children(0).build();
    let mut waiter = Box::pin(scope.reserve());
    assert!(poll(&mut waiter).is_pending());
    scope.close();
    assert!(matches!(poll(&mut waiter), Poll::Ready(Err(Refused::Stopping))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sv_35_a_listing_shows_who_lives_throughout_it_exactly_once() {
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
        assert_eq!(unique.len(), keys.len(), "no child is shown twice");
        assert!((0..1000).all(|id| unique.contains(&id)), "no lasting child is missed");
        tokio::task::yield_now().await;
    }
    churn.await.unwrap();
    assert!(scope.stop(LONG, LONG).await.is_clean());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The registry behaves as a set of keys does, whatever comes and goes.
    #[test]
    fn sv_35_the_registry_is_a_set(steps in prop::collection::vec((0u8..40, any::<bool>()), 0..400), shards in 1usize..5) {
        let scope: Scope<u8> = Scope::builder("root").shards(shards).build();
        let mut model = std::collections::HashMap::new();
        for (key, comes) in steps {
            if comes {
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
fn a_listing_tells_where_each_child_was_spawned() {
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
    assert_eq!(lines(), [(Some(2), at_second), (Some(3), at_third)], "in the slot of the first");
}

#[test]
fn a_tree_lists_its_scopes_with_their_own_counts() {
    let root = Scope::root::<u64>("root");
    let clients = root.child::<u64>("clients");
    let child = clients.wrap_as(1, |_| pending::<()>()).unwrap();
    drop(root.child::<u64>("gone"));
    let rows: Vec<_> = root.tree().into_iter().map(|(path, counts)| (path.to_string(), counts.live)).collect();
    assert_eq!(rows, [("root".into(), 0), ("root/clients".into(), 1)]);
    let mut empty = pin!(std::future::poll_fn(|cx| clients.poll_empty(cx)));
    clients.close();
    assert!(empty.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(child);
    assert!(empty.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
}

#[test]
fn a_number_is_shown_but_names_nobody() {
    let scope: Scope = Scope::builder("clients").shards(1).build();
    let numbers = || scope.list().map(|child| child.number).collect::<Vec<_>>();
    let first = scope.wrap_numbered(4711, |_| pending::<()>()).unwrap();
    let _same = scope.wrap_numbered(4711, |_| pending::<()>()).unwrap();
    let _none = scope.wrap_numbered(0, |_| pending::<()>()).unwrap();
    assert_eq!(numbers(), [Some(4711), Some(4711), None]);
    drop(first);
    let _next = scope.wrap(|_| pending::<()>()).unwrap();
    assert_eq!(numbers(), [None, Some(4711), None], "the next in a slot does not inherit the number");
}
