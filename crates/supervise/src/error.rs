//! Error of a refused child.

/// Reason why a scope refused a child. Nothing was started, and the future or closure was dropped unused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The scope is draining: it finishes its children and accepts no new ones.
    #[error("scope is draining and accepts no new children")]
    Draining,
    /// The scope is stopping or has stopped.
    #[error("scope is stopping and accepts no new children")]
    Stopping,
    /// The scope holds its maximum number of children.
    #[error("scope has its maximum of {max} children")]
    Full {
        /// The scope's `max_children`.
        max: usize,
    },
    /// A child with this key is live.
    #[error("a child with this key is live")]
    Exists,
}
