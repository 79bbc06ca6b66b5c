//! Output of entries as text lines, JSON lines or comma-separated values.

mod ansi;
mod csv;
mod text_line;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write, stdout};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use super::{
    log_entry::{EntryContent, LogEntry, Loss, describe_damage},
    zone::Zone,
};
pub(super) use ansi::AnsiStyle;
pub(super) use csv::{COLUMNS, write_row};
pub(super) use text_line::describe_loss;

use tidegate_config::escape::{escaped_json, escaped_lines};

use crate::options::DisplayArgs;

/// Format of the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OutputFormat {
    /// Line per entry.
    Text,
    /// Line per key of an entry.
    Long,
    Json,
    Csv,
}

impl OutputFormat {
    pub(super) fn of(display: &DisplayArgs, long: bool) -> Self {
        match display {
            DisplayArgs { json: true, .. } => Self::Json,
            DisplayArgs { csv: true, .. } => Self::Csv,
            _ if long => Self::Long,
            _ => Self::Text,
        }
    }
}

/// Destination of the output.
pub(super) enum Output {
    Standard(BufWriter<io::Stdout>),
    /// A pipe or a device, which is written directly.
    Special(BufWriter<File>),
    /// A file that is renamed to its final name when it is complete.
    File {
        file: BufWriter<File>,
        part: PartialFile,
        path: PathBuf,
    },
}

/// A file that is removed on drop unless it was finished.
pub(super) struct PartialFile(Option<PathBuf>);

impl Output {
    pub(super) fn new(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::Standard(BufWriter::new(stdout()))) };
        let failed = |path: &Path| format!("cannot write {}", path.display());
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            let file = File::options().write(true).open(path).with_context(|| failed(path))?;
            return Ok(Self::Special(BufWriter::new(file)));
        }
        // A symbolic link is kept, and its target is replaced.
        let path = match path.symlink_metadata() {
            Ok(_) => path.canonicalize().with_context(|| failed(path))?,
            Err(_) => path.to_path_buf(),
        };
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        // The output contains data of the log, whose files are readable by their owner only.
        let opened = File::options().write(true).create(true).truncate(true).mode(0o600).open(&part);
        let file = opened.with_context(|| failed(&part))?;
        Ok(Self::File { file: BufWriter::new(file), part: PartialFile(Some(part)), path })
    }

    /// Whether the output is a terminal.
    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Standard(_)) && stdout().is_terminal()
    }

    /// Flushes the output and gives a file its final name.
    pub(super) fn finish(self) -> Result<()> {
        match self {
            Self::Standard(mut out) => Ok(out.flush()?),
            Self::Special(mut out) => out.flush().context("cannot write the output"),
            Self::File { file, mut part, path } => {
                let file =
                    file.into_inner().map_err(io::IntoInnerError::into_error).context("cannot write the output")?;
                file.sync_all().with_context(|| format!("cannot write {}", path.display()))?;
                if let Some(unfinished) = &part.0 {
                    std::fs::rename(unfinished, &path)
                        .with_context(|| format!("cannot rename the output to {}", path.display()))?;
                }
                part.0 = None;
                Ok(())
            }
        }
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            // A partial file that cannot be removed stays; the command has failed already.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Standard(out) => out.write(bytes),
            Self::Special(out) => out.write(bytes),
            Self::File { file, .. } => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Standard(out) => out.flush(),
            Self::Special(out) => out.flush(),
            Self::File { file, .. } => file.flush(),
        }
    }
}

/// Prints entries in one format.
pub(super) struct EntryPrinter {
    form: OutputFormat,
    line: text_line::LinePrinter,
    zone: Zone,
    headed: bool,
    /// The output is a terminal, so cells must not contain control characters.
    escapes: bool,
}

impl EntryPrinter {
    pub(super) fn new(form: OutputFormat, display: &DisplayArgs, zone: &Zone) -> Self {
        let truncate = !display.full && stdout().is_terminal();
        let line = text_line::LinePrinter::new(AnsiStyle::new(display.color), zone.clone(), truncate);
        Self { form, line, zone: zone.clone(), headed: false, escapes: false }
    }

    /// Adapts the printer to the output.
    pub(super) fn to(mut self, out: &Output) -> Self {
        self.escapes = out.is_terminal();
        self
    }

    pub(super) fn print(&mut self, entry: &LogEntry, out: &mut impl Write) -> io::Result<()> {
        match self.form {
            OutputFormat::Text => self.line.write(entry, out),
            OutputFormat::Long => self.long(entry, out),
            OutputFormat::Json => writeln!(out, "{}", escaped_json(&to_json(entry))),
            OutputFormat::Csv => {
                if !std::mem::replace(&mut self.headed, true) {
                    csv::heading(out)?;
                }
                if !self.escapes {
                    return csv::row(entry, out);
                }
                let mut row = Vec::new();
                csv::row(entry, &mut row)?;
                writeln!(out, "{}", escaped_lines(String::from_utf8_lossy(&row).trim_end_matches("\r\n")))
            }
        }
    }

    /// Prints the heading, also if no entry follows.
    pub(super) fn head(&mut self, out: &mut impl Write) -> io::Result<()> {
        if self.form == OutputFormat::Csv && !std::mem::replace(&mut self.headed, true) {
            csv::heading(out)?;
        }
        Ok(())
    }

    fn long(&mut self, entry: &LogEntry, out: &mut impl Write) -> io::Result<()> {
        let EntryContent::Record { record, .. } = &entry.content else { return self.line.write(entry, out) };
        if std::mem::replace(&mut self.headed, true) {
            writeln!(out)?;
        }
        let style = self.line.style;
        for column in COLUMNS {
            let cell =
                if *column == "time" { Some(self.zone.format(entry.time).into()) } else { csv::cell(record, column) };
            if let Some(cell) = cell {
                writeln!(out, "{}  {}", style.dim(&format!("{column:>11}")), super::units::one_line(&cell))?;
            }
        }
        Ok(())
    }
}

/// Encodes an entry as one JSON object; a record is returned as the log contains it.
pub(super) fn to_json(entry: &LogEntry) -> String {
    match &entry.content {
        EntryContent::Record { json, .. } => json.clone(),
        EntryContent::Text(text) => json!({ "time": entry.time.to_string(), "text": text }).to_string(),
        EntryContent::Loss(loss) => json!({ "gap": loss_to_json(loss) }).to_string(),
        EntryContent::Missing { stripe, records } => {
            json!({ "missing": { "stripe": stripe, "records": records, "after": entry.time.to_string() } }).to_string()
        }
        EntryContent::Damage(damage) => {
            let (path, at, bytes) = (damage.path.display().to_string(), damage.at, damage.bytes);
            json!({ "damage": { "file": path, "at": at, "bytes": bytes, "why": describe_damage(damage) } }).to_string()
        }
    }
}

pub(super) fn loss_to_json(loss: &Loss) -> serde_json::Value {
    let Loss { class, cause, records, bytes, first, last } = loss;
    let (first, last) = (first.to_string(), last.to_string());
    json!({ "class": class, "cause": cause, "records": records, "bytes": bytes, "first": first, "last": last })
}
