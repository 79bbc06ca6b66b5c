//! The folder of a journal, and its one owner.

use std::{
    fs::{self, DirBuilder, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use crate::storage;

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

/// Whether a journal was opened in the folder at any time, even if it has written nothing there yet.
pub fn was_opened(folder: impl AsRef<Path>) -> bool {
    folder.as_ref().join(LOCK_FILE).exists()
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
    folder: PathBuf,
    held: Mutex<(Held, u64)>,
}

#[derive(Debug)]
struct Held {
    lock: File,
    /// Where the file system of the folder is mounted, if it is not the root.
    mount: Option<PathBuf>,
}

/// How it stands with a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Standing {
    /// How often it was another one than before.
    pub(crate) changes: u64,
    /// It was now.
    pub(crate) is_anew: bool,
}

impl Ownership {
    /// `None`: somebody else owns the folder.
    pub(crate) fn take(folder: &Path) -> io::Result<Option<Self>> {
        let held = Held::take(folder)?;
        Ok(held.map(|held| Self { folder: folder.to_path_buf(), held: Mutex::new((held, 0)) }))
    }

    /// Sees that the folder is there and still this one's. If it is not, it is made or taken anew.
    ///
    /// It is not made where its file system was unmounted: what is written below the mount point would be out of sight
    /// when that comes back, and on another disk.
    pub(crate) fn renew(&self) -> io::Result<Standing> {
        let (held, changes) = &mut *self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if storage::is_at(&held.lock, &self.folder.join(LOCK_FILE)) {
            return Ok(Standing { changes: *changes, is_anew: false });
        }
        if let Some(mount) = held.mount.as_ref().filter(|mount| !is_mount_point(mount, device)) {
            let gone = format!("nothing is mounted on {} any more", mount.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, gone));
        }
        make(&self.folder)?;
        let taken = Held::take(&self.folder)?;
        *held = taken.ok_or_else(|| io::Error::new(io::ErrorKind::ResourceBusy, "another journal owns the folder"))?;
        *changes += 1;
        Ok(Standing { changes: *changes, is_anew: true })
    }
}

impl Held {
    fn take(folder: &Path) -> io::Result<Option<Self>> {
        let lock = File::options().create(true).truncate(false).write(true).open(folder.join(LOCK_FILE))?;
        for _ in 0..TRIES {
            match lock.try_lock() {
                Ok(()) => return Ok(Some(Self { lock, mount: mount_point(&fs::canonicalize(folder)?, device) })),
                Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(None)
    }
}

fn device(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.dev())
}

/// Where the file system of a path begins, if that is not the root.
fn mount_point(path: &Path, device: impl Fn(&Path) -> Option<u64> + Copy) -> Option<PathBuf> {
    path.ancestors().find(|path| is_mount_point(path, device)).map(Path::to_path_buf)
}

fn is_mount_point(path: &Path, device: impl Fn(&Path) -> Option<u64>) -> bool {
    path.parent().is_some_and(|parent| device(path).is_some_and(|own| device(parent) != Some(own)))
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

    #[test]
    fn a_file_system_begins_where_the_device_changes() {
        let device = |path: &Path| Some(u64::from(path.starts_with("/mnt/disk")));
        let mount = |path: &str| mount_point(Path::new(path), device);
        assert_eq!(mount("/mnt/disk/a/b"), Some("/mnt/disk".into()));
        assert_eq!(mount("/mnt/disk"), Some("/mnt/disk".into()));
        assert_eq!((mount("/mnt/other"), mount("/")), (None, None));
        assert!(!is_mount_point(Path::new("/mnt/disk"), |_| Some(0)), "it was unmounted");
        assert!(!is_mount_point(Path::new("/mnt/disk"), |_| None), "it is not there");
    }

    #[test]
    fn a_folder_is_taken_anew_if_it_is_another_and_not_from_another_owner() {
        let outer = tempfile::tempdir().expect("a temporary folder can be made");
        let folder = outer.path().join("journal");
        make(&folder).expect("it can be made");
        let own = Ownership::take(&folder).expect("it can be taken").expect("nobody else has it");
        assert!(!own.renew().expect("it is there").is_anew, "it is the same");
        fs::remove_dir_all(&folder).expect("it can be removed");
        assert!(own.renew().expect("it can be made").is_anew, "it was gone");
        assert!(is_open(&folder).expect("it can be looked at"));
        fs::rename(&folder, outer.path().join("other")).expect("it can be renamed");
        make(&folder).expect("it can be made");
        let other = Ownership::take(&folder).expect("it can be taken");
        assert!(other.is_some() && own.renew().is_err(), "it is another one's now");
        drop(other);
        assert_eq!(own.renew().expect("it can be taken"), Standing { changes: 2, is_anew: true });
        assert!(Ownership::take(&folder).expect("it can be looked at").is_none());
    }
}
