//! The queries of one exchange: what was asked, what has come of it, and when it is written down.
//!
//! The queries under way stand in the order in which they were sent. [`Exchange`](crate::exchange::Exchange) says how many
//! the server still owes a reply; whatever is more than those at the front is over. A query that is over is written down
//! when the next one is, or at ReadyForQuery, because a Sync may fail for it (a deferred constraint).

use std::{collections::VecDeque, rc::Rc, time::Instant};
use tidegate_sql::error_values::ReportedError;

use tidegate_wire::{
    DecodeError,
    backend::{ErrorFields, TxStatus},
    frame::HEADER,
    frontend::{self, Bind, Execute, Parse, Query},
};

use super::{
    Recorder, Witness,
    decision::{Facts, decide, works_of},
    item::{Item, NAME_BYTES_MAX, Said, anew, cut, micros},
    lone::{Lone, Step},
    recorder::{Over, Terms},
    sum::Sum,
};
use crate::entry::{Draft, Kind};
use tidegate_config::Per;
use tidegate_session_state::{params::Settings, statements::Statement};

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
    portals: Portals,
    sum: Sum,
}

/// By their names, the unnamed one first.
type Portals = Vec<(Vec<u8>, Option<Rc<Said>>)>;

/// More portals than a client has open at a time; of more, the oldest lose their texts.
const PORTALS_MAX: usize = 64;
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
    /// The only query under way, or the last one; nothing if there is a book.
    lone: Option<Lone>,
    /// Where all else is kept, from when there is more to be kept than a lone query.
    book: Option<Box<Book>>,
    now: Instant,
    /// Nothing if there is none.
    server: Option<Rc<[u8]>>,
    incoming: u64,
    outgoing: u64,
    /// How far the chunk at hand is counted.
    mark: usize,
    wait_us: u64,
    /// Values were bound in this transaction, which a later error of it may tell.
    has_bound: bool,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let under_way = self.book.as_ref().map_or(0, |book| book.under_way.len());
        f.debug_struct("Ledger").field("lone", &self.lone).field("under_way", &under_way).finish_non_exhaustive()
    }
}

impl Ledger {
    /// Begins at `now`, when the client has waited for a server since `asked`.
    #[must_use]
    pub fn open(witness: &Rc<Witness>, client: &Rc<Settings>, asked: Option<Instant>, now: Instant) -> Self {
        witness.note_settings(client);
        Self {
            witness: witness.clone(),
            terms: witness.recorder.terms(),
            lone: None,
            book: None,
            now,
            server: None,
            incoming: 0,
            outgoing: 0,
            mark: 0,
            wait_us: asked.map_or(0, |asked| micros(asked, now)),
            has_bound: false,
        }
    }

    /// Names the server.
    #[must_use]
    pub fn with(mut self, upstream: Upstream<'_>) -> Self {
        self.server = Some(self.witness.recorder.server(&upstream));
        self
    }

    fn bytes_max(&self) -> usize {
        self.terms.journal.statement_bytes as usize
    }

    /// A chunk is at hand, of the client or of the server.
    #[inline]
    pub fn turn(&mut self, now: Instant) {
        self.now = now;
        self.mark = 0;
    }

    /// A message of the client, or a part of one.
    #[inline]
    pub fn hear(&mut self, bytes: usize) {
        self.incoming += bytes as u64;
    }

    /// The server's chunk is read up to there.
    #[inline]
    pub fn advance(&mut self, to: usize) {
        self.outgoing += to.saturating_sub(self.mark) as u64;
        self.mark = to;
    }

    /// So many of the server's last bytes are not for the client.
    pub fn swallow(&mut self, bytes: usize) {
        self.outgoing = self.outgoing.saturating_sub(bytes as u64);
    }

    /// The place of a query that would be the only one under way, if there is one that takes it.
    fn vacancy(&mut self, takes: impl FnOnce(&Lone) -> bool) -> Option<&mut Lone> {
        if self.book.is_some() || self.terms.journal.per == Per::Transaction {
            return None;
        }
        let (recorder, now) = (&self.witness.recorder, self.now);
        let lone = self.lone.get_or_insert_with(|| Lone::new(recorder.take_item(now)));
        takes(lone).then_some(lone)
    }

    /// The book, to which what was kept without one is moved.
    fn book(&mut self) -> &mut Book {
        let Self { witness, lone, book, .. } = self;
        book.get_or_insert_with(|| {
            let mut book = witness.recorder.take_book();
            if let Some(lone) = lone.take() {
                book.take_over(lone, &witness.recorder);
            }
            book
        })
    }

