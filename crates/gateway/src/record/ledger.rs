//! The queries of one exchange: what was asked, what has come of it, and when it is written down.
//!
//! The queries under way stand in the order in which they were sent. [`Exchange`](crate::exchange::Exchange) says how many
//! the server still owes a reply; whatever is more than those at the front is over. A query that is over is written down
//! when the next one is, or at ReadyForQuery, because a Sync may fail for it (a deferred constraint).

use std::{collections::VecDeque, rc::Rc, time::Instant};

use tidegate_wire::{
    DecodeError,
    backend::{ErrorFields, TxStatus},
    frame::HEADER,
    frontend::{self, Bind, Execute, Parse, Query},
};

use super::{
    Witness,
    decision::{Facts, decide, works_of},
    entry::{Draft, Kind},
    hide::Failure,
    item::{Item, Said, anew, cut},
    recorder::{Over, Terms},
    sum::Sum,
};
use crate::{config::Per, params::Settings, statements::Statement};

/// What a ledger is kept in; used again by the next exchange.
#[derive(Debug, Default)]
pub(super) struct Book {
    under_way: VecDeque<Box<Item>>,
    over: Option<Box<Item>>,
    /// The unnamed statement.
    parsed: Said,
    /// What was prepared under a name, or bound, last.
    latest: Rc<Said>,
    /// The unnamed statement was said after that: an error before any execution is about it.
    parsed_is_latest: bool,
    /// The last simple query.
    simple: Rc<Said>,
    portals: Portals,
    /// Values were bound in this transaction, which a later error of it may tell.
    has_bound: bool,
    sum: Sum,
    /// Nothing if there is none.
    server: Option<Rc<[u8]>>,
    incoming: u64,
    outgoing: u64,
    /// How far the chunk at hand is counted.
    mark: usize,
    wait_us: u64,
}

/// By their names, the unnamed one first.
type Portals = Vec<(Vec<u8>, Option<Rc<Said>>)>;

/// More portals than a client has open at a time; of more, the oldest lose their texts.
const PORTALS_MAX: usize = 64;
/// Postgres looks at 63 bytes of an identifier; names of statements may be longer.
const NAME_BYTES_MAX: usize = 256;
/// Of a character in UTF-8.
const CHAR_BYTES_MAX: usize = 4;

/// Which server a query goes to.
#[derive(Clone, Copy)]
pub struct Upstream<'a> {
    /// Tells it from all others.
    pub id: u64,
    /// Its address.
    pub address: &'a dyn std::fmt::Display,
    /// The process there.
    pub pid: u32,
}

/// What the server was to answer when it answered with an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Front {
    /// A simple query, or nothing: then the error is about what is under way, if anything is.
    Query,
    /// A Sync: the error is about the query before it.
    Sync,
    /// A message of the extended protocol: the server skips everything up to the next Sync.
    Extended,
}

/// The queries of one exchange, each of which it writes down once, when it is over.
pub struct Ledger {
    witness: Rc<Witness>,
    terms: Rc<Terms>,
    book: Box<Book>,
    now: Instant,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("under_way", &self.book.under_way.len()).finish_non_exhaustive()
    }
}

impl Ledger {
    /// Begins at `now`, when the client has waited for a server since `asked`.
    #[must_use]
    pub fn open(witness: &Rc<Witness>, client: &Rc<Settings>, asked: Option<Instant>, now: Instant) -> Self {
        witness.note_settings(client);
        let mut book = witness.recorder.take_book();
        book.wait_us = asked.map_or(0, |asked| micros(asked, now));
        Self { witness: witness.clone(), terms: witness.recorder.terms(), book, now }
    }

    /// Names the server.
    #[must_use]
    pub fn with(mut self, upstream: Upstream<'_>) -> Self {
        self.book.server = Some(self.witness.recorder.server(&upstream));
        self
    }

    fn bytes_max(&self) -> usize {
        self.terms.journal.statement_bytes as usize
    }

    /// A chunk is at hand, of the client or of the server.
    #[inline]
    pub fn turn(&mut self, now: Instant) {
        self.now = now;
        self.book.mark = 0;
    }

    /// A message of the client, or a part of one.
    #[inline]
    pub fn hear(&mut self, bytes: usize) {
        self.book.incoming += bytes as u64;
    }

    /// The server's chunk is read up to there.
    #[inline]
    pub fn advance(&mut self, to: usize) {
        self.book.outgoing += to.saturating_sub(self.book.mark) as u64;
        self.book.mark = to;
    }

