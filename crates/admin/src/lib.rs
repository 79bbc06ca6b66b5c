//! The operator's interface of the gateway: the admin console and metrics over HTTP.
//!
//! Operators and existing tools of PgBouncer need the commands, tables and metrics that they know. The console is a virtual
//! database whose queries are commands. Parsing of commands (`command`, `lexer`), prepared statements and portals (`portals`) and
//! encoding of rows (`table`) are pure; `show` collects values from all threads, `action` changes the gateway, and [`console`]
//! serves one client. [`http`] answers `GET /metrics` from the same tables, and [`web`] shows them on a page.
//!
//! ```no_run
//! use std::sync::Arc;
//! use tidegate_admin::AdminContext;
//! use tidegate_proxy::plane::{Gateway, Workers};
//!
//! # async fn example(gateway: Arc<Gateway>, workers: Arc<Workers>) -> anyhow::Result<()> {
//! let context = Arc::new(AdminContext::new(gateway, workers));
//! let socket = tidegate_admin::http::bind("127.0.0.1:9127".parse()?)?;
//! let scope = tidegate_admin::http::serve(&context, vec![socket])?;
//! # drop(scope);
//! # Ok(())
//! # }
//! ```

mod action;
mod command;
pub mod console;
mod context;
mod error;
pub mod http;
mod lexer;
mod metrics;
mod parameters;
mod portals;
mod queries;
mod show;
mod table;
pub mod web;

pub use context::AdminContext;
