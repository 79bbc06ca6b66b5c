//! State of a session in a shared pool: settings, prepared statements, and what pins a client to its server. Each client
//! gets what a direct connection to Postgres 14 or 18 would give it.

mod deallocate;
mod pinning;
mod prepared_statements;
mod schema_changes;
mod server_settings;
mod set_in_transactions;
mod settings;
