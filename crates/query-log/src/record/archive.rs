//! The journal of a gateway, from its opening to its report.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tidegate_config as config;
use tidegate_config::{Compress, JournalAck, JournalFormat, Overflow};
use tidegate_journal::{
    Ack, Class, ClassConfig, CloseReport, Compression, DamagedRange, FileStorage, Journal, JournalConfig, JournalEvent,
    JournalStats, OpenError, OverloadPolicy, Producer, Retention, SegmentFormat, SegmentPolicy, Storage,
};

/// Queries and transactions.
pub(super) const QUERIES: Class = Class::new(0);
/// Logins, refused logins and disconnects.
pub(super) const CONNECTIONS: Class = Class::new(1);

/// The journal cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the query journal in {}; {help}", folder.display())]
pub struct ArchiveError {
    folder: PathBuf,
    help: &'static str,
    source: OpenError,
}

/// The journal of a gateway.
pub struct Archive {
    /// Nothing once it is closed.
    journal: Mutex<Option<Journal>>,
    folder: PathBuf,
}

impl Archive {
    /// Opens the journal, if the configuration names a folder.
    ///
    /// # Errors
    /// When the folder cannot be used, and what to do about it.
    pub fn open(settings: &config::Journal) -> Result<Option<Self>, ArchiveError> {
        if settings.folder.as_os_str().is_empty() {
            return Ok(None);
        }
        Self::open_on(settings, Arc::new(FileStorage)).map(Some)
    }

    /// [`open`](Self::open), in a folder on another kind of storage.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_on(settings: &config::Journal, storage: Arc<dyn Storage>) -> Result<Self, ArchiveError> {
        let folder = settings.folder.clone();
        let (journal, recovery) = Journal::open_with(config(settings), storage, tell).map_err(|source| {
            let help = match &source {
                OpenError::InUse(_) => "stop the gateway that uses it, or name another folder in journal.folder",
                OpenError::Config(_) => "change [journal]",
                _ => "see that the gateway's user may write there, or name another folder in journal.folder",
            };
            ArchiveError { folder: folder.clone(), help, source }
        })?;
        for DamagedRange { path, at, bytes, kind } in &recovery.truncated {
            tracing::info!(path = %path.display(), at, bytes, ?kind, "a torn end of the query journal was cut off");
        }
        for DamagedRange { path, at, bytes, kind } in &recovery.damage {
            tracing::warn!(path = %path.display(), at, bytes, ?kind, "the query journal is damaged");
        }
        tracing::info!(folder = %folder.display(), segments = recovery.segments, "query journal opened");
        Ok(Self { journal: Mutex::new(Some(journal)), folder })
    }

    fn journal(&self) -> MutexGuard<'_, Option<Journal>> {
        // Whoever panicked here has changed nothing by halves.
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A way in for one thread; `None` once it is closed.
    pub(super) fn producer(&self, core: usize) -> Option<Producer> {
        self.journal().as_ref().map(|journal| journal.producer_for(core))
    }

    /// Where it lies.
    #[must_use]
    pub fn folder(&self) -> &std::path::Path {
        &self.folder
    }

    /// Its figures; `None` once it is closed.
    #[must_use]
    pub fn stats(&self) -> Option<JournalStats> {
        self.journal().as_ref().map(Journal::stats)
    }

    /// Begins new files, for a log rotation that has renamed the old ones.
    pub fn reopen(&self) {
        if let Some(journal) = &*self.journal() {
            journal.reopen();
        }
    }

    /// Writes what it has and ends, within the deadline; waits for the disk. `None` if it was closed before.
    pub fn close(&self, deadline: Duration) -> Option<CloseReport> {
        let journal = self.journal().take()?;
        let report = journal.close(deadline);
        let (written, unwritten, lost) = (report.written, report.unwritten, report.lost);
        if report.is_complete() {
            tracing::info!(written, lost, took = ?report.elapsed, "query journal closed");
        } else {
            tracing::error!(written, unwritten, lost, took = ?report.elapsed, "query journal closed before all was written");
        }
        Some(report)
    }
}

/// What the journal says of its disk, once per change.
fn tell(event: &JournalEvent) {
    match event {
        JournalEvent::Recovered => tracing::info!(%event, "query journal"),
        _ => tracing::error!(%event, "query journal"),
    }
}

fn config(settings: &config::Journal) -> JournalConfig {
    let some = |time: Duration| (!time.is_zero()).then_some(time);
    let ack = match settings.ack {
        JournalAck::Accepted => Ack::Accepted,
        JournalAck::Written => Ack::Written,
        JournalAck::Durable => Ack::Durable,
    };
    let overload = |overflow: Overflow| match overflow {
        Overflow::DropNewest => OverloadPolicy::DropNewest,
        Overflow::DropOldest => OverloadPolicy::DropOldest,
        Overflow::Sample => OverloadPolicy::Sample { one_in: settings.sample_one_in },
    };
    let class = |name: &str, overflow| ClassConfig::new(name).overload(overload(overflow)).ack(ack);
    let retention = Retention {
        bytes: (settings.retain_bytes > 0).then_some(settings.retain_bytes),
        age: some(settings.retain_age),
        segments: (settings.retain_segments > 0).then_some(settings.retain_segments as usize),
    };
    let compression = match settings.compress {
        Compress::Off => Compression::No,
        Compress::Zstd => Compression::Zstd(ZSTD_LEVEL),
    };
    JournalConfig {
        name: "queries".to_owned(),
        format: match settings.format {
            JournalFormat::Framed => SegmentFormat::Framed,
            JournalFormat::Json => SegmentFormat::Json,
        },
        stripes: usize::from(settings.stripes),
        bytes_max: settings.queue_bytes as usize,
        // The least queue holds four of the largest records and their frames.
        record_bytes_max: RECORD_BYTES_MAX,
        segment_bytes: u64::from(settings.segment_bytes),
        segment_age: some(settings.segment_age),
        linger: settings.linger,
        segment_policy: SegmentPolicy::Rolling { retention, compression },
        classes: vec![class("queries", settings.queries_overload), class("connections", settings.connections_overload)],
        ..JournalConfig::new(&settings.folder)
    }
}

