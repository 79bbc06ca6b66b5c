//! Spans of queries, made from their records on the journal's thread.
//!
//! The threads of the gateway write records and nothing else. The thread that writes them to the disk also passes them to
//! [`SpanQueue`], which samples them, encodes the sampled ones as OpenTelemetry spans and keeps them in bounded memory until an
//! exporter takes them. A span that finds no space is dropped and counted.

mod encoder;
mod protobuf;
mod queue;
mod sampler;
mod span_record;

pub use encoder::{SpanEncoder, request_body};
pub use queue::{SpanCounts, SpanQueue, TakenBatch};
pub use sampler::TraceSampler;
pub use span_record::SpanRecord;
