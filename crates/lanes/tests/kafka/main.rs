//! The Kafka source on a real broker, and on the client's mock cluster for faults. Numbers are those of the project's
//! list of points that a keyed consumer must hold; the table is in the README.

#![expect(clippy::unwrap_used, reason = "a helper of a test may panic as the test may")]

mod audit;
mod crash;
mod faults;
mod letters;
mod member;
mod offsets;
mod reading;
mod rebalance;
mod topics;
mod world;