    #[cfg(test)]
    pub(super) fn open_book(&mut self) {
        self.book();
    }

    /// A simple query.
    pub fn query(&mut self, text: &[u8]) {
        let (bytes_max, now) = (self.bytes_max(), self.now);
        if let Some(lone) = self.vacancy(Lone::takes_query) {
            lone.begin(now).set_text(text, bytes_max);
            return self.ask_alone();
        }
        self.book().forget_unnamed();
        let mut item = self.witness.recorder.take_item(now);
        item.say().set_text(text, bytes_max);
        self.ask(item);
    }

    /// A call by FunctionCall.
    pub fn call(&mut self) {
        let item = self.witness.recorder.take_item(self.now);
        self.ask(item);
    }

    /// A statement is prepared; `is_kept` if the server alone knows it from here on.
    pub fn parse(&mut self, parse: &Parse<'_>, is_kept: bool) {
        let (bytes_max, now) = (self.bytes_max(), self.now);
        if is_kept && !parse.name.is_empty() {
            // A little more than is written down, so that it is known to be cut.
            self.witness.keep_prepared(parse.name, cut(parse.query, bytes_max + CHAR_BYTES_MAX).0);
        }
        if parse.name.is_empty()
            && let Some(lone) = self.vacancy(Lone::takes_parse)
        {
            lone.begin(now).set_text(parse.query, bytes_max);
            return lone.note_parse();
        }
        let book = self.book();
        book.parsed_is_latest = parse.name.is_empty();
        let said = if book.parsed_is_latest { &mut book.parsed } else { anew(&mut book.latest) };
        said.set_text(parse.query, bytes_max);
        said.prepared.extend_from_slice(cut(parse.name, NAME_BYTES_MAX).0);
    }

    /// A statement is bound. `statement` is what the gateway knows by that name, `text` what it knows of an unnamed one.
    pub fn bind(&mut self, bind: &Bind<'_>, statement: Option<&Rc<Statement>>, text: Option<&[u8]>) {
        if bind.portal.is_empty() && self.bind_alone(bind, statement, text) {
            return;
        }
        let (bytes_max, wants, witness) = (self.bytes_max(), self.terms.wants, self.witness.clone());
        let book = self.book();
        let at = portal(&mut book.portals, bind.portal);
        // What it said before may be the space for what it says now.
        book.portals[at].1 = None;
        let said = anew(&mut book.latest);
        match (statement, text) {
            (Some(statement), _) => said.set_statement(statement, bytes_max),
            (None, Some(text)) if book.parsed.text.is_empty() => said.set_text(text, bytes_max),
            (None, _) if bind.statement.is_empty() => said.copy_from(&book.parsed),
            (None, _) => match witness.prepared.borrow().get(bind.statement) {
                Some(text) => said.set_text(text, bytes_max),
                None => said.clear(),
            },
        }
        said.set_bound(bind, wants, bytes_max);
        let has_parameters = said.has_parameters;
        book.parsed_is_latest = false;
        book.portals[at].1 = Some(book.latest.clone());
        self.has_bound |= has_parameters;
    }

    /// Binds the unnamed portal without a book, if all that is needed is at hand.
    fn bind_alone(&mut self, bind: &Bind<'_>, statement: Option<&Rc<Statement>>, text: Option<&[u8]>) -> bool {
        let (bytes_max, wants, now) = (self.bytes_max(), self.terms.wants, self.now);
        let said = match (&mut self.lone, statement, text) {
            (Some(lone), None, _) if lone.is_parsed() && bind.statement.is_empty() => lone.said(),
            (_, None, None) => return false,
            (_, statement, text) => {
                let is_named = statement.is_some() || !bind.statement.is_empty();
                let Some(lone) = self.vacancy(|lone| lone.takes_bind(is_named)) else { return false };
                let said = lone.begin(now);
                match statement {
                    Some(statement) => said.set_statement(statement, bytes_max),
                    None => said.set_text(text.unwrap_or_default(), bytes_max),
                }
                said
            }
        };
        said.set_bound(bind, wants, bytes_max);
        self.has_bound |= said.has_parameters;
        self.lone.iter_mut().for_each(Lone::note_bind);
        true
    }

    /// A name is given up.
    pub fn close_statement(&mut self, name: &[u8]) {
        self.witness.forget_prepared(name);
    }

