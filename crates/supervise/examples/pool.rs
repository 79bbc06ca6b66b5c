//! A pool of idle connections: children without a task, identified by number, and dropped in their phase of the stop.
//!
//! `cargo run -p tidegate-supervise --features tokio --example pool`

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_supervise::{Ctx, HeldChild, Scope, Tokio};

/// Stands in for a socket.
struct Connection {
    number: u64,
    _held: HeldChild,
}

type Pool = Arc<Mutex<Vec<Connection>>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let service = Scope::root::<&str>("service").on(Tokio::current());
    let clients = service.child::<u64>("clients");
    // This scope stops after the clients have returned their connections.
    let connections: Scope = service.child_builder("connections").phase(1).build();
    let pool = Pool::default();
    for number in 1..=3 {
        let held = connections.hold(number)?;
        pool.lock().expect("the lock is never held across a panic").push(Connection { number, _held: held });
    }
    for id in 0..2 {
        let pool = Arc::clone(&pool);
        clients.spawn_as(id, move |ctx| client(ctx, pool))?;
    }
    tokio::task::yield_now().await;
    for (path, counts) in service.tree() {
        println!("{path}: {} live", counts.live);
    }
    // The last connection is never closed, so the report lists it.
    let report = service.stop(Duration::from_millis(100), Duration::from_millis(100)).await;
    println!("{report}");
    Ok(())
}

async fn client(ctx: Ctx, pool: Pool) {
    let taken = pool.lock().expect("the lock is never held across a panic").pop();
    ctx.cancelled().await;
    if let Some(connection) = taken {
        println!("closing connection {}", connection.number);
    }
}
