//! Reading while the journal is written.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

use tempfile::TempDir;
use tidegate_journal::{
    Ack, AtEnd, ClassConfig, Compression, Journal, JournalConfig, JournalEntry, JournalReader, OverloadPolicy,
    ProducerRecord, ReadFrom, ReaderPosition, Retention, SegmentFormat, SegmentPolicy, Timestamp,
};

use crate::{LONG, ONE, faults::FaultyDisk, new_record, payloads, segments, small, until};

/// Follows a journal until `last` is read, and checks that only whole records in order are returned.
fn follow(folder: &std::path::Path, last: usize) {
    let mut reader = JournalReader::open(folder, &ReadFrom::Beginning, AtEnd::Follow).unwrap();
    let mut next = 0;
    until("all records are read", || {
        while let Some(entry) = reader.read().unwrap() {
            let JournalEntry::Record(record) = entry else { panic!("{entry:?} after {next}") };
            let text = std::str::from_utf8(record.payload).unwrap().trim();
            assert_eq!(text.parse::<usize>().unwrap(), next);
            next += 1;
        }
        next > last
    });
}

fn follows(mut config: JournalConfig, records: usize) {
    (config.segment_bytes, config.record_bytes_max) = (32 << 10, 1 << 10);
    let folder = config.folder.clone();
    let (journal, _) = Journal::open(config).unwrap();
    thread::scope(|scope| {
        let readers = [(); 2].map(|()| scope.spawn(|| follow(&folder, records - 1)));
        let producer = journal.producer();
        for number in 0..records {
            producer.append_blocking(new_record(format!("{number:>300}").as_bytes())).unwrap();
        }
        assert!(journal.flush(Ack::Written, LONG).unwrap());
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// JO-35: follow across rotations sees whole records.
#[test]
fn follow_across_rotations_sees_whole_records() {
    let folder = TempDir::new().unwrap();
    follows(small(folder.path()), 5_000);
}

/// JO-35: follow while segments are compressed.
#[test]
#[cfg(feature = "zstd")]
fn follow_while_segments_are_compressed() {
    let folder = TempDir::new().unwrap();
    let segment_policy = SegmentPolicy::Rolling { retention: Retention::default(), compression: Compression::Zstd(1) };
    follows(JournalConfig { segment_policy, ..small(folder.path()) }, 5_000);
}

/// JO-35: follow lines.
#[test]
fn follow_lines() {
    for format in [SegmentFormat::Json, SegmentFormat::Text] {
        let folder = TempDir::new().unwrap();
        follows(JournalConfig { format, ..small(folder.path()) }, 2_000);
    }
}

/// JO-35: a reader of a ring sees records written after it read the file. A ring file has the same length before and
/// after.
#[test]
fn ring_reader_sees_records_written_later() {
    let folder = TempDir::new().unwrap();
    let (segment_bytes, segment_policy) = (1 << 20, SegmentPolicy::Ring { segments: 2 });
    let (journal, _) = Journal::open(JournalConfig { segment_bytes, segment_policy, ..small(folder.path()) }).unwrap();
    let producer = journal.producer();
    let commit = |number: usize| {
        producer.commit_blocking(new_record(format!("{number:>3000}").as_bytes()).ack(Ack::Written)).unwrap();
    };
    (0..10).for_each(commit);
    let mut reader = JournalReader::open(folder.path(), &ReadFrom::Beginning, AtEnd::Stop).unwrap();
    let mut next = || match reader.read().unwrap() {
        Some(JournalEntry::Record(record)) => {
            Some(std::str::from_utf8(record.payload).unwrap().trim().parse::<usize>().unwrap())
        }
        None => None,
        Some(other) => panic!("{other:?}"),
    };
    assert_eq!(next(), Some(0));
    // Continue into the second file.
    (10..400).for_each(commit);
    for number in 1..400 {
        assert_eq!(next(), Some(number));
    }
    assert_eq!(next(), None);
}

/// JO-35: overtaken ring reader reports missing records.
#[test]
fn overtaken_ring_reader_reports_missing_records() {
    let folder = TempDir::new().unwrap();
    let mut config = small(folder.path());
    (config.segment_bytes, config.segment_policy) = (64 << 10, SegmentPolicy::Ring { segments: 2 });
    let (journal, _) = Journal::open(config).unwrap();
    let producer = journal.producer();
    let mut reader = JournalReader::open(folder.path(), &ReadFrom::Beginning, AtEnd::Follow).unwrap();
    let (mut seen, mut missing) = (0, 0);
    let mut read = |reader: &mut JournalReader| {
        while let Some(entry) = reader.read().unwrap() {
            match entry {
                JournalEntry::Record(_) => seen += 1,
                JournalEntry::Missing { records, .. } => missing += records,
                other => panic!("{other:?}"),
            }
        }
        (seen, missing)
    };
    for number in 0..1000_u64 {
        producer.commit_blocking(new_record(format!("{number:>500}").as_bytes()).ack(Ack::Written)).unwrap();
        if number == 3 {
            assert_eq!(read(&mut reader), (4, 0));
        }
    }
    let (seen, missing) = read(&mut reader);
    assert_eq!(seen + missing, 1000);
    assert!(seen > 100 && missing > 100, "{seen} {missing}");
}

/// Damage in the open segment is reported to a following reader if a record follows it, as that was written later.
#[test]
fn follow_reports_damage_in_the_open_segment() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let producer = journal.producer();
    let commit = |payload: &[u8]| producer.commit_blocking(new_record(payload).ack(Ack::Written)).unwrap();
    for payload in ["one", "spoilt", "three"] {
        commit(payload.as_bytes());
    }
    let path = &crate::segments(folder.path())[0];
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.windows(6).position(|window| window == b"spoilt").unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, &bytes).unwrap();
    let mut reader = JournalReader::open(folder.path(), &ReadFrom::Beginning, AtEnd::Follow).unwrap();
    let mut read = || {
        let mut seen = Vec::new();
        while let Some(entry) = reader.read().unwrap() {
            seen.push(match entry {
                JournalEntry::Record(record) => String::from_utf8(record.payload.to_vec()).unwrap(),
                JournalEntry::Damage(_) => "damage".to_owned(),
                JournalEntry::Missing { records, .. } => format!("{records} missing"),
                other => panic!("{other:?}"),
            });
        }
        seen
    };
    assert_eq!(read(), ["one", "damage", "1 missing", "three"]);
    commit(b"four");
    assert_eq!(read(), ["four"]);
}

#[test]
fn reader_continues_from_a_position() {
    let folder = TempDir::new().unwrap();
    let mut config = JournalConfig { stripes: 2, bytes_max: 128 << 10, ..small(folder.path()) };
    (config.segment_bytes, config.record_bytes_max) = (32 << 10, 1 << 10);
    let (journal, _) = Journal::open(config).unwrap();
    for number in 0..400_u64 {
        let record = format!("{number:>500}");
        let record = ProducerRecord::new(ONE, record.as_bytes()).at(Timestamp::from_unix_nanos(1000 + number));
        journal.producer().append_blocking(record).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
    let all = payloads(folder.path());
    let mut reader = JournalReader::open(folder.path(), &ReadFrom::Beginning, AtEnd::Stop).unwrap();
    for taken in 1..=400 {
        reader.read().unwrap().unwrap();
        if taken % 41 != 0 {
            continue;
        }
        let text = reader.position().to_string();
        let position: ReaderPosition = text.parse().unwrap();
        let mut second = JournalReader::open(folder.path(), &ReadFrom::Position(position), AtEnd::Stop).unwrap();
        let mut rest = Vec::new();
        while let Some(entry) = second.read().unwrap() {
            let JournalEntry::Record(record) = entry else { panic!("{entry:?}") };
            rest.push(record.payload.to_vec());
        }
        assert_eq!(rest, all[taken..], "{text}");
    }
    let mut reader =
        JournalReader::open(folder.path(), &ReadFrom::Timestamp(Timestamp::from_unix_nanos(1300)), AtEnd::Stop)
            .unwrap();
    let mut later = 0;
    while reader.read().unwrap().is_some() {
        later += 1;
    }
    assert_eq!(later, 100);
    let (read, bytes) = reader.progress().unwrap();
    assert_eq!(read, bytes);
    assert!("nonsense".parse::<ReaderPosition>().is_err());
}

/// A reader has read a segment to its end, and its position is stored before there is another one.
#[test]
fn position_at_the_end_of_a_segment_is_readable() {
    let folder = TempDir::new().unwrap();
    let mut position = ReaderPosition::default();
    for number in 0..3_u8 {
        let (journal, _) = Journal::open(small(folder.path())).unwrap();
        journal.producer().commit_blocking(new_record(&[number]).ack(Ack::Written)).unwrap();
        if number > 0 {
            assert!(journal.close(LONG).is_complete());
        }
        let text = position.to_string();
        let from = if number == 0 { ReadFrom::Beginning } else { ReadFrom::Position(text.parse().unwrap()) };
        let mut reader = JournalReader::open(folder.path(), &from, AtEnd::Stop).unwrap();
        let Some(JournalEntry::Record(record)) = reader.read().unwrap() else { panic!("no record at {text}") };
        assert_eq!(record.payload, [number]);
        assert_eq!(reader.read().unwrap(), None);
        position = reader.position();
    }
}

#[test]
fn reader_from_the_end_sees_only_new_records() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let producer = journal.producer();
    producer.commit_blocking(new_record(b"before").ack(Ack::Written)).unwrap();
    let mut reader = JournalReader::open(folder.path(), &ReadFrom::End, AtEnd::Follow).unwrap();
    assert_eq!(reader.read().unwrap(), None);
    producer.commit_blocking(new_record(b"after").ack(Ack::Written)).unwrap();
    assert!(matches!(reader.read().unwrap(), Some(JournalEntry::Record(record)) if record.payload == b"after"));
    assert_eq!(reader.read().unwrap(), None);
}

#[test]
fn line_formats_are_plain_files() {
    for (format, file) in
        [(SegmentFormat::Json, "journal-00-0000000001.jsonl"), (SegmentFormat::Text, "journal-00-0000000001.log")]
    {
        let folder = TempDir::new().unwrap();
        let disk = FaultyDisk::healthy();
        let classes = vec![ClassConfig::new("a \"b\"").overload(OverloadPolicy::DropNewest)];
        let config = JournalConfig { format, classes, ..small(folder.path()) };
        let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
        let producer = journal.producer();
        disk.stall();
        producer.offer(new_record(br#"{"a":1}"#)).unwrap();
        while producer.offer(new_record(br#"{"b":"x"}"#)).is_ok() {}
        disk.resume();
        assert!(journal.flush(Ack::Written, LONG).unwrap());
        producer.offer(new_record(b"{\"text\":\n\"two\"}")).unwrap();
        assert!(journal.close(LONG).is_complete());
        let text = fs::read_to_string(folder.path().join(file)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let last = if format == SegmentFormat::Json { r#"{"text": "two"}"# } else { r#"{"text":\n"two"}"# };
        // The gap record may come after records that were accepted later.
        let last_record = *lines.iter().rfind(|line| !line.contains("gap")).unwrap();
        assert_eq!((lines[0], last_record), (r#"{"a":1}"#, last));
        let mode = fs::metadata(folder.path().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "records may be confidential");
        let gap = lines.iter().find(|line| line.contains("gap")).unwrap();
        if format == SegmentFormat::Json {
            let values: Vec<serde_json::Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert!(values.iter().any(|value| value["gap"]["class"] == "a \"b\"" && value["gap"]["records"] == 1));
        } else {
            assert!(gap.starts_with("# gap class="), "{gap}");
        }
    }
}

/// Parses the number at the start of a line as its time in seconds.
fn seconds(line: &[u8]) -> Option<Timestamp> {
    let number = std::str::from_utf8(line).ok()?.split(' ').next()?.parse::<u64>().ok()?;
    Some(Timestamp::from_unix_nanos(number * 1_000_000_000))
}

#[test]
fn lines_are_read_by_timestamp() {
    let folder = TempDir::new().unwrap();
    let config = JournalConfig {
        format: SegmentFormat::Text,
        segment_bytes: 32 << 10,
        record_bytes_max: 1 << 10,
        ..small(folder.path())
    };
    let (journal, _) = Journal::open(config).unwrap();
    let producer = journal.producer();
    for number in 0..300 {
        producer.append_blocking(new_record(format!("{number} {}", "x".repeat(500)).as_bytes())).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
    assert!(segments(folder.path()).len() > 3);
    let start = ReadFrom::Timestamp(Timestamp::from_unix_nanos(200_000_000_000));
    let mut reader = JournalReader::open_with_line_timestamp(folder.path(), &start, AtEnd::Stop, seconds).unwrap();
    // Reading starts after the first segment.
    let (before, all) = reader.progress().unwrap();
    assert!(before > all / 4, "{before} of {all}");
    for number in 200..300 {
        let Some(JournalEntry::Record(record)) = reader.read().unwrap() else { panic!("{number}") };
        assert_eq!(record.time, Timestamp::from_unix_nanos(number * 1_000_000_000));
    }
    assert_eq!(reader.read().unwrap(), None);
}

#[test]
fn single_segment_can_be_read_and_listed() {
    let folder = TempDir::new().unwrap();
    let config = JournalConfig { segment_bytes: 32 << 10, record_bytes_max: 1 << 10, ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    for number in 0..300_u64 {
        let record = ProducerRecord::new(ONE, &[b'x'; 500]).at(Timestamp::from_unix_nanos(number));
        journal.producer().append_blocking(record).unwrap();
    }
    assert!(tidegate_journal::is_open(folder.path()).unwrap());
    assert!(journal.close(LONG).is_complete());
    assert!(!tidegate_journal::is_open(folder.path()).unwrap());
    let found = tidegate_journal::segments(folder.path()).unwrap();
    let (mut records, mut next) = (0, 0);
    for segment in &found {
        let (summary, times) = segment.records.expect("the segment has a summary");
        assert_eq!(times.map(|(first, _)| first), Some(Timestamp::from_unix_nanos(next)));
        let mut reader = JournalReader::open_segment(&segment.path, AtEnd::Stop, None).unwrap();
        let mut seen = 0;
        while let Some(entry) = reader.read().unwrap() {
            let JournalEntry::Record(record) = entry else { panic!("{entry:?}") };
            assert_eq!(record.time, Timestamp::from_unix_nanos(next));
            (seen, next) = (seen + 1, next + 1);
        }
        assert_eq!((seen, reader.progress().unwrap()), (summary, (segment.bytes, segment.bytes)));
        records += summary;
    }
    assert_eq!((found.len() > 3, records), (true, 300));
    // A copy with the name of a repair's backup is a segment; any other name is not.
    let copy = folder.path().join("journal-00-0000000001.tgj.damaged");
    fs::copy(&found[0].path, &copy).unwrap();
    assert!(JournalReader::open_segment(&copy, AtEnd::Stop, None).unwrap().read().unwrap().is_some());
    assert_eq!(tidegate_journal::segments(folder.path()).unwrap(), found);
    assert!(JournalReader::open_segment(folder.path().join("journal.lock"), AtEnd::Stop, None).is_err());
}

#[test]
fn torn_line_is_truncated_at_open() {
    let folder = TempDir::new().unwrap();
    let config = JournalConfig { format: SegmentFormat::Text, ..small(folder.path()) };
    let (journal, _) = Journal::open(config.clone()).unwrap();
    journal.producer().append_blocking(new_record(b"whole\nand escaped")).unwrap();
    drop(journal);
    let path = segments(folder.path())[0].clone();
    let whole = fs::read(&path).unwrap();
    assert_eq!(whole, b"whole\\nand escaped\n");
    fs::write(&path, [&whole[..], b"half of a li"].concat()).unwrap();
    let (journal, recovery) = Journal::open(config).unwrap();
    assert_eq!((recovery.truncated.len(), recovery.truncated[0].bytes), (1, 12));
    drop(journal);
    assert_eq!(fs::read(&path).unwrap(), whole);
}

/// JO-34: rename truncation and removal are detected.
#[test]
fn rename_truncation_and_removal_are_detected() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let producer = journal.producer();
    let commit = |text: &str| producer.commit_blocking(new_record(text.as_bytes()).ack(Ack::Written)).unwrap();
    // Renamed, followed by reopen.
    commit("first");
    let open = || segments(folder.path()).pop().unwrap();
    let renamed = folder.path().join("renamed.1");
    fs::rename(open(), &renamed).unwrap();
    journal.reopen();
    commit("second");
    assert!(contains(&renamed, b"first") && contains(&open(), b"second"));
    // Truncated to zero: detected at the next write.
    fs::File::options().write(true).open(open()).unwrap().set_len(0).unwrap();
    commit("third");
    assert!(contains(&open(), b"third"));
    // Deleted or renamed without reopen: detected within a second of the next write.
    for text in ["fourth", "fifth"] {
        let before = open();
        if text == "fourth" {
            fs::remove_file(&before).unwrap();
        } else {
            fs::rename(&before, folder.path().join("renamed.2")).unwrap();
        }
        let gone = AtomicBool::new(true);
        until("the change is detected", || {
            commit(text);
            gone.store(segments(folder.path()).iter().all(|path| !contains(path, text.as_bytes())), SeqCst);
            !gone.load(SeqCst)
        });
    }
    assert!(journal.close(LONG).is_complete());
}

fn contains(path: &std::path::Path, text: &[u8]) -> bool {
    fs::read(path).unwrap().windows(text.len()).any(|part| part == text)
}

/// JO-35: removed and recreated folder is followed.
#[test]
fn removed_and_recreated_folder_is_followed() {
    let outer = TempDir::new().unwrap();
    let path = outer.path().join("journal");
    let open = || Journal::open(small(&path)).unwrap().0;
    let commit = |journal: &Journal, text: &str| {
        journal.producer().commit_blocking(new_record(text.as_bytes()).ack(Ack::Written)).unwrap();
    };
    for text in ["first", "second"] {
        commit(&open(), text);
    }
    let mut reader = JournalReader::open(&path, &ReadFrom::Beginning, AtEnd::Follow).unwrap();
    let mut read = || {
        let mut found = Vec::new();
        while let Some(entry) = reader.read().unwrap() {
            if let JournalEntry::Record(record) = entry {
                found.push(String::from_utf8(record.payload.to_vec()).unwrap());
            }
        }
        found
    };
    assert_eq!(read(), ["first", "second"]);
    fs::remove_dir_all(&path).unwrap();
    assert!(read().is_empty(), "the reader waits for the folder");
    // Another journal, whose segments and records are numbered from the start.
    let journal = open();
    commit(&journal, "third");
    assert_eq!(read(), ["third"]);
    // The same journal in a folder that it has created again.
    fs::remove_dir_all(&path).unwrap();
    journal.reopen();
    commit(&journal, "fourth");
    assert_eq!(read(), ["fourth"]);
    commit(&journal, "fifth");
    assert_eq!(read(), ["fifth"]);
}
