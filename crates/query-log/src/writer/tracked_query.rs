//! State of a query: its statement, its timing and its result.

use std::{rc::Rc, time::Instant};
use tidegate_sql::{
    cache::{Lookup, NormalizeCache},
    error_values::{ReportedError, SYNTAX_ERROR},
    normalize,
    redact::sets_password,
    trace_parent::{TraceParent, split_comment},
};

use tidegate_wire::{backend::CommandComplete, frontend::Bind};

use super::rules::statement_class;
use crate::record::{BoundParameter, RecordDraft, write_parameter};
use tidegate_config::StatementClasses;
use tidegate_session_state::statements::Statement;

/// A statement with its name and bound parameters. The tracker, a portal and queries in flight share it.
#[derive(Debug, Default)]
pub(super) struct LoggedStatement {
    /// Text, truncated to `statement_bytes`; empty if `shared` is set.
    pub(super) own_text: Vec<u8>,
    pub(super) is_truncated: bool,
    pub(super) shared: Option<Rc<Statement>>,
    /// Name of the prepared statement.
    pub(super) name: Vec<u8>,
    /// JSON array of the values; empty unless they may be recorded.
    pub(super) parameters: Vec<u8>,
    /// JSON array that shows only which values are NULL.
    pub(super) redacted: Vec<u8>,
    /// Whether there are parameters, recorded or not.
    pub(super) has_parameters: bool,
    /// Parent in the comment of the text.
    pub(super) parent: Option<TraceParent>,
}

/// Maximum length of a statement name. Postgres truncates identifiers to 63 bytes, but not the names of prepared
/// statements.
pub(super) const NAME_BYTES_MAX: usize = 256;
/// Capacity above which a buffer is released with its query.
const BYTES_KEPT: usize = 1024;

impl LoggedStatement {
    pub(super) fn clear(&mut self) {
        self.shared = None;
        self.is_truncated = false;
        self.has_parameters = false;
        self.parent = None;
        for buffer in [&mut self.own_text, &mut self.name, &mut self.parameters, &mut self.redacted] {
            clear_buffer(buffer);
        }
    }

    pub(super) fn set_text(&mut self, text: &[u8], bytes_max: usize) {
        self.clear();
        self.parent = split_comment(text).1;
        let (text, is_truncated) = truncate_utf8(text, bytes_max);
        self.own_text.extend_from_slice(text);
        self.is_truncated = is_truncated;
    }

    pub(super) fn set_statement(&mut self, statement: &Rc<Statement>, bytes_max: usize) {
        self.clear();
        self.is_truncated = statement.text().len() > bytes_max;
        self.shared = Some(statement.clone());
    }

    /// Copies the text only.
    pub(super) fn copy_text_from(&mut self, other: &Self) {
        self.set_text(&other.own_text, usize::MAX);
        (self.is_truncated, self.parent) = (other.is_truncated, other.parent);
    }

    /// Copies a prepared statement, which stays available for the next Bind.
    pub(super) fn copy_from(&mut self, other: &Self) {
        self.clear();
        self.shared.clone_from(&other.shared);
        (self.is_truncated, self.has_parameters) = (other.is_truncated, other.has_parameters);
        self.parent = other.parent;
        self.own_text.extend_from_slice(&other.own_text);
        self.name.extend_from_slice(&other.name);
        self.parameters.extend_from_slice(&other.parameters);
        self.redacted.extend_from_slice(&other.redacted);
    }

    /// Whether the text contains the word COPY.
    fn contains_copy(&self) -> bool {
        let mut words = self.text().split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
        words.any(|word| word.eq_ignore_ascii_case(b"copy"))
    }

    pub(super) fn text(&self) -> &[u8] {
        self.shared.as_ref().map_or(&self.own_text, |statement| statement.text())
    }

    /// Sets name and parameters from a Bind. The statement is already set.
    pub(super) fn set_bind(&mut self, bind: &Bind<'_>, capture: ParameterCapture, bytes_max: usize) {
        self.name.clear();
        self.name.extend_from_slice(truncate_utf8(bind.statement, NAME_BYTES_MAX).0);
        self.set_parameters(bind, capture, bytes_max);
    }

