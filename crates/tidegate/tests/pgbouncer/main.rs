//! In place of PgBouncer: its files, its console, its limits and words, against a real Postgres.

mod absent;
mod auth;
mod bouncer;
mod cancels;
mod console;
mod differ;
mod ini;
mod keys;
#[cfg(feature = "ldap")]
mod ldap;
mod limits;
mod log;
mod metrics;
mod options;
#[cfg(feature = "pam")]
mod pam;
mod peers;
mod process;
mod restart;
mod servers;
mod sockets;
mod suspend;
mod timeouts;
mod tls;
