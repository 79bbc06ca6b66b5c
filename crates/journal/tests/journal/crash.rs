//! Crashes, replayed from recorded disk operations: after every operation, and in the middle of every write.

use std::path::Path;

use tempfile::TempDir;
use tidegate_journal::{Ack, Journal, JournalConfig, RecoveryReport, SegmentPolicy};

use crate::{
    LONG,
    checker::{DurabilityChecker, name},
    faults::{Answer, DiskOp, FaultyDisk, Image, StorageCall},
    new_record, payloads, seed, small,
};

/// Records the disk operations while one producer appends records of all ack levels.
fn record_run(config: JournalConfig, records: usize) -> Vec<DiskOp> {
    let disk = FaultyDisk::recording();
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    for number in 0..records {
        let record = format!("{} {}", name(0, number), "x".repeat(number * 37 % 300));
        disk.record(DiskOp::Offered(record.clone()));
        let ack = [Ack::Accepted, Ack::Written, Ack::Durable][number % 3];
        producer.commit_blocking(new_record(record.as_bytes()).ack(ack)).unwrap();
        disk.record(DiskOp::Acked(record, ack));
    }
    assert!(journal.close(LONG).is_complete());
    disk.ops()
}

/// Recovers an image of the disk, and reads it.
fn recover(image: &Image, folder: &Path, config: &JournalConfig) -> (RecoveryReport, Vec<Vec<u8>>) {
    image.restore(folder);
    let config = JournalConfig { folder: folder.to_path_buf(), ..config.clone() };
    let (journal, recovery) = Journal::open(config).unwrap();
    assert!(journal.close(LONG).is_complete());
    (recovery, payloads(folder))
}

/// Replays operations and crashes after each one, from `bytes_from` on after every byte of a write.
fn crash_at_every_op(config: &JournalConfig, ops: &[DiskOp], bytes_from: usize) {
    let folder = TempDir::new().unwrap();
    let (mut image, mut checker) = (Image::default(), DurabilityChecker::default());
    for (index, op) in ops.iter().enumerate() {
        let steps: Vec<usize> = match op {
            DiskOp::Offered(record) => {
                checker.offer(record);
                continue;
            }
            DiskOp::Acked(record, ack) => {
                checker.acked(record, *ack);
                continue;
            }
            DiskOp::Write(_, _, bytes) if index >= bytes_from => (0..=bytes.len()).collect(),
            DiskOp::Write(_, _, bytes) => vec![0, 1, bytes.len() / 2, bytes.len() - 1, bytes.len()],
            _ => vec![usize::MAX],
        };
        for bytes in steps {
            let mut cut = image.clone();
            cut.apply(op, bytes);
            let (recovery, found) = recover(&cut, folder.path(), config);
            assert!(recovery.damage.is_empty(), "{op:?} at {bytes}: {recovery:?}");
            checker.check(&found, Ack::Written).unwrap_or_else(|error| panic!("{op:?} at {bytes}: {error}"));
        }
        image.apply(op, usize::MAX);
    }
    assert!(checker.acked_total() > 0);
}

/// The index of the first operation of the last three records.
fn last_three_records(ops: &[DiskOp]) -> usize {
    let offered = ops.iter().enumerate().filter(|(_, op)| matches!(op, DiskOp::Offered(_)));
    offered.map(|(index, _)| index).rev().nth(2).unwrap()
}

/// JO-01: crash at every write and every byte.
#[test]
fn crash_at_every_write_and_every_byte() {
    let origin = TempDir::new().unwrap();
    let config = small(origin.path());
    let ops = record_run(config.clone(), 12);
    crash_at_every_op(&config, &ops, last_three_records(&ops));
}

