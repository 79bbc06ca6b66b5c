//! Scans the frames of one segment in order, whatever its bytes are.
//!
//! Scanning has two steps, so that a caller can look before it borrows: [`SegmentScanner::advance`] finds the next frame,
//! [`SegmentScanner::frame`] returns it. Every length is checked against the available bytes before anything is allocated
//! or skipped.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::FileExt,
    path::Path,
};

use crate::{
    compressed_file::{self, preface},
    crc_index::{self, CrcIndex},
    frame::{self, DecodeResult, FrameKind, HEAD_BYTES, JournalFrame},
    segment::{HEADER_BYTES, SEAL_BYTES, SegmentHeader, SegmentName, SegmentSummary},
    timestamp::Timestamp,
};

const READ_BYTES: usize = 256 << 10;

/// The source of the bytes.
enum Source {
    Plain(File),
    Compressed(Box<dyn io::Read + Send>),
}

impl Source {
    fn compressed(mut file: File) -> io::Result<Self> {
        let from = io::SeekFrom::Start(compressed_file::data_offset(&file));
        io::Seek::seek(&mut file, from)?;
        compressed_file::decompress(file).map(Self::Compressed)
    }
}

/// The meaning of the end of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TailMode {
    /// More may be written: a partial frame may become whole.
    Live,
    /// The segment is closed: a partial frame stays partial.
    Final,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentStep {
    /// A record or a gap: see [`SegmentScanner::frame`].
    Frame,
    /// No frame yet.
    Pending,
    /// These bytes are not frames, and frames follow.
    Damage { at: u64, bytes: u64 },
    /// These bytes are not frames, and nothing follows: a torn write.
    Torn { at: u64, bytes: u64 },
    /// The end, with the summary if the segment has one.
    End(Option<SegmentSummary>),
}

pub(crate) struct SegmentScanner {
    source: Source,
    header: SegmentHeader,
    /// The bytes of the header.
    head: [u8; HEADER_BYTES],
    buffer: Vec<u8>,
    /// The offset of the next frame in the buffer.
    start: usize,
    /// The offset of the buffer in the file.
    base: u64,
    /// The length of the frame that `advance` found at `start`; 0 if there is none.
    found: usize,
    last_seq: Option<u64>,
    ended: Option<Option<SegmentSummary>>,
    /// The summary right before `start`. Frames may follow it: a journal continues a young segment when it is opened.
    summary: Option<SegmentSummary>,
    /// The rest of the file cannot be decompressed.
    is_corrupt: bool,
    /// The bytes skipped last contain valid frames with unexpected sequence numbers.
    skipped_valid_frame: bool,
}

impl SegmentScanner {
    /// `None`: the file does not begin with a valid header, or not yet.
    pub(crate) fn open(path: &Path, compressed: bool) -> io::Result<Option<Self>> {
        let mut file = File::open(path)?;
        if compressed {
            let preface = preface(&mut file)?;
            return Self::begin(Source::compressed(file)?, preface.map(|(header, _)| header));
        }
        Self::begin(Source::Plain(file), None)
    }

    fn begin(source: Source, expected: Option<SegmentHeader>) -> io::Result<Option<Self>> {
        let mut scan = Self::behind_header(source)?;
        let header =
            SegmentHeader::from_bytes(&scan.head).filter(|header| expected.is_none_or(|expected| expected == *header));
        let Some(header) = header else { return Ok(None) };
        scan.header = header;
        scan.last_seq = header.first_seq.checked_sub(1);
        Ok(Some(scan))
    }

    /// Opens the source without parsing the header.
    fn behind_header(source: Source) -> io::Result<Self> {
        let header =
            SegmentHeader { stripe: 0, salt: 0, number: 0, first_seq: 0, created: Timestamp::MIN, preallocated: false };
        let (buffer, head, last_seq, ended, summary) = (Vec::new(), [0; HEADER_BYTES], None, None, None);
        let (start, base, found, is_corrupt, skipped_valid_frame) = (0, 0, 0, false, false);
        let mut scan = Self {
            source,
            header,
            head,
            buffer,
            start,
            base,
            found,
            last_seq,
            ended,
            summary,
            is_corrupt,
            skipped_valid_frame,
        };
        scan.fill(HEADER_BYTES)?;
        if let Some(head) = scan.buffer.first_chunk() {
            scan.head = *head;
            scan.start = HEADER_BYTES;
        }
        Ok(scan)
    }