    /// Encodes the values of a Bind in the forms that may be recorded, up to the maximum length.
    fn set_parameters(&mut self, bind: &Bind<'_>, capture: ParameterCapture, bytes_max: usize) {
        let Ok(mut values) = bind.values() else { return };
        if !capture.values && !capture.redacted {
            self.has_parameters = values.next().is_some();
            return;
        }
        // As in the protocol: without a format code all values are text, one code applies to all, otherwise each has its
        // own.
        let binary: Vec<bool> = values.formats().map(|code| code == 1).collect();
        let all_binary = if binary.len() == 1 { binary[0] } else { false };
        for (at, value) in values.enumerate() {
            self.has_parameters = true;
            let is_binary = if binary.len() > 1 { binary.get(at) == Some(&true) } else { all_binary };
            let parameter = match value {
                None => BoundParameter::Null,
                Some(bytes) if is_binary => BoundParameter::Binary(truncate_utf8(bytes, bytes_max).0),
                Some(bytes) => BoundParameter::Text(truncate_utf8(bytes, bytes_max).0),
            };
            let hidden = if value.is_none() { BoundParameter::Null } else { BoundParameter::Redacted };
            if capture.values {
                add_parameter(&mut self.parameters, parameter, bytes_max);
            }
            if capture.redacted {
                add_parameter(&mut self.redacted, hidden, bytes_max);
            }
        }
        for out in [&mut self.parameters, &mut self.redacted] {
            if !out.is_empty() {
                out.push(b']');
            }
        }
    }
}

/// Microseconds between two instants.
pub(super) fn micros_between(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX)
}

/// Returns the statement for writing; if it is shared, it is replaced by an empty one.
pub(super) fn make_unique(logged: &mut Rc<LoggedStatement>) -> &mut LoggedStatement {
    if Rc::get_mut(logged).is_none() {
        *logged = Rc::default();
    }
    Rc::get_mut(logged).expect("the reference is unique, or was replaced above")
}

/// Appends an element to an array that is not closed yet. Beyond `bytes_max`, one element with `…` is appended, then none.
fn add_parameter(out: &mut Vec<u8>, parameter: BoundParameter<'_>, bytes_max: usize) {
    if out.len() > bytes_max {
        return;
    }
    out.push(if out.is_empty() { b'[' } else { b',' });
    write_parameter(parameter, out);
    if out.len() > bytes_max {
        out.push(b',');
        write_parameter(BoundParameter::Text("…".as_bytes()), out);
    }
}

/// The forms in which parameters may be recorded by any rule.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ParameterCapture {
    pub(super) values: bool,
    pub(super) redacted: bool,
}

/// The prefix of a text that ends between characters, and whether the text is longer.
pub(super) fn truncate_utf8(text: &[u8], bytes_max: usize) -> (&[u8], bool) {
    if text.len() <= bytes_max {
        return (text, false);
    }
    let is_inside = |at: usize| text[at] & 0xc0 == 0x80;
    let end = (bytes_max.saturating_sub(3)..=bytes_max).rev().find(|at| !is_inside(*at)).unwrap_or(bytes_max);
    (&text[..end], true)
}

fn clear_buffer(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > BYTES_KEPT {
        *buffer = Vec::new();
    }
}

/// A query of an exchange.
#[derive(Debug)]
pub(super) struct TrackedQuery {
    /// `None` for a FunctionCall, which has no text, and while there is no query.
    pub(super) statement: Option<Rc<LoggedStatement>>,
    /// Released statement, for reuse.
    spare: Option<Rc<LoggedStatement>>,
    /// Statement classes, if a rule tests them.
    pub(super) classes: StatementClasses,
    pub(super) began: Instant,
    ended: Instant,
    /// Microseconds from `began` to `ended`.
    server_us: u64,
    pub(super) wait_us: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) rows: Option<u64>,
    pub(super) tag: Vec<u8>,
    /// Parent in a distributed trace; set before the record is written.
    pub(super) parent: Option<TraceParent>,
    /// The error, if the query failed.
    pub(super) error: Option<Box<QueryError>>,
}

/// Error of a query.
#[derive(Clone, Debug, Default)]
pub(super) struct QueryError {
    pub(super) sqlstate: Vec<u8>,
    /// The message, with values redacted as configured.
    pub(super) message: Vec<u8>,
    /// The message with the values of parameters, for records that contain these; empty if it is the same.
    pub(super) message_with_values: Vec<u8>,
}

