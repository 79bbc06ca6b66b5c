//! Damage at random, against a model that knows where each record stands: nothing that is whole is hidden, nothing that is
//! not is shown, and a repair loses nothing that could be read.

use std::{fs, ops::Range, path::Path};

use tempfile::TempDir;
use tidegate_journal::{
    Ack, AtEnd, Config, DamageKind, Entry, Journal, Pack, Reader, Retention, Space, Start, repair, verify,
};

use crate::{LONG, note, payloads, rounds, seed, segments, small, until};

const HEADER: usize = 64;
const HEAD: usize = 24;
const RECORDS: usize = 240;

/// A record as it was written: where, and what.
#[derive(Clone)]
struct Written {
    file: usize,
    at: Range<usize>,
    payload: Vec<u8>,
}

fn config(folder: &Path, space: Space) -> Config {
    let mut config = small(folder);
    (config.segment_bytes, config.record_bytes_max, config.space) = (32 << 10, 4 << 10, space);
    config
}

/// A journal of some segments, and what stands where in them: read by lengths alone, as nothing is damaged yet.
fn journal(folder: &Path, space: Space, random: &mut fastrand::Rng) -> Vec<Written> {
    let (journal, _) = Journal::open(config(folder, space)).unwrap();
    let producer = journal.producer();
    for number in 0..RECORDS {
        let filler = "x".repeat(random.usize(..700));
        producer.append_blocking(note(format!("{number} {filler}").as_bytes())).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
    let mut written = Vec::new();
    for (file, path) in segments(folder).iter().enumerate() {
        let bytes = fs::read(path).unwrap();
        let mut at = HEADER;
        while let Some(head) = bytes.get(at..at + HEAD).filter(|head| head[HEAD - 1] == 1) {
            let end = at + HEAD + u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
            let payload = bytes[at + HEAD..end].to_vec();
            written.push(Written { file, at: at..end, payload });
            at = end;
        }
    }
    assert_eq!(payloads(folder), written.iter().map(|written| written.payload.clone()).collect::<Vec<_>>());
    written
}

/// Damages bytes of a file in place or cuts it; which bytes are not what they were.
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

/// What of a file is as it was, whatever happened to it.
fn is_as_it_was(now: &[u8], before: &[u8], at: &Range<usize>) -> bool {
    now.get(at.clone()) == before.get(at.clone())
}

/// Whether a reader can know the salt: from the header, from the first record with another one or the seal, or from the seal
/// with any record.
fn has_salt(now: &[u8], before: &[u8], whole: &[&Written], records: usize) -> bool {
    let seal = before.len() - 56..before.len();
    let has_seal = now.len() == before.len() && is_as_it_was(now, before, &seal) && before[seal.start + 23] == 3;
    let has_first = whole.first().is_some_and(|first| first.at.start == HEADER);
    is_as_it_was(now, before, &(0..HEADER))
        || (records > 0 && has_first && (whole.len() > 1 || has_seal))
        || (has_seal && !whole.is_empty())
}

fn check(space: impl Fn() -> Space, random: &mut fastrand::Rng) {
    let folder = TempDir::new().unwrap();
    let written = journal(folder.path(), space(), random);
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
        let own: Vec<&Written> = written.iter().filter(|written| written.file == file).collect();
        let whole: Vec<&Written> =
            own.iter().copied().filter(|written| is_as_it_was(&now[file], &before[file], &written.at)).collect();
        if has_salt(&now[file], &before[file], &whole, own.len()) {
            expected.extend(whole.into_iter().map(|written| written.payload.clone()));
        }
    }
    let shown = payloads(folder.path());
    assert_eq!(numbers(&shown), numbers(&expected));
    assert_eq!(shown, expected);
    let verdict = verify(folder.path()).unwrap();
    assert_eq!(verdict.records, shown.len() as u64);
    let is_run = written.windows(shown.len().max(1)).any(|run| run.iter().map(|record| &record.payload).eq(&shown));
    assert!(!verdict.is_whole() || is_run || shown.is_empty(), "what is lost between others is told: {verdict:?}");
    mended(folder.path(), &shown, space());
}

/// A repair shows no less, leaves nothing to be repaired, and the journal goes on.
fn mended(folder: &Path, shown: &[Vec<u8>], space: Space) {
    repair(folder).unwrap();
    assert_eq!(numbers(&payloads(folder)), numbers(shown), "after the repair");
    let verdict = verify(folder).unwrap();
    assert!(verdict.damage.is_empty(), "{verdict:?}");
    assert!(repair(folder).unwrap().is_empty());
    let is_ring = matches!(space, Space::Ring { .. });
    let (journal, recovery) = Journal::open(config(folder, space)).unwrap();
    assert!(recovery.damage.is_empty(), "{recovery:?}");
    journal.producer().commit_blocking(note(b"afterwards").ack(Ack::Written)).unwrap();
    drop(journal);
    let after = payloads(folder);
    assert_eq!(after.last().unwrap(), b"afterwards");
    assert!(is_ring || numbers(&after[..after.len() - 1]) == numbers(shown), "after the journal went on");
}

