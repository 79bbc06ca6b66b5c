//! Other gateways behind the same address, and the cancel requests in flight to them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::lock;
use tidegate_config::{Config, Host};

/// Cancel requests to one peer.
#[derive(Debug)]
pub struct PeerQueue {
    size: u32,
    places: Semaphore,
    waiting: AtomicUsize,
    connecting: AtomicUsize,
    sent: AtomicUsize,
}

/// Number of cancel requests to a peer, by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCounts {
    /// Queued.
    pub waiting: usize,
    /// Connecting.
    pub connecting: usize,
    /// Sent, not yet completed.
    pub sent: usize,
}

/// Counts one while it lives.
struct Count<'a>(&'a AtomicUsize);

impl<'a> Count<'a> {
    fn one(of: &'a AtomicUsize) -> Self {
        of.fetch_add(1, Ordering::Relaxed);
        Self(of)
    }
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A cancel request to a peer.
pub struct PeerRequest<'a> {
    line: &'a PeerQueue,
    _place: SemaphorePermit<'a>,
    _count: Count<'a>,
}

impl PeerQueue {
    fn new(size: u32) -> Self {
        let (waiting, connecting, sent) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        Self { size, places: Semaphore::new(size as usize), waiting, connecting, sent }
    }

    /// Waits for a place in the queue; `None` if the queue is closed.
    ///
    /// # Cancel safety
    /// Safe: dropping the future leaves the queue.
    pub async fn join(&self) -> Option<PeerRequest<'_>> {
        let waits = Count::one(&self.waiting);
        let place = self.places.acquire().await.ok()?;
        let connects = Count::one(&self.connecting);
        drop(waits);
        Some(PeerRequest { line: self, _place: place, _count: connects })
    }

    fn counts(&self) -> PeerCounts {
        PeerCounts {
            waiting: self.waiting.load(Ordering::Relaxed),
            connecting: self.connecting.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
        }
    }
}

impl PeerRequest<'_> {
    /// Marks the peer as connected.
    #[must_use]
    pub fn connected(self) -> Self {
        Self { _count: Count::one(&self.line.sent), ..self }
    }
}

/// Other gateways behind the same address.
#[derive(Debug)]
pub struct Peers {
    id: u16,
    lines: Mutex<BTreeMap<u16, Arc<PeerQueue>>>,
}

impl Peers {
    pub(super) fn new(id: u16) -> Self {
        Self { id, lines: Mutex::default() }
    }

    /// The number of this gateway among its peers; 0 if it has none.
    #[must_use]
    pub const fn own_id(&self) -> u16 {
        self.id
    }

    /// The address of a peer and the queue of requests to it; `None` if the configuration has no such peer.
    #[must_use]
    pub fn find(&self, id: u16, config: &Config) -> Option<(Host, Arc<PeerQueue>)> {
        let peer = config.peers.get(&id)?;
        let mut lines = lock(&self.lines);
        let line = lines.entry(id).or_insert_with(|| Arc::new(PeerQueue::new(peer.size)));
        if line.size != peer.size {
            // Requests in the old queue are still delivered.
            *line = Arc::new(PeerQueue::new(peer.size));
        }
        Some((peer.host(), line.clone()))
    }

    /// Requests in flight to a peer.
    #[must_use]
    pub fn counts(&self, id: u16) -> PeerCounts {
        lock(&self.lines).get(&id).map(|line| line.counts()).unwrap_or_default()
    }
}
