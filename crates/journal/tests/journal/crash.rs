//! Crashes, replayed from what was done to the disk: after every deed, and in the middle of every write.

use std::path::Path;

use tempfile::TempDir;
use tidegate_journal::{Ack, Config, Journal, Recovery, Space};

use crate::{
    LONG,
    checker::{Promises, name},
    faults::{Answer, Call, Deed, Faulty, Image},
    note, payloads, seed, small,
};

/// What a journal did while one producer handed in records of all three kinds.
fn story(config: Config, records: usize) -> Vec<Deed> {
    let disk = Faulty::remembering();
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    for number in 0..records {
        let record = format!("{} {}", name(0, number), "x".repeat(number * 37 % 300));
        disk.note(Deed::Offered(record.clone()));
        let ack = [Ack::Accepted, Ack::Written, Ack::Durable][number % 3];
        producer.commit_blocking(note(record.as_bytes()).ack(ack)).unwrap();
        disk.note(Deed::Told(record, ack));
    }
    assert!(journal.close(LONG).is_complete());
    disk.deeds()
}

/// Opens what is left, and looks at it.
fn recover(image: &Image, folder: &Path, config: &Config) -> (Recovery, Vec<Vec<u8>>) {
    image.restore(folder);
    let config = Config { folder: folder.to_path_buf(), ..config.clone() };
    let (journal, recovery) = Journal::open(config).unwrap();
    assert!(journal.close(LONG).is_complete());
    (recovery, payloads(folder))
}

/// Replays a story and dies at every place; in the last writes at every byte.
fn die_everywhere(config: &Config, deeds: &[Deed], bytes_from: usize) {
    let folder = TempDir::new().unwrap();
    let (mut image, mut promises) = (Image::default(), Promises::default());
    for (index, deed) in deeds.iter().enumerate() {
        let steps: Vec<usize> = match deed {
            Deed::Offered(record) => {
                promises.offer(record);
                continue;
            }
            Deed::Told(record, ack) => {
                promises.tell(record, *ack);
                continue;
            }
            Deed::Write(_, _, bytes) if index >= bytes_from => (0..=bytes.len()).collect(),
            Deed::Write(_, _, bytes) => vec![0, 1, bytes.len() / 2, bytes.len() - 1, bytes.len()],
            _ => vec![usize::MAX],
        };
        for bytes in steps {
            let mut cut = image.clone();
            cut.apply(deed, bytes);
            let (recovery, found) = recover(&cut, folder.path(), config);
            assert!(recovery.damage.is_empty(), "{deed:?} at {bytes}: {recovery:?}");
            promises.check(&found, Ack::Written).unwrap_or_else(|error| panic!("{deed:?} at {bytes}: {error}"));
        }
        image.apply(deed, usize::MAX);
    }
    assert!(promises.told() > 0);
}

/// Deeds from the third record from the end on.
fn last_three_records(deeds: &[Deed]) -> usize {
    let offered = deeds.iter().enumerate().filter(|(_, deed)| matches!(deed, Deed::Offered(_)));
    offered.map(|(index, _)| index).rev().nth(2).unwrap()
}

#[test]
fn jo_01_dead_at_every_write_and_every_byte_of_the_last_records() {
    let origin = TempDir::new().unwrap();
    let config = small(origin.path());
    let deeds = story(config.clone(), 12);
    die_everywhere(&config, &deeds, last_three_records(&deeds));
}

