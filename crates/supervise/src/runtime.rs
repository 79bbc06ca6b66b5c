//! Interface of a runtime: a way to sleep, and optionally workers for sweeps.

use std::future::Future;
use std::time::{Duration, Instant};

use crate::stop::Sweep;

/// A clock and a way to sleep. Implemented for any `Fn(Duration) -> impl Future<Output = ()>`.
pub trait Timer {
    /// Future of a sleep; resolves after its duration.
    type Sleep: Future<Output = ()>;

    /// Sleeps for `duration` from now on.
    fn sleep(&self, duration: Duration) -> Self::Sleep;

    /// Sleeps until a deadline of a stop or a drain, `duration` from now. Like [`sleep`](Self::sleep), but must also resolve
    /// when children block all workers of the runtime.
    fn deadline(&self, duration: Duration) -> Self::Sleep {
        self.sleep(duration)
    }

    /// Returns the current time of the clock that [`sleep`](Self::sleep) uses.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Offers a part of a sweep to another worker. A runtime that runs the part returns `None`; the default returns the part,
    /// and the future that stops the scope runs it.
    fn lend(&self, sweep: Sweep) -> Option<Sweep> {
        Some(sweep)
    }

    /// Number of workers that can run parts of a sweep in parallel.
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

/// An executor of futures of type `F`.
///
/// The type parameter lets an executor of `Send` futures and one of local futures implement the same trait.
pub trait Spawn<F: Future> {
    /// Handle that the executor returns for a spawned future.
    type Handle;

    /// Starts the future. Dropping the handle does not stop it.
    fn spawn(&self, future: F) -> Self::Handle;
}
