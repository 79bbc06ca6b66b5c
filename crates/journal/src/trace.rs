//! Events of `tracing` as records.
//!
//! [`JournalLayer`] encodes events itself, without an allocation once a thread is warm. [`JournalWriter`] takes the lines
//! of any formatter of `tracing-subscriber`. Both ignore events from the journal's own threads and listeners, so that
//! errors of the journal do not add records to it.
//!
//! # Migrating from tracing-appender
//!
//! ```
//! use std::time::Duration;
//! use tidegate_journal::{
//!     Compression, Journal, JournalConfig, Retention, SegmentFormat, SegmentPolicy, trace::JournalWriter,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let mut config = JournalConfig::new(folder); // files are shop-00-0000000001.log and so on
//! config.name = "shop".to_owned();
//! config.format = SegmentFormat::Text; // or Json, for `fmt().json()`
//! config.segment_bytes = 256 << 20;
//! config.segment_age = Some(Duration::from_secs(24 * 3600)); // `rolling::daily`, counted from the first line
//! config.segment_policy = SegmentPolicy::Rolling {
//!     retention: Retention { segments: Some(30), ..Retention::default() }, // `max_log_files`
//!     compression: Compression::Zstd(3),
//! };
//! let (journal, _recovery) = Journal::open(config)?; // keep it like `WorkerGuard`: dropping it ends the log
//! journal.flush_on_panic(Duration::from_secs(1));
//! let writer = JournalWriter::new(journal.producer()); // `non_blocking`; for `lossy(false)`, `.mode(AppendMode::Block)`
//! tracing_subscriber::fmt().with_ansi(false).with_writer(writer).init();
//!
//! tracing::info!(port = 8080, "listening"); // then `axum::serve(...).with_graceful_shutdown(...).await`
//!
//! let report = journal.close(Duration::from_secs(5));
//! assert!(report.is_complete() && report.lost == 0);
//! # Ok(())
//! # }
//! ```
//!
//! `with_ansi(false)` keeps terminal escape sequences out of the files. Memory is bounded in bytes by
//! [`bytes_max`](crate::JournalConfig::bytes_max), not by a number of lines. A full disk is waited for and reported on
//! standard error; a loss is recorded in the log itself. On SIGHUP after a log rotation, call
//! [`Journal::reopen`](crate::Journal::reopen).

mod json;
mod span_fields;

use std::{cell::RefCell, io};

use tracing::{Event, Level, Metadata, Subscriber, span};
use tracing_subscriber::{
    fmt::MakeWriter,
    layer::{Context, Layer},
    registry::LookupSpan,
};

use crate::{
    error::AppendError,
    producer::Producer,
    producer_record::{Class, ProducerRecord, RecordId},
    reentrancy,
    timestamp::Timestamp,
};
use json::JsonObject;
use span_fields::SpanFields;

/// Whether a logging thread may block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AppendMode {
    /// Never blocks: without room, the overload policy of the class applies and the loss is recorded in a gap record.
    #[default]
    Offer,
    /// May wait for room, up to the deadline of a class that blocks, and may write a full batch to the disk.
    Block,
}

impl AppendMode {
    fn append(self, producer: &Producer, record: ProducerRecord<'_>) -> Result<RecordId, AppendError> {
        match self {
            Self::Offer => producer.offer(record),
            Self::Block => producer.append_blocking(record),
        }
    }
}

