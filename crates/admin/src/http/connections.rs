//! The connections of one socket: a bounded number, of which none can keep a new one out by doing nothing.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use super::CONNECTIONS_MAX;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Its request is not complete.
    Head,
    /// Its reply is being sent.
    Reply,
    /// Its reply is being made, which takes as long as the gateway takes.
    Page,
}

/// See the [module](self).
pub(super) struct Connections {
    inner: Mutex<Inner>,
    left: Notify,
}

#[derive(Default)]
struct Inner {
    /// By number, so the oldest is first.
    open: BTreeMap<u64, Open>,
    next: u64,
}

struct Open {
    stage: Stage,
    displaced: Arc<Notify>,
}

/// The place of one connection, which it gives up when it is dropped.
pub(super) struct Place {
    pub(super) number: u64,
    connections: Arc<Connections>,
    displaced: Arc<Notify>,
}

impl Connections {
    pub(super) fn new() -> Self {
        Self { inner: Mutex::default(), left: Notify::new() }
    }

    /// A place for a new connection. If there is none, the oldest connection that waits for its client is displaced: one whose
    /// request is not complete, or else one whose reply is not read. If all wait for the gateway, so does this one.
    ///
    /// # Cancel safety
    /// Safe: no place is taken before this returns.
    pub(super) async fn enter(connections: &Arc<Self>) -> Place {
        loop {
            let left = connections.left.notified();
            if let Some(place) = Self::try_enter(connections) {
                return place;
            }
            left.await;
        }
    }

    fn try_enter(connections: &Arc<Self>) -> Option<Place> {
        let mut inner = connections.lock();
        if inner.open.len() >= CONNECTIONS_MAX {
            let waiting = inner.open.iter().filter(|(_, open)| open.stage != Stage::Page);
            let number = waiting.min_by_key(|(number, open)| (open.stage, **number)).map(|(number, _)| *number)?;
            let displaced = inner.open.remove(&number)?;
            displaced.displaced.notify_one();
        }
        let (number, displaced) = (inner.next, Arc::new(Notify::new()));
        inner.next += 1;
        inner.open.insert(number, Open { stage: Stage::Head, displaced: displaced.clone() });
        Some(Place { number, connections: connections.clone(), displaced })
    }

    /// A holder that panicked left a sound map: each section does one thing.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    pub(super) fn set(&self, stage: Stage) {
        if let Some(open) = self.connections.lock().open.get_mut(&self.number) {
            open.stage = stage;
        }
        if stage == Stage::Reply {
            // It can be displaced from now on.
            self.connections.left.notify_waiters();
        }
    }

    /// Completes when the place is needed for another connection.
    ///
    /// # Cancel safety
    /// Safe: the notification is kept for the next call.
    pub(super) async fn displaced(&self) {
        self.displaced.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.lock().open.remove(&self.number);
        self.connections.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entered(connections: &Arc<Connections>) -> Place {
        Connections::try_enter(connections).expect("there is a place")
    }

    /// The connections that were displaced.
    fn displaced(places: &[Place]) -> Vec<u64> {
        let open = |place: &&Place| place.connections.lock().open.contains_key(&place.number);
        places.iter().filter(|place| !open(place)).map(|place| place.number).collect()
    }

    #[test]
    fn the_oldest_incomplete_request_makes_room() {
        let connections = Arc::new(Connections::new());
        let mut places: Vec<_> = (0..CONNECTIONS_MAX).map(|_| entered(&connections)).collect();
        places[0].set(Stage::Page);
        places[1].set(Stage::Reply);
        assert!(displaced(&places).is_empty());
        places.push(entered(&connections));
        places.push(entered(&connections));
        assert_eq!(displaced(&places), [2, 3]);
    }

    #[test]
    fn an_unread_reply_makes_room_after_incomplete_requests() {
        let connections = Arc::new(Connections::new());
        let mut places: Vec<_> = (0..CONNECTIONS_MAX).map(|_| entered(&connections)).collect();
        places.iter().for_each(|place| place.set(Stage::Page));
        assert!(Connections::try_enter(&connections).is_none(), "all wait for the gateway");
        places[5].set(Stage::Reply);
        places.push(entered(&connections));
        assert_eq!(displaced(&places), [5]);
        drop(places.remove(0));
        entered(&connections);
    }
}