/// Maximum length of the tags of a query with many statements.
const TAG_BYTES_MAX: usize = 256;
/// Maximum length of an error message.
const MESSAGE_BYTES_MAX: usize = 1024;

impl TrackedQuery {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            statement: None,
            spare: None,
            classes: StatementClasses::default(),
            began: now,
            ended: now,
            server_us: 0,
            wait_us: 0,
            bytes_in: 0,
            bytes_out: 0,
            rows: None,
            tag: Vec::new(),
            parent: None,
            error: None,
        }
    }

    pub(super) fn reset(&mut self, now: Instant) {
        self.statement = None;
        self.classes = StatementClasses::default();
        self.begin(now);
        (self.wait_us, self.bytes_in, self.bytes_out, self.rows) = (0, 0, 0, None);
        self.tag.clear();
        self.parent = None;
        self.error = None;
    }

    /// Returns an empty statement to fill in, in reused space.
    pub(super) fn new_statement(&mut self) -> &mut LoggedStatement {
        let logged = self.spare.take().unwrap_or_default();
        make_unique(self.statement.insert(logged))
    }

    /// Returns the statement, to be completed.
    pub(super) fn statement_mut(&mut self) -> &mut LoggedStatement {
        make_unique(self.statement.get_or_insert_default())
    }

    /// Starts the clock of the query.
    pub(super) fn begin(&mut self, now: Instant) {
        (self.began, self.ended, self.server_us) = (now, now, 0);
    }

    /// Drops the statement, and keeps its space for reuse if it is not shared.
    pub(super) fn release_statement(&mut self) {
        let Some(mut logged) = self.statement.take() else { return };
        if let Some(own) = Rc::get_mut(&mut logged) {
            own.clear();
            self.spare = Some(logged);
        }
    }

    pub(super) fn text(&self) -> &[u8] {
        self.statement.as_ref().map_or(&[], |logged| logged.text())
    }

    pub(super) fn is_truncated(&self) -> bool {
        self.statement.as_ref().is_some_and(|logged| logged.is_truncated)
    }

    pub(super) fn ended(&self) -> Instant {
        self.ended
    }

    pub(super) fn end(&mut self, now: Instant) {
        (self.ended, self.server_us) = (now, micros_between(self.began, now));
    }

    pub(super) fn failed(&self) -> bool {
        self.error.is_some()
    }

    fn sqlstate(&self) -> &[u8] {
        self.error.as_ref().map_or(&[], |error| &error.sqlstate)
    }

    /// Sets the error that the client receives, unless the query has already failed.
    pub(super) fn set_sqlstate(&mut self, sqlstate: &[u8]) {
        if !self.failed() && !sqlstate.is_empty() {
            self.error = Some(Box::new(QueryError { sqlstate: sqlstate.to_vec(), ..QueryError::default() }));
        }
    }

    /// The normalised text and the fingerprint, from the cache.
    pub(super) fn normalized<'a>(&self, cache: &'a mut NormalizeCache) -> Lookup<'a> {
        match self.statement.as_ref().and_then(|logged| logged.shared.as_ref()) {
            Some(statement) => cache.normalize_prepared(statement.digest(), statement.text()),
            // A comment that differs each time would match no cached statement.
            None => cache.normalize_text(split_comment(self.text()).0),
        }
    }

    /// The normalised text up to the first quote, and whether that is not the whole text. `None` unless the server could
    /// not parse the text, or never received it and it cannot be parsed.
    pub(super) fn normalized_prefix(&self) -> Option<(Vec<u8>, bool)> {
        let is_unterminated = || !self.is_truncated() && normalize::ends_within_quotes(self.text());
        if !self.tag.is_empty() || !(PARSE_ERRORS.contains(&self.sqlstate()) || is_unterminated()) {
            return None;
        }
        let (prefix, mut out) = (normalize::before_quotes(self.text()), Vec::new());
        normalize::normalize(prefix, &mut out);
        Some((out, prefix.len() < self.text().len()))
    }

    pub(super) fn server_us(&self) -> u64 {
        self.server_us
    }

    /// The fields of a record that depend on the query only. `server` is the server fields, if it had a server.
    pub(super) fn draft<'a>(&'a self, server: Option<&'a [u8]>) -> RecordDraft<'a> {
        RecordDraft {
            server: server.unwrap_or_default(),
            wait_us: Some(self.wait_us),
            server_us: server.map(|_| self.server_us()),
            total_us: Some(self.wait_us + self.server_us()),
            rows: self.rows,
            bytes_in: Some(self.bytes_in),
            bytes_out: Some(self.bytes_out),
            tag: &self.tag,
            traceparent: self.parent,
            sqlstate: self.sqlstate(),
            message: self.error.as_ref().map_or(&[], |error| &error.message),
            ..RecordDraft::default()
        }
    }

    /// A command of the query completed.
    pub(super) fn on_command_complete(&mut self, body: &[u8], uses_statement_classes: bool) {
        let Ok(complete) = CommandComplete::decode(body) else { return };
        if let Some(rows) = complete.rows() {
            *self.rows.get_or_insert(0) += rows;
        }
        if uses_statement_classes {
            self.classes = self.classes.with(statement_class(complete.tag));
        }
        join(&mut self.tag, complete.tag, TAG_BYTES_MAX);
    }

    /// The query failed; the first error is kept. `has_bound_values`: values were bound in this transaction, so the message
    /// may quote them.
    pub(super) fn on_error(&mut self, failure: &ReportedError<'_>, redaction: ErrorRedaction, has_bound_values: bool) {
        if self.failed() {
            return;
        }
        // A FunctionCall has no text but may have arguments, and COPY has data.
        let may_contain_values = has_bound_values
            || self.statement.as_ref().is_none_or(|logged| logged.has_parameters || logged.contains_copy());
        let redact_literals = redaction.literals || sets_password(self.text(), self.is_truncated());
        let mut error = Box::new(QueryError { sqlstate: failure.sqlstate.to_vec(), ..QueryError::default() });
        let redacts = redact_literals || (redaction.parameters && may_contain_values);
        if !redacts {
            append_message(failure.message, &mut error.message);
            self.error = Some(error);
            return;
        }
        let mut normalized = Vec::new();
        let known = if redact_literals {
            normalize::normalize(self.text(), &mut normalized);
            &normalized
        } else {
            append_message(failure.message, &mut error.message_with_values);
            self.text()
        };
        let mut hidden = Vec::new();
        failure.hide_values(known, &mut hidden);
        append_message(&hidden, &mut error.message);
        self.error = Some(error);
    }
}

