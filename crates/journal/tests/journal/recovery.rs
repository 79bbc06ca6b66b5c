//! Files as a crash, a bad disk or an editor may leave them.

use std::{fs, path::Path};

use proptest::prelude::*;
use tempfile::TempDir;
use tidegate_journal::{Ack, AtEnd, DamageKind, Entry, Journal, Reader, Start, repair, verify};

use crate::{LONG, note, payloads, segments, small};

/// A folder with one segment of so many records.
fn written(folder: &Path, records: usize) -> Vec<Vec<u8>> {
    let (journal, _) = Journal::open(small(folder)).unwrap();
    let producer = journal.producer();
    for number in 0..records {
        producer.commit_blocking(note(format!("record {number}").as_bytes()).ack(Ack::Written)).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
    payloads(folder)
}

#[test]
fn jo_06_a_flipped_bit_is_reported_with_its_place_and_costs_one_record() {
    let folder = TempDir::new().unwrap();
    let records = written(folder.path(), 20);
    let path = &segments(folder.path())[0];
    let sound = fs::read(path).unwrap();
    let frame = 24 + "record 10".len();
    // The eleventh record: ten of nine and ten bytes are before it.
    let at = 64 + 10 * (24 + "record 0".len());
    for byte in at..at + frame {
        let mut bytes = sound.clone();
        bytes[byte] ^= 0x10;
        fs::write(path, &bytes).unwrap();
        let verdict = verify(folder.path()).unwrap();
        assert!(!verdict.is_whole());
        let [damage] = &verdict.damage[..] else { panic!("{verdict:?}") };
        assert_eq!((damage.at, damage.bytes, damage.kind), (at as u64, frame as u64, DamageKind::Middle), "{byte}");
        assert_eq!((verdict.records, verdict.missing), (19, 1));
        let left = payloads(folder.path());
        assert!(left[..10] == records[..10] && left[10..] == records[11..]);
        // Opening it reports nothing new and cuts nothing: the segment was ended in order.
        drop(Journal::open(small(folder.path())).unwrap());
        assert_eq!(fs::read(path).unwrap(), bytes);
    }
}

#[test]
fn jo_06_damage_in_a_segment_that_was_not_ended_is_reported_when_it_is_opened_and_not_cut() {
    let folder = TempDir::new().unwrap();
    written(folder.path(), 20);
    let path = &segments(folder.path())[0];
    let mut bytes = fs::read(path).unwrap();
    bytes.truncate(bytes.len() - 56);
    bytes[200] ^= 1;
    fs::write(path, &bytes).unwrap();
    let (journal, recovery) = Journal::open(small(folder.path())).unwrap();
    assert_eq!(recovery.damage.len(), 1, "{recovery:?}");
    assert_eq!(fs::read(path).unwrap(), bytes);
    journal.producer().commit_blocking(note(b"afterwards").ack(Ack::Written)).unwrap();
    drop(journal);
    assert_eq!(payloads(folder.path()).len(), 20, "19 of 20, and the new one");
}

#[test]
fn jo_06_repair_keeps_what_is_good_and_the_damaged_file() {
    let folder = TempDir::new().unwrap();
    let records = written(folder.path(), 20);
    let path = segments(folder.path())[0].clone();
    let mut bytes = fs::read(&path).unwrap();
    bytes[200] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let repaired = repair(folder.path()).unwrap();
    assert_eq!((repaired.len(), repaired[0].records), (1, 19));
    assert_eq!(fs::read(&repaired[0].kept).unwrap(), bytes);
    let verdict = verify(folder.path()).unwrap();
    assert!(verdict.damage.is_empty() && verdict.missing == 1 && verdict.records == 19, "{verdict:?}");
    assert!(payloads(folder.path()).iter().all(|record| records.contains(record)));
    assert!(repair(folder.path()).unwrap().is_empty(), "there is nothing left to do");
}

#[test]
fn jo_06_what_was_damaged_stays_when_a_segment_is_repaired_again() {
    let folder = TempDir::new().unwrap();
    written(folder.path(), 20);
    let path = segments(folder.path())[0].clone();
    let mut damaged = Vec::new();
    for at in [200, 300] {
        let mut bytes = fs::read(&path).unwrap();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        damaged.push((repair(folder.path()).unwrap()[0].kept.clone(), bytes));
    }
    assert_eq!(payloads(folder.path()).len(), 18);
    for (kept, bytes) in damaged {
        assert_eq!(fs::read(&kept).unwrap(), bytes);
        assert!(Reader::open_segment(&kept, AtEnd::Stop, None).is_ok(), "and is read by its name");
    }
}

#[test]
fn jo_06_each_damaged_segment_is_repaired_once_wherever_its_damage_is() {
    let folder = TempDir::new().unwrap();
    let config = tidegate_journal::Config { stripes: 2, bytes_max: 128 << 10, ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    let producers = [journal.producer_for(0), journal.producer_for(1)];
    for number in 0..40 {
        producers[number % 2].commit_blocking(note(&[b'x'; 76]).ack(Ack::Written)).unwrap();
    }
    drop((journal, producers));
    let files = segments(folder.path());
    // The third and the seventeenth record of one stripe, and the tenth of the other.
    for (file, record) in [(0, 2), (0, 16), (1, 9)] {
        let mut bytes = fs::read(&files[file]).unwrap();
        bytes[64 + record * 100 + 50] ^= 1;
        fs::write(&files[file], bytes).unwrap();
    }
    assert_eq!(verify(folder.path()).unwrap().damage.len(), 3);
    let repaired = repair(folder.path()).unwrap();
    let records: Vec<u64> = repaired.iter().map(|repaired| repaired.records).collect();
    assert_eq!(records, [18, 19], "{repaired:?}");
}

#[test]
fn jo_08_files_with_nothing_in_them() {
    let header = {
        let folder = TempDir::new().unwrap();
        written(folder.path(), 1);
        fs::read(&segments(folder.path())[0]).unwrap()[..64].to_vec()
    };
    let contents: [&[u8]; 6] = [b"", b"T", &header[..63], &header, &[0; 64], &[0; 100_000]];
    for content in contents {
        let folder = TempDir::new().unwrap();
        let first = folder.path().join("journal-00-0000000001.tgj");
        fs::write(&first, content).unwrap();
        assert!(payloads(folder.path()).is_empty());
        let (journal, recovery) = Journal::open(small(folder.path())).unwrap();
        assert!(recovery.damage.is_empty(), "{recovery:?}");
        journal.producer().commit_blocking(note(b"first").ack(Ack::Written)).unwrap();
        drop(journal);
        assert_eq!(payloads(folder.path()), [b"first"], "after {} bytes", content.len());
        assert!(verify(folder.path()).unwrap().is_whole());
    }
}

#[test]
fn jo_08_a_file_that_is_no_segment_is_reported_and_kept() {
    let folder = TempDir::new().unwrap();
    let first = folder.path().join("journal-00-0000000001.tgj");
    fs::write(&first, "a letter to somebody, longer than a header is, which was put here by mistake").unwrap();
    let (journal, recovery) = Journal::open(small(folder.path())).unwrap();
    assert_eq!(recovery.damage[0].kind, DamageKind::Header);
    journal.producer().commit_blocking(note(b"first").ack(Ack::Written)).unwrap();
    drop(journal);
    assert!(first.exists());
    assert_eq!(payloads(folder.path()), [b"first"]);
    let repaired = repair(folder.path()).unwrap();
    assert!(repaired[0].kept.exists() && !first.exists());
}

#[test]
fn jo_06_a_segment_that_was_renamed_is_reported_with_the_name_it_should_have() {
    let folder = TempDir::new().unwrap();
    for round in 0_u8..3 {
        let (journal, _) = Journal::open(small(folder.path())).unwrap();
        journal.producer().commit_blocking(note(&[round]).ack(Ack::Written)).unwrap();
    }
    let files = segments(folder.path());
    let aside = folder.path().join("aside");
    for (from, to) in [(&files[0], &aside), (&files[1], &files[0]), (&aside, &files[1])] {
        fs::rename(from, to).unwrap();
    }
    let verdict = verify(folder.path()).unwrap();
    assert!(!verdict.is_whole());
    let said: Vec<_> = verdict.damage.iter().map(|damage| (damage.path.clone(), damage.kind)).collect();
    let says = |number| DamageKind::Misplaced { stripe: 0, number };
    assert_eq!(said, [(files[0].clone(), says(2)), (files[1].clone(), says(1))]);
    assert!(repair(folder.path()).unwrap().is_empty() && files.iter().all(|file| file.exists()));
    // Whoever follows from the end is not told of what is before it.
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let mut reader = Reader::open(folder.path(), &Start::End, AtEnd::Follow).unwrap();
    journal.producer().commit_blocking(note(b"next").ack(Ack::Written)).unwrap();
    let next = std::iter::from_fn(|| Some(reader.read().unwrap().map(|entry| format!("{entry:?}")))).flatten().next();
    assert!(next.is_some_and(|next| next.contains("Record")));
    // Alone it is read under any name, as it may lie anywhere.
    let mut alone = Reader::open_segment(&files[0], AtEnd::Stop, None).unwrap();
    assert!(matches!(alone.read().unwrap(), Some(Entry::Record(record)) if record.payload == [1]));
}

#[test]
fn numbers_go_on_after_every_kind_of_end() {
    let folder = TempDir::new().unwrap();
    let mut next = 0;
    for round in 0..6 {
        let (journal, _) = Journal::open(small(folder.path())).unwrap();
        let ticket = journal.producer().commit_blocking(note(b"x").ack(Ack::Written)).unwrap();
        assert!(ticket.seq() >= next, "numbers only grow, or readers would pass over records");
        next = ticket.seq() + 1;
        drop(journal);
        let newest = segments(folder.path()).pop().unwrap();
        let bytes = fs::read(&newest).unwrap();
        match round % 3 {
            0 => {}
            1 => fs::write(&newest, &bytes[..bytes.len() - 10]).unwrap(),
            _ => fs::write(&newest, [b"??", &bytes[..]].concat()).unwrap(),
        }
    }
}

/// Reads everything there is, and opens it, whatever it is: nothing panics, and nothing is read twice.
fn survive(bytes: &[u8], file: &str) -> Result<(), TestCaseError> {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join(file), bytes).unwrap();
    let before = payloads(folder.path());
    let mut follower = Reader::open(folder.path(), &Start::Beginning, AtEnd::Follow).unwrap();
    while follower.read().unwrap().is_some() {}
    verify(folder.path()).unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    journal.producer().commit_blocking(note(b"the last").ack(Ack::Written)).unwrap();
    drop(journal);
    let after = payloads(folder.path());
    prop_assert_eq!(&after[..after.len() - 1], &before[..], "recovery lost or invented records");
    prop_assert_eq!(after.last().map(Vec::as_slice), Some(b"the last".as_slice()));
    repair(folder.path()).unwrap();
    prop_assert_eq!(payloads(folder.path()), after);
    Ok(())
}

#[derive(Clone, Debug)]
enum Change {
    Flip(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Repeat(prop::sample::Index, prop::sample::Index),
    Zero(prop::sample::Index, u8),
    Append(Vec<u8>),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any::<prop::sample::Index>(), 1..=255_u8).prop_map(|(at, bits)| Change::Flip(at, bits)),
        any::<prop::sample::Index>().prop_map(Change::Cut),
        any::<(prop::sample::Index, prop::sample::Index)>().prop_map(|(at, from)| Change::Repeat(at, from)),
        any::<(prop::sample::Index, u8)>().prop_map(|(at, len)| Change::Zero(at, len)),
        prop::collection::vec(any::<u8>(), 0..200).prop_map(Change::Append),
    ]
}

impl Change {
    fn make(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        match self {
            Self::Flip(at, bits) => {
                let at = at.index(bytes.len());
                bytes[at] ^= bits;
            }
            Self::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Self::Repeat(at, from) => {
                let part = bytes[from.index(bytes.len())..].to_vec();
                bytes.truncate(at.index(bytes.len()));
                bytes.extend(part);
            }
            Self::Zero(at, len) => {
                let at = at.index(bytes.len());
                bytes[at..].iter_mut().take(usize::from(*len)).for_each(|byte| *byte = 0);
            }
            Self::Append(more) => bytes.extend(more),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn jo_45_arbitrary_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        survive(&bytes, "journal-00-0000000001.tgj")?;
    }

    #[test]
    fn jo_45_changed_segments_are_survived(changes in prop::collection::vec(change(), 1..4)) {
        let folder = TempDir::new().unwrap();
        written(folder.path(), 10);
        let mut bytes = fs::read(&segments(folder.path())[0]).unwrap();
        changes.iter().for_each(|change| change.make(&mut bytes));
        survive(&bytes, "journal-00-0000000001.tgj")?;
    }
}
