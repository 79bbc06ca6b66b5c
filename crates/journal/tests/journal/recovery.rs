//! Recovery of files that a crash, a bad disk or an editor may leave.

use std::{fs, path::Path, time::Duration};

use proptest::prelude::*;
use tempfile::TempDir;
use tidegate_journal::{
    Ack, AtEnd, DamageKind, Journal, JournalConfig, JournalEntry, JournalReader, ReadFrom, repair, verify,
};

use crate::{LONG, new_record, payloads, segments, small};

/// Writes a folder with one segment of `records` records.
fn written(folder: &Path, records: usize) -> Vec<Vec<u8>> {
    let (journal, _) = Journal::open(small(folder)).unwrap();
    let producer = journal.producer();
    for number in 0..records {
        producer.commit_blocking(new_record(format!("record {number}").as_bytes()).ack(Ack::Written)).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
    payloads(folder)
}

/// JO-06: bit flip is located and costs one record.
#[test]
fn bit_flip_is_located_and_costs_one_record() {
    let folder = TempDir::new().unwrap();
    let records = written(folder.path(), 20);
    let path = &segments(folder.path())[0];
    let intact = fs::read(path).unwrap();
    let frame = 24 + "record 10".len();
    // The eleventh record: ten records are before it.
    let at = 64 + 10 * (24 + "record 0".len());
    for byte in at..at + frame {
        let mut bytes = intact.clone();
        bytes[byte] ^= 0x10;
        fs::write(path, &bytes).unwrap();
        let report = verify(folder.path()).unwrap();
        assert!(!report.is_intact());
        let [damage] = &report.damage[..] else { panic!("{report:?}") };
        assert_eq!((damage.at, damage.bytes, damage.kind), (at as u64, frame as u64, DamageKind::Middle), "{byte}");
        assert_eq!((report.records, report.missing), (19, 1));
        let left = payloads(folder.path());
        assert!(left[..10] == records[..10] && left[10..] == records[11..]);
        // Opening the journal reports nothing and truncates nothing: the segment was ended.
        drop(Journal::open(small(folder.path())).unwrap());
        assert_eq!(fs::read(path).unwrap(), bytes);
    }
}

/// JO-06: damage in an unended segment is not truncated.
#[test]
fn damage_in_an_unended_segment_is_not_truncated() {
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
    journal.producer().commit_blocking(new_record(b"afterwards").ack(Ack::Written)).unwrap();
    drop(journal);
    assert_eq!(payloads(folder.path()).len(), 20, "19 of 20, and the new record");
}

/// JO-06: repair keeps valid records and a backup.
#[test]
fn repair_keeps_valid_records_and_a_backup() {
    let folder = TempDir::new().unwrap();
    let records = written(folder.path(), 20);
    let path = segments(folder.path())[0].clone();
    let mut bytes = fs::read(&path).unwrap();
    bytes[200] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let repaired = repair(folder.path()).unwrap();
    assert_eq!((repaired.len(), repaired[0].records), (1, 19));
    assert_eq!(fs::read(&repaired[0].backup).unwrap(), bytes);
    let report = verify(folder.path()).unwrap();
    assert!(report.damage.is_empty() && report.missing == 1 && report.records == 19, "{report:?}");
    assert!(payloads(folder.path()).iter().all(|record| records.contains(record)));
    assert!(repair(folder.path()).unwrap().is_empty(), "nothing is left to repair");
}

/// JO-06: second repair keeps the first backup.
#[test]
fn second_repair_keeps_the_first_backup() {
    let folder = TempDir::new().unwrap();
    written(folder.path(), 20);
    let path = segments(folder.path())[0].clone();
    let mut damaged = Vec::new();
    for at in [200, 300] {
        let mut bytes = fs::read(&path).unwrap();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        damaged.push((repair(folder.path()).unwrap()[0].backup.clone(), bytes));
    }
    assert_eq!(payloads(folder.path()).len(), 18);
    for (kept, bytes) in damaged {
        assert_eq!(fs::read(&kept).unwrap(), bytes);
        assert!(JournalReader::open_segment(&kept, AtEnd::Stop, None).is_ok(), "the backup can be opened");
    }
}

/// JO-06: each damaged segment is repaired once.
#[test]
fn each_damaged_segment_is_repaired_once() {
    let folder = TempDir::new().unwrap();
    let config = JournalConfig { stripes: 2, bytes_max: 128 << 10, ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    let producers = [journal.producer_for(0), journal.producer_for(1)];
    for number in 0..40 {
        producers[number % 2].commit_blocking(new_record(&[b'x'; 76]).ack(Ack::Written)).unwrap();
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

/// JO-08: empty files are removed.
#[test]
fn empty_files_are_removed() {
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
        journal.producer().commit_blocking(new_record(b"first").ack(Ack::Written)).unwrap();
        drop(journal);
        assert_eq!(payloads(folder.path()), [b"first"], "after {} bytes", content.len());
        assert!(verify(folder.path()).unwrap().is_intact());
    }
}

/// JO-08: file that is not a segment is reported.
#[test]
fn file_that_is_not_a_segment_is_reported() {
    let folder = TempDir::new().unwrap();
    let first = folder.path().join("journal-00-0000000001.tgj");
    fs::write(&first, "a foreign file that is longer than the header of a segment, put here by mistake").unwrap();
    let (journal, recovery) = Journal::open(small(folder.path())).unwrap();
    assert_eq!(recovery.damage[0].kind, DamageKind::SegmentHeader);
    journal.producer().commit_blocking(new_record(b"first").ack(Ack::Written)).unwrap();
    drop(journal);
    assert!(first.exists());
    assert_eq!(payloads(folder.path()), [b"first"]);
    let repaired = repair(folder.path()).unwrap();
    assert!(repaired[0].backup.exists() && !first.exists());
}

/// JO-06: renamed segment is reported with its name.
#[test]
fn renamed_segment_is_reported_with_its_name() {
    let folder = TempDir::new().unwrap();
    let short_lived = JournalConfig { segment_age: Some(Duration::from_nanos(1)), ..small(folder.path()) };
    for round in 0_u8..3 {
        let (journal, _) = Journal::open(short_lived.clone()).unwrap();
        journal.producer().commit_blocking(new_record(&[round]).ack(Ack::Written)).unwrap();
    }
    let files = segments(folder.path());
    let aside = folder.path().join("aside");
    for (from, to) in [(&files[0], &aside), (&files[1], &files[0]), (&aside, &files[1])] {
        fs::rename(from, to).unwrap();
    }
    let report = verify(folder.path()).unwrap();
    assert!(!report.is_intact());
    let damage_found: Vec<_> = report.damage.iter().map(|damage| (damage.path.clone(), damage.kind)).collect();
    let misplaced = |number| DamageKind::Misplaced { stripe: 0, number };
    assert_eq!(damage_found, [(files[0].clone(), misplaced(2)), (files[1].clone(), misplaced(1))]);
    assert!(repair(folder.path()).unwrap().is_empty() && files.iter().all(|file| file.exists()));
    // A reader from the end does not report earlier damage.
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let mut reader = JournalReader::open(folder.path(), &ReadFrom::End, AtEnd::Follow).unwrap();
    journal.producer().commit_blocking(new_record(b"next").ack(Ack::Written)).unwrap();
    let next = std::iter::from_fn(|| Some(reader.read().unwrap().map(|entry| format!("{entry:?}")))).flatten().next();
    assert!(next.is_some_and(|next| next.contains("JournalRecord")));
    // A single segment can be read under any name, as it may be anywhere.
    let mut alone = JournalReader::open_segment(&files[0], AtEnd::Stop, None).unwrap();
    assert!(matches!(alone.read().unwrap(), Some(JournalEntry::Record(record)) if record.payload == [1]));
}

#[test]
fn sequence_numbers_continue_after_any_end() {
    let folder = TempDir::new().unwrap();
    let mut next = 0;
    for round in 0..6 {
        let (journal, _) = Journal::open(small(folder.path())).unwrap();
        let record_id = journal.producer().commit_blocking(new_record(b"x").ack(Ack::Written)).unwrap();
        assert!(record_id.seq() >= next, "numbers must grow, as readers skip known ones");
        next = record_id.seq() + 1;
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

/// Reads and opens a folder with an arbitrary file: nothing panics, and no record is read twice.
fn check_arbitrary_file(bytes: &[u8], file: &str) -> Result<(), TestCaseError> {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join(file), bytes).unwrap();
    let before = payloads(folder.path());
    let mut follower = JournalReader::open(folder.path(), &ReadFrom::Beginning, AtEnd::Follow).unwrap();
    while follower.read().unwrap().is_some() {}
    verify(folder.path()).unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    journal.producer().commit_blocking(new_record(b"the last").ack(Ack::Written)).unwrap();
    drop(journal);
    let after = payloads(folder.path());
    prop_assert_eq!(&after[..after.len() - 1], &before[..], "recovery lost or added records");
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

    /// JO-45: arbitrary bytes do not panic.
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        check_arbitrary_file(&bytes, "journal-00-0000000001.tgj")?;
    }

    /// JO-45: changed segments do not panic.
    #[test]
    fn changed_segments_do_not_panic(changes in prop::collection::vec(change(), 1..4)) {
        let folder = TempDir::new().unwrap();
        written(folder.path(), 10);
        let mut bytes = fs::read(&segments(folder.path())[0]).unwrap();
        changes.iter().for_each(|change| change.make(&mut bytes));
        check_arbitrary_file(&bytes, "journal-00-0000000001.tgj")?;
    }
}
