//! A disk with injected faults that records its operations.

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex},
};

use tidegate_journal::{FileStorage, SegmentFile, Storage};

/// A call of the journal to its storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StorageCall {
    Create,
    Recycle,
    Write(usize),
    Sync,
    Truncate,
    Allocate,
}

/// The outcome of a call.
#[derive(Debug)]
pub(crate) enum Answer {
    Do,
    /// Writes only this many bytes and returns their number.
    Incomplete(usize),
    /// Writes this many bytes and returns the error.
    Fail(usize, io::Error),
}

/// The operations of the disk, and events of the test between them, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DiskOp {
    Create(PathBuf),
    Recycle(PathBuf, PathBuf),
    Write(PathBuf, u64, Vec<u8>),
    Sync(PathBuf),
    Truncate(PathBuf, u64),
    Allocate(PathBuf, u64),
    Remove(PathBuf),
    SyncFolder,
    /// A producer's record was acknowledged at this level.
    Acked(String, tidegate_journal::Ack),
    /// A producer offered a record.
    Offered(String),
}

type Plan = Box<dyn FnMut(StorageCall) -> Answer + Send>;

#[derive(Clone)]
pub(crate) struct FaultyDisk(Arc<Inner>);

struct Inner {
    plan: Mutex<Plan>,
    ops: Mutex<Vec<DiskOp>>,
    records_ops: bool,
    gate: StallGate,
}

impl fmt::Debug for FaultyDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyDisk")
    }
}

/// Blocks writes and syncs while it is closed.
#[derive(Default)]
struct StallGate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl FaultyDisk {
    /// A disk that takes the outcome of every call from `plan`.
    pub(crate) fn new(plan: impl FnMut(StorageCall) -> Answer + Send + 'static) -> Self {
        Self::with(plan, false)
    }

    /// A disk that succeeds and records its operations.
    pub(crate) fn recording() -> Self {
        Self::with(|_| Answer::Do, true)
    }

    /// A disk that succeeds until it is stalled.
    pub(crate) fn healthy() -> Self {
        Self::new(|_| Answer::Do)
    }

    fn with(plan: impl FnMut(StorageCall) -> Answer + Send + 'static, records_ops: bool) -> Self {
        let (plan, ops) = (Mutex::new(Box::new(plan) as Plan), Mutex::new(Vec::new()));
        Self(Arc::new(Inner { plan, ops, records_ops, gate: StallGate::default() }))
    }

    pub(crate) fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(self.clone())
    }

    /// Makes writes and syncs hang.
    pub(crate) fn stall(&self) {
        self.0.gate.state.lock().unwrap().0 = true;
    }

    /// Lets hanging calls continue.
    pub(crate) fn resume(&self) {
        self.0.gate.state.lock().unwrap().0 = false;
        self.0.gate.changed.notify_all();
    }

    /// Waits until a call hangs.
    pub(crate) fn wait_for_stall(&self) {
        let mut state = self.0.gate.state.lock().unwrap();
        while state.1 == 0 {
            state = self.0.gate.changed.wait(state).unwrap();
        }
    }

    pub(crate) fn record(&self, op: DiskOp) {
        self.0.ops.lock().unwrap().push(op);
    }

    pub(crate) fn ops(&self) -> Vec<DiskOp> {
        self.0.ops.lock().unwrap().clone()
    }

    fn answer(&self, call: StorageCall) -> Answer {
        if matches!(call, StorageCall::Write(_) | StorageCall::Sync) {
            let mut state = self.0.gate.state.lock().unwrap();
            while state.0 {
                state.1 += 1;
                self.0.gate.changed.notify_all();
                state = self.0.gate.changed.wait(state).unwrap();
                state.1 -= 1;
            }
        }
        (self.0.plan.lock().unwrap())(call)
    }

    fn call(&self, call: StorageCall) -> io::Result<()> {
        match self.answer(call) {
            Answer::Do | Answer::Incomplete(_) => Ok(()),
            Answer::Fail(_, error) => Err(error),
        }
    }

    /// Records an operation after it was done, and thus before any acknowledgement of it.
    fn record_result<T>(&self, result: io::Result<T>, op: impl FnOnce() -> DiskOp) -> io::Result<T> {
        if self.0.records_ops && result.is_ok() {
            self.record(op());
        }
        result
    }
}

