//! Overload policies and their counters.

use std::{collections::BTreeMap, time::Duration};

use tempfile::TempDir;
use tidegate_journal::{
    Ack, AppendError, Class, ClassConfig, Journal, JournalConfig, LossCause, OverloadPolicy, ProducerRecord,
    RecordLost, verify,
};

use crate::{LONG, faults::FaultyDisk, payloads, small};

const SIZE: usize = 500;

/// Offers many records while the disk hangs, resumes it, and checks the counters.
fn overload(folder: &TempDir, classes: Vec<ClassConfig>, records: usize) -> Journal {
    let disk = FaultyDisk::healthy();
    let config = JournalConfig { classes, ..small(folder.path()) };
    let count = config.classes.len();
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    disk.stall();
    producer.offer(ProducerRecord::new(Class::new(0), b"the record that hangs")).unwrap();
    disk.wait_for_stall();
    for number in 0..records {
        let class = Class::new(u8::try_from(number % count).unwrap());
        let payload = format!("{number:>SIZE$}");
        let _ = producer.offer(ProducerRecord::new(class, payload.as_bytes()));
    }
    disk.resume();
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    let stats = journal.stats();
    let offered: u64 = stats.classes.iter().map(|class| class.offered()).sum();
    assert_eq!(offered, records as u64 + 1, "{stats:?}");
    assert_eq!((stats.queued_bytes, stats.reserved_bytes), (0, 0));
    balance(&journal, folder);
    journal
}

/// Counters, gap records and written records agree.
fn balance(journal: &Journal, folder: &TempDir) {
    let (stats, report) = (journal.stats(), verify(folder.path()).unwrap());
    assert!(report.is_intact(), "{report:?}");
    let accepted: u64 = stats.classes.iter().map(|class| class.accepted).sum();
    let displaced: u64 = stats.classes.iter().map(|class| class.lost(LossCause::Oldest)).sum();
    assert_eq!((report.records, report.missing), (accepted - displaced, displaced), "{stats:?} {report:?}");
    let mut reported = BTreeMap::new();
    for gap in &report.gaps {
        *reported.entry((gap.class, gap.cause)).or_insert((0, 0)) = (gap.records, gap.bytes);
        assert!(gap.first <= gap.last);
    }
    for (index, class) in (0..).zip(&stats.classes) {
        for cause in LossCause::ALL {
            let gap = reported.remove(&(Class::new(index), cause)).unwrap_or_default();
            assert_eq!((class.lost(cause), class.lost_bytes(cause)), gap, "{} {cause:?}", class.name);
        }
    }
    assert!(reported.is_empty());
}

/// JO-19: drop newest keeps the oldest.
#[test]
fn drop_newest_keeps_the_oldest() {
    let folder = TempDir::new().unwrap();
    let journal = overload(&folder, vec![ClassConfig::new("a").overload(OverloadPolicy::DropNewest)], 500);
    assert!(journal.stats().classes[0].lost(LossCause::Newest) > 300);
    assert_eq!(journal.stats().classes[0].lost(LossCause::Oldest), 0);
    // The timer thread may add its spare buffer after the first loss. Until then, all records are kept.
    let numbers: Vec<usize> = numbers(&folder);
    let first_loss =
        numbers.iter().enumerate().find(|(index, number)| index != *number).map_or(numbers.len(), |(at, _)| at);
    assert!(first_loss >= 60 && numbers.is_sorted(), "{numbers:?}");
}

/// JO-19: drop oldest keeps the newest.
#[test]
fn drop_oldest_keeps_the_newest() {
    let folder = TempDir::new().unwrap();
    let journal = overload(&folder, vec![ClassConfig::new("a").overload(OverloadPolicy::DropOldest)], 500);
    assert!(journal.stats().classes[0].lost(LossCause::Oldest) > 300);
    let numbers = numbers(&folder);
    assert_eq!(numbers.last(), Some(&499));
    assert!(numbers.is_sorted());
}

