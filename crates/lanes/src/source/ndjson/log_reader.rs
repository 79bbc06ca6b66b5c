//! Reads a file that grows, or a named pipe with changing writers.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often the end of the file is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The file is followed until this guard is dropped.
#[derive(Debug)]
pub(super) struct FollowGuard(#[expect(dead_code, reason = "held for its drop")] Arc<()>);

/// A file or a named pipe. A pipe is opened on the first read, which blocks until there is a writer.
pub(super) enum FileInput {
    Open(File),
    Pipe(PathBuf),
}

impl FileInput {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        if std::fs::metadata(path)?.file_type().is_fifo() {
            return Ok(Self::Pipe(path.to_owned()));
        }
        File::open(path).map(Self::Open)
    }

    fn file(&mut self) -> io::Result<&mut File> {
        if let Self::Pipe(path) = self {
            *self = Self::Open(File::open(path)?);
        }
        match self {
            Self::Open(file) => Ok(file),
            Self::Pipe(_) => unreachable!("opened above"),
        }
    }
}

impl Read for FileInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file()?.read(buffer)
    }
}

/// Follows an input.
pub(super) struct FollowReader {
    input: FileInput,
    /// Bytes read so far.
    at: u64,
    guard: Weak<()>,
}

impl FollowReader {
    pub(super) fn new(input: FileInput, at: u64) -> (Self, FollowGuard) {
        let guard = Arc::new(());
        (Self { input, at, guard: Arc::downgrade(&guard) }, FollowGuard(guard))
    }

    fn has_shrunk(&mut self) -> io::Result<bool> {
        let metadata = self.input.file()?.metadata()?;
        Ok(metadata.is_file() && metadata.len() < self.at)
    }
}

impl Read for FollowReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.input.read(buffer)?;
            if read > 0 {
                self.at += read as u64;
                return Ok(read);
            }
            if self.guard.strong_count() == 0 {
                return Ok(0);
            }
            if self.has_shrunk()? {
                return Err(io::Error::other("the file was truncated while it was followed"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
