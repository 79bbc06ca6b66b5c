//! An error of our own side of the protocol, as a value.

use std::borrow::Cow;

use super::report::{ErrorReport, Severity, error_response};
use crate::sqlstate::{self, SqlState};

/// SQLSTATE, message and hint of an ErrorResponse that has not been written yet.
///
/// ```
/// use tidegate_wire::{backend::ErrorReply, sqlstate};
///
/// let reply = ErrorReply::new(sqlstate::INVALID_PASSWORD, "password authentication failed").hint("check ~/.pgpass");
/// assert_eq!(reply.fatal()[0], b'E');
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({sqlstate})")]
pub struct ErrorReply {
    /// The five-character code that clients branch on.
    pub sqlstate: SqlState,
    /// The primary message, one line.
    pub message: Cow<'static, str>,
    /// A suggestion how to resolve the error.
    pub hint: Option<Cow<'static, str>>,
}

impl ErrorReply {
    /// An error without a hint.
    #[must_use]
    pub fn new(sqlstate: SqlState, message: impl Into<Cow<'static, str>>) -> Self {
        Self { sqlstate, message: message.into(), hint: None }
    }

    /// The same error with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A protocol violation by the peer (08P01).
    #[must_use]
    pub fn protocol(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(sqlstate::PROTOCOL_VIOLATION, message)
    }

    /// The ErrorResponse with severity FATAL, which ends the session.
    #[must_use]
    pub fn fatal(&self) -> Vec<u8> {
        self.response(Severity::Fatal)
    }

    /// The ErrorResponse with severity ERROR, which ends the statement.
    #[must_use]
    pub fn error(&self) -> Vec<u8> {
        self.response(Severity::Error)
    }

    fn response(&self, severity: Severity) -> Vec<u8> {
        let mut out = Vec::new();
        let report =
            ErrorReport { hint: self.hint.as_deref(), ..ErrorReport::new(severity, self.sqlstate, &self.message) };
        error_response(&report, &mut out);
        out
    }
}
