//! A disk that fails when it is told to, and remembers what was done to it.

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex},
};

use tidegate_journal::{Disk, SegmentFile, Storage};

/// What the journal asks of the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    Create,
    Recycle,
    Write(usize),
    Sync,
    Truncate,
    Allocate,
}

/// What the disk does.
#[derive(Debug)]
pub(crate) enum Answer {
    Do,
    /// Writes only so many bytes, and says so.
    Short(usize),
    /// Writes so many bytes, and fails all the same.
    Fail(usize, io::Error),
}

/// What was done, in order, and what the test notes in between.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Deed {
    Create(PathBuf),
    Recycle(PathBuf, PathBuf),
    Write(PathBuf, u64, Vec<u8>),
    Sync(PathBuf),
    Truncate(PathBuf, u64),
    Allocate(PathBuf, u64),
    Remove(PathBuf),
    SyncFolder,
    /// The journal told a producer that its record is as safe as that.
    Told(String, tidegate_journal::Ack),
    /// A producer handed a record in.
    Offered(String),
}

type Plan = Box<dyn FnMut(Call) -> Answer + Send>;

#[derive(Clone)]
pub(crate) struct Faulty(Arc<Inner>);

struct Inner {
    plan: Mutex<Plan>,
    deeds: Mutex<Vec<Deed>>,
    keeps: bool,
    gate: Gate,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

/// Writes and syncs wait here while it is shut.
#[derive(Default)]
struct Gate {
    shut: Mutex<(bool, usize)>,
    moved: Condvar,
}

impl Faulty {
    /// Answers every call as the plan says.
    pub(crate) fn new(plan: impl FnMut(Call) -> Answer + Send + 'static) -> Self {
        Self::with(plan, false)
    }

    /// Does everything, and remembers it.
    pub(crate) fn remembering() -> Self {
        Self::with(|_| Answer::Do, true)
    }

    /// Does everything, until it is stalled.
    pub(crate) fn sound() -> Self {
        Self::new(|_| Answer::Do)
    }

    fn with(plan: impl FnMut(Call) -> Answer + Send + 'static, keeps: bool) -> Self {
        let (plan, deeds) = (Mutex::new(Box::new(plan) as Plan), Mutex::new(Vec::new()));
        Self(Arc::new(Inner { plan, deeds, keeps, gate: Gate::default() }))
    }

    pub(crate) fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(self.clone())
    }

    /// From now on writes and syncs hang.
    pub(crate) fn stall(&self) {
        self.0.gate.shut.lock().unwrap().0 = true;
    }

    /// They go on.
    pub(crate) fn go(&self) {
        self.0.gate.shut.lock().unwrap().0 = false;
        self.0.gate.moved.notify_all();
    }

    /// Waits until a call hangs.
    pub(crate) fn wait_for_stall(&self) {
        let mut shut = self.0.gate.shut.lock().unwrap();
        while shut.1 == 0 {
            shut = self.0.gate.moved.wait(shut).unwrap();
        }
    }

    pub(crate) fn note(&self, deed: Deed) {
        self.0.deeds.lock().unwrap().push(deed);
    }

    pub(crate) fn deeds(&self) -> Vec<Deed> {
        self.0.deeds.lock().unwrap().clone()
    }

    fn answer(&self, call: Call) -> Answer {
        if matches!(call, Call::Write(_) | Call::Sync) {
            let mut shut = self.0.gate.shut.lock().unwrap();
            while shut.0 {
                shut.1 += 1;
                self.0.gate.moved.notify_all();
                shut = self.0.gate.moved.wait(shut).unwrap();
                shut.1 -= 1;
            }
        }
        (self.0.plan.lock().unwrap())(call)
    }

    fn ask(&self, call: Call) -> io::Result<()> {
        match self.answer(call) {
            Answer::Do | Answer::Short(_) => Ok(()),
            Answer::Fail(_, error) => Err(error),
        }
    }

