//! Memory per child, and its release. Runs alone in its process, because it counts all allocations.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::alloc::System;
use std::future::poll_fn;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tidegate_supervise::{Ctx, Scope, Supervisor, Tokio};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// SV-38, SV-39: memory per child is bounded and freed. One test, because the thread of a second would be counted.
#[test]
fn memory_per_child_is_bounded_and_freed() {
    child_costs_128_bytes_more_than_bare_task();
    start_stop_cycles_do_not_leak();
    empty_scope_keeps_one_page_per_shard();
}

const LONG: Duration = Duration::from_secs(3600);
const CHILDREN: usize = 10_000;
/// A span takes 40 bytes, which may move the task's allocation into the next size class of 128 bytes.
const BUDGET: usize = if cfg!(feature = "tracing") { 256 } else { 128 };

fn allocated() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

async fn settle() {
    for _ in 0..CHILDREN {
        tokio::task::yield_now().await;
    }
}

/// Minimal stop signal of a task without a supervisor.
#[derive(Default)]
struct StopFlag {
    is_set: AtomicBool,
    waker: AtomicWaker,
}

impl StopFlag {
    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        if self.is_set.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Starts `CHILDREN` tasks and returns the bytes per task.
async fn cost(mut spawn: impl FnMut(u64)) -> usize {
    let before = allocated();
    (0..CHILDREN as u64).for_each(&mut spawn);
    settle().await;
    (allocated() - before) / CHILDREN
}

fn child_costs_128_bytes_more_than_bare_task() {
    runtime().block_on(async {
        let state = [1u8; 200];
        let bare = cost(|_| {
            let flag = Arc::new(StopFlag::default());
            drop(tokio::spawn(async move {
                poll_fn(|cx| flag.poll(cx)).await;
                black_box(state);
            }));
        });
        let bare = bare.await;
        let scope = Scope::root::<u64>("root").on(Tokio::current());
        let supervised = cost(|id| {
            let child = |ctx: Ctx| async move {
                ctx.cancelled().await;
                black_box(state);
            };
            drop(scope.spawn_as(id, child).unwrap());
        });
        let supervised = supervised.await;
        println!("bare {bare}, supervised and keyed {supervised} bytes per child");
        assert!(supervised <= bare + BUDGET);
        scope.stop(LONG, LONG).await;
    });
}

async fn cycle(scope: &Supervisor<Tokio, u64>, name: &str) {
    let part = scope.child::<u64>(name);
    for id in 0..CHILDREN as u64 {
        drop(part.spawn_as(id, |ctx| async move { ctx.cancelled().await }).unwrap());
    }
    assert!(part.stop(LONG, LONG).await.is_clean());
}

fn start_stop_cycles_do_not_leak() {
    runtime().block_on(async {
        let scope = Scope::root::<u64>("root").on(Tokio::current());
        cycle(&scope, "warm up").await;
        let after_one = allocated();
        for turn in 0..10 {
            cycle(&scope, &turn.to_string()).await;
        }
        // A scope without handles and children is freed when the next one is created, so one may remain.
        let grown = allocated().saturating_sub(after_one);
        assert!(grown < 16 * 1024, "{grown} bytes more after ten cycles");
    });
}

fn empty_scope_keeps_one_page_per_shard() {
    runtime().block_on(async {
        let scope: Scope<u64> = Scope::builder("root").shards(1).build();
        let before = allocated();
        let children: Vec<_> =
            (0..CHILDREN as u64).map(|id| scope.wrap_as(id, |_| std::future::pending::<()>()).unwrap()).collect();
        drop(children);
        let kept = allocated().saturating_sub(before);
        assert!(kept < 8 * 1024, "{kept} bytes retained");
    });
}
