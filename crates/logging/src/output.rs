//! Where lines go: standard error, a file that can be renamed under the process or be another from now on, or both.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
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

/// Permissions of a new log: those who collect logs may be in the group of the process. It names users, addresses and databases,
/// which are nobody else's business.
const FILE_MODE: u32 = 0o640;

/// A file that lines are appended to, if there is one.
#[derive(Debug, Default)]
pub(super) struct LogFile(Mutex<Option<File>>);

impl LogFile {
    /// Goes on in that file, which may be a new one of the old name; an empty path is none.
    pub(super) fn follow(&self, path: &Path) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_new_log_is_not_readable_by_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        LogFile::default().follow(&path).expect("it can be made");
        let mode = path.metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o7037, 0, "{mode:o}");
    }
}