    /// So many of the server's last bytes are not for the client.
    pub fn swallow(&mut self, bytes: usize) {
        self.book.outgoing = self.book.outgoing.saturating_sub(bytes as u64);
    }

    /// A simple query.
    pub fn query(&mut self, text: &[u8]) {
        let bytes_max = self.bytes_max();
        anew(&mut self.book.simple).set_text(text, bytes_max);
        let said = self.book.simple.clone();
        self.ask(Some(said));
    }

    /// A call by FunctionCall.
    pub fn call(&mut self) {
        self.ask(None);
    }

    /// A statement is prepared; `is_kept` if the server alone knows it from here on.
    pub fn parse(&mut self, parse: &Parse<'_>, is_kept: bool) {
        let bytes_max = self.bytes_max();
        if is_kept && !parse.name.is_empty() {
            // A little more than is written down, so that it is known to be cut.
            self.witness.keep_prepared(parse.name, cut(parse.query, bytes_max + CHAR_BYTES_MAX).0);
        }
        let book = &mut *self.book;
        book.parsed_is_latest = parse.name.is_empty();
        let said = if book.parsed_is_latest { &mut book.parsed } else { anew(&mut book.latest) };
        said.set_text(parse.query, bytes_max);
        said.prepared.extend_from_slice(cut(parse.name, NAME_BYTES_MAX).0);
    }

    /// A statement is bound. `statement` is what the gateway knows by that name, `text` what it knows of an unnamed one.
    pub fn bind(&mut self, bind: &Bind<'_>, statement: Option<&Rc<Statement>>, text: Option<&[u8]>) {
        let bytes_max = self.bytes_max();
        let wants = self.terms.wants;
        let book = &mut *self.book;
        let at = portal(&mut book.portals, bind.portal);
        // What it said before may be the space for what it says now.
        book.portals[at].1 = None;
        let said = anew(&mut book.latest);
        match (statement, text) {
            (Some(statement), _) => said.set_statement(statement, bytes_max),
            (None, Some(text)) if book.parsed.text.is_empty() => said.set_text(text, bytes_max),
            (None, _) if bind.statement.is_empty() => said.copy_from(&book.parsed),
            (None, _) => match self.witness.prepared.borrow().get(bind.statement) {
                Some(text) => said.set_text(text, bytes_max),
                None => said.clear(),
            },
        }
        said.prepared.clear();
        said.prepared.extend_from_slice(cut(bind.statement, NAME_BYTES_MAX).0);
        said.set_parameters(bind, wants, bytes_max);
        book.has_bound |= said.has_parameters;
        book.parsed_is_latest = false;
        book.portals[at].1 = Some(book.latest.clone());
    }

    /// A name is given up.
    pub fn close_statement(&mut self, name: &[u8]) {
        self.witness.forget_prepared(name);
    }

    /// A portal is executed.
    pub fn execute(&mut self, name: &[u8]) {
        let portals = &self.book.portals;
        let bound = match name {
            b"" => portals.first(),
            _ => portals.iter().find(|(known, _)| known == name),
        };
        self.ask(bound.and_then(|(_, said)| said.clone()));
    }

    fn ask(&mut self, said: Option<Rc<Said>>) {
        let mut item = self.witness.recorder.take_item(self.now);
        let book = &mut *self.book;
        item.said = said;
        item.bytes_in = std::mem::take(&mut book.incoming);
        item.wait_us = std::mem::take(&mut book.wait_us);
        book.under_way.push_back(item);
    }

    /// A command of the query at the front is done.
    #[inline]
    pub fn tag(&mut self, body: &[u8]) {
        if let Some(item) = self.book.under_way.front_mut() {
            item.note_tag(body, self.terms.asks_works);
        }
    }

    /// The query that was asked last is answered in the server's place, when nothing else is owed.
    pub fn answered(&mut self, bytes: usize, tag: &[u8], status: TxStatus) {
        self.book.outgoing += bytes as u64;
        self.tag(tag);
        self.ready(status, 0);
    }

    /// The server owes replies to so many queries only: those before them are over.
    #[inline]
    pub fn settle(&mut self, owed: usize) {
        while self.book.under_way.len() > owed {
            let Some(mut item) = self.book.under_way.pop_front() else { return };
            item.end(self.now);
            item.bytes_out = std::mem::take(&mut self.book.outgoing);
            self.write_over();
            self.book.over = Some(item);
        }
    }

