//! Why a child could not start.

/// Why a scope refused a child. Nothing was started, and the future or closure was dropped unused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The scope drains: it finishes what it has and takes nothing new.
    #[error("the scope drains and takes no new children")]
    Draining,
    /// The scope stops or has stopped.
    #[error("the scope stops and takes no new children")]
    Stopping,
    /// The scope holds as many children as it may.
    #[error("the scope holds its maximum of {max} children")]
    Full {
        /// The scope's `max_children`.
        max: usize,
    },
    /// A child of this key lives already.
    #[error("a child of this key lives already")]
    Exists,
}
