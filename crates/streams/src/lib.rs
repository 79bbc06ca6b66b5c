//! Ordered delivery of records from a source (Kafka, Postgres changes, a file) to a sink (HTTP, Postgres, Kafka, a command):
//! `tidegate stream` and `[[streams]]`.
//!
//! Moving records between systems needs order per key, retries, and commits that never pass an undelivered record.
//! `tidegate-lanes` guarantees these; this crate opens sources and sinks from the configuration, runs streams, and reports their
//! state. Nothing is committed before the sink or the dead-letter queue has acknowledged it.
//!
//! ```text
//! config ──> manager ──> pipeline ──> source ──> lanes ──> sink ──> acknowledgement ──> commit
//!                │            └──────> dead-letter queue
//!                └──> status table <── SHOW STREAMS, STREAM STOP, progress
//! ```
//!
//! ```no_run
//! use tidegate_config::{Config, stream::FlagValue};
//! use tidegate_streams::{GatewayAccess, RestartMode, StreamManager};
//! use tidegate_supervise::Scope;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let flags = [("name", "orders"), ("from", "orders.ndjson"), ("to", "https://example.org/orders")];
//! let stream = Config::stream_from_flags(&flags.map(|(key, text)| (key, FlagValue::Text(text.to_owned()))))?;
//! let scope = Scope::root("streams");
//! let mut manager = StreamManager::start(&[stream], &GatewayAccess::none(), RestartMode::Never, 2, scope)?;
//! for (name, result) in manager.ended().await {
//!     println!("{name}: {result:?}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Streams run on their own threads, beside the data plane and the control plane.

mod capture;
mod change;
mod copy_progress;
mod dead_letter;
mod encoding;
mod error;
mod gateway_access;
mod lane_names;
mod limits;
mod observer;
mod parameters;
mod pipeline;
mod plan;
mod progress;
mod rate;
mod sink;
mod snapshot;
mod source;
pub mod standalone;
mod status;
mod status_table;
mod stream_manager;

pub use capture::CaptureSnapshot;
pub use copy_progress::CopyProgress;
pub use error::StreamError;
pub use gateway_access::{GatewayAccess, GatewayConnector};
pub use snapshot::{StreamSnapshot, StreamState};
pub use source::postgres::control::request_backfill;
pub use status::{BackfillReply, StreamStatus};
pub use status_table::StatusTable;
pub use stream_manager::{RestartMode, StreamManager};