    /// Opens a segment that has a damaged header and is not written to any more. Its salt is recovered from its first
    /// frame or its summary: the candidate with which most frames are valid, and at least two. A compressed segment has a
    /// second copy of its header.
    pub(crate) fn open_without_header(path: &Path, name: &SegmentName) -> io::Result<Option<Self>> {
        if name.compressed {
            return Self::open_by_preface(File::open(path)?);
        }
        let salt = match best_salt(path, &first_frame(path)?)? {
            None => best_salt(path, &last_frame(path)?)?,
            found => found,
        };
        let Some((salt, (first_seq, created))) = salt else { return Ok(None) };
        let mut scan = Self::with_salt(path, salt)?;
        let (stripe, number) = (name.stripe, name.number);
        scan.header = SegmentHeader { stripe, number, first_seq, created, ..scan.header };
        Ok(Some(scan))
    }

    fn open_by_preface(mut file: File) -> io::Result<Option<Self>> {
        let Some((header, _)) = preface(&mut file)? else { return Ok(None) };
        let mut scan = Self::behind_header(Source::compressed(file)?)?;
        (scan.header, scan.last_seq) = (header, header.first_seq.checked_sub(1));
        Ok((scan.start > 0 && SegmentHeader::from_bytes(&scan.head).is_none()).then_some(scan))
    }

    fn with_salt(path: &Path, salt: u32) -> io::Result<Self> {
        let mut scan = Self::behind_header(Source::Plain(File::open(path)?))?;
        (scan.header.salt, scan.header.preallocated) = (salt, SegmentHeader::is_preallocated(&scan.head));
        Ok(scan)
    }

    pub(crate) fn header(&self) -> SegmentHeader {
        self.header
    }

    /// The offset of the next frame in the (decompressed) file.
    pub(crate) fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Continues at an offset where a frame begins. Compressed segments are decompressed up to there.
    pub(crate) fn skip_to(&mut self, offset: u64) -> io::Result<()> {
        if let Source::Plain(_) = self.source {
            (self.base, self.start) = (offset.max(HEADER_BYTES as u64), 0);
            self.buffer.clear();
            return Ok(());
        }
        while self.offset() < offset {
            let here =
                usize::try_from(offset - self.offset()).unwrap_or(usize::MAX).min(self.buffer.len() - self.start);
            self.start += here;
            if here == 0 && self.fill(1)? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Finds the next frame. Invalidates the previous one.
    pub(crate) fn advance(&mut self, tail: TailMode) -> io::Result<SegmentStep> {
        self.start += std::mem::take(&mut self.found);
        if let Some(summary) = self.ended {
            return Ok(SegmentStep::End(summary));
        }
        loop {
            if let Some(available) = self.missing_frame()? {
                return self.end_of_frames(available, tail);
            }
            if self.accept() {
                return Ok(SegmentStep::Frame);
            }
        }
    }

    /// `None`: a valid frame follows. Otherwise the number of available bytes.
    fn missing_frame(&mut self) -> io::Result<Option<usize>> {
        let mut need = HEAD_BYTES;
        loop {
            let available = self.fill(need)?;
            match frame::decode(&self.buffer[self.start..], self.header.salt) {
                DecodeResult::Frame(frame)
                    if self.last_seq.is_none_or(|last| frame.seq > last) || frame.kind == FrameKind::Seal =>
                {
                    return Ok(None);
                }
                DecodeResult::Incomplete(more) if available < more && available < need => return Ok(Some(available)),
                DecodeResult::Incomplete(more) => need = more,
                DecodeResult::Frame(_) | DecodeResult::Invalid => return Ok(Some(available)),
            }
        }
    }

    /// Takes the frame that follows. `false`: it was a summary, after which the next frame is to be looked for.
    fn accept(&mut self) -> bool {
        let frame = self.peek();
        let (bytes, seq, seal) = (
            frame.bytes(),
            frame.seq,
            (frame.kind == FrameKind::Seal).then(|| SegmentSummary::from_bytes(frame.payload)),
        );
        if let Some(summary) = seal {
            self.summary = summary;
            self.start += bytes;
            return false;
        }
        self.found = bytes;
        self.last_seq = Some(seq);
        self.summary = None;
        true
    }

    /// The summary right before the current offset.
    pub(crate) fn summary(&self) -> Option<SegmentSummary> {
        self.summary
    }

    fn peek(&self) -> JournalFrame<'_> {
        match frame::decode(&self.buffer[self.start..], self.header.salt) {
            DecodeResult::Frame(frame) => frame,
            DecodeResult::Incomplete(_) | DecodeResult::Invalid => unreachable!("missing_frame decoded the frame"),
        }
    }

    /// The frame that [`advance`](Self::advance) found.
    pub(crate) fn frame(&self) -> JournalFrame<'_> {
        frame::staged_frame_at(&self.buffer, self.start)
    }

