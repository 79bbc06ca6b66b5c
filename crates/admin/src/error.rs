//! Errors of console commands.

use std::borrow::Cow;

use tidegate_config::Dialect;
use tidegate_wire::{
    backend::{self, ErrorReport, Severity},
    sqlstate::{self, SqlState},
};

/// An error of one statement; the session continues.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({sqlstate})")]
pub(super) struct ConsoleError {
    pub(super) sqlstate: SqlState,
    pub(super) message: String,
    pub(super) hint: Option<Cow<'static, str>>,
}

impl ConsoleError {
    pub(super) fn new(sqlstate: SqlState, message: impl Into<String>) -> Self {
        Self { sqlstate, message: message.into(), hint: None }
    }

    pub(super) fn syntax(message: impl Into<String>) -> Self {
        Self::new(sqlstate::SYNTAX_ERROR, message)
    }

    pub(super) fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Appends the ErrorResponse. PgBouncer has one SQLSTATE for all errors of its console.
    pub(super) fn write(&self, dialect: Dialect, out: &mut Vec<u8>) {
        let sqlstate = match dialect {
            Dialect::Pgbouncer if self.sqlstate != sqlstate::QUERY_CANCELED => sqlstate::PROTOCOL_VIOLATION,
            _ => self.sqlstate,
        };
        let report =
            ErrorReport { hint: self.hint.as_deref(), ..ErrorReport::new(Severity::Error, sqlstate, &self.message) };
        backend::error_response(&report, out);
    }
}
