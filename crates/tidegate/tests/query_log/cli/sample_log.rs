//! Logs as a gateway writes them, written by the library.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tidegate_journal::{
    Ack, Class, ClassConfig, Compression, Journal, JournalConfig, OverloadPolicy, ProducerRecord, Retention,
    SegmentFormat, SegmentPolicy, Timestamp,
};
use tidegate_query_log::record::RecordTimestamp;
use tidegate_testkit::poll;

/// The deadline of every wait; only a hang reaches it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Noon of 1 March 2026, in microseconds.
pub(crate) const NOON: u64 = 1_772_366_400_000_000;

/// An open log in a temporary folder.
pub(crate) struct SampleLog {
    journal: Option<Journal>,
    folder: TempDir,
}

/// The configuration of the log of a gateway, with small segments.
pub(crate) fn config(folder: &Path) -> JournalConfig {
    let block = |name| ClassConfig::new(name).overload(OverloadPolicy::Block { deadline: TIMEOUT }).ack(Ack::Written);
    JournalConfig {
        name: "queries".to_owned(),
        segment_bytes: 32 << 10,
        bytes_max: 256 << 10,
        record_bytes_max: 8 << 10,
        linger: Duration::from_millis(1),
        classes: vec![block("queries"), block("connections")],
        ..JournalConfig::new(folder)
    }
}

impl SampleLog {
    pub(crate) fn new() -> Self {
        Self::with(|config| config)
    }

    pub(crate) fn with(change: impl FnOnce(JournalConfig) -> JournalConfig) -> Self {
        Self::within(tempfile::tempdir().expect("a temporary folder can be made"), change)
    }

    /// A log in the folder `journal` of this one.
    pub(crate) fn within(folder: TempDir, change: impl FnOnce(JournalConfig) -> JournalConfig) -> Self {
        let (journal, _) = Journal::open(change(config(&folder.path().join("journal")))).expect("the log opens");
        Self { journal: Some(journal), folder }
    }

    pub(crate) fn json() -> Self {
        Self::with(|config| JournalConfig { format: SegmentFormat::Json, ..config })
    }

    /// A log that compresses its closed segments.
    pub(crate) fn packed() -> Self {
        let segment_policy =
            SegmentPolicy::Rolling { retention: Retention::default(), compression: Compression::Zstd(1) };
        Self::with(|config| JournalConfig { segment_policy, ..config })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("journal")
    }

    pub(crate) fn sibling(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Appends a record that many microseconds after noon; `keys` follow its time.
    pub(crate) fn append(&self, micros: u64, keys: &str) {
        self.append_to_class(Class::new(0), micros, keys);
    }

    pub(crate) fn append_to_class(&self, class: Class, micros: u64, keys: &str) {
        let time = RecordTimestamp::from_micros(NOON + micros);
        let record = format!("{{\"time\":\"{time}\",{keys}}}");
        let note = ProducerRecord::new(class, record.as_bytes()).at(Timestamp::from_unix_nanos(time.micros() * 1000));
        let journal = self.journal.as_ref().expect("the log is open");
        journal.producer_for(0).commit_blocking(note).expect("the record is written");
    }

    /// Appends queries with these numbers, one per second.
    pub(crate) fn queries(&self, numbers: std::ops::Range<u64>) {
        for number in numbers {
            let padding = "x".repeat(200);
            self.append(
                number * 1_000_000,
                &format!(
                    concat!(
                        r#""kind":"query","user":"ann","database":"shop","session":7,"transaction":{},"#,
                        r#""statement":"select {}, '{}'","fingerprint":"00000000000000aa","total_us":{},"#,
                        r#""rows":1,"tag":"SELECT 1""#,
                    ),
                    number,
                    number,
                    padding,
                    1000 + number
                ),
            );
        }
    }

    /// Appends a record that is too large, which is lost and counted.
    pub(crate) fn lose_record(&self) {
        let journal = self.journal.as_ref().expect("the log is open");
        let producer = journal.producer_for(0);
        assert!(producer.offer(ProducerRecord::new(Class::new(0), &[b'x'; 9 << 10])).is_err());
        assert!(journal.flush(Ack::Written, TIMEOUT).expect("the disk works"));
    }

    pub(crate) fn close(&mut self) {
        let report = self.journal.take().expect("the log is open").close(TIMEOUT);
        assert!(report.is_complete(), "{report:?}");
    }

    /// The segment files, oldest first.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let segments = tidegate_journal::segments(self.path()).expect("the folder can be read");
        segments.into_iter().map(|segment| segment.path).collect()
    }

    /// Waits until this number of segments is compressed.
    pub(crate) fn wait_until_packed(&self, count: usize) {
        let is_compressed = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "zst");
        let is_done = || self.files().iter().filter(|path| is_compressed(path)).count() >= count;
        assert!(poll(TIMEOUT, is_done), "segments are not compressed");
    }
}