    /// Whether `advance` found a frame.
    pub(crate) fn has_frame(&self) -> bool {
        self.found > 0
    }

    /// The bytes of the frame.
    pub(crate) fn raw(&self) -> &[u8] {
        &self.buffer[self.start..self.start + self.found]
    }

    /// Classifies bytes that are not a frame, or only a partial one.
    fn end_of_frames(&mut self, mut available: usize, tail: TailMode) -> io::Result<SegmentStep> {
        if let (TailMode::Live, Source::Plain(_)) = (tail, &self.source) {
            let at = self.offset();
            // After the last frame of a ring segment there are bytes of its previous use.
            let is_followed = available > 0 && !self.header.preallocated && self.find_frame()?;
            let end = self.offset();
            // Bytes that are not a frame now may become one.
            self.go_to(at);
            if !is_followed {
                return Ok(SegmentStep::Pending);
            }
            // The writer may have gone on meanwhile: a partial frame is whole once the next one follows it.
            if self.missing_frame()?.is_none() {
                return self.advance(tail);
            }
            self.go_to(end);
            return Ok(SegmentStep::Damage { at, bytes: end - at });
        }
        let at = self.offset();
        if self.header.preallocated && matches!(self.source, Source::Plain(_)) {
            // The file had its full length before the write: buffered bytes may be older than the last check for its end.
            self.go_to(at);
            match self.missing_frame()? {
                None => return self.advance(tail),
                Some(now) => available = now,
            }
        }
        if self.is_corrupt {
            self.start = self.buffer.len();
            self.ended = Some(None);
            return Ok(SegmentStep::Damage { at, bytes: self.offset() - at });
        }
        if available == 0 {
            self.ended = Some(self.summary);
            return Ok(SegmentStep::End(self.summary));
        }
        if self.find_frame()? {
            return Ok(SegmentStep::Damage { at, bytes: self.offset() - at });
        }
        self.ended = Some(None);
        let bytes = self.offset() - at;
        Ok(match self.header.preallocated {
            // A torn write leaves no valid frame after it, so these bytes are reported for inspection and not truncated.
            _ if self.skipped_valid_frame => SegmentStep::Damage { at, bytes },
            true => {
                self.ended = Some(self.summary);
                SegmentStep::End(self.summary)
            }
            false => SegmentStep::Torn { at, bytes },
        })
    }

    /// Continues at an offset and rereads the bytes from there.
    fn go_to(&mut self, offset: u64) {
        (self.base, self.start) = (offset, 0);
        self.buffer.clear();
    }

