//! Retention and compression of ended segments.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::symlink,
    path::Path,
    time::{Duration, SystemTime},
};

use tempfile::TempDir;
use tidegate_journal::{
    Ack, AtEnd, Compression, Journal, JournalConfig, JournalEntry, JournalReader, ReadFrom, Retention, SegmentFormat,
    SegmentPolicy, Timestamp, repair, verify,
};

use crate::{LONG, new_record, payloads, segments, small, until};

fn rotating(folder: &Path, retention: Retention, compression: Compression) -> JournalConfig {
    let mut config = small(folder);
    (config.segment_bytes, config.record_bytes_max) = (32 << 10, 4 << 10);
    config.segment_policy = SegmentPolicy::Rolling { retention, compression };
    config
}

/// Writes records of 1 KiB, about 30 per segment.
fn write(journal: &Journal, records: usize) {
    let producer = journal.producer();
    for number in 0..records {
        producer.append_blocking(new_record(format!("{number:>1000}").as_bytes())).unwrap();
    }
    assert!(journal.flush(Ack::Written, LONG).unwrap());
}

/// JO-46: oldest segments are removed by count and bytes.
#[test]
fn oldest_segments_are_removed_by_count_and_bytes() {
    let limits = [
        Retention { segments: Some(4), ..Retention::default() },
        Retention { bytes: Some(4 * (32 << 10)), ..Retention::default() },
    ];
    for retention in limits {
        let folder = TempDir::new().unwrap();
        let (journal, _) = Journal::open(rotating(folder.path(), retention, Compression::No)).unwrap();
        write(&journal, 500);
        until("the old segments are removed", || segments(folder.path()).len() <= 5);
        drop(journal);
        let left = payloads(folder.path());
        assert_eq!(left.last().unwrap(), format!("{:>1000}", 499).as_bytes());
        assert!(left.len() >= 60, "the newest segments stay: {}", left.len());
    }
}

/// JO-46: segments are removed by age.
#[test]
fn segments_are_removed_by_age() {
    let folder = TempDir::new().unwrap();
    let keep = Retention { age: Some(Duration::from_secs(3600)), ..Retention::default() };
    let (journal, _) = Journal::open(rotating(folder.path(), keep, Compression::No)).unwrap();
    write(&journal, 200);
    drop(journal);
    let (old, count) = (segments(folder.path())[0].clone(), segments(folder.path()).len());
    let two_hours_ago = SystemTime::now() - Duration::from_secs(7200);
    fs::File::options().write(true).open(&old).unwrap().set_modified(two_hours_ago).unwrap();
    let (journal, _) = Journal::open(rotating(folder.path(), keep, Compression::No)).unwrap();
    until("the old segment is removed", || !old.exists());
    drop(journal);
    assert_eq!(segments(folder.path()).len(), count - 1);
}

fn dated(path: &std::path::Path, time: SystemTime) {
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// JO-46: the oldest segments are removed first after the clock went back a year, although they have the latest times.
#[test]
fn oldest_are_removed_first_after_clock_went_back() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(rotating(folder.path(), Retention::default(), Compression::No)).unwrap();
    write(&journal, 200);
    drop(journal);
    let files = segments(folder.path());
    let ahead = SystemTime::now() + Duration::from_secs(365 * 24 * 3600);
    files[..files.len() / 2].iter().for_each(|path| dated(path, ahead));
    let keep = Retention { segments: Some(4), ..Retention::default() };
    let (journal, _) = Journal::open(rotating(folder.path(), keep, Compression::No)).unwrap();
    until("some segments are removed", || segments(folder.path()).len() <= 4);
    drop(journal);
    let left = segments(folder.path());
    assert_eq!(left[..], files[files.len() - left.len()..], "the newest segments stay");
}

