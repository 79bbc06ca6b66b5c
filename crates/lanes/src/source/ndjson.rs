//! One JSON value per line, from a file or from anything that can be read.
//!
//! All lines are one lane. The position of a line is where it ends, in bytes from the beginning, so that what follows a
//! committed position is the next line. A thread of its own reads ahead, as far as a bound of bytes.

mod checkpoint;
mod follow;
mod line;
mod reader;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};

use super::{Event, Mark, Room, Source};
use crate::record::{Epoch, Lane, Position, Record};
use checkpoint::Checkpoint;
use follow::{Follow, Input, Interest};
use reader::{Lines, Reader};

pub use line::Format;

const LANE: Lane = Lane(0);
const EPOCH: Epoch = Epoch(1);

/// Why lines cannot be read, or how far they are done cannot be noted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NdjsonError {
    /// Reading failed.
    #[error("cannot read {what}")]
    Read {
        /// The file, or `standard input`.
        what: String,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// The checkpoint cannot be read or written.
    #[error("cannot read or write the checkpoint {path}: see that its folder exists and may be written to")]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// Somebody else notes there how far he is done.
    #[error("{path} is the checkpoint of a stream that runs: give each a checkpoint of its own")]
    CheckpointInUse {
        /// The file.
        path: PathBuf,
    },
    /// The checkpoint holds something else than a position in this file.
    #[error("{path} is not a checkpoint of this file: remove it to begin at the beginning")]
    ForeignCheckpoint {
        /// The file.
        path: PathBuf,
    },
}

/// Lines as records.
#[derive(Debug)]
pub struct Ndjson {
    name: String,
    lines: Lines,
    /// Taken from the reader and not handed out.
    next: std::vec::IntoIter<Record>,
    checkpoint: Option<Checkpoint>,
    /// Nobody else has it: when it is gone, a file is not followed any more.
    _interest: Option<Interest>,
    /// A checkpoint that could not be written ends the source.
    broken: Option<NdjsonError>,
    is_assigned: bool,
    is_paused: bool,
}

impl Ndjson {
    /// Reads a file from its beginning.
    ///
    /// # Errors
    /// If the file cannot be opened, or no thread can be started.
    pub fn open(path: impl AsRef<Path>, format: Format) -> Result<Self, NdjsonError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let input = Input::open(path).map_err(|error| NdjsonError::Read { what: name.clone(), error })?;
        Self::of_file(name, input, 0, format)
    }

    /// Reads a file from where `checkpoint` says that an earlier run has got, and notes there how far this one gets. If that
    /// run took half a line at the end for a line, and it has grown since, the whole line comes again.
    ///
    /// # Errors
    /// If a file cannot be opened or is a pipe, or the checkpoint is not of this file, or another one's who runs.
    pub fn resume(path: impl AsRef<Path>, checkpoint: impl Into<PathBuf>, format: Format) -> Result<Self, NdjsonError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let (checkpoint, from) = Checkpoint::open(checkpoint.into())?;
        let failed = |error| NdjsonError::Read { what: name.clone(), error };
        let Input::Open(mut file) = Input::open(path).map_err(failed)? else {
            return Err(failed(io::ErrorKind::NotSeekable.into()));
        };
        if file.metadata().map_err(failed)?.len() < from {
            return Err(checkpoint.foreign());
        }
        let from = line_around(&file, from).map_err(failed)?;
        file.seek(SeekFrom::Start(from)).map_err(failed)?;
        let source = Self::of_file(name, Input::Open(file), from, format)?;
        Ok(Self { checkpoint: Some(checkpoint), ..source })
    }

    /// Reads standard input. Its thread ends with the input, or with the process.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn stdin(format: Format) -> Result<Self, NdjsonError> {
        Self::of("standard input".to_owned(), io::stdin(), 0, format)
    }

    /// Reads anything; `name` is for people.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn reader(name: &str, input: impl Read + Send + 'static, format: Format) -> Result<Self, NdjsonError> {
        Self::of(name.to_owned(), input, 0, format)
    }

    fn of_file(name: String, input: Input, from: u64, format: Format) -> Result<Self, NdjsonError> {
        if !format.follow {
            return Self::of(name, input, from, format);
        }
        let (input, interest) = Follow::new(input, from);
        let source = Self::of(name, input, from, format)?;
        Ok(Self { _interest: Some(interest), ..source })
    }

    fn of(name: String, input: impl Read + Send + 'static, from: u64, format: Format) -> Result<Self, NdjsonError> {
        let started = Reader::new(input, from, format).start();
        let lines = started.map_err(|error| NdjsonError::Read { what: name.clone(), error })?;
        let next = Vec::new().into_iter();
        Ok(Self {
            name,
            lines,
            next,
            checkpoint: None,
            _interest: None,
            broken: None,
            is_assigned: false,
            is_paused: false,
        })
    }

    /// Hands out what is there, at most what there is room for.
    fn fill(&mut self, room: Room, batch: &mut Vec<Record>) {
        let mut bytes = 0;
        for taken in 0..room.records {
            let Some(record) = self.next.as_slice().first() else { return };
            bytes += record.size_bytes();
            if taken > 0 && bytes > room.bytes {
                return;
            }
            batch.extend(self.next.next());
        }
    }

    fn note(&mut self, through: Position) {
        if let Some(Err(error)) = self.checkpoint.as_ref().map(|checkpoint| checkpoint.write(through)) {
            self.broken = Some(error);
        }
    }
}