    /// Searches for the next valid frame. `false`: there is none up to the end.
    fn find_frame(&mut self) -> io::Result<bool> {
        let (mut crc_index, mut all_is_here) = (CrcIndex::default(), false);
        // The rejected frame at `start`, if it is one.
        let first = frame::decode(&self.buffer[self.start..], self.header.salt);
        self.skipped_valid_frame = matches!(first, DecodeResult::Frame(_));
        loop {
            self.start += 1;
            if self.buffer.len() - self.start < HEAD_BYTES && (all_is_here || self.fill(HEAD_BYTES)? < HEAD_BYTES) {
                self.start = self.buffer.len();
                return Ok(false);
            }
            // Skip bytes that cannot be a header without decoding.
            if !(1..=3).contains(&self.buffer[self.start + HEAD_BYTES - 1]) {
                continue;
            }
            let decoded = self.decode_with(&mut crc_index);
            let found = match decoded {
                DecodeResult::Incomplete(need) if !all_is_here => {
                    all_is_here = self.fill(need)? < need;
                    self.decode_with(&mut crc_index)
                }
                decoded => decoded,
            };
            let DecodeResult::Frame(JournalFrame { seq, .. }) = found else { continue };
            if self.last_seq.is_none_or(|last| seq > last) {
                return Ok(true);
            }
            self.skipped_valid_frame = true;
        }
    }

    fn decode_with(&self, crc_index: &mut CrcIndex) -> DecodeResult<'_> {
        let payload = self.start + HEAD_BYTES;
        frame::decode_with(&self.buffer[self.start..], self.header.salt, |crc, bytes| {
            crc_index.append(crc, &self.buffer, self.base, payload..payload + bytes.len())
        })
    }

    /// Reads until `need` bytes are available from `start` on, or the end is reached. Returns the number of available
    /// bytes.
    fn fill(&mut self, need: usize) -> io::Result<usize> {
        while self.buffer.len() - self.start < need {
            if self.start >= READ_BYTES {
                // Whole steps, so that the CRC index of the rest stays valid.
                let read = self.start / crc_index::STEP * crc_index::STEP;
                self.buffer.drain(..read);
                self.base += read as u64;
                self.start -= read;
            }
            let len = self.buffer.len();
            self.buffer.resize(len + READ_BYTES, 0);
            let read = match &mut self.source {
                Source::Plain(file) => read_at(file, &mut self.buffer[len..], self.base + len as u64),
                Source::Compressed(stream) => match stream.read(&mut self.buffer[len..]) {
                    // The error comes from the decompressor, not from the operating system.
                    Err(error) if error.raw_os_error().is_none() => {
                        self.is_corrupt = true;
                        Ok(0)
                    }
                    read => read,
                },
            };
            self.buffer.truncate(len + *read.as_ref().unwrap_or(&0));
            if read? == 0 {
                break;
            }
        }
        Ok(self.buffer.len() - self.start)
    }

    /// Whether the file was recycled for another segment of a ring.
    pub(crate) fn is_recycled(&self) -> bool {
        let mut head = [0; HEADER_BYTES];
        match &self.source {
            Source::Plain(file) => file.read_exact_at(&mut head, 0).is_err() || head != self.head,
            Source::Compressed(_) => false,
        }
    }
}

/// The candidate salt of a frame with which most frames of the file are valid, if there are at least two; with the
/// sequence number and the time of the first of these frames.
fn best_salt(path: &Path, frame: &[u8]) -> io::Result<Option<(u32, (u64, Timestamp))>> {
    let (mut most, mut best) = (1, None);
    for salt in frame::candidate_salts(frame) {
        let (frames, first) = frames_of(&mut SegmentScanner::with_salt(path, salt)?)?;
        if frames > most {
            (most, best) = (frames, first.map(|first| (salt, first)));
        }
    }
    Ok(best)
}

/// The bytes of the first frame.
fn first_frame(path: &Path) -> io::Result<Vec<u8>> {
    let mut scan = SegmentScanner::behind_header(Source::Plain(File::open(path)?))?;
    scan.fill(HEAD_BYTES)?;
    if let DecodeResult::Incomplete(need) = frame::decode(&scan.buffer[scan.start..], 0) {
        scan.fill(need)?;
    }
    Ok(scan.buffer.split_off(scan.start))
}

/// The bytes of the summary frame, if there is one.
fn last_frame(path: &Path) -> io::Result<Vec<u8>> {
    let (file, mut seal) = (File::open(path)?, vec![0; SEAL_BYTES]);
    let Some(at) = file.metadata()?.len().checked_sub(SEAL_BYTES as u64) else { return Ok(Vec::new()) };
    file.read_exact_at(&mut seal, at)?;
    Ok(if seal[HEAD_BYTES - 1] == FrameKind::Seal as u8 { seal } else { Vec::new() })
}

