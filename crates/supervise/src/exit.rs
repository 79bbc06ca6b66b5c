//! Exits of children, and their counts.

use std::convert::Infallible;
use std::ops::{Index, IndexMut, Sub};

/// Exit of a child. Every started child ends exactly once, in exactly one of these ways.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Exit {
    /// The future returned an output that is not a failure.
    Returned,
    /// The future returned a failure, such as `Err`.
    Failed,
    /// The future panicked, in a poll or in its drop.
    Panicked,
    /// The child was aborted, and its future was dropped.
    Aborted,
    /// The future was dropped before it ended, for example by a runtime that shuts down.
    Dropped,
}

impl Exit {
    /// All variants, in declaration order.
    pub const ALL: [Self; 5] = [Self::Returned, Self::Failed, Self::Panicked, Self::Aborted, Self::Dropped];

    /// Lower-case name for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Returned => "returned",
            Self::Failed => "failed",
            Self::Panicked => "panicked",
            Self::Aborted => "aborted",
            Self::Dropped => "dropped",
        }
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Output of a child's future, classified as success or failure.
///
/// A failure counts as [`Exit::Failed`], and restarts a transient child.
pub trait ChildOutput {
    /// Returns whether the output is a failure.
    fn is_failure(&self) -> bool;
}

impl ChildOutput for () {
    fn is_failure(&self) -> bool {
        false
    }
}

impl ChildOutput for Infallible {
    fn is_failure(&self) -> bool {
        match *self {}
    }
}

impl<T, E> ChildOutput for Result<T, E> {
    fn is_failure(&self) -> bool {
        self.is_err()
    }
}

/// Exits by cause.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Exits([u64; Exit::ALL.len()]);

impl Exits {
    /// Total of all causes.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Iterates over all causes with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Exit, u64)> + '_ {
        Exit::ALL.into_iter().map(|exit| (exit, self[exit]))
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

impl Index<Exit> for Exits {
    type Output = u64;

    fn index(&self, exit: Exit) -> &u64 {
        &self.0[exit as usize]
    }
}

impl IndexMut<Exit> for Exits {
    fn index_mut(&mut self, exit: Exit) -> &mut u64 {
        &mut self.0[exit as usize]
    }
}

impl Sub for Exits {
    type Output = Self;

    fn sub(mut self, earlier: Self) -> Self {
        for (mine, before) in self.0.iter_mut().zip(earlier.0) {
            *mine = mine.saturating_sub(before);
        }
        self
    }
}
