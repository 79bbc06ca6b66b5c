//! A worker that fails sometimes is restarted until its budget is used up.
//!
//! `cargo run -p tidegate-supervise --features tokio --example kept`

use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tidegate_supervise::{Backoff, Budget, ChildClass, Ctx, Exit, Observe, Restart, RestartPolicy, Scope, Tokio};

struct PrintObserver;

impl Observe for PrintObserver {
    fn restarting(&self, scope: &str, key: &dyn Debug, exit: Exit, panic: Option<&str>, wait: Duration) {
        println!("{scope} {key:?}: {exit} ({}), restart in {wait:?}", panic.unwrap_or("no panic"));
    }

    fn gave_up(&self, scope: &str, key: &dyn Debug, exit: Exit) {
        println!("{scope} {key:?}: {exit}, restart budget is used up");
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let workers = Scope::builder("workers").observer(Arc::new(PrintObserver)).build::<&str>().on(Tokio::current());
    let policy = RestartPolicy::new(Restart::Transient)
        .budget(Budget::new(3, Duration::from_secs(60)))
        .backoff(Backoff::new(Duration::from_millis(50), Duration::from_secs(1)));
    let class = ChildClass::new(policy, |name: &&'static str, ctx: Ctx| work(name, ctx));

    let child = workers.spawn_kept("fragile", &class)?;
    println!("fragile ended: {:?}", child.ended().await);
    println!("{:?}", workers.counts());
    println!("{}", workers.stop(Duration::from_secs(1), Duration::from_secs(1)).await);
    Ok(())
}

async fn work(name: &'static str, ctx: Ctx) -> Result<(), String> {
    tokio::select! {
        () = ctx.cancelled() => Ok(()),
        () = tokio::time::sleep(Duration::from_millis(100)) => Err(format!("{name} lost its connection")),
    }
}
