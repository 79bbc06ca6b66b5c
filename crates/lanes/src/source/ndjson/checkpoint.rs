//! The checkpoint file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use super::error::NdjsonError;
use crate::record::Position;

/// A line of fixed length, overwritten in place: a crash leaves the old or the new line, and a full disk does not
/// matter. The file is locked while it is open.
#[derive(Debug)]
pub(super) struct Checkpoint {
    path: PathBuf,
    file: File,
}

/// Decimal digits of the largest position.
const DIGITS: usize = 20;

impl Checkpoint {
    /// Opens the checkpoint and returns the stored position: the end of the last finished line.
    pub(super) fn open(path: PathBuf) -> Result<(Self, u64), NdjsonError> {
        let failed = |error| NdjsonError::Checkpoint { path: path.clone(), error };
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = opened.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(NdjsonError::CheckpointInUse { path }),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let text = read(&mut file).map_err(failed)?;
        let checkpoint = Self { path, file };
        let from = match text.as_deref().map(str::trim) {
            // No line was finished yet.
            Some("") => 0,
            Some(text) => text.parse().map_err(|_| checkpoint.foreign())?,
            None => return Err(checkpoint.foreign()),
        };
        Ok((checkpoint, from))
    }

    pub(super) fn write(&self, through: Position) -> Result<(), NdjsonError> {
        let line = format!("{:<DIGITS$}\n", through.0);
        self.file.write_all_at(line.as_bytes(), 0).map_err(|error| self.failed(error))
    }

    /// Makes the last write durable.
    pub(super) fn sync(&self) -> Result<(), NdjsonError> {
        self.file.sync_data().map_err(|error| self.failed(error))
    }

    /// The error for a file that does not hold a valid position.
    pub(super) fn foreign(&self) -> NdjsonError {
        NdjsonError::ForeignCheckpoint { path: self.path.clone() }
    }

    fn failed(&self, error: io::Error) -> NdjsonError {
        NdjsonError::Checkpoint { path: self.path.clone(), error }
    }
}

impl Drop for Checkpoint {
    /// Unlocks explicitly, because a child process between fork and exec shares the descriptor and the lock.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// `None` if the file is too long for a position or is not text.
fn read(file: &mut File) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    file.take(DIGITS as u64 + 2).read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes).ok().filter(|text| text.len() <= DIGITS + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_checkpoint_is_free_despite_inherited_fd() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("checkpoint");
        let (checkpoint, _) = Checkpoint::open(path.clone()).expect("not in use");
        let inherited = checkpoint.file.try_clone().expect("a descriptor");
        assert!(matches!(Checkpoint::open(path.clone()), Err(NdjsonError::CheckpointInUse { .. })));
        drop(checkpoint);
        Checkpoint::open(path).expect("not in use");
        drop(inherited);
    }
}
