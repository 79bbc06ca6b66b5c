//! `tidegate demo`: measures the gateway on this machine with one command.
//!
//! Starts a Postgres in a temporary folder and a gateway before it, and runs the same clients directly and through the gateway,
//! in turns, so that both meet the same state of the machine. The table shows throughput, latency and the number of server
//! connections. Everything is removed at the end, also after Ctrl-C.

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
use protocol::Workload;

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
    workload: Workload,
    connection: DemoConnection,
    result: LoadResult,
    servers: u64,
}

/// Measurements of each row, in turns with the others of its workload.
const ROUNDS: u32 = 3;

/// Runs the demo to its end, or until Ctrl-C.
///
/// # Errors
/// If Postgres or the gateway cannot start, or a client gets an error.
pub fn run(demo: &cli::DemoArgs) -> Result<()> {
    let (stop, stopped) = watch_signals()?;
    let direct = demo.clients <= DIRECT_CLIENTS_MAX;
    let environment = DemoEnvironment::start(if direct { demo.clients } else { GATEWAY_POOL }, demo.keep)?;
    println!(
        "Postgres {} on port {}, Tidegate on port {}; {} clients read rows by key\n",
        environment.version()?,
        environment.postgres.port(),
        environment.port(),
        demo.clients
    );
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
    println!("{}\n", explanation(demo.clients));
    if demo.keep {
        println!("Connect with:  psql {}", environment.url());
        println!("The console:   psql {}  (SHOW POOLS, SHOW HELP)", environment.console_url());
        if let Some(url) = environment.shape_url() {
            println!("A live query:  curl -i '{url}'");
        }
        println!("\nBoth keep running. Ctrl-C stops them.");
        stopped.recv().context("wait for Ctrl-C")?;
        return environment.stop();
    }
    environment.stop()?;
    println!("Both are stopped. `tidegate demo --keep` leaves them running for psql.");
    Ok(())
}

/// The explanation below the table.
fn explanation(clients: u32) -> String {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    format!(
        "What a pooler is for: {clients} clients on {GATEWAY_POOL} server connections, cheap connects.\n\
         Load, Postgres and gateway share {}, so the gateway's work costs some tps.",
        match cores {
            1 => "1 core".to_owned(),
            cores => format!("{cores} cores"),
        }
    )
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

/// Measures every workload and connection. Returns the complete workloads so far when interrupted.
fn measure_all(
    environment: &DemoEnvironment,
    demo: &cli::DemoArgs,
    connections: &[DemoConnection],
    stop: &AtomicBool,
) -> Result<Vec<DemoRow>> {
    let bar = ProgressBar::new(u64::from(ROUNDS) * (Workload::ALL.len() * connections.len()) as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").context("valid progress template")?);
    let mut rows = Vec::new();
    for workload in Workload::ALL {
        let mut measured: Vec<DemoRow> = Vec::new();
        for round in 0..ROUNDS {
            // The second round begins with the other one.
            let order = connections.iter().cycle().skip(round as usize % connections.len()).take(connections.len());
            for connection in order {
                bar.set_message(format!("{}, {}", workload.name(), connection.name()));
                let row = measure(environment, demo, workload, *connection, stop)?;
                match measured.iter_mut().find(|known| known.connection == *connection) {
                    Some(known) => {
                        known.result.append(row.result);
                        known.servers = known.servers.max(row.servers);
                    }
                    None => measured.push(row),
                }
                if stop.load(Ordering::Relaxed) {
                    bar.finish_and_clear();
                    return Ok(rows);
                }
                bar.inc(1);
            }
        }
        rows.extend(measured);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Runs one case on a thread and counts the server connections meanwhile.
fn measure(
    environment: &DemoEnvironment,
    demo: &cli::DemoArgs,
    workload: Workload,
    connection: DemoConnection,
    stop: &AtomicBool,
) -> Result<DemoRow> {
    let port = match connection {
        DemoConnection::Direct => environment.postgres.port(),
        DemoConnection::Gateway => environment.port(),
    };
    let time = Duration::from_secs(u64::from(demo.seconds)) / ROUNDS;
    let load = LoadSpec { port, workload, clients: demo.clients, time };
    thread::scope(|scope| {
        let running = scope.spawn(|| load::run(&load, stop));
        let mut servers = 0;
        while !running.is_finished() {
            servers = servers.max(environment.server_connections()?);
            thread::sleep(Duration::from_millis(100));
        }
        let result = running.join().expect("a load thread does not panic");
        Ok(DemoRow {
            workload,
            connection,
            result: result.with_context(|| format!("the load, {}", connection.name()))?,
            servers,
        })
    })
}

/// Formats the table within 80 columns.
fn table(rows: &[DemoRow]) -> String {
    let head = format!(
        "{:<19}{:<9}{:>9}{:>10}{:>10}{:>14}{:>8}",
        "workload", "", "tps", "p50 ms", "p99 ms", "server conns", "errors"
    );
    let row = |DemoRow { workload, connection, result, servers }: &DemoRow| {
        format!(
            "{:<19}{:<9}{:>9.0}{:>10.2}{:>10.2}{servers:>14}{:>8}",
            workload.name(),
            connection.name(),
            result.tps(),
            result.percentile_ms(0.5),
            result.percentile_ms(0.99),
            result.errors,
        )
    };
    std::iter::once(head).chain(rows.iter().map(row)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_fits_into_80_columns() {
        let row =
            |workload, connection| DemoRow { workload, connection, result: LoadResult::default(), servers: 1_000 };
        let rows = [row(Workload::Kept, DemoConnection::Direct), row(Workload::Connects, DemoConnection::Gateway)];
        let text = format!("{}\n{}", table(&rows), explanation(1_000));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
