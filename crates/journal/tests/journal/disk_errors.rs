//! Disks that fail.

use std::{
    fs, io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use tempfile::TempDir;
use tidegate_journal::{Ack, CommitError, Disk, Event, Journal, Lost, OpenError, State, verify};

use crate::{
    LONG,
    checker::{Promises, name},
    faults::{Answer, Call, Deed, Faulty},
    note, payloads, seed, segments, small, until,
};

fn eio() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())
}

/// A journal on a disk, and what it told.
fn open(folder: &TempDir, disk: &Faulty) -> (Journal, Arc<Mutex<Vec<Event>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&told);
    let listener = move |event: &Event| hears.lock().unwrap().push(event.clone());
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), listener).unwrap();
    (journal, told)
}

/// Commits so many records, and checks that all are there.
fn commits(journal: Journal, folder: &TempDir, records: usize, ack: Ack) {
    let (producer, mut promises) = (journal.producer(), Promises::default());
    for number in 0..records {
        let record = name(0, number);
        promises.offer(&record);
        producer.commit_blocking(note(record.as_bytes()).ack(ack)).unwrap();
        promises.tell(&record, ack);
    }
    assert!(journal.close(LONG).is_complete());
    promises.check(&payloads(folder.path()), Ack::Written).unwrap();
    assert!(verify(folder.path()).unwrap().is_whole());
}

#[test]
fn jo_11_a_failed_write_poisons_the_segment_and_loses_nothing() {
    let folder = TempDir::new().unwrap();
    let mut writes = 0;
    let disk = Faulty::new(move |call| match call {
        Call::Write(bytes) => {
            writes += 1;
            if writes % 5 == 4 { Answer::Fail(bytes / 2, eio()) } else { Answer::Do }
        }
        _ => Answer::Do,
    });
    let (journal, told) = open(&folder, &disk);
    let stats = |journal: &Journal| journal.stats().poisoned;
    let producer = journal.producer();
    producer.commit_blocking(note(b"9:0").ack(Ack::Written)).unwrap();
    until("a write fails", || {
        producer.commit_blocking(note(format!("9:{}", 1 + stats(&journal)).as_bytes()).ack(Ack::Written)).unwrap();
        stats(&journal) > 0
    });
    assert!(matches!(told.lock().unwrap()[0], Event::Poisoned { .. }), "{told:?}");
    assert_eq!(journal.stats().state, State::Healthy, "a fresh segment takes the records");
    drop((journal, producer));
    let folder = TempDir::new().unwrap();
    let (journal, _) = open(&folder, &disk);
    commits(journal, &folder, 50, Ack::Written);
    assert!(segments(folder.path()).len() > 5, "each failure began a fresh segment");
}

#[test]
fn jo_12_a_failed_sync_is_not_tried_again_on_the_same_file() {
    let folder = TempDir::new().unwrap();
    let fails = Arc::new(AtomicBool::new(true));
    let failing = Arc::clone(&fails);
    let disk = Faulty::new(move |call| match call {
        Call::Sync if failing.swap(false, SeqCst) => Answer::Fail(0, eio()),
        _ => Answer::Do,
    });
    let (journal, told) = open(&folder, &disk);
    journal.producer().commit_blocking(note(b"a").ack(Ack::Durable)).unwrap();
    assert!(matches!(told.lock().unwrap()[0], Event::Poisoned { .. }));
    assert_eq!(journal.stats().poisoned, 1);
    journal.close(LONG);
    let files = segments(folder.path());
    assert!(
        files.len() == 1 && files[0].ends_with("journal-00-0000000002.tgj"),
        "it went to a fresh segment: {files:?}"
    );
    assert_eq!(payloads(folder.path()), [b"a"], "and is read once");
}

/// A disk whose next sync fails in this way, once told to.
fn fails_to_sync(error: fn() -> io::Error) -> (Faulty, Arc<AtomicBool>) {
    let fails = Arc::new(AtomicBool::new(false));
    let failing = Arc::clone(&fails);
    let disk = Faulty::new(move |call| match call {
        Call::Sync if failing.swap(false, SeqCst) => Answer::Fail(0, error()),
        _ => Answer::Do,
    });
    (disk, fails)
}

