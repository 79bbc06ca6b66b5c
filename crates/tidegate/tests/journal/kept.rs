//! A gateway with a journal, and what stands in it.

use std::path::Path;

use tidegate_journal::{AtEnd, Reader, Record, Start};
use tidegate_query_log::entry::{Entry, Kind};
use tidegate_testkit::{Fixture, Gateway, Signal};

/// A gateway whose journal lies in a folder of its own.
pub(crate) struct Kept {
    pub(crate) gateway: Gateway,
    folder: tempfile::TempDir,
}

impl Kept {
    /// `keys` go into `[journal]`, and, after a line `[...]`, into further sections; `pool` as for [`Fixture::gateway`].
    pub(crate) fn new(fixture: &Fixture, pool: &str, keys: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = folder.path().join("journal");
        let section = format!("{pool}\n[journal]\nfolder = \"{}\"\n{keys}\n", path.display());
        Self { gateway: fixture.gateway(&section), folder }
    }

    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("journal")
    }

    /// What stands in the journal once the gateway has ended.
    #[track_caller]
    pub(crate) fn end(mut self) -> Vec<Entry> {
        self.gateway.signal(Signal::INT);
        self.gateway.wait();
        let log = self.gateway.log();
        assert!(log.contains("query journal closed"), "the gateway closes its journal:\n{log}");
        read(&self.path(), AtEnd::Stop)
    }

    /// What stands in it when a condition holds, read while the gateway writes.
    #[track_caller]
    pub(crate) fn when(&self, what: &str, holds: impl Fn(&[Entry]) -> bool) -> Vec<Entry> {
        let mut entries = Vec::new();
        tidegate_testkit::eventually(what, || {
            entries = read(&self.path(), AtEnd::Follow);
            holds(&entries)
        });
        entries
    }

    /// A row of SHOW JOURNAL.
    #[track_caller]
    pub(crate) fn shown(&self, key: &str) -> String {
        let rows = self.gateway.show("JOURNAL");
        rows.iter().find(|row| row["key"] == key).map(|row| row["value"].clone()).unwrap_or_default()
    }
}

/// Every record of a folder; damage fails the test.
#[track_caller]
pub(crate) fn read(folder: &Path, at_end: AtEnd) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut reader = Reader::open(folder, &Start::Beginning, at_end).expect("the journal can be read");
    while let Some(entry) = reader.read().expect("the journal can be read") {
        match entry {
            tidegate_journal::Entry::Record(Record { payload, .. }) => {
                let entry = Entry::from_json(payload);
                entries.push(entry.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(payload))));
            }
            tidegate_journal::Entry::Damage(damage) => panic!("{damage:?}"),
            _ => {}
        }
    }
    entries
}

/// Those that are of queries and transactions.
pub(crate) fn queries(entries: &[Entry]) -> Vec<&Entry> {
    entries.iter().filter(|entry| matches!(entry.kind, Kind::Query | Kind::Transaction)).collect()
}

/// Statement, tag, rows, SQLSTATE of each query.
pub(crate) fn outcomes(entries: &[Entry]) -> Vec<(String, String, Option<u64>, String)> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let outcome = |entry: &Entry| (text(&entry.statement), text(&entry.tag), entry.rows, text(&entry.sqlstate));
    queries(entries).into_iter().map(outcome).collect()
}

/// The shape in which tests write down what they expect.
pub(crate) fn expected(rows: &[(&str, &str, Option<u64>, &str)]) -> Vec<(String, String, Option<u64>, String)> {
    rows.iter().map(|(text, tag, rows, state)| (text.to_string(), tag.to_string(), *rows, state.to_string())).collect()
}
