//! The folder of a journal, and its one owner.

use std::{
    fs::{DirBuilder, File, TryLockError},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::Path,
    thread,
    time::Duration,
};

/// Whether a journal has the folder open now, here or in another process.
///
/// # Errors
/// What the system says.
pub fn is_open(folder: impl AsRef<Path>) -> io::Result<bool> {
    let file = match File::open(folder.as_ref().join(LOCK_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        result => result?,
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Makes the folder for its owner alone, so that it is there after a loss of power, too.
pub(crate) fn make(folder: &Path) -> io::Result<()> {
    let folder = std::path::absolute(folder)?;
    let missing = folder.ancestors().take_while(|path| !path.exists()).count();
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    for parent in folder.ancestors().skip(1).take(missing) {
        // Who may not read it may have made something there all the same.
        if let Ok(parent) = File::open(parent) {
            parent.sync_all()?;
        }
    }
    Ok(())
}

const LOCK_FILE: &str = "journal.lock";
/// Whoever only looks by [`is_open`] holds the lock for an instant, which is no reason to give up.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// Holds a folder until it is dropped or the process ends, in whatever way. A child process does not inherit it.
#[derive(Debug)]
pub(crate) struct Ownership {
    _file: File,
}

impl Ownership {
    /// `None`: somebody else owns the folder.
    pub(crate) fn take(folder: &Path) -> io::Result<Option<Self>> {
        let file = File::options().create(true).truncate(false).write(true).open(folder.join(LOCK_FILE))?;
        for _ in 0..TRIES {
            match file.try_lock() {
                Ok(()) => return Ok(Some(Self { _file: file })),
                Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(None)
    }
}
