//! One limit over all cores: how many connections are open, and how many of those are still being opened.
//!
//! Both numbers share one word, so that taking a permit is a single step that either happens or does not; a permit
//! taken on trial and given back would make other cores see a full pool that is not.

use crate::atomic::{AtomicU64, Ordering::SeqCst};

const OPEN: u64 = 1 << 32;
const CONNECTING: u64 = 1;

/// Counter of open connections (upper half, those being opened included) and of connects under way (lower half).
#[derive(Default)]
pub(crate) struct Permits(AtomicU64);

impl Permits {
    /// Connections open or being opened.
    pub(crate) fn open(&self) -> usize {
        (self.0.load(SeqCst) / OPEN) as usize
    }

    /// Whether a connection is open that is no longer being opened.
    pub(crate) fn has_established(&self) -> bool {
        let word = self.0.load(SeqCst);
        word / OPEN > word % OPEN
    }

    /// Take a permit for a new connection, if fewer than `open_max` are open and fewer than `connecting_max` are being
    /// opened.
    pub(crate) fn take(&self, open_max: usize, connecting_max: usize) -> bool {
        let more = |word: u64| {
            let (open, connecting) = ((word / OPEN) as usize, (word % OPEN) as usize);
            (open < open_max && connecting < connecting_max).then_some(word + OPEN + CONNECTING)
        };
        self.0.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    /// A connect succeeded.
    pub(crate) fn connected(&self) {
        self.0.fetch_sub(CONNECTING, SeqCst);
    }

    /// A connect failed.
    pub(crate) fn give_back_connecting(&self) {
        self.0.fetch_sub(OPEN + CONNECTING, SeqCst);
    }

    /// A connection was closed.
    pub(crate) fn give_back(&self) {
        self.0.fetch_sub(OPEN, SeqCst);
    }

    /// Give an open connection's permit back, if more than `keep` are open. Two cores never both shed the last one.
    pub(crate) fn shed(&self, keep: usize) -> bool {
        let less = |word: u64| ((word / OPEN) as usize > keep).then(|| word - OPEN);
        self.0.fetch_update(SeqCst, SeqCst, less).is_ok()
    }
}