/// JO-46: segments of former stripes are removed.
#[test]
fn segments_of_former_stripes_are_removed() {
    let folder = TempDir::new().unwrap();
    let keep = Retention { age: Some(Duration::from_secs(3600)), ..Retention::default() };
    let config = rotating(folder.path(), keep, Compression::No);
    let (journal, _) = Journal::open(JournalConfig { stripes: 2, bytes_max: 128 << 10, ..config.clone() }).unwrap();
    for stripe in 0..2 {
        journal.producer_for(stripe).commit_blocking(new_record(b"old").ack(Ack::Written)).unwrap();
    }
    drop(journal);
    let files = segments(folder.path());
    files.iter().for_each(|path| dated(path, SystemTime::now() - Duration::from_secs(7200)));
    let (journal, _) = Journal::open(config).unwrap();
    until("the segment of the second stripe is removed", || !files[1].exists());
    assert!(files[0].exists(), "the newest segment of an existing stripe may be open");
    drop(journal);
}

/// A process that crashes again and again must not displace the history. A reader that follows reads on.
#[test]
fn young_segment_is_continued_by_each_start() {
    for format in [SegmentFormat::Framed, SegmentFormat::Json, SegmentFormat::Text] {
        let folder = TempDir::new().unwrap();
        let limit = Retention { segments: Some(2), ..Retention::default() };
        let config = JournalConfig { format, ..rotating(folder.path(), limit, Compression::No) };
        let mut follower = JournalReader::open(folder.path(), &ReadFrom::Beginning, AtEnd::Follow).unwrap();
        let (mut position, mut expected) = (None, Vec::new());
        for round in 0..12 {
            let (journal, recovery) = Journal::open(config.clone()).unwrap();
            assert!(recovery.damage.is_empty(), "{recovery:?}");
            let record = format!("{{\"round\":{round}}}").into_bytes();
            journal.producer().commit_blocking(new_record(&record).ack(Ack::Durable)).unwrap();
            drop(journal);
            assert_eq!(left_in(&mut follower), [&record[..]], "{format:?} round {round}");
            if let Some(position) = position.replace(follower.position()) {
                let position = ReadFrom::Position(position);
                let mut reader = JournalReader::open(folder.path(), &position, AtEnd::Stop).unwrap();
                assert_eq!(left_in(&mut reader), [&record[..]], "{format:?} round {round}");
            }
            expected.push(record);
            let file = fs::OpenOptions::new().append(true).open(&segments(folder.path())[0]).unwrap();
            if format == SegmentFormat::Framed && round % 3 == 1 {
                // The process was killed in the middle of a write, before or after a summary.
                (&file).write_all(b"torn").unwrap();
            } else if format == SegmentFormat::Framed && round % 3 == 2 {
                file.set_len(file.metadata().unwrap().len() - 10).unwrap();
            }
        }
        assert_eq!(segments(folder.path()).len(), 1, "{format:?}");
        drop(Journal::open(config).unwrap());
        assert_eq!(payloads(folder.path()), expected);
        let report = verify(folder.path()).unwrap();
        assert!(report.is_intact() && report.missing == 0, "{report:?}");
    }
}

fn left_in(reader: &mut JournalReader) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while let Some(entry) = reader.read().unwrap() {
        match entry {
            JournalEntry::Record(record) => found.push(record.payload.to_vec()),
            entry => panic!("{entry:?}"),
        }
    }
    found
}

