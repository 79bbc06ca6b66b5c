//! A file whose end is not the end: more may come.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often the end of the file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// As long as it lives, the file is followed.
#[derive(Debug)]
pub(super) struct Interest(#[expect(dead_code, reason = "what counts is that it is there")] Arc<()>);

/// A file. A named pipe is opened when it is read first, which waits for somebody who writes.
pub(super) enum Input {
    Open(File),
    Pipe(PathBuf),
}

impl Input {
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
            Self::Pipe(_) => unreachable!("it was opened just now"),
        }
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file()?.read(buffer)
    }
}

/// Reads a file that grows, or a pipe that others come to write to.
pub(super) struct Follow {
    input: Input,
    /// Bytes before what comes next.
    at: u64,
    interest: Weak<()>,
}

impl Follow {
    pub(super) fn new(input: Input, at: u64) -> (Self, Interest) {
        let interest = Arc::new(());
        (Self { input, at, interest: Arc::downgrade(&interest) }, Interest(interest))
    }

    fn has_shrunk(&mut self) -> io::Result<bool> {
        let metadata = self.input.file()?.metadata()?;
        Ok(metadata.is_file() && metadata.len() < self.at)
    }
}

impl Read for Follow {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.input.read(buffer)?;
            if read > 0 {
                self.at += read as u64;
                return Ok(read);
            }
            if self.interest.strong_count() == 0 {
                return Ok(0);
            }
            if self.has_shrunk()? {
                return Err(io::Error::other("the file became shorter while it was followed"));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
