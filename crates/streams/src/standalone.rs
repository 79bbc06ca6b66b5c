//! `tidegate stream`: runs streams without a gateway until they end or a signal stops them.

use std::pin::pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tidegate_supervise::Scope;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::error::StreamError;
use super::gateway_access::GatewayAccess;
use super::progress::{ProgressReporter, REPORT_INTERVAL};
use super::status_table::StatusTable;
use super::stream_manager::{RestartMode, StreamManager};
use tidegate_config::{Config, escape::escaped, stream::StreamConfig};

/// Exit code: the stream ended, but some records were skipped or dead-lettered.
const INCOMPLETE: u8 = 3;

type StreamResults = Vec<(String, Result<(), StreamError>)>;

/// Runs the streams of a file (`config`) or of the command line until they end or a signal stops them.
///
/// # Errors
/// If the streams cannot be started.
pub fn run(streams: &[StreamConfig], config: Option<&Config>, is_quiet: bool) -> anyhow::Result<ExitCode> {
    for warning in
        config.iter().flat_map(|config| &config.warnings).filter(|warning| warning.key.starts_with("streams"))
    {
        tracing::warn!(%warning, "configuration");
    }
    let access = config.map_or_else(GatewayAccess::none, GatewayAccess::remote);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let control = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    control.block_on(async {
        // Install the handlers before the process becomes visible to others.
        let signals = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let mut manager = StreamManager::start(streams, &access, RestartMode::Never, threads, Scope::root("streams"))?;
        let status_table = manager.status_table().clone();
        let results = wait_for_end(&mut manager, &status_table, signals, is_quiet).await;
        Ok(exit_code(results, &status_table))
    })
}

/// Waits for the end of all streams. `None` if a second signal stops them.
async fn wait_for_end(
    manager: &mut StreamManager,
    status_table: &StatusTable,
    signals: (Signal, Signal),
    is_quiet: bool,
) -> Option<StreamResults> {
    let (mut interrupt, mut terminate) = signals;
    let mut progress = ProgressReporter::new(status_table, is_quiet);
    let mut ended = pin!(manager.ended());
    let mut ticks = tokio::time::interval(REPORT_INTERVAL);
    let mut signal_counter = SignalCounter::default();
    let results = loop {
        tokio::select! {
            results = &mut ended => break Some(results),
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = ticks.tick() => {
                progress.report();
                continue;
            }
        }
        match signal_counter.on_signal(Instant::now()) {
            SignalAction::Stop => {
                tracing::info!("stopping: waiting for deliveries in flight; a second signal stops now");
                status_table.stop();
            }
            SignalAction::Repeated => {}
            SignalAction::StopNow => break None,
        }
    };
    progress.end();
    results
}

/// Counts signals.
#[derive(Default)]
struct SignalCounter {
    first: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum SignalAction {
    Stop,
    /// A repetition of the first signal: `timeout` sends it to the process and to its group, and so do many parents at Ctrl-C.
    Repeated,
    StopNow,
}

/// A second signal within this time is a repetition.
const REPEAT_MAX: Duration = Duration::from_millis(200);

impl SignalCounter {
    fn on_signal(&mut self, now: Instant) -> SignalAction {
        match self.first {
            None => {
                self.first = Some(now);
                SignalAction::Stop
            }
            Some(first) if now.saturating_duration_since(first) < REPEAT_MAX => SignalAction::Repeated,
            Some(_) => SignalAction::StopNow,
        }
    }
}

fn exit_code(results: Option<StreamResults>, status_table: &StatusTable) -> ExitCode {
    let Some(results) = results else {
        eprintln!("tidegate: {}", StreamError::Aborted);
        return ExitCode::FAILURE;
    };
    let mut code = ExitCode::SUCCESS;
    let left = |snapshot: &super::StreamSnapshot| snapshot.dead_lettered + snapshot.skipped;
    if status_table.snapshots().iter().any(|snapshot| left(snapshot) > 0) {
        code = ExitCode::from(INCOMPLETE);
    }
    for (name, error) in results.into_iter().filter_map(|(name, result)| Some((name, result.err()?))) {
        eprintln!("{}", last_line(&name, &error));
        code = ExitCode::FAILURE;
    }
    code
}

/// The error of a failed stream for the terminal. A sink may have sent arbitrary bytes.
fn last_line(name: &str, error: &StreamError) -> String {
    format!("tidegate: stream {}: {}", escaped(name), escaped(&error.error_chain()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_of_a_sink_are_escaped() {
        let error = StreamError::SinkGone("422: \u{1b}]0;owned\u{7}\u{9b}2J\nok".to_owned());
        let line = last_line("signal_counter", &error);
        assert!(
            line.starts_with("tidegate: stream signal_counter: 422: \\u{1b}]0;owned\\u{7}\\u{9b}2J\\nok"),
            "{line:?}"
        );
    }

    #[test]
    fn repeated_signal_counts_once() {
        let (mut signal_counter, now) = (SignalCounter::default(), Instant::now());
        let mut after = |ms| signal_counter.on_signal(now + Duration::from_millis(ms));
        assert_eq!(
            [after(0), after(1), after(199), after(200)],
            [SignalAction::Stop, SignalAction::Repeated, SignalAction::Repeated, SignalAction::StopNow]
        );
    }
}