/// JO-19: sampled class keeps one in n when half full.
#[test]
fn sampled_class_keeps_one_in_n_when_half_full() {
    let folder = TempDir::new().unwrap();
    let journal = overload(&folder, vec![ClassConfig::new("a").overload(OverloadPolicy::Sample { one_in: 10 })], 300);
    let class = &journal.stats().classes[0];
    let (sampled, newest) = (class.lost(LossCause::Sampled), class.lost(LossCause::Newest));
    assert!(sampled > 150 && newest == 0, "{class:?}");
    let numbers = numbers(&folder);
    let sparse = numbers.windows(2).filter(|pair| pair[1] - pair[0] == 10).count();
    assert!(sparse > 10, "{numbers:?}");
}

/// JO-19: blocking class drops offers at the bound.
#[test]
fn blocking_class_drops_offers_at_the_bound() {
    let folder = TempDir::new().unwrap();
    let journal = overload(&folder, vec![ClassConfig::new("a")], 500);
    assert!(journal.stats().classes[0].lost(LossCause::Newest) > 300);
}

/// JO-19: each class has its own policy.
#[test]
fn each_class_has_its_own_policy() {
    let folder = TempDir::new().unwrap();
    let classes = vec![
        ClassConfig::new("audit"),
        ClassConfig::new("queries").overload(OverloadPolicy::DropOldest),
        ClassConfig::new("chatter").overload(OverloadPolicy::Sample { one_in: 7 }),
        ClassConfig::new("debug").overload(OverloadPolicy::DropNewest),
    ];
    let journal = overload(&folder, classes, 1000);
    let classes = journal.stats().classes;
    assert_eq!(classes[0].lost(LossCause::Oldest), 0, "only drop-oldest classes are displaced");
    assert!(classes[1].lost(LossCause::Oldest) > 0);
}

/// JO-19: awaited records are not displaced.
#[test]
fn awaited_records_are_not_displaced() {
    let folder = TempDir::new().unwrap();
    let disk = FaultyDisk::healthy();
    let config = JournalConfig {
        classes: vec![ClassConfig::new("a").overload(OverloadPolicy::DropOldest)],
        ..small(folder.path())
    };
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    disk.stall();
    producer.offer(ProducerRecord::new(Class::new(0), b"the record that hangs")).unwrap();
    disk.wait_for_stall();
    let ticket = producer.offer(ProducerRecord::new(Class::new(0), b"audited").ack(Ack::Written)).unwrap();
    for _ in 0..1000 {
        let _ = producer.offer(ProducerRecord::new(Class::new(0), &[b'x'; SIZE]));
    }
    disk.resume();
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    assert_eq!(crate::block_on(producer.wait(ticket, Ack::Written)), Ok(()));
    assert!(payloads(folder.path()).contains(&b"audited".to_vec()));
    balance(&journal, &folder);
}

/// JO-19: waiter of a displaced record gets an error.
#[test]
fn waiter_of_a_displaced_record_gets_an_error() {
    let folder = TempDir::new().unwrap();
    let disk = FaultyDisk::healthy();
    let config = JournalConfig {
        classes: vec![ClassConfig::new("a").overload(OverloadPolicy::DropOldest)],
        ..small(folder.path())
    };
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    disk.stall();
    let offer = || producer.offer(ProducerRecord::new(Class::new(0), &[b'x'; SIZE])).unwrap();
    let hangs = offer();
    disk.wait_for_stall();
    let tickets: Vec<_> = (0..1000).map(|_| offer()).collect();
    disk.resume();
    let wait = |ticket| crate::block_on(producer.wait(ticket, Ack::Written));
    assert_eq!((wait(hangs), wait(tickets[0]), wait(tickets[999])), (Ok(()), Err(RecordLost), Ok(())));
    let lost = tickets.iter().filter(|ticket| wait(**ticket) == Err(RecordLost)).count() as u64;
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    assert_eq!(lost, journal.stats().classes[0].lost(LossCause::Oldest));
    balance(&journal, &folder);
    let report = journal.close(LONG);
    // The gap record has a sequence number, too.
    assert_eq!((report.numbered, report.written, report.lost), (1002, 1002 - lost, lost), "{report:?}");
}

