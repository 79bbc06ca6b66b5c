//! What becomes of ended segments.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    time::{Duration, SystemTime},
};

use tempfile::TempDir;
use tidegate_journal::{
    Ack, AtEnd, Config, Entry, Journal, Pack, Reader, Retention, Space, Start, Time, repair, verify,
};

use crate::{LONG, note, payloads, segments, small, until};

fn rotating(folder: &Path, retention: Retention, pack: Pack) -> Config {
    let mut config = small(folder);
    (config.segment_bytes, config.record_bytes_max) = (32 << 10, 4 << 10);
    config.space = Space::Segments { retention, pack };
    config
}

/// Writes records of a KiB, some 30 to a segment.
fn write(journal: &Journal, records: usize) {
    let producer = journal.producer();
    for number in 0..records {
        producer.append_blocking(note(format!("{number:>1000}").as_bytes())).unwrap();
    }
    assert!(journal.flush(Ack::Written, LONG).unwrap());
}

#[test]
fn jo_46_the_oldest_segments_go_by_number_and_by_bytes() {
    let limits = [
        Retention { segments: Some(4), ..Retention::default() },
        Retention { bytes: Some(4 * (32 << 10)), ..Retention::default() },
    ];
    for retention in limits {
        let folder = TempDir::new().unwrap();
        let (journal, _) = Journal::open(rotating(folder.path(), retention, Pack::No)).unwrap();
        write(&journal, 500);
        until("the old ones are gone", || segments(folder.path()).len() <= 5);
        drop(journal);
        let left = payloads(folder.path());
        assert_eq!(left.last().unwrap(), format!("{:>1000}", 499).as_bytes());
        assert!(left.len() >= 60, "the newest stay: {}", left.len());
    }
}

#[test]
fn jo_46_segments_go_by_age() {
    let folder = TempDir::new().unwrap();
    let keep = Retention { age: Some(Duration::from_secs(3600)), ..Retention::default() };
    let (journal, _) = Journal::open(rotating(folder.path(), keep, Pack::No)).unwrap();
    write(&journal, 200);
    drop(journal);
    let (old, count) = (segments(folder.path())[0].clone(), segments(folder.path()).len());
    let two_hours_ago = SystemTime::now() - Duration::from_secs(7200);
    fs::File::options().write(true).open(&old).unwrap().set_modified(two_hours_ago).unwrap();
    let (journal, _) = Journal::open(rotating(folder.path(), keep, Pack::No)).unwrap();
    until("the old one is gone", || !old.exists());
    drop(journal);
    assert_eq!(segments(folder.path()).len(), count - 1);
}

fn dated(path: &std::path::Path, time: SystemTime) {
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// The clock was a year ahead, and was put right: what was written first has the latest times.
#[test]
fn jo_46_after_the_clock_went_back_the_oldest_go_first_all_the_same() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(rotating(folder.path(), Retention::default(), Pack::No)).unwrap();
    write(&journal, 200);
    drop(journal);
    let files = segments(folder.path());
    let ahead = SystemTime::now() + Duration::from_secs(365 * 24 * 3600);
    files[..files.len() / 2].iter().for_each(|path| dated(path, ahead));
    let keep = Retention { segments: Some(4), ..Retention::default() };
    let (journal, _) = Journal::open(rotating(folder.path(), keep, Pack::No)).unwrap();
    until("some are gone", || segments(folder.path()).len() <= 4);
    drop(journal);
    let left = segments(folder.path());
    assert_eq!(left[..], files[files.len() - left.len()..], "the newest stay");
}

#[test]
fn jo_46_what_stripes_left_that_are_no_more_goes_too() {
    let folder = TempDir::new().unwrap();
    let keep = Retention { age: Some(Duration::from_secs(3600)), ..Retention::default() };
    let config = rotating(folder.path(), keep, Pack::No);
    let (journal, _) = Journal::open(Config { stripes: 2, bytes_max: 128 << 10, ..config.clone() }).unwrap();
    for stripe in 0..2 {
        journal.producer_for(stripe).commit_blocking(note(b"old").ack(Ack::Written)).unwrap();
    }
    drop(journal);
    let files = segments(folder.path());
    files.iter().for_each(|path| dated(path, SystemTime::now() - Duration::from_secs(7200)));
    let (journal, _) = Journal::open(config).unwrap();
    until("that of the second stripe is gone", || !files[1].exists());
    assert!(files[0].exists(), "the newest of a stripe that there is may be open");
    drop(journal);
}

