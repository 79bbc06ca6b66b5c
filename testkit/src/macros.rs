//! Macros that expand in the crate under test, because Cargo sets the path of the gateway's binary only there.

/// Declares each test twice: against Postgres 14 and against Postgres 18.
///
/// ```ignore
/// on_each_postgres! {
///     fn copy_data_reaches_the_table(fixture) {
///         fixture.gateway("size = 1\n").client("postgres").ok("select 1");
///     }
/// }
/// ```
#[macro_export]
macro_rules! on_each_postgres {
    ($($(#[$meta:meta])* fn $name:ident($fixture:ident) $body:block)*) => {$(
        $(#[$meta])*
        mod $name {
            #[allow(unused_imports, reason = "not every test uses an item of its file")]
            use super::*;

            fn on($fixture: &$crate::Fixture) $body

            #[test]
            fn on_14() {
                on(&$crate::Fixture::new(env!("CARGO_BIN_EXE_tidegate"), 14));
            }

            #[test]
            fn on_18() {
                on(&$crate::Fixture::new(env!("CARGO_BIN_EXE_tidegate"), 18));
            }
        }
    )*};
}

/// Starts a gateway in trust mode whose database `postgres` is on this server (anything with an `address()`).
///
/// [`Gateway::for_server`](crate::Gateway::for_server) describes the second argument.
#[macro_export]
macro_rules! gateway_for {
    ($server:expr, $pool:expr $(,)?) => {
        $crate::Gateway::for_server(env!("CARGO_BIN_EXE_tidegate"), $server.address(), $pool)
    };
}
