//! Reads one JSON value per line, from a file or any reader.
//!
//! All lines belong to one lane. The position of a line is its end, in bytes from the start of the input, so a committed
//! position is the start of the next line. A thread reads ahead, up to a limit of bytes.
//!
//! A file that is followed may be rotated, by a new file in its place or by a truncation. Positions go on growing over all files
//! of the log. A checkpoint stores the identity of its file, so that the next run finds it under another name.

mod checkpoint;
mod error;
mod format;
mod generations;
mod identity;
mod log;
mod log_reader;
mod reader;
mod rotation;

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};

use super::interface::{LaneCommit, PollLimit, Source, SourceEvent};
use crate::record::{Epoch, Lane, Position, Record};
use checkpoint::{Checkpoint, CheckpointPosition};
use format::{EPOCH, LANE};
use generations::Generations;
use log_reader::{FollowGuard, FollowMode, LogReader, PipeReader, is_pipe};
use reader::{LineReader, LineReceiver};

pub use error::NdjsonError;
pub use format::NdjsonFormat;
pub use generations::FileProgress;

/// Delivers lines as records.
#[derive(Debug)]
pub struct NdjsonSource {
    name: String,
    lines: LineReceiver,
    /// Received from the reader and not yet delivered.
    next: std::vec::IntoIter<Record>,
    checkpoint: Option<Checkpoint>,
    /// `None` if the input is not a file.
    files: Option<Generations>,
    /// Dropping it ends the follow mode.
    _follow_guard: Option<FollowGuard>,
    /// A failed checkpoint write ends the source.
    checkpoint_error: Option<NdjsonError>,
    is_assigned: bool,
    is_paused: bool,
}

impl NdjsonSource {
    /// Reads a file from its start.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened, the thread cannot be started, or the key is not a JSON pointer.
    pub fn open(path: impl AsRef<Path>, format: NdjsonFormat) -> Result<Self, NdjsonError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let failed = |error| NdjsonError::Read { what: name.clone(), error };
        let (follow, guard) = FollowMode::new(format.follow);
        if is_pipe(path).map_err(failed)? {
            let source = Self::from_reader(name.clone(), PipeReader::new(path, follow), 0, format)?;
            return Ok(Self { _follow_guard: guard, ..source });
        }
        let input = LogReader::open(path, follow).map_err(failed)?;
        Self::from_log(name, input, guard, format)
    }

    /// Reads a file from the position in `checkpoint`, and stores progress there. If an earlier run delivered an
    /// incomplete last line that has grown since, the whole line is delivered again.
    ///
    /// If the file was rotated since, the rest of the old file is read first: it is looked for beside the new one, under
    /// its name with a number or date at the end. Without it, the new file is read from its beginning.
    ///
    /// # Errors
    /// Returns an error if a file cannot be opened, if the input is a pipe, if the checkpoint belongs to another file
    /// or is in use, or if the key is not a JSON pointer. The checkpoint of a subscription is in use until
    /// [`run`](crate::Subscription::run) has returned. If its future was dropped, it is in use until the runtime has dropped
    /// the tasks of the subscription: try again then.
    pub fn resume(
        path: impl AsRef<Path>,
        checkpoint: impl Into<PathBuf>,
        format: NdjsonFormat,
    ) -> Result<Self, NdjsonError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let (checkpoint, stored) = Checkpoint::open(checkpoint.into())?;
        let failed = |error| NdjsonError::Read { what: name.clone(), error };
        if is_pipe(path).map_err(failed)? {
            return Err(failed(io::ErrorKind::NotSeekable.into()));
        }
        let (follow, guard) = FollowMode::new(format.follow);
        let input = match stored {
            CheckpointPosition::Start => LogReader::open(path, follow),
            CheckpointPosition::File(place) => LogReader::resume(path, place, follow),
            CheckpointPosition::Offset(offset) => {
                let file = File::open(path).map_err(failed)?;
                if file.metadata().map_err(failed)?.len() < offset {
                    return Err(checkpoint.foreign());
                }
                LogReader::resume_at(path, file, offset, follow)
            }
        };
        let source = Self::from_log(name.clone(), input.map_err(failed)?, guard, format)?;
        Ok(Self { checkpoint: Some(checkpoint), ..source })
    }

    /// How far the processing is behind the end of the file; `None` if the input is not a file.
    #[must_use]
    pub fn progress(&self) -> Option<FileProgress> {
        self.files.clone().map(FileProgress)
    }

    /// Reads standard input. The thread ends at the end of the input or of the process.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started, or if the key is not a JSON pointer.
    pub fn stdin(format: NdjsonFormat) -> Result<Self, NdjsonError> {
        Self::from_reader("standard input".to_owned(), io::stdin(), 0, format)
    }

    /// Reads any input; `name` is the display name. A panic of the input is an error of the source.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started, or if the key is not a JSON pointer.
    pub fn reader(name: &str, input: impl Read + Send + 'static, format: NdjsonFormat) -> Result<Self, NdjsonError> {
        Self::from_reader(name.to_owned(), input, 0, format)
    }

    fn from_log(
        name: String,
        input: LogReader,
        guard: Option<FollowGuard>,
        format: NdjsonFormat,
    ) -> Result<Self, NdjsonError> {
        let (from, files) = (input.position(), Some(input.files()));
        let source = Self::from_reader(name, input, from, format)?;
        Ok(Self { files, _follow_guard: guard, ..source })
    }

    fn from_reader(
        name: String,
        input: impl Read + Send + 'static,
        from: u64,
        format: NdjsonFormat,
    ) -> Result<Self, NdjsonError> {
        format.check()?;
        let started = LineReader::new(input, from, format).start();
        let lines = started.map_err(|error| NdjsonError::Read { what: name.clone(), error })?;
        let next = Vec::new().into_iter();
        Ok(Self {
            name,
            lines,
            next,
            checkpoint: None,
            files: None,
            _follow_guard: None,
            checkpoint_error: None,
            is_assigned: false,
            is_paused: false,
        })
    }

    /// Delivers records within the limit.
    fn fill(&mut self, room: PollLimit, batch: &mut Vec<Record>) {
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

    fn write_checkpoint(&mut self, through: Position) {
        let place = self.files.as_ref().and_then(|files| files.locate(through));
        if let (Some(checkpoint), Some(place)) = (&self.checkpoint, place)
            && let Err(error) = checkpoint.write(&place)
        {
            self.checkpoint_error = Some(error);
        }
    }
}

