//! Picks from a set that changes, without any transport: endpoints are whatever you like, here counters.
//!
//! `cargo run -p tidegate-balance --example pick`

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use tidegate_balance::{Balancer, Endpoint, LeastRequest, Outcome, Pick, PickError, RoundRobin, Settings, Spec, Start};

/// What a pick gives: a pool, a client, a queue. Here, what was done with it.
#[derive(Default)]
struct Backend {
    served: AtomicUsize,
    broken: AtomicBool,
}

type Backends = Balancer<Backend>;

fn main() -> Result<(), Box<dyn Error>> {
    let now = Instant::now();
    // These connect by themselves; with `Start::Idle` an endpoint serves once `Balancer::ready` was said of it.
    let settings = Settings { start: Start::Ready, ..Settings::default() };
    let backends = Backends::new(RoundRobin, settings, fastrand::u64(..), now);
    backends.update(now, ["a:1", "b:1", "c:1"].map(Spec::new), |_, _| Backend::default());

    // Any thread picks, without a lock and without waiting.
    serve(&backends, 3000)?;
    print("three, in turn", &backends);

    // One breaks: calls that met it go on elsewhere, and it is out of the rotation until it was said to be ready.
    let broken = backends.endpoints().remove(1);
    broken.value().broken.store(true, Ordering::Relaxed);
    serve(&backends, 3000)?;
    backends.lost(broken.id(), Arc::new(io::Error::from(io::ErrorKind::ConnectionReset)));
    serve(&backends, 3000)?;
    print("b is lost", &backends);

    // Another set: what stays keeps its counts and its place, what is gone may be closed once nobody uses it.
    let lease = backends.pick(&Pick::new().filter(&|endpoint| endpoint.key().as_str() == "a:1"))?;
    backends.update(now, ["c:1", "d:1"].map(Spec::new), |_, _| Backend::default());
    for gone in backends.departed() {
        // In async code: `gone.drained().await`, then close what it stands for.
        println!("{} is gone, and used by {} calls", gone.key().as_str(), gone.load().outstanding());
    }
    lease.finish(Some(Instant::now()), Outcome::Success);

    // Another policy, while picks go on.
    backends.set_policy(Arc::new(LeastRequest::default()));
    serve(&backends, 3000)?;
    print("c and d, by load", &backends);
    Ok(())
}

/// So many calls, on two threads.
fn serve(backends: &Backends, calls: usize) -> Result<(), PickError> {
    thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(|| (0..calls / 2).try_for_each(|_| call(backends))));
        threads.into_iter().try_for_each(|thread| thread.join().expect("a call does not panic"))
    })
}

/// One call, tried once on each backend until one serves it.
fn call(backends: &Backends) -> Result<(), PickError> {
    let mut tried = Vec::new();
    loop {
        let lease = backends.pick(&Pick::new().at(Instant::now()).tried(&tried))?;
        if !lease.broken.load(Ordering::Relaxed) {
            lease.served.fetch_add(1, Ordering::Relaxed);
            lease.finish(Some(Instant::now()), Outcome::Success);
            return Ok(());
        }
        tried.push(lease.endpoint().id());
        lease.finish(Some(Instant::now()), Outcome::Failure);
    }
}

fn print(what: &str, backends: &Backends) {
    let served = |endpoint: &Arc<Endpoint<Backend>>| {
        format!("{} {}", endpoint.key().as_str(), endpoint.value().served.swap(0, Ordering::Relaxed))
    };
    println!("{what}: {}", backends.endpoints().iter().map(served).collect::<Vec<_>>().join(", "));
}
