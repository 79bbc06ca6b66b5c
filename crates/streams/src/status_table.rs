//! The streams of a process, for the console, the progress report and the log.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{snapshot::StreamSnapshot, status::StreamStatus};
use tidegate_config::StreamConfig;

/// The streams of a process, in the order of the configuration. Removed streams come last, until they have ended.
#[derive(Clone, Default)]
pub struct StatusTable(Arc<Mutex<Vec<Arc<StreamStatus>>>>);

impl StatusTable {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<StreamStatus>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> Vec<Arc<StreamStatus>> {
        self.lock().clone()
    }

    pub(super) fn replace(&self, statuses: Vec<Arc<StreamStatus>>) {
        *self.lock() = statuses;
    }

    /// The current streams.
    #[must_use]
    pub fn streams(&self) -> Vec<Arc<StreamStatus>> {
        let mut streams = self.all();
        streams.retain(|status| !status.is_gone());
        streams
    }

    /// Stops all streams permanently: deliveries in flight may end within the `drain` of each stream, and records that are done
    /// are committed.
    pub fn stop(&self) {
        self.lock().iter().for_each(|status| status.shut_down());
    }

    /// Applies the limits of these settings: concurrency and rate. Other settings are ignored.
    pub fn set_limits(&self, streams: &[StreamConfig]) {
        for status in self.all() {
            let named = streams.iter().find(|stream| stream.keys.name == status.name());
            named.into_iter().for_each(|stream| status.set_limits(stream));
        }
    }

    /// The current snapshot of each stream.
    #[must_use]
    pub fn snapshots(&self) -> Vec<StreamSnapshot> {
        self.streams().iter().map(|status| status.snapshot()).collect()
    }
}

impl std::fmt::Debug for StatusTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.lock().iter().map(|status| status.name().to_owned())).finish()
    }
}
