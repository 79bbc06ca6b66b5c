//! Operation of the gateway: limits, timeouts, the admin console, reloads, signals, and servers that fail.

mod console;
mod lifecycle;
mod limits;
mod reload;
mod secrets;
mod server_failures;
mod systemd;
mod timeouts;
