//! The journal of a query log: opening, statistics and closing.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tidegate_config as config;
use tidegate_config::{JournalAck, JournalCompression, JournalFormat, JournalOverload};
use tidegate_journal::{
    Ack, Class, ClassConfig, CloseReport, Compression, DamagedRange, FileStorage, Journal, JournalConfig, JournalEvent,
    JournalStats, OpenError, OverloadPolicy, Producer, RecordObserver, Retention, SegmentFormat, SegmentPolicy,
    Storage,
};

use crate::spans::SpanQueue;

/// Class of queries and transactions.
pub(super) const QUERIES: Class = Class::new(0);
/// Class of logins, refused logins and disconnects.
pub(super) const CONNECTIONS: Class = Class::new(1);

/// Error of opening the query log.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the query log in {}; {help}", folder.display())]
pub struct QueryLogError {
    folder: PathBuf,
    help: &'static str,
    source: OpenError,
}

/// The query log of a gateway.
pub struct QueryLog {
    /// `None` once closed.
    journal: Mutex<Option<Journal>>,
    /// `None` without files: records become spans only.
    folder: Option<PathBuf>,
    spans: Option<Arc<SpanQueue>>,
    reads: Arc<AtomicUsize>,
}

/// Limit of concurrent reads of the log by consoles; each uses a thread and memory.
const READS_MAX: usize = 2;

/// A permit to read the log, returned when dropped.
#[derive(Debug)]
pub struct ReadPermit(Arc<AtomicUsize>);

impl Drop for ReadPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl QueryLog {
    /// Opens the query log, if the configuration names a folder. Records become spans in `spans`, if given, also without a
    /// folder.
    ///
    /// # Errors
    /// If the folder cannot be used. The message contains what to do.
    pub fn open(
        settings: &config::QueryLogConfig,
        spans: Option<Arc<SpanQueue>>,
    ) -> Result<Option<Self>, QueryLogError> {
        if settings.folder.as_os_str().is_empty() {
            return spans.map(|spans| Self::in_memory(settings, spans)).transpose();
        }
        Self::open_with_storage(settings, Arc::new(FileStorage), spans).map(Some)
    }

    /// Opens the query log of a process that takes over from another one. While that process has the folder open, the log is in
    /// a folder below it, which the commands read together with it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_as_successor(
        settings: &config::QueryLogConfig,
        spans: Option<&Arc<SpanQueue>>,
    ) -> Result<Option<Self>, QueryLogError> {
        let mut opened = Self::open(settings, spans.cloned());
        for folder in successor_folders(&settings.folder) {
            if !matches!(&opened, Err(QueryLogError { source: OpenError::InUse(_), .. })) {
                break;
            }
            opened = Self::open(&config::QueryLogConfig { folder, ..settings.clone() }, spans.cloned());
        }
        opened
    }

    /// A query log without files, for spans.
    fn in_memory(settings: &config::QueryLogConfig, spans: Arc<SpanQueue>) -> Result<Self, QueryLogError> {
        let journal = Journal::in_memory(config(settings), spans.clone()).map_err(|source| QueryLogError {
            folder: "memory".into(),
            help: "change [journal]",
            source,
        })?;
        tracing::info!("queries are recorded for traces only: [journal] has no folder");
        Ok(Self { journal: Mutex::new(Some(journal)), folder: None, spans: Some(spans), reads: Arc::default() })
    }

    /// Opens the query log on another storage.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_storage(
        settings: &config::QueryLogConfig,
        storage: Arc<dyn Storage>,
        spans: Option<Arc<SpanQueue>>,
    ) -> Result<Self, QueryLogError> {
        let folder = settings.folder.clone();
        let observer = spans.clone().map(|spans| spans as Arc<dyn RecordObserver>);
        let opened = Journal::open_observed(config(settings), storage, log_event, observer);
        let (journal, recovery) = opened.map_err(|source| {
            let help = match &source {
                OpenError::InUse(_) => "stop the gateway that uses it, or set journal.folder to another folder",
                OpenError::Config(_) => "change [journal]",
                _ => "allow the user of the gateway to write there, or set journal.folder to another folder",
            };
            QueryLogError { folder: folder.clone(), help, source }
        })?;
        for DamagedRange { path, at, bytes, kind } in &recovery.truncated {
            tracing::info!(path = %path.display(), at, bytes, ?kind, "query log: removed an incomplete record at the end");
        }
        for DamagedRange { path, at, bytes, kind } in &recovery.damage {
            tracing::warn!(path = %path.display(), at, bytes, ?kind, "query log: damaged");
        }
        tracing::info!(folder = %folder.display(), segments = recovery.segments, "query log opened");
        Ok(Self { journal: Mutex::new(Some(journal)), folder: Some(folder), spans, reads: Arc::default() })
    }

    fn journal(&self) -> MutexGuard<'_, Option<Journal>> {
        // A panic cannot leave the option in an inconsistent state.
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A producer for one thread; `None` once closed.
    pub(super) fn producer(&self, core: usize) -> Option<Producer> {
        self.journal().as_ref().map(|journal| journal.producer_for(core))
    }

    /// The folder of the log; `None` if records become spans only.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The queue of spans, if traces are on.
    #[must_use]
    pub fn spans(&self) -> Option<&Arc<SpanQueue>> {
        self.spans.as_ref()
    }

    /// A permit for a console to read the log; `None` while two others read it.
    #[must_use]
    pub fn read_permit(&self) -> Option<ReadPermit> {
        let more = |reads| (reads < READS_MAX).then_some(reads + 1);
        self.reads.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(ReadPermit(self.reads.clone()))
    }

    /// Statistics of the journal; `None` once closed.
    #[must_use]
    pub fn stats(&self) -> Option<JournalStats> {
        self.journal().as_ref().map(Journal::stats)
    }

    /// Starts new files in place of files that a log rotation has renamed.
    pub fn reopen(&self) {
        if let Some(journal) = &*self.journal() {
            journal.reopen();
        }
    }

    /// Writes the queued records and closes the log, within the deadline. Blocks on the disk. `None` if already closed.
    pub fn close(&self, deadline: Duration) -> Option<CloseReport> {
        let journal = self.journal().take()?;
        let report = journal.close(deadline);
        let (written, unwritten, lost) = (report.written, report.unwritten, report.lost);
        if report.is_complete() {
            tracing::info!(written, lost, took = ?report.elapsed, "query log closed");
        } else {
            tracing::error!(written, unwritten, lost, took = ?report.elapsed, "query log closed with unwritten records");
        }
        Some(report)
    }
}

