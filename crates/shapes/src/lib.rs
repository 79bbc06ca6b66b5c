//! Live queries over HTTP: a server of the open shape protocol that Electric's clients use.
//!
//! A *shape* is a table, a predicate and a list of columns. Clients load it once and then follow its changes over plain HTTP;
//! answers are byte-stable, so that browsers and CDNs cache them and collapse live requests.
//!
//! # Contract
//!
//! - **Exact.** The rows of a shape are those of `SELECT ... WHERE` at each position of its log: every committed transaction is
//!   in the snapshot or in the log, and in one of them only.
//! - **Durable.** A transaction is acknowledged to Postgres only after it is on disk. Handles, offsets and ends of chunks
//!   are the same after a restart.
//! - **Bounded.** An idle shape is a few hundred bytes: no task, no file, no timer. Connections, requests, snapshots, unwritten
//!   bytes and the disk have limits.
//!
//! # Parts
//!
//! ```text
//! changes ──> routing ──> shape logs ──> store          one task applies all transactions, one thread writes
//!                │             │
//!           predicates      waiters ──> http             long-polls and event streams share one answer
//! ```

mod answers;
mod counters;
mod cursor;
mod database;
mod definition;
mod engine;
mod feed;
mod handle;
mod http_server;
mod identifier;
mod inspect;
mod json;
mod maintenance;
mod moves;
mod offset;
mod options;
mod order_by;
mod parameters;
mod resolver;
mod routing;
mod row_form;
mod run;
mod server;
mod shape;
mod shape_index;
mod shape_tasks;
mod snapshotter;
mod store;
mod table;
mod xid;

pub use counters::ShapeTotals;
pub use cursor::CacheAges;
pub use database::{ConnectionError, DatabaseLogin, GatewaySocket, PublicationMode};
pub use engine::{StartError, start};
pub use feed::{Feed, FeedError, FeedStart, OpenedFeed, OpeningFeed, SlotFeed};
pub use http_server::{bind, serve};
pub use inspect::{ShapeRow, ShapesSnapshot};
pub use options::ShapesOptions;
pub use parameters::{RequestSummary, read_request};
pub use server::{ServerStatus, ShapeServer};
pub use store::StoreError;