/// More than a record can have: statement and parameters are cut to 64 KiB each, of which JSON makes six times as much at
/// most, and whatever else a client names is cut too.
const RECORD_BYTES_MAX: usize = 1000 << 10;

/// zstd's own default, at which a core packs some 300 MB/s.
const ZSTD_LEVEL: i32 = 3;

#[cfg(test)]
mod tests {
    use std::{io, path::Path, sync::Condvar, time::Instant};

    use tidegate_journal::{AtEnd, JournalEntry, JournalReader, ReadFrom, SegmentFile};

    use super::*;
    use crate::record::{Ledger, Recorder, Stranger, Witness};

    /// A disk that does nothing until it is let go.
    #[derive(Clone, Debug, Default)]
    struct Stalled(Arc<(Mutex<bool>, Condvar)>);

    impl Stalled {
        fn let_go(&self) {
            *self.0.0.lock().unwrap() = true;
            self.0.1.notify_all();
        }

        fn wait(&self) {
            let going = self.0.0.lock().unwrap();
            drop(self.0.1.wait_while(going, |going| !*going).unwrap());
        }
    }

    #[derive(Debug)]
    struct StalledFile(Box<dyn SegmentFile>, Stalled);

    impl Storage for Stalled {
        fn create(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
            Ok(Box::new(StalledFile(FileStorage.create(path)?, self.clone())))
        }

        fn recycle(&self, from: &Path, to: &Path) -> io::Result<Box<dyn SegmentFile>> {
            FileStorage.recycle(from, to)
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            FileStorage.remove(path)
        }

        fn sync_folder(&self, folder: &Path) -> io::Result<()> {
            FileStorage.sync_folder(folder)
        }
    }

    impl SegmentFile for StalledFile {
        fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize> {
            self.1.wait();
            self.0.write_at(bytes, at)
        }

        fn sync(&mut self) -> io::Result<()> {
            self.1.wait();
            self.0.sync()
        }

        fn truncate(&mut self, len: u64) -> io::Result<()> {
            self.0.truncate(len)
        }

        fn allocate(&mut self, len: u64) -> io::Result<()> {
            self.0.allocate(len)
        }

        fn size(&self) -> io::Result<u64> {
            self.0.size()
        }

        fn is_at(&self, path: &Path) -> bool {
            self.0.is_at(path)
        }
    }

    /// Queries and gaps of a folder: how many records, and how many lost.
    fn books(folder: &Path) -> (u64, u64) {
        let mut reader = JournalReader::open(folder, &ReadFrom::Beginning, AtEnd::Stop).unwrap();
        let (mut records, mut lost) = (0, 0);
        while let Some(entry) = reader.read().unwrap() {
            match entry {
                JournalEntry::Record(record) if record.class == QUERIES => records += 1,
                JournalEntry::Gap(gap) if gap.class == QUERIES => lost += gap.records,
                _ => {}
            }
        }
        (records, lost)
    }

    #[test]
    fn a_disk_that_stalls_holds_nobody_up_and_every_loss_is_told() {
        const ASKED: u64 = 20_000;
        let folder = tempfile::tempdir().unwrap();
        let settings = config::Journal {
            folder: folder.path().join("journal"),
            queue_bytes: 4 << 20,
            ..config::Journal::default()
        };
        let disk = Stalled::default();
        let archive = Archive::open_on(&settings, Arc::new(disk.clone())).unwrap();
        let now = Instant::now();
        let recorder = Recorder::new(&archive, 0, &settings, now).unwrap();
        let witness = Witness::new(&recorder, Stranger::default(), 1, None, now);
        let client = std::rc::Rc::new(tidegate_session_state::params::Settings::default());
        let text = format!("select '{}'", "x".repeat(1000));
        // Nobody lets the disk go meanwhile: a recorder that waited for it would never get to the end.
        for _ in 0..ASKED {
            let mut ledger = Ledger::open(&witness, &client, None, now);
            ledger.query(text.as_bytes());
            ledger.settle(0);
            ledger.close((&[], ""), now);
        }
        let stats = archive.stats().unwrap();
        let lost = stats.classes[0].lost_total();
        assert!(lost > 0 && stats.reserved_bytes_max <= 4 << 20, "{stats:?}");
        assert_eq!(stats.classes[0].offered(), ASKED);
        disk.let_go();
        let report = archive.close(Duration::from_secs(60)).unwrap();
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(books(&settings.folder), (ASKED - lost, lost));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_that_says_what_to_do() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let settings = config::Journal { folder: file.path().join("journal"), ..config::Journal::default() };
        let error = Archive::open(&settings).err().unwrap().to_string();
        assert!(error.contains("journal.folder") && error.contains("may write there"), "{error}");
        assert!(Archive::open(&config::Journal::default()).unwrap().is_none(), "it is off by default");
    }
}
