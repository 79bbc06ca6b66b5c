//! State that operators see and change: the gateway, its threads, its streams and its live queries.

use std::sync::{Arc, OnceLock, Weak};

use tidegate_proxy::plane::{Gateway, Workers};
use tidegate_shapes::ShapeServer;
use tidegate_streams::StatusTable;

/// State that the console, the metrics and the web console show and change.
pub struct AdminContext {
    /// State shared by all threads.
    pub gateway: Arc<Gateway>,
    /// The threads.
    pub workers: Arc<Workers>,
    streams: OnceLock<StatusTable>,
    shapes: OnceLock<Weak<ShapeServer>>,
}

impl AdminContext {
    /// The context of a gateway without streams and live queries.
    #[must_use]
    pub fn new(gateway: Arc<Gateway>, workers: Arc<Workers>) -> Self {
        Self { gateway, workers, streams: OnceLock::new(), shapes: OnceLock::new() }
    }

    /// Adds the streams, once; a second call has no effect.
    pub fn set_streams(&self, streams: StatusTable) {
        let _ = self.streams.set(streams);
    }

    /// Adds the server of `[shapes]`, once. A weak reference: its folder is free as soon as its tasks have ended.
    pub fn set_shapes(&self, server: &Arc<ShapeServer>) {
        let _ = self.shapes.set(Arc::downgrade(server));
    }

    /// The streams of the configuration; `None` before they are started.
    pub(crate) fn streams(&self) -> Option<&StatusTable> {
        self.streams.get()
    }

    /// The server of `[shapes]`, while it runs.
    #[must_use]
    pub fn shapes(&self) -> Option<Arc<ShapeServer>> {
        self.shapes.get().and_then(Weak::upgrade)
    }
}
