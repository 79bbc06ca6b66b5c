//! The frames of one segment, in order, whatever its bytes are.
//!
//! Two steps, so that a caller may look before it borrows: [`Scan::advance`] says what comes next, [`Scan::frame`] shows
//! it. Every length is checked against what is there before anything is allocated or skipped.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::FileExt,
    path::Path,
};

use crate::{
    frame::{self, Decoded, Frame, HEAD_BYTES, Kind},
    pack,
    prefix::{self, Prefixes},
    segment::{HEADER_BYTES, Header, SEAL_BYTES, SUM_BYTES, SegmentName, Sum},
    time::Time,
};

const READ_BYTES: usize = 256 << 10;

/// Where the bytes come from.
enum Source {
    Plain(File),
    Packed(Box<dyn io::Read + Send>),
}

impl Source {
    fn packed(mut file: File) -> io::Result<Self> {
        let from = io::SeekFrom::Start(packed_from(&file));
        io::Seek::seek(&mut file, from)?;
        pack::unpack(file).map(Self::Packed)
    }
}

/// What the end of the bytes means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tail {
    /// More may be written: what is not a whole frame yet may become one.
    Live,
    /// Nothing more comes.
    Final,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// A record or a gap: see [`Scan::frame`].
    Frame,
    /// Nothing yet.
    Pending,
    /// These bytes are no frames, and frames follow.
    Damage { at: u64, bytes: u64 },
    /// These bytes are no frames, and nothing follows: a write that was cut short.
    Torn { at: u64, bytes: u64 },
    /// The end, with its sum if the segment was ended in order.
    End(Option<Sum>),
}

pub(crate) struct Scan {
    source: Source,
    header: Header,
    /// The header as it stands in the file.
    head: [u8; HEADER_BYTES],
    buffer: Vec<u8>,
    /// Where in the buffer the next frame begins.
    start: usize,
    /// Where in the file the buffer begins.
    base: u64,
    /// The frame that `advance` found: from `start` on, so many bytes.
    found: usize,
    last_seq: Option<u64>,
    ended: Option<Option<Sum>>,
    /// What follows cannot be unpacked.
    is_broken: bool,
    /// Among the bytes that were passed over last are whole frames, which stand where they do not belong.
    has_passed_frame: bool,
}

impl Scan {
    /// `None`: the bytes do not begin with a header, or not yet.
    pub(crate) fn open(path: &Path, packed: bool) -> io::Result<Option<Self>> {
        let mut file = File::open(path)?;
        if packed {
            let preface = preface(&mut file)?;
            return Self::begin(Source::packed(file)?, preface.map(|(header, _)| header));
        }
        Self::begin(Source::Plain(file), None)
    }

    fn begin(source: Source, expected: Option<Header>) -> io::Result<Option<Self>> {
        let mut scan = Self::behind_header(source)?;
        let header = Header::from_bytes(&scan.head).filter(|header| expected.is_none_or(|told| told == *header));
        let Some(header) = header else { return Ok(None) };
        scan.header = header;
        scan.last_seq = header.first_seq.checked_sub(1);
        Ok(Some(scan))
    }

    /// With the header still to be told.
    fn behind_header(source: Source) -> io::Result<Self> {
        let header = Header { stripe: 0, salt: 0, number: 0, first_seq: 0, created: Time::MIN, preallocated: false };
        let (buffer, head, last_seq, ended) = (Vec::new(), [0; HEADER_BYTES], None, None);
        let (start, base, found, is_broken, has_passed_frame) = (0, 0, 0, false, false);
        let mut scan =
            Self { source, header, head, buffer, start, base, found, last_seq, ended, is_broken, has_passed_frame };
        scan.fill(HEADER_BYTES)?;
        if let Some(head) = scan.buffer.first_chunk() {
            scan.head = *head;
            scan.start = HEADER_BYTES;
        }
        Ok(scan)
    }

