//! How a child ended, and the counts of it.

use std::convert::Infallible;
use std::ops::{Index, IndexMut, Sub};

/// How a child ended. Every started child ends exactly once, in exactly one of these ways.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Exit {
    /// Its future returned, and what it returned is no failure.
    Returned,
    /// Its future returned a failure, such as `Err`.
    Failed,
    /// Its future panicked, in a poll or when it was dropped.
    Panicked,
    /// It was told to abort, and its future was dropped.
    Aborted,
    /// Whoever held its future dropped it before it ended, as a runtime does that shuts down.
    Dropped,
}

impl Exit {
    /// All ways to end, in the order of their names here.
    pub const ALL: [Self; 5] = [Self::Returned, Self::Failed, Self::Panicked, Self::Aborted, Self::Dropped];

    /// A lower-case word for logs and metrics.
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

/// What a child's future returns, seen by its supervisor: was it a failure?
///
/// A failure counts as [`Exit::Failed`], and restarts a transient child.
pub trait Completion {
    /// Whether the child failed.
    fn is_failure(&self) -> bool;
}

impl Completion for () {
    fn is_failure(&self) -> bool {
        false
    }
}

impl Completion for Infallible {
    fn is_failure(&self) -> bool {
        match *self {}
    }
}

impl<T, E> Completion for Result<T, E> {
    fn is_failure(&self) -> bool {
        self.is_err()
    }
}

/// Exits by cause.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Exits([u64; Exit::ALL.len()]);

impl Exits {
    /// All exits, whatever the cause.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Every cause with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Exit, u64)> + '_ {
        Exit::ALL.into_iter().map(|exit| (exit, self[exit]))
    }

    /// Adds the counts of others.
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