    /// A portal is executed.
    pub fn execute(&mut self, name: &[u8]) {
        if name.is_empty() && self.lone.as_ref().is_some_and(Lone::is_bound) {
            return self.ask_alone();
        }
        let portals = &self.book().portals;
        let bound = match name {
            b"" => portals.first(),
            _ => portals.iter().find(|(known, _)| known == name),
        };
        let said = bound.and_then(|(_, said)| said.clone());
        let mut item = self.witness.recorder.take_item(self.now);
        item.said = said;
        self.ask(item);
    }

    fn ask(&mut self, mut item: Box<Item>) {
        item.bytes_in = std::mem::take(&mut self.incoming);
        item.wait_us = std::mem::take(&mut self.wait_us);
        self.book().under_way.push_back(item);
    }

    /// The lone query is complete.
    fn ask_alone(&mut self) {
        let Some(lone) = &mut self.lone else { return };
        let item = lone.ask(self.now);
        item.bytes_in = std::mem::take(&mut self.incoming);
        item.wait_us = std::mem::take(&mut self.wait_us);
    }

    /// A command of the query at the front is done.
    #[inline]
    pub fn tag(&mut self, body: &[u8]) {
        let lone = self.lone.as_mut().and_then(Lone::under_way);
        if let Some(item) = lone.or_else(|| self.book.as_mut()?.under_way.front_mut()) {
            item.note_tag(body, self.terms.asks_works);
        }
    }

    /// The query that was asked last is answered in the server's place, when nothing else is owed.
    pub fn answered(&mut self, bytes: usize, tag: &[u8], status: TxStatus) {
        self.outgoing += bytes as u64;
        self.tag(tag);
        self.ready(status, 0);
    }

    /// The server owes replies to so many queries only: those before them are over.
    #[inline]
    pub fn settle(&mut self, owed: usize) {
        if let Some(lone) = &mut self.lone
            && owed == 0
            && let Some(item) = lone.end()
        {
            item.end(self.now);
            item.bytes_out = std::mem::take(&mut self.outgoing);
        }
        if self.book.is_some() {
            self.settle_book(owed);
        }
    }

    fn settle_book(&mut self, owed: usize) {
        while self.book().under_way.len() > owed {
            let Some(mut item) = self.book().under_way.pop_front() else { return };
            item.end(self.now);
            item.bytes_out = std::mem::take(&mut self.outgoing);
            self.write_over();
            self.book().over = Some(item);
        }
    }

