//! `tidegate stream`: streams without a gateway, until they end or a signal ends them.

use std::pin::pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tidegate_supervise::Scope;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::board::Board;
use super::door::Doors;
use super::error::StreamError;
use super::fleet::{Fleet, Restart};
use super::progress::{EVERY, Progress};
use tidegate_config::{Config, escape::escaped, stream::Stream};

/// It came to its end, but not every record was done.
const INCOMPLETE: u8 = 3;

type Endings = Vec<(String, Result<(), StreamError>)>;

/// Runs streams of a file (`config`) or of the command line until they end or a signal stops them.
///
/// # Errors
/// The reason why they cannot be started.
pub fn run(streams: &[Stream], config: Option<&Config>, is_quiet: bool) -> anyhow::Result<ExitCode> {
    for warning in
        config.iter().flat_map(|config| &config.warnings).filter(|warning| warning.key.starts_with("streams"))
    {
        tracing::warn!(%warning, "configuration");
    }
    let doors = config.map_or_else(Doors::none, Doors::outside);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let control = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    control.block_on(async {
        // Before anybody can see that the process is there.
        let signals = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let mut fleet = Fleet::start(streams, &doors, Restart::Never, threads, Scope::root("streams"))?;
        let board = fleet.board().clone();
        let endings = watch(&mut fleet, &board, signals, is_quiet).await;
        Ok(verdict(endings, &board))
    })
}

/// Waits for the end of all. `None` if there was no time for it.
async fn watch(fleet: &mut Fleet, board: &Board, signals: (Signal, Signal), is_quiet: bool) -> Option<Endings> {
    let (mut interrupt, mut terminate) = signals;
    let mut progress = Progress::new(board, is_quiet);
    let mut ended = pin!(fleet.ended());
    let mut ticks = tokio::time::interval(EVERY);
    let mut orders = Orders::default();
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
        match orders.hear(Instant::now()) {
            Order::Stop => {
                tracing::info!("stopping: what runs may end; a second signal stops now");
                board.stop();
            }
            Order::Echo => {}
            Order::StopNow => break None,
        }
    };
    progress.end();
    endings
}

/// The signals that were heard.
#[derive(Default)]
struct Orders {
    first: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum Order {
    Stop,
    /// The same once more: `timeout` sends its signal to the process and to its group, and so does many a parent at a Ctrl-C.
    Echo,
    StopNow,
}

/// Nobody asks twice in less.
const ECHO: Duration = Duration::from_millis(200);

impl Orders {
    fn hear(&mut self, now: Instant) -> Order {
        match self.first {
            None => {
                self.first = Some(now);
                Order::Stop
            }
            Some(first) if now.saturating_duration_since(first) < ECHO => Order::Echo,
            Some(_) => Order::StopNow,
        }
    }
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
        eprintln!("{}", last_line(&name, &error));
        code = ExitCode::FAILURE;
    }
    code
}

/// What is left to say of a stream that has failed. The sink may have sent any bytes with its refusal.
fn last_line(name: &str, error: &StreamError) -> String {
    format!("tidegate: stream {}: {}", escaped(name), escaped(&error.whole()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_cannot_send_escape_sequences_to_the_terminal() {
        let error = StreamError::SinkGone("422: \u{1b}]0;owned\u{7}\u{9b}2J\nok".to_owned());
        let line = last_line("orders", &error);
        assert!(line.starts_with("tidegate: stream orders: 422: \\u{1b}]0;owned\\u{7}\\u{9b}2J\\nok"), "{line:?}");
    }

    #[test]
    fn a_signal_that_comes_twice_is_one_and_a_later_one_is_another() {
        let (mut orders, now) = (Orders::default(), Instant::now());
        let mut after = |ms| orders.hear(now + Duration::from_millis(ms));
        assert_eq!(
            [after(0), after(1), after(199), after(200)],
            [Order::Stop, Order::Echo, Order::Echo, Order::StopNow]
        );
    }
}
