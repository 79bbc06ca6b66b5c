//! How entries are shown: lines for people, JSON lines, or comma-separated values.

mod csv;
mod line;
mod paint;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write, stdout};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use super::{
    item::{Item, Loss, What, words_of},
    zone::Zone,
};
pub(super) use csv::{COLUMNS, quoted};
pub(super) use line::words_of_loss;
pub(super) use paint::Paint;

use tidegate_config::escape::{escaped_json, escaped_lines};

use crate::options::Look;

/// The form of the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// A line for each entry.
    Text,
    /// A line for each key of an entry.
    Long,
    Json,
    Csv,
}

impl Form {
    pub(super) fn of(look: &Look, long: bool) -> Self {
        match look {
            Look { json: true, .. } => Self::Json,
            Look { csv: true, .. } => Self::Csv,
            _ if long => Self::Long,
            _ => Self::Text,
        }
    }
}

/// Where output goes.
pub(super) enum Sink {
    Standard(BufWriter<io::Stdout>),
    /// A pipe or a device, which is written to as it is.
    Special(BufWriter<File>),
    /// A file that gets its name when it is complete.
    File {
        file: BufWriter<File>,
        part: Unfinished,
        path: PathBuf,
    },
}

/// A file that is removed unless it was finished.
pub(super) struct Unfinished(Option<PathBuf>);

impl Sink {
    pub(super) fn new(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::Standard(BufWriter::new(stdout()))) };
        let failed = |path: &Path| format!("cannot write {}", path.display());
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            let file = File::options().write(true).open(path).with_context(|| failed(path))?;
            return Ok(Self::Special(BufWriter::new(file)));
        }
        // A link stays, and what it names is written.
        let path = match path.symlink_metadata() {
            Ok(_) => path.canonicalize().with_context(|| failed(path))?,
            Err(_) => path.to_path_buf(),
        };
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        // It holds what the journal holds, whose files are readable by their owner only.
        let opened = File::options().write(true).create(true).truncate(true).mode(0o600).open(&part);
        let file = opened.with_context(|| failed(&part))?;
        Ok(Self::File { file: BufWriter::new(file), part: Unfinished(Some(part)), path })
    }

    /// Whether the output is a terminal.
    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Standard(_)) && stdout().is_terminal()
    }

    /// Everything was written.
    pub(super) fn finish(self) -> Result<()> {
        match self {
            Self::Standard(mut out) => Ok(out.flush()?),
            Self::Special(mut out) => out.flush().context("write the output"),
            Self::File { file, mut part, path } => {
                let file = file.into_inner().map_err(io::IntoInnerError::into_error).context("write the output")?;
                file.sync_all().with_context(|| format!("cannot write {}", path.display()))?;
                if let Some(unfinished) = &part.0 {
                    std::fs::rename(unfinished, &path).with_context(|| format!("cannot name {}", path.display()))?;
                }
                part.0 = None;
                Ok(())
            }
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            // What is left of it is found by whoever looks for it.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Write for Sink {
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

/// Shows one entry after the other.
pub(super) struct Printer {
    form: Form,
    line: line::Line,
    zone: Zone,
    headed: bool,
    /// The output is a terminal, so nothing in a cell may move its cursor.
    escapes: bool,
}

impl Printer {
    pub(super) fn new(form: Form, look: &Look, zone: &Zone) -> Self {
        let cut = !look.full && stdout().is_terminal();
        let line = line::Line::new(Paint::new(look.color), zone.clone(), cut);
        Self { form, line, zone: zone.clone(), headed: false, escapes: false }
    }

    /// The same for this output.
    pub(super) fn to(mut self, out: &Sink) -> Self {
        self.escapes = out.is_terminal();
        self
    }

    pub(super) fn print(&mut self, item: &Item, out: &mut impl Write) -> io::Result<()> {
        match self.form {
            Form::Text => self.line.write(item, out),
            Form::Long => self.long(item, out),
            Form::Json => writeln!(out, "{}", escaped_json(&json_of(item))),
            Form::Csv => {
                if !std::mem::replace(&mut self.headed, true) {
                    csv::heading(out)?;
                }
                if !self.escapes {
                    return csv::row(item, out);
                }
                let mut row = Vec::new();
                csv::row(item, &mut row)?;
                writeln!(out, "{}", escaped_lines(String::from_utf8_lossy(&row).trim_end_matches("\r\n")))
            }
        }
    }

    /// What stands before everything even if nothing follows.
    pub(super) fn head(&mut self, out: &mut impl Write) -> io::Result<()> {
        if self.form == Form::Csv && !std::mem::replace(&mut self.headed, true) {
            csv::heading(out)?;
        }
        Ok(())
    }

    fn long(&mut self, item: &Item, out: &mut impl Write) -> io::Result<()> {
        let What::Record { entry, .. } = &item.what else { return self.line.write(item, out) };
        if std::mem::replace(&mut self.headed, true) {
            writeln!(out)?;
        }
        let paint = self.line.paint;
        for column in COLUMNS {
            let cell =
                if *column == "time" { Some(self.zone.show(item.time).into()) } else { csv::cell(entry, column) };
            if let Some(cell) = cell {
                writeln!(out, "{}  {}", paint.dim(&format!("{column:>11}")), super::units::one_line(&cell))?;
            }
        }
        Ok(())
    }
}

/// An entry as one JSON object; a record as it stands in the journal.
pub(super) fn json_of(item: &Item) -> String {
    match &item.what {
        What::Record { json, .. } => json.clone(),
        What::Text(text) => json!({ "time": item.time.to_string(), "text": text }).to_string(),
        What::Loss(loss) => json!({ "gap": loss_json(loss) }).to_string(),
        What::Missing { stripe, records } => {
            json!({ "missing": { "stripe": stripe, "records": records, "after": item.time.to_string() } }).to_string()
        }
        What::Damage(damage) => {
            let (path, at, bytes) = (damage.path.display().to_string(), damage.at, damage.bytes);
            json!({ "damage": { "file": path, "at": at, "bytes": bytes, "why": words_of(damage) } }).to_string()
        }
    }
}

pub(super) fn loss_json(loss: &Loss) -> serde_json::Value {
    let Loss { class, cause, records, bytes, first, last } = loss;
    let (first, last) = (first.to_string(), last.to_string());
    json!({ "class": class, "cause": cause, "records": records, "bytes": bytes, "first": first, "last": last })
}
