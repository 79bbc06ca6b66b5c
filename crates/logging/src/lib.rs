//! What happened, a line each, on standard error.
//!
//! Text is for people: time, level, message, then `key=value`. Whatever a client sent is quoted, so that no name can
//! forge a line or move the cursor. JSON is for machines: one object per line with the same fields at the top level.

use std::fmt::{self, Write as _};
use std::io::IsTerminal;
use std::sync::Arc;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Registry, reload};

use tidegate_config::{
    Log, LogFormat, LogLevel,
    escape::{escaped, escaped_json, is_unsafe},
};

mod output;
mod panics;
mod syslog;

use output::{LogFile, Output};
use syslog::SystemLog;

/// Changes the level of a running log, and where its lines go.
#[derive(Debug, Clone)]
pub struct Handle {
    level: reload::Handle<Targets, Registry>,
    file: Arc<LogFile>,
    system: SystemLog,
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The process has a log already.
    #[error("the log of this process is set up already")]
    AlreadySet,
    /// Its file cannot be opened.
    #[error("cannot open the log {0}: {1}")]
    File(std::path::PathBuf, #[source] std::io::Error),
}

impl Handle {
    /// Logs from now on what is as important as `level`, or more.
    pub fn set_level(&self, level: LogLevel) {
        // It fails only when the log is gone, and then there is nothing to set.
        let _ = self.level.reload(filter(level));
    }

    /// Goes on in the file of these settings, which may be another, or a new one of the old name, and in the system's log if
    /// they name one. If the file cannot be opened, lines go on where they went.
    pub fn follow(&self, log: &Log) {
        self.system.follow(log);
        if let Err(error) = self.file.follow(&log.file) {
            tracing::error!(%error, path = %log.file.display(), "the log cannot be opened again");
        }
    }
}

/// Begins to log, panics too; once in a process.
///
/// # Errors
/// If the process has a log already, or its file cannot be opened.
pub fn init(log: &Log) -> Result<Handle, LogError> {
    let file = Arc::<LogFile>::default();
    file.follow(&log.file).map_err(|error| LogError::File(log.file.clone(), error))?;
    let terminal = std::io::stderr().is_terminal() && log.file.as_os_str().is_empty();
    let style = Style::choose(log.format, terminal, std::env::var("NO_COLOR").ok().as_deref());
    let system = SystemLog::default();
    system.follow(log);
    let output = Output { stderr: log.stderr, file: file.clone(), system: system.clone() };
    let (subscriber, level) = subscriber(style, log.level, output, system.clone());
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::AlreadySet)?;
    panics::note_all();
    Ok(Handle { level, file, system })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Colour,
    Json,
    Pgbouncer,
}

impl Style {
    /// `no_color` is the variable of that name; any text but the empty one forbids colour (<https://no-color.org>).
    fn choose(format: LogFormat, terminal: bool, no_color: Option<&str>) -> Self {
        match format {
            LogFormat::Json => Self::Json,
            LogFormat::Pgbouncer => Self::Pgbouncer,
            LogFormat::Auto if terminal && no_color.is_none_or(str::is_empty) => Self::Colour,
            LogFormat::Auto | LogFormat::Text => Self::Plain,
        }
    }
}

fn subscriber<W>(
    style: Style,
    level: LogLevel,
    writer: W,
    system: SystemLog,
) -> (impl Subscriber + Send + Sync, reload::Handle<Targets, Registry>)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (level, handle) = reload::Layer::new(filter(level));
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(style == Style::Colour);
    let lines = match style {
        Style::Json => {
            let json = lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
            json.with_target(false).map_event_format(Json).boxed()
        }
        Style::Plain | Style::Colour => lines.event_format(Text).boxed(),
        Style::Pgbouncer => lines.event_format(Pgbouncer).boxed(),
    };
    (Registry::default().with(level).with(lines).with(system), handle)
}

/// What the names of all our crates begin with.
const OURS: &str = "tidegate";

