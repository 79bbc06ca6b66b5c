//! Cancel requests under way, counted for the pool whose query they mean.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::SharedPool;

/// What is counted of cancel requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelStage {
    /// A client's request whose server is being connected.
    Coming,
    /// A client's request that the server has.
    Sent,
    /// A connection by which a server has a request, be it a client's or that of the gateway for one that has left.
    Carried,
    /// A server that goes to no other client before the requests for it are through.
    HeldUp,
}

/// How many there are of each.
#[derive(Debug, Default)]
pub(super) struct Cancels([AtomicUsize; 4]);

/// One more as long as it lives.
pub struct CountedCancel {
    pool: Arc<SharedPool>,
    stage: CancelStage,
}

impl SharedPool {
    /// Counts one more.
    #[must_use]
    pub fn count_cancel(self: &Arc<Self>, stage: CancelStage) -> CountedCancel {
        self.cancels.0[stage as usize].fetch_add(1, Ordering::Relaxed);
        CountedCancel { pool: self.clone(), stage }
    }

    /// How many there are.
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