#[test]
fn jo_12_what_no_sync_has_reached_when_a_segment_is_given_up_is_never_durable() {
    let folder = TempDir::new().unwrap();
    let (disk, fails) = fails_to_sync(eio);
    let (journal, _) = open(&folder, &disk);
    let producer = journal.producer();
    let wait = |ticket, ack| crate::block_on(producer.wait(ticket, ack));
    let safe = producer.commit_blocking(note(b"safe").ack(Ack::Durable)).unwrap();
    let written = producer.commit_blocking(note(b"written").ack(Ack::Written)).unwrap();
    // There is nothing to be stored again but what is in the file that is given up.
    fails.store(true, SeqCst);
    assert_eq!(wait(written, Ack::Durable), Err(Lost));
    assert_eq!(journal.flush(Ack::Durable, LONG), Err(Lost));
    // Nor does a later sync make it so, nor one that fails under a record that is stored again.
    producer.commit_blocking(note(b"more").ack(Ack::Written)).unwrap();
    assert_eq!(journal.flush(Ack::Durable, LONG), Ok(true));
    let other = producer.commit_blocking(note(b"other").ack(Ack::Written)).unwrap();
    fails.store(true, SeqCst);
    let last = producer.commit_blocking(note(b"last").ack(Ack::Durable)).unwrap();
    for (ticket, outcome) in [(safe, Ok(())), (written, Err(Lost)), (other, Err(Lost)), (last, Ok(()))] {
        assert_eq!(wait(ticket, Ack::Durable), outcome, "{ticket:?}");
        assert_eq!(wait(ticket, Ack::Written), Ok(()), "{ticket:?}");
    }
    assert_eq!(journal.flush(Ack::Durable, LONG), Err(Lost), "whoever waits for all is told of each loss");
    assert_eq!(journal.flush(Ack::Durable, LONG), Ok(true), "once");
    assert_eq!(journal.stats().poisoned, 2);
    assert!(journal.close(LONG).is_complete());
    assert_eq!(payloads(folder.path()), [&b"safe"[..], b"written", b"more", b"other", b"last"]);
}

/// As on a network disk, or one that finds room only when it has to.
#[test]
fn jo_12_a_sync_that_finds_no_room_is_not_tried_again_on_the_same_file_either() {
    for errno in [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT] {
        let folder = TempDir::new().unwrap();
        let fails = Arc::new(AtomicBool::new(true));
        let disk = Faulty::new(move |call| match call {
            Call::Sync if fails.swap(false, SeqCst) => Answer::Fail(0, errno.into()),
            _ => Answer::Do,
        });
        let (journal, told) = open(&folder, &disk);
        journal.producer().commit_blocking(note(b"a").ack(Ack::Durable)).unwrap();
        assert_eq!(journal.stats().poisoned, 1, "{errno}: {told:?}");
        journal.close(LONG);
        assert_eq!(payloads(folder.path()), [b"a"]);
    }
}

/// Lines have no numbers by which a reader knows what it has seen.
#[test]
fn jo_12_lines_that_are_stored_again_stand_in_one_file_only() {
    for fails_at in [Call::Sync, Call::Write(0)] {
        let folder = TempDir::new().unwrap();
        let fails = Arc::new(AtomicBool::new(false));
        let (failing, mut writes) = (Arc::clone(&fails), 0);
        let disk = Faulty::new(move |call| match (call, fails_at) {
            (Call::Sync, Call::Sync) if failing.swap(false, SeqCst) => Answer::Fail(0, eio()),
            (Call::Write(_), Call::Write(_)) if failing.load(SeqCst) => {
                writes += 1;
                // The first chunk of the batch is there, of the second a part.
                if writes == 2 { Answer::Fail(10, eio()) } else { Answer::Do }
            }
            _ => Answer::Do,
        });
        let config = tidegate_journal::Config { format: tidegate_journal::Format::Json, ..small(folder.path()) };
        let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
        let expected = store_lines_while_it_fails(&journal, &disk, &fails, 1000);
        assert_eq!(journal.stats().poisoned, 1);
        assert!(journal.close(LONG).is_complete());
        let found: Vec<String> =
            payloads(folder.path()).into_iter().map(|record| String::from_utf8(record).unwrap()).collect();
        assert_eq!(found, expected);
    }
}

