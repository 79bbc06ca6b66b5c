//! What a client is told when the gateway, not the server, refuses it.

use std::borrow::Cow;

use tidegate_wire::{
    backend::{self, ErrorReport, Severity},
    sqlstate::{self, SqlState},
};

mod cause;
mod files;

pub use cause::{Cause, pgbouncer_reason};
pub use files::WithLimit;

/// An error in the words of the protocol: SQLSTATE, message, hint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({sqlstate})")]
pub struct Refusal {
    /// For programs.
    pub sqlstate: SqlState,
    /// For people, in one line.
    pub message: Cow<'static, str>,
    /// What may help.
    pub hint: Option<&'static str>,
}

impl Refusal {
    /// A refusal without a hint.
    #[must_use]
    pub fn new(sqlstate: SqlState, message: impl Into<Cow<'static, str>>) -> Self {
        Self { sqlstate, message: message.into(), hint: None }
    }

    /// The same with a hint.
    #[must_use]
    pub const fn hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }

    /// The client broke the protocol.
    #[must_use]
    pub fn protocol(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(sqlstate::PROTOCOL_VIOLATION, message)
    }

    /// The message that ends the session.
    #[must_use]
    pub fn fatal(&self) -> Vec<u8> {
        self.message_of(Severity::Fatal)
    }

    /// The message that ends the statement.
    #[must_use]
    pub fn error(&self) -> Vec<u8> {
        self.message_of(Severity::Error)
    }

    fn message_of(&self, severity: Severity) -> Vec<u8> {
        let mut out = Vec::new();
        let report = ErrorReport { hint: self.hint, ..ErrorReport::new(severity, self.sqlstate, &self.message) };
        backend::error_response(&report, &mut out);
        out
    }
}
