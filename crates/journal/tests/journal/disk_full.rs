//! No room: a state that is seen, that loses nothing accepted, and that is left again.

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
use tidegate_journal::{Ack, Cause, ClassConfig, Config, Entry, Gap, Journal, Overload, Reader, Space, State, verify};
use tidegate_journal::{AtEnd, Start};

use crate::{
    LONG,
    faults::{Answer, Call, Faulty},
    note, payloads, small, until,
};

fn no_space() -> io::Error {
    rustix::io::Errno::NOSPC.into()
}

/// A disk that fails these calls while it is full.
fn filling(fails: fn(Call) -> bool, error: fn() -> io::Error) -> (Faulty, Arc<AtomicBool>) {
    let full = Arc::new(AtomicBool::new(false));
    let is_full = Arc::clone(&full);
    let disk = Faulty::new(move |call| match call {
        Call::Write(bytes) if is_full.load(SeqCst) && fails(call) => Answer::Fail(bytes / 3, error()),
        call if is_full.load(SeqCst) && fails(call) => Answer::Fail(0, error()),
        _ => Answer::Do,
    });
    (disk, full)
}

fn dropping(folder: &Path) -> Config {
    Config { classes: vec![ClassConfig::new("one").overload(Overload::DropNewest)], ..small(folder) }
}

fn gaps(folder: &Path) -> Vec<Gap> {
    let mut reader = Reader::open(folder, &Start::Beginning, AtEnd::Stop).unwrap();
    let mut gaps = Vec::new();
    while let Some(entry) = reader.read().unwrap() {
        if let Entry::Gap(gap) = entry {
            gaps.push(gap);
        }
    }
    gaps
}

/// Fills the disk, offers more than there is memory for, makes room: what was accepted is there, and a gap counts the rest.
fn fills_up(config: Config, disk: &Faulty, full: &AtomicBool, before: usize) {
    let folder = config.folder.clone();
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    for _ in 0..before {
        producer.commit_blocking(note(b"before").ack(Ack::Written)).unwrap();
    }
    full.store(true, SeqCst);
    producer.offer(note(&[b'x'; 1000])).unwrap();
    until("it is full", || matches!(journal.stats().state, State::DiskFull { .. }));
    let taken = 1 + (0..200).filter(|_| producer.offer(note(&[b'x'; 1000])).is_ok()).count();
    assert!(taken < 70, "no more than the memory holds: {taken}");
    full.store(false, SeqCst);
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    assert_eq!(journal.stats().state, State::Healthy);
    producer.commit_blocking(note(b"after").ack(Ack::Written)).unwrap();
    assert!(journal.close(LONG).is_complete());
    let found = payloads(&folder);
    assert_eq!(found.len(), before + taken + 1);
    assert_eq!(
        gaps(&folder).iter().map(|gap| (gap.cause, gap.records)).collect::<Vec<_>>(),
        [(Cause::Newest, 201 - taken as u64)]
    );
    assert!(verify(&folder).unwrap().is_whole());
}

#[test]
fn jo_09_no_room_for_a_write() {
    let folder = TempDir::new().unwrap();
    let (disk, full) = filling(|call| matches!(call, Call::Write(_)), no_space);
    fills_up(dropping(folder.path()), &disk, &full, 3);
}

#[test]
fn jo_09_no_room_for_the_first_segment() {
    let folder = TempDir::new().unwrap();
    let (disk, full) = filling(|call| call == Call::Create, no_space);
    fills_up(dropping(folder.path()), &disk, &full, 0);
}

#[test]
fn jo_09_no_room_to_preallocate_a_ring() {
    let folder = TempDir::new().unwrap();
    let (disk, full) = filling(|call| call == Call::Allocate, no_space);
    let config = Config { space: Space::Ring { segments: 2 }, segment_bytes: 1 << 20, ..dropping(folder.path()) };
    fills_up(config, &disk, &full, 0);
}

#[test]
fn jo_10_the_full_disk_is_left_when_room_returns_and_the_gap_is_told() {
    let folder = TempDir::new().unwrap();
    let (disk, full) = filling(|call| matches!(call, Call::Write(_) | Call::Create), no_space);
    fills_up(dropping(folder.path()), &disk, &full, 1);
}

#[test]
fn jo_17_a_quota_is_a_full_disk() {
    let folder = TempDir::new().unwrap();
    let (disk, full) = filling(|call| matches!(call, Call::Write(_)), || rustix::io::Errno::DQUOT.into());
    fills_up(dropping(folder.path()), &disk, &full, 1);
}

/// A file system of one MiB, where this user may make one.
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

#[test]
fn jo_09_a_real_small_disk_fills_up_and_is_freed() {
    let outer = TempDir::new().unwrap();
    let Some(disk) = SmallDisk::mount(outer.path()) else {
        // Where mounting is not allowed, the injected faults above have to do.
        println!("no leave to mount a tmpfs; the other tests of this point inject the error");
        return;
    };
    let folder = disk.0.join("journal");
    let ballast = disk.0.join("ballast");
    fs::write(&ballast, vec![0; 700 << 10]).unwrap();
    let config = Config { bytes_max: 256 << 10, ..dropping(&folder) };
    let (journal, _) = Journal::open_with(config, Arc::new(tidegate_journal::Disk), |_| ()).unwrap();
    let producer = journal.producer();
    let mut taken = 0_u64;
    until("it is full", || {
        taken += u64::from(producer.offer(note(&[b'x'; 1000])).is_ok());
        matches!(journal.stats().state, State::DiskFull { .. })
    });
    let offered = journal.stats().classes[0].offered();
    fs::remove_file(&ballast).unwrap();
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    assert_eq!(journal.stats().state, State::Healthy);
    assert!(journal.close(LONG).is_complete());
    let verdict = verify(&folder).unwrap();
    let lost: u64 = verdict.gaps.iter().map(|gap| gap.records).sum();
    assert!(verdict.is_whole(), "{verdict:?}");
    assert_eq!((verdict.records, verdict.records + lost), (taken, offered));
}

#[test]
fn jo_14_a_disk_that_is_unmounted_is_waited_for() {
    let outer = TempDir::new().unwrap();
    let Some(disk) = SmallDisk::mount(outer.path()) else {
        println!("no leave to mount a tmpfs; the folder's own test has to do");
        return;
    };
    let folder = disk.0.join("journal");
    let (journal, _) = Journal::open_with(small(&folder), Arc::new(tidegate_journal::Disk), |_| ()).unwrap();
    let producer = journal.producer();
    producer.commit_blocking(note(b"before").ack(Ack::Durable)).unwrap();
    drop(disk);
    until("it is noticed", || {
        let _ = producer.offer(note(b"meanwhile"));
        let _ = journal.flush(Ack::Written, Duration::from_millis(10));
        matches!(journal.stats().state, State::Failing { .. })
    });
    let error = journal.stats().last_error.unwrap();
    assert!(error.contains("nothing is mounted on"), "{error}");
    producer.append_blocking(note(b"after")).unwrap();
    assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 0, "nothing is written below the mount point");
    let _disk = SmallDisk::mount(outer.path()).unwrap();
    assert!(journal.flush(Ack::Durable, LONG).unwrap());
    assert_eq!(journal.stats().state, State::Healthy);
    assert!(journal.close(LONG).is_complete());
    assert!(payloads(&folder).contains(&b"after".to_vec()));
}
