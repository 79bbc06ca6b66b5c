//! Authentication of clients and towards servers: passwords, SCRAM, TLS and channel binding, against Postgres 14 and 18.

mod failed_logins;
mod logins;
mod tls;
