//! The folder of a journal and its lock.

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

/// Whether a journal has the folder open now, in this or another process.
///
/// # Errors
/// Returns the error of the operating system.
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

/// Whether a journal was ever opened in the folder, even if it has not written yet.
pub fn was_opened(folder: impl AsRef<Path>) -> bool {
    folder.as_ref().join(LOCK_FILE).exists()
}

/// Creates the folder, accessible to its owner only, and makes it durable.
pub(crate) fn create(folder: &Path) -> io::Result<()> {
    create_synced(folder, |parent| match File::open(parent) {
        Ok(parent) => parent.sync_all(),
        // A parent folder without read permission cannot be opened for a sync, although the folder was created.
        Err(_) => Ok(()),
    })
}

/// Creates the folder; `sync` makes the names in its parents durable.
fn create_synced(folder: &Path, sync: impl FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let folder = std::path::absolute(folder)?;
    let missing = folder.ancestors().take_while(|path| !path.exists()).count();
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    folder.ancestors().skip(1).take(missing).try_for_each(sync)
}

const LOCK_FILE: &str = "journal.lock";
/// [`is_open`] holds the lock for an instant, so `acquire` tries this often before it gives up.
const LOCK_TRIES: u32 = 5;
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// The lock on a folder, held until dropped or until the process ends. A child process does not inherit it.
#[derive(Debug)]
pub(crate) struct FolderLock {
    folder: PathBuf,
    held: Mutex<(HeldLock, u64)>,
}

#[derive(Debug)]
struct HeldLock {
    lock: File,
    /// The mount point of the folder's file system, if it is not the root.
    mount: Option<PathBuf>,
}

/// The status of a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FolderStatus {
    /// How often the folder was replaced.
    pub(crate) generation: u64,
    /// The folder was found replaced by this check.
    pub(crate) was_replaced: bool,
}

impl FolderLock {
    /// Returns `None` if another journal owns the folder.
    pub(crate) fn acquire(folder: &Path) -> io::Result<Option<Self>> {
        let held = HeldLock::acquire(folder)?;
        Ok(held.map(|held| Self { folder: folder.to_path_buf(), held: Mutex::new((held, 0)) }))
    }

    /// Verifies that the folder exists and is still locked by this journal. Otherwise creates or locks it again.
    ///
    /// Does not create the folder where its file system was unmounted: files below the mount point would be on another
    /// disk, and hidden once the file system is mounted again.
    pub(crate) fn verify(&self) -> io::Result<FolderStatus> {
        let (held, generation) = &mut *self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if storage::is_at(&held.lock, &self.folder.join(LOCK_FILE)) {
            return Ok(FolderStatus { generation: *generation, was_replaced: false });
        }
        if let Some(mount) = held.mount.as_ref().filter(|mount| !is_mount_point(mount, device)) {
            let gone = format!("no file system is mounted on {} any more", mount.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, gone));
        }
        create(&self.folder)?;
        let taken = HeldLock::acquire(&self.folder)?;
        *held = taken.ok_or_else(|| io::Error::new(io::ErrorKind::ResourceBusy, "another journal owns the folder"))?;
        *generation += 1;
        Ok(FolderStatus { generation: *generation, was_replaced: true })
    }
}

impl HeldLock {
    fn acquire(folder: &Path) -> io::Result<Option<Self>> {
        let lock = File::options().create(true).truncate(false).write(true).open(folder.join(LOCK_FILE))?;
        for _ in 0..LOCK_TRIES {
            match lock.try_lock() {
                Ok(()) => return Ok(Some(Self { lock, mount: mount_point(&fs::canonicalize(folder)?, device) })),
                Err(TryLockError::WouldBlock) => thread::sleep(LOCK_RETRY),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(None)
    }
}

fn device(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.dev())
}

/// The mount point of a path, if it is not the root.
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
    fn syncs_the_parents_of_new_folders() {
        let outer = tempfile::tempdir().expect("create a temporary folder");
        let outer = outer.path();
        let synced = |folder: &str| {
            let mut synced = Vec::new();
            create_synced(&outer.join(folder), |parent| {
                assert!(outer.join(folder).is_dir(), "synced after creation");
                synced.push(parent.to_path_buf());
                Ok(())
            })
            .expect("create the folders");
            synced
        };
        assert_eq!(synced("a/b/c"), [outer.join("a/b"), outer.join("a"), outer.to_path_buf()]);
        assert_eq!(synced("a/d"), [outer.join("a")]);
        assert!(synced("a/b/c").is_empty(), "the folder exists");
        let fails = |_: &Path| Err(io::ErrorKind::StorageFull.into());
        assert!(create_synced(&outer.join("e"), fails).is_err(), "a failed sync is an error");
    }

    #[test]
    fn mount_point_is_where_the_device_changes() {
        let device = |path: &Path| Some(u64::from(path.starts_with("/mnt/disk")));
        let mount = |path: &str| mount_point(Path::new(path), device);
        assert_eq!(mount("/mnt/disk/a/b"), Some("/mnt/disk".into()));
        assert_eq!(mount("/mnt/disk"), Some("/mnt/disk".into()));
        assert_eq!((mount("/mnt/other"), mount("/")), (None, None));
        assert!(!is_mount_point(Path::new("/mnt/disk"), |_| Some(0)), "it is unmounted");
        assert!(!is_mount_point(Path::new("/mnt/disk"), |_| None), "it does not exist");
    }

    #[test]
    fn replaced_folder_is_locked_again_unless_owned() {
        let outer = tempfile::tempdir().expect("create a temporary folder");
        let folder = outer.path().join("journal");
        create(&folder).expect("create the folder");
        let own = FolderLock::acquire(&folder).expect("lock the folder").expect("no other owner");
        assert!(!own.verify().expect("verify the folder").was_replaced, "unchanged");
        fs::remove_dir_all(&folder).expect("remove the folder");
        assert!(own.verify().expect("create the folder").was_replaced, "the folder was removed");
        assert!(is_open(&folder).expect("check the lock"));
        fs::rename(&folder, outer.path().join("other")).expect("rename the folder");
        create(&folder).expect("create the folder");
        let other = FolderLock::acquire(&folder).expect("lock the folder");
        assert!(other.is_some() && own.verify().is_err(), "another journal owns the folder");
        drop(other);
        assert_eq!(own.verify().expect("lock the folder"), FolderStatus { generation: 2, was_replaced: true });
        assert!(FolderLock::acquire(&folder).expect("check the lock").is_none());
    }
}