/// JO-19: displaced records were never written, and written records stay written.
#[test]
fn written_records_stay_written_under_displacement() {
    let folder = TempDir::new().unwrap();
    let disk = FaultyDisk::healthy();
    let config = JournalConfig {
        classes: vec![ClassConfig::new("a").overload(OverloadPolicy::DropOldest)],
        ..small(folder.path())
    };
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    for _ in 0..10 {
        producer.commit_blocking(ProducerRecord::new(Class::new(0), b"safe").ack(Ack::Written)).unwrap();
    }
    disk.stall();
    producer.offer(ProducerRecord::new(Class::new(0), b"the record that hangs")).unwrap();
    disk.wait_for_stall();
    for _ in 0..500 {
        producer.offer(ProducerRecord::new(Class::new(0), &[b'x'; SIZE])).unwrap();
    }
    let stats = journal.stats();
    let displaced = stats.classes[0].lost(LossCause::Oldest);
    assert!(displaced > 300 && stats.written == 10, "{stats:?}");
    let report = journal.close(Duration::from_millis(1));
    assert_eq!((report.numbered, report.written, report.lost), (511, 10, displaced), "{report:?}");
    assert_eq!(report.unwritten, 511 - 10 - displaced, "{report:?}");
    disk.resume();
}

/// JO-20: too large record is rejected and counted.
#[test]
fn too_large_record_is_rejected_and_counted() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let producer = journal.producer();
    let large = vec![b'x'; (4 << 10) + 1];
    let record = ProducerRecord::new(Class::new(0), &large);
    assert_eq!(producer.offer(record), Err(AppendError::TooLarge { bytes: 4097, max: 4096 }));
    assert_eq!(producer.append_blocking(record), Err(AppendError::TooLarge { bytes: 4097, max: 4096 }));
    producer.append_blocking(ProducerRecord::new(Class::new(0), &large[1..])).unwrap();
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    assert_eq!(journal.stats().classes[0].lost(LossCause::TooLarge), 2);
    balance(&journal, &folder);
}

/// JO-20: record of a quarter of the memory is accepted.
#[test]
fn record_of_a_quarter_of_the_memory_is_accepted() {
    let folder = TempDir::new().unwrap();
    let config = JournalConfig { record_bytes_max: (16 << 10) - 24, ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    let (producer, large) = (journal.producer(), vec![b'y'; (16 << 10) - 24]);
    for _ in 0..20 {
        producer.append_blocking(ProducerRecord::new(Class::new(0), &large)).unwrap();
        producer.append_blocking(ProducerRecord::new(Class::new(0), b"small")).unwrap();
    }
    assert!(journal.close(LONG).is_complete());
    assert_eq!(payloads(folder.path()).len(), 40);
}

/// JO-22: blocked producer times out at its deadline.
#[test]
fn blocked_producer_times_out_at_its_deadline() {
    let folder = TempDir::new().unwrap();
    let disk = FaultyDisk::healthy();
    let deadline = Duration::from_millis(60);
    let classes = vec![ClassConfig::new("a").overload(OverloadPolicy::Block { deadline })];
    let (journal, _) =
        Journal::open_with(JournalConfig { classes, ..small(folder.path()) }, disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    disk.stall();
    while producer.offer(ProducerRecord::new(Class::new(0), &[b'x'; SIZE])).is_ok() {}
    let late = ProducerRecord::new(Class::new(0), &[b'x'; SIZE]);
    let begun = std::time::Instant::now();
    assert_eq!(producer.append_blocking(late), Err(AppendError::TimedOut));
    assert!(begun.elapsed() >= deadline, "not before the deadline");
    let begun = std::time::Instant::now();
    let async_way = crate::block_on(producer.append(late));
    assert_eq!(async_way, Err(AppendError::TimedOut));
    assert!(begun.elapsed() >= deadline, "not before the deadline");
    disk.resume();
    assert!(journal.flush(Ack::Written, LONG).unwrap());
    assert_eq!(journal.stats().classes[0].lost(LossCause::TimedOut), 2);
    balance(&journal, &folder);
}

fn numbers(folder: &TempDir) -> Vec<usize> {
    let records = payloads(folder.path());
    records.iter().filter_map(|record| std::str::from_utf8(record).unwrap().trim().parse().ok()).collect()
}