/// Has lines of that width stored in one batch, behind a write that hangs, while the disk fails; they become durable all the
/// same. All lines of the journal, in order.
fn store_lines_while_it_fails(journal: &Journal, disk: &Faulty, fails: &AtomicBool, width: usize) -> Vec<String> {
    let producer = journal.producer();
    producer.commit_blocking(note(b"\"before\"").ack(Ack::Durable)).unwrap();
    disk.stall();
    producer.offer(note(b"\"hangs\"").ack(Ack::Written)).unwrap();
    disk.wait_for_stall();
    let records: Vec<String> = (0..20).map(|number| format!("\"{number:>width$}\"")).collect();
    for record in &records {
        producer.offer(note(record.as_bytes())).unwrap();
    }
    let last = producer.offer(note(b"\"last\"").ack(Ack::Durable)).unwrap();
    fails.store(true, SeqCst);
    disk.go();
    assert_eq!(crate::block_on(producer.wait(last, Ack::Durable)), Ok(()));
    [&["\"before\"".to_owned(), "\"hangs\"".to_owned()], &records[..], &["\"last\"".to_owned()]].concat()
}

/// A batch that went to two files, of which the first cannot be synced, is stored again whole.
#[test]
fn jo_12_lines_of_a_file_that_ended_in_their_batch_stand_in_one_file_only() {
    let folder = TempDir::new().unwrap();
    let (disk, fails) = fails_to_sync(eio);
    let config = tidegate_journal::Config {
        format: tidegate_journal::Format::Json,
        bytes_max: 128 << 10,
        segment_bytes: 32 << 10,
        ..small(folder.path())
    };
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    let expected = store_lines_while_it_fails(&journal, &disk, &fails, 2000);
    assert_eq!((fails.load(SeqCst), journal.stats().poisoned), (false, 1));
    assert!(journal.close(LONG).is_complete());
    let found: Vec<String> =
        payloads(folder.path()).into_iter().map(|record| String::from_utf8(record).unwrap()).collect();
    assert_eq!(found, expected);
}

/// Or those that fail would fill the folder, and retention let whole ones go for them.
#[test]
fn jo_12_segments_in_which_nothing_is_but_what_is_stored_again_do_not_stay() {
    let folder = TempDir::new().unwrap();
    let failures = Arc::new(AtomicUsize::new(0));
    let failed = Arc::clone(&failures);
    let disk = Faulty::new(move |call| match call {
        Call::Write(_) | Call::Sync if failed.load(SeqCst) > 0 => {
            failed.fetch_sub(1, SeqCst);
            Answer::Fail(0, eio())
        }
        _ => Answer::Do,
    });
    let (journal, _) = open(&folder, &disk);
    let producer = journal.producer();
    producer.commit_blocking(note(b"whole").ack(Ack::Durable)).unwrap();
    failures.store(5, SeqCst);
    producer.commit_blocking(note(b"again").ack(Ack::Durable)).unwrap();
    journal.close(LONG);
    assert_eq!(payloads(folder.path()), [&b"whole"[..], b"again"]);
    assert_eq!(segments(folder.path()).len(), 2, "the one that is whole, and the one that took the record in the end");
}

#[test]
fn a_listener_that_panics_does_not_end_the_writer() {
    let folder = TempDir::new().unwrap();
    let (disk, fails) = fails_to_sync(eio);
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| panic!("cannot tell")).unwrap();
    fails.store(true, SeqCst);
    for _ in 0..2 {
        journal.producer().commit_blocking(note(b"a").ack(Ack::Durable)).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
}

#[test]
fn jo_12_syncs_that_fail_at_random_lose_nothing_durable() {
    let mut random = fastrand::Rng::with_seed(seed());
    let folder = TempDir::new().unwrap();
    let disk = Faulty::new(move |call| match call {
        Call::Sync if random.u8(..4) == 0 => Answer::Fail(0, eio()),
        Call::Write(bytes) if random.u8(..16) == 0 => Answer::Fail(random.usize(..=bytes), eio()),
        _ => Answer::Do,
    });
    let (journal, _) = open(&folder, &disk);
    commits(journal, &folder, 100, Ack::Durable);
}

#[test]
fn jo_13_short_writes_and_interruptions_are_nothing_special() {
    let mut random = fastrand::Rng::with_seed(seed());
    let folder = TempDir::new().unwrap();
    let disk = Faulty::new(move |call| match call {
        Call::Write(bytes) => match random.u8(..4) {
            0 => Answer::Short(random.usize(1..=bytes)),
            1 => Answer::Fail(0, io::ErrorKind::Interrupted.into()),
            2 => Answer::Fail(0, io::ErrorKind::WouldBlock.into()),
            _ => Answer::Do,
        },
        _ => Answer::Do,
    });
    let (journal, told) = open(&folder, &disk);
    commits(journal, &folder, 50, Ack::Written);
    assert!(told.lock().unwrap().is_empty(), "{told:?}");
    assert_eq!(segments(folder.path()).len(), 1);
}

