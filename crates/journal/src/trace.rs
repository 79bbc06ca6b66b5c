//! Events of `tracing` as records.
//!
//! Two ways in: [`JournalLayer`] encodes events itself, without an allocation once a thread is warm; [`JournalWriter`] takes
//! the lines of any formatter of `tracing-subscriber`. Both leave out what the journal's own threads and listeners log, so
//! that a journal in trouble does not feed itself.
//!
//! # In place of tracing-appender
//!
//! ```
//! use std::time::Duration;
//! use tidegate_journal::{Config, Format, Journal, Pack, Retention, Space, trace::JournalWriter};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let mut config = Config::new(folder); // files are shop-00-0000000001.log and so on
//! config.name = "shop".to_owned();
//! config.format = Format::Text; // or Json, for `fmt().json()`
//! config.segment_bytes = 256 << 20;
//! config.segment_age = Some(Duration::from_secs(24 * 3600)); // `rolling::daily`, counted from the first line
//! config.space = Space::Segments {
//!     retention: Retention { segments: Some(30), ..Retention::default() }, // `max_log_files`
//!     pack: Pack::Zstd(3),
//! };
//! let (journal, _recovery) = Journal::open(config)?; // kept as `WorkerGuard` is: dropping it ends the log
//! journal.flush_on_panic(Duration::from_secs(1));
//! let writer = JournalWriter::new(journal.producer()); // `non_blocking`; for `lossy(false)`, `.manner(Manner::Block)`
//! tracing_subscriber::fmt().with_ansi(false).with_writer(writer).init();
//!
//! tracing::info!(port = 8080, "listening"); // and `axum::serve(...).with_graceful_shutdown(...).await`
//!
//! let report = journal.close(Duration::from_secs(5));
//! assert!(report.is_complete() && report.lost == 0);
//! # Ok(())
//! # }
//! ```
//!
//! `with_ansi(false)` keeps the colours of a terminal out of the files. What the disk does not take is bounded by
//! [`bytes_max`](crate::Config::bytes_max), not by a number of lines; a full disk is waited for and told on standard error; a
//! loss is told in the log itself. A service that is sent SIGHUP after a log rotation calls
//! [`Journal::reopen`](crate::Journal::reopen).

mod fields;
mod json;

use std::{cell::RefCell, io};

use tracing::{Event, Level, Metadata, Subscriber, span};
use tracing_subscriber::{
    fmt::MakeWriter,
    layer::{Context, Layer},
    registry::LookupSpan,
};

use crate::{
    error::Refused,
    inside,
    note::{Class, Note, Ticket},
    producer::Producer,
    time::Time,
};
use fields::Fields;
use json::Object;

/// Whether a thread that logs may be held up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Manner {
    /// Never: what finds no room is lost as its class says, and told in a gap record.
    #[default]
    Offer,
    /// It may wait for room, up to the deadline of a class that blocks, and may write a full batch itself.
    Block,
}

impl Manner {
    fn hand_in(self, producer: &Producer, note: Note<'_>) -> Result<Ticket, Refused> {
        match self {
            Self::Offer => producer.offer(note),
            Self::Block => producer.append_blocking(note),
        }
    }
}

