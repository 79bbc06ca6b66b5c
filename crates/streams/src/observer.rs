//! Observes every delivery.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_lanes::{Interceptor, Record, RecordFailure};

use super::status::StreamStatus;
use tidegate_config::stream::{KeylessOrder, OrderingKey, StreamKeys};

/// Stores the reason of the last failure, and logs the first record without a key. A successful delivery costs two calls.
pub(super) struct DeliveryObserver {
    status: Arc<StreamStatus>,
    /// The key pointer, until a record without a key was logged.
    pointer: Option<String>,
    has_warned: AtomicBool,
}

impl DeliveryObserver {
    pub(super) fn new(status: &Arc<StreamStatus>, keys: &StreamKeys) -> Self {
        let pointer = match &keys.key {
            OrderingKey::Pointer(pointer) if keys.keyless == KeylessOrder::Unordered => Some(pointer.clone()),
            _ => None,
        };
        Self { status: Arc::clone(status), pointer, has_warned: AtomicBool::new(false) }
    }
}

impl Interceptor for DeliveryObserver {
    /// Logs the first record without a key: a mistake in the pointer would be invisible, because such records are delivered in
    /// any order.
    fn before(&self, record: &Record, _attempt: u32) {
        let Some(pointer) = &self.pointer else { return };
        if record.key().is_none() && !self.has_warned.swap(true, Ordering::Relaxed) {
            let (stream, position) = (self.status.name(), record.position());
            tracing::warn!(stream, %position, "no value at the key {pointer}: records without a key are not ordered");
        }
    }

    fn after(&self, record: &Record, result: Result<(), &RecordFailure>) {
        if let Err(failure) = result {
            let stream = self.status.name();
            tracing::debug!(stream, position = %record.position(), %failure, "delivery failed");
            self.status.record_error(failure.to_string());
        }
    }

    fn dead_letter_refused(&self, _: &Record, failure: &RecordFailure) {
        self.status.record_error(format!("the dead letter refuses a record: {failure}"));
    }
}