    /// A segment of which the header is damaged, and nothing more is added to: its salt is the one of those of its first frame
    /// and its seal with which most frames hold, and two at least. A packed one has its header twice.
    pub(crate) fn open_without_header(path: &Path, name: &SegmentName) -> io::Result<Option<Self>> {
        if name.packed {
            return Self::open_by_preface(File::open(path)?);
        }
        let salt = match best_salt(path, &first_frame(path)?)? {
            None => best_salt(path, &last_frame(path)?)?,
            found => found,
        };
        let Some((salt, (first_seq, created))) = salt else { return Ok(None) };
        let mut scan = Self::with_salt(path, salt)?;
        let (stripe, number) = (name.stripe, name.number);
        scan.header = Header { stripe, number, first_seq, created, ..scan.header };
        Ok(Some(scan))
    }

    fn open_by_preface(mut file: File) -> io::Result<Option<Self>> {
        let Some((header, _)) = preface(&mut file)? else { return Ok(None) };
        let mut scan = Self::behind_header(Source::packed(file)?)?;
        (scan.header, scan.last_seq) = (header, header.first_seq.checked_sub(1));
        Ok((scan.start > 0 && Header::from_bytes(&scan.head).is_none()).then_some(scan))
    }

    fn with_salt(path: &Path, salt: u32) -> io::Result<Self> {
        let mut scan = Self::behind_header(Source::Plain(File::open(path)?))?;
        (scan.header.salt, scan.header.preallocated) = (salt, Header::is_preallocated(&scan.head));
        Ok(scan)
    }

    pub(crate) fn header(&self) -> Header {
        self.header
    }

    /// Where the next frame begins in the (unpacked) file.
    pub(crate) fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Goes on at a place where a frame begins. Packed segments are unpacked up to there.
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

    /// What comes next. The frame before it is done with.
    pub(crate) fn advance(&mut self, tail: Tail) -> io::Result<Step> {
        self.start += std::mem::take(&mut self.found);
        if let Some(sum) = self.ended {
            return Ok(Step::End(sum));
        }
        match self.lacks()? {
            None => Ok(self.accept()),
            Some(available) => self.end_of_frames(available, tail),
        }
    }

    /// `None`: what follows is the next frame. Else how many bytes there are of what is none.
    fn lacks(&mut self) -> io::Result<Option<usize>> {
        let mut need = HEAD_BYTES;
        loop {
            let available = self.fill(need)?;
            match frame::decode(&self.buffer[self.start..], self.header.salt) {
                Decoded::Frame(frame)
                    if self.last_seq.is_none_or(|last| frame.seq > last) || frame.kind == Kind::Seal =>
                {
                    return Ok(None);
                }
                Decoded::Short(more) if available < more && available < need => return Ok(Some(available)),
                Decoded::Short(more) => need = more,
                Decoded::Frame(_) | Decoded::Bad => return Ok(Some(available)),
            }
        }
    }

    fn accept(&mut self) -> Step {
        let frame = self.peek();
        let (bytes, seq, seal) =
            (frame.bytes(), frame.seq, (frame.kind == Kind::Seal).then(|| Sum::from_bytes(frame.payload)));
        if let Some(sum) = seal {
            self.ended = Some(sum);
            self.start += bytes;
            return Step::End(sum);
        }
        self.found = bytes;
        self.last_seq = Some(seq);
        Step::Frame
    }

