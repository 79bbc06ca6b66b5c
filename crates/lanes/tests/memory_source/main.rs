//! The subscription over the memory source. Tests carry the numbers of the list in the crate's README. Every one of them
//! runs under a checker: at least once, in order per key, never two of a key at once, nothing committed that is open.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is a test that fails")]

mod apart;
mod checker;
mod deadline;
mod failure;
mod features;
mod leaving;
mod ndjson;
mod order;
mod pressure;
mod stage;
