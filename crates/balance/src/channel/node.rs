//! A backend's connections.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::connect::Sender;
use super::line::Stop;
use crate::address::Address;

/// What a [`Channel`](super::Channel) keeps of a backend.
pub struct Node {
    address: Address,
    connections: Mutex<Connections>,
    turn: AtomicUsize,
}

#[derive(Default)]
struct Connections {
    /// Those that take calls.
    open: Vec<(u64, Sender)>,
    /// Those that exist, some only to finish what they began.
    stops: Vec<Weak<Stop>>,
    next: u64,
    /// The backend was given up: no connection may be added.
    ended: bool,
    /// Goes up whenever the backend is put to rest: who opened connections before opens none any more.
    life: u64,
}

impl Node {
    pub(super) fn new(address: Address) -> Self {
        Self { address, connections: Mutex::default(), turn: AtomicUsize::new(0) }
    }

    /// Where it is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// How many connections take calls.
    pub fn connections(&self) -> usize {
        self.lock().open.len()
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection, each in turn. If the last one ended a moment ago, `lost` is called before another thread can change
    /// anything: who runs the connection may learn of its end later than a caller, and until then the backend would be
    /// chosen again and again.
    pub(super) fn sender(&self, lost: impl FnOnce()) -> Option<Sender> {
        let connections = self.lock();
        let open = &connections.open;
        let turn = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(open.len()).unwrap_or(0);
        let mut round = open[turn..].iter().chain(&open[..turn]);
        let found = round.find(|(_, sender)| !sender.is_closed()).map(|(_, sender)| sender.clone());
        if found.is_none() {
            lost();
        }
        found
    }

    /// A stop for a connection that is about to be opened.
    pub(super) fn stop(&self) -> Arc<Stop> {
        let stop = Arc::new(Stop::default());
        let mut connections = self.lock();
        connections.stops.retain(|stop| stop.strong_count() > 0);
        connections.stops.push(Arc::downgrade(&stop));
        if connections.ended {
            stop.cut();
        }
        stop
    }

    /// Which life it is in.
    pub(super) fn life(&self) -> u64 {
        self.lock().life
    }

    /// Adds a connection that was opened in this life, and calls `told` before another thread can change anything.
    pub(super) fn add(&self, sender: Sender, life: u64, told: impl FnOnce()) -> Option<u64> {
        let mut connections = self.lock();
        if connections.ended || connections.life != life {
            return None;
        }
        let number = connections.next;
        connections.next += 1;
        connections.open.push((number, sender));
        told();
        Some(number)
    }

    /// Removes a connection if there was one, and calls `told` with whether any is left, before another thread can
    /// change anything. `None` if this life is over.
    pub(super) fn remove<R>(&self, number: Option<u64>, life: u64, told: impl FnOnce(bool) -> R) -> Option<R> {
        let mut connections = self.lock();
        if connections.life != life {
            return None;
        }
        connections.open.retain(|(known, _)| Some(*known) != number);
        Some(told(!connections.open.is_empty()))
    }

    /// Lets no connection be added in this life, and calls `told` before another thread can change anything. Connections that
    /// are there take no call any more, and end with those that they have. Whether there were any.
    pub(super) fn rest(&self, told: impl FnOnce()) -> bool {
        let mut connections = self.lock();
        connections.life += 1;
        let open = std::mem::take(&mut connections.open);
        told();
        drop(connections);
        !open.is_empty()
    }

    /// Cuts all connections, those included that only finish what they began.
    pub(super) fn end(&self) {
        let mut connections = self.lock();
        connections.ended = true;
        connections.open.clear();
        let stops: Vec<Weak<Stop>> = connections.stops.drain(..).collect();
        drop(connections);
        stops.iter().filter_map(Weak::upgrade).for_each(|stop| stop.cut());
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("address", &self.address).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use hyper_util::rt::{TokioExecutor, TokioIo};

    use super::*;

    #[tokio::test]
    async fn t16_a_backend_that_is_to_rest_is_either_connected_before_or_not_at_all() {
        let node = Node::new(Address::Unix("/nowhere".into()));
        let (near, _far) = tokio::io::duplex(1 << 10);
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(near));
        let (sender, _running) = handshake.await.unwrap();
        let mut told = Vec::new();
        let life = node.life();
        assert!(!node.rest(|| told.push("idle")));
        assert_eq!(node.add(sender.clone(), life, || told.push("late")), None);
        assert_eq!(node.remove(None, life, |_| told.push("late")), None);
        assert_eq!(node.add(sender, node.life(), || told.push("ready")), Some(0));
        assert!(node.rest(|| told.push("idle")));
        assert_eq!((told.as_slice(), node.connections()), (&["idle", "ready", "idle"][..], 0));
    }

    #[test]
    fn t45_who_finds_no_connection_tells_before_anybody_chooses_again() {
        let node = Node::new(Address::Unix("/nowhere".into()));
        let mut told = 0;
        assert!(node.sender(|| told += 1).is_none());
        assert_eq!(told, 1);
    }
}