/// At `debug`, libraries (TLS, HTTP, DNS) say nothing that they would not say at `info`: they tell of each message.
fn filter(level: LogLevel) -> Targets {
    let (ours, libraries) = match level {
        LogLevel::Error => (LevelFilter::ERROR, LevelFilter::ERROR),
        LogLevel::Warn => (LevelFilter::WARN, LevelFilter::WARN),
        LogLevel::Info => (LevelFilter::INFO, LevelFilter::INFO),
        LogLevel::Debug => (LevelFilter::DEBUG, LevelFilter::INFO),
        LogLevel::Trace => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    Targets::new().with_default(libraries).with_target(OURS, ours)
}

/// The text form.
struct Text;

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let (dim, colour, plain) = match to.has_ansi_escapes() {
            true => ("\x1b[2m", colour(*event.metadata().level()), "\x1b[0m"),
            false => ("", "", ""),
        };
        write!(to, "{dim}")?;
        SystemTime.format_time(&mut to)?;
        write!(to, "{plain} {colour}{:>5}{plain} ", event.metadata().level().as_str())?;
        let mut line = Line::default();
        event.record(&mut line);
        writeln!(to, "{}{}", line.message, line.fields)
    }
}

/// The JSON form, in which other characters than those below 0x20 are escaped too: somebody may look at it on a terminal.
struct Json<F>(F);

impl<S, N, F> FormatEvent<S, N> for Json<F>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        to.write_str(&escaped_json(&line))
    }
}

/// The text form with PgBouncer's time, number of the process, and words for levels, which log readers take apart.
struct Pgbouncer;

impl<S, N> FormatEvent<S, N> for Pgbouncer
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        // `2026-01-31T12:00:00.123456Z`: it has milliseconds, and names the zone.
        let (day, clock) = time.split_once('T').unwrap_or_default();
        let clock = clock.get(..12).unwrap_or(clock);
        let level = match *event.metadata().level() {
            Level::ERROR => "ERROR",
            Level::WARN => "WARNING",
            Level::INFO => "LOG",
            Level::DEBUG => "DEBUG",
            Level::TRACE => "NOISE",
        };
        let mut line = Line::default();
        event.record(&mut line);
        writeln!(to, "{day} {clock} UTC [{}] {level} {}{}", std::process::id(), line.message, line.fields)
    }
}

fn colour(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[1;31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        Level::DEBUG => "\x1b[34m",
        Level::TRACE => "\x1b[35m",
    }
}

