//! A full disk: the state is reported, no accepted record is lost, and the journal recovers.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use tempfile::TempDir;
use tidegate_journal::{
    Ack, ClassConfig, Gap, Journal, JournalConfig, JournalEntry, JournalReader, JournalState, LossCause,
    OverloadPolicy, SegmentPolicy, verify,
};
use tidegate_journal::{AtEnd, ReadFrom};

use crate::{
    LONG,
    faults::{Answer, FaultyDisk, StorageCall},
    new_record, payloads, small, until,
};

fn no_space() -> io::Error {
    rustix::io::Errno::NOSPC.into()
}

/// A disk on which these calls fail while it is full.
fn disk_that_fills(fails: fn(StorageCall) -> bool, error: fn() -> io::Error) -> (FaultyDisk, Arc<AtomicBool>) {
    let full = Arc::new(AtomicBool::new(false));
    let is_full = Arc::clone(&full);
    let disk = FaultyDisk::new(move |call| match call {
        StorageCall::Write(bytes) if is_full.load(SeqCst) && fails(call) => Answer::Fail(bytes / 3, error()),
        call if is_full.load(SeqCst) && fails(call) => Answer::Fail(0, error()),
        _ => Answer::Do,
    });
    (disk, full)
}

fn dropping(folder: &Path) -> JournalConfig {
    JournalConfig { classes: vec![ClassConfig::new("one").overload(OverloadPolicy::DropNewest)], ..small(folder) }
}

fn gaps(folder: &Path) -> Vec<Gap> {
    let mut reader = JournalReader::open(folder, &ReadFrom::Beginning, AtEnd::Stop).unwrap();
    let mut gaps = Vec::new();
    while let Some(entry) = reader.read().unwrap() {
        if let JournalEntry::Gap(gap) = entry {
            gaps.push(gap);
        }
    }
    gaps
}

/// Fills the disk, offers more than memory holds, and makes room: all accepted records are written, and a gap counts the
/// rest.
fn check_full_disk(config: JournalConfig, disk: &FaultyDisk, full: &AtomicBool, before: usize) {
    let folder = config.folder.clone();
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    for _ in 0..before {
        producer.commit_blocking(new_record(b"before").ack(Ack::Written)).unwrap();
    }
    full.store(true, SeqCst);
    producer.offer(new_record(&[b'x'; 1000])).unwrap();
    until("the disk is full", || matches!(journal.stats().state, JournalState::DiskFull { .. }));
    let taken = 1 + (0..200).filter(|_| producer.offer(new_record(&[b'x'; 1000])).is_ok()).count();
    assert!(taken < 70, "no more than the memory holds: {taken}");
    full.store(false, SeqCst);
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    assert_eq!(journal.stats().state, JournalState::Healthy);
    producer.commit_blocking(new_record(b"after").ack(Ack::Written)).unwrap();
    assert!(journal.close(LONG).is_complete());
    let found = payloads(&folder);
    assert_eq!(found.len(), before + taken + 1);
    assert_eq!(
        gaps(&folder).iter().map(|gap| (gap.cause, gap.records)).collect::<Vec<_>>(),
        [(LossCause::Newest, 201 - taken as u64)]
    );
    assert!(verify(&folder).unwrap().is_intact());
}

/// JO-09: no room for a write.
#[test]
fn no_room_for_a_write() {
    let folder = TempDir::new().unwrap();
    let (disk, full) = disk_that_fills(|call| matches!(call, StorageCall::Write(_)), no_space);
    check_full_disk(dropping(folder.path()), &disk, &full, 3);
}

/// JO-09: no room for the first segment.
#[test]
fn no_room_for_the_first_segment() {
    let folder = TempDir::new().unwrap();
    let (disk, full) = disk_that_fills(|call| call == StorageCall::Create, no_space);
    check_full_disk(dropping(folder.path()), &disk, &full, 0);
}