    /// Done first, and remembered then: whoever is told of it was told later.
    fn done<T>(&self, result: io::Result<T>, deed: impl FnOnce() -> Deed) -> io::Result<T> {
        if self.0.keeps && result.is_ok() {
            self.note(deed());
        }
        result
    }
}

impl Storage for Faulty {
    fn create(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        self.ask(Call::Create)?;
        let file = self.done(Disk.create(path), || Deed::Create(path.into()))?;
        Ok(Box::new(FaultyFile { disk: self.clone(), path: path.into(), file }))
    }

    fn recycle(&self, from: &Path, to: &Path) -> io::Result<Box<dyn SegmentFile>> {
        self.ask(Call::Recycle)?;
        let file = self.done(Disk.recycle(from, to), || Deed::Recycle(from.into(), to.into()))?;
        Ok(Box::new(FaultyFile { disk: self.clone(), path: to.into(), file }))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.done(Disk.remove(path), || Deed::Remove(path.into()))
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.done(Disk.sync_folder(folder), || Deed::SyncFolder)
    }
}

#[derive(Debug)]
struct FaultyFile {
    disk: Faulty,
    path: PathBuf,
    file: Box<dyn SegmentFile>,
}

impl FaultyFile {
    fn write_all(&mut self, bytes: &[u8], at: u64) -> io::Result<usize> {
        let result = self.file.write_at(bytes, at);
        assert_eq!(result.as_ref().ok(), Some(&bytes.len()), "the real disk does what it is told");
        self.disk.done(result, || Deed::Write(self.path.clone(), at, bytes.to_vec()))
    }
}

impl SegmentFile for FaultyFile {
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize> {
        match self.disk.answer(Call::Write(bytes.len())) {
            Answer::Do => self.write_all(bytes, at),
            Answer::Short(len) => self.write_all(&bytes[..len.min(bytes.len())], at),
            Answer::Fail(len, error) => {
                self.write_all(&bytes[..len.min(bytes.len())], at)?;
                Err(error)
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.ask(Call::Sync)?;
        // What a real sync does is not observed here, and costs.
        self.disk.done(Ok(()), || Deed::Sync(self.path.clone()))
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.disk.ask(Call::Truncate)?;
        self.disk.done(self.file.truncate(len), || Deed::Truncate(self.path.clone(), len))
    }

    fn allocate(&mut self, len: u64) -> io::Result<()> {
        self.disk.ask(Call::Allocate)?;
        self.disk.done(self.file.allocate(len), || Deed::Allocate(self.path.clone(), len))
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn is_at(&self, path: &Path) -> bool {
        self.file.is_at(path)
    }
}

/// The files of a folder as some deeds leave them.
#[derive(Clone, Default, Debug)]
pub(crate) struct Image(pub(crate) BTreeMap<PathBuf, Vec<u8>>);

impl Image {
    /// A deed, or of a write only the first bytes.
    pub(crate) fn apply(&mut self, deed: &Deed, bytes_max: usize) {
        match deed {
            Deed::Create(path) => drop(self.0.insert(path.clone(), Vec::new())),
            Deed::Recycle(from, to) => {
                let bytes = self.0.remove(from).unwrap_or_default();
                self.0.insert(to.clone(), bytes);
            }
            Deed::Write(path, at, bytes) => self.write(path, *at, &bytes[..bytes_max.min(bytes.len())]),
            Deed::Truncate(path, len) | Deed::Allocate(path, len) => {
                self.0.entry(path.clone()).or_default().resize(usize::try_from(*len).unwrap(), 0);
            }
            Deed::Remove(path) => drop(self.0.remove(path)),
            Deed::Sync(_) | Deed::SyncFolder | Deed::Told(..) | Deed::Offered(_) => {}
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

    /// Puts the files into another folder, which holds nothing else then.
    pub(crate) fn restore(&self, folder: &Path) {
        for entry in fs::read_dir(folder).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        for (path, bytes) in &self.0 {
            fs::write(folder.join(path.file_name().unwrap()), bytes).unwrap();
        }
    }
}