/// The folders below the folder of a query log that [`QueryLog::open_as_successor`] uses. More processes at a time than folders
/// are not expected.
pub(crate) fn successor_folders(folder: &Path) -> impl Iterator<Item = PathBuf> {
    (1..=SUCCESSORS_MAX).map(move |number| folder.join(format!("successor-{number}")))
}

const SUCCESSORS_MAX: usize = 8;

/// Logs a change of the state of the disk.
fn log_event(event: &JournalEvent) {
    match event {
        JournalEvent::Recovered => tracing::info!(%event, "query log"),
        _ => tracing::error!(%event, "query log"),
    }
}

fn config(settings: &config::QueryLogConfig) -> JournalConfig {
    let some = |time: Duration| (!time.is_zero()).then_some(time);
    let ack = match settings.ack {
        JournalAck::Accepted => Ack::Accepted,
        JournalAck::Written => Ack::Written,
        JournalAck::Durable => Ack::Durable,
    };
    let overload = |overflow: JournalOverload| match overflow {
        JournalOverload::DropNewest => OverloadPolicy::DropNewest,
        JournalOverload::DropOldest => OverloadPolicy::DropOldest,
        JournalOverload::Sample => OverloadPolicy::Sample { one_in: settings.sample_one_in },
    };
    let class = |name: &str, overflow| ClassConfig::new(name).overload(overload(overflow)).ack(ack);
    let retention = Retention {
        bytes: (settings.retain_bytes > 0).then_some(settings.retain_bytes),
        age: some(settings.retain_age),
        segments: (settings.retain_segments > 0).then_some(settings.retain_segments as usize),
    };
    let compression = match settings.compress {
        JournalCompression::Off => Compression::No,
        JournalCompression::Zstd => Compression::Zstd(ZSTD_LEVEL),
    };
    JournalConfig {
        name: "queries".to_owned(),
        format: match settings.format {
            JournalFormat::Framed => SegmentFormat::Framed,
            JournalFormat::Json => SegmentFormat::Json,
        },
        stripes: usize::from(settings.stripes),
        bytes_max: settings.queue_bytes as usize,
        // The smallest queue holds four of the largest records and their frames.
        record_bytes_max: RECORD_BYTES_MAX,
        segment_bytes: u64::from(settings.segment_bytes),
        segment_age: some(settings.segment_age),
        linger: settings.linger,
        segment_policy: SegmentPolicy::Rolling { retention, compression },
        classes: vec![class("queries", settings.queries_overload), class("connections", settings.connections_overload)],
        ..JournalConfig::new(&settings.folder)
    }
}

