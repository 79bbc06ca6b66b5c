//! One query under way: what was said, and what has come of it so far.

use std::{rc::Rc, time::Instant};
use tidegate_sql::{
    error_values::{ReportedError, SYNTAX_ERROR},
    normalize,
    redact::sets_password,
};

use tidegate_wire::{backend::CommandComplete, frontend::Bind};

use super::decision::work_of;
use crate::entry::{Draft, Parameter, write_parameter};
use tidegate_config::Works;
use tidegate_session_state::statements::Statement;

/// What a client has said: a statement, perhaps under a name, perhaps with parameters. The book, a portal and the queries
/// under way share it.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Cut to `statement_bytes`; empty if the statement is shared.
    pub(super) text: Vec<u8>,
    pub(super) is_cut: bool,
    pub(super) statement: Option<Rc<Statement>>,
    /// The client's name for it.
    pub(super) prepared: Vec<u8>,
    /// A JSON array, if parameters may be written down.
    pub(super) parameters: Vec<u8>,
    /// The same with nothing but which are NULL.
    pub(super) redacted: Vec<u8>,
    /// It has parameters, written down or not.
    pub(super) has_parameters: bool,
}

/// Postgres looks at 63 bytes of an identifier; names of statements may be longer.
pub(super) const NAME_BYTES_MAX: usize = 256;
/// A buffer that has grown larger is given back when its query is over.
const BYTES_KEPT: usize = 1024;

impl Said {
    pub(super) fn clear(&mut self) {
        self.statement = None;
        self.is_cut = false;
        self.has_parameters = false;
        for buffer in [&mut self.text, &mut self.prepared, &mut self.parameters, &mut self.redacted] {
            clear(buffer);
        }
    }

    pub(super) fn set_text(&mut self, text: &[u8], bytes_max: usize) {
        self.clear();
        let (text, is_cut) = cut(text, bytes_max);
        self.text.extend_from_slice(text);
        self.is_cut = is_cut;
    }

    pub(super) fn set_statement(&mut self, statement: &Rc<Statement>, bytes_max: usize) {
        self.clear();
        self.is_cut = statement.text().len() > bytes_max;
        self.statement = Some(statement.clone());
    }

    /// Takes the text alone.
    pub(super) fn set_text_of(&mut self, other: &Self) {
        self.set_text(&other.text, usize::MAX);
        self.is_cut = other.is_cut;
    }

    /// Takes what was prepared over, and leaves it there for the next Bind.
    pub(super) fn copy_from(&mut self, other: &Self) {
        self.clear();
        self.statement.clone_from(&other.statement);
        (self.is_cut, self.has_parameters) = (other.is_cut, other.has_parameters);
        self.text.extend_from_slice(&other.text);
        self.prepared.extend_from_slice(&other.prepared);
        self.parameters.extend_from_slice(&other.parameters);
        self.redacted.extend_from_slice(&other.redacted);
    }

    /// Whether a word of it is COPY.
    fn copies(&self) -> bool {
        let mut words = self.whole_text().split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
        words.any(|word| word.eq_ignore_ascii_case(b"copy"))
    }

    pub(super) fn whole_text(&self) -> &[u8] {
        self.statement.as_ref().map_or(&self.text, |statement| statement.text())
    }

    /// Takes a Bind over, of which the statement is set already.
    pub(super) fn set_bound(&mut self, bind: &Bind<'_>, wants: Wants, bytes_max: usize) {
        self.prepared.clear();
        self.prepared.extend_from_slice(cut(bind.statement, NAME_BYTES_MAX).0);
        self.set_parameters(bind, wants, bytes_max);
    }

