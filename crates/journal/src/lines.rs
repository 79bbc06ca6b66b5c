//! Records as lines, for people and for tools that know no frames.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read as _, Write as _},
    path::Path,
};

use crate::{
    config::{ClassConfig, Format},
    frame::{self, Frame, Kind, PAYLOAD_BYTES_MAX},
    gap::Gap,
    pack,
    scan::{Step, Tail},
};

/// A record with every byte escaped.
const LINE_BYTES_MAX: usize = 2 * PAYLOAD_BYTES_MAX + 1;

/// Writes the records of whole staged frames as lines.
pub(crate) fn render(frames: &[u8], format: Format, classes: &[ClassConfig], out: &mut Vec<u8>) {
    out.clear();
    let mut at = 0;
    while at < frames.len() {
        let frame = frame::staged_at(frames, at);
        line(&frame, format, classes, out);
        at += frame.bytes();
    }
}

fn line(frame: &Frame<'_>, format: Format, classes: &[ClassConfig], out: &mut Vec<u8>) {
    match Gap::from_payload(frame.class, frame.payload).filter(|_| frame.kind == Kind::Gap) {
        Some(gap) => gap_line(&gap, format, classes, out),
        None => escaped(frame.payload, format, out),
    }
    out.push(b'\n');
}

/// A record is one line: what would break it is written as `\n` and `\r`. Valid JSON has such bytes only between its words,
/// where the escape would be wrong, so there they become blanks.
fn escaped(payload: &[u8], format: Format, out: &mut Vec<u8>) {
    let payload = payload.strip_suffix(b"\n").unwrap_or(payload);
    if !payload.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        out.extend_from_slice(payload);
        return;
    }
    for byte in payload {
        match byte {
            b'\n' | b'\r' if format == Format::Json => out.push(b' '),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            other => out.push(*other),
        }
    }
}

fn gap_line(gap: &Gap, format: Format, classes: &[ClassConfig], out: &mut Vec<u8>) {
    let class = classes.get(usize::from(gap.class.index())).map_or("unknown", |class| class.name.as_str());
    let (cause, first, last) = (gap.cause.name(), gap.first.unix_nanos(), gap.last.unix_nanos());
    let Gap { records, bytes, .. } = gap;
    // A class is a word of the configuration; its debug form escapes what JSON has to escape.
    let written = if format == Format::Json {
        write!(
            out,
            "{{\"gap\":{{\"class\":{class:?},\"cause\":\"{cause}\",\"records\":{records},\"bytes\":{bytes},\
             \"first_ns\":{first},\"last_ns\":{last}}}}}"
        )
    } else {
        write!(out, "# gap class={class} cause={cause} records={records} bytes={bytes} first_ns={first} last_ns={last}")
    };
    written.expect("a vector takes what is written to it");
}

/// The whole lines of a segment.
pub(crate) struct LineScan {
    source: Box<dyn BufRead + Send>,
    line: Vec<u8>,
    /// Where the line begins.
    start: u64,
    number: u64,
    /// What follows cannot be unpacked.
    is_broken: bool,
}

impl LineScan {
    pub(crate) fn open(path: &Path, packed: bool) -> io::Result<Self> {
        let file = File::open(path)?;
        let source: Box<dyn BufRead + Send> =
            if packed { Box::new(BufReader::new(pack::unpack(file)?)) } else { Box::new(BufReader::new(file)) };
        Ok(Self { source, line: Vec::new(), start: 0, number: 0, is_broken: false })
    }

    /// The next line. What it is not: longer than a record may be.
    pub(crate) fn advance(&mut self, tail: Tail) -> io::Result<Step> {
        if self.line.ends_with(b"\n") {
            self.start += self.line.len() as u64;
            self.number += 1;
            self.line.clear();
        }
        if self.is_broken {
            return Ok(Step::End(None));
        }
        let most = (LINE_BYTES_MAX - self.line.len()) as u64;
        let read = self.source.by_ref().take(most).read_until(b'\n', &mut self.line);
        self.look(read)?;
        if self.is_broken {
            return Ok(self.pass_over(0));
        }
        if self.line.ends_with(b"\n") {
            return Ok(Step::Frame);
        }
        let bytes = self.line.len() as u64;
        Ok(match tail {
            _ if self.line.len() >= LINE_BYTES_MAX => self.skip_line()?,
            Tail::Live => Step::Pending,
            Tail::Final if bytes == 0 => Step::End(None),
            Tail::Final => {
                self.line.clear();
                self.start += bytes;
                Step::Torn { at: self.start - bytes, bytes }
            }
        })
    }

    /// A line that no journal wrote.
    fn skip_line(&mut self) -> io::Result<Step> {
        let skipped = self.source.skip_until(b'\n');
        let more = self.look(skipped)? as u64;
        Ok(self.pass_over(more))
    }

    /// What was read of the line, and so much more, is none.
    fn pass_over(&mut self, more: u64) -> Step {
        let at = self.start;
        self.start += self.line.len() as u64 + more;
        self.line.clear();
        Step::Damage { at, bytes: self.start - at }
    }

    pub(crate) fn skip_to(&mut self, offset: u64) -> io::Result<()> {
        let copied = io::copy(&mut self.source.by_ref().take(offset), &mut io::sink());
        self.start = self.look(copied)?;
        Ok(())
    }

    /// An error of the system is one; that of whoever unpacks is damage.
    fn look<T: Default>(&mut self, result: io::Result<T>) -> io::Result<T> {
        match result {
            Err(error) if error.raw_os_error().is_none() => {
                self.is_broken = true;
                Ok(T::default())
            }
            result => result,
        }
    }

    /// The line without its end.
    pub(crate) fn line(&self) -> &[u8] {
        self.line.strip_suffix(b"\n").unwrap_or(&self.line)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Where the line begins, or ends.
    pub(crate) fn offset(&self, behind: bool) -> u64 {
        self.start + if behind { self.line.len() as u64 } else { 0 }
    }
}
