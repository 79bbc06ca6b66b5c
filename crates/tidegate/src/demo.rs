//! `tidegate demo`: what the gateway does, on this machine, in one command.
//!
//! A Postgres in a temporary folder, a gateway before it, and the same clients once directly and once through the
//! gateway: the table shows what they got, and how many server connections it took. Everything is gone afterwards, also
//! after Ctrl-C.

mod load;
mod protocol;
mod stage;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli;
use load::{Load, Outcome};
use protocol::Protocol;
use stage::{GATEWAY_POOL, Stage};

/// A Postgres with more processes than this would be a demo of something else.
const DIRECT_CLIENTS_MAX: u32 = 1_000;

/// Which way the clients go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Direct,
    Gateway,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Gateway => "gateway",
        }
    }
}

/// One line of the table.
struct Line {
    protocol: Protocol,
    way: Way,
    outcome: Outcome,
    servers: u64,
}

/// Runs the demo to its end, or until Ctrl-C.
///
/// # Errors
/// What kept Postgres or the gateway from starting, or a client from being served.
pub fn run(demo: &cli::Demo) -> Result<()> {
    let (stop, stopped) = watch_signals()?;
    let direct = demo.clients <= DIRECT_CLIENTS_MAX;
    let stage = Stage::set(if direct { demo.clients } else { GATEWAY_POOL })?;
    println!("Postgres {} on port {}, Tidegate on port {}", stage.version()?, stage.postgres.port(), stage.port());
    println!("{} clients, {GATEWAY_POOL} server connections, one row by its key\n", demo.clients);
    if !direct {
        println!("Postgres alone would need {} processes: only the gateway is measured\n", demo.clients);
    }
    let ways = if direct { &[Way::Direct, Way::Gateway][..] } else { &[Way::Gateway] };
    let lines = measure_all(&stage, demo, ways, &stop)?;
    println!("{}\n", table(&lines));
    if stop.load(Ordering::Relaxed) {
        println!("Interrupted.");
        return stage.strike();
    }
    println!("Connect with:  psql {}", stage.url());
    println!("The console:   psql {}  (SHOW POOLS, SHOW HELP)", stage.console_url());
    if demo.keep {
        println!("\nBoth keep running. Ctrl-C stops them.");
        stopped.recv().context("wait for Ctrl-C")?;
    } else {
        println!("               while `tidegate demo --keep` runs");
    }
    stage.strike()
}

/// A flag that Ctrl-C or SIGTERM sets, and a channel that says so to who waits.
fn watch_signals() -> Result<(Arc<AtomicBool>, Receiver<()>)> {
    let (stop, (tell, told)) = (Arc::new(AtomicBool::new(false)), channel());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().context("watch for signals")?;
    let flag = Arc::clone(&stop);
    let watch = move || {
        // Where a signal cannot be watched for, it ends us in its own way.
        if runtime.block_on(next_signal()).is_ok() {
            flag.store(true, Ordering::Relaxed);
            // Nobody waits while the measurement runs.
            let _ = tell.send(());
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(watch).context("watch for signals")?;
    Ok((stop, told))
}

async fn next_signal() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

/// Every protocol on every way, in turn; what is done when the demo is interrupted.
fn measure_all(stage: &Stage, demo: &cli::Demo, ways: &[Way], stop: &AtomicBool) -> Result<Vec<Line>> {
    let cases = Protocol::ALL.iter().flat_map(|protocol| ways.iter().map(|way| (*protocol, *way)));
    let bar = ProgressBar::new(Protocol::ALL.len() as u64 * ways.len() as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").context("a template of ours")?);
    let mut lines = Vec::new();
    for (protocol, way) in cases {
        bar.set_message(format!("{}, {}", protocol.name(), way.name()));
        let line = measure(stage, demo, protocol, way, stop)?;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        lines.push(line);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(lines)
}

/// Runs one case on a thread and counts the server connections meanwhile.
fn measure(stage: &Stage, demo: &cli::Demo, protocol: Protocol, way: Way, stop: &AtomicBool) -> Result<Line> {
    let port = match way {
        Way::Direct => stage.postgres.port(),
        Way::Gateway => stage.port(),
    };
    let time = Duration::from_secs(u64::from(demo.seconds));
    let load = Load { port, protocol, clients: demo.clients, time };
    thread::scope(|scope| {
        let running = scope.spawn(|| load::run(&load, stop));
        let mut servers = 0;
        while !running.is_finished() {
            servers = servers.max(stage.server_connections()?);
            thread::sleep(Duration::from_millis(100));
        }
        let outcome = running.join().expect("a load that panics is a defect of the demo");
        Ok(Line { protocol, way, outcome: outcome.with_context(|| format!("the load, {}", way.name()))?, servers })
    })
}

fn table(lines: &[Line]) -> String {
    let head = format!(
        "{:<10}{:<10}{:>10}{:>10}{:>10}{:>20}{:>8}",
        "protocol", "way", "tps", "p50 ms", "p99 ms", "server connections", "errors"
    );
    let row = |Line { protocol, way, outcome, servers }: &Line| {
        format!(
            "{:<10}{:<10}{:>10.0}{:>10.2}{:>10.2}{servers:>20}{:>8}",
            protocol.name(),
            way.name(),
            outcome.tps(),
            outcome.percentile_ms(0.5),
            outcome.percentile_ms(0.99),
            outcome.errors,
        )
    };
    std::iter::once(head).chain(lines.iter().map(row)).collect::<Vec<_>>().join("\n")
}
