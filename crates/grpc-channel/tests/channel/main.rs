//! The channel against real HTTP/2 servers on loopback.

#![allow(clippy::unwrap_used, reason = "a failed setup is a failed test")]

mod calls;
mod deadlines;
mod faults;
mod leaks;
mod names;
mod retries;
mod stream_failures;
mod test_server;
mod tls;
