//! Log output of the gateway: text or JSON lines on standard error, in a file, or to syslog.
//!
//! A gateway logs names and texts that clients send. Every format escapes them, so no client can forge a line or send escape
//! sequences to a terminal. Text is for people: time, level, message, then `key=value`. JSON is for machines: one object per line
//! with the same fields at the top level. A third format imitates PgBouncer's lines.
//!
//! [`init`] installs the global subscriber and a panic hook, once per process. The [`LogHandle`] changes the level and reopens
//! the outputs after a reload. [`prepare`] does the same before the file may be opened, and keeps the lines until then.
//!
//! ```
//! use tidegate_config::{LogConfig, LogLevel};
//!
//! let log = tidegate_logging::init(&LogConfig::default())?;
//! log.set_level(LogLevel::Debug);
//! tracing::debug!(user = "app", "client connected");
//! # Ok::<(), tidegate_logging::LogError>(())
//! ```
//!

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
    LogConfig, LogFormat, LogLevel,
    escape::{escaped, escaped_json, is_unsafe},
};

mod output;
mod panics;
mod syslog;

use output::{EarlyLines, LogFile, LogOutput};
use syslog::SystemLog;

/// Changes the level and the outputs of the running log.
#[derive(Debug, Clone)]
pub struct LogHandle {
    level: reload::Handle<Targets, Registry>,
    file: Arc<LogFile>,
    system: SystemLog,
}

/// Reason why the log cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The process has a log already.
    #[error("the log of this process is set up already")]
    AlreadySet,
    /// The log file cannot be opened.
    #[error("cannot open the log {0}: {1}")]
    File(std::path::PathBuf, #[source] std::io::Error),
}

impl LogHandle {
    /// Sets the least important level that is logged.
    pub fn set_level(&self, level: LogLevel) {
        // Fails only without a subscriber.
        let _ = self.level.reload(filter(level));
    }

    /// Number of lines that the log file did not take since the start, because of a full disk or another error.
    #[must_use]
    pub fn lost_lines(&self) -> u64 {
        self.file.lost()
    }

    /// Reopens the outputs: the file, which may have another path or was rotated, and syslog. If the file cannot be opened, the
    /// previous file stays in use.
    pub fn reopen(&self, log: &LogConfig) {
        self.system.reopen(log);
        if let Err(error) = self.file.reopen(&log.file) {
            tracing::error!(%error, path = %log.file.display(), "the log cannot be opened again");
        }
    }
}

/// A log whose file is not open yet. Lines are kept in memory until [`open`](Self::open) or [`fail`](Self::fail); those for
/// syslog are sent.
#[derive(Debug)]
pub struct PendingLog {
    handle: LogHandle,
    output: LogOutput,
}

impl PendingLog {
    /// Opens the file, and writes the lines so far.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(&self, log: &LogConfig) -> Result<LogHandle, LogError> {
        self.handle.file.reopen(&log.file).map_err(|error| LogError::File(log.file.clone(), error))?;
        self.output.release();
        Ok(self.handle.clone())
    }

    /// The process ends with a fatal error. Lines that are still kept appear on standard error. The file is opened only if
    /// nothing else will show the error: a file that root creates could not be opened by another user later.
    pub fn fail(&self, log: &LogConfig) {
        if !self.output.is_pending() {
            return;
        }
        if log.format == LogFormat::Json || !log.stderr {
            // Standard error is used without it.
            let _ = self.handle.file.reopen(&log.file);
        }
        self.output.release_to_stderr();
    }
}

impl Drop for PendingLog {
    /// A panic before the log is open is shown as well.
    fn drop(&mut self) {
        self.output.release_to_stderr();
    }
}

/// Installs the global subscriber and a panic hook. May be called once per process.
///
/// # Errors
/// If the process has a log already, or the file cannot be opened.
pub fn init(log: &LogConfig) -> Result<LogHandle, LogError> {
    prepare(log)?.open(log)
}

