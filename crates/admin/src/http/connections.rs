//! The connection slots of one socket. Idle connections cannot keep new ones out.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use super::CONNECTIONS_MAX;

/// Stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RequestStage {
    /// The request is incomplete.
    Head,
    /// The request waits until its page may be built.
    Queued,
    /// The reply is being sent.
    Reply,
    /// The reply is being built, which depends on the gateway only.
    Page,
}

/// A bounded set of connections. See the [module](self).
pub(crate) struct ConnectionSlots {
    inner: Mutex<SlotTable>,
    released: Notify,
}

#[derive(Default)]
struct SlotTable {
    /// Key: the number, so the oldest is first.
    open: BTreeMap<u64, OpenConnection>,
    next: u64,
}

struct OpenConnection {
    stage: RequestStage,
    dropped_for_another: Arc<Notify>,
}

/// The slot of one connection; released when dropped.
pub(crate) struct ConnectionSlot {
    pub(crate) number: u64,
    connections: Arc<ConnectionSlots>,
    dropped_for_another: Arc<Notify>,
}

impl ConnectionSlots {
    pub(crate) fn new() -> Self {
        Self { inner: Mutex::default(), released: Notify::new() }
    }

    /// Takes a slot. Without a free one, drops the oldest connection that waits for its client: an incomplete request first, then
    /// a queued one, then an unread reply. If all pages are being built, this call waits.
    ///
    /// # Cancel safety
    /// Safe: no slot is taken before this returns.
    pub(crate) async fn acquire(connections: &Arc<Self>) -> ConnectionSlot {
        loop {
            let released = connections.released.notified();
            if let Some(slot) = Self::try_acquire(connections) {
                return slot;
            }
            released.await;
        }
    }

    fn try_acquire(connections: &Arc<Self>) -> Option<ConnectionSlot> {
        let mut inner = connections.lock();
        if inner.open.len() >= CONNECTIONS_MAX {
            let waiting = inner.open.iter().filter(|(_, open)| open.stage != RequestStage::Page);
            let number = waiting.min_by_key(|(number, open)| (open.stage, **number)).map(|(number, _)| *number)?;
            let dropped_for_another = inner.open.remove(&number)?;
            dropped_for_another.dropped_for_another.notify_one();
        }
        let (number, dropped_for_another) = (inner.next, Arc::new(Notify::new()));
        inner.next += 1;
        inner.open.insert(
            number,
            OpenConnection { stage: RequestStage::Head, dropped_for_another: dropped_for_another.clone() },
        );
        Some(ConnectionSlot { number, connections: connections.clone(), dropped_for_another })
    }

    /// A holder that panicked left a consistent map: each section makes one change.
    fn lock(&self) -> MutexGuard<'_, SlotTable> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionSlot {
    pub(crate) fn set(&self, stage: RequestStage) {
        if let Some(open) = self.connections.lock().open.get_mut(&self.number) {
            open.stage = stage;
        }
        if stage != RequestStage::Page {
            // The connection may be dropped from now on.
            self.connections.released.notify_waiters();
        }
    }

    /// Completes when the slot is needed for another connection.
    ///
    /// # Cancel safety
    /// Safe: the notification is kept for the next call.
    pub(crate) async fn dropped_for_another(&self) {
        self.dropped_for_another.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.connections.lock().open.remove(&self.number);
        self.connections.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acquired(connections: &Arc<ConnectionSlots>) -> ConnectionSlot {
        ConnectionSlots::try_acquire(connections).expect("a free slot")
    }

    /// The connections that were displaced.
    fn dropped_for_another(slots: &[ConnectionSlot]) -> Vec<u64> {
        let open = |slot: &&ConnectionSlot| slot.connections.lock().open.contains_key(&slot.number);
        slots.iter().filter(|slot| !open(slot)).map(|slot| slot.number).collect()
    }

    #[test]
    fn oldest_incomplete_request_is_dropped() {
        let connections = Arc::new(ConnectionSlots::new());
        let mut slots: Vec<_> = (0..CONNECTIONS_MAX).map(|_| acquired(&connections)).collect();
        slots[0].set(RequestStage::Page);
        slots[1].set(RequestStage::Reply);
        assert!(dropped_for_another(&slots).is_empty());
        slots.push(acquired(&connections));
        slots.push(acquired(&connections));
        assert_eq!(dropped_for_another(&slots), [2, 3]);
    }

    #[test]
    fn unread_reply_is_dropped_after_requests() {
        let connections = Arc::new(ConnectionSlots::new());
        let mut slots: Vec<_> = (0..CONNECTIONS_MAX).map(|_| acquired(&connections)).collect();
        slots.iter().for_each(|slot| slot.set(RequestStage::Page));
        assert!(ConnectionSlots::try_acquire(&connections).is_none(), "all wait for the gateway");
        slots[5].set(RequestStage::Reply);
        slots.push(acquired(&connections));
        assert_eq!(dropped_for_another(&slots), [5]);
        drop(slots.remove(0));
        acquired(&connections);
    }
}