#[test]
fn full_old_and_damaged_segments_are_not_continued() {
    let config = |folder: &Path| rotating(folder, Retention::default(), Compression::No);
    let second_start = |first_records: usize, config: &JournalConfig, change: &dyn Fn(&Path)| {
        let (journal, _) = Journal::open(config.clone()).unwrap();
        write(&journal, first_records);
        drop(journal);
        change(&segments(&config.folder)[0]);
        let (journal, _) = Journal::open(config.clone()).unwrap();
        write(&journal, 1);
        drop(journal);
        segments(&config.folder).len()
    };
    let in_new_folder = |first_records: usize, age: Option<Duration>, change: &dyn Fn(&Path)| {
        let folder = TempDir::new().unwrap();
        second_start(first_records, &JournalConfig { segment_age: age, ..config(folder.path()) }, change)
    };
    let day = Some(Duration::from_secs(86_400));
    assert_eq!(in_new_folder(1, day, &|_| ()), 1);
    assert_eq!(in_new_folder(31, None, &|_| ()), 2, "no room for another record");
    assert_eq!(in_new_folder(1, Some(Duration::from_nanos(1)), &|_| ()), 2, "older than segment_age");
    let damage = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[80] ^= 1;
        bytes.truncate(bytes.len() - 1);
        fs::write(path, bytes).unwrap();
    };
    assert_eq!(in_new_folder(2, None, &damage), 2);
    let append = |path: &Path| {
        let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(b"?").unwrap();
    };
    assert_eq!(in_new_folder(1, None, &append), 1, "a torn write is truncated");
}

#[test]
fn disk_usage_includes_segments_from_before() {
    let folder = TempDir::new().unwrap();
    let config = rotating(folder.path(), Retention::default(), Compression::No);
    let (journal, _) = Journal::open(config.clone()).unwrap();
    write(&journal, 100);
    drop(journal);
    let sizes = || segments(folder.path()).iter().map(|path| path.metadata().unwrap().len()).sum::<u64>();
    let (journal, _) = Journal::open(config).unwrap();
    let counted = || (journal.stats().disk_bytes, journal.stats().segments);
    until("all segments are counted", || counted() == (sizes(), segments(folder.path()).len() as u64));
    write(&journal, 1);
    until("the open segment is counted once", || counted() == (sizes(), segments(folder.path()).len() as u64));
    write(&journal, 100);
    until("new segments are counted", || counted() == (sizes(), segments(folder.path()).len() as u64));
}

/// JO-46: nothing else is ever removed.
#[test]
fn nothing_else_is_ever_removed() {
    let folder = TempDir::new().unwrap();
    let failure = TempDir::new().unwrap();
    let precious = failure.path().join("precious");
    fs::write(&precious, "foreign").unwrap();
    let path = |name: &str| folder.path().join(name);
    symlink(&precious, path("journal-00-0000000001.tgj")).unwrap();
    fs::create_dir(path("journal-00-0000000002.tgj")).unwrap();
    let foreign = ["journal-00-0000000003.tgj.damaged", "other-00-0000000001.tgj", "notes.txt", "journal-0-1.tgj"];
    foreign.iter().for_each(|name| fs::write(path(name), "foreign").unwrap());
    let keep = Retention { segments: Some(1), ..Retention::default() };
    let (journal, _) = Journal::open(rotating(folder.path(), keep, Compression::No)).unwrap();
    write(&journal, 300);
    let own = || segments(folder.path()).into_iter().filter(|path| path.is_file() && !path.is_symlink());
    // Two of the foreign files look like segments: `other-…` is a segment of another journal.
    until("the old segments are removed", || own().count() == 3);
    assert_eq!(fs::read(&precious).unwrap(), b"foreign");
    assert!(path("journal-00-0000000002.tgj").is_dir());
    assert!(path("journal-00-0000000001.tgj").is_symlink());
    foreign.iter().for_each(|name| assert_eq!(fs::read(path(name)).unwrap(), b"foreign", "{name}"));
    // The newest segment is open and stays, although it alone may exceed the limit.
    write(&journal, 1);
    drop(journal);
}

