//! What hears of every delivery.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_lanes::{Interceptor, Record, RecordFailure};

use super::status::Status;
use tidegate_config::stream::{KeyOf, Keyless, StreamKeys};

/// Keeps the reason of the last failure, and says when order is not what was asked for. What succeeds costs two calls.
pub(super) struct Ear {
    status: Arc<Status>,
    /// Where a key is to stand in values, until one has none.
    pointer: Option<String>,
    has_warned: AtomicBool,
}

impl Ear {
    pub(super) fn new(status: &Arc<Status>, keys: &StreamKeys) -> Self {
        let pointer = match &keys.key {
            KeyOf::Pointer(pointer) if keys.keyless == Keyless::Unordered => Some(pointer.clone()),
            _ => None,
        };
        Self { status: Arc::clone(status), pointer, has_warned: AtomicBool::new(false) }
    }
}

impl Interceptor for Ear {
    /// A slip in the pointer would go by unnoticed: records without a key are delivered in any order.
    fn before(&self, record: &Record, _attempt: u32) {
        let Some(pointer) = &self.pointer else { return };
        if record.key().is_none() && !self.has_warned.swap(true, Ordering::Relaxed) {
            let (stream, position) = (self.status.name(), record.position());
            tracing::warn!(stream, %position, "nothing stands at the key {pointer} here: such records are not ordered");
        }
    }

    fn after(&self, record: &Record, result: Result<(), &RecordFailure>) {
        if let Err(failure) = result {
            let stream = self.status.name();
            tracing::debug!(stream, position = %record.position(), %failure, "a delivery failed");
            self.status.note_error(failure.to_string());
        }
    }
}
