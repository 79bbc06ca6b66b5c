//! Children on compio's executor of the calling thread; they need not be `Send`.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::runtime::{Spawn, Timer};

/// The compio runtime of the current thread.
///
/// A stop from the same thread wakes children without crossing threads, so create one scope per core and stop it there. A
/// wake from another thread works too, but waits in the executor's bounded queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Compio;

impl Timer for Compio {
    type Sleep = Pin<Box<dyn Future<Output = ()>>>;

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        Box::pin(compio_runtime::time::sleep(duration))
    }
}

impl<F: Future + 'static> Spawn<F> for Compio {
    /// compio cancels a task whose handle is dropped, so the task is detached; see [`Child::ended`](crate::Child::ended).
    type Handle = ();

    fn spawn(&self, future: F) {
        compio_runtime::spawn(future).detach();
    }
}
