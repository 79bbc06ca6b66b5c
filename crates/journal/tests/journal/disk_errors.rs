//! Disk errors.

use std::{
    fs, io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use tempfile::TempDir;
use tidegate_journal::{
    Ack, CommitError, FileStorage, Journal, JournalEvent, JournalState, OpenError, RecordLost, verify,
};

use crate::{
    LONG,
    checker::{DurabilityChecker, name},
    faults::{Answer, DiskOp, FaultyDisk, StorageCall},
    new_record, payloads, seed, segments, small, until,
};

fn eio() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())
}

/// Opens a journal on a disk, and collects its events.
fn open(folder: &TempDir, disk: &FaultyDisk) -> (Journal, Arc<Mutex<Vec<JournalEvent>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&events);
    let listener = move |event: &JournalEvent| sink.lock().unwrap().push(event.clone());
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), listener).unwrap();
    (journal, events)
}

/// Commits records, and checks that all are read.
fn check_commits(journal: Journal, folder: &TempDir, records: usize, ack: Ack) {
    let (producer, mut checker) = (journal.producer(), DurabilityChecker::default());
    for number in 0..records {
        let record = name(0, number);
        checker.offer(&record);
        producer.commit_blocking(new_record(record.as_bytes()).ack(ack)).unwrap();
        checker.acked(&record, ack);
    }
    assert!(journal.close(LONG).is_complete());
    checker.check(&payloads(folder.path()), Ack::Written).unwrap();
    assert!(verify(folder.path()).unwrap().is_intact());
}

/// JO-11: failed write abandons the segment.
#[test]
fn failed_write_abandons_the_segment() {
    let folder = TempDir::new().unwrap();
    let mut writes = 0;
    let disk = FaultyDisk::new(move |call| match call {
        StorageCall::Write(bytes) => {
            writes += 1;
            if writes % 5 == 4 { Answer::Fail(bytes / 2, eio()) } else { Answer::Do }
        }
        _ => Answer::Do,
    });
    let (journal, events) = open(&folder, &disk);
    let stats = |journal: &Journal| journal.stats().segments_abandoned;
    let producer = journal.producer();
    producer.commit_blocking(new_record(b"9:0").ack(Ack::Written)).unwrap();
    until("a write fails", || {
        producer
            .commit_blocking(new_record(format!("9:{}", 1 + stats(&journal)).as_bytes()).ack(Ack::Written))
            .unwrap();
        stats(&journal) > 0
    });
    assert!(matches!(events.lock().unwrap()[0], JournalEvent::SegmentAbandoned { .. }), "{events:?}");
    assert_eq!(journal.stats().state, JournalState::Healthy, "a new segment has the records");
    drop((journal, producer));
    let folder = TempDir::new().unwrap();
    let (journal, _) = open(&folder, &disk);
    check_commits(journal, &folder, 50, Ack::Written);
    assert!(segments(folder.path()).len() > 5, "each failure started a new segment");
}

/// JO-12: failed sync is not retried on the file.
#[test]
fn failed_sync_is_not_retried_on_the_file() {
    let folder = TempDir::new().unwrap();
    let fails = Arc::new(AtomicBool::new(true));
    let failing = Arc::clone(&fails);
    let disk = FaultyDisk::new(move |call| match call {
        StorageCall::Sync if failing.swap(false, SeqCst) => Answer::Fail(0, eio()),
        _ => Answer::Do,
    });
    let (journal, events) = open(&folder, &disk);
    journal.producer().commit_blocking(new_record(b"a").ack(Ack::Durable)).unwrap();
    assert!(matches!(events.lock().unwrap()[0], JournalEvent::SegmentAbandoned { .. }));
    assert_eq!(journal.stats().segments_abandoned, 1);
    journal.close(LONG);
    let files = segments(folder.path());
    assert!(
        files.len() == 1 && files[0].ends_with("journal-00-0000000002.tgj"),
        "the record went to a new segment: {files:?}"
    );
    assert_eq!(payloads(folder.path()), [b"a"], "the record is read once");
}