/// As [`init`], without opening the file: the file will belong to another user than that of the process.
///
/// # Errors
/// If the process has a log already.
pub fn prepare(log: &LogConfig) -> Result<PendingLog, LogError> {
    let file = Arc::<LogFile>::default();
    let terminal = std::io::stderr().is_terminal() && log.file.as_os_str().is_empty();
    let style = LogStyle::choose(log.format, terminal, std::env::var("NO_COLOR").ok().as_deref());
    let system = SystemLog::default();
    system.reopen(log);
    let is_terminal = std::io::stderr().is_terminal();
    let output = LogOutput {
        stderr: log.stderr,
        is_terminal,
        file: file.clone(),
        system: system.clone(),
        early: EarlyLines::keep(),
    };
    let (subscriber, level) = subscriber(style, log.level, output.clone(), system.clone());
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::AlreadySet)?;
    panics::install_hook();
    Ok(PendingLog { handle: LogHandle { level, file, system }, output })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogStyle {
    Plain,
    Colour,
    Json,
    Pgbouncer,
}

impl LogStyle {
    /// `no_color` is the value of that variable; any text except the empty one disables colour (<https://no-color.org>).
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
    style: LogStyle,
    level: LogLevel,
    writer: W,
    system: SystemLog,
) -> (impl Subscriber + Send + Sync, reload::Handle<Targets, Registry>)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (level, handle) = reload::Layer::new(filter(level));
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(style == LogStyle::Colour);
    let lines = match style {
        LogStyle::Json => {
            let json = lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
            json.with_target(false).map_event_format(JsonFormat).boxed()
        }
        LogStyle::Plain | LogStyle::Colour => lines.event_format(TextFormat).boxed(),
        LogStyle::Pgbouncer => lines.event_format(PgbouncerFormat).boxed(),
    };
    (Registry::default().with(level).with(lines).with(system), handle)
}

/// Prefix of the names of this project's crates.
const CRATE_PREFIX: &str = "tidegate";

/// Libraries (TLS, HTTP, DNS) log at `info` if the level is `debug`, because at `debug` they log each message.
fn filter(level: LogLevel) -> Targets {
    let (own, libraries) = match level {
        LogLevel::Error => (LevelFilter::ERROR, LevelFilter::ERROR),
        LogLevel::Warn => (LevelFilter::WARN, LevelFilter::WARN),
        LogLevel::Info => (LevelFilter::INFO, LevelFilter::INFO),
        LogLevel::Debug => (LevelFilter::DEBUG, LevelFilter::INFO),
        LogLevel::Trace => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    Targets::new().with_default(libraries).with_target(CRATE_PREFIX, own)
}

/// The text format.
struct TextFormat;

impl<S, N> FormatEvent<S, N> for TextFormat
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
        let mut line = EventText::default();
        event.record(&mut line);
        writeln!(to, "{}{}", line.message, line.fields)
    }
}

/// The JSON format. Characters that could affect a terminal are escaped in addition to those below 0x20.
struct JsonFormat<F>(F);

impl<S, N, F> FormatEvent<S, N> for JsonFormat<F>
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

/// The text format with PgBouncer's time, process id and names of levels, for existing log parsers.
struct PgbouncerFormat;

impl<S, N> FormatEvent<S, N> for PgbouncerFormat
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        // `2026-01-31T12:00:00.123456Z`: cut to milliseconds, with the zone as a word.
        let (day, clock) = time.split_once('T').unwrap_or_default();
        let clock = clock.get(..12).unwrap_or(clock);
        let level = match *event.metadata().level() {
            Level::ERROR => "ERROR",
            Level::WARN => "WARNING",
            Level::INFO => "LOG",
            Level::DEBUG => "DEBUG",
            Level::TRACE => "NOISE",
        };
        let mut line = EventText::default();
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

/// Message and fields of an event.
#[derive(Default)]
struct EventText {
    message: String,
    fields: String,
}