#[test]
fn what_an_earlier_life_left_takes_room_on_the_disk_as_well() {
    let folder = TempDir::new().unwrap();
    let config = rotating(folder.path(), Retention::default(), Pack::No);
    let (journal, _) = Journal::open(config.clone()).unwrap();
    write(&journal, 100);
    drop(journal);
    let sizes = || segments(folder.path()).iter().map(|path| path.metadata().unwrap().len()).sum::<u64>();
    let (journal, _) = Journal::open(config).unwrap();
    let counted = || (journal.stats().disk_bytes, journal.stats().segments);
    until("all of it is counted", || counted() == (sizes(), segments(folder.path()).len() as u64));
    write(&journal, 1);
    assert_eq!(counted(), (sizes(), segments(folder.path()).len() as u64), "and what is open");
    write(&journal, 100);
    until("what is new as well", || counted() == (sizes(), segments(folder.path()).len() as u64));
}

#[test]
fn jo_46_nothing_else_is_ever_removed() {
    let folder = TempDir::new().unwrap();
    let outside = TempDir::new().unwrap();
    let precious = outside.path().join("precious");
    fs::write(&precious, "not ours").unwrap();
    let path = |name: &str| folder.path().join(name);
    symlink(&precious, path("journal-00-0000000001.tgj")).unwrap();
    fs::create_dir(path("journal-00-0000000002.tgj")).unwrap();
    let foreign = ["journal-00-0000000003.tgj.damaged", "other-00-0000000001.tgj", "notes.txt", "journal-0-1.tgj"];
    foreign.iter().for_each(|name| fs::write(path(name), "not ours").unwrap());
    let keep = Retention { segments: Some(1), ..Retention::default() };
    let (journal, _) = Journal::open(rotating(folder.path(), keep, Pack::No)).unwrap();
    write(&journal, 300);
    let ours = || segments(folder.path()).into_iter().filter(|path| path.is_file() && !path.is_symlink());
    // Two of the foreign ones look like segments: `other-…` is one, of another journal.
    until("the old ones are gone", || ours().count() == 3);
    assert_eq!(fs::read(&precious).unwrap(), b"not ours");
    assert!(path("journal-00-0000000002.tgj").is_dir());
    assert!(path("journal-00-0000000001.tgj").is_symlink());
    foreign.iter().for_each(|name| assert_eq!(fs::read(path(name)).unwrap(), b"not ours", "{name}"));
    // The newest is open and stays, although it alone may be more than is to be kept.
    write(&journal, 1);
    drop(journal);
}

#[test]
#[cfg(feature = "zstd")]
fn ended_segments_are_packed_and_read_as_before() {
    let folder = TempDir::new().unwrap();
    let config = rotating(folder.path(), Retention::default(), Pack::Zstd(3));
    let (journal, _) = Journal::open(config).unwrap();
    write(&journal, 300);
    let packed = || segments(folder.path()).iter().filter(|path| path.extension().unwrap() == "zst").count();
    until("all but the newest are packed", || packed() + 1 == segments(folder.path()).len() && packed() >= 9);
    drop(journal);
    let expected: Vec<Vec<u8>> = (0..300).map(|number| format!("{number:>1000}").into_bytes()).collect();
    assert_eq!(payloads(folder.path()), expected);
    let verdict = verify(folder.path()).unwrap();
    assert!(verdict.is_whole() && verdict.records == 300, "{verdict:?}");
}

/// Batches that are synced as they are written sync what has ended in them as well, and upkeep is to hear of it.
#[test]
fn old_segments_of_durable_records_go_as_soon_as_others() {
    let folder = TempDir::new().unwrap();
    let retention = Retention { segments: Some(2), ..Retention::default() };
    let (journal, _) = Journal::open(rotating(folder.path(), retention, Pack::No)).unwrap();
    let producer = journal.producer();
    let mut rounds = 0;
    // A look every 30 s would be too few.
    until("old segments go, three times", || {
        if segments(folder.path()).len() <= 2 {
            rounds += 1;
            for _ in 0..100 {
                producer.commit_blocking(note(&[b'x'; 1000]).ack(Ack::Durable)).unwrap();
            }
        }
        rounds > 3
    });
}

/// What is behind the damage in the packed file is gone; all other files are read.
#[test]
#[cfg(feature = "zstd")]
fn jo_06_damage_in_a_packed_segment_is_reported_and_read_past() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(rotating(folder.path(), Retention::default(), Pack::Zstd(3))).unwrap();
    write(&journal, 300);
    let packed = || segments(folder.path()).into_iter().filter(|path| path.extension().unwrap() == "zst");
    until("all but the newest are packed", || packed().count() + 1 == segments(folder.path()).len());
    drop(journal);
    let middle = packed().nth(4).unwrap();
    let whole = fs::read(&middle).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2..].iter_mut().for_each(|byte| *byte = !*byte);
    for (what, bytes) in
        [("flipped", &flipped[..]), ("cut", &whole[..whole.len() / 2]), ("only its head", &whole[..90])]
    {
        fs::write(&middle, bytes).unwrap();
        let verdict = verify(folder.path()).unwrap();
        assert_eq!(verdict.damage.len(), 1, "{what}: {verdict:?}");
        assert_eq!(verdict.damage[0].path, middle, "{what}");
        assert!(verdict.missing > 0 && verdict.records + verdict.missing == 300, "{what}: {verdict:?}");
        assert_eq!(payloads(folder.path()).last().unwrap(), format!("{:>1000}", 299).as_bytes(), "{what}");
    }
    fs::write(&middle, &whole).unwrap();
    assert!(verify(folder.path()).unwrap().is_whole());
}