/// A layer that writes each event as one JSON object: `time_ns`, `level`, `target`, the fields (the message is
/// `message`), and `spans` from the outermost to the innermost, with their `name` and fields.
///
/// A field with one of these names is written with a prefix, such as `field.level`. A span field that is recorded again
/// has its last value. Events after the journal was closed or dropped are ignored.
///
/// ```
/// use tidegate_journal::{Journal, JournalConfig, trace::JournalLayer};
/// use tracing_subscriber::layer::SubscriberExt as _;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let (journal, _) = Journal::open(JournalConfig::new(folder.path()))?;
/// let subscriber = tracing_subscriber::registry().with(JournalLayer::new(journal.producer()));
/// tracing::subscriber::with_default(subscriber, || tracing::info!(user = 7, "hello"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct JournalLayer {
    producer: Producer,
    mode: AppendMode,
    classes: [Class; 5],
}

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl JournalLayer {
    /// A layer that appends all events in the first class and never blocks.
    #[must_use]
    pub fn new(producer: Producer) -> Self {
        Self { producer, mode: AppendMode::Offer, classes: [Class::default(); 5] }
    }

    /// Sets the class for events of a level; [`Journal::class`](crate::Journal::class) finds a class by name. Events of a
    /// class that the journal does not have are ignored.
    #[must_use]
    pub fn class(mut self, level: Level, class: Class) -> Self {
        self.classes[level_index(level)] = class;
        self
    }

    /// Sets whether logging threads may block.
    #[must_use]
    pub fn mode(mut self, mode: AppendMode) -> Self {
        self.mode = mode;
        self
    }

    fn write_event<S>(&self, event: &Event<'_>, context: &Context<'_, S>, out: &mut Vec<u8>)
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        out.clear();
        let (now, metadata) = (Timestamp::now(), event.metadata());
        let mut object = JsonObject::begin(out).with_reserved_keys(&["time_ns", "level", "target", "spans"]);
        object.number("time_ns", now.unix_nanos());
        object.text("level", metadata.level().as_str());
        object.text("target", metadata.target());
        event.record(&mut object);
        if let Some(scope) = context.event_scope(event) {
            let mut spans = object.array("spans");
            for span in scope.from_root() {
                let mut inner = spans.element();
                inner.text("name", span.name());
                if let Some(fields) = span.extensions().get::<SpanFields>() {
                    inner.raw(fields.members());
                }
                inner.end();
            }
            spans.end();
        }
        object.end();
        let record = ProducerRecord::new(self.classes[level_index(*metadata.level())], out).at(now);
        // A loss is counted and recorded in the journal, which is the only place to report it.
        let _ = self.mode.append(&self.producer, record);
    }
}

fn level_index(level: Level) -> usize {
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
        let fields = SpanFields::recorded(|fields| attributes.record(fields));
        span.extensions_mut().replace(fields);
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        // A Debug implementation that logs needs the span's fields, so they are not locked meanwhile.
        let later = SpanFields::recorded(|fields| values.record(fields));
        if let Some(fields) = span.extensions_mut().get_mut::<SpanFields>() {
            fields.update(&later);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if reentrancy::is_active() {
            return;
        }
        reentrancy::enter(|| {
            // A Debug implementation that logs returns early above, so the buffer is not borrowed twice.
            let kept = SCRATCH.try_with(|scratch| self.write_event(event, &context, &mut scratch.borrow_mut()));
            // A thread-local is not available while a thread ends.
            kept.unwrap_or_else(|_| self.write_event(event, &context, &mut Vec::new()));
        });
    }
}

/// A `MakeWriter` for `tracing_subscriber::fmt().with_writer(…)`: each line of a formatter is one record. Events after
/// the journal was closed or dropped are ignored. See the [example](self#migrating-from-tracing-appender).
#[derive(Clone, Debug)]
pub struct JournalWriter {
    producer: Producer,
    mode: AppendMode,
    class: Class,
}

impl JournalWriter {
    /// A writer that appends all lines in the first class and never blocks.
    #[must_use]
    pub fn new(producer: Producer) -> Self {
        Self { producer, mode: AppendMode::Offer, class: Class::default() }
    }

    /// Sets the class of the records; [`Journal::class`](crate::Journal::class) finds a class by name. Lines of a class
    /// that the journal does not have are ignored.
    #[must_use]
    pub fn class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// Sets whether logging threads may block.
    #[must_use]
    pub fn mode(mut self, mode: AppendMode) -> Self {
        self.mode = mode;
        self
    }
}

impl<'a> MakeWriter<'a> for JournalWriter {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> LineWriter<'a> {
        LineWriter { writer: self }
    }

    fn make_writer_for(&'a self, _: &Metadata<'_>) -> LineWriter<'a> {
        LineWriter { writer: self }
    }
}

/// A writer for one line: each write is one record.
#[derive(Debug)]
pub struct LineWriter<'a> {
    writer: &'a JournalWriter,
}

impl io::Write for LineWriter<'_> {
    /// Does not fail for lack of room: a loss is counted and recorded in the journal. After the journal was closed, lines
    /// are dropped.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !reentrancy::is_active() {
            let JournalWriter { producer, mode, class } = self.writer;
            let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
            let _ = reentrancy::enter(|| mode.append(producer, ProducerRecord::new(*class, line)));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