/// Where the line begins that goes on at a place, or the place itself if a line ends there.
fn line_around(file: &File, place: u64) -> io::Result<u64> {
    let mut around = [b'\n'; 2];
    if place > 0 {
        file.read_at(&mut around, place - 1)?;
    }
    if around[0] == b'\n' || around[1].is_ascii_whitespace() {
        return Ok(place);
    }
    let (mut end, mut block) = (place, vec![0; 64 << 10]);
    while end > 0 {
        let start = end.saturating_sub(block.len() as u64);
        let bytes = &mut block[..usize::try_from(end - start).unwrap_or(0)];
        file.read_exact_at(bytes, start)?;
        if let Some(at) = bytes.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

impl Source for Ndjson {
    type Error = NdjsonError;

    fn poll(&mut self, cx: &mut Context<'_>, room: Room, batch: &mut Vec<Record>) -> Poll<Result<Event, NdjsonError>> {
        if let Some(error) = self.broken.take() {
            return Poll::Ready(Err(error));
        }
        if !self.is_assigned {
            self.is_assigned = true;
            return Poll::Ready(Ok(Event::Assigned { lane: LANE, epoch: EPOCH }));
        }
        if room.records == 0 || self.is_paused {
            return Poll::Pending;
        }
        if self.next.as_slice().is_empty() {
            match self.lines.poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(records))) => self.next = records.into_iter(),
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Err(NdjsonError::Read { what: self.name.clone(), error }));
                }
                Poll::Ready(None) => return Poll::Ready(Ok(Event::Ended)),
            }
        }
        self.fill(room, batch);
        Poll::Ready(Ok(Event::Records))
    }

    fn pause(&mut self, _lane: Lane, _epoch: Epoch) {
        self.is_paused = true;
    }

    fn resume(&mut self, _lane: Lane, _epoch: Epoch) {
        self.is_paused = false;
    }

    fn commit(&mut self, marks: &[Mark]) {
        marks.iter().for_each(|mark| self.note(mark.through));
    }

    fn release(&mut self, _lane: Lane, _epoch: Epoch, through: Option<Position>) {
        through.into_iter().for_each(|through| self.note(through));
    }

    fn poll_close(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), NdjsonError>> {
        let synced = self.checkpoint.as_ref().map_or(Ok(()), Checkpoint::sync);
        Poll::Ready(self.broken.take().map_or(synced, Err))
    }

    fn buffered_bytes(&self) -> usize {
        self.lines.buffered_bytes() + self.next.as_slice().iter().map(Record::size_bytes).sum::<usize>()
    }

    fn lane_name(&self, _lane: Lane) -> String {
        self.name.clone()
    }
}