/// Lines have no checks, but bytes that cannot be unpacked are no lines.
#[test]
#[cfg(feature = "zstd")]
fn jo_06_damage_in_a_packed_segment_of_lines_is_reported_and_read_past() {
    let folder = TempDir::new().unwrap();
    let mut config = rotating(folder.path(), Retention::default(), Pack::Zstd(3));
    config.format = tidegate_journal::Format::Json;
    let (journal, _) = Journal::open(config).unwrap();
    write(&journal, 300);
    let packed = || segments(folder.path()).into_iter().filter(|path| path.extension().unwrap() == "zst");
    until("all but the newest are packed", || packed().count() + 1 == segments(folder.path()).len());
    drop(journal);
    let middle = packed().nth(4).unwrap();
    let whole = fs::read(&middle).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2..].iter_mut().for_each(|byte| *byte = !*byte);
    for (what, bytes) in [("flipped", &flipped[..]), ("cut", &whole[..whole.len() / 2]), ("noise", &[7; 90])] {
        fs::write(&middle, bytes).unwrap();
        let verdict = verify(folder.path()).unwrap();
        assert_eq!(verdict.damage.len(), 1, "{what}: {verdict:?}");
        assert!(verdict.damage[0].path == middle && !verdict.is_whole(), "{what}: {verdict:?}");
        assert_eq!(payloads(folder.path()).last().unwrap(), format!("{:>1000}", 299).as_bytes(), "{what}");
        // Repaired, it has the lines that could be unpacked, and the damaged file is kept.
        let repaired = repair(folder.path()).unwrap();
        assert_eq!(repaired.len(), 1, "{what}: {repaired:?}");
        assert_eq!(fs::read(&repaired[0].kept).unwrap(), bytes, "{what}");
        let after = verify(folder.path()).unwrap();
        assert!(after.is_whole() && after.records == verdict.records, "{what}: {verdict:?} {after:?}");
        assert!(repair(folder.path()).unwrap().is_empty(), "{what}");
        fs::remove_file(&repaired[0].path).unwrap();
    }
}

/// What stands before the packed bytes spares a reader the unpacking. If it is damaged, the bytes are what counts.
#[test]
#[cfg(feature = "zstd")]
fn jo_06_a_damaged_sum_before_a_packed_segment_hides_no_record() {
    const SUM_AT: usize = 8 + 64;
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(rotating(folder.path(), Retention::default(), Pack::Zstd(3))).unwrap();
    write(&journal, 300);
    let packed = || segments(folder.path()).into_iter().filter(|path| path.extension().unwrap() == "zst");
    until("all but the newest are packed", || packed().count() + 1 == segments(folder.path()).len());
    drop(journal);
    let middle = packed().nth(4).unwrap();
    let from = |start: &Start| -> (u64, usize) {
        let mut reader = Reader::open(folder.path(), start, AtEnd::Stop).unwrap();
        let mut times = Vec::new();
        while let Some(entry) = reader.read().unwrap() {
            if let Entry::Record(record) = entry {
                times.push(record.time);
            }
        }
        (times.get(times.len() / 2).unwrap().unix_nanos(), times.len())
    };
    let half = Start::Time(Time::from_unix_nanos(from(&Start::Beginning).0));
    let expected = from(&half);
    let mut bytes = fs::read(&middle).unwrap();
    // No records, ended before all time: there would be nothing to read here.
    bytes[SUM_AT..SUM_AT + 32].fill(0);
    bytes[SUM_AT] = 1;
    fs::write(&middle, &bytes).unwrap();
    assert_eq!(from(&half), expected);
    assert!(verify(folder.path()).unwrap().is_whole());
    assert_eq!(payloads(folder.path()).len(), 300);
}