/// JO-09: no room to preallocate a ring.
#[test]
fn no_room_to_preallocate_a_ring() {
    let folder = TempDir::new().unwrap();
    let (disk, full) = disk_that_fills(|call| call == StorageCall::Allocate, no_space);
    let config = JournalConfig {
        segment_policy: SegmentPolicy::Ring { segments: 2 },
        segment_bytes: 1 << 20,
        ..dropping(folder.path())
    };
    check_full_disk(config, &disk, &full, 0);
}

/// JO-10: full disk recovers and records the gap.
#[test]
fn full_disk_recovers_and_records_the_gap() {
    let folder = TempDir::new().unwrap();
    let (disk, full) = disk_that_fills(|call| matches!(call, StorageCall::Write(_) | StorageCall::Create), no_space);
    check_full_disk(dropping(folder.path()), &disk, &full, 1);
}

/// JO-17: exceeded quota is a full disk.
#[test]
fn exceeded_quota_is_a_full_disk() {
    let folder = TempDir::new().unwrap();
    let (disk, full) =
        disk_that_fills(|call| matches!(call, StorageCall::Write(_)), || rustix::io::Errno::DQUOT.into());
    check_full_disk(dropping(folder.path()), &disk, &full, 1);
}

/// A file system of 1 MiB, if this user may mount one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<Self> {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(at);
        let output = command.output().ok()?;
        output.status.success().then(|| Self(at.to_path_buf()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// JO-09: real small disk fills up and is freed.
#[test]
fn real_small_disk_fills_up_and_is_freed() {
    let outer = TempDir::new().unwrap();
    let Some(disk) = SmallDisk::mount(outer.path()) else {
        // If mounting is not permitted, the tests with injected errors cover this.
        println!("skipped: cannot mount a tmpfs");
        return;
    };
    let folder = disk.0.join("journal");
    let ballast = disk.0.join("ballast");
    fs::write(&ballast, vec![0; 700 << 10]).unwrap();
    let config = JournalConfig { bytes_max: 256 << 10, ..dropping(&folder) };
    let (journal, _) = Journal::open_with(config, Arc::new(tidegate_journal::FileStorage), |_| ()).unwrap();
    let producer = journal.producer();
    let mut taken = 0_u64;
    until("the disk is full", || {
        taken += u64::from(producer.offer(new_record(&[b'x'; 1000])).is_ok());
        matches!(journal.stats().state, JournalState::DiskFull { .. })
    });
    let offered = journal.stats().classes[0].offered();
    fs::remove_file(&ballast).unwrap();
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    assert_eq!(journal.stats().state, JournalState::Healthy);
    assert!(journal.close(LONG).is_complete());
    let report = verify(&folder).unwrap();
    let lost: u64 = report.gaps.iter().map(|gap| gap.records).sum();
    assert!(report.is_intact(), "{report:?}");
    assert_eq!((report.records, report.records + lost), (taken, offered));
}

/// JO-14: unmounted disk is waited for.
#[test]
fn unmounted_disk_is_waited_for() {
    let outer = TempDir::new().unwrap();
    let Some(disk) = SmallDisk::mount(outer.path()) else {
        println!("skipped: cannot mount a tmpfs");
        return;
    };
    let folder = disk.0.join("journal");
    let (journal, _) = Journal::open_with(small(&folder), Arc::new(tidegate_journal::FileStorage), |_| ()).unwrap();
    let producer = journal.producer();
    producer.commit_blocking(new_record(b"before").ack(Ack::Durable)).unwrap();
    drop(disk);
    until("the unmount is detected", || {
        let _ = producer.offer(new_record(b"meanwhile"));
        let _ = journal.flush(Ack::Written, Duration::from_millis(10));
        matches!(journal.stats().state, JournalState::Failing { .. })
    });
    let error = journal.stats().last_error.unwrap();
    assert!(error.contains("no file system is mounted on"), "{error}");
    producer.append_blocking(new_record(b"after")).unwrap();
    assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 0, "the mount point is empty");
    let _disk = SmallDisk::mount(outer.path()).unwrap();
    assert!(journal.flush(Ack::Durable, LONG).unwrap());
    assert_eq!(journal.stats().state, JournalState::Healthy);
    assert!(journal.close(LONG).is_complete());
    assert!(payloads(&folder).contains(&b"after".to_vec()));
}
