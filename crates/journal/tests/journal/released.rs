//! Segments that are removed only when a reader has released them, a bound on the disk, and waiting for written records.

use std::{
    io,
    path::Path,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Waker},
};

use tempfile::TempDir;
use tidegate_journal::{
    Ack, AtEnd, Journal, JournalConfig, JournalEntry, JournalReader, JournalState, OpenError, Producer, ReadFrom,
    ReaderPosition, RecordLost, SegmentPolicy,
};

use crate::{
    LONG, block_on,
    faults::{Answer, FaultyDisk, StorageCall},
    new_record, payloads, segments, small, until,
};

const SEGMENT_BYTES: u64 = 32 << 10;
const DISK_BYTES_MAX: u64 = 8 * SEGMENT_BYTES;

fn bounded(folder: &Path) -> JournalConfig {
    let mut config = small(folder);
    config.segment_bytes = SEGMENT_BYTES;
    config.segment_policy = SegmentPolicy::UntilReleased { disk_bytes_max: DISK_BYTES_MAX };
    config
}

fn numbered(number: usize) -> Vec<u8> {
    format!("{number:>1000}").into_bytes()
}

fn append(producer: &Producer, records: usize) {
    for number in 0..records {
        producer.append_blocking(new_record(&numbered(number))).unwrap();
    }
}

/// Reads `records` more records, which have to be the numbers from `next` on.
fn read(reader: &mut JournalReader, next: &mut usize, records: usize) {
    let until_number = *next + records;
    until("the records are read", || {
        while *next < until_number {
            match reader.read().unwrap() {
                Some(JournalEntry::Record(record)) => assert_eq!(record.payload, numbered(*next)),
                Some(other) => panic!("{other:?} instead of record {next}"),
                None => return false,
            }
            *next += 1;
        }
        true
    });
}

fn is_full(journal: &Journal) -> bool {
    matches!(journal.stats().state, JournalState::DiskFull { .. })
}

/// Unread segments stay, whatever their number; released ones are removed, and the position stays readable.
#[test]
fn only_released_segments_are_removed() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(bounded(folder.path())).unwrap();
    let producer = journal.producer();
    append(&producer, 150);
    assert!(journal.flush(Ack::Durable, LONG).unwrap());
    let before = segments(folder.path()).len();
    assert!(before >= 5);
    let mut reader = JournalReader::open(folder.path(), &ReadFrom::Beginning, AtEnd::Follow).unwrap();
    let mut next = 0;
    read(&mut reader, &mut next, 100);
    journal.release(&reader.position());
    until("the released segments are removed", || segments(folder.path()).len() <= before - 3);
    read(&mut reader, &mut next, 50);
    let position = reader.position();
    journal.release(&position);
    drop((reader, journal));
    let (journal, _) = Journal::open(bounded(folder.path())).unwrap();
    journal.producer().commit_blocking(new_record(&numbered(150)).ack(Ack::Written)).unwrap();
    let text = position.to_string();
    let mut reader =
        JournalReader::open(folder.path(), &ReadFrom::Position(text.parse().unwrap()), AtEnd::Follow).unwrap();
    read(&mut reader, &mut next, 1);
    assert!(reader.read().unwrap().is_none());
}

/// Appends wait at the bound, the disk stays below it, and each release lets them continue.
#[test]
fn appends_wait_at_the_disk_bound_until_a_release() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(bounded(folder.path())).unwrap();
    let size = || segments(folder.path()).iter().filter_map(|path| path.metadata().ok()).map(|file| file.len()).sum();
    let (records, total) = (1_000, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let producer = journal.producer();
            append(&producer, records);
            assert!(journal.flush(Ack::Durable, LONG).unwrap());
            total.store(true, SeqCst);
        });
        let mut reader = JournalReader::open(folder.path(), &ReadFrom::Beginning, AtEnd::Follow).unwrap();
        let mut next = 0;
        until("the bound is reached", || is_full(&journal));
        assert!(!total.load(SeqCst));
        while next < records {
            let bytes: u64 = size();
            assert!(bytes <= DISK_BYTES_MAX + 20 * 96, "{bytes}");
            read(&mut reader, &mut next, 100);
            journal.release(&reader.position());
        }
    });
    assert!(total.load(SeqCst) && !is_full(&journal));
}

