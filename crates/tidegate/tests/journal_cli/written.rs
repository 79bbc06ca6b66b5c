//! Journals such as a gateway writes, written by the library.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate_journal::{
    Ack, Class, ClassConfig, Config, Format, Journal, Note, Overload, Pack, Retention, Space, Time,
};
use tidegate_query_log::entry::Moment;

/// Long enough that only a hang reaches it.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Noon of 1 March 2026, in microseconds.
pub(crate) const NOON: u64 = 1_772_366_400_000_000;

/// A journal that is open, in a folder of its own.
pub(crate) struct Written {
    journal: Option<Journal>,
    folder: TempDir,
}

/// The configuration of a gateway's journal, with small segments.
pub(crate) fn config(folder: &Path) -> Config {
    let block = |name| ClassConfig::new(name).overload(Overload::Block { deadline: LONG }).ack(Ack::Written);
    Config {
        name: "queries".to_owned(),
        segment_bytes: 32 << 10,
        bytes_max: 256 << 10,
        record_bytes_max: 8 << 10,
        linger: Duration::from_millis(1),
        classes: vec![block("queries"), block("connections")],
        ..Config::new(folder)
    }
}

impl Written {
    pub(crate) fn new() -> Self {
        Self::with(|config| config)
    }

    pub(crate) fn with(change: impl FnOnce(Config) -> Config) -> Self {
        Self::within(tempfile::tempdir().expect("a temporary folder can be made"), change)
    }

    /// In a folder `journal` of this one.
    pub(crate) fn within(folder: TempDir, change: impl FnOnce(Config) -> Config) -> Self {
        let (journal, _) = Journal::open(change(config(&folder.path().join("journal")))).expect("it opens");
        Self { journal: Some(journal), folder }
    }

    pub(crate) fn json() -> Self {
        Self::with(|config| Config { format: Format::Json, ..config })
    }

    /// Segments that have ended are packed.
    pub(crate) fn packed() -> Self {
        let space = Space::Segments { retention: Retention::default(), pack: Pack::Zstd(1) };
        Self::with(|config| Config { space, ..config })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("journal")
    }

    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a record of a moment, so many microseconds after noon; `keys` go behind its time.
    pub(crate) fn say(&self, micros: u64, keys: &str) {
        self.say_of(Class::new(0), micros, keys);
    }

    pub(crate) fn say_of(&self, class: Class, micros: u64, keys: &str) {
        let time = Moment::from_micros(NOON + micros);
        let record = format!("{{\"time\":\"{time}\",{keys}}}");
        let note = Note::new(class, record.as_bytes()).at(Time::from_unix_nanos(time.micros() * 1000));
        let journal = self.journal.as_ref().expect("it is open");
        journal.producer_for(0).commit_blocking(note).expect("it is written");
    }

    /// Queries with the numbers of a range, one each second.
    pub(crate) fn queries(&self, numbers: std::ops::Range<u64>) {
        for number in numbers {
            let padding = "x".repeat(200);
            self.say(
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

    /// A record that is too large is lost, and told so.
    pub(crate) fn lose_one(&self) {
        let journal = self.journal.as_ref().expect("it is open");
        let producer = journal.producer_for(0);
        assert!(producer.offer(Note::new(Class::new(0), &[b'x'; 9 << 10])).is_err());
        assert!(journal.flush(Ack::Written, LONG).expect("the disk works"));
    }

    pub(crate) fn close(&mut self) {
        let report = self.journal.take().expect("it is open").close(LONG);
        assert!(report.is_complete(), "{report:?}");
    }

    /// The files of segments, oldest first.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let segments = tidegate_journal::segments(self.path()).expect("the folder can be read");
        segments.into_iter().map(|segment| segment.path).collect()
    }

    /// Waits until so many segments are packed.
    pub(crate) fn until_packed(&self, count: usize) {
        until("segments are packed", || {
            let packed = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "zst");
            self.files().iter().filter(|path| packed(path)).count() >= count
        });
    }
}

/// Waits for something that another thread or process brings about.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "{what}");
        std::thread::yield_now();
    }
}