impl EventText {
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

impl Visit for EventText {
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
    struct MemoryWriter(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for MemoryWriter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no writer panics").extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Returns what `events` logs in this style.
    pub(super) fn logged(style: LogStyle, level: LogLevel, events: impl FnOnce(&LogHandle)) -> String {
        let output = MemoryWriter::default();
        let writer = output.clone();
        let (subscriber, level) = subscriber(style, level, move || writer.clone(), SystemLog::default());
        let handle = LogHandle { level, file: Arc::default(), system: SystemLog::default() };
        tracing::subscriber::with_default(subscriber, || events(&handle));
        let bytes = output.0.lock().expect("no writer panics").clone();
        String::from_utf8(bytes).expect("lines are UTF-8")
    }

    #[test]
    fn line_has_time_level_message_and_fields() {
        let line = logged(LogStyle::Plain, LogLevel::Info, |_| {
            tracing::info!(user = "app", clients = 3, "client connected");
        });
        let (time, rest) = line.split_once(' ').expect("a time");
        assert!(time.ends_with('Z') && time.contains('T'), "{time}");
        assert_eq!(rest, " INFO client connected user=app clients=3\n");
    }

    #[test]
    fn pgbouncer_format_has_its_fields() {
        let lines = logged(LogStyle::Pgbouncer, LogLevel::Info, |_| {
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
    fn clients_cannot_forge_lines() {
        let line = logged(LogStyle::Plain, LogLevel::Info, |_| {
            tracing::info!(user = %"a\nERROR b\x1b[2J\"", "client {} connected", "x\ny");
        });
        assert_eq!(line.lines().count(), 1);
        assert!(line.ends_with("client x\\ny connected user=\"a\\nERROR b\\u{1b}[2J\\\"\"\n"), "{line}");
    }

    #[test]
    fn escape_sequences_are_escaped_in_every_format() {
        let sent = "a\u{9b}31m\u{202e}b\u{7f}\u{1b}[2J";
        for style in [LogStyle::Plain, LogStyle::Pgbouncer, LogStyle::Json] {
            let line = logged(style, LogLevel::Info, |_| {
                tracing::info!(user = sent, database = %sent, "client {sent} connected");
            });
            assert!(!line.trim_end_matches('\n').contains(is_unsafe), "{line:?}");
        }
        let line = logged(LogStyle::Json, LogLevel::Info, |_| tracing::info!(user = sent, "connected"));
        let object: serde_json::Value = serde_json::from_str(&line).expect("an object");
        assert_eq!(object["user"], sent);
    }

    #[test]
    fn json_has_fields_at_the_top_level() {
        let line = logged(LogStyle::Json, LogLevel::Info, |_| tracing::warn!(port = 6432, "listening"));
        let object: serde_json::Value = serde_json::from_str(&line).expect("an object");
        assert_eq!((&object["level"], &object["message"]), (&"WARN".into(), &"listening".into()));
        assert_eq!(object["port"], 6432);
    }

    #[test]
    fn libraries_are_quiet_at_debug() {
        for (level, libraries) in [(LogLevel::Debug, false), (LogLevel::Trace, true)] {
            let lines = logged(LogStyle::Plain, level, |_| {
                tracing::debug!("gateway event");
                tracing::debug!(target: "tidegate_lanes::retry", "library event");
                tracing::debug!(target: "hyper_util::client", "connecting");
                tracing::warn!(target: "hyper_util::client", "a warning");
            });
            assert!(lines.contains("gateway event") && lines.contains("library event"), "{lines}");
            assert_eq!(lines.contains("connecting"), libraries, "{lines}");
            assert!(lines.contains("a warning"), "{lines}");
        }
    }

    #[test]
    fn level_changes_at_run_time() {
        let lines = logged(LogStyle::Plain, LogLevel::Warn, |handle| {
            tracing::info!("before");
            handle.set_level(LogLevel::Info);
            tracing::info!("after");
        });
        assert!(lines.ends_with("INFO after\n") && !lines.contains("before"), "{lines}");
    }

    #[test]
    fn colour_needs_a_terminal_and_no_no_color() {
        assert_eq!(LogStyle::choose(LogFormat::Auto, true, None), LogStyle::Colour);
        assert_eq!(LogStyle::choose(LogFormat::Auto, true, Some("")), LogStyle::Colour);
        assert_eq!(LogStyle::choose(LogFormat::Auto, true, Some("1")), LogStyle::Plain);
        assert_eq!(LogStyle::choose(LogFormat::Auto, false, None), LogStyle::Plain);
        assert_eq!(LogStyle::choose(LogFormat::Text, true, None), LogStyle::Plain);
        assert_eq!(LogStyle::choose(LogFormat::Json, true, None), LogStyle::Json);
    }
}
