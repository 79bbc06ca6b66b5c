//! A tracing span for every attempt, if somebody listens at level DEBUG; nothing at all without the feature `tracing`.

use crate::record::Record;

#[cfg(feature = "tracing")]
#[derive(Clone, Debug)]
pub(crate) struct AttemptSpan(tracing::Span);

#[cfg(feature = "tracing")]
impl AttemptSpan {
    /// Opens the span `record` with the fields `subscription`, `lane`, `position` and `attempt`.
    pub(crate) fn open(subscription: &str, record: &Record, attempt: u32) -> Self {
        let (lane, position) = (record.lane().0, record.position().0);
        Self(tracing::debug_span!("record", subscription, lane, position, attempt))
    }

    pub(crate) fn inside<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.in_scope(work)
    }
}

#[cfg(not(feature = "tracing"))]
#[derive(Clone, Debug)]
pub(crate) struct AttemptSpan;

#[cfg(not(feature = "tracing"))]
#[expect(clippy::unused_self, reason = "the same face as the span of the feature")]
impl AttemptSpan {
    pub(crate) fn open(_: &str, _: &Record, _: u32) -> Self {
        Self
    }

    pub(crate) fn inside<T>(&self, work: impl FnOnce() -> T) -> T {
        work()
    }
}
