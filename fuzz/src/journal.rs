use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tidegate_journal::{
    Ack, AtEnd, Class, Journal, JournalConfig, JournalEntry, JournalReader, OverloadPolicy, ProducerRecord, ReadFrom,
    repair, verify,
};

thread_local! {
    // A shared folder for all inputs: creating a folder costs more than reading an input.
    static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

/// Writes the bytes as the newest segment of a journal, without other segments.
fn with_segment(data: &[u8], run: impl FnOnce(&Path)) {
    FOLDER.with_borrow_mut(|kept| {
        let folder = kept.get_or_insert_with(|| TempDir::new().expect("a folder for inputs"));
        for entry in fs::read_dir(folder.path()).expect("the folder is there") {
            fs::remove_file(entry.expect("it can be read").path()).expect("it can be removed");
        }
        fs::write(folder.path().join("journal-00-0000000001.tgj"), data).expect("it can be written");
        run(folder.path());
    });
}

/// The records up to the end or the first error.
fn records(folder: &Path, at_end: AtEnd) -> Vec<Vec<u8>> {
    let mut reader = JournalReader::open(folder, &ReadFrom::Beginning, at_end).expect("the folder can be read");
    let mut found = Vec::new();
    while let Some(entry) = reader.read().expect("the file can be read") {
        if let JournalEntry::Record(record) = entry {
            found.push(record.payload.to_vec());
        }
    }
    found
}

/// The reader ends for every input, and a following reader returns a prefix of the records.
pub fn journal_reader(data: &[u8]) {
    with_segment(data, |folder| {
        let all = records(folder, AtEnd::Stop);
        let followed = records(folder, AtEnd::Follow);
        assert_eq!(followed[..], all[..followed.len()]);
        let verdict = verify(folder).expect("the file can be read");
        assert_eq!(verdict.records, all.len() as u64);
        let damaged: u64 = verdict.damage.iter().map(|damage| damage.bytes).sum();
        assert!(damaged + verdict.bytes <= data.len() as u64, "{verdict:?}");
    });
}

/// Recovery loses no readable record, and later records are readable.
pub fn journal_recovery(data: &[u8]) {
    with_segment(data, |folder| {
        let mut before = records(folder, AtEnd::Stop);
        let mut config = JournalConfig::new(PathBuf::from(folder));
        config.classes[0].overload = OverloadPolicy::DropNewest;
        let (journal, _) = Journal::open(config).expect("whatever is there, a journal opens");
        let last = ProducerRecord::new(Class::new(0), b"the last").ack(Ack::Written);
        journal.producer().commit_blocking(last).expect("and takes records");
        drop(journal);
        before.push(b"the last".to_vec());
        assert_eq!(records(folder, AtEnd::Stop), before);
        repair(folder).expect("it can be repaired");
        assert_eq!(records(folder, AtEnd::Stop), before);
    });
}
