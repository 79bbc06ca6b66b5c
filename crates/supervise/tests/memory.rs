//! What a child costs in memory, and that it is given back. Alone in its process, since it counts all allocations.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is a test that fails")]

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

/// One test for all: the threads of a second would be counted with the first.
#[test]
fn sv_38_39_children_are_cheap_and_their_memory_returns() {
    sv_38_a_child_costs_at_most_128_bytes_more_than_a_bare_task_with_a_bell();
    sv_39_memory_returns_after_cycles_of_starts_and_stops();
    sv_39_a_scope_that_empties_keeps_no_more_than_a_page_of_each_shard();
}

const LONG: Duration = Duration::from_secs(3600);
const CHILDREN: usize = 10_000;
/// A span is 40 bytes more, which may lift the task's cell into the next size class of 128.
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

/// What a child without a supervisor needs to be woken one day.
#[derive(Default)]
struct Bell {
    rung: AtomicBool,
    waker: AtomicWaker,
}

impl Bell {
    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        if self.rung.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Lets `CHILDREN` tasks start and returns what each costs.
async fn cost(mut spawn: impl FnMut(u64)) -> usize {
    let before = allocated();
    (0..CHILDREN as u64).for_each(&mut spawn);
    settle().await;
    (allocated() - before) / CHILDREN
}

fn sv_38_a_child_costs_at_most_128_bytes_more_than_a_bare_task_with_a_bell() {
    runtime().block_on(async {
        let state = [1u8; 200];
        let bare = cost(|_| {
            let bell = Arc::new(Bell::default());
            drop(tokio::spawn(async move {
                poll_fn(|cx| bell.poll(cx)).await;
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

fn sv_39_memory_returns_after_cycles_of_starts_and_stops() {
    runtime().block_on(async {
        let scope = Scope::root::<u64>("root").on(Tokio::current());
        cycle(&scope, "warm up").await;
        let after_one = allocated();
        for turn in 0..10 {
            cycle(&scope, &turn.to_string()).await;
        }
        // A scope without handles and children is let go when the next is made, so one may linger.
        let grown = allocated().saturating_sub(after_one);
        assert!(grown < 16 * 1024, "{grown} bytes more after ten cycles");
    });
}

fn sv_39_a_scope_that_empties_keeps_no_more_than_a_page_of_each_shard() {
    runtime().block_on(async {
        let scope: Scope<u64> = Scope::builder("root").shards(1).build();
        let before = allocated();
        let children: Vec<_> =
            (0..CHILDREN as u64).map(|id| scope.wrap_as(id, |_| std::future::pending::<()>()).unwrap()).collect();
        drop(children);
        let kept = allocated().saturating_sub(before);
        assert!(kept < 8 * 1024, "{kept} bytes kept");
    });
}
