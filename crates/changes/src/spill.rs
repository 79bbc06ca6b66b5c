//! Where unfinished transactions go that do not fit into memory.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Creates storage for unfinished transactions. Nothing of it has to survive the process: an unfinished transaction is
/// sent again after a restart.
pub trait SpillStore: Send + Sync {
    /// Creates storage for one transaction.
    ///
    /// # Errors
    /// The storage cannot be created.
    fn create(&mut self, xid: u32) -> io::Result<Box<dyn SpillFile>>;
}

/// Storage of one transaction. Dropping it, or its reader, removes it.
pub trait SpillFile: Send + Sync {
    /// Appends bytes.
    ///
    /// # Errors
    /// The bytes cannot be stored, or the bound of the store is reached.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Ends writing, and reads from the start.
    ///
    /// # Errors
    /// The storage cannot be read.
    fn into_reader(self: Box<Self>) -> io::Result<Box<dyn Read + Send + Sync>>;
}

/// Files in a folder, bounded in bytes over all transactions.
///
/// A file has no name after its creation, so that the operating system removes it with the process.
#[derive(Debug)]
pub struct FileSpill {
    folder: PathBuf,
    bytes_max: u64,
    used: Arc<AtomicU64>,
    created: u64,
}

impl FileSpill {
    /// Uses `folder`, which is created if it is missing, for at most `bytes_max` bytes.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn new(folder: impl Into<PathBuf>, bytes_max: u64) -> io::Result<Self> {
        let folder = folder.into();
        fs::create_dir_all(&folder)?;
        Ok(Self { folder, bytes_max, used: Arc::default(), created: 0 })
    }
}

impl SpillStore for FileSpill {
    fn create(&mut self, xid: u32) -> io::Result<Box<dyn SpillFile>> {
        self.created += 1;
        let path = self.folder.join(format!("{}-{}-{xid}.spill", std::process::id(), self.created));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        fs::remove_file(&path)?;
        let usage = SpillUsage { used: Arc::clone(&self.used), bytes: 0 };
        Ok(Box::new(UnnamedFile { file, usage, bytes_max: self.bytes_max }))
    }
}

/// The bytes of one file, given back when it is dropped.
#[derive(Debug)]
struct SpillUsage {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for SpillUsage {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct UnnamedFile {
    file: File,
    usage: SpillUsage,
    bytes_max: u64,
}

impl SpillFile for UnnamedFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let len = bytes.len() as u64;
        let before = self.usage.used.fetch_add(len, Ordering::Relaxed);
        self.usage.bytes += len;
        if before.saturating_add(len) > self.bytes_max {
            let text = format!("unfinished transactions need more than {} bytes on disk", self.bytes_max);
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
        }
        self.file.write_all(bytes)
    }

    fn into_reader(mut self: Box<Self>) -> io::Result<Box<dyn Read + Send + Sync>> {
        self.file.seek(SeekFrom::Start(0))?;
        let Self { file, usage, .. } = *self;
        Ok(Box::new(UnnamedReader { file: BufReader::new(file), _usage: usage }))
    }
}

struct UnnamedReader {
    file: BufReader<File>,
    _usage: SpillUsage,
}

impl Read for UnnamedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_bounded_and_leave_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = FileSpill::new(folder.path().join("tx"), 10).unwrap();
        let mut one = store.create(1).unwrap();
        one.append(b"123456").unwrap();
        let mut other = store.create(2).unwrap();
        assert_eq!(other.append(b"12345").unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
        drop(other);
        one.append(b"7890").unwrap();
        let mut found = String::new();
        one.into_reader().unwrap().read_to_string(&mut found).unwrap();
        assert_eq!(found, "1234567890");
        store.create(3).unwrap().append(b"1234567890").unwrap();
        assert_eq!(fs::read_dir(folder.path().join("tx")).unwrap().count(), 0);
    }
}