/// The numbers that records begin with, which say more than whole records when something is wrong.
fn numbers(payloads: &[Vec<u8>]) -> Vec<String> {
    let number = |payload: &Vec<u8>| String::from_utf8_lossy(payload).split(' ').next().unwrap_or_default().to_owned();
    payloads.iter().map(number).collect()
}

#[test]
fn jo_06_whatever_is_damaged_the_rest_is_shown_and_nothing_else() {
    let mut random = fastrand::Rng::with_seed(seed());
    for _ in 0..rounds("TIDEGATE_JOURNAL_DAMAGES", 60) {
        check(|| Space::Segments { retention: Retention::default(), pack: Pack::No }, &mut random);
    }
}

#[test]
fn jo_06_whatever_is_damaged_in_a_ring_the_rest_is_shown_and_nothing_else() {
    let mut random = fastrand::Rng::with_seed(seed());
    for _ in 0..rounds("TIDEGATE_JOURNAL_DAMAGES", 60) {
        check(|| Space::Ring { segments: 4 }, &mut random);
    }
}

#[test]
fn jo_06_a_flipped_bit_in_a_header_costs_no_record() {
    let folder = TempDir::new().unwrap();
    let mut random = fastrand::Rng::with_seed(seed());
    let space = || Space::Segments { retention: Retention::default(), pack: Pack::No };
    let written = journal(folder.path(), space(), &mut random);
    let path = segments(folder.path())[1].clone();
    let sound = fs::read(&path).unwrap();
    for byte in 0..HEADER {
        let mut bytes = sound.clone();
        bytes[byte] ^= 0x10;
        fs::write(&path, bytes).unwrap();
        let verdict = verify(folder.path()).unwrap();
        let [damage] = &verdict.damage[..] else { panic!("{verdict:?}") };
        assert_eq!((damage.at, damage.bytes, damage.kind), (0, HEADER as u64, DamageKind::Middle), "{byte}");
        assert_eq!((verdict.records, verdict.missing), (written.len() as u64, 0), "{byte}");
    }
    mended(folder.path(), &payloads(folder.path()), space());
    assert!(verify(folder.path()).unwrap().is_whole(), "its header was written again");
    // A journal that finds it so is told, and goes on with the number behind the last.
    let newest = segments(folder.path()).pop().unwrap();
    let mut bytes = fs::read(&newest).unwrap();
    bytes[12] ^= 1;
    fs::write(&newest, bytes).unwrap();
    let (journal, recovery) = Journal::open(config(folder.path(), space())).unwrap();
    assert_eq!(recovery.damage.len(), 1, "{recovery:?}");
    journal.producer().commit_blocking(note(b"behind it").ack(Ack::Written)).unwrap();
    drop(journal);
    let verdict = verify(folder.path()).unwrap();
    assert_eq!((verdict.records, verdict.missing), (written.len() as u64 + 2, 0), "{verdict:?}");
}

/// Whoever goes on in a segment of which the header was damaged meanwhile is told of no record twice.
#[test]
fn jo_06_a_reader_goes_on_where_it_was_in_a_segment_without_header() {
    let folder = TempDir::new().unwrap();
    let space = Space::Segments { retention: Retention::default(), pack: Pack::No };
    journal(folder.path(), space, &mut fastrand::Rng::with_seed(seed()));
    let all = payloads(folder.path());
    let mut reader = Reader::open(folder.path(), &Start::Beginning, AtEnd::Stop).unwrap();
    for _ in 0..3 {
        assert!(matches!(reader.read().unwrap(), Some(Entry::Record(_))));
    }
    let position = Start::Position(reader.position());
    let path = segments(folder.path())[0].clone();
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    fs::write(&path, bytes).unwrap();
    let mut reader = Reader::open(folder.path(), &position, AtEnd::Stop).unwrap();
    let next = reader.read().unwrap().map(|entry| format!("{entry:?}"));
    assert!(
        matches!(Reader::open(folder.path(), &position, AtEnd::Stop).unwrap().read().unwrap(),
        Some(Entry::Record(record)) if record.payload == all[3]),
        "{next:?}"
    );
}

