//! Reports progress on standard error: a status line on a terminal, otherwise log lines.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use super::{copy_progress::CopyProgress, snapshot::StreamSnapshot, status_table::StatusTable};
use tidegate_config::escape::escaped;

/// Reports the progress of streams.
pub(super) struct ProgressReporter {
    status_table: StatusTable,
    output: ProgressOutput,
    logged_at: Instant,
    logged: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProgressOutput {
    Line,
    Log,
    None,
}

/// Interval of the status line.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_millis(500);
const LOG_INTERVAL: Duration = Duration::from_secs(10);

impl ProgressReporter {
    /// The terminal may be shared: commands write to the same standard error, and records to standard output. A status line
    /// would be mixed with their text.
    pub(super) fn new(status_table: &StatusTable, is_quiet: bool) -> Self {
        let is_shared = |snapshot: &StreamSnapshot| {
            snapshot.to.starts_with("command:") || (snapshot.to == "-" && std::io::stdout().is_terminal())
        };
        let has_terminal = std::io::stderr().is_terminal() && !status_table.snapshots().iter().any(is_shared);
        let output = match (is_quiet, has_terminal) {
            (true, _) => ProgressOutput::None,
            (false, true) => ProgressOutput::Line,
            (false, false) => ProgressOutput::Log,
        };
        Self { status_table: status_table.clone(), output, logged_at: Instant::now(), logged: 0 }
    }

    pub(super) fn report(&mut self) {
        match self.output {
            ProgressOutput::None => {}
            ProgressOutput::Line => {
                let line = line(&self.status_table.snapshots());
                let _ = write!(std::io::stderr(), "{}", status_line(&line));
            }
            ProgressOutput::Log if self.logged_at.elapsed() >= LOG_INTERVAL => self.log(),
            ProgressOutput::Log => {}
        }
    }

    /// Clears the status line.
    pub(super) fn end(&self) {
        if self.output == ProgressOutput::Line {
            let _ = write!(std::io::stderr(), "\x1b[2K");
        }
    }

    /// Logs nothing if nothing was done since the last call.
    fn log(&mut self) {
        self.logged_at = Instant::now();
        let snapshots = self.status_table.snapshots();
        let done = snapshots.iter().map(|snapshot| snapshot.done + snapshot.retried).sum();
        if std::mem::replace(&mut self.logged, done) == done {
            return;
        }
        for StreamSnapshot { name, done, rate, lag, pending, retried, dead_lettered, last_error, .. } in snapshots {
            let lag = lag.map(tracing::field::display);
            tracing::info!(stream = name, done, rate, lag, pending, retried, dead_lettered, last_error, "progress");
        }
    }
}

/// Replaces the previous status line. Ends at the start of the line, so that other output overwrites it. Text beyond the width of
/// the terminal is cut off (DECAWM), because it would wrap and remain.
fn status_line(line: &str) -> String {
    format!("\x1b[2K\x1b[?7l{line}\x1b[?7h\r")
}

/// `orders: 1,200/s, done 34,567, lag 89, pending 12, retries 3`.
fn line(snapshots: &[StreamSnapshot]) -> String {
    let sum = |of: fn(&StreamSnapshot) -> u64| snapshots.iter().map(of).sum::<u64>();
    let name = match snapshots {
        [one] => format!("{} {}", escaped(&one.name), one.state.name()),
        several => format!("{} streams", several.len()),
    };
    let lags: Option<u64> = snapshots.iter().map(|snapshot| snapshot.lag).sum();
    let mut line = format!("{name}: {}/s, done {}", grouped(sum(|one| one.rate)), grouped(sum(|one| one.done)));
    let mut add = |what: &str, number: Option<u64>| {
        if let Some(number) = number {
            line.push_str(&format!(", {what} {}", grouped(number)));
        }
    };
    let some = |number: u64| (number > 0).then_some(number);
    add("lag", lags);
    add("pending", Some(sum(|one| one.pending as u64)));
    add("retries", Some(sum(|one| one.retried)));
    add("dead letters", some(sum(|one| one.dead_lettered)));
    add("skipped", some(sum(|one| one.skipped)));
    add("parked", some(sum(|one| one.parked as u64)));
    snapshots.iter().filter_map(|one| one.copy.as_ref()).for_each(|copy| line.push_str(&copy_text(copy)));
    line
}

/// `, copying public.orders (table 1 of 2): 1,200 rows, 5 MiB, 40 %, 12s left`.
fn copy_text(copy: &CopyProgress) -> String {
    let CopyProgress { tables_done, tables, table, rows, bytes, percent, left } = copy;
    let (number, mib) = ((tables_done + 1).min(*tables), bytes >> 20);
    let table = escaped(table);
    let mut text = format!(", copying {table} (table {number} of {tables}): {} rows, {mib} MiB", grouped(*rows));
    if let Some(percent) = percent {
        text.push_str(&format!(", {percent} %"));
    }
    if let Some(left) = left {
        text.push_str(&format!(", {}s left", left.as_secs()));
    }
    text
}

/// `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::StreamState;
    use super::*;

    fn snapshot(name: &str, done: u64) -> StreamSnapshot {
        StreamSnapshot {
            name: name.to_owned(),
            from: "in".to_owned(),
            to: "-".to_owned(),
            state: StreamState::Running,
            done,
            rate: 1_200,
            lag: Some(89),
            pending: 12,
            in_flight: 5,
            oldest: None,
            retried: 3,
            dead_lettered: 0,
            skipped: 0,
            parked: 0,
            gaps: 0,
            copy: None,
            restarts: 0,
            last_error: String::new(),
            capture: None,
        }
    }

    #[test]
    fn digits_are_grouped() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn line_has_rate_lag_and_pending() {
        let one = snapshot("orders", 34_567);
        let expected = "orders running: 1,200/s, done 34,567, lag 89, pending 12, retries 3";
        assert_eq!(line(std::slice::from_ref(&one)), expected);
        // An unknown lag and zero counts are left out.
        let unknown = StreamSnapshot { lag: None, retried: 0, dead_lettered: 4, skipped: 5, parked: 6_000, ..one };
        let expected =
            "orders running: 1,200/s, done 34,567, pending 12, retries 0, dead letters 4, skipped 5, parked 6,000";
        assert_eq!(line(&[unknown]), expected);
    }

    #[test]
    fn line_has_the_copy_of_tables() {
        let (table, left) = ("public.t".to_owned(), Some(Duration::from_secs(12)));
        let copy =
            CopyProgress { tables_done: 1, tables: 2, table, rows: 1_200, bytes: 5 << 20, percent: Some(40), left };
        let line = line(&[StreamSnapshot { copy: Some(copy), ..snapshot("orders", 1) }]);
        assert!(line.ends_with(", copying public.t (table 2 of 2): 1,200 rows, 5 MiB, 40 %, 12s left"), "{line}");
    }

    #[test]
    fn status_line_does_not_wrap() {
        let status_line = status_line("orders: 1/s");
        let (before, after) = status_line.split_once("orders: 1/s").expect("the line");
        assert!(before.ends_with("\x1b[?7l") && after == "\x1b[?7h\r", "{status_line:?}");
    }

    #[test]
    fn multiple_streams_are_summed() {
        let both = [snapshot("a", 1), snapshot("b", 2)];
        assert_eq!(line(&both), "2 streams: 2,400/s, done 3, lag 178, pending 24, retries 6");
        let half_known = [snapshot("a", 1), StreamSnapshot { lag: None, ..snapshot("b", 2) }];
        assert!(!line(&half_known).contains("lag"));
    }
}
