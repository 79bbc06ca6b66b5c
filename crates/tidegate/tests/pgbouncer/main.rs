//! Compatibility with PgBouncer: its files, console, limits and messages, against a real Postgres.

mod auth;
mod cancel;
mod console;
mod dialect;
mod differ;
mod first_logins;
mod ini;
mod ini_gateway;
mod keys;
mod kubernetes;
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
mod related;
mod restart;
mod servers;
mod sockets;
mod suspend;
mod timeouts;
mod tls;
mod unreachable_servers;
mod upgrade;
