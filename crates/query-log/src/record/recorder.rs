//! One thread's way into the journal: its clock, its buffers, its share of the policy.

use std::{
    borrow::Cow,
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};
use tidegate_sql::{
    cache::{Lookup, NormalizeCache},
    redact::without_passwords,
};

use rustc_hash::FxHashMap;
use tidegate_journal::{Class, Producer, ProducerRecord, Timestamp};

use super::{
    Archive, Stranger,
    archive::{CONNECTIONS, QUERIES},
    decision::wants,
    item::{Hides, Item, Wants, cut},
    ledger::{Book, Upstream},
};
use crate::entry::{Calendar, Draft, Kind, Moment, Who, write_server, write_who};
use tidegate_config as config;
use tidegate_config::{ParameterForm, StatementForm};

/// One thread's way into the journal. It never waits: what finds no room is lost, counted, and told by the journal itself.
pub struct Recorder {
    producer: Producer,
    terms: RefCell<Rc<Terms>>,
    /// A moment of the thread's clock, and the same on the wall's.
    anchor: Cell<(Instant, Timestamp)>,
    desk: RefCell<Desk>,
    /// Boxes, as they move between here and ledgers.
    #[allow(clippy::vec_box, reason = "a ledger holds the box itself")]
    books: RefCell<Vec<Box<Book>>>,
    /// Queries that are over, for the next ones.
    #[allow(clippy::vec_box, reason = "an item moves from hand to hand")]
    items: RefCell<Vec<Box<Item>>>,
    /// What records say of servers, by the numbers of these.
    servers: RefCell<FxHashMap<u64, Rc<[u8]>>>,
}

/// A query that is over, and what else its record says.
#[derive(Clone, Copy)]
pub(super) struct Over<'a> {
    pub(super) item: &'a Item,
    pub(super) who: &'a [u8],
    pub(super) server: Option<&'a [u8]>,
    pub(super) transaction: u64,
    pub(super) terms: &'a Terms,
    pub(super) parameters: ParameterForm,
    pub(super) reason: &'a str,
}

/// Settings, and what follows from them.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) journal: config::Journal,
    pub(super) wants: Wants,
    pub(super) hides: Hides,
    /// Some rule asks what a statement does.
    pub(super) asks_works: bool,
}

impl Terms {
    fn new(journal: &config::Journal) -> Rc<Self> {
        let (values, redacted) = (wants(journal, ParameterForm::On), wants(journal, ParameterForm::Redacted));
        let hides = Hides {
            literals: journal.statement != StatementForm::Text,
            // Of one record at least.
            parameters: journal.parameters != ParameterForm::On
                || journal.rules.0.iter().any(|rule| rule.parameters.is_some_and(|form| form != ParameterForm::On)),
        };
        let asks_works = journal.rules.0.iter().any(|rule| !rule.statements.is_empty());
        Rc::new(Self { journal: journal.clone(), wants: Wants { values, redacted }, hides, asks_works })
    }
}

/// What is used again for each record.
#[derive(Default)]
pub(super) struct Desk {
    pub(super) shapes: NormalizeCache,
    pen: Pen,
}

/// What a record is written with.
#[derive(Default)]
struct Pen {
    calendar: Calendar,
    out: Vec<u8>,
}

/// Books that are kept for the next exchange: as many as a thread has under way at a time, mostly.
const BOOKS_MAX: usize = 256;
/// The same of queries.
const ITEMS_MAX: usize = 256;
/// More servers than a thread has at a time; those that are gone go with the rest, and what is said of others is made again.
const SERVERS_MAX: usize = 1024;
/// A buffer that has grown larger is given back.
const OUT_BYTES_KEPT: usize = 256 << 10;

impl Recorder {
    /// For the thread of that number; `None` if the journal is closed already.
    #[must_use]
    pub fn new(archive: &Archive, core: usize, settings: &config::Journal, now: Instant) -> Option<Rc<Self>> {
        let recorder = Self {
            producer: archive.producer(core)?,
            terms: RefCell::new(Terms::new(settings)),
            anchor: Cell::new((now, Timestamp::now())),
            desk: RefCell::default(),
            books: RefCell::default(),
            items: RefCell::default(),
            servers: RefCell::default(),
        };
        Some(Rc::new(recorder))
    }

    /// Takes the settings of a reload over; transactions under way end under the old ones.
    pub fn adopt(&self, settings: &config::Journal) {
        *self.terms.borrow_mut() = Terms::new(settings);
    }

    /// Sets the clock by the wall's. Called about once a second, as that one may be put right at any time.
    pub fn set_clock(&self, now: Instant) {
        self.anchor.set((now, Timestamp::now()));
    }

    #[cfg(test)]
    pub(super) fn set_clock_to(&self, now: Instant, unix_seconds: u64) {
        self.anchor.set((now, Timestamp::from_unix_nanos(unix_seconds * 1_000_000_000)));
    }

    /// Somebody was refused.
    pub fn refuse(&self, stranger: &Stranger, sqlstate: &[u8], message: &[u8], now: Instant) {
        let Stranger { client, user, database, application } = stranger;
        let mut who = Vec::new();
        let known = Who {
            client: client.as_bytes(),
            user: user.as_bytes(),
            database: database.as_bytes(),
            application,
            session: None,
        };
        write_who(&known, &mut who);
        self.connection(Draft { kind: Some(Kind::LoginFailed), who: &who, sqlstate, message, ..Draft::default() }, now);
    }

    pub(super) fn terms(&self) -> Rc<Terms> {
        self.terms.borrow().clone()
    }

