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
    make_named(folder, |parent| match File::open(parent) {
        Ok(parent) => parent.sync_all(),
        // Who may not read it may have made something there all the same.
        Err(_) => Ok(()),
    })
}

/// `sync` makes the names in a folder durable.
fn make_named(folder: &Path, sync: impl FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let folder = std::path::absolute(folder)?;
    let missing = folder.ancestors().take_while(|path| !path.exists()).count();
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    folder.ancestors().skip(1).take(missing).try_for_each(sync)
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_folders_in_which_new_ones_were_made_are_synced() {
        let outer = tempfile::tempdir().expect("a temporary folder can be made");
        let outer = outer.path();
        let synced = |folder: &str| {
            let mut synced = Vec::new();
            make_named(&outer.join(folder), |parent| {
                assert!(outer.join(folder).is_dir(), "not before they are there");
                synced.push(parent.to_path_buf());
                Ok(())
            })
            .expect("they can be made");
            synced
        };
        assert_eq!(synced("a/b/c"), [outer.join("a/b"), outer.join("a"), outer.to_path_buf()]);
        assert_eq!(synced("a/d"), [outer.join("a")]);
        assert!(synced("a/b/c").is_empty(), "it is there");
        let fails = |_: &Path| Err(io::ErrorKind::StorageFull.into());
        assert!(make_named(&outer.join("e"), fails).is_err(), "or nobody knows whether it stays");
    }
}
