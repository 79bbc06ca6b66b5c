//! The query log against Postgres 14 and 18: every request of a client is recorded exactly once, with its text, tag, rows
//! and error, and no fault of the disk harms a client. [`cli`] tests the commands that read it.

mod cli;
mod connections;
mod disk;
mod fast_path;
mod logging_gateway;
mod privacy;
mod records;
mod rules;
mod traces;
