//! What hears of every delivery.

use std::sync::Arc;

use tidegate_lanes::{Failure, Interceptor, Record};

use super::status::Status;

/// Keeps the reason of the last failure. What succeeds costs one call.
pub(super) struct Ear(pub(super) Arc<Status>);

impl Interceptor for Ear {
    fn after(&self, record: &Record, result: Result<(), &Failure>) {
        if let Err(failure) = result {
            let stream = self.0.name();
            tracing::debug!(stream, position = %record.position(), %failure, "a delivery failed");
            self.0.note_error(failure.to_string());
        }
    }
}
