//! Callbacks for a scope's events, for logs and metrics.

use std::fmt::Debug;
use std::time::Duration;

use crate::Exit;

/// Observer of children. Every method does nothing by default.
///
/// Methods run synchronously on the thread of the event: they must be short and must not block. A panic in a method is caught
/// and ignored.
pub trait Observe: Send + Sync + 'static {
    /// A child started or restarted.
    fn started(&self, scope: &str) {
        let _ = scope;
    }

    /// A child ended. `panic` is the message of a panic with a text payload.
    fn exited(&self, scope: &str, exit: Exit, panic: Option<&str>) {
        let _ = (scope, exit, panic);
    }

    /// A run of the restarting child `key` ended in `exit`; the next run begins after `wait`.
    fn restarting(&self, scope: &str, key: &dyn Debug, exit: Exit, panic: Option<&str>, wait: Duration) {
        let _ = (scope, key, exit, panic, wait);
    }

    /// The next run of a restarting child begins; `started` follows. When no child runs, the calls of `started` equal those
    /// of `exited` and `restarted` together.
    fn restarted(&self, scope: &str, exit: Exit) {
        let _ = (scope, exit);
    }

    /// The restarting child `key` ended and is not restarted, because its own budget or its scope's is used up.
    fn gave_up(&self, scope: &str, key: &dyn Debug, exit: Exit) {
        let _ = (scope, key, exit);
    }
}
