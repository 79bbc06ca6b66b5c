//! Cost of waiting for a stop that does not come: `select!(work, cancelled)` in a loop.

use std::future::{Future, pending};
use std::time::Instant;

use tidegate_supervise::{Ctx, Scope, Tokio};
use tokio::task::{JoinSet, yield_now};
use tokio_util::sync::CancellationToken;

const TASKS: u32 = 4096;
const TURNS: u32 = 500;

pub(crate) const DESIGNS: [&str; 4] = ["no check", "one token", "child tokens", "supervise"];

/// Runs the loops of the design; returns nanoseconds per iteration over all tasks.
pub(crate) async fn run(design: &str) -> f64 {
    let mut tasks = JoinSet::new();
    let token = CancellationToken::new();
    let scope = Scope::root::<u32>("steady");
    let began = Instant::now();
    for _ in 0..TASKS {
        match design {
            "no check" => drop(tasks.spawn(turns(pending))),
            "one token" => {
                let token = token.clone();
                tasks.spawn(async move { turns(|| token.cancelled()).await });
            }
            "child tokens" => {
                let token = token.child_token();
                tasks.spawn(async move { turns(|| token.cancelled()).await });
            }
            "supervise" => {
                let child = |ctx: Ctx| async move { turns(|| ctx.cancelled()).await };
                let child = scope.on(Tokio::current()).wrap(child).expect("the scope is open");
                tasks.spawn(async move { child.await.expect("child returns without a stop") });
            }
            other => panic!("unknown design {other}"),
        }
    }
    while tasks.join_next().await.is_some() {}
    began.elapsed().as_secs_f64() * 1e9 / f64::from(TASKS * TURNS)
}

async fn turns<F: Future<Output = ()>>(cancelled: impl Fn() -> F) {
    for _ in 0..TURNS {
        tokio::select! {
            biased;
            () = cancelled() => return,
            () = yield_now() => {}
        }
    }
}
