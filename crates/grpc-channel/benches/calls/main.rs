//! Calls end to end: null unary calls over loopback to three backend processes, by this channel and by tonic's balanced channel,
//! while backends are killed, stopped, drained and replaced.
//!
//! `cargo bench -p tidegate-grpc-channel --bench calls -- [--quick] [--json FILE] [--check]`

mod client;
mod server;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::{Calls, Client, Peer};
use server::Server;
use tidegate_figures::{Figure, FigureTarget, Options, median};

const BACKENDS: usize = 3;

/// Fault during the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Nothing,
    Killed,
    Stopped,
    Drained,
    Replaced,
}

const EVENTS: [(Event, &str); 5] = [
    (Event::Nothing, "nothing happens"),
    (Event::Killed, "one is killed"),
    (Event::Stopped, "one is stopped (blackhole)"),
    (Event::Drained, "one is drained"),
    (Event::Replaced, "all are replaced"),
];

fn main() -> ExitCode {
    if std::env::args().any(|arg| arg == "--serve") {
        server::serve();
        return ExitCode::SUCCESS;
    }
    let options = match Options::read(
        "Calls while servers start, stop and hang, compared with tonic's balance_channel.",
        false,
    ) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let (rounds, time) = if options.is_quick() { (1, Duration::from_millis(600)) } else { (5, Duration::from_secs(2)) };
    let mut figures = Vec::new();
    for (event, case) in EVENTS {
        let mut runs: Vec<(Peer, Calls, f64)> = Vec::new();
        for _ in 0..rounds {
            for peer in [Peer::Ours, Peer::OursOnce, Peer::Tonic] {
                let (calls, seconds) = measure(peer, event, time);
                runs.push((peer, calls, seconds));
            }
        }
        for peer in [Peer::Ours, Peer::OursOnce, Peer::Tonic] {
            let of_peer: Vec<_> = runs.iter().filter(|run| run.0 == peer).collect();
            figures.extend(figures_of(peer, event, case, &of_peer));
        }
    }
    options.finish("balance", &figures)
}

fn figures_of(peer: Peer, event: Event, case: &str, runs: &[&(Peer, Calls, f64)]) -> Vec<Figure> {
    let figure = |metric: &str, value, unit, target| Figure {
        subject: peer.name().to_owned(),
        case: case.to_owned(),
        metric: metric.to_owned(),
        value,
        unit,
        target,
    };
    let rates = runs.iter().map(|(_, calls, seconds)| calls.good_us.len() as f64 / seconds).collect();
    let slowest = runs.iter().map(|(_, calls, _)| percentile(&calls.good_us, 0.99)).collect();
    let failed: usize = runs.iter().flat_map(|(_, calls, _)| calls.failed.values()).sum();
    for (error, times) in runs.iter().flat_map(|(_, calls, _)| &calls.failed) {
        println!("{case}, {}: {times} calls failed: {error}", peer.name());
    }
    // Calls to a stopped server fail or wait, so that case has no target.
    let has_target = peer == Peer::Ours && event != Event::Stopped;
    vec![
        figure("calls", median(rates), "/s", None),
        figure("p99", median(slowest), "us", None),
        figure("failed, all rounds", failed as f64, "calls", has_target.then_some(FigureTarget::AtMost(0.0))),
    ]
}

fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN)
}

fn measure(peer: Peer, event: Event, time: Duration) -> (Calls, f64) {
    let mut servers: Vec<Server> = (0..BACKENDS).map(|_| Server::start()).collect();
    let addresses: Vec<SocketAddr> = servers.iter().map(|server| server.address).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime is built").block_on(async {
        let client = Client::new(peer, &addresses).await;
        // Warm-up, not counted: opens all connections.
        run(&client, Event::Nothing, &mut Vec::new(), time / 4).await;
        run(&client, event, &mut servers, time).await
    })
}

async fn run(client: &Client, event: Event, servers: &mut Vec<Server>, time: Duration) -> (Calls, f64) {
    let stop = Arc::new(AtomicBool::new(false));
    let start = std::time::Instant::now();
    let tasks = client.load(&stop);
    tokio::time::sleep(time / 4).await;
    inject(client, event, servers, time).await;
    tokio::time::sleep(time.saturating_sub(start.elapsed())).await;
    stop.store(true, Ordering::Relaxed);
    let mut all = Calls::default();
    for calls in tasks.join_all().await {
        all.good_us.extend(calls.good_us);
        for (error, times) in calls.failed {
            *all.failed.entry(error).or_default() += times;
        }
    }
    (all, start.elapsed().as_secs_f64())
}

async fn inject(client: &Client, event: Event, servers: &mut Vec<Server>, time: Duration) {
    match event {
        Event::Nothing => (),
        Event::Killed => servers[0].kill(),
        Event::Stopped => servers[0].pause(),
        Event::Drained => servers[0].drain(),
        Event::Replaced => {
            for place in 0..BACKENDS {
                let new = Server::start();
                client.change(&[servers[place].address], &[new.address]).await;
                // As an orchestrator does: removed from the name service first, and stopped later.
                tokio::time::sleep(time / 10).await;
                let mut old = std::mem::replace(&mut servers[place], new);
                old.drain();
                servers.push(old);
            }
        }
    }
}
