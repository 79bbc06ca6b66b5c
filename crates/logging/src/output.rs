//! Output of log lines: standard error, a file that may be rotated, or both.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tracing_subscriber::fmt::MakeWriter;

use super::syslog::SystemLog;

/// Outputs of the log.
#[derive(Debug, Clone)]
pub(super) struct Output {
    /// Lines go to standard error in any case if there is no other output.
    pub(super) stderr: bool,
    /// Standard error is a terminal, on whose current line a progress display may be.
    pub(super) is_terminal: bool,
    pub(super) file: Arc<LogFile>,
    /// Receives lines in a layer of its own.
    pub(super) system: SystemLog,
}

/// Erases the current line (ECMA-48, EL).
const CLEAR_LINE: &[u8] = b"\x1b[2K";

/// Permissions of a new file. Log collectors may be in the group of the process; others must not read names of users, addresses
/// and databases.
const FILE_MODE: u32 = 0o640;

/// The file that lines are appended to, if any.
#[derive(Debug, Default)]
pub(super) struct LogFile(Mutex<Option<File>>);

impl LogFile {
    /// Opens `path`, which may be a new file of the same name. An empty path closes the file.
    pub(super) fn reopen(&self, path: &Path) -> io::Result<()> {
        let opened = match path.as_os_str().is_empty() {
            true => None,
            false => Some(OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path)?),
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
            let mut stderr = io::stderr().lock();
            let cleared = if self.is_terminal { stderr.write_all(CLEAR_LINE) } else { Ok(()) };
            // No output is left to report a failure of standard error.
            let _ = cleared.and_then(|()| stderr.write_all(line));
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn new_log_file_is_not_readable_by_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        LogFile::default().reopen(&path).expect("a writable folder");
        let mode = path.metadata().expect("the log file").permissions().mode();
        assert_eq!(mode & 0o7037, 0, "{mode:o}");
    }
}