/// A disk whose next sync fails with this error once the flag is set.
fn disk_with_failing_sync(error: fn() -> io::Error) -> (FaultyDisk, Arc<AtomicBool>) {
    let fails = Arc::new(AtomicBool::new(false));
    let failing = Arc::clone(&fails);
    let disk = FaultyDisk::new(move |call| match call {
        StorageCall::Sync if failing.swap(false, SeqCst) => Answer::Fail(0, error()),
        _ => Answer::Do,
    });
    (disk, fails)
}

/// JO-12: unsynced records of a segment are not durable.
#[test]
fn unsynced_records_of_a_segment_are_not_durable() {
    let folder = TempDir::new().unwrap();
    let (disk, fails) = disk_with_failing_sync(eio);
    let (journal, _) = open(&folder, &disk);
    let producer = journal.producer();
    let wait = |ticket, ack| crate::block_on(producer.wait(ticket, ack));
    let safe = producer.commit_blocking(new_record(b"safe").ack(Ack::Durable)).unwrap();
    let written = producer.commit_blocking(new_record(b"written").ack(Ack::Written)).unwrap();
    // No record is rewritten: the batch has only records in the abandoned file.
    fails.store(true, SeqCst);
    assert_eq!(wait(written, Ack::Durable), Err(RecordLost));
    assert_eq!(journal.flush(Ack::Durable, LONG), Err(RecordLost));
    // A later sync does not make it durable, nor does a failed sync under a record that is written again.
    producer.commit_blocking(new_record(b"more").ack(Ack::Written)).unwrap();
    assert_eq!(journal.flush(Ack::Durable, LONG), Ok(true));
    let other = producer.commit_blocking(new_record(b"other").ack(Ack::Written)).unwrap();
    fails.store(true, SeqCst);
    let last = producer.commit_blocking(new_record(b"last").ack(Ack::Durable)).unwrap();
    for (ticket, outcome) in [(safe, Ok(())), (written, Err(RecordLost)), (other, Err(RecordLost)), (last, Ok(()))] {
        assert_eq!(wait(ticket, Ack::Durable), outcome, "{ticket:?}");
        assert_eq!(wait(ticket, Ack::Written), Ok(()), "{ticket:?}");
    }
    assert_eq!(journal.flush(Ack::Durable, LONG), Err(RecordLost), "flush reports each loss");
    assert_eq!(journal.flush(Ack::Durable, LONG), Ok(true), "once");
    assert_eq!(journal.stats().segments_abandoned, 2);
    assert!(journal.close(LONG).is_complete());
    assert_eq!(payloads(folder.path()), [&b"safe"[..], b"written", b"more", b"other", b"last"]);
}

/// JO-12: a sync that fails with a full disk is not retried on the same file, as on a network file system with delayed
/// allocation.
#[test]
fn sync_without_room_is_not_retried_on_the_file() {
    for errno in [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT] {
        let folder = TempDir::new().unwrap();
        let fails = Arc::new(AtomicBool::new(true));
        let disk = FaultyDisk::new(move |call| match call {
            StorageCall::Sync if fails.swap(false, SeqCst) => Answer::Fail(0, errno.into()),
            _ => Answer::Do,
        });
        let (journal, events) = open(&folder, &disk);
        journal.producer().commit_blocking(new_record(b"a").ack(Ack::Durable)).unwrap();
        assert_eq!(journal.stats().segments_abandoned, 1, "{errno}: {events:?}");
        journal.close(LONG);
        assert_eq!(payloads(folder.path()), [b"a"]);
    }
}

