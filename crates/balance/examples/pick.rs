//! Picks from a changing set without a transport. The endpoints of this example are counters.
//!
//! `cargo run -p tidegate-balance --example pick`

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use tidegate_balance::{
    Balancer, BalancerSettings, CallOutcome, Endpoint, EndpointSpec, InitialState, LeastRequest, Pick, PickError,
    RoundRobin,
};

/// The value of an endpoint: in a program, a pool or a client; here, counters.
#[derive(Default)]
struct Backend {
    served: AtomicUsize,
    broken: AtomicBool,
}

type Backends = Balancer<Backend>;

fn main() -> Result<(), Box<dyn Error>> {
    let now = Instant::now();
    // Ready from the start. With `InitialState::Idle`, an endpoint is picked after `Balancer::mark_ready`.
    let settings = BalancerSettings { initial_state: InitialState::Ready, ..BalancerSettings::default() };
    let backends = Backends::new(RoundRobin, settings, fastrand::u64(..), now);
    backends.update(now, ["a:1", "b:1", "c:1"].map(EndpointSpec::new), |_, _| Backend::default());

    // Any thread picks, without a lock.
    serve(&backends, 3000)?;
    print("three, in turn", &backends);

    // An endpoint fails: its calls are retried on others, and it is not picked until it is marked as ready.
    let broken = backends.endpoints().remove(1);
    broken.value().broken.store(true, Ordering::Relaxed);
    serve(&backends, 3000)?;
    backends.mark_lost(broken.id(), Arc::new(io::Error::from(io::ErrorKind::ConnectionReset)));
    serve(&backends, 3000)?;
    print("b is lost", &backends);

    // A new set: kept endpoints keep their counts, and removed ones can be closed after their last lease.
    let lease = backends.pick(&Pick::new().filter(&|endpoint| endpoint.key().as_str() == "a:1"))?;
    backends.update(now, ["c:1", "d:1"].map(EndpointSpec::new), |_, _| Backend::default());
    for gone in backends.take_departed() {
        // Async code awaits `gone.drained()`, and then closes the value.
        println!("{} was removed, with {} calls in flight", gone.key().as_str(), gone.load().outstanding());
    }
    lease.finish(Some(Instant::now()), CallOutcome::Success);

    // Another policy, without interrupting picks.
    backends.set_policy(Arc::new(LeastRequest::default()));
    serve(&backends, 3000)?;
    print("c and d, by load", &backends);
    Ok(())
}

/// Calls on two threads.
fn serve(backends: &Backends, calls: usize) -> Result<(), PickError> {
    thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(|| (0..calls / 2).try_for_each(|_| call(backends))));
        threads.into_iter().try_for_each(|thread| thread.join().expect("a call does not panic"))
    })
}

/// A call, tried once on each backend until one serves it.
fn call(backends: &Backends) -> Result<(), PickError> {
    let mut tried = Vec::new();
    loop {
        let lease = backends.pick(&Pick::new().at(Instant::now()).tried(&tried))?;
        if !lease.broken.load(Ordering::Relaxed) {
            lease.served.fetch_add(1, Ordering::Relaxed);
            lease.finish(Some(Instant::now()), CallOutcome::Success);
            return Ok(());
        }
        tried.push(lease.endpoint().id());
        lease.finish(Some(Instant::now()), CallOutcome::Failure);
    }
}

fn print(title: &str, backends: &Backends) {
    let served = |endpoint: &Arc<Endpoint<Backend>>| {
        format!("{} {}", endpoint.key().as_str(), endpoint.value().served.swap(0, Ordering::Relaxed))
    };
    println!("{title}: {}", backends.endpoints().iter().map(served).collect::<Vec<_>>().join(", "));
}
