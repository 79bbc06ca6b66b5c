//! A gateway with a query log, and its records.

use std::path::Path;

use tidegate_journal::{AtEnd, JournalReader, JournalRecord, ReadFrom};
use tidegate_query_log::record::{LogRecord, RecordKind};
use tidegate_testkit::{Fixture, Gateway, Signal};

/// A gateway whose query log is in a temporary folder.
pub(crate) struct LoggingGateway {
    pub(crate) gateway: Gateway,
    folder: tempfile::TempDir,
}

impl LoggingGateway {
    /// Starts the gateway. `keys` go into `[journal]` and, after a line `[...]`, into further sections; `pool` is as
    /// for [`Fixture::gateway`].
    pub(crate) fn new(fixture: &Fixture, pool: &str, keys: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = folder.path().join("journal");
        let section = format!("{pool}\n[journal]\nfolder = \"{}\"\n{keys}\n", path.display());
        Self { gateway: fixture.gateway(&section), folder }
    }

    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("journal")
    }

    /// Stops the gateway and returns all records.
    #[track_caller]
    pub(crate) fn end(mut self) -> Vec<LogRecord> {
        self.gateway.signal(Signal::INT);
        self.gateway.wait();
        let log = self.gateway.log();
        assert!(log.contains("query log closed"), "the gateway has not closed its log:\n{log}");
        read(&self.path(), AtEnd::Stop)
    }

    /// Waits until the records match a condition, while the gateway writes, and returns them.
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, holds: impl Fn(&[LogRecord]) -> bool) -> Vec<LogRecord> {
        let mut entries = Vec::new();
        tidegate_testkit::eventually(what, || {
            entries = read(&self.path(), AtEnd::Follow);
            holds(&entries)
        });
        entries
    }

    /// The value of a row of SHOW JOURNAL.
    #[track_caller]
    pub(crate) fn status(&self, key: &str) -> String {
        let rows = self.gateway.show("JOURNAL");
        rows.iter().find(|row| row["key"] == key).map(|row| row["value"].clone()).unwrap_or_default()
    }
}

/// All records of a folder; damage fails the test.
#[track_caller]
pub(crate) fn read(folder: &Path, at_end: AtEnd) -> Vec<LogRecord> {
    let mut entries = Vec::new();
    let mut reader = JournalReader::open(folder, &ReadFrom::Beginning, at_end).expect("the log can be read");
    while let Some(entry) = reader.read().expect("the log can be read") {
        match entry {
            tidegate_journal::JournalEntry::Record(JournalRecord { payload, .. }) => {
                let entry = LogRecord::from_json(payload);
                entries.push(entry.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(payload))));
            }
            tidegate_journal::JournalEntry::Damage(damage) => panic!("{damage:?}"),
            _ => {}
        }
    }
    entries
}

/// The records of queries and transactions.
pub(crate) fn queries(entries: &[LogRecord]) -> Vec<&LogRecord> {
    entries.iter().filter(|entry| matches!(entry.kind, RecordKind::Query | RecordKind::Transaction)).collect()
}

/// The statement, tag, rows and SQLSTATE of each query.
pub(crate) fn outcomes(entries: &[LogRecord]) -> Vec<(String, String, Option<u64>, String)> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let outcome = |entry: &LogRecord| (text(&entry.statement), text(&entry.tag), entry.rows, text(&entry.sqlstate));
    queries(entries).into_iter().map(outcome).collect()
}

/// Converts expected outcomes to the type of [`outcomes`].
pub(crate) fn expected(rows: &[(&str, &str, Option<u64>, &str)]) -> Vec<(String, String, Option<u64>, String)> {
    rows.iter().map(|(text, tag, rows, state)| (text.to_string(), tag.to_string(), *rows, state.to_string())).collect()
}
