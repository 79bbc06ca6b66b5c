//! Random damage, checked against a model with the place of each record: every intact record is read, nothing else
//! is, and a repair keeps every readable record.

use std::{fs, ops::Range, path::Path};

use tempfile::TempDir;
use tidegate_journal::{
    Ack, AtEnd, Compression, DamageKind, Journal, JournalConfig, JournalEntry, JournalReader, ReadFrom, Retention,
    SegmentPolicy, repair, verify,
};

use crate::{LONG, new_record, payloads, rounds, seed, segments, small, until};

const HEADER: usize = 64;
const HEAD: usize = 24;
const RECORDS: usize = 240;

/// A record as written, with its place.
#[derive(Clone)]
struct WrittenRecord {
    file: usize,
    at: Range<usize>,
    payload: Vec<u8>,
}

fn config(folder: &Path, segment_policy: SegmentPolicy) -> JournalConfig {
    let mut config = small(folder);
    (config.segment_bytes, config.record_bytes_max, config.segment_policy) = (32 << 10, 4 << 10, segment_policy);
    config
}

/// Writes a journal of several segments, and locates its records by their length fields.
fn journal(folder: &Path, segment_policy: SegmentPolicy, random: &mut fastrand::Rng) -> Vec<WrittenRecord> {
    let (journal, _) = Journal::open(config(folder, segment_policy)).unwrap();
    let producer = journal.producer();
    for number in 0..RECORDS {
        let filler = "x".repeat(random.usize(..700));
        producer.append_blocking(new_record(format!("{number} {filler}").as_bytes())).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
    let mut written = Vec::new();
    for (file, path) in segments(folder).iter().enumerate() {
        let bytes = fs::read(path).unwrap();
        let mut at = HEADER;
        while let Some(head) = bytes.get(at..at + HEAD).filter(|head| head[HEAD - 1] == 1) {
            let end = at + HEAD + u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
            let payload = bytes[at + HEAD..end].to_vec();
            written.push(WrittenRecord { file, at: at..end, payload });
            at = end;
        }
    }
    assert_eq!(payloads(folder), written.iter().map(|written| written.payload.clone()).collect::<Vec<_>>());
    written
}

/// Damages or truncates bytes of a file. Returns their range.
fn damage(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) -> Range<usize> {
    let at = random.usize(..bytes.len());
    let within = |at: usize, len: usize| at..(at + len).min(bytes.len());
    let damaged = match random.u8(..5) {
        0 => within(at, 1),
        1 => within(at, random.usize(1..300)),
        2 => within(at / 512 * 512, 512),
        3 => within(at / 4096 * 4096, 4096),
        _ => at..bytes.len(),
    };
    match random.u8(..4) {
        0 if damaged.end == bytes.len() => bytes.truncate(damaged.start),
        0 | 1 => bytes[damaged.clone()].fill(0),
        2 => bytes[damaged.clone()].iter_mut().for_each(|byte| *byte = !*byte),
        _ => bytes[damaged.start] ^= 1 << random.u8(..8),
    }
    damaged
}

/// Whether a range of a file is unchanged.
fn is_unchanged(now: &[u8], before: &[u8], at: &Range<usize>) -> bool {
    now.get(at.clone()) == before.get(at.clone())
}

/// Whether a reader can recover the salt: from the header, from the first record together with another one or the
/// summary, or from the summary together with any record.
fn has_salt(now: &[u8], before: &[u8], whole: &[&WrittenRecord], records: usize) -> bool {
    let seal = before.len() - 56..before.len();
    let has_seal = now.len() == before.len() && is_unchanged(now, before, &seal) && before[seal.start + 23] == 3;
    let has_first = whole.first().is_some_and(|first| first.at.start == HEADER);
    is_unchanged(now, before, &(0..HEADER))
        || (records > 0 && has_first && (whole.len() > 1 || has_seal))
        || (has_seal && !whole.is_empty())
}

fn check(segment_policy: impl Fn() -> SegmentPolicy, random: &mut fastrand::Rng) {
    let folder = TempDir::new().unwrap();
    let written = journal(folder.path(), segment_policy(), random);
    let files = segments(folder.path());
    let before: Vec<Vec<u8>> = files.iter().map(|path| fs::read(path).unwrap()).collect();
    let mut now = before.clone();
    for _ in 0..random.usize(1..4) {
        let file = random.usize(..files.len());
        if !now[file].is_empty() {
            damage(&mut now[file], random);
            fs::write(&files[file], &now[file]).unwrap();
        }
    }
    let mut expected = Vec::new();
    for file in 0..files.len() {
        let own: Vec<&WrittenRecord> = written.iter().filter(|written| written.file == file).collect();
        let whole: Vec<&WrittenRecord> =
            own.iter().copied().filter(|written| is_unchanged(&now[file], &before[file], &written.at)).collect();
        if has_salt(&now[file], &before[file], &whole, own.len()) {
            expected.extend(whole.into_iter().map(|written| written.payload.clone()));
        }
    }
    let shown = payloads(folder.path());
    assert_eq!(numbers(&shown), numbers(&expected));
    assert_eq!(shown, expected);
    let report = verify(folder.path()).unwrap();
    assert_eq!(report.records, shown.len() as u64);
    let is_run = written.windows(shown.len().max(1)).any(|run| run.iter().map(|record| &record.payload).eq(&shown));
    assert!(!report.is_intact() || is_run || shown.is_empty(), "a loss between other records is reported: {report:?}");
    check_repair(folder.path(), &shown, segment_policy());
}

/// Checks that a repair keeps all readable records and leaves no damage, and that the journal continues.
fn check_repair(folder: &Path, shown: &[Vec<u8>], segment_policy: SegmentPolicy) {
    repair(folder).unwrap();
    assert_eq!(numbers(&payloads(folder)), numbers(shown), "after the repair");
    let report = verify(folder).unwrap();
    assert!(report.damage.is_empty(), "{report:?}");
    assert!(repair(folder).unwrap().is_empty());
    let is_ring = matches!(segment_policy, SegmentPolicy::Ring { .. });
    let (journal, recovery) = Journal::open(config(folder, segment_policy)).unwrap();
    assert!(recovery.damage.is_empty(), "{recovery:?}");
    journal.producer().commit_blocking(new_record(b"afterwards").ack(Ack::Written)).unwrap();
    drop(journal);
    let after = payloads(folder);
    assert_eq!(after.last().unwrap(), b"afterwards");
    assert!(is_ring || numbers(&after[..after.len() - 1]) == numbers(shown), "after the journal continued");
}

/// The numbers at the start of the records, for readable failures.
fn numbers(payloads: &[Vec<u8>]) -> Vec<String> {
    let number = |payload: &Vec<u8>| String::from_utf8_lossy(payload).split(' ').next().unwrap_or_default().to_owned();
    payloads.iter().map(number).collect()
}

/// JO-06: intact records survive damage.
#[test]
fn intact_records_survive_damage() {
    let mut random = fastrand::Rng::with_seed(seed());
    for _ in 0..rounds("TIDEGATE_JOURNAL_DAMAGES", 60) {
        check(|| SegmentPolicy::Rolling { retention: Retention::default(), compression: Compression::No }, &mut random);
    }
}

/// JO-06: intact records survive damage in a ring.
#[test]
fn intact_records_survive_damage_in_a_ring() {
    let mut random = fastrand::Rng::with_seed(seed());
    for _ in 0..rounds("TIDEGATE_JOURNAL_DAMAGES", 60) {
        check(|| SegmentPolicy::Ring { segments: 4 }, &mut random);
    }
}

/// JO-06: header bit flip loses no record.
#[test]
fn header_bit_flip_loses_no_record() {
    let folder = TempDir::new().unwrap();
    let mut random = fastrand::Rng::with_seed(seed());
    let segment_policy = || SegmentPolicy::Rolling { retention: Retention::default(), compression: Compression::No };
    let written = journal(folder.path(), segment_policy(), &mut random);
    let path = segments(folder.path())[1].clone();
    let intact = fs::read(&path).unwrap();
    for byte in 0..HEADER {
        let mut bytes = intact.clone();
        bytes[byte] ^= 0x10;
        fs::write(&path, bytes).unwrap();
        let report = verify(folder.path()).unwrap();
        let [damage] = &report.damage[..] else { panic!("{report:?}") };
        assert_eq!((damage.at, damage.bytes, damage.kind), (0, HEADER as u64, DamageKind::Middle), "{byte}");
        assert_eq!((report.records, report.missing), (written.len() as u64, 0), "{byte}");
    }
    check_repair(folder.path(), &payloads(folder.path()), segment_policy());
    assert!(verify(folder.path()).unwrap().is_intact(), "the header was rewritten");
    // A journal that opens such a segment reports it, and continues after its last sequence number.
    let newest = segments(folder.path()).pop().unwrap();
    let mut bytes = fs::read(&newest).unwrap();
    bytes[12] ^= 1;
    fs::write(&newest, bytes).unwrap();
    let (journal, recovery) = Journal::open(config(folder.path(), segment_policy())).unwrap();
    assert_eq!(recovery.damage.len(), 1, "{recovery:?}");
    journal.producer().commit_blocking(new_record(b"after it").ack(Ack::Written)).unwrap();
    drop(journal);
    let report = verify(folder.path()).unwrap();
    assert_eq!((report.records, report.missing), (written.len() as u64 + 2, 0), "{report:?}");
}

/// JO-06: a reader that continues in a segment whose header was damaged meanwhile reads no record twice.
#[test]
fn reader_continues_in_a_segment_without_header() {
    let folder = TempDir::new().unwrap();
    let segment_policy = SegmentPolicy::Rolling { retention: Retention::default(), compression: Compression::No };
    journal(folder.path(), segment_policy, &mut fastrand::Rng::with_seed(seed()));
    let all = payloads(folder.path());
    let mut reader = JournalReader::open(folder.path(), &ReadFrom::Beginning, AtEnd::Stop).unwrap();
    for _ in 0..3 {
        assert!(matches!(reader.read().unwrap(), Some(JournalEntry::Record(_))));
    }
    let position = ReadFrom::Position(reader.position());
    let path = segments(folder.path())[0].clone();
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    fs::write(&path, bytes).unwrap();
    let mut reader = JournalReader::open(folder.path(), &position, AtEnd::Stop).unwrap();
    let next = reader.read().unwrap().map(|entry| format!("{entry:?}"));
    assert!(
        matches!(JournalReader::open(folder.path(), &position, AtEnd::Stop).unwrap().read().unwrap(),
        Some(JournalEntry::Record(record)) if record.payload == all[3]),
        "{next:?}"
    );
}

/// JO-06: a page written to a wrong place, in a segment that was not ended, is reported. The intact records after it are
/// not taken for a torn write and truncated.
#[test]
fn misplaced_page_is_reported_not_truncated() {
    const PAGES: usize = 6;
    let folder = TempDir::new().unwrap();
    let config = JournalConfig { segment_bytes: 1 << 20, ..config(folder.path(), SegmentPolicy::default()) };
    let (journal, _) = Journal::open(config.clone()).unwrap();
    for number in 0..RECORDS {
        journal.producer().append_blocking(new_record(format!("{number} {:>200}", "").as_bytes())).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
    let newest = segments(folder.path()).pop().unwrap();
    let whole = fs::read(&newest).unwrap();
    for (from, to) in (0..PAGES).flat_map(|from| (0..PAGES).map(move |to| (from, to))).filter(|(from, to)| from != to) {
        let mut bytes = whole[..PAGES * 4096].to_vec();
        bytes.copy_within(from * 4096..(from + 1) * 4096, to * 4096);
        fs::write(&newest, &bytes).unwrap();
        let report = verify(folder.path()).unwrap();
        assert!(!report.is_intact(), "{from} {to}: {report:?}");
        let (journal, recovery) = Journal::open(config.clone()).unwrap();
        drop(journal);
        assert!(!recovery.damage.is_empty(), "{from} {to}: {recovery:?}");
        assert_eq!(fs::read(&newest).unwrap(), bytes, "{from} {to}: the file is unchanged");
    }
}

/// JO-06: truncation of the oldest segment is reported. A segment that is followed by another has records, so a bare
/// header means truncation; no earlier segment has its first sequence number.
#[test]
fn truncated_oldest_segment_is_reported() {
    let folder = TempDir::new().unwrap();
    let segment_policy = SegmentPolicy::Rolling { retention: Retention::default(), compression: Compression::No };
    journal(folder.path(), segment_policy, &mut fastrand::Rng::with_seed(seed()));
    let oldest = segments(folder.path())[0].clone();
    let (bytes, all) = (fs::read(&oldest).unwrap(), verify(folder.path()).unwrap());
    for len in [0, 1, HEADER - 1, HEADER, HEADER + 1] {
        fs::write(&oldest, &bytes[..len]).unwrap();
        let report = verify(folder.path()).unwrap();
        assert!(!report.is_intact(), "{len}: {report:?}");
        assert_eq!(report.missing > 0, len >= HEADER, "{len}: the header has the first sequence number");
        assert!(len < HEADER || report.records + report.missing == all.records, "{len}: {report:?}");
    }
    fs::write(&oldest, b"").unwrap();
    repair(folder.path()).unwrap();
    assert!(verify(folder.path()).unwrap().is_intact(), "a segment that cannot be repaired is set aside");
}

/// JO-06: the search for frames takes linear time. Every eighth byte begins a plausible record of 4 MiB: a full check of
/// each takes a quarter of an hour.
#[test]
fn hostile_bytes_are_scanned_in_linear_time() {
    let folder = TempDir::new().unwrap();
    let mut config = config(folder.path(), SegmentPolicy::default());
    (config.bytes_max, config.record_bytes_max, config.segment_bytes) = (64 << 20, 12 << 20, 64 << 20);
    let (journal, _) = Journal::open(config).unwrap();
    let hostile = [0, 0, 0x40, 0, 1, 1, 1, 1].repeat(1 << 20);
    for payload in [&hostile[..], b"behind"] {
        journal.producer().append_blocking(new_record(payload)).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
    let path = segments(folder.path())[0].clone();
    let mut bytes = fs::read(&path).unwrap();
    bytes[HEADER + HEAD - 1] ^= 0x10;
    fs::write(&path, bytes).unwrap();
    assert_eq!(payloads(folder.path()), [b"behind"]);
    let report = verify(folder.path()).unwrap();
    let [damage] = &report.damage[..] else { panic!("{report:?}") };
    assert_eq!(damage.bytes, (HEAD + hostile.len()) as u64);
}

/// JO-06: a bit flip in the skippable frame, its header or its summary loses no record.
#[test]
#[cfg(feature = "zstd")]
fn preface_bit_flip_loses_no_record() {
    const PREFACE: usize = 8 + HEADER + 32 + 4;
    let folder = TempDir::new().unwrap();
    let segment_policy =
        || SegmentPolicy::Rolling { retention: Retention::default(), compression: Compression::Zstd(3) };
    let (journal, _) = Journal::open(config(folder.path(), segment_policy())).unwrap();
    let producer = journal.producer();
    for number in 0..RECORDS {
        producer.append_blocking(new_record(format!("{number:>500}").as_bytes())).unwrap();
    }
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    let compressed = || segments(folder.path()).into_iter().filter(|path| path.extension().unwrap() == "zst");
    until("all but the newest are compressed", || compressed().count() + 1 == segments(folder.path()).len());
    drop(journal);
    let path = compressed().nth(1).unwrap();
    let intact = fs::read(&path).unwrap();
    for byte in 0..PREFACE {
        let mut bytes = intact.clone();
        bytes[byte] ^= 0x10;
        fs::write(&path, bytes).unwrap();
        assert_eq!(payloads(folder.path()).len(), RECORDS, "{byte}");
    }
}
