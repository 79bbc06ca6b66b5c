//! On what handlers run.

/// Handlers are futures, and each key that is busy is a light task on tokio: the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tasks;

/// Handlers block, and run on so many threads of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Threads(pub usize);
