//! The channel, with real HTTP/2 servers on loopback.

#![allow(clippy::unwrap_used, reason = "what a test sets up works, or the test has failed")]

mod backend;
mod calls;
mod deadlines;
mod faults;
mod leaks;
mod names;
mod retries;
mod tls;
