//! The Kafka source with a real broker, and with librdkafka's mock cluster for faults. Doc comments carry the numbers of
//! the crate's test catalogue.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod audit;
mod crash;
mod dead_letters;
mod faults;
mod fixtures;
mod member;
mod offsets;
mod reading;
mod rebalance;
mod topics;