#[test]
fn jo_14_a_folder_that_cannot_be_made_is_refused_with_its_name() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Journal::open(small(&file.join("journal"))).unwrap_err();
    assert!(matches!(&error, OpenError::Io { path, .. } if path.ends_with("journal")), "{error}");
    assert!(error.to_string().contains("file/journal"), "{error}");
}

#[test]
fn jo_14_a_folder_that_goes_at_run_time_is_waited_for() {
    for error in [rustix::io::Errno::ROFS, rustix::io::Errno::ACCESS] {
        let folder = TempDir::new().unwrap();
        let gone = Arc::new(AtomicBool::new(true));
        let is_gone = Arc::clone(&gone);
        let disk = Faulty::new(move |call| match call {
            Call::Create if is_gone.load(SeqCst) => Answer::Fail(0, error.into()),
            _ => Answer::Do,
        });
        comes_back(&folder, &disk, || gone.store(false, SeqCst));
    }
}

#[test]
fn jo_14_a_folder_that_is_removed_or_replaced_at_run_time_is_taken_anew() {
    let outer = TempDir::new().unwrap();
    let path = outer.path().join("journal");
    let told = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&told);
    let listener = move |event: &Event| hears.lock().unwrap().push(event.clone());
    let (journal, _) = Journal::open_with(small(&path), Arc::new(Disk), listener).unwrap();
    let producer = journal.producer();
    let commit = |text: &str| producer.commit_blocking(note(text.as_bytes()).ack(Ack::Durable)).unwrap();
    let has = |text: &str| payloads(&path).contains(&text.as_bytes().to_vec());
    // Before there is a segment.
    fs::remove_dir_all(&path).unwrap();
    commit("first");
    assert!(has("first"));
    // While one is open: noticed within a second of writing, as a log rotation is.
    fs::remove_dir_all(&path).unwrap();
    until("it is noticed", || {
        commit("second");
        path.exists()
    });
    assert!(has("second"));
    fs::rename(&path, outer.path().join("aside")).unwrap();
    fs::create_dir(&path).unwrap();
    until("it is noticed", || {
        commit("third");
        !segments(&path).is_empty()
    });
    assert!(has("third"));
    assert_eq!(journal.stats().state, State::Healthy);
    assert!(journal.stats().last_error.is_some());
    assert!(matches!(Journal::open(small(&path)), Err(OpenError::Owned(_))), "it is this one's as before");
    assert!(journal.close(LONG).is_complete());
    let mut told = told.lock().unwrap();
    // Upkeep may find no folder in between.
    told.retain(|event| !matches!(event, Event::Upkeep { .. }));
    let is_anew = |event: &Event| matches!(event, Event::Anew { error } if error.contains("removed or replaced"));
    assert!(told.len() == 3 && told.iter().all(is_anew), "{told:?}");
    assert!(verify(&path).unwrap().damage.is_empty());
}

/// Whoever took the folder meanwhile is not written over.
#[test]
fn jo_36_a_folder_that_somebody_else_has_taken_meanwhile_is_waited_for() {
    let outer = TempDir::new().unwrap();
    let path = outer.path().join("journal");
    let (journal, _) = Journal::open_with(small(&path), Arc::new(Disk), |_| ()).unwrap();
    fs::remove_dir_all(&path).unwrap();
    let (other, _) = Journal::open(small(&path)).unwrap();
    other.producer().commit_blocking(note(b"other").ack(Ack::Written)).unwrap();
    journal.producer().append_blocking(note(b"own")).unwrap();
    until("it fails", || matches!(journal.stats().state, State::Failing { .. }));
    assert!(journal.stats().last_error.is_some_and(|error| error.contains("another journal owns the folder")));
    assert_eq!(payloads(&path), [b"other"]);
    drop(other);
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    assert_eq!((journal.stats().state, segments(&path).len()), (State::Healthy, 2));
}

/// Records that come while the disk takes nothing are there when it does again.
fn comes_back(folder: &TempDir, disk: &Faulty, back: impl FnOnce()) {
    let (journal, told) = open(folder, disk);
    let producer = journal.producer();
    producer.append_blocking(note(b"a")).unwrap();
    until("the journal fails", || matches!(journal.stats().state, State::Failing { .. }));
    assert!(journal.stats().last_error.is_some());
    producer.append_blocking(note(b"b")).unwrap();
    back();
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    assert_eq!(journal.stats().state, State::Healthy);
    assert!(matches!(&told.lock().unwrap()[..], [Event::Trouble(_), Event::Recovered]), "{told:?}");
    drop(journal);
    assert_eq!(payloads(folder.path()), [b"a", b"b"]);
}

