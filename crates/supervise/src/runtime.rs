//! What a runtime has to lend: a way to sleep, and perhaps its workers.

use std::future::Future;
use std::time::{Duration, Instant};

use crate::stop::Sweep;

/// A clock and a way to sleep. Any `Fn(Duration) -> impl Future<Output = ()>` is one.
pub trait Timer {
    /// Resolves after the duration it was made with.
    type Sleep: Future<Output = ()>;

    /// Sleeps for `duration` from now on.
    fn sleep(&self, duration: Duration) -> Self::Sleep;

    /// Sleeps until a deadline of a stop or a drain, `duration` from now: as [`sleep`](Self::sleep), but to be trusted
    /// even when children block all workers, should the clock of the runtime need one of these.
    fn deadline(&self, duration: Duration) -> Self::Sleep {
        self.sleep(duration)
    }

    /// The present, on the clock that [`sleep`](Self::sleep) runs by.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Offers to run a part of a sweep on another worker. A runtime that will returns `None`; by default the part is
    /// handed back, and the future that stops the scope runs it itself.
    fn lend(&self, sweep: Sweep) -> Option<Sweep> {
        Some(sweep)
    }

    /// How many workers can run parts of a sweep at once.
    fn workers(&self) -> usize {
        1
    }
}

impl<F, S> Timer for F
where
    F: Fn(Duration) -> S,
    S: Future<Output = ()>,
{
    type Sleep = S;

    fn sleep(&self, duration: Duration) -> S {
        self(duration)
    }
}

/// Something that runs futures of type `F`.
///
/// The type parameter lets an executor of `Send` futures and one of local futures implement the same trait.
pub trait Spawn<F: Future> {
    /// What the executor gives back for a spawned future.
    type Handle;

    /// Starts the future. It runs whether or not the handle is kept.
    fn spawn(&self, future: F) -> Self::Handle;
}
