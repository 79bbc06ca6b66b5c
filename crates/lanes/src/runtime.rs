//! Execution models of handlers.

/// Handlers are futures; each busy key is a tokio task. The default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AsyncTasks;

/// Handlers block and run on a pool of this many threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockingThreads(pub usize);