impl Storage for FaultyDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        self.call(StorageCall::Create)?;
        let file = self.record_result(FileStorage.create(path), || DiskOp::Create(path.into()))?;
        Ok(Box::new(FaultyFile { disk: self.clone(), path: path.into(), file }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        Ok(Box::new(FaultyFile { disk: self.clone(), path: path.into(), file: FileStorage.open(path)? }))
    }

    fn recycle(&self, from: &Path, to: &Path) -> io::Result<Box<dyn SegmentFile>> {
        self.call(StorageCall::Recycle)?;
        let file = self.record_result(FileStorage.recycle(from, to), || DiskOp::Recycle(from.into(), to.into()))?;
        Ok(Box::new(FaultyFile { disk: self.clone(), path: to.into(), file }))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.record_result(FileStorage.remove(path), || DiskOp::Remove(path.into()))
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.record_result(FileStorage.sync_folder(folder), || DiskOp::SyncFolder)
    }
}

#[derive(Debug)]
struct FaultyFile {
    disk: FaultyDisk,
    path: PathBuf,
    file: Box<dyn SegmentFile>,
}

impl FaultyFile {
    fn write_all(&mut self, bytes: &[u8], at: u64) -> io::Result<usize> {
        let result = self.file.write_at(bytes, at);
        assert_eq!(result.as_ref().ok(), Some(&bytes.len()), "the real disk writes all bytes");
        self.disk.record_result(result, || DiskOp::Write(self.path.clone(), at, bytes.to_vec()))
    }
}

impl SegmentFile for FaultyFile {
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize> {
        match self.disk.answer(StorageCall::Write(bytes.len())) {
            Answer::Do => self.write_all(bytes, at),
            Answer::Incomplete(len) => self.write_all(&bytes[..len.min(bytes.len())], at),
            Answer::Fail(len, error) => {
                self.write_all(&bytes[..len.min(bytes.len())], at)?;
                Err(error)
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.call(StorageCall::Sync)?;
        // A real sync is not observable here, and slow.
        self.disk.record_result(Ok(()), || DiskOp::Sync(self.path.clone()))
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.disk.call(StorageCall::Truncate)?;
        self.disk.record_result(self.file.truncate(len), || DiskOp::Truncate(self.path.clone(), len))
    }

    fn allocate(&mut self, len: u64) -> io::Result<()> {
        self.disk.call(StorageCall::Allocate)?;
        self.disk.record_result(self.file.allocate(len), || DiskOp::Allocate(self.path.clone(), len))
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn is_at(&self, path: &Path) -> bool {
        self.file.is_at(path)
    }
}

/// The files of a folder after a sequence of operations.
#[derive(Clone, Default, Debug)]
pub(crate) struct Image(pub(crate) BTreeMap<PathBuf, Vec<u8>>);

impl Image {
    /// Applies an operation; of a write, only the first `bytes_max` bytes.
    pub(crate) fn apply(&mut self, op: &DiskOp, bytes_max: usize) {
        match op {
            DiskOp::Create(path) => drop(self.0.insert(path.clone(), Vec::new())),
            DiskOp::Recycle(from, to) => {
                let bytes = self.0.remove(from).unwrap_or_default();
                self.0.insert(to.clone(), bytes);
            }
            DiskOp::Write(path, at, bytes) => self.write(path, *at, &bytes[..bytes_max.min(bytes.len())]),
            DiskOp::Truncate(path, len) | DiskOp::Allocate(path, len) => {
                self.0.entry(path.clone()).or_default().resize(usize::try_from(*len).unwrap(), 0);
            }
            DiskOp::Remove(path) => drop(self.0.remove(path)),
            DiskOp::Sync(_) | DiskOp::SyncFolder | DiskOp::Acked(..) | DiskOp::Offered(_) => {}
        }
    }

    pub(crate) fn write(&mut self, path: &Path, at: u64, bytes: &[u8]) {
        let file = self.0.entry(path.to_path_buf()).or_default();
        let (start, end) = (usize::try_from(at).unwrap(), usize::try_from(at).unwrap() + bytes.len());
        if file.len() < end && !bytes.is_empty() {
            file.resize(end, 0);
        }
        if !bytes.is_empty() {
            file[start..end].copy_from_slice(bytes);
        }
    }

    /// Writes the files to another folder in place of its content.
    pub(crate) fn restore(&self, folder: &Path) {
        for entry in fs::read_dir(folder).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        for (path, bytes) in &self.0 {
            fs::write(folder.join(path.file_name().unwrap()), bytes).unwrap();
        }
    }
}
