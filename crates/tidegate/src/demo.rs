//! `tidegate demo`: measures the gateway on this machine with one command.
//!
//! Starts a Postgres in a temporary folder and a gateway before it, and runs the same clients once directly and once through the
//! gateway. The table shows throughput, latency and the number of server connections. Everything is removed at the end, also
//! after Ctrl-C.

mod environment;
mod load;
mod protocol;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli;
use environment::{DemoEnvironment, GATEWAY_POOL};
use load::{LoadResult, LoadSpec};
use protocol::QueryProtocol;

/// Limit of processes for a direct measurement.
const DIRECT_CLIENTS_MAX: u32 = 1_000;

/// Whether clients connect directly or through the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DemoConnection {
    Direct,
    Gateway,
}

impl DemoConnection {
    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Gateway => "gateway",
        }
    }
}

/// A row of the table.
struct DemoRow {
    protocol: QueryProtocol,
    connection: DemoConnection,
    result: LoadResult,
    servers: u64,
}

/// Runs the demo to its end, or until Ctrl-C.
///
/// # Errors
/// If Postgres or the gateway cannot start, or a client gets an error.
pub fn run(demo: &cli::DemoArgs) -> Result<()> {
    let (stop, stopped) = watch_signals()?;
    let direct = demo.clients <= DIRECT_CLIENTS_MAX;
    let environment = DemoEnvironment::start(if direct { demo.clients } else { GATEWAY_POOL })?;
    println!(
        "Postgres {} on port {}, Tidegate on port {}",
        environment.version()?,
        environment.postgres.port(),
        environment.port()
    );
    println!("{} clients, {GATEWAY_POOL} server connections, one row by its key\n", demo.clients);
    if !direct {
        println!("Postgres alone would need {} processes; measuring the gateway only\n", demo.clients);
    }
    let connections =
        if direct { &[DemoConnection::Direct, DemoConnection::Gateway][..] } else { &[DemoConnection::Gateway] };
    let rows = measure_all(&environment, demo, connections, &stop)?;
    println!("{}\n", table(&rows));
    if stop.load(Ordering::Relaxed) {
        println!("Interrupted.");
        return environment.stop();
    }
    println!("Connect with:  psql {}", environment.url());
    println!("The console:   psql {}  (SHOW POOLS, SHOW HELP)", environment.console_url());
    if demo.keep {
        println!("\nBoth keep running. Ctrl-C stops them.");
        stopped.recv().context("wait for Ctrl-C")?;
    } else {
        println!("               while `tidegate demo --keep` runs");
    }
    environment.stop()
}

/// Returns a flag that Ctrl-C or SIGTERM sets, and a channel that is notified.
fn watch_signals() -> Result<(Arc<AtomicBool>, Receiver<()>)> {
    let (stop, (notify, notified)) = (Arc::new(AtomicBool::new(false)), channel());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().context("watch for signals")?;
    let flag = Arc::clone(&stop);
    let watch = move || {
        // The signal terminates a process without a handler.
        if runtime.block_on(next_signal()).is_ok() {
            flag.store(true, Ordering::Relaxed);
            // No receiver waits during a measurement.
            let _ = notify.send(());
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(watch).context("watch for signals")?;
    Ok((stop, notified))
}

async fn next_signal() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

/// Measures every protocol and connection. Returns the rows so far when interrupted.
fn measure_all(
    environment: &DemoEnvironment,
    demo: &cli::DemoArgs,
    connections: &[DemoConnection],
    stop: &AtomicBool,
) -> Result<Vec<DemoRow>> {
    let cases =
        QueryProtocol::ALL.iter().flat_map(|protocol| connections.iter().map(|connection| (*protocol, *connection)));
    let bar = ProgressBar::new(QueryProtocol::ALL.len() as u64 * connections.len() as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").context("valid progress template")?);
    let mut rows = Vec::new();
    for (protocol, connection) in cases {
        bar.set_message(format!("{}, {}", protocol.name(), connection.name()));
        let row = measure(environment, demo, protocol, connection, stop)?;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        rows.push(row);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Runs one case on a thread and counts the server connections meanwhile.
fn measure(
    environment: &DemoEnvironment,
    demo: &cli::DemoArgs,
    protocol: QueryProtocol,
    connection: DemoConnection,
    stop: &AtomicBool,
) -> Result<DemoRow> {
    let port = match connection {
        DemoConnection::Direct => environment.postgres.port(),
        DemoConnection::Gateway => environment.port(),
    };
    let time = Duration::from_secs(u64::from(demo.seconds));
    let load = LoadSpec { port, protocol, clients: demo.clients, time };
    thread::scope(|scope| {
        let running = scope.spawn(|| load::run(&load, stop));
        let mut servers = 0;
        while !running.is_finished() {
            servers = servers.max(environment.server_connections()?);
            thread::sleep(Duration::from_millis(100));
        }
        let result = running.join().expect("a load thread does not panic");
        Ok(DemoRow {
            protocol,
            connection,
            result: result.with_context(|| format!("the load, {}", connection.name()))?,
            servers,
        })
    })
}

fn table(rows: &[DemoRow]) -> String {
    let head = format!(
        "{:<10}{:<10}{:>10}{:>10}{:>10}{:>20}{:>8}",
        "protocol", "connection", "tps", "p50 ms", "p99 ms", "server connections", "errors"
    );
    let row = |DemoRow { protocol, connection, result, servers }: &DemoRow| {
        format!(
            "{:<10}{:<10}{:>10.0}{:>10.2}{:>10.2}{servers:>20}{:>8}",
            protocol.name(),
            connection.name(),
            result.tps(),
            result.percentile_ms(0.5),
            result.percentile_ms(0.99),
            result.errors,
        )
    };
    std::iter::once(head).chain(rows.iter().map(row)).collect::<Vec<_>>().join("\n")
}
