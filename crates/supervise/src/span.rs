//! A tracing span per child, from start to exit; compiles to nothing without the feature `tracing`.

use std::fmt::Debug;

use crate::Exit;

#[cfg(feature = "tracing")]
#[derive(Debug)]
pub(crate) struct ChildSpan(tracing::Span);

#[cfg(feature = "tracing")]
impl ChildSpan {
    /// Clones the key for the span, before the shard takes ownership of the key.
    pub(crate) fn label<K: Clone>(key: Option<&K>) -> Option<K> {
        key.cloned()
    }

    /// Opens the span `child` with the fields `scope` and `key`; `exit` is recorded when the child ends.
    pub(crate) fn open<K: Debug>(scope: &str, label: Option<&K>) -> Self {
        use tracing::field::{Empty, debug as shown};
        Self(tracing::info_span!("child", scope, key = label.map(shown), exit = Empty))
    }

    pub(crate) fn inside<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.in_scope(work)
    }

    pub(crate) fn close(&mut self, exit: Exit) {
        self.0.record("exit", exit.as_str());
        self.0 = tracing::Span::none();
    }
}

#[cfg(not(feature = "tracing"))]
#[derive(Debug)]
pub(crate) struct ChildSpan;

#[cfg(not(feature = "tracing"))]
#[expect(clippy::unused_self, reason = "same interface as the span with the feature")]
impl ChildSpan {
    pub(crate) fn label<K>(_: Option<&K>) -> Option<K> {
        None
    }

    pub(crate) fn open<K: Debug>(_: &str, _: Option<&K>) -> Self {
        Self
    }

    pub(crate) fn inside<T>(&self, work: impl FnOnce() -> T) -> T {
        work()
    }

    pub(crate) fn close(&mut self, _: Exit) {}
}
