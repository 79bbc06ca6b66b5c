//! Records as lines of JSON or text.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read as _, Write as _},
    path::Path,
};

use crate::{
    compressed_file,
    config::ClassConfig,
    frame::{self, FrameKind, JournalFrame, PAYLOAD_BYTES_MAX},
    gap_record::Gap,
    segment_format::SegmentFormat,
    segment_scanner::{SegmentStep, TailMode},
};

/// A record in which every byte is escaped.
const LINE_BYTES_MAX: usize = 2 * PAYLOAD_BYTES_MAX + 1;

/// Writes the records of whole staged frames as lines.
pub(crate) fn render(frames: &[u8], format: SegmentFormat, classes: &[ClassConfig], out: &mut Vec<u8>) {
    out.clear();
    let mut at = 0;
    while at < frames.len() {
        let frame = frame::staged_frame_at(frames, at);
        render_line(&frame, format, classes, out);
        at += frame.bytes();
    }
}

fn render_line(frame: &JournalFrame<'_>, format: SegmentFormat, classes: &[ClassConfig], out: &mut Vec<u8>) {
    match Gap::from_payload(frame.class, frame.payload).filter(|_| frame.kind == FrameKind::Gap) {
        Some(gap) => render_gap(&gap, format, classes, out),
        None => push_escaped(frame.payload, format, out),
    }
    out.push(b'\n');
}

/// Escapes line breaks, because a record is one line: `\n` and `\r`. Valid JSON has raw line breaks only between tokens,
/// where an escape would be invalid, so there they become spaces.
fn push_escaped(payload: &[u8], format: SegmentFormat, out: &mut Vec<u8>) {
    let payload = payload.strip_suffix(b"\n").unwrap_or(payload);
    if !payload.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        out.extend_from_slice(payload);
        return;
    }
    for byte in payload {
        match byte {
            b'\n' | b'\r' if format == SegmentFormat::Json => out.push(b' '),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            other => out.push(*other),
        }
    }
}

fn render_gap(gap: &Gap, format: SegmentFormat, classes: &[ClassConfig], out: &mut Vec<u8>) {
    let class = classes.get(usize::from(gap.class.index())).map_or("unknown", |class| class.name.as_str());
    let (cause, first, last) = (gap.cause.name(), gap.first.unix_nanos(), gap.last.unix_nanos());
    let Gap { records, bytes, .. } = gap;
    // A class name comes from the configuration; its debug form escapes what JSON requires.
    let written = if format == SegmentFormat::Json {
        write!(
            out,
            "{{\"gap\":{{\"class\":{class:?},\"cause\":\"{cause}\",\"records\":{records},\"bytes\":{bytes},\
             \"first_ns\":{first},\"last_ns\":{last}}}}}"
        )
    } else {
        write!(out, "# gap class={class} cause={cause} records={records} bytes={bytes} first_ns={first} last_ns={last}")
    };
    written.expect("writing to a vector cannot fail");
}

/// Reads the whole lines of a segment.
pub(crate) struct LineScanner {
    source: Box<dyn BufRead + Send>,
    line: Vec<u8>,
    /// The offset of the current line.
    start: u64,
    number: u64,
    /// The rest of the file cannot be decompressed.
    is_corrupt: bool,
}

impl LineScanner {
    pub(crate) fn open(path: &Path, compressed: bool) -> io::Result<Self> {
        let file = File::open(path)?;
        let source: Box<dyn BufRead + Send> = if compressed {
            Box::new(BufReader::new(compressed_file::decompress(file)?))
        } else {
            Box::new(BufReader::new(file))
        };
        Ok(Self { source, line: Vec::new(), start: 0, number: 0, is_corrupt: false })
    }

    /// Reads the next line. A line longer than any record is damage.
    pub(crate) fn advance(&mut self, tail: TailMode) -> io::Result<SegmentStep> {
        if self.line.ends_with(b"\n") {
            self.start += self.line.len() as u64;
            self.number += 1;
            self.line.clear();
        }
        if self.is_corrupt {
            return Ok(SegmentStep::End(None));
        }
        let most = (LINE_BYTES_MAX - self.line.len()) as u64;
        let read = self.source.by_ref().take(most).read_until(b'\n', &mut self.line);
        self.note_corruption(read)?;
        if self.is_corrupt {
            return Ok(self.skip_damage(0));
        }
        if self.line.ends_with(b"\n") {
            return Ok(SegmentStep::Frame);
        }
        let bytes = self.line.len() as u64;
        Ok(match tail {
            _ if self.line.len() >= LINE_BYTES_MAX => self.skip_line()?,
            TailMode::Live => SegmentStep::Pending,
            TailMode::Final if bytes == 0 => SegmentStep::End(None),
            TailMode::Final => {
                self.line.clear();
                self.start += bytes;
                SegmentStep::Torn { at: self.start - bytes, bytes }
            }
        })
    }

    /// Skips a line that no journal wrote.
    fn skip_line(&mut self) -> io::Result<SegmentStep> {
        let skipped = self.source.skip_until(b'\n');
        let more = self.note_corruption(skipped)? as u64;
        Ok(self.skip_damage(more))
    }

    /// Reports the part of the line read so far, and `more` bytes, as damage.
    fn skip_damage(&mut self, more: u64) -> SegmentStep {
        let at = self.start;
        self.start += self.line.len() as u64 + more;
        self.line.clear();
        SegmentStep::Damage { at, bytes: self.start - at }
    }

    pub(crate) fn skip_to(&mut self, offset: u64) -> io::Result<()> {
        let copied = io::copy(&mut self.source.by_ref().take(offset), &mut io::sink());
        self.start = self.note_corruption(copied)?;
        Ok(())
    }

    /// Returns errors of the operating system; turns errors of the decompressor into damage.
    fn note_corruption<T: Default>(&mut self, result: io::Result<T>) -> io::Result<T> {
        match result {
            Err(error) if error.raw_os_error().is_none() => {
                self.is_corrupt = true;
                Ok(T::default())
            }
            result => result,
        }
    }

    /// The line without its line break.
    pub(crate) fn line(&self) -> &[u8] {
        self.line.strip_suffix(b"\n").unwrap_or(&self.line)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The offset where the line begins, or ends.
    pub(crate) fn offset(&self, behind: bool) -> u64 {
        self.start + if behind { self.line.len() as u64 } else { 0 }
    }
}
