//! Bundled children: supervised like children with their own task.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::future::pending;
use std::sync::mpsc;
use std::time::Duration;

use tidegate_supervise::{Bundled, Ctx, Exit, Scope, Tokio};

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(20);

async fn waits_for_stop(ctx: Ctx) {
    ctx.cancelled().await;
    tokio::task::yield_now().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stopped_bundles_leave_no_task() {
    for children in [1, 255, 256, 257, 100_000] {
        let scope = Scope::root::<u64>("root").on(Bundled::on(Tokio::current()));
        for id in 0..children {
            scope.spawn_as(id, waits_for_stop).unwrap();
        }
        let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        assert!(alive() <= (children as usize).div_ceil(256) + 1, "{} tasks for {children} children", alive());
        let report = scope.stop(LONG, LONG).await;
        assert!(report.is_clean() && report.clean() == children, "{report}");
        while alive() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn ended_bundle_is_replaced() {
    let scope = Scope::root::<u64>("root").on(Bundled::on(Tokio::current()));
    for round in 1..=1000 {
        scope.spawn_as(7, |_| async {}).unwrap();
        while scope.get(&7).is_some() {
            tokio::task::yield_now().await;
        }
        assert_eq!(scope.counts().exits[Exit::Returned], round);
    }
}

#[tokio::test]
async fn panic_and_abort_end_one_child_of_bundle() {
    let scope = Scope::root::<u64>("root").on(Bundled::on(Tokio::current()));
    for id in 0..10 {
        let body = move |ctx: Ctx| async move {
            match id {
                3 => std::panic::resume_unwind(Box::new("silent")),
                4 => pending().await,
                _ => waits_for_stop(ctx).await,
            }
        };
        scope.spawn_as(id, body).unwrap();
    }
    let child = scope.get(&4).unwrap();
    let ended = child.ended();
    child.abort();
    assert_eq!(ended.await, Some(Exit::Aborted));
    let report = scope.stop(LONG, LONG).await;
    assert_eq!((report.clean(), report.left), (8, 0), "{report}");
    let exits = scope.counts().exits;
    assert_eq!((exits[Exit::Panicked], exits[Exit::Aborted], exits[Exit::Returned]), (1, 1, 8));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_child_delays_its_bundle_only() {
    let scope = Scope::root::<u64>("root").on(Bundled::on(Tokio::current()));
    let (release, blocked) = mpsc::channel::<()>();
    let (runs, is_running) = tokio::sync::oneshot::channel();
    let mut held = Some((blocked, runs));
    // A single thread spawns all children, so that bundles fill one after another.
    for id in 0..600 {
        let held = held.take();
        let body = move |ctx: Ctx| async move {
            if let Some((blocked, runs)) = held {
                runs.send(()).unwrap();
                let _ = blocked.recv();
            }
            ctx.cancelled().await;
        };
        scope.spawn_as(id, body).unwrap();
    }
    is_running.await.unwrap();
    let report = scope.stop(SHORT, SHORT).await;
    assert!((1..=256).contains(&report.left), "{report}");
    assert!(report.stuck.iter().any(|stuck| stuck.key.as_deref() == Some("0")), "{report}");
    drop(release);
    let report = scope.stop(LONG, LONG).await;
    assert_eq!((report.left, scope.counts().exits.total()), (0, 600), "{report}");
}

#[test]
fn runtime_shutdown_drops_bundled_children() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let scope = Scope::root::<u64>("root").on(Bundled::on(Tokio::new(runtime.handle().clone())));
    for id in 0..300 {
        scope.spawn_as(id, waits_for_stop).unwrap();
    }
    drop(runtime);
    scope.spawn_as(300, waits_for_stop).unwrap();
    assert_eq!((scope.len(), scope.counts().exits[Exit::Dropped]), (0, 301));
}
