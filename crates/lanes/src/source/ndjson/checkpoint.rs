//! The file that notes how far the lines are done.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use super::NdjsonError;
use crate::record::Position;

/// One line of a fixed length, written over the one before: a crash leaves one or the other, and no full disk prevents it.
/// Locked as long as it is open.
#[derive(Debug)]
pub(super) struct Checkpoint {
    path: PathBuf,
    file: File,
}

/// Digits of the largest position.
const DIGITS: usize = 20;

impl Checkpoint {
    /// And where an earlier run has got: the end of the last line that was done.
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
            // Nothing was done yet.
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

    /// What is written outlives a loss of power.
    pub(super) fn sync(&self) -> Result<(), NdjsonError> {
        self.file.sync_data().map_err(|error| self.failed(error))
    }

    /// It holds something else than a position in the file.
    pub(super) fn foreign(&self) -> NdjsonError {
        NdjsonError::ForeignCheckpoint { path: self.path.clone() }
    }

    fn failed(&self, error: io::Error) -> NdjsonError {
        NdjsonError::Checkpoint { path: self.path.clone(), error }
    }
}

impl Drop for Checkpoint {
    /// A child of this process that has not begun its program yet has the file open too, and the lock with it.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// `None` if it holds more than a position does, or no text.
fn read(file: &mut File) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    file.take(DIGITS as u64 + 2).read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes).ok().filter(|text| text.len() <= DIGITS + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_was_given_up_is_free_though_a_child_has_it_open() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("checkpoint");
        let (checkpoint, _) = Checkpoint::open(path.clone()).expect("nobody has it");
        let inherited = checkpoint.file.try_clone().expect("a descriptor");
        assert!(matches!(Checkpoint::open(path.clone()), Err(NdjsonError::CheckpointInUse { .. })));
        drop(checkpoint);
        Checkpoint::open(path).expect("nobody uses it");
        drop(inherited);
    }
}