#[test]
#[cfg(feature = "zstd")]
fn ended_segments_are_compressed_and_readable() {
    let folder = TempDir::new().unwrap();
    let config = rotating(folder.path(), Retention::default(), Compression::Zstd(3));
    let (journal, _) = Journal::open(config).unwrap();
    write(&journal, 300);
    let compressed = || segments(folder.path()).iter().filter(|path| path.extension().unwrap() == "zst").count();
    until("all but the newest are compressed", || {
        compressed() + 1 == segments(folder.path()).len() && compressed() >= 9
    });
    drop(journal);
    let expected: Vec<Vec<u8>> = (0..300).map(|number| format!("{number:>1000}").into_bytes()).collect();
    assert_eq!(payloads(folder.path()), expected);
    let report = verify(folder.path()).unwrap();
    assert!(report.is_intact() && report.records == 300, "{report:?}");
}

/// The maintenance thread is woken for segments that ended within a batch and were synced with it.
#[test]
fn durable_segments_are_removed_as_soon_as_others() {
    let folder = TempDir::new().unwrap();
    let retention = Retention { segments: Some(2), ..Retention::default() };
    let (journal, _) = Journal::open(rotating(folder.path(), retention, Compression::No)).unwrap();
    let producer = journal.producer();
    let mut rounds = 0;
    // The maintenance interval of 30 s would be too long.
    until("old segments are removed, three times", || {
        if segments(folder.path()).len() <= 2 {
            rounds += 1;
            for _ in 0..100 {
                producer.commit_blocking(new_record(&[b'x'; 1000]).ack(Ack::Durable)).unwrap();
            }
        }
        rounds > 3
    });
}

/// JO-06: in a damaged compressed segment, records after the damage are lost; all other files are read.
#[test]
#[cfg(feature = "zstd")]
fn damaged_compressed_segment_is_reported() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(rotating(folder.path(), Retention::default(), Compression::Zstd(3))).unwrap();
    write(&journal, 300);
    let compressed = || segments(folder.path()).into_iter().filter(|path| path.extension().unwrap() == "zst");
    until("all but the newest are compressed", || compressed().count() + 1 == segments(folder.path()).len());
    drop(journal);
    let middle = compressed().nth(4).unwrap();
    let whole = fs::read(&middle).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2..].iter_mut().for_each(|byte| *byte = !*byte);
    for (what, bytes) in
        [("flipped", &flipped[..]), ("cut", &whole[..whole.len() / 2]), ("only its start", &whole[..90])]
    {
        fs::write(&middle, bytes).unwrap();
        let report = verify(folder.path()).unwrap();
        assert_eq!(report.damage.len(), 1, "{what}: {report:?}");
        assert_eq!(report.damage[0].path, middle, "{what}");
        assert!(report.missing > 0 && report.records + report.missing == 300, "{what}: {report:?}");
        assert_eq!(payloads(folder.path()).last().unwrap(), format!("{:>1000}", 299).as_bytes(), "{what}");
    }
    fs::write(&middle, &whole).unwrap();
    assert!(verify(folder.path()).unwrap().is_intact());
}

/// JO-06: damage in a compressed segment of lines is reported. Lines have no checksums, but bytes that cannot be
/// decompressed are damage.
#[test]
#[cfg(feature = "zstd")]
fn damaged_compressed_lines_are_reported() {
    let folder = TempDir::new().unwrap();
    let mut config = rotating(folder.path(), Retention::default(), Compression::Zstd(3));
    config.format = tidegate_journal::SegmentFormat::Json;
    let (journal, _) = Journal::open(config).unwrap();
    write(&journal, 300);
    let compressed = || segments(folder.path()).into_iter().filter(|path| path.extension().unwrap() == "zst");
    until("all but the newest are compressed", || compressed().count() + 1 == segments(folder.path()).len());
    drop(journal);
    let middle = compressed().nth(4).unwrap();
    let whole = fs::read(&middle).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2..].iter_mut().for_each(|byte| *byte = !*byte);
    for (what, bytes) in [("flipped", &flipped[..]), ("cut", &whole[..whole.len() / 2]), ("noise", &[7; 90])] {
        fs::write(&middle, bytes).unwrap();
        let report = verify(folder.path()).unwrap();
        assert_eq!(report.damage.len(), 1, "{what}: {report:?}");
        assert!(report.damage[0].path == middle && !report.is_intact(), "{what}: {report:?}");
        assert_eq!(payloads(folder.path()).last().unwrap(), format!("{:>1000}", 299).as_bytes(), "{what}");
        // The repaired segment has the lines that could be decompressed, and the damaged file is kept.
        let repaired = repair(folder.path()).unwrap();
        assert_eq!(repaired.len(), 1, "{what}: {repaired:?}");
        assert_eq!(fs::read(&repaired[0].backup).unwrap(), bytes, "{what}");
        let after = verify(folder.path()).unwrap();
        assert!(after.is_intact() && after.records == report.records, "{what}: {report:?} {after:?}");
        assert!(repair(folder.path()).unwrap().is_empty(), "{what}");
        fs::remove_file(&repaired[0].path).unwrap();
    }
}

