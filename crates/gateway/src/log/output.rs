//! Where lines go: standard error, a file that can be renamed under the process, or both.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tracing_subscriber::fmt::MakeWriter;

/// Standard error, a file, or both.
#[derive(Debug, Clone)]
pub(super) struct Output {
    pub(super) stderr: bool,
    pub(super) file: Option<Arc<LogFile>>,
}

/// A file that lines are appended to.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    /// Held for one line, or while the file is opened again.
    file: Mutex<File>,
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

impl LogFile {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: Mutex::new(open(path)?) })
    }

    /// Goes on in a new file if the old one was renamed.
    pub(super) fn reopen(&self) -> io::Result<()> {
        *self.lock() = open(&self.path)?;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for &Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.stderr {
            // Nobody is left to be told that standard error is gone.
            let _ = io::stderr().write_all(line);
        }
        if let Some(file) = &self.file {
            file.lock().write_all(line)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Output {
    type Writer = &'w Self;

    fn make_writer(&'w self) -> &'w Self {
        self
    }
}