/// A layer that writes each event as one JSON object: `time_ns`, `level`, `target`, the fields (the message is `message`),
/// and `spans` from the outermost to the innermost, with their `name` and fields. A field that has one of these names is
/// written as `field.level`, say; a field of a span that is recorded again has its last value. Events after the journal was
/// closed or dropped go nowhere.
///
/// ```
/// use tidegate_journal::{Config, Journal, trace::JournalLayer};
/// use tracing_subscriber::layer::SubscriberExt as _;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let (journal, _) = Journal::open(Config::new(folder.path()))?;
/// let subscriber = tracing_subscriber::registry().with(JournalLayer::new(journal.producer()));
/// tracing::subscriber::with_default(subscriber, || tracing::info!(user = 7, "hello"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct JournalLayer {
    producer: Producer,
    manner: Manner,
    classes: [Class; 5],
}

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl JournalLayer {
    /// All events in the first class, and nobody is held up.
    #[must_use]
    pub fn new(producer: Producer) -> Self {
        Self { producer, manner: Manner::Offer, classes: [Class::default(); 5] }
    }

    /// Events of a level are of this class: [`Journal::class`](crate::Journal::class) knows it by its name. Those of a class that
    /// the journal does not have go nowhere.
    #[must_use]
    pub fn class(mut self, level: Level, class: Class) -> Self {
        self.classes[place(level)] = class;
        self
    }

    /// Whether threads that log may be held up.
    #[must_use]
    pub fn manner(mut self, manner: Manner) -> Self {
        self.manner = manner;
        self
    }

    fn record<S>(&self, event: &Event<'_>, context: &Context<'_, S>, out: &mut Vec<u8>)
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        out.clear();
        let (now, metadata) = (Time::now(), event.metadata());
        let mut object = Object::begin(out).owning(&["time_ns", "level", "target", "spans"]);
        object.number("time_ns", now.unix_nanos());
        object.text("level", metadata.level().as_str());
        object.text("target", metadata.target());
        event.record(&mut object);
        if let Some(scope) = context.event_scope(event) {
            let mut spans = object.array("spans");
            for span in scope.from_root() {
                let mut inner = spans.element();
                inner.text("name", span.name());
                if let Some(fields) = span.extensions().get::<Fields>() {
                    inner.raw(fields.members());
                }
                inner.end();
            }
            spans.end();
        }
        object.end();
        let note = Note::new(self.classes[place(*metadata.level())], out).at(now);
        // A loss is counted and told in the journal; there is nowhere else to tell it.
        let _ = self.manner.hand_in(&self.producer, note);
    }
}

fn place(level: Level) -> usize {
    match level {
        Level::ERROR => 0,
        Level::WARN => 1,
        Level::INFO => 2,
        Level::DEBUG => 3,
        _ => 4,
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for JournalLayer {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let fields = Fields::recorded(|fields| attributes.record(fields));
        span.extensions_mut().replace(fields);
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        // A value whose Debug form logs needs the span's fields for that, so they are not held meanwhile.
        let later = Fields::recorded(|fields| values.record(fields));
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            fields.update(&later);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if inside::is_inside() {
            return;
        }
        inside::enter(|| {
            // A value whose Debug form logs comes back here, and was turned away above; so the scratch is free.
            let kept = SCRATCH.try_with(|scratch| self.record(event, &context, &mut scratch.borrow_mut()));
            // A thread that ends has none any more.
            kept.unwrap_or_else(|_| self.record(event, &context, &mut Vec::new()));
        });
    }
}

/// Makes writers for `tracing_subscriber::fmt().with_writer(…)`: each line that a formatter writes is one record. Events after
/// the journal was closed or dropped go nowhere. See the [example](self#in-place-of-tracing-appender).
#[derive(Clone, Debug)]
pub struct JournalWriter {
    producer: Producer,
    manner: Manner,
    class: Class,
}

impl JournalWriter {
    /// Records of the first class, and nobody is held up.
    #[must_use]
    pub fn new(producer: Producer) -> Self {
        Self { producer, manner: Manner::Offer, class: Class::default() }
    }

    /// Records are of this class: [`Journal::class`](crate::Journal::class) knows it by its name. Those of a class that the
    /// journal does not have go nowhere.
    #[must_use]
    pub fn class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// Whether threads that log may be held up.
    #[must_use]
    pub fn manner(mut self, manner: Manner) -> Self {
        self.manner = manner;
        self
    }
}

impl<'a> MakeWriter<'a> for JournalWriter {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { writer: self }
    }

    fn make_writer_for(&'a self, _: &Metadata<'_>) -> Line<'a> {
        Line { writer: self }
    }
}

/// One line on its way: what is written at once is one record.
#[derive(Debug)]
pub struct Line<'a> {
    writer: &'a JournalWriter,
}

impl io::Write for Line<'_> {
    /// Never fails for want of room: a loss is counted and told in the journal. After the journal was closed, lines are
    /// dropped.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !inside::is_inside() {
            let JournalWriter { producer, manner, class } = self.writer;
            let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
            let _ = inside::enter(|| manner.hand_in(producer, Note::new(*class, line)));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