    /// The server has refused what stood at the front, and owes replies to so many queries now.
    pub fn fail(&mut self, fields: &ErrorFields<'_>, front: Front, owed: usize) {
        let (failure, hides, has_bound) = (ReportedError::new(fields), self.terms.hides, self.has_bound);
        let book = self.book();
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
            let rest = self.book().under_way.remove(1);
            rest.into_iter().for_each(|item| self.witness.recorder.put_item_back(item));
        }
        self.settle(owed);
    }

    /// A Parse, Bind or Describe that was sent without an Execute.
    fn refused_before_execution(&mut self, failure: &ReportedError<'_>) {
        let mut item = self.witness.recorder.take_item(self.now);
        let book = self.book();
        if book.parsed_is_latest {
            item.say().copy_from(&book.parsed);
        } else {
            item.said = Some(book.latest.clone());
        }
        item.bytes_in = std::mem::take(&mut self.incoming);
        item.wait_us = std::mem::take(&mut self.wait_us);
        item.bytes_out = std::mem::take(&mut self.outgoing);
        item.note_error(failure, self.terms.hides, self.has_bound);
        self.write_over();
        self.book().over = Some(item);
    }

    /// ReadyForQuery, with so many queries owed behind it.
    pub fn ready(&mut self, status: TxStatus, owed: usize) {
        self.settle(owed);
        let lone = self.lone.as_mut().and_then(Lone::over);
        let something = match lone.or_else(|| self.book.as_mut()?.over.as_deref_mut()) {
            Some(over) => {
                over.bytes_out += std::mem::take(&mut self.outgoing);
                if owed == 0 {
                    // The Sync.
                    over.bytes_in += std::mem::take(&mut self.incoming);
                }
                true
            }
            None => self.book.as_ref().is_some_and(|book| !book.sum.is_empty()),
        };
        self.write_over();
        if status == TxStatus::Idle && something {
            self.end_transaction("");
        }
    }

    fn end_transaction(&mut self, reason: &str) {
        self.write_sum(reason);
        self.witness.transactions.set(self.witness.transactions.get() + 1);
        self.lone.iter_mut().for_each(Lone::end_transaction);
        // The unnamed portal may be the next flight's already.
        self.book.iter_mut().for_each(|book| book.portals.truncate(1));
        self.has_bound = false;
        self.witness.recorder.renew(&mut self.terms);
    }

    fn write_over(&mut self) {
        if let Some(mut lone) = self.lone.take() {
            if let Some(item) = lone.write_down() {
                self.write(item, "");
            }
            self.lone = Some(lone);
        } else if let Some(mut item) = self.book.as_mut().and_then(|book| book.over.take()) {
            self.write(&mut item, "");
            self.witness.recorder.put_item_back(item);
        }
    }

    fn write(&mut self, item: &mut Item, reason: &str) {
        if self.terms.asks_works {
            item.works = item.works.and(works_of(item.text()));
        }
        let (recorder, journal) = (&self.witness.recorder, &self.terms.journal);
        if let (Per::Transaction, Some(book)) = (journal.per, &mut self.book) {
            return book.sum.add(item, &mut recorder.desk().borrow_mut().shapes, journal);
        }
        let facts = self.facts(item, item.wait_us + item.server_us());
        let Some(parameters) = decide(journal, &facts) else { return };
        let who = self.witness.who();
        let (server, transaction) = (self.server.as_deref(), self.transaction());
        recorder.query(Over { item, who: &who, server, transaction, terms: &self.terms, parameters, reason });
    }

    fn transaction(&self) -> u64 {
        self.witness.transactions.get() + 1
    }

    fn write_sum(&mut self, reason: &str) {
        let Some(item) = self.book.as_mut().and_then(|book| book.sum.take()) else { return };
        let facts = self.facts(&item.total, item.total.wait_us + item.total.server_us());
        if decide(&self.terms.journal, &facts).is_some() {
            let who = self.witness.who();
            let draft = Draft {
                kind: Some(Kind::Transaction),
                who: &who,
                transaction: Some(self.transaction()),
                statement: &item.text,
                fingerprint: item.fingerprint,
                // Not while the client thought about it.
                server_us: self.server.as_ref().map(|_| item.server_us.min(item.total.server_us())),
                queries: Some(item.queries),
                reason: reason.as_bytes(),
                ..item.total.draft(self.server.as_deref())
            };
            self.witness.recorder.transaction(draft, item.total.ended());
        }
        self.book().sum.put_back(item);
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

    /// The exchange is over. What is under way, and a transaction that is open, has no end, for this reason; the first of it
    /// is what the client is told an error of, if it is told one.
    pub fn close(mut self, (sqlstate, reason): (&[u8], &str), now: Instant) {
        self.now = now;
        self.write_over();
        let mut told = sqlstate;
        if let Some(mut lone) = self.lone.take() {
            if let Some(item) = lone.under_way() {
                self.break_off(item, &mut told, reason);
            }
            return self.witness.recorder.put_item_back(lone.into_item());
        }
        while let Some(mut item) = self.book.as_mut().and_then(|book| book.under_way.pop_front()) {
            self.break_off(&mut item, &mut told, reason);
            self.witness.recorder.put_item_back(item);
        }
        if let Some(book) = self.book.as_mut().filter(|book| !book.sum.is_empty()) {
            book.sum.end(sqlstate, now);
            self.end_transaction(reason);
        }
        if let Some(mut book) = self.book.take() {
            book.clear();
            self.witness.recorder.put_book_back(book);
        }
    }

    /// The first one is what the client is `told` of.
    fn break_off(&mut self, item: &mut Item, told: &mut &[u8], reason: &str) {
        item.end(self.now);
        item.bytes_out = std::mem::take(&mut self.outgoing);
        item.fail(std::mem::take(told));
        self.write(item, reason);
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
        (self.server, self.wait_us) = (None, 0);
        for (tag, message) in Frames(messages) {
            let body = &message[HEADER..];
            self.hear(message.len());
            // What cannot be decoded would have been refused by the server; here nobody gets to that.
            let _ = self.note_message(tag, body, &known);
        }
        let under_way = &mut self.book().under_way;
        under_way.iter_mut().for_each(|item| item.fail(sqlstate));
        let any = !under_way.is_empty();
        let witness = self.witness.clone();
        let per = self.terms.journal.per;
        self.close((sqlstate, reason), now);
        if any && per == Per::Query {
            witness.transactions.set(witness.transactions.get() + 1);
        }
    }
}