    /// The server has refused what stood at the front, and owes replies to so many queries now.
    pub fn fail(&mut self, fields: &ErrorFields<'_>, front: Front, owed: usize) {
        let (failure, hides, has_bound) = (Failure::of(fields), self.terms.hides, self.book.has_bound);
        let book = &mut *self.book;
        let skipped = book.under_way.len().saturating_sub(owed);
        let about = match front {
            Front::Query => book.under_way.front_mut(),
            Front::Sync => book.over.as_mut(),
            Front::Extended if skipped == 0 => return self.refused_before_execution(&failure),
            Front::Extended => book.under_way.front_mut(),
        };
        about.into_iter().for_each(|item| item.note_error(&failure, hides, has_bound));
        // Of a flight that fails only what failed was carried out; the rest is skipped and never was.
        for _ in 1..skipped {
            let rest = self.book.under_way.remove(1);
            rest.into_iter().for_each(|item| self.witness.recorder.put_item_back(item));
        }
        self.settle(owed);
    }

    /// A Parse, Bind or Describe that was sent without an Execute.
    fn refused_before_execution(&mut self, failure: &Failure<'_>) {
        let mut item = self.witness.recorder.take_item(self.now);
        let book = &mut *self.book;
        item.said = Some(if book.parsed_is_latest {
            let mut said = Rc::<Said>::default();
            anew(&mut said).copy_from(&book.parsed);
            said
        } else {
            book.latest.clone()
        });
        item.bytes_in = std::mem::take(&mut book.incoming);
        item.wait_us = std::mem::take(&mut book.wait_us);
        item.bytes_out = std::mem::take(&mut book.outgoing);
        item.note_error(failure, self.terms.hides, book.has_bound);
        self.write_over();
        self.book.over = Some(item);
    }

    /// ReadyForQuery, with so many queries owed behind it.
    pub fn ready(&mut self, status: TxStatus, owed: usize) {
        self.settle(owed);
        if let Some(over) = &mut self.book.over {
            over.bytes_out += std::mem::take(&mut self.book.outgoing);
            if owed == 0 {
                // The Sync.
                over.bytes_in += std::mem::take(&mut self.book.incoming);
            }
        }
        let something = self.book.over.is_some() || !self.book.sum.is_empty();
        self.write_over();
        if status == TxStatus::Idle && something {
            self.end_transaction("");
        }
    }

    fn end_transaction(&mut self, reason: &str) {
        self.write_sum(reason);
        self.witness.transactions.set(self.witness.transactions.get() + 1);
        self.book.portals.truncate(1);
        self.book.has_bound = false;
        self.witness.recorder.renew(&mut self.terms);
    }

    fn write_over(&mut self) {
        if let Some(item) = self.book.over.take() {
            self.write(item, "");
        }
    }

    fn write(&mut self, mut item: Box<Item>, reason: &str) {
        if self.terms.asks_works {
            item.works = item.works.and(works_of(item.text()));
        }
        let (recorder, journal) = (&self.witness.recorder, &self.terms.journal);
        if journal.per == Per::Transaction {
            self.book.sum.add(&item, &mut recorder.desk().borrow_mut().shapes, journal);
            return recorder.put_item_back(item);
        }
        let facts = self.facts(&item, item.wait_us + item.server_us());
        let Some(parameters) = decide(journal, &facts) else { return recorder.put_item_back(item) };
        let who = self.witness.who();
        let (server, transaction) = (self.book.server.as_deref(), self.transaction());
        recorder.query(Over { item, who: &who, server, transaction, terms: &self.terms, parameters, reason });
    }

    fn transaction(&self) -> u64 {
        self.witness.transactions.get() + 1
    }

    fn write_sum(&mut self, reason: &str) {
        let Some(item) = self.book.sum.take() else { return };
        let facts = self.facts(&item.total, item.total.wait_us + item.total.server_us());
        if decide(&self.terms.journal, &facts).is_some() {
            let who = self.witness.who();
            let draft = Draft {
                kind: Some(Kind::Transaction),
                who: &who,
                transaction: Some(self.transaction()),
                statement: &item.text,
                fingerprint: item.fingerprint,
                queries: Some(item.queries),
                reason: reason.as_bytes(),
                ..item.total.draft(self.book.server.as_deref())
            };
            self.witness.recorder.transaction(draft, item.total.ended());
        }
        self.book.sum.put_back(item);
    }

