//! Tests of a subscription with the memory source. Doc comments carry the numbers of the crate's test catalogue. Every
//! test runs under a checker: at least once, in order per key, no overlap within a key, no commit past an unfinished
//! record.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod bounds;
mod checker;
mod deadline;
mod draining;
mod failure;
mod features;
mod fixtures;
mod ndjson;
mod order;
mod own_threads;
mod rotation;
