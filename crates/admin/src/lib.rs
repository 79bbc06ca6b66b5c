//! The operator's side, beside the path of queries.
//!
//! The console is a database whose queries are commands. What a text means (`command`), what a client of the extended
//! protocol has prepared (`desk`) and how rows look on the wire (`table`) are pure; `show` collects figures from
//! all threads, `order` changes what the gateway does, and `console` is the conversation with one client.

mod command;
pub mod console;
mod desk;
mod fault;
pub mod http;
mod metrics;
mod order;
mod parameters;
mod show;
mod table;
mod words;