/// The message and the fields of an event.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Line {
    fn record(&mut self, field: &Field, text: &str) {
        if field.name() == "message" {
            self.message.push_str(&escaped(text));
            return;
        }
        let _ = write!(self.fields, " {}=", field.name());
        if text.is_empty() || text.contains(|c: char| c.is_whitespace() || is_unsafe(c) || "\"=\\".contains(c)) {
            let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
            let _ = write!(self.fields, "\"{}\"", escaped(&quoted));
        } else {
            self.fields.push_str(text);
        }
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no writer panics").extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What is logged in that style by `events`.
    pub(super) fn logged(style: Style, level: LogLevel, events: impl FnOnce(&Handle)) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let (subscriber, level) = subscriber(style, level, move || writer.clone(), SystemLog::default());
        let handle = Handle { level, file: Arc::default(), system: SystemLog::default() };
        tracing::subscriber::with_default(subscriber, || events(&handle));
        let bytes = sink.0.lock().expect("no writer panics").clone();
        String::from_utf8(bytes).expect("lines are UTF-8")
    }

    #[test]
    fn a_line_is_time_level_message_and_fields() {
        let line = logged(Style::Plain, LogLevel::Info, |_| {
            tracing::info!(user = "app", clients = 3, "client came in");
        });
        let (time, rest) = line.split_once(' ').expect("a time");
        assert!(time.ends_with('Z') && time.contains('T'), "{time}");
        assert_eq!(rest, " INFO client came in user=app clients=3\n");
    }

    #[test]
    fn readers_of_pgbouncers_lines_can_read_these() {
        let lines = logged(Style::Pgbouncer, LogLevel::Info, |_| {
            tracing::info!("C-1: shop/app@10.0.0.1:5 login attempt: db=shop");
            tracing::warn!(port = 1, "no");
        });
        let (first, second) = lines.split_once('\n').expect("two lines");
        let words: Vec<_> = first.splitn(5, ' ').collect();
        let process = format!("[{}]", std::process::id());
        assert_eq!(words[2..4], ["UTC", process.as_str()], "{lines}");
        assert_eq!((words[0].len(), words[1].len(), words[1].find('.')), (10, 12, Some(8)), "{lines}");
        assert_eq!(words[4], "LOG C-1: shop/app@10.0.0.1:5 login attempt: db=shop");
        assert!(second.ends_with("] WARNING no port=1\n"), "{second}");
    }

    #[test]
    fn a_client_cannot_forge_a_line() {
        let line = logged(Style::Plain, LogLevel::Info, |_| {
            tracing::info!(user = %"a\nERROR b\x1b[2J\"", "client {} came in", "x\ny");
        });
        assert_eq!(line.lines().count(), 1);
        assert!(line.ends_with("client x\\ny came in user=\"a\\nERROR b\\u{1b}[2J\\\"\"\n"), "{line}");
    }

    #[test]
    fn no_form_lets_escape_sequences_through() {
        let sent = "a\u{9b}31m\u{202e}b\u{7f}\u{1b}[2J";
        for style in [Style::Plain, Style::Pgbouncer, Style::Json] {
            let line = logged(style, LogLevel::Info, |_| {
                tracing::info!(user = sent, database = %sent, "client {sent} came in");
            });
            assert!(!line.trim_end_matches('\n').contains(is_unsafe), "{line:?}");
        }
        let line = logged(Style::Json, LogLevel::Info, |_| tracing::info!(user = sent, "came in"));
        let object: serde_json::Value = serde_json::from_str(&line).expect("an object");
        assert_eq!(object["user"], sent);
    }

    #[test]
    fn json_is_an_object_with_its_fields_on_top() {
        let line = logged(Style::Json, LogLevel::Info, |_| tracing::warn!(port = 6432, "listening"));
        let object: serde_json::Value = serde_json::from_str(&line).expect("an object");
        assert_eq!((&object["level"], &object["message"]), (&"WARN".into(), &"listening".into()));
        assert_eq!(object["port"], 6432);
    }

    #[test]
    fn libraries_do_not_drown_what_is_ours() {
        for (level, libraries) in [(LogLevel::Debug, false), (LogLevel::Trace, true)] {
            let lines = logged(Style::Plain, level, |_| {
                tracing::debug!("of the gateway");
                tracing::debug!(target: "tidegate_lanes::retry", "of our libraries");
                tracing::debug!(target: "hyper_util::client", "connecting");
                tracing::warn!(target: "hyper_util::client", "a warning");
            });
            assert!(lines.contains("of the gateway") && lines.contains("of our libraries"), "{lines}");
            assert_eq!(lines.contains("connecting"), libraries, "{lines}");
            assert!(lines.contains("a warning"), "{lines}");
        }
    }

    #[test]
    fn the_level_can_be_changed_while_running() {
        let lines = logged(Style::Plain, LogLevel::Warn, |handle| {
            tracing::info!("before");
            handle.set_level(LogLevel::Info);
            tracing::info!("after");
        });
        assert!(lines.ends_with("INFO after\n") && !lines.contains("before"), "{lines}");
    }

    #[test]
    fn colour_needs_a_terminal_and_nobody_against_it() {
        assert_eq!(Style::choose(LogFormat::Auto, true, None), Style::Colour);
        assert_eq!(Style::choose(LogFormat::Auto, true, Some("")), Style::Colour);
        assert_eq!(Style::choose(LogFormat::Auto, true, Some("1")), Style::Plain);
        assert_eq!(Style::choose(LogFormat::Auto, false, None), Style::Plain);
        assert_eq!(Style::choose(LogFormat::Text, true, None), Style::Plain);
        assert_eq!(Style::choose(LogFormat::Json, true, None), Style::Json);
    }
}
