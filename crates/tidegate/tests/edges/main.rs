//! The protocol cases of `docs/src/internals/tested-cases.md`, each against real Postgres 14 and 18.
//!
//! `edge_NN_...` is case NN. A test that says nothing of the gateway runs its script at both doors of a fixture: what
//! the gateway answers must be what Postgres answers.

/// Makes a test for each major version of Postgres from one body.
macro_rules! on_each_postgres {
    ($($(#[$meta:meta])* fn $name:ident($fixture:ident) $body:block)*) => {$(
        $(#[$meta])*
        mod $name {
            #[allow(unused_imports, reason = "not every body names something of its file")]
            use super::*;

            fn on($fixture: &tidegate_testkit::Fixture) $body

            #[test]
            fn on_14() {
                on(&tidegate_testkit::Fixture::new(env!("CARGO_BIN_EXE_tidegate"), 14));
            }

            #[test]
            fn on_18() {
                on(&tidegate_testkit::Fixture::new(env!("CARGO_BIN_EXE_tidegate"), 18));
            }
        }
    )*};
}

/// A gateway before a server that misbehaves.
fn gateway_before(server: &tidegate_testkit::FaultyServer, pool: &str) -> tidegate_testkit::Gateway {
    tidegate_testkit::Gateway::before(env!("CARGO_BIN_EXE_tidegate"), server.address(), pool)
}

mod admin;
mod cancel;
mod copy;
mod copy_errors;
mod failed_logins;
mod life_cycle;
mod limits;
mod pipelining;
mod prepared;
mod reload;
mod schema_changes;
mod secrets;
mod server_settings;
mod session_state;
mod settings;
mod startup;
mod tls;
mod transactions;
