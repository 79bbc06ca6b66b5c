//! `tidegate stream` and `[[streams]]`: ordered records from a source to a sink, one at a time per key.
//!
//! `tidegate-lanes` keeps the order, retries and commits; this room opens the two ends that people name in a file or on the
//! command line, and says how it goes. Nothing is committed before its sink, or its dead-letter, has said that it has it.
//!
//! ```text
//! config ──> fleet ──> pipeline ──> source ──> lanes ──> sink ──> answer ──> commit
//!              │           └──────> letters (dead-letter)
//!              └──> board, status <── SHOW STREAMS, STREAM STOP, progress
//! ```
//!
//! Streams run on threads of their own, beside the data plane and the control plane.

mod board;
mod door;
mod ear;
mod error;
mod field;
mod fleet;
mod letters;
mod limits;
mod pipeline;
mod place;
mod plan;
mod progress;
mod sink;
mod source;
pub mod standalone;
mod status;
mod text;

pub use board::{Board, Snapshot, State};
pub use door::{Door, Doors};
pub use error::StreamError;
pub use fleet::{Fleet, Restart};
pub use status::Status;
