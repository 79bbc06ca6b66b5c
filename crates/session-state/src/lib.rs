//! State of a Postgres session that a pooler carries from one server connection to the next.
//!
//! In transaction mode the next transaction of a client may run on another server connection. Two parts of a session have to
//! follow the client: run-time parameters ([`params`]) and prepared statements ([`statements`], and [`unnamed`] for the one
//! without a name). The modules are pure: they store what each side has and compute the messages that are missing.
//! [`named_changes`] holds the settings that a portal changes when it runs, [`pending_changes`] those whose transaction has
//! not ended. [`config_values`] reads settings from Bind, and [`greetings`] caches what logins report. None does I/O.
//!
//! ```
//! use tidegate_session_state::params::{Settings, ParameterValue};
//!
//! let mut settings = Settings::default();
//! settings.set("timezone", ParameterValue::text(b"UTC"));
//! assert_eq!(settings.iter().count(), 1);
//! ```

pub mod config_values;
pub mod greetings;
pub mod named_changes;
pub mod params;
pub mod pending_changes;
pub mod statements;
pub mod unnamed;
