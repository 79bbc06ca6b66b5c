//! A tracing span for each attempt at level DEBUG; a no-op without the feature `tracing`.

#[cfg(feature = "tracing")]
use tracing::{Span, level_filters::LevelFilter};

#[cfg(feature = "tracing")]
use crate::panic;
use crate::record::Record;

#[cfg(feature = "tracing")]
#[derive(Clone, Debug)]
pub(crate) struct AttemptSpan(Span);

// A panic in a tracing subscriber loses the span, not the record.
#[cfg(feature = "tracing")]
impl AttemptSpan {
    /// Opens the span `record` with the fields `subscription`, `lane`, `position` and `attempt`.
    pub(crate) fn open(subscription: &str, record: &Record, attempt: u32) -> Self {
        if LevelFilter::current() < LevelFilter::DEBUG {
            return Self(Span::none());
        }
        let (lane, position) = (record.lane().0, record.position().0);
        let span = panic::contain(|| tracing::debug_span!("record", subscription, lane, position, attempt));
        Self(span.unwrap_or_else(Span::none))
    }

    pub(crate) fn in_scope<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.0.is_disabled() {
            return work();
        }
        let entered = panic::contain(|| self.0.enter());
        let result = work();
        panic::contain(|| drop(entered));
        result
    }
}

#[cfg(not(feature = "tracing"))]
#[derive(Clone, Debug)]
pub(crate) struct AttemptSpan;

#[cfg(not(feature = "tracing"))]
#[expect(clippy::unused_self, reason = "same interface as with the feature `tracing`")]
impl AttemptSpan {
    pub(crate) fn open(_: &str, _: &Record, _: u32) -> Self {
        Self
    }

    pub(crate) fn in_scope<T>(&self, work: impl FnOnce() -> T) -> T {
        work()
    }
}
