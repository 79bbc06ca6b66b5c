//! Progress bar on standard error for commands that read for a long time.

use std::io::{IsTerminal, stderr, stdout};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Number of entries between two reads of the clock.
const ENTRIES: u32 = 4096;
const INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct ReadProgress {
    bar: Option<ProgressBar>,
    entries: u32,
    shown: Instant,
}

impl ReadProgress {
    /// Progress of a command that prints after it has read all entries.
    pub(super) fn new() -> Self {
        Self::shown_if(stderr().is_terminal())
    }

    /// Progress of a command that prints while it reads: the bar is not shown where it would mix with the output.
    pub(super) fn beside_output(to_file: bool) -> Self {
        Self::shown_if(stderr().is_terminal() && (to_file || !stdout().is_terminal()))
    }

    fn shown_if(shown: bool) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {bytes} of {total_bytes}, {eta} left");
        let bar = style.ok().filter(|_| shown).map(|style| ProgressBar::new(0).with_style(style));
        Self { bar, entries: 0, shown: Instant::now() }
    }

    /// Counts one entry. `progress` returns the bytes read and the total.
    pub(super) fn step(&mut self, progress: impl FnOnce() -> (u64, u64)) {
        let Some(bar) = &self.bar else { return };
        self.entries += 1;
        if self.entries < ENTRIES {
            return;
        }
        self.entries = 0;
        if self.shown.elapsed() >= INTERVAL {
            let (read, bytes) = progress();
            bar.set_length(bytes);
            bar.set_position(read);
            self.shown = Instant::now();
        }
    }
}

impl Drop for ReadProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
