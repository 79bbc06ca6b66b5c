//! Output of log lines: standard error, a file that may be rotated, or both. Until the file is open, lines are kept in memory.

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
pub(super) struct LogOutput {
    /// Lines go to standard error in any case if there is no other output.
    pub(super) stderr: bool,
    /// Standard error is a terminal, on whose current line a progress display may be.
    pub(super) is_terminal: bool,
    pub(super) file: Arc<LogFile>,
    /// Receives lines in a layer of its own.
    pub(super) system: SystemLog,
    pub(super) early: Arc<EarlyLines>,
}

/// Lines from before the outputs are open; `None` afterwards.
#[derive(Debug, Default)]
pub(super) struct EarlyLines(Mutex<Option<Vec<Vec<u8>>>>);

impl EarlyLines {
    /// Keeps lines until [`LogOutput::release`].
    pub(super) fn keep() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(Vec::new()))))
    }

    /// Keeps a line. Returns false if lines are not kept, or if there are too many.
    fn push(&self, line: &[u8]) -> bool {
        let mut kept = self.lock();
        let Some(lines) = kept.as_mut().filter(|lines| lines.len() < EARLY_LINES_MAX) else { return false };
        lines.push(line.to_vec());
        true
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Vec<u8>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Maximum number of early lines. Further ones are written immediately: to standard error, as no file is open.
const EARLY_LINES_MAX: usize = 1000;

impl LogOutput {
    /// Writes the early lines, now that the outputs are open. Later lines follow them.
    pub(super) fn release(&self) {
        self.write_early(self.stderr);
    }

    /// Writes the early lines to standard error, in addition to the outputs that are open.
    pub(super) fn release_to_stderr(&self) {
        self.write_early(true);
    }

    fn write_early(&self, to_stderr: bool) {
        let mut kept = self.early.lock();
        for line in kept.take().unwrap_or_default() {
            // No output is left to report the failure.
            let _ = self.write_now(&line, to_stderr);
        }
    }

    /// Whether the outputs are still to be opened.
    pub(super) fn is_pending(&self) -> bool {
        self.early.lock().is_some()
    }

    /// Writes a line to the outputs that are open. Without any, it goes to standard error.
    fn write_now(&self, line: &[u8], to_stderr: bool) -> io::Result<()> {
        let mut file = self.file.lock();
        if to_stderr || (file.is_none() && !self.system.is_on()) {
            let mut stderr = io::stderr().lock();
            let cleared = if self.is_terminal { stderr.write_all(CLEAR_LINE) } else { Ok(()) };
            // No output is left to report a failure of standard error.
            let _ = cleared.and_then(|()| stderr.write_all(line));
        }
        file.as_mut().map_or(Ok(()), |file| file.write_all(line))
    }
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

impl Write for &LogOutput {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !self.early.push(line) {
            self.write_now(line, self.stderr)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for LogOutput {
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
    fn early_lines_come_first_in_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let output = LogOutput {
            stderr: false,
            is_terminal: false,
            file: Arc::default(),
            system: SystemLog::default(),
            early: EarlyLines::keep(),
        };
        let write = |line: &[u8]| (&output).write(line).expect("the line is written");
        write(b"first\n");
        assert!(output.is_pending());
        output.file.reopen(&path).expect("a writable folder");
        write(b"second\n");
        output.release();
        write(b"third\n");
        assert!(!output.is_pending());
        assert_eq!(std::fs::read_to_string(&path).expect("the log file"), "first\nsecond\nthird\n");
    }

    #[test]
    fn new_log_file_is_not_readable_by_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        LogFile::default().reopen(&path).expect("a writable folder");
        let mode = path.metadata().expect("the log file").permissions().mode();
        assert_eq!(mode & 0o7037, 0, "{mode:o}");
    }
}
