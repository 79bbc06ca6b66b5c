//! Observes attempts.

use crate::failure::RecordFailure;
use crate::record::Record;

/// Observes attempts: one call before and one call after each. Deliveries to the dead-letter queue are not attempts. The
/// calls are on the path of every record, so they should be fast. Panics are contained and have no effect.
pub trait Interceptor: Send + Sync + 'static {
    /// Called before the handler receives the record.
    fn before(&self, record: &Record, attempt: u32) {
        let _ = (record, attempt);
    }

    /// Called when the attempt has ended or is given up, because it is overdue or
    /// [abandoned](crate::FailureCause::Abandoned). For a batch, the first record stands for all.
    fn after(&self, record: &Record, result: Result<(), &RecordFailure>) {
        let _ = (record, result);
    }

    /// Called when the [`DeadLetterQueue`](crate::DeadLetterQueue) has refused a record. The delivery is repeated, or the key is
    /// parked if the failure is permanent.
    fn dead_letter_refused(&self, record: &Record, failure: &RecordFailure) {
        let _ = (record, failure);
    }
}
