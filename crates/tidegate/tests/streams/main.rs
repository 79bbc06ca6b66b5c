//! `tidegate stream` and `[[streams]]` as processes. Every record is delivered at least once and in order per key,
//! whatever the source and the sink do and whenever the process ends.

#![expect(clippy::unwrap_used, reason = "a helper of a test may panic as the test may")]

mod changes;
mod command;
mod console;
mod crash;
mod delivery;
mod delivery_table;
mod file_to_stdout;
mod http;
mod http_batches;
mod http_server;
mod in_gateway;
mod invalid_options;
#[cfg(feature = "kafka")]
mod kafka;
mod postgres;
mod process;
mod redrive;
mod rotation;
mod settings;
mod snapshot;
mod table_to_table;
mod transaction_pooler;