/// JO-12: lines that are written again are in one file only, since lines have no sequence numbers by which a reader skips
/// them.
#[test]
fn rewritten_lines_are_in_one_file_only() {
    for fails_at in [StorageCall::Sync, StorageCall::Write(0)] {
        let folder = TempDir::new().unwrap();
        let fails = Arc::new(AtomicBool::new(false));
        let (failing, mut writes) = (Arc::clone(&fails), 0);
        let disk = FaultyDisk::new(move |call| match (call, fails_at) {
            (StorageCall::Sync, StorageCall::Sync) if failing.swap(false, SeqCst) => Answer::Fail(0, eio()),
            (StorageCall::Write(_), StorageCall::Write(_)) if failing.load(SeqCst) => {
                writes += 1;
                // The first chunk of the batch is written, and a part of the second.
                if writes == 2 { Answer::Fail(10, eio()) } else { Answer::Do }
            }
            _ => Answer::Do,
        });
        let config =
            tidegate_journal::JournalConfig { format: tidegate_journal::SegmentFormat::Json, ..small(folder.path()) };
        let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
        let expected = write_lines_while_disk_fails(&journal, &disk, &fails, 1000);
        assert_eq!(journal.stats().segments_abandoned, 1);
        assert!(journal.close(LONG).is_complete());
        let found: Vec<String> =
            payloads(folder.path()).into_iter().map(|record| String::from_utf8(record).unwrap()).collect();
        assert_eq!(found, expected);
    }
}

/// Writes lines of a width in one batch, behind a hanging write, while the disk fails. They become durable. Returns all
/// lines of the journal, in order.
fn write_lines_while_disk_fails(journal: &Journal, disk: &FaultyDisk, fails: &AtomicBool, width: usize) -> Vec<String> {
    let producer = journal.producer();
    producer.commit_blocking(new_record(b"\"before\"").ack(Ack::Durable)).unwrap();
    disk.stall();
    producer.offer(new_record(b"\"hangs\"").ack(Ack::Written)).unwrap();
    disk.wait_for_stall();
    let records: Vec<String> = (0..20).map(|number| format!("\"{number:>width$}\"")).collect();
    for record in &records {
        producer.offer(new_record(record.as_bytes())).unwrap();
    }
    let last = producer.offer(new_record(b"\"last\"").ack(Ack::Durable)).unwrap();
    fails.store(true, SeqCst);
    disk.resume();
    assert_eq!(crate::block_on(producer.wait(last, Ack::Durable)), Ok(()));
    [&["\"before\"".to_owned(), "\"hangs\"".to_owned()], &records[..], &["\"last\"".to_owned()]].concat()
}

/// JO-12: a batch of lines that went to two files, of which the first cannot be synced, is written again whole.
#[test]
fn lines_of_an_ended_file_are_in_one_file_only() {
    let folder = TempDir::new().unwrap();
    let (disk, fails) = disk_with_failing_sync(eio);
    let config = tidegate_journal::JournalConfig {
        format: tidegate_journal::SegmentFormat::Json,
        bytes_max: 128 << 10,
        segment_bytes: 32 << 10,
        ..small(folder.path())
    };
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    let expected = write_lines_while_disk_fails(&journal, &disk, &fails, 2000);
    assert_eq!((fails.load(SeqCst), journal.stats().segments_abandoned), (false, 1));
    assert!(journal.close(LONG).is_complete());
    let found: Vec<String> =
        payloads(folder.path()).into_iter().map(|record| String::from_utf8(record).unwrap()).collect();
    assert_eq!(found, expected);
}

