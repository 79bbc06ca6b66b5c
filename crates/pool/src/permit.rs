//! The limit over all cores on open connections and on connects in progress.

use std::sync::Arc;

use crate::sync::{AtomicU64, Ordering::SeqCst};

const OPEN: u64 = 1 << 32;
const CONNECTING: u64 = 1;

/// Number of open connections (upper half, connects in progress included) and of connects in progress (lower half).
///
/// Both numbers share one word, so that taking a permit either succeeds or changes nothing. A permit that was taken and
/// given back would make other cores see a full pool that is not full.
#[derive(Default)]
pub(crate) struct OpenCount(AtomicU64);

impl OpenCount {
    /// Connections that are open or being opened.
    pub(crate) fn open(&self) -> usize {
        (self.0.load(SeqCst) / OPEN) as usize
    }

    /// Returns whether a connection is open that is no longer being opened.
    pub(crate) fn has_established(&self) -> bool {
        let word = self.0.load(SeqCst);
        word / OPEN > word % OPEN
    }

    /// Returns whether a connection is being opened.
    pub(crate) fn is_connecting(&self) -> bool {
        !self.0.load(SeqCst).is_multiple_of(OPEN)
    }

    /// Counts a new connection, if fewer than `open_max` are open and fewer than `connecting_max` are being opened.
    pub(crate) fn try_connect(&self, open_max: usize, connecting_max: usize) -> bool {
        let more = |word: u64| {
            let (open, connecting) = ((word / OPEN) as usize, (word % OPEN) as usize);
            (open < open_max && connecting < connecting_max).then_some(word + OPEN + CONNECTING)
        };
        self.0.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    /// Counts a connection that was opened elsewhere.
    pub(crate) fn opened(&self) {
        self.0.fetch_add(OPEN, SeqCst);
    }

    /// A connect succeeded.
    pub(crate) fn connected(&self) {
        self.0.fetch_sub(CONNECTING, SeqCst);
    }

    /// A connect failed.
    pub(crate) fn connect_failed(&self) {
        self.0.fetch_sub(OPEN + CONNECTING, SeqCst);
    }

    /// A connection was closed.
    pub(crate) fn closed(&self) {
        self.0.fetch_sub(OPEN, SeqCst);
    }

    /// Discounts an open connection, if more than `keep` are open. Two cores never both discount the last one.
    pub(crate) fn close_above(&self, keep: usize) -> bool {
        let less = |word: u64| ((word / OPEN) as usize > keep).then(|| word - OPEN);
        self.0.fetch_update(SeqCst, SeqCst, less).is_ok()
    }
}

/// Owner of the count of a pool. A trait, so that permits do not depend on the pool.
pub(crate) trait CountsOpen: Send + Sync {
    fn open_count(&self) -> &OpenCount;

    /// A connection was closed, or a connect failed: waiting clients may now be served.
    fn permit_released(&self);
}

/// The right to have one connection open. Its drop gives the right back and wakes the cores with waiting clients, so that
/// no exit path leaks a permit.
pub(crate) struct OpenPermit {
    pool: Arc<dyn CountsOpen>,
    state: PermitState,
}

enum PermitState {
    Connecting,
    Open,
    /// Discounted before the connection is closed.
    Released,
}

impl OpenPermit {
    /// See [`OpenCount::try_connect`].
    pub(crate) fn take<P: CountsOpen + 'static>(pool: &Arc<P>, open_max: usize, connecting_max: usize) -> Option<Self> {
        let taken = pool.open_count().try_connect(open_max, connecting_max);
        taken.then(|| Self { pool: Arc::<P>::clone(pool), state: PermitState::Connecting })
    }

    /// The permit of a connection that was opened elsewhere, whatever the limit is.
    pub(crate) fn opened<P: CountsOpen + 'static>(pool: &Arc<P>) -> Self {
        pool.open_count().opened();
        Self { pool: Arc::<P>::clone(pool), state: PermitState::Open }
    }

    /// The connect succeeded.
    pub(crate) fn connected(&mut self) {
        self.state = PermitState::Open;
        self.pool.open_count().connected();
    }

    /// Gives the permit back if more than `keep` connections are open. Returns whether it did: the connection must then be
    /// closed.
    pub(crate) fn release_above(&mut self, keep: usize) -> bool {
        let released = self.pool.open_count().close_above(keep);
        if released {
            self.state = PermitState::Released;
        }
        released
    }
}

impl Drop for OpenPermit {
    fn drop(&mut self) {
        match self.state {
            PermitState::Connecting => self.pool.open_count().connect_failed(),
            PermitState::Open => self.pool.open_count().closed(),
            PermitState::Released => {}
        }
        self.pool.permit_released();
    }
}
