//! Where lines go: standard error, a file that can be renamed under the process or be another from now on, or both.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tracing_subscriber::fmt::MakeWriter;

use super::syslog::SystemLog;

/// Standard error, a file, or both.
#[derive(Debug, Clone)]
pub(super) struct Output {
    /// Without another place lines go there in any case.
    pub(super) stderr: bool,
    pub(super) file: Arc<LogFile>,
    /// Another place beside these two.
    pub(super) system: SystemLog,
}

/// A file that lines are appended to, if there is one.
#[derive(Debug, Default)]
pub(super) struct LogFile(Mutex<Option<File>>);

impl LogFile {
    /// Goes on in that file, which may be a new one of the old name; an empty path is none.
    pub(super) fn follow(&self, path: &Path) -> io::Result<()> {
        let opened = match path.as_os_str().is_empty() {
            true => None,
            false => Some(OpenOptions::new().append(true).create(true).open(path)?),
        };
        *self.lock() = opened;
        Ok(())
    }

    /// Held for one line.
    fn lock(&self) -> MutexGuard<'_, Option<File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for &Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut file = self.file.lock();
        if self.stderr || (file.is_none() && !self.system.is_on()) {
            // Nobody is left to be told that standard error is gone.
            let _ = io::stderr().write_all(line);
        }
        if let Some(file) = &mut *file {
            file.write_all(line)?;
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
