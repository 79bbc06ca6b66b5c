//! Writer of the query log, on the threads of a gateway.
//!
//! A [`QueryLog`] is the log of a gateway. Each thread has a [`Recorder`] that appends records without waiting, each
//! session a [`SessionLog`], and each exchange with a server a [`QueryTracker`] that follows the queries in flight. If the
//! log is off, none of them exists, and the path of a query tests one `Option`.

mod peer;
mod pipeline;
mod query_log;
mod query_tracker;
mod recorder;
mod rules;
mod session_log;
mod single_query;
mod tracked_query;
mod transaction;

pub use peer::PeerInfo;
pub(crate) use query_log::successor_folders;
pub use query_log::{QueryLog, QueryLogError, ReadPermit};
pub use query_tracker::{FailedRequest, QueryTracker, messages_until_ready};
pub use recorder::{QueryServer, Recorder};
pub use session_log::SessionLog;
