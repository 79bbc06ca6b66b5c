//! Streams from real Postgres servers, versions 14 and 18.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod commands;
mod faults;
mod fixture;
mod login;
mod preflight;
mod promotion;
mod rows;
mod slots;
mod snapshot;
mod streamed;
mod wal_bound;
