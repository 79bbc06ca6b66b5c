//! Detects peers that reset the connection right behind their last bytes.
//!
//! After each completion of a multishot receive, the kernel asks the socket for more data, and waits for the next event
//! if there are none (seen in Linux 6.18). A reset that arrived with the bytes looks like an empty socket there, unlike
//! an orderly end, and is the last event: the receive would wait forever. So each socket is checked once, when it has
//! been quiet for a while after its bytes. A later reset is an event of its own.

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

/// A socket is checked after it has been quiet for this long, or up to twice as long.
const QUIET_PERIOD: Duration = Duration::from_millis(250);

/// Slots of sockets whose multishot receive has returned bytes and not been checked since.
#[derive(Debug, Default)]
pub(super) struct ResetChecks {
    slots: RefCell<Vec<u32>>,
    due_at: Cell<Option<Instant>>,
}

impl ResetChecks {
    pub(super) fn add(&self, slot: u32) {
        self.slots.borrow_mut().push(slot);
    }

    /// Shortens a wait so that it ends when the next check is due.
    #[inline]
    pub(super) fn limit_wait(&self, timeout: Option<Duration>) -> Option<Duration> {
        if self.slots.borrow().is_empty() || timeout == Some(Duration::ZERO) {
            return timeout;
        }
        let now = Instant::now();
        let at = self.due_at.get().unwrap_or(now + QUIET_PERIOD);
        self.due_at.set(Some(at));
        let until = at.saturating_duration_since(now);
        Some(timeout.map_or(until, |timeout| timeout.min(until)))
    }

    /// The sockets to check, when the check is due.
    #[inline]
    pub(super) fn take_due(&self) -> Option<Vec<u32>> {
        let at = self.due_at.get()?;
        (at <= Instant::now()).then(|| {
            self.due_at.set(None);
            self.slots.take()
        })
    }
}