/// JO-12: segments that hold only records that are written again are removed. Otherwise they would fill the folder, and
/// retention would remove intact segments.
#[test]
fn segments_of_rewritten_records_are_removed() {
    let folder = TempDir::new().unwrap();
    let failures = Arc::new(AtomicUsize::new(0));
    let failed = Arc::clone(&failures);
    let disk = FaultyDisk::new(move |call| match call {
        StorageCall::Write(_) | StorageCall::Sync if failed.load(SeqCst) > 0 => {
            failed.fetch_sub(1, SeqCst);
            Answer::Fail(0, eio())
        }
        _ => Answer::Do,
    });
    let (journal, _) = open(&folder, &disk);
    let producer = journal.producer();
    producer.commit_blocking(new_record(b"whole").ack(Ack::Durable)).unwrap();
    failures.store(5, SeqCst);
    producer.commit_blocking(new_record(b"again").ack(Ack::Durable)).unwrap();
    journal.close(LONG);
    assert_eq!(payloads(folder.path()), [&b"whole"[..], b"again"]);
    assert_eq!(segments(folder.path()).len(), 2, "the intact segment, and the one with the record");
}

#[test]
fn listener_panic_does_not_end_the_writer() {
    let folder = TempDir::new().unwrap();
    let (disk, fails) = disk_with_failing_sync(eio);
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| panic!("listener panic")).unwrap();
    fails.store(true, SeqCst);
    for _ in 0..2 {
        journal.producer().commit_blocking(new_record(b"a").ack(Ack::Durable)).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
}

/// JO-12: random sync failures lose nothing durable.
#[test]
fn random_sync_failures_lose_nothing_durable() {
    let mut random = fastrand::Rng::with_seed(seed());
    let folder = TempDir::new().unwrap();
    let disk = FaultyDisk::new(move |call| match call {
        StorageCall::Sync if random.u8(..4) == 0 => Answer::Fail(0, eio()),
        StorageCall::Write(bytes) if random.u8(..16) == 0 => Answer::Fail(random.usize(..=bytes), eio()),
        _ => Answer::Do,
    });
    let (journal, _) = open(&folder, &disk);
    check_commits(journal, &folder, 100, Ack::Durable);
}

/// JO-13: short writes and interrupts are retried.
#[test]
fn short_writes_and_interrupts_are_retried() {
    let mut random = fastrand::Rng::with_seed(seed());
    let folder = TempDir::new().unwrap();
    let disk = FaultyDisk::new(move |call| match call {
        StorageCall::Write(bytes) => match random.u8(..4) {
            0 => Answer::Incomplete(random.usize(1..=bytes)),
            1 => Answer::Fail(0, io::ErrorKind::Interrupted.into()),
            2 => Answer::Fail(0, io::ErrorKind::WouldBlock.into()),
            _ => Answer::Do,
        },
        _ => Answer::Do,
    });
    let (journal, events) = open(&folder, &disk);
    check_commits(journal, &folder, 50, Ack::Written);
    assert!(events.lock().unwrap().is_empty(), "{events:?}");
    assert_eq!(segments(folder.path()).len(), 1);
}

/// JO-14: folder that cannot be created is an error.
#[test]
fn folder_that_cannot_be_created_is_an_error() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Journal::open(small(&file.join("journal"))).unwrap_err();
    assert!(matches!(&error, OpenError::Io { path, .. } if path.ends_with("journal")), "{error}");
    assert!(error.to_string().contains("file/journal"), "{error}");
}

/// JO-14: removed folder is waited for.
#[test]
fn removed_folder_is_waited_for() {
    for error in [rustix::io::Errno::ROFS, rustix::io::Errno::ACCESS] {
        let folder = TempDir::new().unwrap();
        let gone = Arc::new(AtomicBool::new(true));
        let is_gone = Arc::clone(&gone);
        let disk = FaultyDisk::new(move |call| match call {
            StorageCall::Create if is_gone.load(SeqCst) => Answer::Fail(0, error.into()),
            _ => Answer::Do,
        });
        check_recovery_after(&folder, &disk, || gone.store(false, SeqCst));
    }
}