/// JO-06: a damaged preface of a compressed segment hides no record. The preface only saves decompression; if it is
/// damaged, the data counts.
#[test]
#[cfg(feature = "zstd")]
fn damaged_preface_hides_no_record() {
    const SUM_AT: usize = 8 + 64;
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(rotating(folder.path(), Retention::default(), Compression::Zstd(3))).unwrap();
    write(&journal, 300);
    let compressed = || segments(folder.path()).into_iter().filter(|path| path.extension().unwrap() == "zst");
    until("all but the newest are compressed", || compressed().count() + 1 == segments(folder.path()).len());
    drop(journal);
    let middle = compressed().nth(4).unwrap();
    let from = |start: &ReadFrom| -> (u64, usize) {
        let mut reader = JournalReader::open(folder.path(), start, AtEnd::Stop).unwrap();
        let mut times = Vec::new();
        while let Some(entry) = reader.read().unwrap() {
            if let JournalEntry::Record(record) = entry {
                times.push(record.time);
            }
        }
        (times.get(times.len() / 2).unwrap().unix_nanos(), times.len())
    };
    let half = ReadFrom::Timestamp(Timestamp::from_unix_nanos(from(&ReadFrom::Beginning).0));
    let expected = from(&half);
    let mut bytes = fs::read(&middle).unwrap();
    // No records and the lowest times: a reader would skip the segment.
    bytes[SUM_AT..SUM_AT + 32].fill(0);
    bytes[SUM_AT] = 1;
    fs::write(&middle, &bytes).unwrap();
    assert_eq!(from(&half), expected);
    assert!(verify(folder.path()).unwrap().is_intact());
    assert_eq!(payloads(folder.path()).len(), 300);
}

/// JO-39: closing stops a compression that takes many seconds, and the segment stays.
#[test]
#[cfg(feature = "zstd")]
fn close_does_not_wait_for_compression() {
    let folder = TempDir::new().unwrap();
    let mut config = rotating(folder.path(), Retention::default(), Compression::Zstd(19));
    config.segment_bytes = 16 << 20;
    let (journal, _) = Journal::open(config).unwrap();
    let (producer, mut random) = (journal.producer(), fastrand::Rng::with_seed(crate::seed()));
    let words: Vec<u8> = std::iter::repeat_with(|| random.u8(b'a'..b'i')).take(4 << 20).collect();
    for payload in words.chunks(4_000).cycle().take((20 << 20) / 4_000) {
        producer.append_blocking(new_record(payload)).unwrap();
    }
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    let part = folder.path().join("journal-00-0000000001.tgj.zst.part");
    until("the segment is being compressed", || part.exists());
    assert!(journal.close(LONG).is_complete());
    assert!(folder.path().join("journal-00-0000000001.tgj").exists() && !part.exists());
    assert_eq!(payloads(folder.path()).len(), (20 << 20) / 4_000);
}

