//! Reading while it is written.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

use tempfile::TempDir;
use tidegate_journal::{
    Ack, AtEnd, ClassConfig, Config, Entry, Format, Journal, Note, Overload, Pack, Position, Reader, Retention, Space,
    Start, Time,
};

use crate::{LONG, ONE, faults::Faulty, note, payloads, segments, small, until};

/// Follows a journal until `last` is read, and checks that nothing but whole records in their order is seen.
fn follow(folder: &std::path::Path, last: usize) {
    let mut reader = Reader::open(folder, &Start::Beginning, AtEnd::Follow).unwrap();
    let mut next = 0;
    until("all is read", || {
        while let Some(entry) = reader.read().unwrap() {
            let Entry::Record(record) = entry else { panic!("{entry:?} after {next}") };
            let text = std::str::from_utf8(record.payload).unwrap().trim();
            assert_eq!(text.parse::<usize>().unwrap(), next);
            next += 1;
        }
        next > last
    });
}

fn follows(mut config: Config, records: usize) {
    (config.segment_bytes, config.record_bytes_max) = (32 << 10, 1 << 10);
    let folder = config.folder.clone();
    let (journal, _) = Journal::open(config).unwrap();
    thread::scope(|scope| {
        let readers = [(); 2].map(|()| scope.spawn(|| follow(&folder, records - 1)));
        let producer = journal.producer();
        for number in 0..records {
            producer.append_blocking(note(format!("{number:>300}").as_bytes())).unwrap();
        }
        assert!(journal.flush(Ack::Written, LONG).unwrap());
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn jo_35_following_across_rotations_never_shows_half_a_record() {
    let folder = TempDir::new().unwrap();
    follows(small(folder.path()), 5_000);
}

#[test]
#[cfg(feature = "zstd")]
fn jo_35_following_while_segments_are_packed_behind_and_under_the_reader() {
    let folder = TempDir::new().unwrap();
    let space = Space::Segments { retention: Retention::default(), pack: Pack::Zstd(1) };
    follows(Config { space, ..small(folder.path()) }, 5_000);
}

#[test]
fn jo_35_following_lines() {
    for format in [Format::Json, Format::Text] {
        let folder = TempDir::new().unwrap();
        follows(Config { format, ..small(folder.path()) }, 2_000);
    }
}

/// A file of a ring is as long before a record is written as after it.
#[test]
fn jo_35_a_reader_of_a_ring_shows_what_was_written_since_it_read_the_file() {
    let folder = TempDir::new().unwrap();
    let (segment_bytes, space) = (1 << 20, Space::Ring { segments: 2 });
    let (journal, _) = Journal::open(Config { segment_bytes, space, ..small(folder.path()) }).unwrap();
    let producer = journal.producer();
    let commit = |number: usize| {
        producer.commit_blocking(note(format!("{number:>3000}").as_bytes()).ack(Ack::Written)).unwrap();
    };
    (0..10).for_each(commit);
    let mut reader = Reader::open(folder.path(), &Start::Beginning, AtEnd::Stop).unwrap();
    let mut next = || match reader.read().unwrap() {
        Some(Entry::Record(record)) => {
            Some(std::str::from_utf8(record.payload).unwrap().trim().parse::<usize>().unwrap())
        }
        None => None,
        Some(other) => panic!("{other:?}"),
    };
    assert_eq!(next(), Some(0));
    // Into the second file.
    (10..400).for_each(commit);
    for number in 1..400 {
        assert_eq!(next(), Some(number));
    }
    assert_eq!(next(), None);
}

#[test]
fn jo_35_a_reader_that_a_ring_laps_is_told_what_it_missed() {
    let folder = TempDir::new().unwrap();
    let mut config = small(folder.path());
    (config.segment_bytes, config.space) = (64 << 10, Space::Ring { segments: 2 });
    let (journal, _) = Journal::open(config).unwrap();
    let producer = journal.producer();
    let mut reader = Reader::open(folder.path(), &Start::Beginning, AtEnd::Follow).unwrap();
    let (mut seen, mut missing) = (0, 0);
    let mut read = |reader: &mut Reader| {
        while let Some(entry) = reader.read().unwrap() {
            match entry {
                Entry::Record(_) => seen += 1,
                Entry::Missing { records, .. } => missing += records,
                other => panic!("{other:?}"),
            }
        }
        (seen, missing)
    };
    for number in 0..1000_u64 {
        producer.commit_blocking(note(format!("{number:>500}").as_bytes()).ack(Ack::Written)).unwrap();
        if number == 3 {
            assert_eq!(read(&mut reader), (4, 0));
        }
    }
    let (seen, missing) = read(&mut reader);
    assert_eq!(seen + missing, 1000);
    assert!(seen > 100 && missing > 100, "{seen} {missing}");
}

/// What follows it in the newest segment was written, and is not yet to come.
#[test]
fn damage_in_the_segment_that_is_written_to_is_told_to_who_follows() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let producer = journal.producer();
    let commit = |payload: &[u8]| producer.commit_blocking(note(payload).ack(Ack::Written)).unwrap();
    for payload in ["one", "spoilt", "three"] {
        commit(payload.as_bytes());
    }
    let path = &crate::segments(folder.path())[0];
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.windows(6).position(|window| window == b"spoilt").unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, &bytes).unwrap();
    let mut reader = Reader::open(folder.path(), &Start::Beginning, AtEnd::Follow).unwrap();
    let mut read = || {
        let mut seen = Vec::new();
        while let Some(entry) = reader.read().unwrap() {
            seen.push(match entry {
                Entry::Record(record) => String::from_utf8(record.payload.to_vec()).unwrap(),
                Entry::Damage(_) => "damage".to_owned(),
                Entry::Missing { records, .. } => format!("{records} missing"),
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
fn a_reader_starts_where_another_one_stood() {
    let folder = TempDir::new().unwrap();
    let mut config = Config { stripes: 2, bytes_max: 128 << 10, ..small(folder.path()) };
    (config.segment_bytes, config.record_bytes_max) = (32 << 10, 1 << 10);
    let (journal, _) = Journal::open(config).unwrap();
    for number in 0..400_u64 {
        let record = format!("{number:>500}");
        let note = Note::new(ONE, record.as_bytes()).at(Time::from_unix_nanos(1000 + number));
        journal.producer().append_blocking(note).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
    let all = payloads(folder.path());
    let mut reader = Reader::open(folder.path(), &Start::Beginning, AtEnd::Stop).unwrap();
    for taken in 1..=400 {
        reader.read().unwrap().unwrap();
        if taken % 41 != 0 {
            continue;
        }
        let text = reader.position().to_string();
        let position: Position = text.parse().unwrap();
        let mut second = Reader::open(folder.path(), &Start::Position(position), AtEnd::Stop).unwrap();
        let mut rest = Vec::new();
        while let Some(entry) = second.read().unwrap() {
            let Entry::Record(record) = entry else { panic!("{entry:?}") };
            rest.push(record.payload.to_vec());
        }
        assert_eq!(rest, all[taken..], "{text}");
    }
    let mut reader = Reader::open(folder.path(), &Start::Time(Time::from_unix_nanos(1300)), AtEnd::Stop).unwrap();
    let mut later = 0;
    while reader.read().unwrap().is_some() {
        later += 1;
    }
    assert_eq!(later, 100);
    let (read, bytes) = reader.progress().unwrap();
    assert_eq!(read, bytes);
    assert!("nonsense".parse::<Position>().is_err());
}

#[test]
fn a_reader_of_the_end_sees_only_what_comes() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let producer = journal.producer();
    producer.commit_blocking(note(b"before").ack(Ack::Written)).unwrap();
    let mut reader = Reader::open(folder.path(), &Start::End, AtEnd::Follow).unwrap();
    assert_eq!(reader.read().unwrap(), None);
    producer.commit_blocking(note(b"after").ack(Ack::Written)).unwrap();
    assert!(matches!(reader.read().unwrap(), Some(Entry::Record(record)) if record.payload == b"after"));
    assert_eq!(reader.read().unwrap(), None);
}

#[test]
fn lines_can_be_read_by_anything() {
    for (format, file) in [(Format::Json, "journal-00-0000000001.jsonl"), (Format::Text, "journal-00-0000000001.log")] {
        let folder = TempDir::new().unwrap();
        let disk = Faulty::sound();
        let classes = vec![ClassConfig::new("say \"hi\"").overload(Overload::DropNewest)];
        let config = Config { format, classes, ..small(folder.path()) };
        let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
        let producer = journal.producer();
        disk.stall();
        producer.offer(note(br#"{"a":1}"#)).unwrap();
        while producer.offer(note(br#"{"b":"x"}"#)).is_ok() {}
        disk.go();
        assert!(journal.flush(Ack::Written, LONG).unwrap());
        producer.offer(note(b"{\"text\":\n\"two\"}")).unwrap();
        assert!(journal.close(LONG).is_complete());
        let text = fs::read_to_string(folder.path().join(file)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let last = if format == Format::Json { r#"{"text": "two"}"# } else { r#"{"text":\n"two"}"# };
        // The gap may come behind what was written after it.
        let last_record = *lines.iter().rfind(|line| !line.contains("gap")).unwrap();
        assert_eq!((lines[0], last_record), (r#"{"a":1}"#, last));
        let mode = fs::metadata(folder.path().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "records may be anything");
        let gap = lines.iter().find(|line| line.contains("gap")).unwrap();
        if format == Format::Json {
            let values: Vec<serde_json::Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert!(values.iter().any(|value| value["gap"]["class"] == "say \"hi\"" && value["gap"]["records"] == 1));
        } else {
            assert!(gap.starts_with("# gap class="), "{gap}");
        }
    }
}

/// Reads the number that a line begins with as its time in seconds.
fn seconds(line: &[u8]) -> Option<Time> {
    let number = std::str::from_utf8(line).ok()?.split(' ').next()?.parse::<u64>().ok()?;
    Some(Time::from_unix_nanos(number * 1_000_000_000))
}

#[test]
fn lines_have_times_where_somebody_can_read_them() {
    let folder = TempDir::new().unwrap();
    let config =
        Config { format: Format::Text, segment_bytes: 32 << 10, record_bytes_max: 1 << 10, ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    let producer = journal.producer();
    for number in 0..300 {
        producer.append_blocking(note(format!("{number} {}", "x".repeat(500)).as_bytes())).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
    assert!(segments(folder.path()).len() > 3);
    let start = Start::Time(Time::from_unix_nanos(200_000_000_000));
    let mut reader = Reader::open_with_clock(folder.path(), &start, AtEnd::Stop, seconds).unwrap();
    // The first segment that can hold any is not the first of all.
    let (before, all) = reader.progress().unwrap();
    assert!(before > all / 4, "{before} of {all}");
    for number in 200..300 {
        let Some(Entry::Record(record)) = reader.read().unwrap() else { panic!("{number}") };
        assert_eq!(record.time, Time::from_unix_nanos(number * 1_000_000_000));
    }
    assert_eq!(reader.read().unwrap(), None);
}

#[test]
fn one_segment_is_read_alone_and_segments_say_what_they_hold() {
    let folder = TempDir::new().unwrap();
    let config = Config { segment_bytes: 32 << 10, record_bytes_max: 1 << 10, ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    for number in 0..300_u64 {
        let note = Note::new(ONE, &[b'x'; 500]).at(Time::from_unix_nanos(number));
        journal.producer().append_blocking(note).unwrap();
    }
    assert!(tidegate_journal::is_open(folder.path()).unwrap());
    assert!(journal.close(LONG).is_complete());
    assert!(!tidegate_journal::is_open(folder.path()).unwrap());
    let found = tidegate_journal::segments(folder.path()).unwrap();
    let (mut records, mut next) = (0, 0);
    for segment in &found {
        let (told, times) = segment.records.expect("it ended in order");
        assert_eq!(times.map(|(first, _)| first), Some(Time::from_unix_nanos(next)));
        let mut reader = Reader::open_segment(&segment.path, AtEnd::Stop, None).unwrap();
        let mut seen = 0;
        while let Some(entry) = reader.read().unwrap() {
            let Entry::Record(record) = entry else { panic!("{entry:?}") };
            assert_eq!(record.time, Time::from_unix_nanos(next));
            (seen, next) = (seen + 1, next + 1);
        }
        assert_eq!((seen, reader.progress().unwrap()), (told, (segment.bytes, segment.bytes)));
        records += told;
    }
    assert_eq!((found.len() > 3, records), (true, 300));
    // A copy under the name that repair gives is one too; anything else is none.
    let copy = folder.path().join("journal-00-0000000001.tgj.damaged");
    fs::copy(&found[0].path, &copy).unwrap();
    assert!(Reader::open_segment(&copy, AtEnd::Stop, None).unwrap().read().unwrap().is_some());
    assert_eq!(tidegate_journal::segments(folder.path()).unwrap(), found);
    assert!(Reader::open_segment(folder.path().join("journal.lock"), AtEnd::Stop, None).is_err());
}

#[test]
fn a_torn_line_is_cut_when_it_is_opened() {
    let folder = TempDir::new().unwrap();
    let config = Config { format: Format::Text, ..small(folder.path()) };
    let (journal, _) = Journal::open(config.clone()).unwrap();
    journal.producer().append_blocking(note(b"whole\nand escaped")).unwrap();
    drop(journal);
    let path = segments(folder.path())[0].clone();
    let whole = fs::read(&path).unwrap();
    assert_eq!(whole, b"whole\\nand escaped\n");
    fs::write(&path, [&whole[..], b"half of a li"].concat()).unwrap();
    let (journal, recovery) = Journal::open(config).unwrap();
    assert_eq!((recovery.cut.len(), recovery.cut[0].bytes), (1, 12));
    drop(journal);
    assert_eq!(fs::read(&path).unwrap(), whole);
}

#[test]
fn jo_34_a_log_rotation_that_renames_cuts_or_deletes_is_noticed() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let producer = journal.producer();
    let commit = |text: &str| producer.commit_blocking(note(text.as_bytes()).ack(Ack::Written)).unwrap();
    // Renamed, and told so.
    commit("first");
    let open = || segments(folder.path()).pop().unwrap();
    let renamed = folder.path().join("renamed.1");
    fs::rename(open(), &renamed).unwrap();
    journal.reopen();
    commit("second");
    assert!(contains(&renamed, b"first") && contains(&open(), b"second"));
    // Cut to nothing: noticed at the next write.
    fs::File::options().write(true).open(open()).unwrap().set_len(0).unwrap();
    commit("third");
    assert!(contains(&open(), b"third"));
    // Deleted or renamed without a word: noticed within a second of writing.
    for text in ["fourth", "fifth"] {
        let before = open();
        if text == "fourth" {
            fs::remove_file(&before).unwrap();
        } else {
            fs::rename(&before, folder.path().join("renamed.2")).unwrap();
        }
        let gone = AtomicBool::new(true);
        until("it is noticed", || {
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

#[test]
fn jo_35_a_folder_that_goes_and_comes_again_is_followed() {
    let outer = TempDir::new().unwrap();
    let path = outer.path().join("journal");
    let open = || Journal::open(small(&path)).unwrap().0;
    let commit = |journal: &Journal, text: &str| {
        journal.producer().commit_blocking(note(text.as_bytes()).ack(Ack::Written)).unwrap();
    };
    for text in ["first", "second"] {
        commit(&open(), text);
    }
    let mut reader = Reader::open(&path, &Start::Beginning, AtEnd::Follow).unwrap();
    let mut read = || {
        let mut found = Vec::new();
        while let Some(entry) = reader.read().unwrap() {
            if let Entry::Record(record) = entry {
                found.push(String::from_utf8(record.payload.to_vec()).unwrap());
            }
        }
        found
    };
    assert_eq!(read(), ["first", "second"]);
    fs::remove_dir_all(&path).unwrap();
    assert!(read().is_empty(), "it is waited for");
    // Another journal, whose segments and records are numbered from the beginning.
    let journal = open();
    commit(&journal, "third");
    assert_eq!(read(), ["third"]);
    // The same journal in a folder that it has made anew.
    fs::remove_dir_all(&path).unwrap();
    journal.reopen();
    commit(&journal, "fourth");
    assert_eq!(read(), ["fourth"]);
    commit(&journal, "fifth");
    assert_eq!(read(), ["fifth"]);
}