/// A disk that writes a page to a wrong place, within a segment that nobody ended: what is lost there is told, and what is whole
/// behind it is not taken for a torn end and cut.
#[test]
fn jo_06_a_page_at_a_wrong_place_is_told_and_cuts_nothing() {
    const PAGES: usize = 6;
    let folder = TempDir::new().unwrap();
    let config = Config { segment_bytes: 1 << 20, ..config(folder.path(), Space::default()) };
    let (journal, _) = Journal::open(config.clone()).unwrap();
    for number in 0..RECORDS {
        journal.producer().append_blocking(note(format!("{number} {:>200}", "").as_bytes())).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
    let newest = segments(folder.path()).pop().unwrap();
    let whole = fs::read(&newest).unwrap();
    for (from, to) in (0..PAGES).flat_map(|from| (0..PAGES).map(move |to| (from, to))).filter(|(from, to)| from != to) {
        let mut bytes = whole[..PAGES * 4096].to_vec();
        bytes.copy_within(from * 4096..(from + 1) * 4096, to * 4096);
        fs::write(&newest, &bytes).unwrap();
        let verdict = verify(folder.path()).unwrap();
        assert!(!verdict.is_whole(), "{from} {to}: {verdict:?}");
        let (journal, recovery) = Journal::open(config.clone()).unwrap();
        drop(journal);
        assert!(!recovery.damage.is_empty(), "{from} {to}: {recovery:?}");
        assert_eq!(fs::read(&newest).unwrap(), bytes, "{from} {to}: it is for people to look into");
    }
}

/// A segment before another has its records: one of which no more than a header is left was cut, and the oldest has no number
/// before it that would tell.
#[test]
fn jo_06_an_oldest_segment_that_was_cut_to_nothing_is_told() {
    let folder = TempDir::new().unwrap();
    let space = Space::Segments { retention: Retention::default(), pack: Pack::No };
    journal(folder.path(), space, &mut fastrand::Rng::with_seed(seed()));
    let oldest = segments(folder.path())[0].clone();
    let (bytes, all) = (fs::read(&oldest).unwrap(), verify(folder.path()).unwrap());
    for len in [0, 1, HEADER - 1, HEADER, HEADER + 1] {
        fs::write(&oldest, &bytes[..len]).unwrap();
        let verdict = verify(folder.path()).unwrap();
        assert!(!verdict.is_whole(), "{len}: {verdict:?}");
        assert_eq!(verdict.missing > 0, len >= HEADER, "{len}: its header tells with which number it begins");
        assert!(len < HEADER || verdict.records + verdict.missing == all.records, "{len}: {verdict:?}");
    }
    fs::write(&oldest, b"").unwrap();
    repair(folder.path()).unwrap();
    assert!(verify(folder.path()).unwrap().is_whole(), "what cannot be mended is put aside");
}

/// Bytes of which each eighth begins what may be a record of 4 MiB: to check each of these whole takes a quarter of an hour.
#[test]
fn jo_06_bytes_that_look_like_records_are_searched_in_time_in_proportion_to_them() {
    let folder = TempDir::new().unwrap();
    let mut config = config(folder.path(), Space::default());
    (config.bytes_max, config.record_bytes_max, config.segment_bytes) = (64 << 20, 12 << 20, 64 << 20);
    let (journal, _) = Journal::open(config).unwrap();
    let hostile = [0, 0, 0x40, 0, 1, 1, 1, 1].repeat(1 << 20);
    for payload in [&hostile[..], b"behind"] {
        journal.producer().append_blocking(note(payload)).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
    let path = segments(folder.path())[0].clone();
    let mut bytes = fs::read(&path).unwrap();
    bytes[HEADER + HEAD - 1] ^= 0x10;
    fs::write(&path, bytes).unwrap();
    assert_eq!(payloads(folder.path()), [b"behind"]);
    let verdict = verify(folder.path()).unwrap();
    let [damage] = &verdict.damage[..] else { panic!("{verdict:?}") };
    assert_eq!(damage.bytes, (HEAD + hostile.len()) as u64);
}

/// Each byte before the packed records: the frame that is passed over and the header and the sum in it.
#[test]
#[cfg(feature = "zstd")]
fn jo_06_a_flipped_bit_before_the_packed_records_costs_none() {
    const PREFACE: usize = 8 + HEADER + 32 + 4;
    let folder = TempDir::new().unwrap();
    let space = || Space::Segments { retention: Retention::default(), pack: Pack::Zstd(3) };
    let (journal, _) = Journal::open(config(folder.path(), space())).unwrap();
    let producer = journal.producer();
    for number in 0..RECORDS {
        producer.append_blocking(note(format!("{number:>500}").as_bytes())).unwrap();
    }
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    let packed = || segments(folder.path()).into_iter().filter(|path| path.extension().unwrap() == "zst");
    until("all but the newest are packed", || packed().count() + 1 == segments(folder.path()).len());
    drop(journal);
    let path = packed().nth(1).unwrap();
    let sound = fs::read(&path).unwrap();
    for byte in 0..PREFACE {
        let mut bytes = sound.clone();
        bytes[byte] ^= 0x10;
        fs::write(&path, bytes).unwrap();
        assert_eq!(payloads(folder.path()).len(), RECORDS, "{byte}");
    }
}