    /// Takes the values of a Bind, as far as they are wanted and fit.
    fn set_parameters(&mut self, bind: &Bind<'_>, wants: Wants, bytes_max: usize) {
        let Ok(mut values) = bind.values() else { return };
        if !wants.values && !wants.redacted {
            self.has_parameters = values.next().is_some();
            return;
        }
        // No format is text for all, one is for all, else each has its own.
        let binary: Vec<bool> = values.formats().map(|code| code == 1).collect();
        let of_all = if binary.len() == 1 { binary[0] } else { false };
        for (at, value) in values.enumerate() {
            self.has_parameters = true;
            let is_binary = if binary.len() > 1 { binary.get(at) == Some(&true) } else { of_all };
            let parameter = match value {
                None => Parameter::Null,
                Some(bytes) if is_binary => Parameter::Binary(cut(bytes, bytes_max).0),
                Some(bytes) => Parameter::Text(cut(bytes, bytes_max).0),
            };
            let hidden = if value.is_none() { Parameter::Null } else { Parameter::Redacted };
            if wants.values {
                add_parameter(&mut self.parameters, parameter, bytes_max);
            }
            if wants.redacted {
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

/// So many microseconds.
pub(super) fn micros(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX)
}

/// What is said next, in the space of what was said before if nobody reads that any more.
pub(super) fn anew(said: &mut Rc<Said>) -> &mut Said {
    if Rc::get_mut(said).is_none() {
        *said = Rc::default();
    }
    Rc::get_mut(said).expect("nobody else has it, or it was made just now")
}

/// Appends an element of an array that is not closed yet; beyond the bound there is one that says so, then none.
fn add_parameter(out: &mut Vec<u8>, parameter: Parameter<'_>, bytes_max: usize) {
    if out.len() > bytes_max {
        return;
    }
    out.push(if out.is_empty() { b'[' } else { b',' });
    write_parameter(parameter, out);
    if out.len() > bytes_max {
        out.push(b',');
        write_parameter(Parameter::Text("…".as_bytes()), out);
    }
}

/// In which forms parameters may be written down, should a rule say so.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wants {
    pub(super) values: bool,
    pub(super) redacted: bool,
}

/// The first bytes of a text, not in the middle of a character.
pub(super) fn cut(text: &[u8], bytes_max: usize) -> (&[u8], bool) {
    if text.len() <= bytes_max {
        return (text, false);
    }
    let is_inside = |at: usize| text[at] & 0xc0 == 0x80;
    let end = (bytes_max.saturating_sub(3)..=bytes_max).rev().find(|at| !is_inside(*at)).unwrap_or(bytes_max);
    (&text[..end], true)
}

fn clear(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > BYTES_KEPT {
        *buffer = Vec::new();
    }
}

/// One query under way.
#[derive(Debug)]
pub(super) struct Item {
    /// Nothing of a call by FunctionCall, which has no text, and while no query is under way.
    pub(super) said: Option<Rc<Said>>,
    /// The space of what was said before, which nobody reads any more.
    spare: Option<Rc<Said>>,
    /// What its statements do, as far as a rule asks.
    pub(super) works: Works,
    pub(super) began: Instant,
    ended: Instant,
    /// From the one to the other.
    server_us: u64,
    pub(super) wait_us: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) rows: Option<u64>,
    pub(super) tag: Vec<u8>,
    /// What went wrong, if something did.
    pub(super) wrong: Option<Box<Wrong>>,
}

/// The error of a query.
#[derive(Clone, Debug, Default)]
pub(super) struct Wrong {
    pub(super) sqlstate: Vec<u8>,
    /// What the server said, without what must not be given away.
    pub(super) message: Vec<u8>,
    /// The same with values of parameters, for where they are written down; empty if it says no more.
    pub(super) candid: Vec<u8>,
}

/// Tags of a query with many statements are cut here.
const TAG_BYTES_MAX: usize = 256;
/// And errors here.
const MESSAGE_BYTES_MAX: usize = 1024;

impl Item {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            said: None,
            spare: None,
            works: Works::default(),
            began: now,
            ended: now,
            server_us: 0,
            wait_us: 0,
            bytes_in: 0,
            bytes_out: 0,
            rows: None,
            tag: Vec::new(),
            wrong: None,
        }
    }

    pub(super) fn reset(&mut self, now: Instant) {
        self.said = None;
        self.works = Works::default();
        self.begin(now);
        (self.wait_us, self.bytes_in, self.bytes_out, self.rows) = (0, 0, 0, None);
        self.tag.clear();
        self.wrong = None;
    }

    /// What is said by it, to be filled in: the space of what was said before.
    pub(super) fn say(&mut self) -> &mut Said {
        let said = self.spare.take().unwrap_or_default();
        anew(self.said.insert(said))
    }

    /// The same, to be completed.
    pub(super) fn own_said(&mut self) -> &mut Said {
        anew(self.said.get_or_insert_default())
    }

    /// It is asked now.
    pub(super) fn begin(&mut self, now: Instant) {
        (self.began, self.ended, self.server_us) = (now, now, 0);
    }

    /// What was said goes, and leaves its space if nobody else has it.
    pub(super) fn fall_silent(&mut self) {
        let Some(mut said) = self.said.take() else { return };
        if let Some(own) = Rc::get_mut(&mut said) {
            own.clear();
            self.spare = Some(said);
        }
    }

    pub(super) fn text(&self) -> &[u8] {
        self.said.as_ref().map_or(&[], |said| said.whole_text())
    }

    pub(super) fn is_cut(&self) -> bool {
        self.said.as_ref().is_some_and(|said| said.is_cut)
    }

    pub(super) fn ended(&self) -> Instant {
        self.ended
    }

    pub(super) fn end(&mut self, now: Instant) {
        (self.ended, self.server_us) = (now, micros(self.began, now));
    }

    pub(super) fn failed(&self) -> bool {
        self.wrong.is_some()
    }

    fn sqlstate(&self) -> &[u8] {
        self.wrong.as_ref().map_or(&[], |wrong| &wrong.sqlstate)
    }

    /// The client is told this of it, unless it was told something before.
    pub(super) fn fail(&mut self, sqlstate: &[u8]) {
        if !self.failed() && !sqlstate.is_empty() {
            self.wrong = Some(Box::new(Wrong { sqlstate: sqlstate.to_vec(), ..Wrong::default() }));
        }
    }

    /// The shape of its text up to the first quote, and whether that is not all of it, if the server could not read it, or
    /// never did and could not have.
    pub(super) fn beginning(&self) -> Option<(Vec<u8>, bool)> {
        let is_broken = || !self.is_cut() && normalize::ends_within_quotes(self.text());
        if !self.tag.is_empty() || !(UNREADABLE.contains(&self.sqlstate()) || is_broken()) {
            return None;
        }
        let (begun, mut out) = (normalize::before_quotes(self.text()), Vec::new());
        normalize::normalize(begun, &mut out);
        Some((out, begun.len() < self.text().len()))
    }

    pub(super) fn server_us(&self) -> u64 {
        self.server_us
    }

    /// What a record says of it itself. `server` is what records say of where it was run.
    pub(super) fn draft<'a>(&'a self, server: Option<&'a [u8]>) -> Draft<'a> {
        Draft {
            server: server.unwrap_or_default(),
            wait_us: Some(self.wait_us),
            server_us: server.map(|_| self.server_us()),
            total_us: Some(self.wait_us + self.server_us()),
            rows: self.rows,
            bytes_in: Some(self.bytes_in),
            bytes_out: Some(self.bytes_out),
            tag: &self.tag,
            sqlstate: self.sqlstate(),
            message: self.wrong.as_ref().map_or(&[], |wrong| &wrong.message),
            ..Draft::default()
        }
    }

    /// A command of the query is done.
    pub(super) fn note_tag(&mut self, body: &[u8], asks_works: bool) {
        let Ok(complete) = CommandComplete::decode(body) else { return };
        if let Some(rows) = complete.rows() {
            *self.rows.get_or_insert(0) += rows;
        }
        if asks_works {
            self.works = self.works.with(work_of(complete.tag));
        }
        join(&mut self.tag, complete.tag, TAG_BYTES_MAX);
    }

    /// The query has failed; the first error counts. `may_tell`: values that were bound for it, or before it in its
    /// transaction, may stand in the error.
    pub(super) fn note_error(&mut self, error: &ReportedError<'_>, hides: Hides, may_tell: bool) {
        if self.failed() {
            return;
        }
        // A call by FunctionCall has no text, and may have arguments; COPY has its data.
        let is_told = may_tell || self.said.as_ref().is_none_or(|said| said.has_parameters || said.copies());
        let hides_literals = hides.literals || sets_password(self.text(), self.is_cut());
        let mut wrong = Box::new(Wrong { sqlstate: error.sqlstate.to_vec(), ..Wrong::default() });
        let hides_something = hides_literals || (hides.parameters && is_told);
        if !hides_something {
            keep_message(error.message, &mut wrong.message);
            self.wrong = Some(wrong);
            return;
        }
        let mut shape = Vec::new();
        let known = if hides_literals {
            normalize::normalize(self.text(), &mut shape);
            &shape
        } else {
            keep_message(error.message, &mut wrong.candid);
            self.text()
        };
        let mut hidden = Vec::new();
        error.hide_values(known, &mut hidden);
        keep_message(&hidden, &mut wrong.message);
        self.wrong = Some(wrong);
    }
}

/// Cut, when nothing is to be hidden any more: of a value that is cut nobody could say where it ends.
fn keep_message(message: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(cut(message, MESSAGE_BYTES_MAX).0);
}

/// Of what is wrong with the text of a statement, which the server reads as far as that only: its syntax, its escapes, its
/// encoding.
const UNREADABLE: [&[u8]; 4] = [SYNTAX_ERROR, b"22025", b"22021", b"22P05"];

/// What an error's text must not give away.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hides {
    pub(super) literals: bool,
    pub(super) parameters: bool,
}

/// Appends to a list that is joined by `; `, as long as it fits.
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
    fn a_text_is_cut_between_characters() {
        for (text, bytes_max, expected) in [("abc", 3, "abc"), ("abc", 2, "ab"), ("aé", 2, "a"), ("a💧b", 4, "a")] {
            let (cut, is_cut) = cut(text.as_bytes(), bytes_max);
            assert_eq!((cut, is_cut), (expected.as_bytes(), cut.len() < text.len()));
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
