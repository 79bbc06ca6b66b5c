//! How far a long read is, on standard error, where somebody sees it.

use std::io::{IsTerminal, stderr, stdout};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How many entries are read between two looks at the clock.
const ENTRIES: u32 = 4096;
const INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct Progress {
    bar: Option<ProgressBar>,
    entries: u32,
    shown: Instant,
}

impl Progress {
    /// Of a command that prints when it has read everything.
    pub(super) fn new() -> Self {
        Self::shown_if(stderr().is_terminal())
    }

    /// Of one that prints meanwhile: on a terminal the two would mix.
    pub(super) fn beside_output(to_file: bool) -> Self {
        Self::shown_if(stderr().is_terminal() && (to_file || !stdout().is_terminal()))
    }

    fn shown_if(shown: bool) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {bytes} of {total_bytes}, {eta} left");
        let bar = style.ok().filter(|_| shown).map(|style| ProgressBar::new(0).with_style(style));
        Self { bar, entries: 0, shown: Instant::now() }
    }

    /// One more entry was read; `progress` says how many bytes were, and how many there are.
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

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