/// JO-14: replaced folder is created and locked again.
#[test]
fn replaced_folder_is_created_and_locked_again() {
    let outer = TempDir::new().unwrap();
    let path = outer.path().join("journal");
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&events);
    let listener = move |event: &JournalEvent| sink.lock().unwrap().push(event.clone());
    let (journal, _) = Journal::open_with(small(&path), Arc::new(FileStorage), listener).unwrap();
    let producer = journal.producer();
    let commit = |text: &str| producer.commit_blocking(new_record(text.as_bytes()).ack(Ack::Durable)).unwrap();
    let has = |text: &str| payloads(&path).contains(&text.as_bytes().to_vec());
    // Before there is a segment.
    fs::remove_dir_all(&path).unwrap();
    commit("first");
    assert!(has("first"));
    // While a segment is open: detected within a second of the next write, like a log rotation.
    fs::remove_dir_all(&path).unwrap();
    until("the removal is detected", || {
        commit("second");
        path.exists()
    });
    assert!(has("second"));
    fs::rename(&path, outer.path().join("aside")).unwrap();
    fs::create_dir(&path).unwrap();
    until("the replacement is detected", || {
        commit("third");
        !segments(&path).is_empty()
    });
    assert!(has("third"));
    assert_eq!(journal.stats().state, JournalState::Healthy);
    assert!(journal.stats().last_error.is_some());
    assert!(matches!(Journal::open(small(&path)), Err(OpenError::InUse(_))), "the folder is locked as before");
    assert!(journal.close(LONG).is_complete());
    let mut events = events.lock().unwrap();
    // Maintenance may find no folder in between.
    events.retain(|event| !matches!(event, JournalEvent::MaintenanceFailed { .. }));
    let is_replaced = |event: &JournalEvent| match event {
        JournalEvent::FolderReplaced { error } => error.contains("removed or replaced"),
        _ => false,
    };
    assert!(events.len() == 3 && events.iter().all(is_replaced), "{events:?}");
    assert!(verify(&path).unwrap().damage.is_empty());
}

/// JO-36: a folder that another journal has locked meanwhile is waited for, and not written to.
#[test]
fn folder_owned_by_another_journal_is_waited_for() {
    let outer = TempDir::new().unwrap();
    let path = outer.path().join("journal");
    let (journal, _) = Journal::open_with(small(&path), Arc::new(FileStorage), |_| ()).unwrap();
    fs::remove_dir_all(&path).unwrap();
    let (other, _) = Journal::open(small(&path)).unwrap();
    other.producer().commit_blocking(new_record(b"other").ack(Ack::Written)).unwrap();
    journal.producer().append_blocking(new_record(b"own")).unwrap();
    until("the journal fails", || matches!(journal.stats().state, JournalState::Failing { .. }));
    assert!(journal.stats().last_error.is_some_and(|error| error.contains("another journal owns the folder")));
    assert_eq!(payloads(&path), [b"other"]);
    drop(other);
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    assert_eq!((journal.stats().state, segments(&path).len()), (JournalState::Healthy, 2));
}

/// Records appended while the disk fails are written when it recovers.
fn check_recovery_after(folder: &TempDir, disk: &FaultyDisk, back: impl FnOnce()) {
    let (journal, events) = open(folder, disk);
    let producer = journal.producer();
    producer.append_blocking(new_record(b"a")).unwrap();
    until("the journal fails", || matches!(journal.stats().state, JournalState::Failing { .. }));
    assert!(journal.stats().last_error.is_some());
    producer.append_blocking(new_record(b"b")).unwrap();
    back();
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    assert_eq!(journal.stats().state, JournalState::Healthy);
    assert!(matches!(&events.lock().unwrap()[..], [JournalEvent::Degraded(_), JournalEvent::Recovered]), "{events:?}");
    drop(journal);
    assert_eq!(payloads(folder.path()), [b"a", b"b"]);
}

