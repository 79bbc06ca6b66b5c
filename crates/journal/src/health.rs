//! The health of the disk: state changes and events, each reported once.

use std::{
    fmt,
    io::{self, Write as _},
    path::Path,
    time::Instant,
};

use crate::{
    segment_writer::SegmentWriteError,
    sync::{Mutex, lock},
};

/// Whether records can be written to the disk.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum JournalState {
    /// Records are written.
    Healthy,
    /// The disk is full. Records stay in memory and overload policies apply until there is room.
    DiskFull {
        /// When the state began.
        since: Instant,
        /// The path and the error of the operating system.
        error: String,
    },
    /// Writing fails for another reason: the segment was abandoned, and the writer cannot create a new one either. The
    /// writer keeps retrying.
    Failing {
        /// When the state began.
        since: Instant,
        /// The path and the error of the operating system.
        error: String,
    },
}

impl JournalState {
    /// The name of the state, for tables and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::DiskFull { .. } => "disk full",
            Self::Failing { .. } => "failing",
        }
    }
}

/// A change that an operator may need to act on. It is reported once, not for every attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum JournalEvent {
    /// Records cannot be written. None is lost yet.
    Degraded(JournalState),
    /// A segment was abandoned, and its records that had not reached their ack level are written to a new one.
    SegmentAbandoned {
        /// The path and the error of the operating system.
        error: String,
    },
    /// Records can be written again.
    Recovered,
    /// The folder was removed or replaced. It is created or locked again, and the next records go there. Records in the
    /// old folder stay wherever that folder is now, if it still exists.
    FolderReplaced {
        /// The path and the change.
        error: String,
    },
    /// An operation outside the write path failed: compressing, removing or syncing an ended segment.
    MaintenanceFailed {
        /// The path and the error of the operating system.
        error: String,
    },
}

impl fmt::Display for JournalEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Degraded(JournalState::DiskFull { error, .. }) => {
                write!(f, "disk full: {error}; records wait in memory until there is room")
            }
            Self::Degraded(JournalState::Failing { error, .. }) => {
                write!(f, "disk failing: {error}; records wait in memory while the writer retries")
            }
            Self::Degraded(JournalState::Healthy) | Self::Recovered => {
                write!(f, "disk recovered; records are written again")
            }
            Self::SegmentAbandoned { error } => {
                write!(f, "segment abandoned: {error}; its last records go to a new segment")
            }
            Self::FolderReplaced { error } => {
                write!(f, "{error}; the folder was created or locked again, and the next records go there")
            }
            Self::MaintenanceFailed { error } => write!(f, "maintenance failed: {error}"),
        }
    }
}

/// The callback for events. The journal's threads call it and wait for it.
pub(crate) type EventListener = Box<dyn Fn(&JournalEvent) + Send + Sync>;

pub(crate) struct HealthMonitor {
    state: Mutex<JournalState>,
    last_error: Mutex<Option<String>>,
    listener: EventListener,
}

impl HealthMonitor {
    pub(crate) fn new(listener: EventListener) -> Self {
        Self { state: Mutex::new(JournalState::Healthy), last_error: Mutex::new(None), listener }
    }

    pub(crate) fn state(&self) -> JournalState {
        lock(&self.state).clone()
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        lock(&self.last_error).clone()
    }

    /// Reports a failed store of a batch. `repeated`: the previous attempt failed too.
    pub(crate) fn on_store_error(&self, failed: &SegmentWriteError, repeated: bool) {
        let error = describe(&failed.path, &failed.error);
        *lock(&self.last_error) = Some(error.clone());
        if failed.abandoned && !repeated {
            // The next attempt, on a new segment, follows immediately and shows whether the error persists.
            return self.notify(&JournalEvent::SegmentAbandoned { error });
        }
        let mut state = lock(&self.state);
        let since = match &*state {
            JournalState::DiskFull { since, .. } | JournalState::Failing { since, .. } => *since,
            JournalState::Healthy => Instant::now(),
        };
        let now = if failed.is_full() {
            JournalState::DiskFull { since, error }
        } else {
            JournalState::Failing { since, error }
        };
        let is_changed = state.name() != now.name();
        *state = now.clone();
        drop(state);
        if is_changed {
            self.notify(&JournalEvent::Degraded(now));
        }
    }

    /// Reports a successful store of a batch.
    pub(crate) fn on_stored(&self) {
        let mut state = lock(&self.state);
        if *state != JournalState::Healthy {
            *state = JournalState::Healthy;
            drop(state);
            self.notify(&JournalEvent::Recovered);
        }
    }

    /// Reports that the folder was replaced.
    pub(crate) fn on_folder_replaced(&self, folder: &Path) {
        let error = format!("{}: the folder was removed or replaced", folder.display());
        *lock(&self.last_error) = Some(error.clone());
        self.notify(&JournalEvent::FolderReplaced { error });
    }

    pub(crate) fn on_maintenance_failed(&self, path: &Path, error: &io::Error) {
        let error = describe(path, error);
        *lock(&self.last_error) = Some(error.clone());
        self.notify(&JournalEvent::MaintenanceFailed { error });
    }

    fn notify(&self, event: &JournalEvent) {
        // A panic of the listener must not end the writer thread.
        let notify = || crate::reentrancy::enter(|| (self.listener)(event));
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(notify));
    }
}

fn describe(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// The default listener: one line on standard error.
pub(crate) fn to_stderr(event: &JournalEvent) {
    // Ignored: standard error may be a file on the full disk.
    let _ = writeln!(io::stderr(), "journal: {event}");
}
