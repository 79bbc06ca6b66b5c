//! One thread's way into the journal: its clock, its buffers, its share of the policy.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};

use tidegate_journal::{Class, Note, Producer, Time};

use super::{
    Archive, Stranger,
    archive::{CONNECTIONS, QUERIES},
    entry::{Calendar, Draft, Kind, Moment, Who, write_who},
    item::Item,
    ledger::Book,
    shape::{Found, Shapes},
};
use crate::config::{self, StatementForm};

/// One thread's way into the journal. It never waits: what finds no room is lost, counted, and told by the journal itself.
pub struct Recorder {
    producer: Producer,
    settings: RefCell<Rc<config::Journal>>,
    /// A moment of the thread's clock, and the same on the wall's.
    anchor: Cell<(Instant, Time)>,
    desk: RefCell<Desk>,
    /// Boxes, as they move between here and ledgers.
    #[allow(clippy::vec_box, reason = "a ledger holds the box itself")]
    books: RefCell<Vec<Box<Book>>>,
}

/// What is used again for each record.
#[derive(Default)]
pub(super) struct Desk {
    pub(super) shapes: Shapes,
    calendar: Calendar,
    out: Vec<u8>,
}

/// Books that are kept for the next exchange: as many as a thread has under way at a time, mostly.
const BOOKS_MAX: usize = 256;
/// A buffer that has grown larger is given back.
const OUT_BYTES_KEPT: usize = 256 << 10;

impl Recorder {
    /// For the thread of that number; `None` if the journal is closed already.
    #[must_use]
    pub fn new(archive: &Archive, core: usize, settings: &config::Journal, now: Instant) -> Option<Rc<Self>> {
        let recorder = Self {
            producer: archive.producer(core)?,
            settings: RefCell::new(Rc::new(settings.clone())),
            anchor: Cell::new((now, Time::now())),
            desk: RefCell::default(),
            books: RefCell::default(),
        };
        Some(Rc::new(recorder))
    }

    /// Takes the settings of a reload over; transactions under way end under the old ones.
    pub fn adopt(&self, settings: &config::Journal) {
        *self.settings.borrow_mut() = Rc::new(settings.clone());
    }

    /// Sets the clock by the wall's. Called about once a second, as that one may be put right at any time.
    pub fn set_clock(&self, now: Instant) {
        self.anchor.set((now, Time::now()));
    }

    /// Somebody was refused.
    pub fn refuse(&self, stranger: &Stranger, sqlstate: &[u8], message: &[u8], now: Instant) {
        let Stranger { client, user, database } = stranger;
        let mut who = Vec::new();
        let known =
            Who { client: client.as_bytes(), user: user.as_bytes(), database: database.as_bytes(), ..Who::default() };
        write_who(&known, &mut who);
        self.connection(
            &Draft { kind: Some(Kind::LoginFailed), who: &who, sqlstate, message, ..Draft::default() },
            now,
        );
    }

    pub(super) fn settings(&self) -> Rc<config::Journal> {
        self.settings.borrow().clone()
    }

    pub(super) fn desk(&self) -> &RefCell<Desk> {
        &self.desk
    }

    /// A login or the like.
    pub(super) fn connection(&self, draft: &Draft<'_>, now: Instant) {
        if self.settings.borrow().connections {
            self.hand_in(&mut self.desk.borrow_mut(), CONNECTIONS, *draft, now);
        }
    }

    /// A query or a transaction, the statement as it was said.
    pub(super) fn query(&self, form: StatementForm, item: &Item, draft: Draft<'_>) {
        let desk = &mut *self.desk.borrow_mut();
        let mut shapes = std::mem::take(&mut desk.shapes);
        let found = (form != StatementForm::Off && !item.text().is_empty()).then(|| shape_of(&mut shapes, item));
        let statement = match (form, &found) {
            (StatementForm::Text, _) => item.text(),
            (StatementForm::Normalised, Some(found)) => found.text(),
            _ => &[],
        };
        let statement = &statement[..statement.len().min(self.settings.borrow().statement_bytes as usize)];
        let is_cut = !statement.is_empty() && item.is_cut();
        let fingerprint = found.as_ref().map(Found::fingerprint);
        self.hand_in(desk, QUERIES, Draft { statement, is_cut, fingerprint, ..draft }, item.ended());
        drop(found);
        desk.shapes = shapes;
    }

    /// A transaction, whose statements were brought into form one by one.
    pub(super) fn transaction(&self, draft: Draft<'_>, ended: Instant) {
        self.hand_in(&mut self.desk.borrow_mut(), QUERIES, draft, ended);
    }

    fn hand_in(&self, desk: &mut Desk, class: Class, draft: Draft<'_>, ended: Instant) {
        let time = self.time(ended);
        let draft = Draft { time: Moment::from_micros(time.unix_nanos() / 1000), ..draft };
        desk.out.clear();
        draft.write(&mut desk.calendar, &mut desk.out);
        // A loss is counted by the journal, and told by a record as soon as there is room.
        let _ = self.producer.offer(Note::new(class, &desk.out).at(time));
        if desk.out.capacity() > OUT_BYTES_KEPT {
            desk.out = Vec::new();
        }
    }

    fn time(&self, at: Instant) -> Time {
        let (instant, wall) = self.anchor.get();
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let later = nanos(at.saturating_duration_since(instant));
        let earlier = nanos(instant.saturating_duration_since(at));
        Time::from_unix_nanos(wall.unix_nanos().saturating_add(later).saturating_sub(earlier))
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
}

/// The shape of what was said.
pub(super) fn shape_of<'a>(shapes: &'a mut Shapes, item: &Item) -> Found<'a> {
    match &item.said.statement {
        Some(statement) => shapes.of_prepared(statement.digest(), statement.text()),
        None => shapes.of_text(&item.said.text),
    }
}