/// Truncates after redaction: in a truncated message, the end of a quoted value cannot be found.
fn append_message(message: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(truncate_utf8(message, MESSAGE_BYTES_MAX).0);
}

/// SQLSTATEs of errors in the text itself (syntax, escapes, encoding): the server has not parsed the text beyond the error.
const PARSE_ERRORS: [&[u8]; 4] = [SYNTAX_ERROR, b"22025", b"22021", b"22P05"];

/// Values that an error message must not contain.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ErrorRedaction {
    pub(super) literals: bool,
    pub(super) parameters: bool,
}

/// Appends to a list that is joined by `; `, up to the maximum length.
pub(super) fn join(out: &mut Vec<u8>, part: &[u8], bytes_max: usize) {
    if out.len() + part.len() + 2 > bytes_max {
        if !out.ends_with("…".as_bytes()) && out.len() <= bytes_max {
            out.extend_from_slice("; …".as_bytes());
        }
        return;
    }
    if !out.is_empty() {
        out.extend_from_slice(b"; ");
    }
    out.extend_from_slice(part);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_truncated_between_characters() {
        for (text, bytes_max, expected) in [("abc", 3, "abc"), ("abc", 2, "ab"), ("aé", 2, "a"), ("a💧b", 4, "a")] {
            let (kept, is_truncated) = truncate_utf8(text.as_bytes(), bytes_max);
            assert_eq!((kept, is_truncated), (expected.as_bytes(), kept.len() < text.len()));
        }
    }

    #[test]
    fn a_list_of_tags_stays_short() {
        let mut out = Vec::new();
        for _ in 0..1000 {
            join(&mut out, b"SELECT 1", 32);
        }
        assert_eq!(String::from_utf8(out).unwrap(), "SELECT 1; SELECT 1; SELECT 1; …");
    }
}
