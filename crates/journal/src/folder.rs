//! The folder of a journal, and its one owner.

use std::{
    fs::{File, TryLockError},
    io,
    path::Path,
};

const LOCK_FILE: &str = "journal.lock";

/// Holds a folder until it is dropped or the process ends, in whatever way. A child process does not inherit it.
#[derive(Debug)]
pub(crate) struct Ownership {
    _file: File,
}

impl Ownership {
    /// `None`: somebody else owns the folder.
    pub(crate) fn take(folder: &Path) -> io::Result<Option<Self>> {
        let file = File::options().create(true).truncate(false).write(true).open(folder.join(LOCK_FILE))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}