/// The start of the line that contains `place`; `place` itself if a line ends there.
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

impl Source for NdjsonSource {
    type Error = NdjsonError;

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        room: PollLimit,
        batch: &mut Vec<Record>,
    ) -> Poll<Result<SourceEvent, NdjsonError>> {
        if let Some(error) = self.checkpoint_error.take() {
            return Poll::Ready(Err(error));
        }
        if !self.is_assigned {
            self.is_assigned = true;
            return Poll::Ready(Ok(SourceEvent::Assigned { lane: LANE, epoch: EPOCH }));
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
                Poll::Ready(None) => return Poll::Ready(Ok(SourceEvent::Ended)),
            }
        }
        self.fill(room, batch);
        Poll::Ready(Ok(SourceEvent::Records))
    }

    fn pause(&mut self, _lane: Lane, _epoch: Epoch) {
        self.is_paused = true;
    }

    fn resume(&mut self, _lane: Lane, _epoch: Epoch) {
        self.is_paused = false;
    }

    fn commit(&mut self, commits: &[LaneCommit]) {
        commits.iter().for_each(|commit| self.write_checkpoint(commit.through));
    }

    fn release(&mut self, _lane: Lane, _epoch: Epoch, through: Option<Position>) {
        through.into_iter().for_each(|through| self.write_checkpoint(through));
    }

    fn poll_close(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), NdjsonError>> {
        let synced = self.checkpoint.as_ref().map_or(Ok(()), Checkpoint::sync);
        Poll::Ready(self.checkpoint_error.take().map_or(synced, Err))
    }

    fn buffered_bytes(&self) -> usize {
        self.lines.buffered_bytes() + self.next.as_slice().iter().map(Record::size_bytes).sum::<usize>()
    }

    fn lane_name(&self, _lane: Lane) -> String {
        self.name.clone()
    }
}