#[test]
fn jo_16_no_file_handle_for_the_next_segment_is_waited_for() {
    let folder = TempDir::new().unwrap();
    let (creates, spare) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (count, is_spare) = (Arc::clone(&creates), Arc::clone(&spare));
    let disk = Faulty::new(move |call| match call {
        Call::Create if count.fetch_add(1, SeqCst) > 0 && !is_spare.load(SeqCst) => {
            Answer::Fail(0, rustix::io::Errno::MFILE.into())
        }
        _ => Answer::Do,
    });
    let (journal, _) = open(&folder, &disk);
    let producer = journal.producer();
    producer.commit_blocking(note(b"a").ack(Ack::Written)).unwrap();
    journal.reopen();
    producer.append_blocking(note(b"b")).unwrap();
    until("the rotation fails", || matches!(journal.stats().state, State::Failing { .. }));
    spare.store(true, SeqCst);
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    drop(journal);
    assert_eq!(payloads(folder.path()), [b"a", b"b"]);
}

#[test]
fn jo_28_durable_is_never_said_before_the_sync_returned() {
    let folder = TempDir::new().unwrap();
    let disk = Faulty::remembering();
    let (journal, _) = open(&folder, &disk);
    std::thread::scope(|scope| {
        for producer in 0..4 {
            let (disk, journal) = (&disk, &journal);
            scope.spawn(move || {
                let handle = journal.producer();
                for number in 0..50 {
                    let record = name(producer, number);
                    handle.commit_blocking(note(record.as_bytes()).ack(Ack::Durable)).unwrap();
                    disk.note(Deed::Told(record, Ack::Durable));
                }
            });
        }
    });
    drop(journal);
    let mut written: Vec<u8> = Vec::new();
    let (mut synced, mut named) = (0, false);
    for deed in disk.deeds() {
        match deed {
            Deed::Write(_, _, bytes) => written.extend(bytes),
            Deed::Sync(_) => synced = written.len(),
            Deed::SyncFolder => named = true,
            Deed::Told(record, _) => {
                let safe = &written[..synced];
                let payload = record.as_bytes();
                assert!(named && safe.windows(payload.len()).any(|bytes| bytes == payload), "{record} was not synced");
            }
            _ => {}
        }
    }
}

/// A file that was never synced while it was open, and that a log rotation has ended: its name is to be safe as well.
#[test]
fn jo_28_a_segment_that_has_ended_is_not_durable_before_its_folder_is() {
    let folder = TempDir::new().unwrap();
    let disk = Faulty::remembering();
    let (journal, _) = open(&folder, &disk);
    journal.producer().commit_blocking(note(b"a").ack(Ack::Written)).unwrap();
    journal.reopen();
    assert_eq!(journal.flush(Ack::Durable, LONG), Ok(true));
    let deeds = disk.deeds();
    let synced = deeds.iter().position(|deed| matches!(deed, Deed::Sync(_)));
    let named = deeds.iter().position(|deed| *deed == Deed::SyncFolder);
    assert!(synced.is_some() && named > synced, "{deeds:?}");
}

#[test]
fn jo_29_records_that_never_reach_the_disk_fail_once_each() {
    let folder = TempDir::new().unwrap();
    let disk = Faulty::new(|call| if call == Call::Create { Answer::Fail(0, eio()) } else { Answer::Do });
    let (journal, _) = open(&folder, &disk);
    let producer = journal.producer();
    let failed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (producer, failed) = (producer.clone(), &failed);
            let ack = if number % 2 == 0 { Ack::Written } else { Ack::Durable };
            scope.spawn(move || {
                let error = producer.commit_blocking(note(b"lost").ack(ack)).unwrap_err();
                assert_eq!(error, CommitError::Lost(Lost));
                failed.fetch_add(1, SeqCst);
            });
        }
        until("all are in", || journal.stats().numbered == 8);
        let report = journal.close(std::time::Duration::from_millis(50));
        assert_eq!((report.numbered, report.written, report.unwritten), (8, 0, 8));
    });
    assert_eq!(failed.into_inner(), 8);
}
