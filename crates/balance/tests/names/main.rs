//! Names: a follower with a resolver of the tests' own on a clock that stands still, and DNS with a real name server on
//! loopback.

mod dns;
mod follower;
mod server;