    fn facts(&self, item: &Item, total_us: u64) -> Facts<'_> {
        Facts {
            user: &self.witness.stranger.user,
            database: &self.witness.stranger.database,
            total: std::time::Duration::from_micros(total_us),
            works: item.works,
            failed: item.failed(),
        }
    }

    /// The exchange is over. What is under way still has no end, for this reason.
    pub fn close(mut self, reason: &str, now: Instant) {
        self.now = now;
        self.write_over();
        while let Some(mut item) = self.book.under_way.pop_front() {
            item.end(now);
            item.bytes_out = std::mem::take(&mut self.book.outgoing);
            self.write(item, reason);
        }
        if !self.book.sum.is_empty() {
            self.end_transaction(reason);
        }
        let Book { incoming, outgoing, wait_us, server, .. } = &mut *self.book;
        (*incoming, *outgoing, *wait_us, *server) = (0, 0, 0, None);
        self.book.portals.clear();
        self.book.parsed.clear();
        anew(&mut self.book.latest).clear();
        anew(&mut self.book.simple).clear();
        (self.book.parsed_is_latest, self.book.has_bound) = (false, false);
        self.witness.recorder.put_book_back(self.book);
    }

    /// The queries in what a client sent that got no server: written down with the error that it was told, or with the
    /// reason why it was told nothing. `known` finds its prepared statements.
    pub fn turn_away(
        mut self,
        messages: &[u8],
        known: impl Fn(&[u8]) -> Option<Rc<Statement>>,
        (sqlstate, reason): (&[u8], &str),
        now: Instant,
    ) {
        (self.book.server, self.book.wait_us) = (None, 0);
        for (tag, message) in Frames(messages) {
            let body = &message[HEADER..];
            self.hear(message.len());
            // What cannot be decoded would have been refused by the server; here nobody gets to that.
            let _ = self.note_message(tag, body, &known);
        }
        for item in &mut self.book.under_way {
            item.sqlstate.extend_from_slice(sqlstate);
        }
        let any = !self.book.under_way.is_empty();
        let witness = self.witness.clone();
        let per = self.terms.journal.per;
        self.close(reason, now);
        if any && per == Per::Query {
            witness.transactions.set(witness.transactions.get() + 1);
        }
    }
}

impl Ledger {
    fn note_message(
        &mut self,
        tag: u8,
        body: &[u8],
        known: impl Fn(&[u8]) -> Option<Rc<Statement>>,
    ) -> Result<(), DecodeError> {
        match tag {
            frontend::QUERY => self.query(Query::decode(body)?.text),
            frontend::PARSE => self.parse(&Parse::decode(body)?, false),
            frontend::BIND => {
                let bind = Bind::decode(body)?;
                self.bind(&bind, known(bind.statement).as_ref(), None);
            }
            frontend::EXECUTE => self.execute(Execute::decode(body)?.portal),
            frontend::FUNCTION_CALL => self.call(),
            _ => {}
        }
        Ok(())
    }
}

/// The place of a portal's text; the unnamed one is the first.
fn portal(portals: &mut Portals, name: &[u8]) -> usize {
    if portals.is_empty() {
        portals.push(Default::default());
    }
    if name.is_empty() {
        return 0;
    }
    if let Some(at) = portals.iter().position(|(known, _)| known == name) {
        return at;
    }
    if portals.len() >= PORTALS_MAX {
        portals.remove(1);
    }
    portals.push((name.to_vec(), None));
    portals.len() - 1
}

fn micros(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX)
}

/// The messages up to and with the first that a ReadyForQuery answers.
#[must_use]
pub fn first_flight(messages: &[u8]) -> &[u8] {
    let mut frames = Frames(messages);
    for (tag, _) in frames.by_ref() {
        if matches!(tag, frontend::QUERY | frontend::SYNC | frontend::FUNCTION_CALL) {
            break;
        }
    }
    &messages[..messages.len() - frames.0.len()]
}

/// The whole messages at the beginning of some bytes, each with its header.
#[derive(Clone, Copy, Debug)]
struct Frames<'a>(&'a [u8]);

impl<'a> Iterator for Frames<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&tag, rest) = self.0.split_first()?;
        let len = u32::from_be_bytes(*rest.first_chunk()?) as usize;
        let message = self.0.get(..len.checked_add(1)?).filter(|message| message.len() >= HEADER)?;
        self.0 = &self.0[message.len()..];
        Some((tag, message))
    }
}