/// A segment that would take many seconds to pack stays as it is.
#[test]
#[cfg(feature = "zstd")]
fn jo_39_closing_does_not_wait_for_what_is_being_packed() {
    let folder = TempDir::new().unwrap();
    let mut config = rotating(folder.path(), Retention::default(), Pack::Zstd(19));
    config.segment_bytes = 16 << 20;
    let (journal, _) = Journal::open(config).unwrap();
    let (producer, mut random) = (journal.producer(), fastrand::Rng::with_seed(crate::seed()));
    let words: Vec<u8> = std::iter::repeat_with(|| random.u8(b'a'..b'i')).take(4 << 20).collect();
    for payload in words.chunks(4_000).cycle().take((20 << 20) / 4_000) {
        producer.append_blocking(note(payload)).unwrap();
    }
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    let part = folder.path().join("journal-00-0000000001.tgj.zst.part");
    until("it is being packed", || part.exists());
    assert!(journal.close(LONG).is_complete());
    assert!(folder.path().join("journal-00-0000000001.tgj").exists() && !part.exists());
    assert_eq!(payloads(folder.path()).len(), (20 << 20) / 4_000);
}

#[test]
#[cfg(feature = "zstd")]
fn jo_04_dead_while_a_segment_is_packed() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(rotating(folder.path(), Retention::default(), Pack::No)).unwrap();
    write(&journal, 100);
    drop(journal);
    let expected = payloads(folder.path());
    let first = segments(folder.path())[0].clone();
    // Dead before the rename: half of a packed file under another name. Dead after it: both files.
    let part = folder.path().join("journal-00-0000000001.tgj.zst.part");
    fs::write(&part, "half").unwrap();
    let both = folder.path().join("journal-00-0000000001.tgj.zst");
    fs::write(&both, "whatever it is, the plain one counts").unwrap();
    assert_eq!(payloads(folder.path()), expected);
    let (journal, _) = Journal::open(rotating(folder.path(), Retention::default(), Pack::Zstd(1))).unwrap();
    until("it is packed again", || !first.exists());
    drop(journal);
    assert!(!part.exists());
    assert_eq!(payloads(folder.path()), expected);
}

#[test]
#[cfg(feature = "zstd")]
fn jo_09_no_room_to_pack_leaves_the_segment() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(rotating(folder.path(), Retention::default(), Pack::No)).unwrap();
    write(&journal, 100);
    drop(journal);
    let expected = payloads(folder.path());
    // A folder where the packed file is to be made stands for any error there.
    let part = folder.path().join("journal-00-0000000001.tgj.zst.part");
    fs::create_dir(&part).unwrap();
    let (told, tells) = std::sync::mpsc::channel();
    let config = rotating(folder.path(), Retention::default(), Pack::Zstd(1));
    let listener = move |event: &tidegate_journal::Event| drop(told.send(event.clone()));
    let (journal, _) = Journal::open_with(config, std::sync::Arc::new(tidegate_journal::Disk), listener).unwrap();
    let event = tells.recv_timeout(LONG).unwrap();
    assert!(matches!(&event, tidegate_journal::Event::Upkeep { .. }), "{event}");
    drop(journal);
    assert_eq!(payloads(folder.path()), expected);
}

#[test]
fn jo_44_ten_thousand_segments_are_opened_without_reading_them() {
    let folder = TempDir::new().unwrap();
    drop({
        let (journal, _) = Journal::open(small(folder.path())).unwrap();
        write(&journal, 1);
        journal
    });
    let segment = fs::read(&segments(folder.path())[0]).unwrap();
    for number in 2..10_000 {
        // What is in them would be reported as damage if it were read.
        fs::write(
            folder.path().join(format!("journal-00-{number:010}.tgj")),
            "unread, and longer than a header is: it would be reported if anybody looked at it",
        )
        .unwrap();
    }
    fs::write(folder.path().join("journal-00-0000010000.tgj"), segment).unwrap();
    let (journal, recovery) = Journal::open(small(folder.path())).unwrap();
    assert_eq!(recovery.segments, 10_000);
    assert!(recovery.is_clean(), "only the newest was read");
    drop(journal);
}

#[test]
fn a_ring_never_takes_more_of_the_disk() {
    let folder = TempDir::new().unwrap();
    let mut config = small(folder.path());
    (config.segment_bytes, config.space) = (64 << 10, Space::Ring { segments: 3 });
    for round in 0..3 {
        let (journal, recovery) = Journal::open(config.clone()).unwrap();
        assert!(recovery.is_clean(), "{recovery:?}");
        write(&journal, 400);
        assert!(journal.close(LONG).is_complete());
        let sizes: Vec<u64> = segments(folder.path()).iter().map(|path| path.metadata().unwrap().len()).collect();
        assert_eq!(sizes, [64 << 10; 3], "round {round}");
        let left = payloads(folder.path());
        assert!(left.len() > 100 && left.last().unwrap() == format!("{:>1000}", 399).as_bytes());
        let verdict = verify(folder.path()).unwrap();
        assert!(verdict.is_whole() && verdict.missing == 0, "{verdict:?}");
    }
}
