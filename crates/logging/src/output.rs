//! Output of log lines: standard error, a file that may be rotated, or both. Until the file is open, lines are kept in memory.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
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
        let lines = kept.take().unwrap_or_default();
        let appended: Vec<_> = lines.iter().filter_map(|line| self.write_now(line, to_stderr)).collect();
        drop(kept);
        appended.into_iter().for_each(Appended::report);
    }

    /// Whether the outputs are still to be opened.
    pub(super) fn is_pending(&self) -> bool {
        self.early.lock().is_some()
    }

    /// Writes a line to the outputs that are open. Without any, it goes to standard error, as does a line that the file does
    /// not take. The result for the file is to be [reported](Appended::report) without a lock.
    fn write_now(&self, line: &[u8], to_stderr: bool) -> Option<Appended> {
        let mut file = self.file.lock();
        let appended = file.as_mut().map(|file| file.append(line, &self.file.lost));
        let is_shown = self.system.is_on() || matches!(appended, Some(Appended::Written | Appended::Recovered { .. }));
        if to_stderr || !is_shown {
            let mut stderr = io::stderr().lock();
            let cleared = if self.is_terminal { stderr.write_all(CLEAR_LINE) } else { Ok(()) };
            // No output is left to report a failure of standard error.
            let _ = cleared.and_then(|()| stderr.write_all(line));
        }
        appended
    }
}

/// Erases the current line (ECMA-48, EL).
const CLEAR_LINE: &[u8] = b"\x1b[2K";

/// Permissions of a new file. Log collectors may be in the group of the process; others must not read names of users, addresses
/// and databases.
const FILE_MODE: u32 = 0o640;

/// The file that lines are appended to, if any.
#[derive(Debug, Default)]
pub(super) struct LogFile {
    opened: Mutex<Option<AppendedFile>>,
    /// Lines that the file did not take, since the start.
    lost: AtomicU64,
}

/// An open log file.
#[derive(Debug)]
struct AppendedFile {
    file: File,
    /// Lines lost since the last successful write.
    lost: u64,
    /// The last line in the file has no end: a part of a line was written.
    is_cut: bool,
}

/// Result of [`AppendedFile::append`].
#[derive(Debug)]
enum Appended {
    Written,
    /// The first line after `lost` lines.
    Recovered {
        lost: u64,
    },
    /// The first line that is lost.
    Failed(io::Error),
    Lost,
}

impl Appended {
    /// Logs that lines begin to be lost, or are no longer. These events are lines of the log themselves.
    fn report(self) {
        match self {
            Self::Failed(error) => {
                tracing::error!(%error, "the log file cannot be written; lines are lost until it can");
            }
            Self::Recovered { lost } => {
                tracing::error!(lost, "the log file can be written again; it lacks lines before this one");
            }
            Self::Written | Self::Lost => {}
        }
    }
}

impl AppendedFile {
    /// Appends a line, also after a cut line on a line of its own.
    fn append(&mut self, line: &[u8], lost: &AtomicU64) -> Appended {
        let ended = if self.is_cut { self.file.write_all(b"\n") } else { Ok(()) };
        let written = ended.and_then(|()| {
            self.is_cut = false;
            self.write_line(line)
        });
        match written {
            Ok(()) => match std::mem::take(&mut self.lost) {
                0 => Appended::Written,
                lost => Appended::Recovered { lost },
            },
            Err(error) => {
                lost.fetch_add(1, Relaxed);
                self.lost += 1;
                if self.lost == 1 { Appended::Failed(error) } else { Appended::Lost }
            }
        }
    }

    /// `write_all`, noting whether a part of the line has reached the file.
    fn write_line(&mut self, mut line: &[u8]) -> io::Result<()> {
        while !line.is_empty() {
            match self.file.write(line) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    line = line.get(bytes..).unwrap_or_default();
                    self.is_cut = !line.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl LogFile {
    /// Opens `path`, which may be a new file of the same name. An empty path closes the file. What is lost in the old file is
    /// reported in the new one.
    pub(super) fn reopen(&self, path: &Path) -> io::Result<()> {
        let opened = match path.as_os_str().is_empty() {
            true => None,
            false => Some(OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path)?),
        };
        let mut current = self.lock();
        let (lost, is_cut) = current.as_ref().map_or((0, false), |former| (former.lost, former.is_cut));
        *current = opened.map(|file| AppendedFile { file, lost, is_cut });
        Ok(())
    }

    /// Number of lines that the file did not take, since the start.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    /// Held for one line.
    fn lock(&self) -> MutexGuard<'_, Option<AppendedFile>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for &LogOutput {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !self.early.push(line)
            && let Some(appended) = self.write_now(line, self.stderr)
        {
            appended.report();
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

    /// `/dev/full` fails as a full disk does.
    #[test]
    fn lines_that_the_file_does_not_take_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let log = LogFile::default();
        log.reopen(Path::new("/dev/full")).expect("the device");
        let append = |line: &[u8]| log.lock().as_mut().map(|file| file.append(line, &log.lost));
        assert!(matches!(append(b"a\n"), Some(Appended::Failed(_))));
        assert!(matches!(append(b"b\n"), Some(Appended::Lost)));
        log.reopen(&path).expect("a writable folder");
        assert!(matches!(append(b"c\n"), Some(Appended::Recovered { lost: 2 })));
        assert!(matches!(append(b"d\n"), Some(Appended::Written)));
        assert_eq!(log.lost(), 2);
        assert_eq!(std::fs::read_to_string(&path).expect("the log file"), "c\nd\n");
    }

    #[test]
    fn line_after_a_cut_one_has_its_own_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        std::fs::write(&path, "{\"cut").expect("a writable folder");
        let file = OpenOptions::new().append(true).open(&path).expect("the log file");
        let mut cut = AppendedFile { file, lost: 1, is_cut: true };
        assert!(matches!(cut.append(b"{}\n", &AtomicU64::new(1)), Appended::Recovered { lost: 1 }));
        assert_eq!(std::fs::read_to_string(&path).expect("the log file"), "{\"cut\n{}\n");
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
