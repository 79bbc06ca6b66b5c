//! Cancel requests in flight, counted per pool.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::SharedPool;

/// Stage of a cancel request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelStage {
    /// A client's request; connecting to the server.
    Coming,
    /// A client's request; sent to the server.
    Sent,
    /// A connection that carries a cancel request, of a client or of the gateway for a client that left.
    Carried,
    /// A server connection that is held back until its cancel requests have completed.
    HeldUp,
}

/// Number of requests by stage.
#[derive(Debug, Default)]
pub(super) struct Cancels([AtomicUsize; 4]);

/// A counted request; uncounted on drop.
pub struct CountedCancel {
    pool: Arc<SharedPool>,
    stage: CancelStage,
}

impl SharedPool {
    /// Counts a request.
    #[must_use]
    pub fn count_cancel(self: &Arc<Self>, stage: CancelStage) -> CountedCancel {
        self.cancels.0[stage as usize].fetch_add(1, Ordering::Relaxed);
        CountedCancel { pool: self.clone(), stage }
    }

    /// Number of requests in that stage.
    #[must_use]
    pub fn cancels(&self, stage: CancelStage) -> usize {
        self.cancels.0[stage as usize].load(Ordering::Relaxed)
    }
}

impl Drop for CountedCancel {
    fn drop(&mut self) {
        self.pool.cancels.0[self.stage as usize].fetch_sub(1, Ordering::Relaxed);
    }
}
