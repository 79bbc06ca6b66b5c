//! Peers that reset their connection right behind what they said last.
//!
//! After each receive of a stream the kernel asks the socket how much more there is; with nothing it waits for the next event
//! (seen in Linux 6.18). A reset that has come with the bytes counts as nothing there, unlike an orderly end, and it was the
//! last event: the stream would wait for ever. So whoever has spoken is looked at once, after a while of silence. What comes
//! later than that is an event of its own.

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

/// After so long, or twice as long at most, somebody who has spoken is looked at.
const SILENCE: Duration = Duration::from_millis(250);

/// Slots of ports whose streams have brought something that nothing followed.
#[derive(Debug, Default)]
pub(super) struct Spoken {
    slots: RefCell<Vec<u32>>,
    look_at: Cell<Option<Instant>>,
}

impl Spoken {
    pub(super) fn add(&self, slot: u32) {
        self.slots.borrow_mut().push(slot);
    }

    /// How long to wait at most, for somebody who would wait that long.
    #[inline]
    pub(super) fn within(&self, timeout: Option<Duration>) -> Option<Duration> {
        if self.slots.borrow().is_empty() || timeout == Some(Duration::ZERO) {
            return timeout;
        }
        let now = Instant::now();
        let at = self.look_at.get().unwrap_or(now + SILENCE);
        self.look_at.set(Some(at));
        let until = at.saturating_duration_since(now);
        Some(timeout.map_or(until, |timeout| timeout.min(until)))
    }

    /// All of them, when it is time to look.
    #[inline]
    pub(super) fn take_due(&self) -> Option<Vec<u32>> {
        let at = self.look_at.get()?;
        (at <= Instant::now()).then(|| {
            self.look_at.set(None);
            self.slots.take()
        })
    }
}