/// JO-04: crash during compression.
#[test]
#[cfg(feature = "zstd")]
fn crash_during_compression() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(rotating(folder.path(), Retention::default(), Compression::No)).unwrap();
    write(&journal, 100);
    drop(journal);
    let expected = payloads(folder.path());
    let first = segments(folder.path())[0].clone();
    // A crash before the rename leaves a partial file under another name; a crash after it leaves both files.
    let part = folder.path().join("journal-00-0000000001.tgj.zst.part");
    fs::write(&part, "half").unwrap();
    let both = folder.path().join("journal-00-0000000001.tgj.zst");
    fs::write(&both, "the plain file counts").unwrap();
    assert_eq!(payloads(folder.path()), expected);
    let (journal, _) = Journal::open(rotating(folder.path(), Retention::default(), Compression::Zstd(1))).unwrap();
    until("the segment is compressed again", || !first.exists());
    drop(journal);
    assert!(!part.exists());
    assert_eq!(payloads(folder.path()), expected);
}

/// JO-09: no room to compress keeps the segment.
#[test]
#[cfg(feature = "zstd")]
fn no_room_to_compress_keeps_the_segment() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(rotating(folder.path(), Retention::default(), Compression::No)).unwrap();
    write(&journal, 100);
    drop(journal);
    let expected = payloads(folder.path());
    // A folder in place of the compressed file stands for any error there.
    let part = folder.path().join("journal-00-0000000001.tgj.zst.part");
    fs::create_dir(&part).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let config = rotating(folder.path(), Retention::default(), Compression::Zstd(1));
    let listener = move |event: &tidegate_journal::JournalEvent| drop(sender.send(event.clone()));
    let (journal, _) =
        Journal::open_with(config, std::sync::Arc::new(tidegate_journal::FileStorage), listener).unwrap();
    let event = receiver.recv_timeout(LONG).unwrap();
    assert!(matches!(&event, tidegate_journal::JournalEvent::MaintenanceFailed { .. }), "{event}");
    drop(journal);
    assert_eq!(payloads(folder.path()), expected);
}

/// JO-44: opens ten thousand segments without reading.
#[test]
fn opens_ten_thousand_segments_without_reading() {
    let folder = TempDir::new().unwrap();
    drop({
        let (journal, _) = Journal::open(small(folder.path())).unwrap();
        write(&journal, 1);
        journal
    });
    let segment = fs::read(&segments(folder.path())[0]).unwrap();
    for number in 2..10_000 {
        // Content that would be reported as damage if it were read.
        fs::write(
            folder.path().join(format!("journal-00-{number:010}.tgj")),
            "unread content, longer than a header, that would be reported as damage if read",
        )
        .unwrap();
    }
    fs::write(folder.path().join("journal-00-0000010000.tgj"), segment).unwrap();
    let (journal, recovery) = Journal::open(small(folder.path())).unwrap();
    assert_eq!(recovery.segments, 10_000);
    assert!(recovery.is_clean(), "only the newest segment was read");
    drop(journal);
}

#[test]
fn ring_uses_constant_disk_space() {
    let folder = TempDir::new().unwrap();
    let mut config = small(folder.path());
    (config.segment_bytes, config.segment_policy) = (64 << 10, SegmentPolicy::Ring { segments: 3 });
    for round in 0..3 {
        let (journal, recovery) = Journal::open(config.clone()).unwrap();
        assert!(recovery.is_clean(), "{recovery:?}");
        write(&journal, 400);
        assert!(journal.close(LONG).is_complete());
        let sizes: Vec<u64> = segments(folder.path()).iter().map(|path| path.metadata().unwrap().len()).collect();
        assert_eq!(sizes, [64 << 10; 3], "round {round}");
        let left = payloads(folder.path());
        assert!(left.len() > 100 && left.last().unwrap() == format!("{:>1000}", 399).as_bytes());
        let report = verify(folder.path()).unwrap();
        assert!(report.is_intact() && report.missing == 0, "{report:?}");
    }
}
