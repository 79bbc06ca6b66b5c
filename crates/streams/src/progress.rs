//! How it goes, for whoever looks at the terminal: one line that is written anew; elsewhere a log line now and then.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use super::board::{Board, Snapshot};
use tidegate_config::escape::escaped;

/// Says how the streams of a board do.
pub(super) struct Progress {
    board: Board,
    form: Form,
    logged_at: Instant,
    logged: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Line,
    Log,
    None,
}

/// The line is written anew so often.
pub(super) const EVERY: Duration = Duration::from_millis(500);
const LOG_EVERY: Duration = Duration::from_secs(10);

impl Progress {
    pub(super) fn new(board: &Board, is_quiet: bool) -> Self {
        let form = match (is_quiet, std::io::stderr().is_terminal()) {
            (true, _) => Form::None,
            (false, true) => Form::Line,
            (false, false) => Form::Log,
        };
        Self { board: board.clone(), form, logged_at: Instant::now(), logged: 0 }
    }

    pub(super) fn say(&mut self) {
        match self.form {
            Form::None => {}
            Form::Line => {
                let line = line(&self.board.snapshots());
                let _ = write!(std::io::stderr(), "{}", drawn(&line));
            }
            Form::Log if self.logged_at.elapsed() >= LOG_EVERY => self.log(),
            Form::Log => {}
        }
    }

    /// Takes the line away.
    pub(super) fn end(&self) {
        if self.form == Form::Line {
            let _ = write!(std::io::stderr(), "\x1b[2K");
        }
    }

    /// Nothing if nothing was done since.
    fn log(&mut self) {
        self.logged_at = Instant::now();
        let snapshots = self.board.snapshots();
        let done = snapshots.iter().map(|snapshot| snapshot.done + snapshot.retried).sum();
        if std::mem::replace(&mut self.logged, done) == done {
            return;
        }
        for Snapshot { name, done, rate, lag, pending, retried, dead_lettered, last_error, .. } in snapshots {
            let lag = lag.map(tracing::field::display);
            tracing::info!(stream = name, done, rate, lag, pending, retried, dead_lettered, last_error, "progress");
        }
    }
}

/// Written over the one before. It ends at the beginning of the line, so that whatever else is written stands over it; what does
/// not fit into the terminal is cut off there (DECAWM), as it would go on in the next line and stay there.
fn drawn(line: &str) -> String {
    format!("\x1b[2K\x1b[?7l{line}\x1b[?7h\r")
}

/// `orders: 1,200/s, done 34,567, lag 89, pending 12, retries 3`.
fn line(snapshots: &[Snapshot]) -> String {
    let sum = |of: fn(&Snapshot) -> u64| snapshots.iter().map(of).sum::<u64>();
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
    line
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
    use super::super::board::State;
    use super::*;

    fn snapshot(name: &str, done: u64) -> Snapshot {
        Snapshot {
            name: name.to_owned(),
            from: "in".to_owned(),
            to: "-".to_owned(),
            state: State::Running,
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
            restarts: 0,
            last_error: String::new(),
        }
    }

    #[test]
    fn digits_stand_in_groups_of_three() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn the_line_tells_rate_lag_and_what_waits() {
        let one = snapshot("orders", 34_567);
        let told = "orders running: 1,200/s, done 34,567, lag 89, pending 12, retries 3";
        assert_eq!(line(std::slice::from_ref(&one)), told);
        // A lag that nobody knows is left out, and so is what there is none of.
        let unknown = Snapshot { lag: None, retried: 0, dead_lettered: 4, skipped: 5, parked: 6_000, ..one };
        let told =
            "orders running: 1,200/s, done 34,567, pending 12, retries 0, dead letters 4, skipped 5, parked 6,000";
        assert_eq!(line(&[unknown]), told);
    }

    #[test]
    fn a_line_stays_within_its_line_whatever_the_terminal_holds() {
        let drawn = drawn("orders: 1/s");
        let (before, after) = drawn.split_once("orders: 1/s").expect("the line");
        assert!(before.ends_with("\x1b[?7l") && after == "\x1b[?7h\r", "{drawn:?}");
    }

    #[test]
    fn several_streams_are_told_together() {
        let both = [snapshot("a", 1), snapshot("b", 2)];
        assert_eq!(line(&both), "2 streams: 2,400/s, done 3, lag 178, pending 24, retries 6");
        let half_known = [snapshot("a", 1), Snapshot { lag: None, ..snapshot("b", 2) }];
        assert!(!line(&half_known).contains("lag"));
    }
}
