//! Whether the disk takes what it is given, said once when it changes.

use std::{
    fmt,
    io::{self, Write as _},
    path::Path,
    time::Instant,
};

use crate::{
    sink::Trouble,
    sync::{Mutex, lock},
};

/// How the disk does.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum State {
    /// Records are written.
    Healthy,
    /// There is no room on the disk. Records stay in memory, and classes answer overload as configured, until there is.
    DiskFull {
        /// Since when.
        since: Instant,
        /// What the system says, and where.
        error: String,
    },
    /// The disk fails otherwise: the segment was given up, and a fresh one cannot be written either. The attempts go on.
    Failing {
        /// Since when.
        since: Instant,
        /// What the system says, and where.
        error: String,
    },
}

impl State {
    /// A word for tables and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::DiskFull { .. } => "disk full",
            Self::Failing { .. } => "failing",
        }
    }
}

/// Something that an operator wants to know. It is reported once, not for every attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The disk takes no more. Nothing is lost yet.
    Trouble(State),
    /// A segment was given up, and everything that was not safe in it is written to a fresh one.
    Poisoned {
        /// What the system says, and where.
        error: String,
    },
    /// The disk takes records again.
    Recovered,
    /// The folder was removed, or another one was put in its place: it is made or taken anew, and the next records go there.
    /// What was written to the old one is where that is now, if it is anywhere.
    Anew {
        /// What was found, and where.
        error: String,
    },
    /// Something beside the path of records failed: packing, removing or syncing an ended segment.
    Upkeep {
        /// What the system says, and where.
        error: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trouble(State::DiskFull { error, .. }) => {
                write!(f, "no room on the disk: {error}; records wait in memory until there is room")
            }
            Self::Trouble(State::Failing { error, .. }) => {
                write!(f, "the disk fails: {error}; records wait in memory, and it is tried again")
            }
            Self::Trouble(State::Healthy) | Self::Recovered => write!(f, "records are written again"),
            Self::Poisoned { error } => write!(f, "a segment was given up: {error}; its last records go to a new one"),
            Self::Anew { error } => write!(f, "{error}; it was made or taken anew, and the next records go there"),
            Self::Upkeep { error } => write!(f, "upkeep failed: {error}"),
        }
    }
}

/// Who is told of events. It is called from the journal's threads and holds them up.
pub(crate) type Listener = Box<dyn Fn(&Event) + Send + Sync>;

pub(crate) struct Health {
    state: Mutex<State>,
    last_error: Mutex<Option<String>>,
    listener: Listener,
}

impl Health {
    pub(crate) fn new(listener: Listener) -> Self {
        Self { state: Mutex::new(State::Healthy), last_error: Mutex::new(None), listener }
    }

    pub(crate) fn state(&self) -> State {
        lock(&self.state).clone()
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        lock(&self.last_error).clone()
    }

    /// A batch could not be stored. `repeated`: nor the time before.
    pub(crate) fn trouble(&self, trouble: &Trouble, repeated: bool) {
        let error = said(&trouble.path, &trouble.error);
        *lock(&self.last_error) = Some(error.clone());
        if trouble.poisoned && !repeated {
            // The next attempt, on a fresh segment, is made at once and says whether this was all.
            return self.tell(&Event::Poisoned { error });
        }
        let mut state = lock(&self.state);
        let since = match &*state {
            State::DiskFull { since, .. } | State::Failing { since, .. } => *since,
            State::Healthy => Instant::now(),
        };
        let now = if trouble.is_full() { State::DiskFull { since, error } } else { State::Failing { since, error } };
        let is_news = state.name() != now.name();
        *state = now.clone();
        drop(state);
        if is_news {
            self.tell(&Event::Trouble(now));
        }
    }

    /// A batch was stored.
    pub(crate) fn stored(&self) {
        let mut state = lock(&self.state);
        if *state != State::Healthy {
            *state = State::Healthy;
            drop(state);
            self.tell(&Event::Recovered);
        }
    }

    /// The folder is not the one that it was.
    pub(crate) fn anew(&self, folder: &Path) {
        let error = format!("{}: the folder was removed or replaced", folder.display());
        *lock(&self.last_error) = Some(error.clone());
        self.tell(&Event::Anew { error });
    }

    pub(crate) fn upkeep(&self, path: &Path, error: &io::Error) {
        let error = said(path, error);
        *lock(&self.last_error) = Some(error.clone());
        self.tell(&Event::Upkeep { error });
    }

    fn tell(&self, event: &Event) {
        // Whoever listens must not end the thread that writes.
        let told = || crate::inside::enter(|| (self.listener)(event));
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(told));
    }
}

fn said(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// The usual listener: a line on standard error.
pub(crate) fn to_stderr(event: &Event) {
    // Standard error may be a file on the disk that is full.
    let _ = writeln!(io::stderr(), "journal: {event}");
}