#[test]
fn jo_04_dead_between_the_steps_of_a_rotation() {
    let origin = TempDir::new().unwrap();
    let mut config = small(origin.path());
    (config.segment_bytes, config.record_bytes_max) = (32 << 10, 4 << 10);
    let disk = Faulty::remembering();
    let (journal, _) = Journal::open_with(config.clone(), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    for number in 0..30 {
        let record = format!("{} {}", name(0, number), "x".repeat(3000));
        disk.note(Deed::Offered(record.clone()));
        producer.commit_blocking(note(record.as_bytes()).ack(Ack::Written)).unwrap();
        disk.note(Deed::Told(record, Ack::Written));
    }
    drop(journal);
    let created = disk.deeds().iter().filter(|deed| matches!(deed, Deed::Create(_))).count();
    assert!(created >= 3, "the story rotates");
    die_everywhere(&config, &disk.deeds(), usize::MAX);
}

#[test]
fn jo_05_a_recycled_file_shows_nothing_of_its_earlier_life() {
    let origin = TempDir::new().unwrap();
    let mut config = small(origin.path());
    config.segment_bytes = 32 << 10;
    config.space = Space::Ring { segments: 2 };
    let disk = Faulty::remembering();
    let (journal, _) = Journal::open_with(config.clone(), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    // Records of one size, so that those of an earlier life begin where new ones end.
    for number in 0..120 {
        let record = format!("{} {}", name(0, 1000 + number), "x".repeat(1000));
        disk.note(Deed::Offered(record.clone()));
        producer.commit_blocking(note(record.as_bytes()).ack(Ack::Written)).unwrap();
        disk.note(Deed::Told(record, Ack::Written));
    }
    drop(journal);
    check_ring(&config, &disk.deeds());
}

/// At every place, what is found is the newest records without a hole, and ends with what was told last.
fn check_ring(config: &Config, deeds: &[Deed]) {
    let folder = TempDir::new().unwrap();
    let (mut image, mut told, mut recycled) = (Image::default(), 999, 0);
    for deed in deeds {
        image.apply(deed, usize::MAX);
        recycled += usize::from(matches!(deed, Deed::Recycle(..)));
        if let Deed::Told(..) = deed {
            told += 1;
        }
        let looks = matches!(deed, Deed::Recycle(..)) || (matches!(deed, Deed::Told(..)) && told % 7 == 0);
        if !looks {
            continue;
        }
        let (recovery, found) = recover(&image, folder.path(), config);
        assert!(recovery.damage.is_empty(), "{recovery:?}");
        let number = |record: &Vec<u8>| std::str::from_utf8(&record[2..6]).unwrap().parse::<usize>().unwrap();
        let numbers: Vec<usize> = found.iter().map(number).collect();
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
        assert!(told < 1000 || numbers.last() >= Some(&told), "{numbers:?} without {told}");
    }
    assert!(recycled >= 2, "the story goes round");
}

/// What may be on the disk after the power failed: what was synced, and of the rest any pages, old or new, or noise.
struct Power<'a> {
    synced: Image,
    /// Writes since the last sync of their file.
    open: Vec<&'a Deed>,
}

impl<'a> Power<'a> {
    fn apply(&mut self, deed: &'a Deed) {
        match deed {
            Deed::Sync(path) => {
                let (now, later) =
                    self.open.drain(..).partition(|open| matches!(open, Deed::Write(of, ..) if of == path));
                self.open = later;
                let now: Vec<&Deed> = now;
                now.iter().for_each(|deed| self.synced.apply(deed, usize::MAX));
            }
            Deed::Write(..) => self.open.push(deed),
            other => self.synced.apply(other, usize::MAX),
        }
    }

    /// Pages of `page` bytes reached the disk or not, each for itself.
    fn fail(&self, page: usize, random: &mut fastrand::Rng) -> Image {
        let mut after = self.synced.clone();
        self.open.iter().for_each(|deed| after.apply(deed, usize::MAX));
        for (path, bytes) in &mut after.0 {
            let before = self.synced.0.get(path).cloned().unwrap_or_default();
            for (index, new) in bytes.chunks_mut(page).enumerate() {
                let mut old = before.get(index * page..).unwrap_or_default().to_vec();
                old.resize(new.len(), 0);
                match random.u8(..4) {
                    // It was never written: what was there, or zeros.
                    0 => new.copy_from_slice(&old),
                    // It was being written: noise where it differs.
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
    let deeds = story(config.clone(), 60);
    let folder = TempDir::new().unwrap();
    for _ in 0..rounds {
        let end = random.usize(..deeds.len());
        let (mut power, mut promises) = (Power { synced: Image::default(), open: Vec::new() }, Promises::default());
        for deed in &deeds[..end] {
            match deed {
                Deed::Offered(record) => promises.offer(record),
                Deed::Told(record, ack) => promises.tell(record, *ack),
                other => power.apply(other),
            }
        }
        let (_, found) = recover(&power.fail(page, &mut random), folder.path(), &config);
        promises.check(&found, Ack::Durable).unwrap();
    }
}

#[test]
fn jo_02_torn_sectors_and_pages_cost_nothing_durable() {
    fail_power(512, 60);
    fail_power(4096, 60);
}

#[test]
fn jo_03_pages_written_out_of_order_cost_nothing_durable() {
    fail_power(64, 120);
}

#[test]
fn jo_07_dead_in_the_middle_of_a_recovery() {
    let origin = TempDir::new().unwrap();
    let config = small(origin.path());
    let deeds = story(config.clone(), 9);
    let mut image = Image::default();
    // Without the seal, and with half of a record at the end.
    let cut = deeds.iter().rposition(|deed| matches!(deed, Deed::Write(..))).unwrap();
    deeds[..cut].iter().for_each(|deed| image.apply(deed, usize::MAX));
    let path = image.0.keys().next().unwrap().clone();
    let whole = image.0[&path].len();
    image.0.get_mut(&path).unwrap().extend([7; 30]);
    let folder = TempDir::new().unwrap();
    let (first, found) = recover(&image, folder.path(), &config);
    assert_eq!((first.cut.len(), first.cut[0].at), (1, whole as u64));
    let sealed = std::fs::read(folder.path().join(path.file_name().unwrap())).unwrap();
    // A recovery cuts, then writes the sum: it may have died after any byte of it.
    for end in whole..sealed.len() {
        image.0.insert(path.clone(), sealed[..end].to_vec());
        let (_, again) = recover(&image, folder.path(), &config);
        assert_eq!(again, found, "dead at {end}");
        let (third, again) = recover(&image_of(folder.path()), folder.path(), &config);
        assert!(third.is_clean() && again == found, "the next one finds nothing to do");
    }
}

fn image_of(folder: &Path) -> Image {
    let paths = crate::segments(folder);
    Image(paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect())
}

/// A segment is given up in the middle of a batch, of which it holds a part, and the process dies before the fresh one
/// has any of it.
#[test]
fn jo_01_what_comes_after_a_crash_is_not_taken_for_what_a_segment_that_was_given_up_holds() {
    let (origin, folder) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (config, copy) = (small(origin.path()), folder.path().to_path_buf());
    let (from, mut writes) = (origin.path().to_path_buf(), 0);
    let disk = Faulty::new(move |call| {
        writes += usize::from(matches!(call, Call::Write(_)));
        match (call, writes) {
            // The header, what the disk hung with, one chunk of the batch; not the next one.
            (Call::Write(_), 4) => return Answer::Fail(0, rustix::io::Errno::IO.into()),
            // Of the fresh segment there is the header only.
            (Call::Write(_), 6) => image_of(&from).restore(&copy),
            _ => {}
        }
        Answer::Do
    });
    let (journal, _) = Journal::open_with(config.clone(), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    crate::fill(&disk, &producer);
    disk.go();
    assert!(journal.close(LONG).is_complete());
    assert_eq!(crate::segments(folder.path()).len(), 2, "the one that was given up, and a fresh one");

    let (journal, _) = Journal::open(Config { folder: folder.path().to_path_buf(), ..config }).unwrap();
    for number in 0..3 {
        journal.producer().commit_blocking(note(format!("after {number}").as_bytes()).ack(Ack::Written)).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
    let after = payloads(folder.path()).into_iter().filter(|record| record.starts_with(b"after")).count();
    assert_eq!(after, 3, "they have numbers of their own");
}
