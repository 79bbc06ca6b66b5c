//! Maps positions, which grow over all files of a log, to a file and an offset in it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::identity::{FileHead, FileId};
use crate::record::Position;

/// A file of the sequence that is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Generation {
    /// The position of its first byte.
    pub(super) base: u64,
    pub(super) id: FileId,
    pub(super) head: FileHead,
    /// The offset of its end, once it was read completely.
    pub(super) end: Option<u64>,
}

/// Where a position is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FilePosition {
    pub(super) position: u64,
    pub(super) offset: u64,
    pub(super) id: FileId,
    pub(super) head: FileHead,
}

/// The files with unfinished lines, in order; the last one is being read.
#[derive(Clone, Debug)]
pub(super) struct Generations(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    /// The position at which reading began.
    start: u64,
    /// Bytes that were read of the last file, as a position.
    read: u64,
    files: Vec<Generation>,
}

impl Generations {
    pub(super) fn new(path: PathBuf, start: u64, first: Generation) -> Self {
        Self(Arc::new(Mutex::new(Inner { path, start, read: start, files: vec![first] })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records bytes of the current file.
    pub(super) fn add(&self, bytes: &[u8]) {
        let mut inner = self.lock();
        inner.read += bytes.len() as u64;
        if let Some(current) = inner.files.last_mut().filter(|current| !current.head.is_full()) {
            current.head.add(bytes);
        }
    }

    /// The head of the current file.
    pub(super) fn current(&self) -> Option<Generation> {
        self.lock().files.last().copied()
    }

    /// Ends the current file at an offset, and begins another one at `position`.
    pub(super) fn begin(&self, end: u64, next: Generation, position: u64) {
        let mut inner = self.lock();
        inner.files.last_mut().into_iter().for_each(|current| current.end = Some(end));
        inner.files.push(next);
        inner.read = position;
    }

    /// The place of a finished position. Files before it are forgotten.
    pub(super) fn locate(&self, position: Position) -> Option<FilePosition> {
        let mut inner = self.lock();
        let is_over = |file: &Generation| file.end.is_some_and(|end| position.0 >= file.base + end);
        let over = inner.files.iter().take_while(|file| is_over(file)).count();
        inner.files.drain(..over);
        let file = inner.files.first()?;
        // A position between two files is the start of the second one.
        let position = position.0.max(file.base);
        Some(FilePosition { position, offset: position - file.base, id: file.id, head: file.head })
    }
}

/// How far the processing of a file is behind its end.
#[derive(Clone, Debug)]
pub struct FileProgress(pub(super) Generations);

impl FileProgress {
    /// Bytes after the last finished line, `through`, or after the start if no line is finished yet. Includes a file that has
    /// replaced the current one. Asks the file system, so it may block.
    #[must_use]
    pub fn bytes_behind(&self, through: Option<Position>) -> Option<u64> {
        let (path, current, read, start) = {
            let inner = self.0.lock();
            (inner.path.clone(), *inner.files.last()?, inner.read, inner.start)
        };
        let named = std::fs::metadata(path).ok();
        let end = match named {
            Some(named) if FileId::of(&named) == current.id => current.base + named.len(),
            Some(named) => read + named.len(),
            None => read,
        };
        Some(end.saturating_sub(through.map_or(start, |through| through.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_grow_over_all_files() {
        let file =
            |base, inode| Generation { base, id: FileId { device: 1, inode }, head: FileHead::default(), end: None };
        let files = Generations::new("log".into(), 40, file(0, 1));
        let place = |position| files.locate(Position(position)).map(|place| (place.id.inode, place.offset));
        assert_eq!(place(50), Some((1, 50)));
        files.begin(100, file(101, 2), 101);
        assert_eq!(place(99), Some((1, 99)));
        assert_eq!(place(100), Some((2, 0)), "the first file is finished");
        assert_eq!(place(110), Some((2, 9)));
    }
}
