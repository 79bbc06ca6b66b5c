//! What an outsider may hear of a scope's life, for logs and metrics.

use std::fmt::Debug;
use std::time::Duration;

use crate::Exit;

/// Hears what happens to children. Every method does nothing unless it is overridden.
///
/// Methods run on the thread where the thing happened, in the middle of it: they must be short and must not block.
/// A panic in one is caught and dropped.
pub trait Observe: Send + Sync + 'static {
    /// A child started, or started again.
    fn started(&self, scope: &str) {
        let _ = scope;
    }

    /// A child ended. `panic` is the message of a panic that had a text.
    fn exited(&self, scope: &str, exit: Exit, panic: Option<&str>) {
        let _ = (scope, exit, panic);
    }

    /// A life of the kept child of this key ended in `exit`; the next begins after `wait`.
    fn restarting(&self, scope: &str, key: &dyn Debug, exit: Exit, panic: Option<&str>, wait: Duration) {
        let _ = (scope, key, exit, panic, wait);
    }

    /// The next life of a kept child begins; `started` follows. Over all children and at rest, there are as many
    /// `started` as `exited` and `restarted` together.
    fn restarted(&self, scope: &str, exit: Exit) {
        let _ = (scope, exit);
    }

    /// The kept child of this key ended and should have been restarted, but its budget or its scope's is used up.
    fn gave_up(&self, scope: &str, key: &dyn Debug, exit: Exit) {
        let _ = (scope, key, exit);
    }
}