/// The bytes of an earlier run count, and a reopened journal at the bound still waits for a release.
#[test]
fn bound_holds_after_reopening() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(bounded(folder.path())).unwrap();
    let producer = journal.producer();
    let mut written = 0;
    while !is_full(&journal) {
        written += usize::from(producer.offer(new_record(&numbered(written))).is_ok());
    }
    let _ = journal.close(std::time::Duration::ZERO);
    until("the folder is free", || Journal::open(bounded(folder.path())).is_ok());
    let (journal, _) = Journal::open(bounded(folder.path())).unwrap();
    // A chunk and the headers of two segments may fit.
    let producer = journal.producer();
    for _ in 0..20 {
        let _ = producer.offer(new_record(&numbered(0)));
    }
    until("the bound is reached again", || is_full(&journal));
    let mut reader = JournalReader::open(folder.path(), &ReadFrom::Beginning, AtEnd::Follow).unwrap();
    while reader.read().unwrap().is_some() {}
    journal.release(&reader.position());
    assert!(journal.flush(Ack::Written, LONG).unwrap());
}

#[test]
fn disk_bound_of_less_than_four_segments_is_rejected() {
    let folder = TempDir::new().unwrap();
    let mut config = bounded(folder.path());
    config.segment_policy = SegmentPolicy::UntilReleased { disk_bytes_max: 4 * SEGMENT_BYTES - 1 };
    let error = Journal::open(config).unwrap_err();
    assert!(matches!(&error, OpenError::Config(reason) if reason.contains("disk_bytes_max")), "{error}");
}

/// A position of another journal releases nothing.
#[test]
fn release_of_a_foreign_position_removes_nothing() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(bounded(folder.path())).unwrap();
    let producer = journal.producer();
    append(&producer, 100);
    let foreign: ReaderPosition = "other/0:99+0,journal/7:99+0".parse().unwrap();
    journal.release(&foreign);
    assert!(journal.flush(Ack::Durable, LONG).unwrap());
    journal.release(&ReaderPosition::default());
    assert!(journal.close(LONG).is_complete());
    assert_eq!(payloads(folder.path()).len(), 100);
}

/// A following reader needs no timer: the watch completes once per write, also for records before the first call.
#[test]
fn watch_completes_when_records_are_written() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(bounded(folder.path())).unwrap();
    let mut watch = journal.watch();
    let mut context = Context::from_waker(Waker::noop());
    assert!(pin!(watch.written()).poll(&mut context).is_pending());
    let mut reader = JournalReader::open(folder.path(), &ReadFrom::Beginning, AtEnd::Follow).unwrap();
    let producer = journal.producer();
    let mut next = 0;
    for _ in 0..50 {
        producer.append_blocking(new_record(&numbered(next))).unwrap();
        block_on(watch.written());
        read(&mut reader, &mut next, 1);
    }
    assert!(pin!(watch.written()).poll(&mut context).is_pending(), "everything was seen");
    producer.commit_blocking(new_record(&numbered(next)).ack(Ack::Written)).unwrap();
    block_on(watch.written());
}

/// A sync of an earlier segment fails: the last record is durable, but not all records up to it.
#[test]
fn wait_through_reports_an_earlier_loss() {
    let folder = TempDir::new().unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let is_failing = Arc::clone(&fails);
    let disk = FaultyDisk::new(move |call| match call {
        StorageCall::Sync if is_failing.swap(false, SeqCst) => Answer::Fail(0, io::Error::other("sync")),
        _ => Answer::Do,
    });
    let (journal, _) = Journal::open_with(bounded(folder.path()), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    let first = producer.append_blocking(new_record(b"first")).unwrap();
    assert_eq!(block_on(producer.wait_through(first, Ack::Durable)), Ok(()));
    // Written and not synced, in a segment whose sync fails.
    producer.commit_blocking(new_record(b"second").ack(Ack::Written)).unwrap();
    fails.store(true, SeqCst);
    let third = producer.append_blocking(new_record(b"third")).unwrap();
    assert_eq!(block_on(producer.wait(third, Ack::Durable)), Ok(()), "it was written again");
    assert_eq!(block_on(producer.wait_through(third, Ack::Durable)), Err(RecordLost));
    assert_eq!(block_on(producer.wait_through(first, Ack::Durable)), Ok(()), "before the loss");
}
