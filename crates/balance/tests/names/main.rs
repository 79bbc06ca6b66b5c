//! Name resolution: a watcher with a scripted resolver under a paused clock, and DNS with a real name server on loopback.

mod dns;
mod name_server;
mod watcher;
