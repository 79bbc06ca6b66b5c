//! A backend and its connections.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tidegate_balance::EndpointAddress;

use crate::connector::RequestSender;
use crate::controlled_stream::StreamControl;

/// A backend of a [`Channel`](crate::Channel), with its connections.
pub struct Backend {
    address: EndpointAddress,
    connections: Mutex<Connections>,
    next: AtomicUsize,
}

#[derive(Default)]
struct Connections {
    /// Connections that accept calls, by number.
    open: Vec<(u64, RequestSender)>,
    /// All connections, those included that only finish their calls.
    controls: Vec<Weak<StreamControl>>,
    next_number: u64,
    /// The backend was removed: no connection may be added.
    ended: bool,
    /// Increases when the channel stops connecting to this backend: tasks of an earlier generation add no connection.
    generation: u64,
}

impl Backend {
    pub(crate) fn new(address: EndpointAddress) -> Self {
        Self { address, connections: Mutex::default(), next: AtomicUsize::new(0) }
    }

    /// Address of the backend.
    pub fn address(&self) -> &EndpointAddress {
        &self.address
    }

    /// Number of connections that accept calls.
    pub fn connections(&self) -> usize {
        self.lock().open.len()
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a connection, in turn. Without an open connection, calls `on_lost` under the lock: the task of a connection can
    /// notice its end later than a caller, and the backend would be picked again until then.
    pub(crate) fn sender(&self, on_lost: impl FnOnce()) -> Option<RequestSender> {
        let connections = self.lock();
        let open = &connections.open;
        let turn = self.next.fetch_add(1, Ordering::Relaxed).checked_rem(open.len()).unwrap_or(0);
        let mut round = open[turn..].iter().chain(&open[..turn]);
        let found = round.find(|(_, sender)| !sender.is_closed()).map(|(_, sender)| sender.clone());
        if found.is_none() {
            on_lost();
        }
        found
    }

    /// Creates the control of a connection that is about to be opened.
    pub(crate) fn control(&self) -> Arc<StreamControl> {
        let control = Arc::new(StreamControl::default());
        let mut connections = self.lock();
        connections.controls.retain(|control| control.strong_count() > 0);
        connections.controls.push(Arc::downgrade(&control));
        if connections.ended {
            control.cut();
        }
        control
    }

    pub(crate) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Adds a connection, if `generation` is current, and calls `on_added` under the lock. Returns its number.
    pub(crate) fn add(&self, sender: RequestSender, generation: u64, on_added: impl FnOnce()) -> Option<u64> {
        let mut connections = self.lock();
        if connections.ended || connections.generation != generation {
            return None;
        }
        let number = connections.next_number;
        connections.next_number += 1;
        connections.open.push((number, sender));
        on_added();
        Some(number)
    }

    /// Removes a connection, and calls `on_removed` under the lock with whether others are open. `None` if `generation` is not
    /// current.
    pub(crate) fn remove<R>(
        &self,
        number: Option<u64>,
        generation: u64,
        on_removed: impl FnOnce(bool) -> R,
    ) -> Option<R> {
        let mut connections = self.lock();
        if connections.generation != generation {
            return None;
        }
        connections.open.retain(|(open, _)| Some(*open) != number);
        Some(on_removed(!connections.open.is_empty()))
    }

    /// Starts a new generation, and calls `on_released` under the lock. Open connections accept no calls any more, and end with
    /// their calls. Returns whether there were any.
    pub(crate) fn release_connections(&self, on_released: impl FnOnce()) -> bool {
        let mut connections = self.lock();
        connections.generation += 1;
        let open = std::mem::take(&mut connections.open);
        on_released();
        drop(connections);
        !open.is_empty()
    }

    /// Cuts all connections, those included that only finish their calls.
    pub(crate) fn end(&self) {
        let mut connections = self.lock();
        connections.ended = true;
        connections.open.clear();
        let controls: Vec<Weak<StreamControl>> = connections.controls.drain(..).collect();
        drop(connections);
        controls.iter().filter_map(Weak::upgrade).for_each(|control| control.cut());
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend").field("address", &self.address).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use hyper_util::rt::{TokioExecutor, TokioIo};

    use super::*;

    /// BA-16: with `PickFirst`, a backend that loses the race is connected before it is released, or not at all.
    #[tokio::test]
    async fn released_backend_gets_no_late_connection() {
        let backend = Backend::new(EndpointAddress::Unix("/nowhere".into()));
        let (near, _far) = tokio::io::duplex(1 << 10);
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(near));
        let (sender, _connection) = handshake.await.unwrap();
        let mut calls = Vec::new();
        let generation = backend.generation();
        assert!(!backend.release_connections(|| calls.push("idle")));
        assert_eq!(backend.add(sender.clone(), generation, || calls.push("late")), None);
        assert_eq!(backend.remove(None, generation, |_| calls.push("late")), None);
        assert_eq!(backend.add(sender, backend.generation(), || calls.push("ready")), Some(0));
        assert!(backend.release_connections(|| calls.push("idle")));
        assert_eq!((calls.as_slice(), backend.connections()), (&["idle", "ready", "idle"][..], 0));
    }

    /// BA-45: a caller that finds no connection reports the loss before another pick.
    #[test]
    fn missing_connection_is_reported_under_the_lock() {
        let backend = Backend::new(EndpointAddress::Unix("/nowhere".into()));
        let mut reports = 0;
        assert!(backend.sender(|| reports += 1).is_none());
        assert_eq!(reports, 1);
    }
}
