//! Operation of the gateway: limits, timeouts, the admin console, reloads, signals, and servers that fail.

mod console;
mod demo;
mod health;
mod lifecycle;
mod limits;
mod logs;
mod monitoring;
mod reload;
mod runbook;
mod secrets;
mod server_failures;
mod systemd;
mod timeouts;
mod top;
mod web;