/// The number of valid frames, including the summary, and the sequence number and time of the first record.
fn frames_of(scan: &mut SegmentScanner) -> io::Result<(u64, Option<(u64, Timestamp)>)> {
    let (mut frames, mut first) = (0, None);
    loop {
        match scan.advance(TailMode::Final)? {
            SegmentStep::Frame => {
                frames += 1;
                first.get_or_insert((scan.frame().seq, scan.frame().time));
            }
            SegmentStep::Damage { .. } | SegmentStep::Torn { .. } => {}
            SegmentStep::End(summary) => return Ok((frames + u64::from(summary.is_some()), first)),
            SegmentStep::Pending => return Ok((frames, first)),
        }
    }
}

fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    loop {
        match file.read_at(buffer, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// The header and the summary of a segment, without reading its records. A segment that was not ended has no summary.
pub(crate) fn header_and_summary(path: &Path) -> io::Result<Option<(SegmentHeader, Option<SegmentSummary>)>> {
    let mut file = File::open(path)?;
    if path.extension().is_some_and(|extension| extension == "zst") {
        return preface(&mut file);
    }
    let mut bytes = [0; HEADER_BYTES];
    if file.read_exact_at(&mut bytes, 0).is_err() {
        return Ok(None);
    }
    let Some(header) = SegmentHeader::from_bytes(&bytes) else { return Ok(None) };
    let mut seal = [0; SEAL_BYTES];
    let end = file.metadata()?.len().checked_sub(SEAL_BYTES as u64);
    let summary = match end.map(|at| file.read_exact_at(&mut seal, at)) {
        Some(Ok(())) => summary_of(&seal, header.salt),
        _ => None,
    };
    Ok(Some((header, summary)))
}

fn summary_of(seal: &[u8], salt: u32) -> Option<SegmentSummary> {
    match frame::decode(seal, salt) {
        DecodeResult::Frame(frame) if frame.kind == FrameKind::Seal => SegmentSummary::from_bytes(frame.payload),
        _ => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::{frame::FrameInput, producer_record::Class};

    #[test]
    fn frame_completed_during_lookahead_is_no_damage() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let header =
            SegmentHeader { stripe: 0, salt: 7, number: 0, first_seq: 0, created: Timestamp::MIN, preallocated: false };
        let frame = |seq: u64| {
            let mut bytes = Vec::new();
            let framed =
                FrameInput { kind: FrameKind::Record, class: Class::new(0), time: Timestamp::MIN, payload: b"record" };
            framed.write_with_checksum(seq, header.salt, &mut bytes);
            bytes
        };
        let (begun, rest) = (frame(1)[..20].to_vec(), frame(1)[20..].to_vec());
        file.write_all(&[&header.to_bytes()[..], &frame(0), &begun].concat()).unwrap();
        let mut scan = SegmentScanner::open(file.path(), false).unwrap().unwrap();
        assert!(matches!(scan.advance(TailMode::Live).unwrap(), SegmentStep::Frame));
        scan.start += std::mem::take(&mut scan.found);
        let available = scan.missing_frame().unwrap().expect("the frame is incomplete");
        // The writer completes the frame now.
        file.write_all(&[rest, frame(2)].concat()).unwrap();
        assert!(matches!(scan.end_of_frames(available, TailMode::Live).unwrap(), SegmentStep::Frame));
        assert_eq!(scan.last_seq, Some(1));
        assert!(matches!(scan.advance(TailMode::Live).unwrap(), SegmentStep::Frame));
        assert!(matches!(scan.advance(TailMode::Live).unwrap(), SegmentStep::Pending));
        // Real damage is reported in live mode too.
        file.write_all(&[vec![b'?'; 40], frame(3)].concat()).unwrap();
        assert!(matches!(scan.advance(TailMode::Live).unwrap(), SegmentStep::Damage { bytes: 40, .. }));
        assert!(matches!(scan.advance(TailMode::Live).unwrap(), SegmentStep::Frame));
    }
}
