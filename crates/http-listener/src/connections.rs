//! The connection slots of one socket. Idle connections cannot keep new ones out.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::Notify;

/// Stage of a connection, in the order in which connections are displaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestStage {
    /// The request is incomplete.
    Head,
    /// The request waits until its page may be built.
    Queued,
    /// The reply is being sent, or the client has read it and is idle.
    Reply,
    /// The request is in work, which depends on the gateway only. Not displaced.
    Page,
}

/// A bounded set of connections. See the [module](self).
#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    inner: Mutex<SlotTable>,
    released: Notify,
    connections_max: usize,
}

#[derive(Debug, Default)]
struct SlotTable {
    open: BTreeMap<u64, OpenConnection>,
    /// The connections that can be displaced, in the order in which they are.
    waiting: BTreeSet<(RequestStage, u64)>,
    next: u64,
}

#[derive(Debug)]
struct OpenConnection {
    stage: RequestStage,
    /// Requests in work.
    holds: usize,
    displaced: Arc<Notify>,
}

/// The slot of one connection; released when dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    pub(crate) number: u64,
    peer: SocketAddr,
    slots: Arc<ConnectionSlots>,
    displaced: Arc<Notify>,
    has_begun: AtomicBool,
}

/// A request in work: its connection is not displaced until this value is dropped.
#[derive(Debug)]
pub struct ConnectionHold(Arc<ConnectionSlot>);

impl ConnectionSlots {
    pub(crate) fn new(connections_max: usize) -> Self {
        Self { inner: Mutex::default(), released: Notify::new(), connections_max }
    }

    /// Takes a slot. Without a free one, displaces the oldest connection that waits for its client: an incomplete request
    /// first, then a queued one, then a reply. If all requests are in work, this call waits.
    ///
    /// # Cancel safety
    /// Safe: no slot is taken before this returns.
    pub(crate) async fn acquire(slots: &Arc<Self>, peer: SocketAddr) -> ConnectionSlot {
        loop {
            let mut released = std::pin::pin!(slots.released.notified());
            released.as_mut().enable();
            if let Some(slot) = Self::try_acquire(slots, peer) {
                return slot;
            }
            released.await;
        }
    }

    fn try_acquire(slots: &Arc<Self>, peer: SocketAddr) -> Option<ConnectionSlot> {
        let mut table = slots.lock();
        if table.open.len() >= slots.connections_max {
            let (_, number) = table.waiting.pop_first()?;
            let open = table.open.remove(&number)?;
            open.displaced.notify_one();
        }
        let (number, displaced) = (table.next, Arc::new(Notify::new()));
        table.next += 1;
        let open = OpenConnection { stage: RequestStage::Head, holds: 0, displaced: Arc::clone(&displaced) };
        table.open.insert(number, open);
        table.waiting.insert((RequestStage::Head, number));
        drop(table);
        Some(ConnectionSlot { number, peer, slots: Arc::clone(slots), displaced, has_begun: AtomicBool::new(false) })
    }

    /// A holder that panicked left consistent maps: each section makes one change.
    fn lock(&self) -> MutexGuard<'_, SlotTable> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state of a connection, unless it was displaced.
    fn change(&self, number: u64, change: impl FnOnce(&mut OpenConnection)) {
        let mut table = self.lock();
        let SlotTable { open, waiting, .. } = &mut *table;
        let Some(connection) = open.get_mut(&number) else { return };
        let before = connection.stage;
        change(connection);
        let after = connection.stage;
        if before == after {
            return;
        }
        waiting.remove(&(before, number));
        if after != RequestStage::Page {
            waiting.insert((after, number));
            drop(table);
            // The connection may be displaced from now on.
            self.released.notify_waiters();
        }
    }
}

impl ConnectionSlot {
    /// The address of the client.
    #[must_use]
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Sets the stage, for connections with one request at a time.
    pub fn set(&self, stage: RequestStage) {
        self.slots.change(self.number, |open| open.stage = stage);
    }

    /// Keeps the connection until the returned value is dropped; for connections with several requests at a time.
    #[must_use]
    pub fn hold(self: &Arc<Self>) -> ConnectionHold {
        self.slots.change(self.number, |open| {
            open.holds += 1;
            open.stage = RequestStage::Page;
        });
        ConnectionHold(Arc::clone(self))
    }

    /// Records that the head of a request is complete.
    pub(crate) fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }

    /// Whether any request has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Completes when the slot is needed for another connection.
    ///
    /// # Cancel safety
    /// Safe: the notification is kept for the next call.
    pub(crate) async fn displaced(&self) {
        self.displaced.notified().await;
    }
}

impl ConnectionHold {
    /// The address of the client.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.0.peer
    }
}

impl Drop for ConnectionHold {
    fn drop(&mut self) {
        self.0.slots.change(self.0.number, |open| {
            open.holds = open.holds.saturating_sub(1);
            if open.holds == 0 {
                open.stage = RequestStage::Reply;
            }
        });
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut table = self.slots.lock();
        if let Some(open) = table.open.remove(&self.number) {
            table.waiting.remove(&(open.stage, self.number));
        }
        drop(table);
        self.slots.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 8;

    fn slots() -> Arc<ConnectionSlots> {
        Arc::new(ConnectionSlots::new(MAX))
    }

    fn acquired(slots: &Arc<ConnectionSlots>) -> Arc<ConnectionSlot> {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        Arc::new(ConnectionSlots::try_acquire(slots, peer).expect("a free slot"))
    }

    fn full(slots: &Arc<ConnectionSlots>) -> Vec<Arc<ConnectionSlot>> {
        (0..MAX).map(|_| acquired(slots)).collect()
    }

    /// The connections that were displaced.
    fn displaced(all: &[Arc<ConnectionSlot>]) -> Vec<u64> {
        let is_open = |slot: &&Arc<ConnectionSlot>| slot.slots.lock().open.contains_key(&slot.number);
        all.iter().filter(|slot| !is_open(slot)).map(|slot| slot.number).collect()
    }

    #[test]
    fn oldest_incomplete_request_is_displaced() {
        let slots = slots();
        let mut all = full(&slots);
        all[0].set(RequestStage::Page);
        all[1].set(RequestStage::Reply);
        assert!(displaced(&all).is_empty());
        all.push(acquired(&slots));
        all.push(acquired(&slots));
        assert_eq!(displaced(&all), [2, 3]);
    }

    #[test]
    fn unread_reply_is_displaced_after_requests() {
        let slots = slots();
        let mut all = full(&slots);
        all.iter().for_each(|slot| slot.set(RequestStage::Page));
        let peer = all[0].peer();
        assert!(ConnectionSlots::try_acquire(&slots, peer).is_none(), "all wait for the gateway");
        all[5].set(RequestStage::Reply);
        all.push(acquired(&slots));
        assert_eq!(displaced(&all), [5]);
        drop(all.remove(0));
        acquired(&slots);
    }

    #[test]
    fn connection_is_kept_by_each_request_in_work() {
        let slots = slots();
        let all = full(&slots);
        let peer = all[0].peer();
        let mut holds: Vec<_> = all.iter().map(ConnectionSlot::hold).collect();
        let second = all[3].hold();
        drop(holds.remove(3));
        assert!(ConnectionSlots::try_acquire(&slots, peer).is_none(), "another request of the connection is in work");
        drop(second);
        let _newest = acquired(&slots);
        assert_eq!(displaced(&all), [3]);
        drop((holds, all));
        let table = slots.lock();
        assert_eq!((table.open.len(), table.waiting.len()), (1, 1), "the newest is left");
        drop(table);
    }
}