impl Book {
    /// Goes on with what was kept without a book.
    fn take_over(&mut self, mut lone: Lone, recorder: &Recorder) {
        if lone.says_parsed() {
            self.parsed.set_text_of(lone.said());
            self.parsed_is_latest = lone.is_parsed();
        }
        if lone.was_bound() {
            self.latest = lone.item.said.clone().unwrap_or_default();
        }
        if lone.says_portal() {
            let at = portal(&mut self.portals, b"");
            self.portals[at].1 = lone.item.said.clone();
        }
        match lone.step() {
            Step::Asked => self.under_way.push_back(lone.into_item()),
            Step::Over => self.over = Some(lone.into_item()),
            _ => recorder.put_item_back(lone.into_item()),
        }
    }

    /// A simple query drops the unnamed statement and takes the unnamed portal.
    fn forget_unnamed(&mut self) {
        self.portals.iter_mut().filter(|(name, _)| name.is_empty()).for_each(|(_, said)| *said = None);
        self.parsed.clear();
        anew(&mut self.latest).clear();
        self.parsed_is_latest = false;
    }

    /// Leaves nothing but space for the next exchange.
    fn clear(&mut self) {
        self.portals.clear();
        self.forget_unnamed();
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_journal::{AtEnd, JournalReader, ReadFrom};

    use super::*;
    use tidegate_config as config;

    use crate::{
        entry::{self, Entry},
        record::{Archive, Recorder, Stranger},
    };

    /// What the journal has of a script.
    fn written(per: Per, script: impl FnOnce(Ledger, Instant)) -> Vec<Entry> {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("journal");
        let settings =
            config::Journal { folder: folder.clone(), per, connections: false, ..config::Journal::default() };
        let archive = Archive::open(&settings).unwrap().unwrap();
        let now = Instant::now();
        let recorder = Recorder::new(&archive, 0, &settings, now).unwrap();
        let witness = Witness::new(&recorder, Stranger::default(), 1, None, now);
        let ledger = Ledger::open(&witness, &Rc::default(), None, now);
        script(ledger.with(Upstream { id: 1, address: &"db", pid: 2 }), now);
        assert!(archive.close(Duration::from_secs(60)).unwrap().is_complete());
        let mut reader = JournalReader::open(&folder, &ReadFrom::Beginning, AtEnd::Stop).unwrap();
        let mut entries = Vec::new();
        while let Some(tidegate_journal::JournalEntry::Record(record)) = reader.read().unwrap() {
            entries.push(entry::Entry::from_json(record.payload).unwrap());
        }
        entries
    }

    #[test]
    fn what_ends_with_an_error_of_the_gateway_has_its_code_once() {
        let entries = written(Per::Query, |mut ledger, now| {
            ledger.query(b"select pg_sleep(9)");
            ledger.query(b"select 2");
            ledger.close((b"57014", "query timeout"), now + Duration::from_millis(7));
        });
        let ends: Vec<_> = entries.iter().map(|entry| (entry.sqlstate.as_deref(), entry.reason.as_deref())).collect();
        // What stood behind it was not run.
        assert_eq!(ends, [(Some("57014"), Some("query timeout")), (None, Some("query timeout"))]);
    }

    #[test]
    fn a_transaction_takes_until_its_end_and_the_server_as_long_as_its_queries() {
        let at = |now: Instant, millis| now + Duration::from_millis(millis);
        let entries = written(Per::Transaction, |mut ledger, now| {
            for (text, from, to) in [("begin", 0, 10), ("select 1", 500, 520)] {
                ledger.turn(at(now, from));
                ledger.query(text.as_bytes());
                ledger.turn(at(now, to));
                ledger.ready(TxStatus::InTransaction, 0);
            }
            ledger.close((b"25P03", "idle_in_transaction timeout"), at(now, 1000));
        });
        let [entry] = &*entries else { panic!("{entries:?}") };
        assert_eq!((entry.server_us, entry.total_us, entry.queries), (Some(30_000), Some(1_000_000), Some(2)));
        assert_eq!(entry.sqlstate.as_deref(), Some("25P03"));
        // Of a pipeline the queries were under way at the same time.
        let entries = written(Per::Transaction, |mut ledger, now| {
            ledger.query(b"select 1");
            ledger.query(b"select 2");
            ledger.turn(at(now, 10));
            ledger.ready(TxStatus::Idle, 0);
            ledger.close((b"", ""), at(now, 1000));
        });
        assert_eq!((entries[0].server_us, entries[0].total_us), (Some(10_000), Some(10_000)));
    }
}