    fn peek(&self) -> Frame<'_> {
        match frame::decode(&self.buffer[self.start..], self.header.salt) {
            Decoded::Frame(frame) => frame,
            Decoded::Short(_) | Decoded::Bad => unreachable!("it was decoded before"),
        }
    }

    /// The frame that [`advance`](Self::advance) found.
    pub(crate) fn frame(&self) -> Frame<'_> {
        frame::staged_at(&self.buffer, self.start)
    }

    /// Whether there is one.
    pub(crate) fn has_frame(&self) -> bool {
        self.found > 0
    }

    /// Its bytes as they stand.
    pub(crate) fn raw(&self) -> &[u8] {
        &self.buffer[self.start..self.start + self.found]
    }

    /// What follows is no frame, or not a whole one.
    fn end_of_frames(&mut self, mut available: usize, tail: Tail) -> io::Result<Step> {
        if let (Tail::Live, Source::Plain(_)) = (tail, &self.source) {
            let at = self.offset();
            // Behind the frames of a ring stands what was there before, which is none of its frames.
            let is_followed = available > 0 && !self.header.preallocated && self.find_frame()?;
            let end = self.offset();
            // What is no frame now may be one later, with other bytes.
            self.go_to(at);
            if !is_followed {
                return Ok(Step::Pending);
            }
            // And later may be now: what was the beginning of one is whole when the next one stands behind it.
            if self.lacks()?.is_none() {
                return Ok(self.accept());
            }
            self.go_to(end);
            return Ok(Step::Damage { at, bytes: end - at });
        }
        let at = self.offset();
        if self.header.preallocated && matches!(self.source, Source::Plain(_)) {
            // The file was as long before this was written: what was read of it may be older than the last look at its end.
            self.go_to(at);
            match self.lacks()? {
                None => return Ok(self.accept()),
                Some(now) => available = now,
            }
        }
        if self.is_broken {
            self.start = self.buffer.len();
            self.ended = Some(None);
            return Ok(Step::Damage { at, bytes: self.offset() - at });
        }
        if available == 0 {
            self.ended = Some(None);
            return Ok(Step::End(None));
        }
        if self.find_frame()? {
            return Ok(Step::Damage { at, bytes: self.offset() - at });
        }
        self.ended = Some(None);
        let bytes = self.offset() - at;
        Ok(match self.header.preallocated {
            // A write that is cut short leaves nothing whole behind it: these are to be looked into, and not cut off.
            _ if self.has_passed_frame => Step::Damage { at, bytes },
            true => Step::End(None),
            false => Step::Torn { at, bytes },
        })
    }

    /// What stands from there on is read anew.
    fn go_to(&mut self, offset: u64) {
        (self.base, self.start) = (offset, 0);
        self.buffer.clear();
    }

    /// Looks for the next place where a frame stands. `false`: there is none up to the end.
    fn find_frame(&mut self) -> io::Result<bool> {
        let (mut prefixes, mut all_is_here) = (Prefixes::default(), false);
        // The one that was not taken, if it is one.
        let first = frame::decode(&self.buffer[self.start..], self.header.salt);
        self.has_passed_frame = matches!(first, Decoded::Frame(_));
        loop {
            self.start += 1;
            if self.buffer.len() - self.start < HEAD_BYTES && (all_is_here || self.fill(HEAD_BYTES)? < HEAD_BYTES) {
                self.start = self.buffer.len();
                return Ok(false);
            }
            // A head that cannot be one is passed over without more ado; all others are decoded.
            if !(1..=3).contains(&self.buffer[self.start + HEAD_BYTES - 1]) {
                continue;
            }
            let decoded = self.decode_by(&mut prefixes);
            let found = match decoded {
                Decoded::Short(need) if !all_is_here => {
                    all_is_here = self.fill(need)? < need;
                    self.decode_by(&mut prefixes)
                }
                decoded => decoded,
            };
            let Decoded::Frame(Frame { seq, .. }) = found else { continue };
            if self.last_seq.is_none_or(|last| seq > last) {
                return Ok(true);
            }
            self.has_passed_frame = true;
        }
    }

    fn decode_by(&self, prefixes: &mut Prefixes) -> Decoded<'_> {
        let payload = self.start + HEAD_BYTES;
        frame::decode_by(&self.buffer[self.start..], self.header.salt, |crc, bytes| {
            prefixes.append(crc, &self.buffer, self.base, payload..payload + bytes.len())
        })
    }

    /// Tries to have `need` bytes from `start` on. Returns how many there are.
    fn fill(&mut self, need: usize) -> io::Result<usize> {
        while self.buffer.len() - self.start < need {
            if self.start >= READ_BYTES {
                // By whole steps, so that checks of what stays are still of use.
                let read = self.start / prefix::STEP * prefix::STEP;
                self.buffer.drain(..read);
                self.base += read as u64;
                self.start -= read;
            }
            let len = self.buffer.len();
            self.buffer.resize(len + READ_BYTES, 0);
            let read = match &mut self.source {
                Source::Plain(file) => read_at(file, &mut self.buffer[len..], self.base + len as u64),
                Source::Packed(stream) => match stream.read(&mut self.buffer[len..]) {
                    // Not the system says so, but who unpacks it.
                    Err(error) if error.raw_os_error().is_none() => {
                        self.is_broken = true;
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

    /// Whether the file is another segment by now: a ring writes over its files.
    pub(crate) fn is_recycled(&self) -> bool {
        let mut head = [0; HEADER_BYTES];
        match &self.source {
            Source::Plain(file) => file.read_exact_at(&mut head, 0).is_err() || head != self.head,
            Source::Packed(_) => false,
        }
    }
}

/// Of the salts that a frame may have been written with, the one with which most frames of the file hold, if two do; and the
/// number and the time of the first of these.
fn best_salt(path: &Path, frame: &[u8]) -> io::Result<Option<(u32, (u64, Time))>> {
    let (mut most, mut best) = (1, None);
    for salt in frame::salts(frame) {
        let (frames, first) = frames_of(&mut Scan::with_salt(path, salt)?)?;
        if frames > most {
            (most, best) = (frames, first.map(|first| (salt, first)));
        }
    }
    Ok(best)
}

/// The bytes where the first frame is.
fn first_frame(path: &Path) -> io::Result<Vec<u8>> {
    let mut scan = Scan::behind_header(Source::Plain(File::open(path)?))?;
    scan.fill(HEAD_BYTES)?;
    if let Decoded::Short(need) = frame::decode(&scan.buffer[scan.start..], 0) {
        scan.fill(need)?;
    }
    Ok(scan.buffer.split_off(scan.start))
}

/// The bytes where the seal is, if there is one.
fn last_frame(path: &Path) -> io::Result<Vec<u8>> {
    let (file, mut seal) = (File::open(path)?, vec![0; SEAL_BYTES]);
    let Some(at) = file.metadata()?.len().checked_sub(SEAL_BYTES as u64) else { return Ok(Vec::new()) };
    file.read_exact_at(&mut seal, at)?;
    Ok(if seal[HEAD_BYTES - 1] == Kind::Seal as u8 { seal } else { Vec::new() })
}

/// How many frames hold, the seal among them, and the number and the time of the first that is none.
fn frames_of(scan: &mut Scan) -> io::Result<(u64, Option<(u64, Time)>)> {
    let (mut frames, mut first) = (0, None);
    loop {
        match scan.advance(Tail::Final)? {
            Step::Frame => {
                frames += 1;
                first.get_or_insert((scan.frame().seq, scan.frame().time));
            }
            Step::Damage { .. } | Step::Torn { .. } => {}
            Step::End(sum) => return Ok((frames + u64::from(sum.is_some()), first)),
            Step::Pending => return Ok((frames, first)),
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

/// Where the packed bytes begin. Who unpacks them passes over the preface by itself, unless its beginning is damaged.
fn packed_from(file: &File) -> u64 {
    const BEHIND_PREFACE: [usize; 2] = [8 + HEADER_BYTES + SUM_BYTES + 4, 8 + HEADER_BYTES];
    let mut magic = [0; 4];
    let begins = |at: &u64| file.read_exact_at(&mut magic, *at).is_ok() && magic == pack::MAGIC;
    BEHIND_PREFACE.map(|at| at as u64).into_iter().find(begins).unwrap_or(0)
}

/// What stands before the packed bytes.
fn preface(file: &mut File) -> io::Result<Option<(Header, Option<Sum>)>> {
    let mut bytes = Vec::new();
    file.take((8 + HEADER_BYTES + SUM_BYTES + 4) as u64).read_to_end(&mut bytes)?;
    if bytes.len() < 8 + HEADER_BYTES || frame::u32_at(&bytes, 0) != pack::PREFACE_MAGIC {
        return Ok(None);
    }
    let told = usize::try_from(frame::u32_at(&bytes, 4)).ok().and_then(|len| bytes.get(8 + HEADER_BYTES..8 + len));
    let sum = told.and_then(|told| told.split_at_checked(SUM_BYTES)).and_then(|(sum, crc)| {
        let is_sound = crc.len() == 4 && frame::u32_at(crc, 0) == crc32c::crc32c(sum);
        Sum::from_bytes(sum).filter(|sum| is_sound && sum.records > 0)
    });
    Ok(Header::from_bytes(&bytes[8..]).map(|header| (header, sum)))
}

/// What a segment says of itself, without reading its records: the sum is missing if it did not end in order.
pub(crate) fn header_and_sum(path: &Path) -> io::Result<Option<(Header, Option<Sum>)>> {
    let mut file = File::open(path)?;
    if path.extension().is_some_and(|extension| extension == "zst") {
        return preface(&mut file);
    }
    let mut bytes = [0; HEADER_BYTES];
    if file.read_exact_at(&mut bytes, 0).is_err() {
        return Ok(None);
    }
    let Some(header) = Header::from_bytes(&bytes) else { return Ok(None) };
    let mut seal = [0; SEAL_BYTES];
    let end = file.metadata()?.len().checked_sub(SEAL_BYTES as u64);
    let sum = match end.map(|at| file.read_exact_at(&mut seal, at)) {
        Some(Ok(())) => sum_of(&seal, header.salt),
        _ => None,
    };
    Ok(Some((header, sum)))
}

fn sum_of(seal: &[u8], salt: u32) -> Option<Sum> {
    match frame::decode(seal, salt) {
        Decoded::Frame(frame) if frame.kind == Kind::Seal => Sum::from_bytes(frame.payload),
        _ => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::{frame::Framed, note::Class};

    #[test]
    fn what_becomes_whole_while_it_is_looked_behind_is_no_damage() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let header = Header { stripe: 0, salt: 7, number: 0, first_seq: 0, created: Time::MIN, preallocated: false };
        let frame = |seq: u64| {
            let mut bytes = Vec::new();
            let framed = Framed { kind: Kind::Record, class: Class::new(0), time: Time::MIN, payload: b"record" };
            framed.write_checked(seq, header.salt, &mut bytes);
            bytes
        };
        let (begun, rest) = (frame(1)[..20].to_vec(), frame(1)[20..].to_vec());
        file.write_all(&[&header.to_bytes()[..], &frame(0), &begun].concat()).unwrap();
        let mut scan = Scan::open(file.path(), false).unwrap().unwrap();
        assert!(matches!(scan.advance(Tail::Live).unwrap(), Step::Frame));
        scan.start += std::mem::take(&mut scan.found);
        let available = scan.lacks().unwrap().expect("it is not whole");
        // Whoever writes it goes on just now.
        file.write_all(&[rest, frame(2)].concat()).unwrap();
        assert!(matches!(scan.end_of_frames(available, Tail::Live).unwrap(), Step::Frame));
        assert_eq!(scan.last_seq, Some(1));
        assert!(matches!(scan.advance(Tail::Live).unwrap(), Step::Frame));
        assert!(matches!(scan.advance(Tail::Live).unwrap(), Step::Pending));
        // What is damaged is so however often it is looked at.
        file.write_all(&[vec![b'?'; 40], frame(3)].concat()).unwrap();
        assert!(matches!(scan.advance(Tail::Live).unwrap(), Step::Damage { bytes: 40, .. }));
        assert!(matches!(scan.advance(Tail::Live).unwrap(), Step::Frame));
    }
}
