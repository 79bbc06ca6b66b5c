//! The query journal against real Postgres 14 and 18: everything that a client does stands in it exactly once, with its
//! text, tag, rows and error, and nothing that happens to the disk harms a client.

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

mod connections;
mod disk;
mod forms;
mod kept;
mod privacy;
mod rules;
mod shapes;