/// JO-16: missing file handle is waited for.
#[test]
fn missing_file_handle_is_waited_for() {
    let folder = TempDir::new().unwrap();
    let (creates, spare) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (count, is_spare) = (Arc::clone(&creates), Arc::clone(&spare));
    let disk = FaultyDisk::new(move |call| match call {
        StorageCall::Create if count.fetch_add(1, SeqCst) > 0 && !is_spare.load(SeqCst) => {
            Answer::Fail(0, rustix::io::Errno::MFILE.into())
        }
        _ => Answer::Do,
    });
    let (journal, _) = open(&folder, &disk);
    let producer = journal.producer();
    producer.commit_blocking(new_record(b"a").ack(Ack::Written)).unwrap();
    std::fs::rename(&segments(folder.path())[0], folder.path().join("rotated")).unwrap();
    journal.reopen();
    producer.append_blocking(new_record(b"b")).unwrap();
    until("the rotation fails", || matches!(journal.stats().state, JournalState::Failing { .. }));
    spare.store(true, SeqCst);
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    drop(journal);
    assert_eq!(payloads(folder.path()), [b"b"]);
}

/// JO-28: durable only after the sync returned.
#[test]
fn durable_only_after_the_sync_returned() {
    let folder = TempDir::new().unwrap();
    let disk = FaultyDisk::recording();
    let (journal, _) = open(&folder, &disk);
    std::thread::scope(|scope| {
        for producer in 0..4 {
            let (disk, journal) = (&disk, &journal);
            scope.spawn(move || {
                let handle = journal.producer();
                for number in 0..50 {
                    let record = name(producer, number);
                    handle.commit_blocking(new_record(record.as_bytes()).ack(Ack::Durable)).unwrap();
                    disk.record(DiskOp::Acked(record, Ack::Durable));
                }
            });
        }
    });
    drop(journal);
    let mut written: Vec<u8> = Vec::new();
    let (mut synced, mut named) = (0, false);
    for op in disk.ops() {
        match op {
            DiskOp::Write(_, _, bytes) => written.extend(bytes),
            DiskOp::Sync(_) => synced = written.len(),
            DiskOp::SyncFolder => named = true,
            DiskOp::Acked(record, _) => {
                let safe = &written[..synced];
                let payload = record.as_bytes();
                assert!(named && safe.windows(payload.len()).any(|bytes| bytes == payload), "{record} was not synced");
            }
            _ => {}
        }
    }
}

/// JO-28: a segment that was ended by a log rotation and never synced while open is durable only after its folder was
/// synced.
#[test]
fn ended_segment_is_durable_after_folder_sync() {
    let folder = TempDir::new().unwrap();
    let disk = FaultyDisk::recording();
    let (journal, _) = open(&folder, &disk);
    journal.producer().commit_blocking(new_record(b"a").ack(Ack::Written)).unwrap();
    journal.reopen();
    assert_eq!(journal.flush(Ack::Durable, LONG), Ok(true));
    let ops = disk.ops();
    let synced = ops.iter().position(|op| matches!(op, DiskOp::Sync(_)));
    let named = ops.iter().position(|op| *op == DiskOp::SyncFolder);
    assert!(synced.is_some() && named > synced, "{ops:?}");
}

/// JO-29: each unwritable record fails once.
#[test]
fn each_unwritable_record_fails_once() {
    let folder = TempDir::new().unwrap();
    let disk = FaultyDisk::new(|call| if call == StorageCall::Create { Answer::Fail(0, eio()) } else { Answer::Do });
    let (journal, _) = open(&folder, &disk);
    let producer = journal.producer();
    let failed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (producer, failed) = (producer.clone(), &failed);
            let ack = if number % 2 == 0 { Ack::Written } else { Ack::Durable };
            scope.spawn(move || {
                let error = producer.commit_blocking(new_record(b"lost").ack(ack)).unwrap_err();
                assert_eq!(error, CommitError::Lost(RecordLost));
                failed.fetch_add(1, SeqCst);
            });
        }
        until("all records are accepted", || journal.stats().numbered == 8);
        let report = journal.close(std::time::Duration::from_millis(50));
        assert_eq!((report.numbered, report.written, report.unwritten), (8, 0, 8));
    });
    assert_eq!(failed.into_inner(), 8);
}
