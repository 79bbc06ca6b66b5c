//! `tidegate stream`: streams without a gateway, until they end or a signal ends them.

use std::pin::pin;
use std::process::ExitCode;

use tidegate_supervise::Scope;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::board::Board;
use super::door::Doors;
use super::error::StreamError;
use super::fleet::{Fleet, Restart};
use super::progress::{EVERY, Progress};
use crate::cli;
use crate::log;

/// It came to its end, but not every record was done.
const INCOMPLETE: u8 = 3;

type Endings = Vec<(String, Result<(), StreamError>)>;

/// Runs what the command line asks for.
///
/// # Errors
/// When it cannot be read, or nothing can be started.
pub fn main(args: &cli::Stream) -> anyhow::Result<ExitCode> {
    let cli::Streams { streams, config, log } = args.streams().map_err(|text| anyhow::anyhow!("{text}"))?;
    log::init(&log)?;
    for warning in
        config.iter().flat_map(|config| &config.warnings).filter(|warning| warning.key.starts_with("streams"))
    {
        tracing::warn!(%warning, "configuration");
    }
    let doors = config.as_ref().map_or_else(Doors::none, Doors::outside);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let control = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    control.block_on(async {
        // Before anybody can see that the process is there.
        let signals = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let mut fleet = Fleet::start(&streams, &doors, Restart::Never, threads, Scope::root("streams"))?;
        let board = fleet.board().clone();
        let endings = watch(&mut fleet, &board, signals, args.quiet).await;
        Ok(verdict(endings, &board))
    })
}

/// Waits for the end of all. `None` if there was no time for it.
async fn watch(fleet: &mut Fleet, board: &Board, signals: (Signal, Signal), is_quiet: bool) -> Option<Endings> {
    let (mut interrupt, mut terminate) = signals;
    let mut progress = Progress::new(board, is_quiet);
    let mut ended = pin!(fleet.ended());
    let mut ticks = tokio::time::interval(EVERY);
    let mut is_stopping = false;
    let endings = loop {
        tokio::select! {
            endings = &mut ended => break Some(endings),
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = ticks.tick() => {
                progress.say();
                continue;
            }
        }
        if std::mem::replace(&mut is_stopping, true) {
            break None;
        }
        tracing::info!("stopping: what runs may end; a second signal stops now");
        board.stop();
    };
    progress.end();
    endings
}

fn verdict(endings: Option<Endings>, board: &Board) -> ExitCode {
    let Some(endings) = endings else {
        eprintln!("tidegate: {}", StreamError::Aborted);
        return ExitCode::FAILURE;
    };
    let mut code = ExitCode::SUCCESS;
    let left = |snapshot: &super::Snapshot| snapshot.dead_lettered + snapshot.skipped;
    if board.snapshots().iter().any(|snapshot| left(snapshot) > 0) {
        code = ExitCode::from(INCOMPLETE);
    }
    for (name, error) in endings.into_iter().filter_map(|(name, ending)| Some((name, ending.err()?))) {
        eprintln!("tidegate: stream {name}: {}", error.whole());
        code = ExitCode::FAILURE;
    }
    code
}