    /// Takes over what holds now.
    pub(super) fn renew(&self, terms: &mut Rc<Terms>) {
        let now = self.terms.borrow();
        if !Rc::ptr_eq(terms, &now) {
            *terms = now.clone();
        }
    }

    /// What records say of a server.
    pub(super) fn server(&self, upstream: &Upstream<'_>) -> Rc<[u8]> {
        if let Some(known) = self.servers.borrow().get(&upstream.id) {
            return known.clone();
        }
        let (address, mut out) = (upstream.address.to_string(), Vec::new());
        write_server(address.as_bytes(), u64::from(upstream.pid), &mut out);
        let made = Rc::<[u8]>::from(out);
        let mut servers = self.servers.borrow_mut();
        if servers.len() >= SERVERS_MAX {
            servers.clear();
        }
        servers.insert(upstream.id, made.clone());
        made
    }

    pub(super) fn desk(&self) -> &RefCell<Desk> {
        &self.desk
    }

    /// A login or the like.
    pub(super) fn connection(&self, mut draft: Draft<'_>, now: Instant) {
        if self.terms.borrow().journal.connections {
            self.hand_in(&mut self.desk.borrow_mut().pen, CONNECTIONS, &mut draft, now);
        }
    }

    /// A query, the statement as it was said.
    pub(super) fn query(&self, over: Over<'_>) {
        let Over { item, who, server, transaction, terms, parameters, reason } = over;
        let (journal, Desk { shapes, pen }) = (&terms.journal, &mut *self.desk.borrow_mut());
        let form = journal.statement;
        let found = (form != StatementForm::Off && !item.text().is_empty()).then(|| shape_of(shapes, item));
        let beginning = if form == StatementForm::Normalised { item.beginning() } else { None };
        let text = match &found {
            Some(found) if form == StatementForm::Text && found.may_hide() => without_passwords(item.text()),
            _ => Cow::Borrowed(item.text()),
        };
        let statement = match (form, &found, &beginning) {
            (StatementForm::Text, ..) => &*text,
            (StatementForm::Normalised, _, Some((begun, _))) => begun,
            (StatementForm::Normalised, Some(found), _) => found.text(),
            _ => &[],
        };
        let mut draft = item.draft(server);
        draft.kind = Some(Kind::Query);
        draft.who = who;
        draft.transaction = Some(transaction);
        // A shape may be longer than what it is of.
        let (statement, is_cut) = cut(statement, journal.statement_bytes as usize);
        draft.statement = statement;
        let is_begun = beginning.as_ref().is_some_and(|(_, is_begun)| *is_begun);
        draft.is_cut = !statement.is_empty() && (is_cut || is_begun || item.is_cut());
        draft.fingerprint = found.as_ref().map(Lookup::fingerprint);
        if let Some(said) = &item.said {
            draft.prepared = &said.prepared;
            draft.parameters = match parameters {
                ParameterForm::On => &said.parameters,
                ParameterForm::Redacted => &said.redacted,
                ParameterForm::Off => &[],
            };
        }
        if let Some(wrong) =
            item.wrong.as_ref().filter(|wrong| parameters == ParameterForm::On && !wrong.candid.is_empty())
        {
            draft.message = &wrong.candid;
        }
        draft.reason = reason.as_bytes();
        self.hand_in(pen, QUERIES, &mut draft, item.ended());
    }

    /// A transaction, whose statements were brought into form one by one.
    pub(super) fn transaction(&self, mut draft: Draft<'_>, ended: Instant) {
        self.hand_in(&mut self.desk.borrow_mut().pen, QUERIES, &mut draft, ended);
    }

    fn hand_in(&self, pen: &mut Pen, class: Class, draft: &mut Draft<'_>, ended: Instant) {
        let time = self.time(ended);
        draft.time = Moment::from_micros(time.unix_nanos() / 1000);
        pen.out.clear();
        draft.write(&mut pen.calendar, &mut pen.out);
        // A loss is counted by the journal, and told by a record as soon as there is room.
        let _ = self.producer.offer(ProducerRecord::new(class, &pen.out).at(time));
        if pen.out.capacity() > OUT_BYTES_KEPT {
            pen.out = Vec::new();
        }
    }

    fn time(&self, at: Instant) -> Timestamp {
        let (instant, wall) = self.anchor.get();
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Timestamp::from_unix_nanos(match at.checked_duration_since(instant) {
            Some(later) => wall.unix_nanos().saturating_add(nanos(later)),
            None => wall.unix_nanos().saturating_sub(nanos(instant.saturating_duration_since(at))),
        })
    }

    pub(super) fn take_book(&self) -> Box<Book> {
        self.books.borrow_mut().pop().unwrap_or_default()
    }

    pub(super) fn put_book_back(&self, book: Box<Book>) {
        let mut books = self.books.borrow_mut();
        if books.len() < BOOKS_MAX {
            books.push(book);
        }
    }

    /// A query that begins.
    pub(super) fn take_item(&self, now: Instant) -> Box<Item> {
        match self.items.borrow_mut().pop() {
            Some(mut item) => {
                item.reset(now);
                item
            }
            None => Box::new(Item::new(now)),
        }
    }

    pub(super) fn put_item_back(&self, mut item: Box<Item>) {
        item.fall_silent();
        let mut items = self.items.borrow_mut();
        if items.len() < ITEMS_MAX {
            items.push(item);
        }
    }
}

/// The shape of what was said.
pub(super) fn shape_of<'a>(shapes: &'a mut NormalizeCache, item: &Item) -> Lookup<'a> {
    match item.said.as_ref().and_then(|said| said.statement.as_ref()) {
        Some(statement) => shapes.normalize_prepared(statement.digest(), statement.text()),
        None => shapes.normalize_text(item.text()),
    }
}
