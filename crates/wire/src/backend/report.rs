//! Errors and notices: the same fields under two tags.

use std::borrow::Cow;

use super::{ERROR_RESPONSE, NOTICE_RESPONSE};
use crate::cursor::Cursor;
use crate::error::DecodeError;
use crate::frame::{put, put_text};
use crate::sqlstate::SqlState;

/// The body of ErrorResponse or NoticeResponse: fields with a code and a value.
///
/// Every field is optional, because servers and proxies may omit any of them (CVE-2026-6666).
/// <https://www.postgresql.org/docs/current/protocol-error-fields.html>
#[derive(Debug, Clone, Copy)]
pub struct ErrorFields<'a>(Cursor<'a>);

impl<'a> ErrorFields<'a> {
    /// Decodes the body.
    ///
    /// # Errors
    /// A field or the list has no terminator, or bytes follow it.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(body);
        while fields.u8()? != 0 {
            fields.text()?;
        }
        fields.end()?;
        Ok(Self(Cursor::new(body)))
    }

    /// The value of the first field with this code.
    #[must_use]
    pub fn get(&self, code: u8) -> Option<&'a [u8]> {
        self.iter().find(|(found, _)| *found == code).map(|(_, value)| value)
    }

    /// All fields in the order of the message.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        let mut fields = self.0;
        std::iter::from_fn(move || {
            let code = fields.u8().ok().filter(|code| *code != 0)?;
            Some((code, fields.text().ok()?))
        })
        .fuse()
    }

    /// `ERROR`, `FATAL`, `NOTICE` and so on; the untranslated one if the server sends it (since 9.6).
    #[must_use]
    pub fn severity(&self) -> Option<&'a str> {
        let value = self.get(b'V').or_else(|| self.get(b'S'))?;
        str::from_utf8(value).ok()
    }

    /// The SQLSTATE; `None` if it is missing or malformed.
    #[must_use]
    pub fn code(&self) -> Option<SqlState> {
        self.get(b'C').and_then(SqlState::from_bytes)
    }

    /// The message, with a replacement character for each sequence that is not UTF-8.
    #[must_use]
    pub fn message(&self) -> Option<Cow<'a, str>> {
        self.get(b'M').map(String::from_utf8_lossy)
    }
}

/// Severity of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Details for developers.
    Debug,
    /// Information for administrators.
    Log,
    /// Information that the user requested.
    Info,
    /// Information that may help the user.
    Notice,
    /// A likely problem.
    Warning,
    /// The command was aborted.
    Error,
    /// The session was terminated.
    Fatal,
    /// All sessions were terminated.
    Panic,
}

impl Severity {
    /// The keyword in the message.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "DEBUG",
            Self::Log => "LOG",
            Self::Info => "INFO",
            Self::Notice => "NOTICE",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
            Self::Panic => "PANIC",
        }
    }
}

/// An error or notice to send.
///
/// ```
/// use tidegate_wire::{backend::{self, ErrorReport}, sqlstate};
/// let report = ErrorReport { hint: Some("Try again."), ..ErrorReport::fatal(sqlstate::TOO_MANY_CONNECTIONS, "no more room") };
/// let mut out = Vec::new();
/// backend::error_response(&report, &mut out);
/// assert_eq!(backend::ErrorFields::decode(&out[5..])?.code(), Some(sqlstate::TOO_MANY_CONNECTIONS));
/// # Ok::<(), tidegate_wire::DecodeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorReport<'a> {
    /// The severity.
    pub severity: Severity,
    /// The error code.
    pub sqlstate: SqlState,
    /// The primary message: one line.
    pub message: &'a str,
    /// Details.
    pub detail: Option<&'a str>,
    /// A suggestion.
    pub hint: Option<&'a str>,
}

impl<'a> ErrorReport<'a> {
    /// A report with a message only.
    #[must_use]
    pub const fn new(severity: Severity, sqlstate: SqlState, message: &'a str) -> Self {
        Self { severity, sqlstate, message, detail: None, hint: None }
    }

    /// A report of severity `ERROR`.
    #[must_use]
    pub const fn error(sqlstate: SqlState, message: &'a str) -> Self {
        Self::new(Severity::Error, sqlstate, message)
    }

    /// A report of severity `FATAL`.
    #[must_use]
    pub const fn fatal(sqlstate: SqlState, message: &'a str) -> Self {
        Self::new(Severity::Fatal, sqlstate, message)
    }

    fn put(&self, tag: u8, out: &mut Vec<u8>) {
        let severity = self.severity.as_str();
        let fields = [
            (b'S', Some(severity)),
            (b'V', Some(severity)),
            (b'C', Some(self.sqlstate.as_str())),
            (b'M', Some(self.message)),
            (b'D', self.detail),
            (b'H', self.hint),
        ];
        put(tag, out, |out| {
            for (code, value) in fields.into_iter().filter_map(|(code, value)| Some((code, value?))) {
                out.push(code);
                put_text(value.as_bytes(), out);
            }
            out.push(0);
        });
    }
}

/// Appends an ErrorResponse.
pub fn error_response(report: &ErrorReport<'_>, out: &mut Vec<u8>) {
    report.put(ERROR_RESPONSE, out);
}

/// Appends a NoticeResponse.
pub fn notice_response(report: &ErrorReport<'_>, out: &mut Vec<u8>) {
    report.put(NOTICE_RESPONSE, out);
}
