//! Reasons for which the gateway, not the server, ends or refuses a session.

mod cause;

pub use cause::{Cause, pgbouncer_reason};
