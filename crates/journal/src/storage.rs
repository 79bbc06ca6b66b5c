//! The storage of segments: the few operations that the writer needs, so that tests can inject faults.

use std::{
    fmt, fs, io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt as _},
    path::Path,
};

/// A storage for segments. [`FileStorage`] is the default; tests inject faults with their own.
///
/// All paths are paths of segments in the configured folder. Recovery and readers use the file system directly.
pub trait Storage: Send + Sync + fmt::Debug + 'static {
    /// Creates a new file, which must not exist yet.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    fn create(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>>;

    /// Opens an existing file to write on at its end.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    fn open(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>>;

    /// Renames an existing file and opens it with its content.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    fn recycle(&self, from: &Path, to: &Path) -> io::Result<Box<dyn SegmentFile>>;

    /// Removes a file that did not become a segment.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in the folder durable.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// An open segment.
pub trait SegmentFile: Send + fmt::Debug {
    /// Writes at an offset. May write only a prefix of the bytes.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize>;

    /// Makes the written bytes durable.
    ///
    /// # Errors
    /// Returns the error of the operating system. The journal does not call `sync` on this file again: the kernel forgets
    /// the error, and with it the pages that it could not write.
    fn sync(&mut self) -> io::Result<()>;

    /// Truncates the file.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    fn truncate(&mut self, len: u64) -> io::Result<()>;

    /// Allocates disk space for the whole file and sets its length to `len`.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    fn allocate(&mut self, len: u64) -> io::Result<()>;

    /// The current length of the file, which another process may have truncated.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    fn size(&self) -> io::Result<u64>;

    /// Whether the path still names this file, which may have been renamed or deleted.
    fn is_at(&self, path: &Path) -> bool;
}

/// Options that create a file readable by its owner only, as records may hold confidential data.
pub(crate) fn private() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

/// The file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileStorage;

#[derive(Debug)]
struct DiskFile(fs::File);

impl Storage for FileStorage {
    fn create(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        let file = private().create_new(true).open(path)?;
        Ok(Box::new(DiskFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        Ok(Box::new(DiskFile(fs::OpenOptions::new().write(true).open(path)?)))
    }

    fn recycle(&self, from: &Path, to: &Path) -> io::Result<Box<dyn SegmentFile>> {
        let file = fs::OpenOptions::new().write(true).open(from)?;
        fs::rename(from, to)?;
        Ok(Box::new(DiskFile(file)))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        fs::File::open(folder)?.sync_all()
    }
}

impl SegmentFile for DiskFile {
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize> {
        self.0.write_at(bytes, at)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn allocate(&mut self, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, rustix::fs::FallocateFlags::empty(), 0, len) {
            Err(rustix::io::Errno::OPNOTSUPP) => self.0.set_len(len),
            result => Ok(result?),
        }
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn is_at(&self, path: &Path) -> bool {
        is_at(&self.0, path)
    }
}

/// Whether the path names this file.
pub(crate) fn is_at(file: &fs::File, path: &Path) -> bool {
    let (Ok(own), Ok(named)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    (own.dev(), own.ino()) == (named.dev(), named.ino())
}