/// JO-04: crash between the steps of a rotation.
#[test]
fn crash_between_the_steps_of_a_rotation() {
    let origin = TempDir::new().unwrap();
    let mut config = small(origin.path());
    (config.segment_bytes, config.record_bytes_max) = (32 << 10, 4 << 10);
    let disk = FaultyDisk::recording();
    let (journal, _) = Journal::open_with(config.clone(), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    for number in 0..30 {
        let record = format!("{} {}", name(0, number), "x".repeat(3000));
        disk.record(DiskOp::Offered(record.clone()));
        producer.commit_blocking(new_record(record.as_bytes()).ack(Ack::Written)).unwrap();
        disk.record(DiskOp::Acked(record, Ack::Written));
    }
    drop(journal);
    let created = disk.ops().iter().filter(|op| matches!(op, DiskOp::Create(_))).count();
    assert!(created >= 3, "the run rotates");
    crash_at_every_op(&config, &disk.ops(), usize::MAX);
}

/// JO-05: recycled file hides its old records.
#[test]
fn recycled_file_hides_its_old_records() {
    let origin = TempDir::new().unwrap();
    let mut config = small(origin.path());
    config.segment_bytes = 32 << 10;
    config.segment_policy = SegmentPolicy::Ring { segments: 2 };
    let disk = FaultyDisk::recording();
    let (journal, _) = Journal::open_with(config.clone(), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    // Records of one size, so that old records begin where new ones end.
    for number in 0..120 {
        let record = format!("{} {}", name(0, 1000 + number), "x".repeat(1000));
        disk.record(DiskOp::Offered(record.clone()));
        producer.commit_blocking(new_record(record.as_bytes()).ack(Ack::Written)).unwrap();
        disk.record(DiskOp::Acked(record, Ack::Written));
    }
    drop(journal);
    check_ring(&config, &disk.ops());
}

/// Checks at every point that the found records are the newest ones without a hole, up to the last acknowledged one.
fn check_ring(config: &JournalConfig, ops: &[DiskOp]) {
    let folder = TempDir::new().unwrap();
    let (mut image, mut acked, mut recycled) = (Image::default(), 999, 0);
    for op in ops {
        image.apply(op, usize::MAX);
        recycled += usize::from(matches!(op, DiskOp::Recycle(..)));
        if let DiskOp::Acked(..) = op {
            acked += 1;
        }
        let looks = matches!(op, DiskOp::Recycle(..)) || (matches!(op, DiskOp::Acked(..)) && acked % 7 == 0);
        if !looks {
            continue;
        }
        let (recovery, found) = recover(&image, folder.path(), config);
        assert!(recovery.damage.is_empty(), "{recovery:?}");
        let number = |record: &Vec<u8>| std::str::from_utf8(&record[2..6]).unwrap().parse::<usize>().unwrap();
        let numbers: Vec<usize> = found.iter().map(number).collect();
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
        assert!(acked < 1000 || numbers.last() >= Some(&acked), "{numbers:?} without {acked}");
    }
    assert!(recycled >= 2, "the ring wraps");
}

/// The disk after a power failure: everything synced, and of the rest any pages, old, new or garbage.
struct PowerFailure<'a> {
    synced: Image,
    /// Writes since the last sync of their file.
    unsynced: Vec<&'a DiskOp>,
}

impl<'a> PowerFailure<'a> {
    fn apply(&mut self, op: &'a DiskOp) {
        match op {
            DiskOp::Sync(path) => {
                let (now, later) =
                    self.unsynced.drain(..).partition(|open| matches!(open, DiskOp::Write(of, ..) if of == path));
                self.unsynced = later;
                let now: Vec<&DiskOp> = now;
                now.iter().for_each(|op| self.synced.apply(op, usize::MAX));
            }
            DiskOp::Write(..) => self.unsynced.push(op),
            other => self.synced.apply(other, usize::MAX),
        }
    }

    /// The image if each page of `page` bytes reached the disk or not, independently.
    fn image(&self, page: usize, random: &mut fastrand::Rng) -> Image {
        let mut after = self.synced.clone();
        self.unsynced.iter().for_each(|op| after.apply(op, usize::MAX));
        for (path, bytes) in &mut after.0 {
            let before = self.synced.0.get(path).cloned().unwrap_or_default();
            for (index, new) in bytes.chunks_mut(page).enumerate() {
                let mut old = before.get(index * page..).unwrap_or_default().to_vec();
                old.resize(new.len(), 0);
                match random.u8(..4) {
                    // Not written: the old content, or zeros.
                    0 => new.copy_from_slice(&old),
                    // Partially written: garbage where it differs.
                    1 if new != old.as_slice() => {
                        let start = new.iter().zip(&old).position(|(new, old)| new != old).unwrap_or(0);
                        new[start..].iter_mut().for_each(|byte| *byte = random.u8(..));
                    }
                    _ => {}
                }
            }
        }
        after
    }
}

fn fail_power(page: usize, rounds: usize) {
    let mut random = fastrand::Rng::with_seed(seed());
    let origin = TempDir::new().unwrap();
    let config = small(origin.path());
    let ops = record_run(config.clone(), 60);
    let folder = TempDir::new().unwrap();
    for _ in 0..rounds {
        let end = random.usize(..ops.len());
        let (mut power, mut checker) =
            (PowerFailure { synced: Image::default(), unsynced: Vec::new() }, DurabilityChecker::default());
        for op in &ops[..end] {
            match op {
                DiskOp::Offered(record) => checker.offer(record),
                DiskOp::Acked(record, ack) => checker.acked(record, *ack),
                other => power.apply(other),
            }
        }
        let (_, found) = recover(&power.image(page, &mut random), folder.path(), &config);
        checker.check(&found, Ack::Durable).unwrap();
    }
}

/// JO-02: torn sectors and pages lose nothing durable.
#[test]
fn torn_sectors_and_pages_lose_nothing_durable() {
    fail_power(512, 60);
    fail_power(4096, 60);
}

/// JO-03: reordered pages lose nothing durable.
#[test]
fn reordered_pages_lose_nothing_durable() {
    fail_power(64, 120);
}

/// JO-07: crash during recovery.
#[test]
fn crash_during_recovery() {
    let origin = TempDir::new().unwrap();
    let config = small(origin.path());
    let ops = record_run(config.clone(), 9);
    let mut image = Image::default();
    // The summary is missing, with half of a record at the end.
    let cut = ops.iter().rposition(|op| matches!(op, DiskOp::Write(..))).unwrap();
    ops[..cut].iter().for_each(|op| image.apply(op, usize::MAX));
    let path = image.0.keys().next().unwrap().clone();
    let whole = image.0[&path].len();
    image.0.get_mut(&path).unwrap().extend([7; 30]);
    let folder = TempDir::new().unwrap();
    let (first, found) = recover(&image, folder.path(), &config);
    assert_eq!((first.truncated.len(), first.truncated[0].at), (1, whole as u64));
    let sealed = std::fs::read(folder.path().join(path.file_name().unwrap())).unwrap();
    // Recovery truncates, then writes the summary: it may crash after any byte of it.
    for end in whole..sealed.len() {
        image.0.insert(path.clone(), sealed[..end].to_vec());
        let (_, again) = recover(&image, folder.path(), &config);
        assert_eq!(again, found, "crash at {end}");
        let (third, again) = recover(&image_of(folder.path()), folder.path(), &config);
        assert!(third.is_clean() && again == found, "the next recovery changes nothing");
    }
}

fn image_of(folder: &Path) -> Image {
    let paths = crate::segments(folder);
    Image(paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect())
}

/// JO-01: sequence numbers are not reused after an abandoned segment. The segment is abandoned in the middle of a batch,
/// of which it holds a part, and the process dies before the new segment has any of it.
#[test]
fn records_after_an_abandoned_segment_are_read() {
    let (origin, folder) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (config, copy) = (small(origin.path()), folder.path().to_path_buf());
    let (from, mut writes) = (origin.path().to_path_buf(), 0);
    let disk = FaultyDisk::new(move |call| {
        writes += usize::from(matches!(call, StorageCall::Write(_)));
        match (call, writes) {
            // The header, the record that the disk hung with, one chunk of the batch; not the next one.
            (StorageCall::Write(_), 4) => return Answer::Fail(0, rustix::io::Errno::IO.into()),
            // The new segment has only its header.
            (StorageCall::Write(_), 6) => image_of(&from).restore(&copy),
            _ => {}
        }
        Answer::Do
    });
    let (journal, _) = Journal::open_with(config.clone(), disk.storage(), |_| ()).unwrap();
    crate::fill(&disk, &journal);
    disk.resume();
    assert!(journal.close(LONG).is_complete());
    assert_eq!(crate::segments(folder.path()).len(), 2, "the abandoned segment, and a new one");

    let (journal, _) = Journal::open(JournalConfig { folder: folder.path().to_path_buf(), ..config }).unwrap();
    for number in 0..3 {
        journal.producer().commit_blocking(new_record(format!("after {number}").as_bytes()).ack(Ack::Written)).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
    let after = payloads(folder.path()).into_iter().filter(|record| record.starts_with(b"after")).count();
    assert_eq!(after, 3, "they have new sequence numbers");
}
