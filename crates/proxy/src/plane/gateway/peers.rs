//! Other gateways behind the same address, and the cancel requests on their way to them.

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

/// The requests on their way to one peer.
#[derive(Debug)]
pub struct PeerQueue {
    size: u32,
    places: Semaphore,
    waiting: AtomicUsize,
    connecting: AtomicUsize,
    sent: AtomicUsize,
}

/// How many requests are on their way to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCounts {
    /// They wait for others to be through.
    pub waiting: usize,
    /// The peer is being connected.
    pub connecting: usize,
    /// The peer has them, and has not dealt with them yet.
    pub sent: usize,
}

/// One more as long as it lives.
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

/// A request on its way.
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

    /// A place for one request, which is about to connect. `None` if the line is given up.
    ///
    /// # Cancel safety
    /// Safe: whoever gives up leaves the line.
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
    /// The peer is connected.
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
