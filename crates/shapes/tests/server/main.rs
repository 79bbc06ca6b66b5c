//! A server of shapes over raw HTTP, against a real Postgres.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod events;
mod faults;
mod fixture;
mod follow;
mod hostile;
mod limits;
mod load;
mod predicates;
mod protocol;
mod publication;
mod rotation;
mod subqueries;
mod tables;
