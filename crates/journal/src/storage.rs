//! Where segments lie: the few operations that the writer needs, so that faults can be put under it.

use std::{
    fmt, fs, io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt as _},
    path::Path,
};

/// A place for segments. [`Disk`] is the usual one; a test puts its faults here.
///
/// The paths are those of segments in the folder of the configuration. Recovery and readers use the file system itself.
pub trait Storage: Send + Sync + fmt::Debug + 'static {
    /// Makes a new file, which must not exist yet.
    ///
    /// # Errors
    /// What the system says.
    fn create(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>>;

    /// Gives an existing file another name and opens it, with what it holds.
    ///
    /// # Errors
    /// What the system says.
    fn recycle(&self, from: &Path, to: &Path) -> io::Result<Box<dyn SegmentFile>>;

    /// Removes a file that did not become a segment.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in the folder durable.
    ///
    /// # Errors
    /// What the system says.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// An open segment.
pub trait SegmentFile: Send + fmt::Debug {
    /// Writes at a place, perhaps only the first of the bytes.
    ///
    /// # Errors
    /// What the system says.
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// What the system says. The journal never calls it again on this file then: the system forgets the error, and with it
    /// the pages that it could not write.
    fn sync(&mut self) -> io::Result<()>;

    /// Cuts the file.
    ///
    /// # Errors
    /// What the system says.
    fn truncate(&mut self, len: u64) -> io::Result<()>;

    /// Takes room on the disk for the whole file, whose length becomes `len`.
    ///
    /// # Errors
    /// What the system says.
    fn allocate(&mut self, len: u64) -> io::Result<()>;

    /// The length of the file now, which somebody else may have cut.
    ///
    /// # Errors
    /// What the system says.
    fn size(&self) -> io::Result<u64>;

    /// Whether the path still names this file: it may have been renamed or deleted.
    fn is_at(&self, path: &Path) -> bool;
}

/// To write to a file that its owner alone reads, if it is made: records may be anything.
pub(crate) fn private() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

/// The file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

#[derive(Debug)]
struct DiskFile(fs::File);

impl Storage for Disk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        let file = private().create_new(true).open(path)?;
        Ok(Box::new(DiskFile(file)))
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