/// Upper bound of a record: statement and parameters are truncated to 64 KiB each, JSON escapes multiply them by at most
/// six, and all other texts are truncated too.
const RECORD_BYTES_MAX: usize = 1000 << 10;

/// Default level of zstd; compresses about 300 MB/s per core.
const ZSTD_LEVEL: i32 = 3;

#[cfg(test)]
mod tests {
    use std::{io, path::Path, sync::Condvar, time::Instant};

    use tidegate_journal::{AtEnd, JournalEntry, JournalReader, ReadFrom, SegmentFile};

    use super::*;
    use crate::writer::{PeerInfo, QueryTracker, Recorder, SessionLog};

    /// Storage that blocks until it is released.
    #[derive(Clone, Debug, Default)]
    struct Stalled(Arc<(Mutex<bool>, Condvar)>);

    impl Stalled {
        fn release(&self) {
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

        fn open(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
            Ok(Box::new(StalledFile(FileStorage.open(path)?, self.clone())))
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

    /// Number of query records in a folder, and number of lost ones.
    fn count_records(folder: &Path) -> (u64, u64) {
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
    fn a_stalled_disk_blocks_no_query_and_losses_count() {
        const QUERIES_SENT: u64 = 20_000;
        let folder = tempfile::tempdir().unwrap();
        let settings = config::QueryLogConfig {
            folder: folder.path().join("journal"),
            queue_bytes: 4 << 20,
            ..config::QueryLogConfig::default()
        };
        let disk = Stalled::default();
        let query_log = QueryLog::open_with_storage(&settings, Arc::new(disk.clone()), None).unwrap();
        let now = Instant::now();
        let recorder = Recorder::new(&query_log, 0, &settings, now).unwrap();
        let session_log = SessionLog::new(&recorder, PeerInfo::default(), 1, None, now);
        let client = std::rc::Rc::new(tidegate_session_state::params::Settings::default());
        let text = format!("select '{}'", "x".repeat(1000));
        // The storage is still blocked, so a recorder that waited for it would never return.
        for _ in 0..QUERIES_SENT {
            let mut tracker = QueryTracker::new(&session_log, &client, None, now);
            tracker.on_query(text.as_bytes());
            tracker.set_pending(0);
            tracker.finish((&[], ""), now);
        }
        let stats = query_log.stats().unwrap();
        let lost = stats.classes[0].lost_total();
        assert!(lost > 0 && stats.reserved_bytes_max <= 4 << 20, "{stats:?}");
        assert_eq!(stats.classes[0].offered(), QUERIES_SENT);
        disk.release();
        let report = query_log.close(Duration::from_secs(60)).unwrap();
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(count_records(&settings.folder), (QUERIES_SENT - lost, lost));
    }

    #[test]
    fn an_unusable_folder_is_an_error_with_help() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let settings =
            config::QueryLogConfig { folder: file.path().join("journal"), ..config::QueryLogConfig::default() };
        let error = QueryLog::open(&settings, None).err().unwrap().to_string();
        assert!(error.contains("journal.folder") && error.contains("to write there"), "{error}");
        assert!(QueryLog::open(&config::QueryLogConfig::default(), None).unwrap().is_none(), "it is off by default");
    }

    #[test]
    fn without_a_folder_records_become_spans_only() {
        let settings = config::QueryLogConfig::default();
        let traces = config::TracesConfig { sample_one_in: 1, batch_spans: 3, ..config::TracesConfig::default() };
        let spans = SpanQueue::new(&traces, || {});
        let query_log = QueryLog::open(&settings, Some(spans.clone())).unwrap().unwrap();
        assert!(query_log.folder().is_none());
        let now = Instant::now();
        let recorder = Recorder::new(&query_log, 0, &settings, now).unwrap();
        let session_log = SessionLog::new(&recorder, PeerInfo::default(), 1, None, now);
        let client = std::rc::Rc::new(tidegate_session_state::params::Settings::default());
        for _ in 0..4 {
            let mut tracker = QueryTracker::new(&session_log, &client, None, now);
            tracker.on_query(b"select 1");
            tracker.set_pending(0);
            tracker.finish((&[], ""), now);
        }
        query_log.reopen();
        assert!(query_log.close(Duration::from_secs(60)).unwrap().is_complete());
        let mut batches = 0;
        while let Some(batch) = spans.take() {
            batch.set_exported(0);
            batches += 1;
        }
        assert_eq!((batches, spans.counts().exported), (2, 4));
    }
}
