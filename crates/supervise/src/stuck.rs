//! Children that do not end.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// A child that did not end in time, because it blocks its thread or no executor polls it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stuck {
    /// Path of the scope.
    pub scope: Arc<str>,
    /// Key of the child, formatted with `Debug`.
    pub key: Option<String>,
    /// Number of the child, if any.
    pub number: Option<u64>,
    /// Source location of the spawn.
    pub spawned_at: &'static Location<'static>,
    /// Time since the spawn.
    pub age: Duration,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.scope)?;
        match (&self.key, self.number) {
            (Some(key), _) => write!(f, " {key}")?,
            (None, Some(number)) => write!(f, " {number}")?,
            (None, None) => f.write_str(" -")?,
        }
        write!(f, ", spawned {:?} ago at {}", self.age, self.spawned_at)
    }
}
